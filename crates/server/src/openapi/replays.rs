//! What is said of replays.

use super::shape::{CURSOR, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const SELECT: Shape = Shape::Object(&[
    may("deliveries", Shape::List(&Shape::Text), "these, at most 1,000; goes with no filter"),
    may(
        "missing_for",
        Shape::Text,
        "messages that this endpoint wants and has no delivery of; goes with since and until",
    ),
    may("endpoint", Shape::Text, "of this one"),
    may("cause", Shape::Text, "given up for this; of expired ones, the cause of the last attempt"),
    may("event_type", Shape::Text, "of this event"),
    may("tier", Shape::Tier, "of this tier"),
    may("since", Shape::Time, "ended, or for missing_for accepted, then or later"),
    may("until", Shape::Time, "ended, or for missing_for accepted, before"),
    may("state", Shape::List(&Shape::OneOf(&["dead", "expired"])), "dead unless said otherwise"),
]);

const SELECTED: Shape = Shape::Object(&[
    may("deliveries", Shape::Whole, "how many were named"),
    may("missing_for", Shape::Text, "an endpoint's id"),
    may("endpoint", Shape::Text, "its id"),
    may("state", Shape::List(&Shape::OneOf(&["dead", "expired"])), ""),
    may("cause", Shape::Text, ""),
    may("event_type", Shape::Text, ""),
    may("tier", Shape::Text, ""),
    may("since", Shape::Time, "for missing_for, not before what is still known"),
    may("until", Shape::Time, ""),
]);

const NEW: Shape = Shape::Named(
    "NewReplay",
    &[
        need("select", SELECT, "which; {} is every dead letter"),
        may("dry_run", Shape::Truth, "only count them"),
        may("per_second", Shape::Whole, "not faster than this"),
        may("reason", Shape::Text, "for whoever wonders; shown with it"),
    ],
);

const TOTAL: Shape = Shape::Object(&[
    need("count", Shape::Whole, ""),
    need("exact", Shape::Truth, "whether there are no more than that"),
]);

const SKIPS: Shape = Shape::Object(&[
    may("payload_gone", Shape::Whole, "no payload is kept any more"),
    may("endpoint_gone", Shape::Whole, "the endpoint is gone or deleted"),
    may("replayed_before", Shape::Whole, "it has had its next life"),
    may("purged", Shape::Whole, ""),
    may("quarantined", Shape::Whole, "replayed only when its cause, token_rejected, is selected"),
    may("not_ended", Shape::Whole, "it waits or is being sent"),
    may("delivered", Shape::Whole, ""),
    may("cancelled", Shape::Whole, "it was, or its message"),
    may("not_found", Shape::Whole, "nothing is known of it any more"),
]);

const FORECAST: Shape = Shape::Object(&[
    need("left", TOTAL, ""),
    null("done_at", Shape::Time, "at the pace it may have, or has had so far; null while it is paused"),
]);

const SHOWN: Shape = Shape::Named(
    "Replay",
    &[
        need("id", Shape::Text, ""),
        TENANT,
        need("state", Shape::OneOf(&["running", "paused", "done", "cancelled"]), ""),
        need("created_at", Shape::Time, ""),
        need("select", SELECTED, "what it takes, as it was asked for"),
        null("reason", Shape::Text, "as it was given"),
        null("total", TOTAL, "how many there were when it was asked for"),
        need("replayed", Shape::Whole, ""),
        need("skipped", Shape::Whole, ""),
        need("skips", SKIPS, "why, and how many each"),
        null("per_second", Shape::Whole, ""),
        null("forecast", FORECAST, "until it has ended"),
    ],
);

const COUNTED: Shape = Shape::Object(&[
    need("dry_run", Shape::Truth, ""),
    need("total", TOTAL, "how many are selected"),
    need("replayed", Shape::Whole, "how many of them would be"),
    need("skipped", Shape::Whole, "how many would not"),
    need("skips", SKIPS, "why, and how many each"),
]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post(
        "/v1/replays",
        "Gives what was given up or has expired another life, or an endpoint what it never got",
    )
    .scope("replay")
    .takes(&NEW)
    .keyed()
    .bounded()
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
    Operation::post("/v1/replays/{id}/pause", "Holds a replay").scope("replay").conflicts().answers(&[answer(
        200,
        "It makes nothing until it is resumed.",
        &SHOWN,
    )]),
    Operation::post("/v1/replays/{id}/resume", "Lets a replay go on")
        .scope("replay")
        .conflicts()
        .bounded()
        .answers(&[answer(200, "It goes on where it was.", &SHOWN)]),
    Operation::post("/v1/replays/{id}/cancel", "Ends a replay").scope("replay").conflicts().answers(&[answer(
        200,
        "It makes nothing more; what it made stays.",
        &SHOWN,
    )]),
];
