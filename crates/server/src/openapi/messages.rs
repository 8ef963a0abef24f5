//! The documentation of the routes for messages. The handlers are in [`api::messages`](crate::api::messages).

use super::document::WAITING;
use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const TO: Shape = Shape::Object(&[
    may("endpoints", Shape::List(&Shape::Text), "these endpoints, by id or uid, regardless of their event_types"),
    may("subjects", Shape::List(&Shape::Text), "endpoints that want the event and belong to one of these subjects"),
    may("tags", Shape::List(&Shape::Name), "endpoints that want the event and have one of these tags"),
    may("channel", Shape::OneOf(&["webhook"]), "endpoints of this channel"),
    may("all", Shape::Truth, "every endpoint, regardless of its event_types"),
]);

pub(super) const NEW_FIELDS: [Field; 13] = [
    need("payload", Shape::Json, "sent to receivers byte for byte; at most 1,000,000 bytes"),
    may("event_type", Shape::Text, "the kind of event, such as invoice.paid; endpoints subscribe to event types"),
    may("to", TO, "the endpoints it is for; by default every endpoint that wants the event type"),
    may("correlation_id", Shape::Name, "sent with every attempt, and a filter of lists; the message's id by default"),
    may("collapse_key", Shape::Name, "a newer message with the same key replaces one that is still waiting"),
    may("tier", Shape::Tier, "how urgent it is; promotional by default"),
    may("ttl", Shape::Duration, "how long to try; after that a delivery expires. The endpoint's ttl by default"),
    may("deliver_at", Shape::Time, "the earliest time to send it, at most 90 days ahead"),
    may("compact", Shape::Json, "a smaller payload, sent once to a receiver that answers 413"),
    may("subject", Shape::Text, "the person or thing whose data it is, for export and erasure"),
    may("labels", Shape::Map(&Shape::Text), "at most 16, stored and shown with the message"),
    may("region", Shape::Name, "stored and shown with the message"),
    may("cost_center", Shape::Name, "stored and shown with the message"),
];

const NEW: Shape = Shape::Named("NewMessage", &NEW_FIELDS);

pub(super) const ACCEPTED_FIELDS: [Field; 6] = [
    need("id", Shape::Text, "the message's id"),
    need("correlation_id", Shape::Text, ""),
    need("accepted_at", Shape::Time, "when it was stored durably"),
    null("expires_at", Shape::Time, "when its ttl ends; null without one"),
    null("deliveries", Shape::Whole, "the number of endpoints it goes to; null while they are still being looked up"),
    need("notes", Shape::List(&Shape::Text), "warnings, such as that no endpoint wants the event type"),
];

pub(super) const ACCEPTED: Shape = Shape::Named("Accepted", &ACCEPTED_FIELDS);

const DELIVERY: Shape = Shape::Object(&[
    need("id", Shape::Text, ""),
    null("endpoint", Shape::Text, ""),
    need("state", Shape::OneOf(&super::document::STATES), ""),
    null("cause", Shape::Text, "why the last attempt failed, or why it ended without success"),
    need("attempts", Shape::Whole, "the number of attempts made"),
    null("waiting", WAITING, "why it waits; null if it does not"),
]);

const SHOWN_FIELDS: &[Field] = &[
    need("id", Shape::Text, ""),
    TENANT,
    null("event_type", Shape::Text, ""),
    need("correlation_id", Shape::Text, ""),
    null("subject", Shape::Text, "the person or thing whose data it is"),
    need("tier", Shape::Text, ""),
    need("labels", Shape::Map(&Shape::Text), ""),
    null("region", Shape::Text, ""),
    null("cost_center", Shape::Text, ""),
    need("accepted_at", Shape::Time, ""),
    null("deliver_at", Shape::Time, "the earliest time to send it"),
    null("ttl", Shape::Duration, "how long it is tried"),
    null("expires_at", Shape::Time, "when its own ttl ends"),
    null("to", SHOWN_TO, "the endpoints that the producer addressed; null if it gave no `to`"),
    need("state", Shape::OneOf(STATES), "sums up the last delivery to each endpoint"),
    need("deliveries", Shape::List(&DELIVERY), "the first 1,000; GET /v1/deliveries?message= lists all"),
    need("fanout", FANOUT, "the progress of creating its deliveries"),
    may("payload", Shape::Json, "only with content=true"),
    may("compact", Shape::Json, "only with content=true"),
];

const SHOWN_TO: Shape = Shape::Object(&[
    may("endpoints", Shape::List(&Shape::Text), "the endpoints named, as far as deliveries to them are still stored"),
    need("subjects", Shape::List(&Shape::Text), ""),
    need("tags", Shape::List(&Shape::Name), ""),
    need("all", Shape::Truth, "every endpoint, regardless of its event_types"),
]);

const SHOWN: Shape = Shape::Named("Message", SHOWN_FIELDS);

const FANOUT: Shape = Shape::Object(&[
    need("done", Shape::Whole, "deliveries created, replays not counted"),
    null("total", Shape::Whole, "deliveries to create; null while that is not known"),
    need("state", Shape::OneOf(&["running", "paused", "done", "cancelled"]), ""),
]);

/// A message in a list: the fields up to `accepted_at`, without its deliveries.
const LISTED: Shape = Shape::Named("ListedMessage", SHOWN_FIELDS.split_at(13).0);

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("event_type", Shape::Text, "only messages of this event type"),
    may("tier", Shape::Tier, "only messages of this tier"),
    may("subject", Shape::Text, "only messages about this subject"),
    may("correlation_id", Shape::Text, "only messages with this correlation id"),
    may("since", Shape::Time, "only messages accepted at or after this time"),
    may("until", Shape::Time, "only messages accepted before this time"),
];

const CONTENT: &[Field] =
    &[may("content", Shape::Truth, "true: include the payload; the key then needs the scope privacy too")];

const STATES: &[&str] = &["pending", "delivered", "partly", "failed", "expired", "cancelled"];

const ENDED: &[Field] = &[
    need("ended", Shape::Whole, "the number of deliveries ended; they are never sent"),
    need("in_flight", Shape::Whole, "the number of deliveries being sent; they may still arrive"),
];

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/messages", "Sends a message").scope("send").takes(&NEW).keyed().limited().answers(&[answer(
        202,
        "The message is stored durably and will be delivered.",
        &ACCEPTED,
    )]),
    Operation::get("/v1/messages", "Lists messages").scope("read").parameters(FILTERS).answers(&[answer(
        200,
        "A page of messages.",
        &Shape::Page(&LISTED),
    )]),
    Operation::get("/v1/messages/{id}", "Shows a message and the state of its deliveries")
        .scope("read")
        .parameters(CONTENT)
        .answers(&[answer(200, "The message.", &SHOWN)]),
    Operation::post("/v1/messages/{id}/cancel", "Cancels the deliveries of a message that are not sent yet")
        .scope("replay")
        .answers(&[answer(200, "The message is cancelled.", &Shape::Object(ENDED))]),
];
