//! What is said of holding everything, a tenant's, or what goes to an origin.

use super::shape::{CURSOR, Field, LIMIT, Shape, may, need, null};
use super::{Operation, answer};

const SCOPE: Field = need("scope", Shape::OneOf(&["all", "tenant", "origin"]), "what it is about");
const ID: Field = may("id", Shape::Text, "which tenant, by id or uid, or which origin: scheme, host and port");

const PAUSE: Shape = Shape::Object(&[
    SCOPE,
    ID,
    may("until", Shape::Time, "it ends by itself then"),
    may("reason", Shape::Text, "for whoever wonders: kept, and shown with what waits; one line of 500 characters"),
]);
const RESUME: Shape = Shape::Object(&[SCOPE, ID, may("reason", Shape::Text, "for whoever wonders")]);

const UNTIL: Field = null("until", Shape::Time, "when it ends by itself");
const REASON: Field = null("reason", Shape::Text, "in the words of whoever paused it");

const AUDIT_ID: Field = null("audit_id", Shape::Text, "what the audit trail and its breaker call the origin");

const SWITCHED: &[Field] = &[
    need("scope", Shape::Text, ""),
    null("id", Shape::Text, "the tenant's id, or the origin"),
    AUDIT_ID,
    need("paused", Shape::Truth, ""),
    UNTIL,
    REASON,
];

const SHOWN: Shape = Shape::Named(
    "Pause",
    &[
        need("scope", Shape::OneOf(&["all", "tenant", "origin", "endpoint"]), "what is held"),
        null("id", Shape::Text, "the tenant's or endpoint's id, or the origin"),
        AUDIT_ID,
        UNTIL,
        REASON,
        null("by", Shape::Text, "the API key it was paused with"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/pause", "Lists what is paused, the widest first")
        .scope("operate")
        .parameters(&[LIMIT, CURSOR])
        .answers(&[answer(200, "A page of it.", &Shape::Page(&SHOWN))]),
    Operation::post(
        "/v1/pause",
        "Holds everything, a tenant's, or an origin's: once it answers, nothing of it is sent",
    )
    .scope("operate")
    .takes(&PAUSE)
    .answers(&[answer(200, "It is held.", &Shape::Object(SWITCHED))]),
    Operation::post("/v1/resume", "Ends a pause; 409 where nothing is paused")
        .scope("operate")
        .conflicts()
        .takes(&RESUME)
        .answers(&[answer(200, "It is let go.", &Shape::Object(SWITCHED))]),
];
