//! The access log, at debug: which route answered what, and how quickly. It prints the route's pattern, never
//! the path: a path may name somebody (L7).

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use posthaste_engine::field;
use tokio::time::Instant;
use tracing::Level;

use crate::request_id;

/// Whether anybody reads it.
pub(super) fn is_read() -> bool {
    tracing::enabled!(Level::DEBUG)
}

/// Answers, and writes a line.
pub(super) async fn write(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let begun = Instant::now();
    let response = next.run(request).await;
    let (status, took_ms) = (response.status().as_u16(), begun.elapsed().as_millis());
    tracing::debug!(
        { field::REQUEST } = request_id::told(),
        { field::METHOD } = %method,
        { field::ROUTE } = route,
        { field::STATUS } = status,
        { field::TOOK_MS } = took_ms,
        "answered"
    );
    response
}
