//! The documentation of the routes for the audit trail.

use posthaste_store::journal::EntryKind;

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, may, need, null};
use super::{Operation, answer};

/// The names of the kinds of entries.
const KINDS: &[&str] = &names();

const fn names() -> [&'static str; EntryKind::ALL.len()] {
    let mut names = [""; EntryKind::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = EntryKind::ALL[at].name();
        at += 1;
    }
    names
}

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("kind", Shape::OneOf(KINDS), "only entries of this kind"),
    may("tenant", Shape::Text, "only entries known to be about this tenant, by id or uid"),
    may("by", Shape::Text, "only entries of requests with this API key, by id; also a revoked one"),
    may("since", Shape::Time, "only entries recorded at or after this time"),
    may("until", Shape::Time, "only entries recorded before this time"),
];

const SHOWN: Shape = Shape::Named(
    "AuditEntry",
    &[
        need("row", Shape::Whole, "the journal row that contains the entry; there is one row for each commit"),
        need("at", Shape::Time, "when it happened"),
        need("recorded_at", Shape::Time, "the time of the journal row; never earlier than that of an earlier row"),
        need("kind", Shape::OneOf(KINDS), "the kind of event"),
        null("tenant", Shape::Text, ""),
        null("endpoint", Shape::Text, ""),
        null("message", Shape::Text, "null once the message is no longer stored"),
        null("delivery", Shape::Text, "null once its message is no longer stored"),
        null(
            "id",
            Shape::Text,
            "the id of the API key, tenant, replay or origin that it is about; a policy's name while the policy exists",
        ),
        null("what", Shape::Text, "more about the event in a few words, such as made, changed or revoked"),
        null(
            "by",
            Shape::Text,
            "the id of the API key that caused it; null if the server did it by itself, or needs no keys",
        ),
    ],
);

const CHECKPOINT: Shape = Shape::Object(&[
    need("row", Shape::Whole, "the last journal row that the checkpoint covers; it covers all rows before it too"),
    need("line", Shape::Text, "the signed checkpoint; keep it on another machine for posthaste audit verify"),
    need("public_key", Shape::Text, "the public key that verifies it"),
    need("public_key_pem", Shape::Text, "the public key as PEM"),
]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/audit", "Lists the entries of the audit trail")
        .scope("operate")
        .parameters(FILTERS)
        .answers(&[answer(200, "A page of entries.", &Shape::Page(&SHOWN))]),
    Operation::get("/v1/audit/checkpoint", "Signs a checkpoint of the audit trail up to now")
        .scope("operate")
        .answers(&[answer(200, "The checkpoint.", &CHECKPOINT)]),
];
