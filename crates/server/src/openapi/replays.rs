//! What is said of replays.

use super::shape::{CURSOR, LIMIT, ORDER, Shape, may, need, null};
use super::{Operation, answer};

const SELECT: Shape = Shape::Object(&[
    may("deliveries", Shape::List(&Shape::Text), "these, at most 1,000; goes with no filter"),
    may("endpoint", Shape::Text, "of this one"),
    may("cause", Shape::Text, "given up for this"),
    may("event_type", Shape::Text, "of this event"),
    may("tier", Shape::Tier, "of this tier"),
    may("since", Shape::Time, "given up then or later"),
    may("until", Shape::Time, "given up before"),
    may("state", Shape::List(&Shape::OneOf(&["dead"])), ""),
]);

const NEW: Shape = Shape::Named(
    "NewReplay",
    &[
        need("select", SELECT, "which; {} is every dead letter"),
        may("dry_run", Shape::Truth, "only count them"),
        may("per_second", Shape::Whole, "not faster than this"),
        may("reason", Shape::Text, "for whoever wonders"),
    ],
);

const TOTAL: Shape = Shape::Object(&[
    need("count", Shape::Whole, ""),
    need("exact", Shape::Truth, "whether there are no more than that"),
]);

const SHOWN: Shape = Shape::Named(
    "Replay",
    &[
        need("id", Shape::Text, ""),
        need("state", Shape::OneOf(&["running", "paused", "done", "cancelled"]), ""),
        need("created_at", Shape::Time, ""),
        null("total", TOTAL, "how many there are, where they were counted"),
        need("replayed", Shape::Whole, ""),
        need("skipped", Shape::Whole, ""),
        null("per_second", Shape::Whole, ""),
    ],
);

const COUNTED: Shape = Shape::Object(&[need("dry_run", Shape::Truth, ""), need("total", TOTAL, "")]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/replays", "Gives dead letters another life")
        .scope("replay")
        .takes(&NEW)
        .keyed()
        .answers(&[answer(202, "It has begun.", &SHOWN), answer(200, "A dry run: how many there are.", &COUNTED)]),
    Operation::get("/v1/replays", "Lists replays")
        .scope("read")
        .parameters(&[LIMIT, ORDER, CURSOR])
        .answers(&[answer(200, "A page of them.", &Shape::Page(&SHOWN))]),
    Operation::get("/v1/replays/{id}", "Shows how far a replay is").scope("read").answers(&[answer(
        200,
        "The replay.",
        &SHOWN,
    )]),
];
