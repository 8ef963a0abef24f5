//! The documentation of the list of dead letters.

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("endpoint", Shape::Text, "only dead letters of this endpoint, by id or uid"),
    may("cause", Shape::Text, "only dead letters with this cause"),
    may("event_type", Shape::Text, "only dead letters of this event type"),
    may("tier", Shape::Tier, "only dead letters of this tier"),
    may("since", Shape::Time, "only deliveries that died at or after this time"),
    may("until", Shape::Time, "only deliveries that died before this time"),
];

const SHOWN: Shape = Shape::Named(
    "DeadLetter",
    &[
        TENANT,
        need("delivery", Shape::Text, "the delivery that was given up"),
        need("message", Shape::Text, ""),
        null("endpoint", Shape::Text, ""),
        null("event_type", Shape::Text, ""),
        need("tier", Shape::Text, ""),
        need("cause", Shape::Text, ""),
        need("attempts", Shape::Whole, ""),
        need("dead_at", Shape::Time, ""),
        need("replayed", Shape::Truth, "whether it was replayed"),
        null("replayed_as", Shape::Text, "the delivery that replays it"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[Operation::get("/v1/dead-letters", "Lists dead letters")
    .scope("read")
    .parameters(FILTERS)
    .answers(&[answer(200, "A page of dead letters.", &Shape::Page(&SHOWN))])];
