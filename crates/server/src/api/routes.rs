//! Answers requests: those that carry the load go straight to their handlers, all others through the router.
//!
//! At each layer a router clones and boxes a service and a future, some twenty allocations a request: more than it
//! takes to read a message. `docs/performance.md` has the figures.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use http::Method;
use http::header::{CONNECTION, HeaderValue};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use posthaste_engine::clock::Clock;
use posthaste_store::Store;

use super::caller::{Caller, Door, SEND};
use super::{Answer, Api, access_log, batch, health, idempotency, messages, origin, router};
use crate::problem::Problem;
use crate::room::{NoRoom, Room};
use crate::served::Open;

/// A body of this size mostly comes with its head: it is there when the request is refused.
const BODY_BYTES_WITH_HEAD: u64 = 4 * 1024;

/// Every route, and the API behind them.
#[derive(Debug)]
pub struct Routes<S, C> {
    api: Arc<Api<S, C>>,
    router: TowerToHyperService<Router>,
    /// Whether messages come this way, past the router. A router's answers are logged, where anybody reads that.
    carries_load: bool,
    /// Whether callers must be on this machine.
    door: Door,
    room: Room,
}

impl<S: Store, C: Clock> Routes<S, C> {
    /// The routes of this API.
    pub fn new(api: &Arc<Api<S, C>>) -> Self {
        let router = TowerToHyperService::new(router(Arc::clone(api)));
        Self { api: Arc::clone(api), router, carries_load: !access_log::is_read(), door: api.door, room: Room::new() }
    }

    /// Those of the metrics' own listener.
    pub fn for_watchers(api: &Arc<Api<S, C>>) -> Self {
        let router = TowerToHyperService::new(health::watchers(Arc::clone(api)));
        Self { api: Arc::clone(api), router, carries_load: false, door: Door::Locked, room: Room::new() }
    }

    /// A connection was accepted: it counts for as long as what is given is kept.
    pub(crate) fn opened(&self) -> Open<'_> {
        self.api.served.opened()
    }

    /// Answers a request, and marks the answer.
    pub async fn answer(&self, request: hyper::Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        let may_be_left = body.size_hint().exact().is_none_or(|bytes| bytes > BODY_BYTES_WITH_HEAD);
        let id = self.api.numbered();
        let mut response = match self.room.admit(body) {
            // What it holds of the room, it holds until it is answered.
            Ok((body, _held)) => id.scope(self.routed(Request::from_parts(head, body))).await,
            Err(NoRoom) => Problem::overloaded().into_response(),
        };
        if may_be_left && !response.status().is_success() {
            // What is left of the body is not read: a caller who is not told would send its next request in vain.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.api.stamp(id, &mut response);
        response
    }

    async fn routed(&self, request: Request) -> Response {
        if self.door == Door::Open
            && let Err(refused) = origin::check(request.headers())
        {
            return refused.into_response();
        }
        // A request with a key of its own waits for its twins, which is a layer's work.
        let is_keyed = request.headers().contains_key(idempotency::KEY);
        if self.carries_load && request.method() == Method::POST && !is_keyed {
            match request.uri().path() {
                // Boxed: else each connection would keep room for the largest of these for as long as it is open.
                messages::PATH => return Box::pin(self.sent(request, messages::send)).await.into_response(),
                batch::PATH => return Box::pin(self.sent(request, batch::send)).await.into_response(),
                _ => {}
            }
        }
        let Ok(response) = self.router.call(request).await;
        response
    }

    async fn sent<F: Future<Output = Answer>>(
        &self,
        request: Request,
        send: impl FnOnce(State<Arc<Api<S, C>>>, Caller<SEND>, Request) -> F,
    ) -> Answer {
        let (mut head, body) = request.into_parts();
        let caller = Caller::<SEND>::from_request_parts(&mut head, &self.api).await?;
        send(State(Arc::clone(&self.api)), caller, Request::from_parts(head, body)).await
    }
}
