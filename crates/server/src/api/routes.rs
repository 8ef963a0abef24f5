//! Answers requests: those that send messages go straight to their handlers, all others through the router.
//!
//! The router clones and boxes a service and a future at each layer, some twenty allocations a request: more than
//! parsing a message takes. `docs/performance.md` has the figures.

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
use crate::room::BodyRoom;
use crate::served::OpenConnection;

/// A body up to this size mostly arrives together with its head, so it has been read when the request is refused.
const BODY_BYTES_WITH_HEAD: u64 = 4 * 1024;

/// Every route, and the API behind them.
#[derive(Debug)]
pub struct Routes<S, C> {
    api: Arc<Api<S, C>>,
    router: TowerToHyperService<Router>,
    /// Whether messages bypass the router. Not while the access log is written, which is a layer of the router.
    carries_load: bool,
    /// With [`Door::Open`], requests from web pages are refused.
    door: Door,
    room: BodyRoom,
}

impl<S: Store, C: Clock> Routes<S, C> {
    pub fn new(api: &Arc<Api<S, C>>) -> Self {
        let router = TowerToHyperService::new(router(Arc::clone(api)));
        Self {
            api: Arc::clone(api),
            router,
            carries_load: !access_log::is_read(),
            door: api.door,
            room: BodyRoom::new(),
        }
    }

    pub fn for_watchers(api: &Arc<Api<S, C>>) -> Self {
        let router = TowerToHyperService::new(health::watchers(Arc::clone(api)));
        Self { api: Arc::clone(api), router, carries_load: false, door: Door::Locked, room: BodyRoom::new() }
    }

    pub(crate) fn opened(&self) -> OpenConnection<'_> {
        self.api.served.opened()
    }

    /// Answers a request, and adds its request id to the answer.
    pub async fn answer(&self, request: hyper::Request<Incoming>) -> Response {
        let (mut head, body) = request.into_parts();
        let may_be_unread = body.size_hint().exact().is_none_or(|bytes| bytes > BODY_BYTES_WITH_HEAD);
        let id = self.api.numbered();
        // The room that its body takes is given back once the request is answered.
        let place = (!body.is_end_stream()).then(|| self.room.place());
        if let Some(place) = &place {
            head.extensions.insert(place.clone());
        }
        let mut response = id.scope(self.routed(Request::from_parts(head, axum::body::Body::new(body)))).await;
        drop(place);
        if may_be_unread && !response.status().is_success() {
            // The rest of the body is not read, so the connection cannot serve another request.
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
        // A layer of the router makes requests with the same Idempotency-Key wait for each other.
        let is_keyed = request.headers().contains_key(idempotency::KEY);
        if self.carries_load && request.method() == Method::POST && !is_keyed {
            match request.uri().path() {
                // Boxed: otherwise each open connection would hold memory for the largest of these futures.
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
