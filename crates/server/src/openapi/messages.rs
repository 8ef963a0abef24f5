//! What is said of messages.

use super::document::WAITING;
use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const TO: Shape = Shape::Object(&[
    may("endpoints", Shape::List(&Shape::Text), "these, and no others, by id or uid"),
    may("subjects", Shape::List(&Shape::Text), "endpoints of one of these subjects"),
    may("tags", Shape::List(&Shape::Name), "endpoints with one of these tags"),
    may("channel", Shape::OneOf(&["webhook"]), "endpoints of this channel"),
    may("all", Shape::Truth, "every endpoint, whatever events it wants"),
]);

pub(super) const NEW_FIELDS: [Field; 13] = [
    need("payload", Shape::Json, "what receivers get, byte for byte; at most 1,000,000 bytes"),
    may("event_type", Shape::Text, "what happened, such as invoice.paid; endpoints choose by it"),
    may("to", TO, "who gets it; every endpoint that wants the event where nothing is said"),
    may("correlation_id", Shape::Name, "ties everything about it together; its own id where nothing is said"),
    may("collapse_key", Shape::Name, "a newer message with the same key replaces one that still waits"),
    may("tier", Shape::Tier, "how urgent it is; promotional where nothing is said"),
    may("ttl", Shape::Duration, "how long it is worth sending"),
    may("deliver_at", Shape::Time, "not before, at most 90 days ahead"),
    may("compact", Shape::Json, "a smaller payload for receivers that refuse this one's size"),
    may("subject", Shape::Text, "whose data it is, for export and erasure"),
    may("labels", Shape::Map(&Shape::Text), "at most 16, carried along"),
    may("region", Shape::Name, "carried along"),
    may("cost_center", Shape::Name, "carried along"),
];

const NEW: Shape = Shape::Named("NewMessage", &NEW_FIELDS);

pub(super) const ACCEPTED_FIELDS: [Field; 6] = [
    need("id", Shape::Text, "the message's id"),
    need("correlation_id", Shape::Text, ""),
    need("accepted_at", Shape::Time, "it is durable since"),
    null("expires_at", Shape::Time, ""),
    null("deliveries", Shape::Whole, "how many endpoints get it; null while they are being found"),
    need("notes", Shape::List(&Shape::Text), "what the sender should know"),
];

pub(super) const ACCEPTED: Shape = Shape::Named("Accepted", &ACCEPTED_FIELDS);

const DELIVERY: Shape = Shape::Object(&[
    need("id", Shape::Text, ""),
    null("endpoint", Shape::Text, ""),
    need("state", Shape::OneOf(&super::document::STATES), ""),
    null("cause", Shape::Text, "why the last step was no success"),
    need("attempts", Shape::Whole, ""),
    null("waiting", WAITING, "why it waits, while it does"),
]);

const SHOWN_FIELDS: &[Field] = &[
    need("id", Shape::Text, ""),
    TENANT,
    null("event_type", Shape::Text, ""),
    need("correlation_id", Shape::Text, ""),
    null("subject", Shape::Text, "whose data it is"),
    need("tier", Shape::Text, ""),
    need("labels", Shape::Map(&Shape::Text), ""),
    null("region", Shape::Text, ""),
    null("cost_center", Shape::Text, ""),
    need("accepted_at", Shape::Time, ""),
    null("deliver_at", Shape::Time, "not before"),
    null("ttl", Shape::Duration, "how long it is worth sending"),
    null("expires_at", Shape::Time, "when that is over, by its own TTL"),
    null("to", SHOWN_TO, "whom it is for, where its sender said so"),
    need("state", Shape::OneOf(STATES), "what its deliveries are together: of each endpoint, the last"),
    need("deliveries", Shape::List(&DELIVERY), "the first 1,000"),
    need("fanout", FANOUT, "how far it is in becoming deliveries"),
    may("payload", Shape::Json, "where it is asked for"),
    may("compact", Shape::Json, "where it is asked for"),
];

const SHOWN_TO: Shape = Shape::Object(&[
    may("endpoints", Shape::List(&Shape::Text), "those that were named, as far as its deliveries are kept"),
    need("subjects", Shape::List(&Shape::Text), ""),
    need("tags", Shape::List(&Shape::Name), ""),
    need("all", Shape::Truth, "whatever events they want"),
]);

const SHOWN: Shape = Shape::Named("Message", SHOWN_FIELDS);

const FANOUT: Shape = Shape::Object(&[
    need("done", Shape::Whole, "deliveries made; replays are not among them"),
    null("total", Shape::Whole, "null while nobody knows"),
    need("state", Shape::OneOf(&["running", "paused", "done", "cancelled"]), ""),
]);

/// The same up to when it was accepted: without what became of it.
const LISTED: Shape = Shape::Named("ListedMessage", SHOWN_FIELDS.split_at(13).0);

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("event_type", Shape::Text, "of this event"),
    may("tier", Shape::Tier, "of this tier"),
    may("subject", Shape::Text, "about this subject"),
    may("correlation_id", Shape::Text, "of this correlation id"),
    may("since", Shape::Time, "accepted then or later"),
    may("until", Shape::Time, "accepted before"),
];

const CONTENT: &[Field] =
    &[may("content", Shape::Truth, "whether the payload comes along; needs the scope privacy too")];

const STATES: &[&str] = &["pending", "delivered", "partly", "failed", "expired", "cancelled"];

const ENDED: &[Field] = &[
    need("ended", Shape::Whole, "so many are never sent from now on"),
    need("in_flight", Shape::Whole, "so many were being sent, and may still arrive"),
];

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/messages", "Sends a message").scope("send").takes(&NEW).keyed().limited().answers(&[answer(
        202,
        "It is durable, and will be delivered.",
        &ACCEPTED,
    )]),
    Operation::get("/v1/messages", "Lists messages").scope("read").parameters(FILTERS).answers(&[answer(
        200,
        "A page of them.",
        &Shape::Page(&LISTED),
    )]),
    Operation::get("/v1/messages/{id}", "Shows a message and where its deliveries are")
        .scope("read")
        .parameters(CONTENT)
        .answers(&[answer(200, "The message.", &SHOWN)]),
    Operation::post("/v1/messages/{id}/cancel", "Ends what was not sent of a message")
        .scope("replay")
        .answers(&[answer(200, "It is in force.", &Shape::Object(ENDED))]),
];
