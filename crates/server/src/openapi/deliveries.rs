//! What is said of deliveries.

use super::document::WAITING;
use super::shape::{Shape, need, null};
use super::{Operation, answer};

const ATTEMPT: Shape = Shape::Object(&[
    need("attempt", Shape::Whole, "its number, from 1"),
    need("at", Shape::Time, "when it began"),
    need("duration", Shape::Duration, ""),
    null("status", Shape::Whole, "what the receiver answered, if it did"),
    need("cause", Shape::Text, "how it ended"),
]);

const SHOWN: Shape = Shape::Named(
    "Delivery",
    &[
        need("id", Shape::Text, ""),
        need("message", Shape::Text, ""),
        need("endpoint", Shape::Text, ""),
        need("tier", Shape::Text, ""),
        need("state", Shape::Text, ""),
        null("cause", Shape::Text, "why the last step was no success"),
        need("accepted_at", Shape::Time, ""),
        null("expires_at", Shape::Time, ""),
        null("sent_at", Shape::Time, "when its last attempt began"),
        null("delivered_at", Shape::Time, ""),
        null("failed_at", Shape::Time, "when it ended otherwise"),
        need("attempts", Shape::List(&ATTEMPT), ""),
        null("waiting", WAITING, "why it waits, while it does"),
    ],
);

pub(super) const OPERATIONS: &[Operation] =
    &[Operation::get("/v1/deliveries/{id}", "Shows a delivery with every attempt, and why it waits")
        .scope("read")
        .answers(&[answer(200, "The delivery.", &SHOWN)])];
