//! The documentation of the routes for breakers.

use super::shape::{Shape, TENANT, may, need, null};
use super::{Operation, answer};

const SHOWN: Shape = Shape::Named(
    "Breaker",
    &[
        need("id", Shape::Text, "an endpoint's id, or the number of a breaker that endpoints share"),
        TENANT,
        need("of", Shape::OneOf(&["endpoint", "origin", "region", "credential", "resolver"]), "what it watches"),
        null(
            "origin",
            Shape::Text,
            "of an endpoint or an origin: scheme, host and port; null while no waiting delivery is known",
        ),
        need(
            "state",
            Shape::OneOf(&["closed", "open", "half_open"]),
            "open: nothing is sent; half_open: one probe at a time; closed: everything is sent",
        ),
        null("since", Shape::Time, ""),
        null("until", Shape::Time, "when the next probe is sent"),
        null("why", Shape::Text, "why it opened"),
        need("holds", Shape::Whole, "the number of deliveries in memory that it holds"),
    ],
);

const RESET: Shape = Shape::Object(&[
    may("force", Shape::Truth, "true: close it at once, without a probe"),
    may("reason", Shape::Text, "a note; checked, but not stored"),
]);

const DONE: Shape = Shape::Object(&[need("id", Shape::Text, ""), need("closed", Shape::Truth, "")]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/breakers", "Lists the breakers that are not closed").scope("operate").answers(&[answer(
        200,
        "All breakers that are not closed; with Posthaste-Tenant, those that hold deliveries of that tenant.",
        &Shape::Page(&SHOWN),
    )]),
    Operation::post("/v1/breakers/{id}/reset", "Resets a breaker: it sends a probe next, or closes at once")
        .scope("operate")
        .may_take(&RESET)
        .answers(&[answer(200, "The breaker is reset.", &DONE)]),
];
