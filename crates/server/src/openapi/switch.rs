//! What is said of holding everything.

use super::shape::{Field, Shape, may, need, null};
use super::{Operation, answer};

const PAUSE: Shape = Shape::Object(&[
    need("scope", Shape::OneOf(&["all", "tenant"]), "what is held"),
    may("id", Shape::Text, "which tenant, by id or uid"),
    may("until", Shape::Time, "it ends by itself then"),
    may("reason", Shape::Text, "for whoever wonders"),
]);
const RESUME: Shape = Shape::Object(&[
    need("scope", Shape::OneOf(&["all", "tenant"]), "what is let go"),
    may("id", Shape::Text, "which tenant, by id or uid"),
    may("reason", Shape::Text, "for whoever wonders"),
]);

const SWITCHED: &[Field] = &[
    need("scope", Shape::Text, ""),
    null("id", Shape::Text, "the tenant's id"),
    need("paused", Shape::Truth, ""),
    null("until", Shape::Time, ""),
];

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/pause", "Holds everything, or a tenant's: once it answers, nothing of it is sent")
        .scope("operate")
        .takes(&PAUSE)
        .answers(&[answer(200, "It is held.", &Shape::Object(SWITCHED))]),
    Operation::post("/v1/resume", "Ends a pause").scope("operate").takes(&RESUME).answers(&[answer(
        200,
        "It is let go.",
        &Shape::Object(SWITCHED),
    )]),
];
