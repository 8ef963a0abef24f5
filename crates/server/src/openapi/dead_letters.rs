//! What is said of dead letters.

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("endpoint", Shape::Text, "of this one"),
    may("cause", Shape::Text, "given up for this"),
    may("event_type", Shape::Text, "of this event"),
    may("tier", Shape::Tier, "of this tier"),
    may("since", Shape::Time, "given up then or later"),
    may("until", Shape::Time, "given up before"),
];

const SHOWN: Shape = Shape::Named(
    "DeadLetter",
    &[
        TENANT,
        need("delivery", Shape::Text, "which delivery was given up"),
        need("message", Shape::Text, ""),
        null("endpoint", Shape::Text, ""),
        null("event_type", Shape::Text, ""),
        need("tier", Shape::Text, ""),
        need("cause", Shape::Text, ""),
        need("attempts", Shape::Whole, ""),
        need("dead_at", Shape::Time, ""),
        need("replayed", Shape::Truth, "whether it was given another life"),
        null("replayed_as", Shape::Text, "that life: another delivery"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[Operation::get("/v1/dead-letters", "Lists what was given up")
    .scope("read")
    .parameters(FILTERS)
    .answers(&[answer(200, "A page of them.", &Shape::Page(&SHOWN))])];
