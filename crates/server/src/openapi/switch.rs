//! The documentation of pauses: of everything, of a tenant, or of an origin.

use super::shape::{CURSOR, Field, LIMIT, Shape, may, need, null};
use super::{Operation, answer};

const SCOPE: Field = need("scope", Shape::OneOf(&["all", "tenant", "origin"]), "what to pause or resume");
const ID: Field = may(
    "id",
    Shape::Text,
    "for scope tenant: the tenant's id or uid; for scope origin: scheme, host and port, such as https://example.com",
);

const PAUSE: Shape = Shape::Object(&[
    SCOPE,
    ID,
    may("until", Shape::Time, "when the pause ends by itself; never by default"),
    may("reason", Shape::Text, "a note that is shown with waiting deliveries; one line of at most 500 characters"),
]);
const RESUME: Shape = Shape::Object(&[SCOPE, ID, may("reason", Shape::Text, "a note; checked, but not stored")]);

const UNTIL: Field = null("until", Shape::Time, "when the pause ends by itself; null if it does not");
const REASON: Field = null("reason", Shape::Text, "the reason given when it was paused");

const AUDIT_ID: Field = null("audit_id", Shape::Text, "the origin's id in the audit trail and in the list of breakers");

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
        need("scope", Shape::OneOf(&["all", "tenant", "origin", "endpoint"]), "what is paused"),
        null("id", Shape::Text, "the tenant's or endpoint's id, or the origin"),
        AUDIT_ID,
        UNTIL,
        REASON,
        null("by", Shape::Text, "the id of the API key it was paused with"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/pause", "Lists pauses, the widest scope first")
        .scope("operate")
        .parameters(&[LIMIT, CURSOR])
        .answers(&[answer(200, "A page of pauses.", &Shape::Page(&SHOWN))]),
    Operation::post(
        "/v1/pause",
        "Pauses all deliveries, or those of one tenant or to one origin: after the answer none of them is sent",
    )
    .scope("operate")
    .takes(&PAUSE)
    .answers(&[answer(200, "The pause is in force.", &Shape::Object(SWITCHED))]),
    Operation::post("/v1/resume", "Ends a pause; 409 if there is no such pause")
        .scope("operate")
        .conflicts()
        .takes(&RESUME)
        .answers(&[answer(200, "The pause has ended.", &Shape::Object(SWITCHED))]),
];
