//! What is said of messages.

use super::document::WAITING;
use super::shape::{Field, Shape, may, need, null};
use super::{Operation, answer};

const TO: Shape = Shape::Object(&[may("endpoints", Shape::List(&Shape::Text), "these, and no others, by id")]);

const NEW: Shape = Shape::Named(
    "NewMessage",
    &[
        need("payload", Shape::Json, "what receivers get, byte for byte; at most 1,000,000 bytes"),
        may("event_type", Shape::Text, "what happened, such as invoice.paid; endpoints choose by it"),
        may("to", TO, "who gets it; every endpoint that wants the event where nothing is said"),
        may("correlation_id", Shape::Name, "ties everything about it together; its own id where nothing is said"),
        may("collapse_key", Shape::Name, "a newer message with the same key replaces one that still waits"),
        may("tier", Shape::Tier, "how urgent it is; promotional where nothing is said"),
        may("ttl", Shape::Duration, "how long it is worth sending"),
        may("deliver_at", Shape::Time, "not before, at most 90 days ahead"),
    ],
);

const ACCEPTED: Shape = Shape::Named(
    "Accepted",
    &[
        need("id", Shape::Text, "the message's id"),
        need("correlation_id", Shape::Text, ""),
        need("accepted_at", Shape::Time, "it is durable since"),
        null("expires_at", Shape::Time, ""),
        null("deliveries", Shape::Whole, "how many endpoints get it; null while they are being found"),
        need("notes", Shape::List(&Shape::Text), "what the sender should know"),
    ],
);

const DELIVERY: Shape = Shape::Object(&[
    need("id", Shape::Text, ""),
    null("endpoint", Shape::Text, ""),
    need("state", Shape::Text, ""),
    null("cause", Shape::Text, "why the last step was no success"),
    need("attempts", Shape::Whole, ""),
    null("waiting", WAITING, "why it waits, while it does"),
]);

const SHOWN: Shape = Shape::Named(
    "Message",
    &[
        need("id", Shape::Text, ""),
        null("event_type", Shape::Text, ""),
        need("correlation_id", Shape::Text, ""),
        need("accepted_at", Shape::Time, ""),
        need("state", Shape::OneOf(STATES), "what its deliveries are together"),
        need("deliveries", Shape::List(&DELIVERY), "the first 1,000"),
    ],
);

const STATES: &[&str] = &["pending", "delivered", "partly", "failed", "expired", "cancelled"];

const ENDED: &[Field] = &[
    need("ended", Shape::Whole, "so many are never sent from now on"),
    need("in_flight", Shape::Whole, "so many were being sent, and may still arrive"),
];

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/messages", "Sends a message").scope("send").takes(&NEW).keyed().answers(&[answer(
        202,
        "It is durable, and will be delivered.",
        &ACCEPTED,
    )]),
    Operation::get("/v1/messages/{id}", "Shows a message and where its deliveries are")
        .scope("read")
        .answers(&[answer(200, "The message.", &SHOWN)]),
    Operation::post("/v1/messages/{id}/cancel", "Ends what was not sent of a message")
        .scope("replay")
        .answers(&[answer(200, "It is in force.", &Shape::Object(ENDED))]),
];
