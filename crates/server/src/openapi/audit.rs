//! What is said of the audit trail.

use posthaste_store::journal::Kind;

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, may, need, null};
use super::{Operation, answer};

/// What the kinds are called.
const KINDS: &[&str] = &names();

const fn names() -> [&'static str; Kind::ALL.len()] {
    let mut names = [""; Kind::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Kind::ALL[at].name();
        at += 1;
    }
    names
}

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("kind", Shape::OneOf(KINDS), "only this"),
    may("tenant", Shape::Text, "only what is known to be about this tenant, by id or uid"),
    may("by", Shape::Text, "only what was done with this API key, by id; also one that was revoked"),
    may("since", Shape::Time, "recorded then or later"),
    may("until", Shape::Time, "recorded before"),
];

const SHOWN: Shape = Shape::Named(
    "AuditEntry",
    &[
        need("row", Shape::Whole, "the row of the journal that tells of it: one for each commit"),
        need("at", Shape::Time, "when it happened"),
        need("recorded_at", Shape::Time, "the time of its row, which never goes back"),
        need("kind", Shape::OneOf(KINDS), "what happened"),
        null("tenant", Shape::Text, ""),
        null("endpoint", Shape::Text, ""),
        null("message", Shape::Text, "while it is kept"),
        null("delivery", Shape::Text, "while its message is kept"),
        null(
            "id",
            Shape::Text,
            "of the API key, the tenant, the replay or the origin it is about, or a policy's name while there is one",
        ),
        null("what", Shape::Text, "in a few words, such as made, changed or revoked"),
        null("by", Shape::Text, "the API key of whoever did it; null where the server did, or asks for no keys"),
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
