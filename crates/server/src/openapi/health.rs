//! The documentation of the routes for monitoring: health, readiness, metrics, and this document.

use super::shape::{Shape, need, null};
use super::{Operation, answer, answer_as};

const STATUS: Shape = Shape::Object(&[need("status", Shape::Text, "")]);

const READINESS: Shape = Shape::Object(&[
    need("status", Shape::Text, ""),
    need("store", Shape::OneOf(&["well", "full", "stopped"]), ""),
    need("paused", Shape::Truth, "whether all deliveries are paused"),
    null("paused_until", Shape::Time, "when that pause ends by itself"),
    null("paused_reason", Shape::Text, "the reason given for that pause"),
    need("paused_tenants", Shape::Whole, "the number of tenants with a pause of their own"),
    need("paused_origins", Shape::Whole, "the number of origins with a pause of their own"),
    need("overdue_seconds", Shape::Whole, "the age in seconds of the oldest due delivery that nothing holds back"),
]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/healthz", "Liveness check").answers(&[answer(200, "The process runs.", &STATUS)]),
    Operation::get("/readyz", "Readiness check: whether the server accepts messages").answers(&[answer(
        200,
        "The server accepts messages.",
        &READINESS,
    )]),
    Operation::get("/metrics", "Metrics for Prometheus; docs/metrics.md describes each").scope("operate").answers(&[
        answer_as(200, "The metrics in the OpenMetrics format.", &Shape::Text, "application/openmetrics-text"),
    ]),
    Operation::get("/openapi.json", "This document").scope("read").answers(&[answer(
        200,
        "The OpenAPI document.",
        &Shape::Map(&Shape::Json),
    )]),
];
