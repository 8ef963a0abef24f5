//! For whoever watches the process: is it alive, and should it get requests?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use http::{StatusCode, Uri};
use posthaste_engine::clock::Clock;
use posthaste_store::Store;
use serde::Serialize;

use super::caller::{Caller, READ};
use super::{Answer, Api, json, json_bytes, no_parameters};
use crate::problem::{Code, Problem};

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

/// `GET /healthz`: the process runs.
pub async fn alive() -> Answer {
    Ok(json(StatusCode::OK, &Status { status: "ok" }))
}

/// `GET /readyz`: it takes messages.
pub async fn ready<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>) -> Answer {
    if !api.ready.load(Ordering::Relaxed) {
        return Err(Problem::new(Code::ShuttingDown, "what is under way is being ended"));
    }
    Ok(json(StatusCode::OK, &Status { status: "ok" }))
}

/// `GET /openapi.json`: what every route takes and answers.
pub async fn openapi(_: Caller<READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    Ok(json_bytes(StatusCode::OK, crate::openapi::served()))
}
