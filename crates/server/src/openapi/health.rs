//! What is said of the routes for whoever watches the process.

use super::shape::{Shape, need};
use super::{Operation, answer};

const STATUS: Shape = Shape::Object(&[need("status", Shape::Text, "")]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/healthz", "Says whether the process runs").answers(&[answer(200, "It does.", &STATUS)]),
    Operation::get("/readyz", "Says whether it takes messages").answers(&[answer(200, "It does.", &STATUS)]),
    Operation::get("/openapi.json", "This document").scope("read").answers(&[answer(
        200,
        "An OpenAPI document.",
        &Shape::Map(&Shape::Json),
    )]),
];
