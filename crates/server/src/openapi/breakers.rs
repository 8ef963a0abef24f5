//! What is said of breakers.

use super::shape::{Shape, TENANT, may, need, null};
use super::{Operation, answer};

const SHOWN: Shape = Shape::Named(
    "Breaker",
    &[
        need("id", Shape::Text, "what it is called: an endpoint's id, or a number of what endpoints share"),
        TENANT,
        need("of", Shape::OneOf(&["endpoint", "origin", "region", "credential", "resolver"]), ""),
        null(
            "origin",
            Shape::Text,
            "of an endpoint's and an origin's: its scheme, host and port; null while nothing is known to wait there",
        ),
        need("state", Shape::OneOf(&["closed", "open", "half_open"]), "open: nothing is tried"),
        null("since", Shape::Time, ""),
        null("until", Shape::Time, "when a probe goes"),
        null("why", Shape::Text, "what opened it"),
        need("holds", Shape::Whole, "deliveries in memory that it holds"),
    ],
);

const RESET: Shape = Shape::Object(&[
    may("force", Shape::Truth, "close it at once, without a probe"),
    may("reason", Shape::Text, "for whoever wonders"),
]);

const DONE: Shape = Shape::Object(&[need("id", Shape::Text, ""), need("closed", Shape::Truth, "")]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/breakers", "Lists the breakers that are not closed").scope("operate").answers(&[answer(
        200,
        "Every one of them; where a tenant is named, those that hold something of it.",
        &Shape::Page(&SHOWN),
    )]),
    Operation::post("/v1/breakers/{id}/reset", "Resets a breaker: a probe goes first")
        .scope("operate")
        .may_take(&RESET)
        .answers(&[answer(200, "It is reset.", &DONE)]),
];
