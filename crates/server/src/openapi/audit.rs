//! What is said of the audit trail.

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, may, need, null};
use super::{Operation, answer};

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("kind", Shape::Text, "only this, such as ended, paused, document or erased"),
    may("tenant", Shape::Text, "only what is known to be about this tenant, by id or uid"),
    may("since", Shape::Time, "recorded then or later"),
    may("until", Shape::Time, "recorded before"),
];

const SHOWN: Shape = Shape::Named(
    "AuditEntry",
    &[
        need("row", Shape::Whole, "the row of the journal that tells of it: one for each commit"),
        need("at", Shape::Time, "when it happened"),
        need("recorded_at", Shape::Time, "the time of its row, which never goes back"),
        need("kind", Shape::Text, "what happened"),
        null("tenant", Shape::Text, ""),
        null("endpoint", Shape::Text, ""),
        null("message", Shape::Text, "while it is kept"),
        null("delivery", Shape::Text, "while its message is kept"),
        null("what", Shape::Text, "in a few words"),
        null("by", Shape::Text, "the API key of whoever did it, where that is kept"),
    ],
);

const CHECKPOINT: Shape = Shape::Object(&[
    need("row", Shape::Whole, "the row it vouches for, and all before it"),
    need("line", Shape::Text, "the checkpoint: keep it elsewhere, for posthaste audit verify"),
    need("public_key", Shape::Text, "what it is verified with"),
    need("public_key_pem", Shape::Text, "the same as PEM"),
]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/audit", "Lists what happened, and what operators did")
        .scope("operate")
        .parameters(FILTERS)
        .answers(&[answer(200, "A page of it.", &Shape::Page(&SHOWN))]),
    Operation::get("/v1/audit/checkpoint", "Signs for everything up to now").scope("operate").answers(&[answer(
        200,
        "The checkpoint.",
        &CHECKPOINT,
    )]),
];
