//! What is said of the routes for whoever watches the process.

use super::shape::{Shape, need, null};
use super::{Operation, answer, answer_as};

const STATUS: Shape = Shape::Object(&[need("status", Shape::Text, "")]);

const READINESS: Shape = Shape::Object(&[
    need("status", Shape::Text, ""),
    need("store", Shape::OneOf(&["well", "full", "stopped"]), ""),
    need("paused", Shape::Truth, "whether nothing is sent, because somebody said so"),
    null("paused_until", Shape::Time, ""),
    null("paused_reason", Shape::Text, "in the words of whoever paused it"),
    need("paused_tenants", Shape::Whole, "tenants that are paused by themselves"),
    need("paused_origins", Shape::Whole, "the same of origins"),
    need("overdue_seconds", Shape::Whole, "how long ago the first was due that nothing holds"),
]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/healthz", "Says whether the process runs").answers(&[answer(200, "It does.", &STATUS)]),
    Operation::get("/readyz", "Says whether it takes messages").answers(&[answer(200, "It does.", &READINESS)]),
    Operation::get("/metrics", "Metrics for Prometheus; docs/metrics.md tells of each")
        .scope("operate")
        .answers(&[answer_as(200, "OpenMetrics.", &Shape::Text, "application/openmetrics-text")]),
    Operation::get("/openapi.json", "This document").scope("read").answers(&[answer(
        200,
        "An OpenAPI document.",
        &Shape::Map(&Shape::Json),
    )]),
];
