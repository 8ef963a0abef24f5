//! An engine that runs until a test stops it. The crate's own tests use this file too.

use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use posthaste_core::{EndpointId, LaneId, TenantId};
use posthaste_crypto::LookupKey;
use posthaste_crypto::keyring::{KeyId, StoreKey};
use posthaste_crypto::public_id::IdKey;
use posthaste_engine::engine::Settings;
use posthaste_engine::{Engine, Made, NoAnswer, Resolve, SystemClock, TargetRules};
use posthaste_store::{Endpoint, Store, StoreError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A resolver that always fails, so that every attempt fails, and no socket is opened.
#[derive(Debug)]
pub(crate) struct NoResolver;

impl Resolve for NoResolver {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>> {
        Box::pin(async { Err(NoAnswer::Failed) })
    }
}

/// Rules that allow plain HTTP, and addresses on loopback.
pub(crate) fn loopback_allowed() -> TargetRules {
    let allow_networks = vec!["127.0.0.0/8".parse().expect("a network")];
    TargetRules { allow_http: true, allow_networks, ..TargetRules::default() }
}

/// Settings with keys for tests.
pub(crate) fn settings() -> Settings {
    let api_keys = StoreKey::generate(KeyId(1)).api_keys();
    Settings::new(IdKey::from_bytes([7; 16]), LookupKey::from_bytes([8; 32]), api_keys)
}

pub(crate) struct Running<S> {
    pub(crate) engine: Arc<Engine<S, SystemClock>>,
    stop: CancellationToken,
    task: JoinSet<Result<(), StoreError>>,
}

impl<S: Store> Running<S> {
    pub(crate) async fn over(store: &Arc<S>, settings: Settings, resolver: Arc<dyn Resolve>) -> Self {
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        let started = Engine::start(Arc::clone(store), SystemClock::new(), settings, resolver, stop.clone());
        let (engine, run) = started.await.expect("a session begins");
        task.spawn(run);
        Self { engine, stop, task }
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        self.task.join_next().await.expect("it runs").expect("it does not panic").expect("it ends in order");
    }
}

/// An endpoint to make; the engine gives it its ids.
pub(crate) fn new_endpoint<S: Store>(running: &Running<S>, tenant: TenantId, url: &str) -> Endpoint {
    Endpoint::new(EndpointId::from_raw(0), LaneId::from_raw(0), tenant, running.engine.now(), url)
}

/// What a request without an idempotency key has made.
pub(crate) fn made<T>(made: Made<T>) -> T {
    match made {
        Made::Now(made) => made,
        Made::Before(_) => panic!("the request has no idempotency key"),
    }
}
