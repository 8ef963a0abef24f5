//! The documentation of the routes for replays.

use super::shape::{CURSOR, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const SELECT: Shape = Shape::Object(&[
    may("deliveries", Shape::List(&Shape::Text), "these deliveries, at most 1,000; cannot be combined with a filter"),
    may(
        "missing_for",
        Shape::Text,
        "messages that this endpoint, by id or uid, wants and has no delivery of; can be combined with since and until \
         only",
    ),
    may("endpoint", Shape::Text, "only deliveries to this endpoint, by id or uid"),
    may("cause", Shape::Text, "only deliveries with this cause; for expired ones, the cause of the last attempt"),
    may("event_type", Shape::Text, "only deliveries of this event type"),
    may("tier", Shape::Tier, "only deliveries of this tier"),
    may(
        "since",
        Shape::Time,
        "only deliveries that ended, or with missing_for messages accepted, at or after this time",
    ),
    may("until", Shape::Time, "only deliveries that ended, or with missing_for messages accepted, before this time"),
    may("state", Shape::List(&Shape::OneOf(&["dead", "expired"])), "only deliveries in these states; dead by default"),
]);

const SELECTED: Shape = Shape::Object(&[
    may("deliveries", Shape::Whole, "the number of deliveries that the request named"),
    may("missing_for", Shape::Text, "the endpoint's id"),
    may("endpoint", Shape::Text, "the endpoint's id"),
    may("state", Shape::List(&Shape::OneOf(&["dead", "expired"])), ""),
    may("cause", Shape::Text, ""),
    may("event_type", Shape::Text, ""),
    may("tier", Shape::Text, ""),
    may("since", Shape::Time, "with missing_for, no earlier than the oldest message that is still stored"),
    may("until", Shape::Time, ""),
]);

const NEW: Shape = Shape::Named(
    "NewReplay",
    &[
        need("select", SELECT, "what to replay; {} selects every dead letter"),
        may("dry_run", Shape::Truth, "true: only count what would be replayed"),
        may("per_second", Shape::Whole, "the most deliveries to create in a second"),
        may("reason", Shape::Text, "a note that is shown with the replay"),
    ],
);

const TOTAL: Shape = Shape::Object(&[
    need("count", Shape::Whole, ""),
    need("exact", Shape::Truth, "true: exactly as many; false: at least as many"),
]);

const SKIPS: Shape = Shape::Object(&[
    may("payload_gone", Shape::Whole, "the payload is no longer stored"),
    may("endpoint_gone", Shape::Whole, "the endpoint is gone or deleted"),
    may("replayed_before", Shape::Whole, "the delivery was replayed before"),
    may("purged", Shape::Whole, "the dead letter was purged"),
    may("quarantined", Shape::Whole, "quarantined; replayed only if the cause token_rejected is selected"),
    may("not_ended", Shape::Whole, "the delivery waits or is being sent"),
    may("delivered", Shape::Whole, "the delivery was delivered"),
    may("cancelled", Shape::Whole, "the delivery or its message was cancelled"),
    may("not_found", Shape::Whole, "the delivery is no longer stored"),
]);

const FORECAST: Shape = Shape::Object(&[
    need("left", TOTAL, "how many are still to be looked at"),
    null("done_at", Shape::Time, "when it will be done at per_second, or at its speed so far; null while it is paused"),
]);

const SHOWN: Shape = Shape::Named(
    "Replay",
    &[
        need("id", Shape::Text, ""),
        TENANT,
        need("state", Shape::OneOf(&["running", "paused", "done", "cancelled"]), ""),
        need("created_at", Shape::Time, ""),
        need("select", SELECTED, "the selection that was requested"),
        null("reason", Shape::Text, "the note of the request"),
        null("total", TOTAL, "how many the selection had when the replay was created"),
        need("replayed", Shape::Whole, "the number of deliveries created so far"),
        need("skipped", Shape::Whole, "the number skipped so far"),
        need("skips", SKIPS, "the number skipped for each reason"),
        null("per_second", Shape::Whole, ""),
        null("forecast", FORECAST, "null once the replay has ended"),
    ],
);

const COUNTED: Shape = Shape::Object(&[
    need("dry_run", Shape::Truth, ""),
    need("total", TOTAL, "how many are selected"),
    need("replayed", Shape::Whole, "how many would be replayed"),
    need("skipped", Shape::Whole, "how many would be skipped"),
    need("skips", SKIPS, "how many would be skipped for each reason"),
]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post(
        "/v1/replays",
        "Replays deliveries that are dead or have expired, or sends an endpoint the messages it never got",
    )
    .scope("replay")
    .takes(&NEW)
    .keyed()
    .bounded()
    .answers(&[answer(202, "The replay is running.", &SHOWN), answer(200, "The counts of a dry run.", &COUNTED)]),
    Operation::get("/v1/replays", "Lists replays")
        .scope("read")
        .parameters(&[LIMIT, ORDER, CURSOR])
        .answers(&[answer(200, "A page of replays.", &Shape::Page(&SHOWN))]),
    Operation::get("/v1/replays/{id}", "Shows a replay and its progress").scope("read").answers(&[answer(
        200,
        "The replay.",
        &SHOWN,
    )]),
    Operation::post("/v1/replays/{id}/pause", "Pauses a replay").scope("replay").conflicts().answers(&[answer(
        200,
        "The replay creates no deliveries until it is resumed.",
        &SHOWN,
    )]),
    Operation::post("/v1/replays/{id}/resume", "Resumes a paused replay")
        .scope("replay")
        .conflicts()
        .bounded()
        .answers(&[answer(200, "The replay continues where it stopped.", &SHOWN)]),
    Operation::post("/v1/replays/{id}/cancel", "Cancels a replay").scope("replay").conflicts().answers(&[answer(
        200,
        "The replay creates no more deliveries; those it created stay.",
        &SHOWN,
    )]),
];
