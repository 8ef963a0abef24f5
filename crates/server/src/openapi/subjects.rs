//! What is said of subjects.

use super::shape::{Shape, TENANT, may, need, null};
use super::{Operation, answer, answer_as, deliveries, endpoints, tenants};

const MESSAGE: Shape = Shape::Named(
    "HeldMessage",
    &[
        need("id", Shape::Text, ""),
        TENANT,
        null("event_type", Shape::Text, ""),
        need("correlation_id", Shape::Text, ""),
        null("subject", Shape::Text, ""),
        need("tier", Shape::Text, ""),
        need("labels", Shape::Map(&Shape::Text), ""),
        null("region", Shape::Text, ""),
        null("cost_center", Shape::Text, ""),
        need("accepted_at", Shape::Time, ""),
        null("deliver_at", Shape::Time, ""),
        null("ttl", Shape::Duration, ""),
        null("expires_at", Shape::Time, ""),
        need("payload", Shape::Json, ""),
        may("compact", Shape::Json, "where there is one"),
    ],
);

const LINE: Shape = Shape::Either(&[
    Shape::Object(&[
        need("kind", Shape::OneOf(&["endpoint"]), ""),
        need("endpoint", endpoints::SHOWN, "one that is theirs"),
    ]),
    Shape::Object(&[
        need("kind", Shape::OneOf(&["message"]), ""),
        need("message", MESSAGE, "one that is about them; its deliveries follow"),
    ]),
    Shape::Object(&[
        need("kind", Shape::OneOf(&["delivery"]), ""),
        need("delivery", deliveries::SHOWN, "with every attempt, and how its receiver answered those that failed"),
    ]),
    Shape::Object(&[
        need("kind", Shape::OneOf(&["complete"]), "the last line: an export without it was cut off"),
        need("endpoints", Shape::Whole, "so many lines are before it"),
        need("messages", Shape::Whole, "so many lines are before it"),
        need("deliveries", Shape::Whole, "so many lines are before it"),
    ]),
]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::new("DELETE", "/v1/subjects/{s}", "Erases a subject: endpoints that are theirs, messages about them")
        .scope("privacy")
        .answers(&[answer(200, "Nobody can read any of it.", &tenants::ERASED)]),
    Operation::get("/v1/subjects/{s}/export", "Exports everything that is held about a subject")
        .scope("privacy")
        .answers(&[answer_as(
            200,
            "A line for each thing, oldest first, and a last one.",
            &LINE,
            "application/x-ndjson",
        )]),
];
