//! Routes for monitoring: liveness, readiness, metrics, and the OpenAPI document.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{StatusCode, Uri};
use posthaste_engine::clock::Clock;
use posthaste_engine::metrics::{self, MetricsPage};
use posthaste_store::{PauseScope, Store, StoreState};
use serde::Serialize;

use super::caller::{Caller, OPERATE, READ};
use super::{Answer, Api, json, json_bytes, no_parameters};
use crate::problem::{Code, Problem};
use crate::value;

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

/// The state of a server that accepts messages, for deployments and alerts.
#[derive(Serialize)]
struct Readiness {
    status: &'static str,
    store: &'static str,
    /// Whether all deliveries are paused.
    paused: bool,
    paused_until: Option<String>,
    paused_reason: Option<String>,
    /// Tenants and origins with a pause of their own.
    paused_tenants: u64,
    paused_origins: u64,
    /// How far behind the server is: the age of the oldest due delivery that nothing holds.
    overdue_seconds: u64,
}

/// `GET /healthz`: answers while the process runs.
pub async fn alive() -> Answer {
    Ok(json(StatusCode::OK, &Status { status: "ok" }))
}

/// `GET /readyz`: succeeds while the server accepts messages.
pub async fn ready<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>) -> Answer {
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
    let readiness = Readiness {
        status: "ok",
        store: seen.store.state.name(),
        paused: queue.paused.is_some(),
        paused_until: queue.paused.and_then(|hold| hold.until).map(value::write_time),
        paused_reason: all.and_then(|pause| pause.reason.clone()),
        paused_tenants: queue.paused_tenants,
        paused_origins: queue.paused_origins,
        overdue_seconds: queue.oldest_unheld.map_or(0, |due| seen.now.since(due).as_secs()),
    };
    Ok(json(StatusCode::OK, &readiness))
}

/// `GET /metrics` for operators.
pub async fn metrics<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, _: Caller<OPERATE>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    scraped(State(api)).await
}

/// `GET /metrics` of the metrics listener, without a key.
async fn scraped<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>) -> Answer {
    let seen = api.engine.watch().await.map_err(|ended| Problem::new(Code::ShuttingDown, ended.to_string()))?;
    let mut page = MetricsPage::default();
    seen.tell(&mut page, api.engine.pending().await?);
    api.served.tell(&mut page);
    let mut response = Response::new(Body::from(page.finish()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    Ok(response)
}

/// The routes of the metrics listener. They need no key, so there are no others.
pub fn watchers<S: Store, C: Clock>(api: Arc<Api<S, C>>) -> Router {
    let router = Router::new()
        .route("/metrics", get(scraped::<S, C>))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready::<S, C>));
    router.fallback(async |uri: Uri| Problem::no_route(&uri)).with_state(api)
}

/// `GET /openapi.json`: the OpenAPI document of every route.
pub async fn openapi(_: Caller<READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    Ok(json_bytes(StatusCode::OK, crate::openapi::served()))
}
