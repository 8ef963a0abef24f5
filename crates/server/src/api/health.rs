//! Routes for monitoring: liveness, readiness, metrics, and the OpenAPI document.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::routing::get;
use posthaste_engine::metrics::{self, MetricsPage};
use posthaste_store::{PauseScope, StoreState};
use serde_json::Value;

use super::caller::{OPERATE, READ};
use super::prelude::*;
use super::{json_bytes, typed};

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::get("/healthz", "Liveness check").returns::<LivenessView>(200, "The process runs."),
    Operation::get("/readyz", "Readiness check: whether the server accepts messages")
        .returns::<ReadinessView>(200, "The server accepts messages."),
    Operation::get("/metrics", "Metrics for Prometheus; docs/metrics.md describes each")
        .scope("operate")
        .returns_as::<String>(200, "The metrics in the OpenMetrics format.", "application/openmetrics-text"),
    Operation::get("/openapi.json", "This document")
        .scope("read")
        .returns::<BTreeMap<String, Value>>(200, "The OpenAPI document."),
];

#[derive(Serialize, JsonSchema)]
struct LivenessView {
    status: &'static str,
}

/// The state of a server that accepts messages, for deployments and alerts.
#[derive(Serialize, JsonSchema)]
struct ReadinessView {
    status: &'static str,
    store: ApiWord<StoreState>,
    /// Whether all deliveries are paused.
    paused: bool,
    /// When that pause ends by itself.
    paused_until: Option<ApiTime>,
    /// The reason given for that pause.
    paused_reason: Option<String>,
    /// The number of tenants with a pause of their own.
    paused_tenants: u64,
    /// The number of origins with a pause of their own.
    paused_origins: u64,
    /// The age in seconds of the oldest due delivery that nothing holds back.
    overdue_seconds: u64,
}

/// `GET /healthz`: answers while the process runs.
pub async fn alive() -> Answer {
    Ok(json(StatusCode::OK, &LivenessView { status: "ok" }))
}

/// `GET /readyz`: succeeds while the server accepts messages.
pub async fn ready<S: Store, C: Clock>(State(api): ApiRef<S, C>) -> Answer {
    if !api.ready.load(Ordering::Relaxed) {
        return Err(Problem::new(Code::ShuttingDown, "the server finishes the requests under way"));
    }
    let seen = api.engine.watch().await.map_err(|ended| Problem::new(Code::ShuttingDown, ended.to_string()))?;
    match seen.store.state {
        StoreState::Well => {}
        StoreState::Full => return Err(Problem::new(Code::DiskFull, "nothing is accepted until there is room")),
        StoreState::Stopped => return Err(Problem::new(Code::StoreUnavailable, "the store has stopped; restart")),
    }
    let queue = &seen.dispatch.queue;
    let widest = api.engine.pauses(0, 1).await?.into_iter().next();
    let all = widest.filter(|pause| pause.scope == PauseScope::All);
    let readiness = ReadinessView {
        status: "ok",
        store: ApiWord(seen.store.state),
        paused: queue.paused.is_some(),
        paused_until: queue.paused.and_then(|hold| hold.until).map(ApiTime),
        paused_reason: all.and_then(|pause| pause.reason.clone()),
        paused_tenants: queue.paused_tenants,
        paused_origins: queue.paused_origins,
        overdue_seconds: queue.oldest_unheld.map_or(0, |due| seen.now.since(due).as_secs()),
    };
    Ok(json(StatusCode::OK, &readiness))
}

/// `GET /metrics` for operators.
pub async fn metrics<S: Store, C: Clock>(State(api): ApiRef<S, C>, _: Caller<OPERATE>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    scraped(State(api)).await
}

/// `GET /metrics` of the metrics listener, without a key.
async fn scraped<S: Store, C: Clock>(State(api): ApiRef<S, C>) -> Answer {
    let seen = api.engine.watch().await.map_err(|ended| Problem::new(Code::ShuttingDown, ended.to_string()))?;
    let mut page = MetricsPage::default();
    seen.tell(&mut page, api.engine.pending().await?);
    api.served.tell(&mut page);
    Ok(typed(metrics::CONTENT_TYPE, page.finish()))
}

/// The routes of the metrics listener. They need no key, so there are no others.
pub fn watchers<S: Store, C: Clock>(api: Arc<Api<S, C>>) -> Router {
    let router = Router::new()
        .route("/metrics", get(scraped::<S, C>))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready::<S, C>));
    router.fallback(async |uri: Uri| Problem::no_route(&uri)).with_state(api)
}

pub async fn openapi(_: Caller<READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    Ok(json_bytes(StatusCode::OK, crate::openapi::served()))
}
