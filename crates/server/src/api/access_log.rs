//! The access log, at debug level: route, status and duration of each request. It has the route's pattern, never the
//! path, which may contain a subject (L7).

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use posthaste_engine::field;
use tokio::time::Instant;
use tracing::Level;

use crate::request_id;

pub(super) fn is_read() -> bool {
    tracing::enabled!(Level::DEBUG)
}

pub(super) async fn write(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let begun = Instant::now();
    let response = next.run(request).await;
    let (status, took_ms) = (response.status().as_u16(), begun.elapsed().as_millis());
    tracing::debug!(
        { field::REQUEST } = request_id::log_field(),
        { field::METHOD } = %method,
        { field::ROUTE } = route,
        { field::STATUS } = status,
        { field::TOOK_MS } = took_ms,
        "answered"
    );
    response
}
