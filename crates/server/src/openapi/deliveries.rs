//! What is said of deliveries.

use super::document::{STATES, WAITING};
use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const ATTEMPT: Shape = Shape::Object(&[
    need("attempt", Shape::Whole, "its number, from 1"),
    need("at", Shape::Time, "when it began"),
    need("duration", Shape::Duration, ""),
    null("status", Shape::Whole, "what the receiver answered, if it did"),
    need("cause", Shape::Text, "how it ended"),
    may("response", Shape::Text, "how the answer begins, of one that failed, where content is asked for"),
    null("next_due", Shape::Time, "when the next one is due, while that is ahead"),
]);

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("state", Shape::OneOf(&STATES), "in this state"),
    may("endpoint", Shape::Text, "to this endpoint, by id or uid"),
    may("cause", Shape::Text, "ended or last tried with this cause"),
    may("message", Shape::Text, "of this message"),
    may("tier", Shape::Tier, "of this tier"),
    may("since", Shape::Time, "due first then or later"),
    may("until", Shape::Time, "due first before"),
];

/// A delivery, with what is told of its endpoint and its attempts.
const fn told(endpoint: Field, attempts: Field) -> [Field; 19] {
    [
        need("id", Shape::Text, ""),
        TENANT,
        need("message", Shape::Text, ""),
        endpoint,
        need("tier", Shape::Text, ""),
        need("state", Shape::OneOf(&STATES), ""),
        null("cause", Shape::Text, "why the last step was no success"),
        may("cause_detail", Shape::Text, "of one that is shown, after a 413: how many bytes were above the limit"),
        need("accepted_at", Shape::Time, "when its message was accepted"),
        need("created_at", Shape::Time, "when it was made: with its message, or by a replay"),
        null("replay_of", Shape::Text, "the delivery whose next life it is"),
        null("replayed_as", Shape::Text, "its own next life"),
        null("replay", Shape::Text, "the replay that made it"),
        null("expires_at", Shape::Time, ""),
        null("sent_at", Shape::Time, "when its last attempt began"),
        null("delivered_at", Shape::Time, ""),
        null("failed_at", Shape::Time, "when it ended otherwise"),
        attempts,
        null("waiting", WAITING, "why it waits, while it does"),
    ]
}

const LISTED: Shape = Shape::Named(
    "ListedDelivery",
    &told(need("endpoint", Shape::Text, ""), need("attempts", Shape::Whole, "how many were made")),
);
pub(super) const SHOWN: Shape = Shape::Named(
    "Delivery",
    &told(
        null("endpoint", Shape::Text, "null in an export, where it is gone"),
        need("attempts", Shape::List(&ATTEMPT), ""),
    ),
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/deliveries", "Lists deliveries").scope("read").parameters(FILTERS).answers(&[answer(
        200,
        "A page of them.",
        &Shape::Page(&LISTED),
    )]),
    Operation::get("/v1/deliveries/{id}", "Shows a delivery with every attempt, and why it waits")
        .scope("read")
        .parameters(&[may("content", Shape::Truth, "whether answers come along; needs the scope privacy too")])
        .answers(&[answer(200, "The delivery.", &SHOWN)]),
    Operation::post("/v1/deliveries/{id}/retry", "Sends a delivery now that waits for its time; the gates still hold")
        .scope("replay")
        .conflicts()
        .answers(&[answer(200, "The delivery.", &SHOWN)]),
];
