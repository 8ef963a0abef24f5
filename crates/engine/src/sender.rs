//! Makes attempts: the dispatch loop's transport, the same for every channel. A payload that is still in memory goes
//! straight to the connector; any other is read from the store first. The endpoint's channel makes the request and
//! judges the answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste_channels::{Outgoing, ResponseView};
use posthaste_core::scheduler::AttemptStart;
use posthaste_core::{Cause, DeliveryId, EndpointId, IdMap, Key, Timestamp, Verdict};
use posthaste_crypto::public_id::{IdKey, IdKind};
use posthaste_store::{Archive, Directory, EndpointStatus, Message, Register, StoreError};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::dispatch::driver::Transport;
use crate::dispatch::{Finished, SendAttempt};
use crate::engine::public_id;
use crate::{Clock, Connector, ConnectorJob, Done, ParsedEndpoint, ParsedEndpointCache, field};

/// The most results taken from the connector at once.
const RESULTS_AT_ONCE: usize = 256;

/// The longest time of a probe: every delivery behind its breaker waits for the answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// A send whose endpoint or payload was not in memory: when its message was accepted, if that was known before, and what
/// the store returned.
type Loaded =
    (AttemptStart, Option<Timestamp>, Result<(Option<Arc<ParsedEndpoint>>, Option<Arc<Message>>), StoreError>);

pub struct AttemptSender<S, C> {
    store: Arc<S>,
    endpoint_cache: Arc<ParsedEndpointCache<S>>,
    connector: Arc<Connector>,
    results: mpsc::Receiver<Done>,
    ids: Arc<IdKey>,
    clock: C,
    attempt_timeout: Duration,
    /// For each attempt, its endpoint and when its message was accepted.
    under_way: IdMap<DeliveryId, (Arc<ParsedEndpoint>, Timestamp)>,
    loading: FuturesUnordered<Pin<Box<dyn Future<Output = Loaded> + Send>>>,
    /// Attempts that ended without a request: reported with the next results.
    unsent: Vec<Finished>,
}

impl<S: Directory + Register + Archive, C: Clock> AttemptSender<S, C> {
    /// A transport over this connector, whose results come on `results`.
    pub fn new(
        store: Arc<S>,
        endpoint_cache: Arc<ParsedEndpointCache<S>>,
        connector: (Arc<Connector>, mpsc::Receiver<Done>),
        ids: Arc<IdKey>,
        clock: C,
        attempt_timeout: Duration,
    ) -> Self {
        let (connector, results) = connector;
        Self {
            store,
            endpoint_cache,
            connector,
            results,
            ids,
            clock,
            attempt_timeout,
            under_way: IdMap::default(),
            loading: FuturesUnordered::new(),
            unsent: Vec::new(),
        }
    }

    fn load(&self, start: AttemptStart, message: Option<Arc<Message>>) {
        let (store, endpoint_cache) = (Arc::clone(&self.store), Arc::clone(&self.endpoint_cache));
        let accepted_at = message.as_ref().map(|message| message.at);
        self.loading.push(Box::pin(async move {
            let loaded = async {
                let endpoint = endpoint_cache.load(start.endpoint).await?;
                let message = match message {
                    Some(message) => Some(message),
                    None => store.message(start.message).await?,
                };
                Ok((endpoint, message))
            };
            (start, accepted_at, loaded.await)
        }));
    }

    fn loaded(&mut self, (start, accepted_at, loaded): Loaded) {
        let now = self.clock.now();
        match loaded {
            // A tombstone: its owner deleted it, or its subject was erased.
            Ok((Some(endpoint), Some(_))) if endpoint.endpoint.status == EndpointStatus::Deleted => {
                self.unsent(start.delivery, Cause::EndpointDeleted);
            }
            Ok((Some(endpoint), Some(message))) => self.request(&start, endpoint, &message, now),
            // A payload or an endpoint that is needed is only missing when it was erased.
            Ok(_) => self.unsent(start.delivery, Cause::Erased),
            // Reported once it is recorded.
            Err(StoreError::Altered { .. }) => self.unsent(start.delivery, Cause::TokenRejected),
            Err(error) => {
                let delivery = accepted_at.map(|at| self.public(IdKind::Delivery, start.delivery.0, at));
                tracing::warn!({ field::DELIVERY } = delivery, %error, "cannot read message or endpoint; retrying");
                self.unsent(start.delivery, Cause::StoreUnavailable);
            }
        }
    }

    fn public(&self, kind: IdKind, key: Key, at: Timestamp) -> String {
        public_id(&self.ids, kind, key, at)
    }

    fn request(&mut self, start: &AttemptStart, endpoint: Arc<ParsedEndpoint>, message: &Message, now: Timestamp) {
        let Some(target) = endpoint.target.clone() else {
            return self.unsent(start.delivery, Cause::AddressRefused);
        };
        let body = match &message.compact {
            Some(compact) if start.compact => compact.clone(),
            _ => message.body.clone(),
        };
        let message_id = self.public(IdKind::Message, message.id.0, message.at);
        let delivery = self.public(IdKind::Delivery, start.delivery.0, message.at);
        let outgoing = Outgoing {
            message: &message_id,
            delivery: &delivery,
            attempt: start.attempt,
            event_type: message.event_type.as_deref(),
            correlation_id: message.correlation_id.as_deref().unwrap_or(&message_id),
            receipt: None,
            body,
        };
        let request = match endpoint.channel.request(&outgoing, now) {
            Ok(request) => request,
            Err(error) => {
                let id = self.public(IdKind::Endpoint, endpoint.endpoint.id.0, endpoint.endpoint.at);
                tracing::error!(
                    { field::DELIVERY } = delivery,
                    { field::ENDPOINT } = id,
                    %error,
                    "cannot build the request of an attempt"
                );
                return self.unsent(start.delivery, Cause::Unsendable);
            }
        };
        let own = endpoint.endpoint.timeout.unwrap_or(Duration::MAX);
        let most = if start.probe { PROBE_TIMEOUT } else { Duration::MAX };
        let timeout = self.attempt_timeout.min(own).min(most);
        let deadline = Instant::now() + timeout;
        let identity = endpoint.identity.clone();
        let job = ConnectorJob { token: start.delivery.raw(), target, identity, request, deadline };
        match self.connector.send(job) {
            Ok(()) => {
                self.under_way.insert(start.delivery, (endpoint, message.at));
            }
            Err(error) => {
                tracing::warn!({ field::DELIVERY } = delivery, %error, "connector refused the request; retrying");
                self.unsent(start.delivery, Cause::NotStarted);
            }
        }
    }

    fn unsent(&mut self, delivery: DeliveryId, cause: Cause) {
        self.unsent.push(Finished { delivery, verdict: Verdict::of(cause), took: Duration::ZERO, excerpt: None });
    }

    fn judge(&mut self, done: &Done) -> Finished {
        let delivery = DeliveryId::from_raw(done.token);
        let known = self.under_way.remove(&delivery);
        let verdict = match (&done.result, &known) {
            (Ok(answer), Some((endpoint, _))) => {
                let (headers, excerpt) = (&answer.headers, &answer.excerpt);
                let answer = ResponseView { status: answer.status.as_u16(), headers, excerpt };
                endpoint.channel.judge(&answer, self.clock.now())
            }
            (Ok(_), None) => Verdict::of(Cause::Unknown),
            (Err(fault), _) => Verdict::of(fault.cause),
        };
        let detail = done.result.as_ref().err().and_then(|fault| fault.detail);
        tracing::debug!(
            { field::DELIVERY } = known.map(|(_, at)| self.public(IdKind::Delivery, delivery.0, at)),
            { field::CAUSE } = verdict.cause.code(),
            { field::CLASS } = verdict.class.name(),
            { field::STATUS } = verdict.status,
            { field::DETAIL } = detail,
            { field::TOOK_MS } = done.took.as_millis(),
            "attempt finished"
        );
        let answered = done.result.as_ref().ok().map(|answer| &answer.excerpt);
        let excerpt = answered.filter(|excerpt| !excerpt.is_empty()).cloned();
        Finished { delivery, verdict, took: done.took, excerpt }
    }
}

impl<S: Directory + Register + Archive, C: Clock> Transport for AttemptSender<S, C> {
    fn send(&mut self, send: SendAttempt, now: Timestamp) {
        match (self.endpoint_cache.last_seen(send.start.endpoint), send.message) {
            (Some(endpoint), Some(message)) => self.request(&send.start, endpoint, &message, now),
            (_, message) => self.load(send.start, message),
        }
    }

    fn endpoint_ended(&mut self, endpoint: EndpointId) {
        self.endpoint_cache.forget(endpoint);
    }

    async fn finished(&mut self) -> Vec<Finished> {
        let mut done = Vec::new();
        loop {
            if !self.unsent.is_empty() {
                return std::mem::take(&mut self.unsent);
            }
            tokio::select! {
                biased;
                count = self.results.recv_many(&mut done, RESULTS_AT_ONCE) => {
                    if count == 0 {
                        // The connector is gone: no attempt will end any more.
                        std::future::pending::<()>().await;
                    }
                    return done.iter().map(|done| self.judge(done)).collect();
                }
                Some(loaded) = self.loading.next(), if !self.loading.is_empty() => self.loaded(loaded),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;

    use bytes::Bytes;
    use futures_util::future::BoxFuture;
    use posthaste_core::{Key, LaneId, MessageId, TenantId};
    use posthaste_crypto::signature::Secret;
    use posthaste_store::{AuditStamp, Directory, Endpoint, MemoryStore, SigningSecret, WebhookTarget};
    use tokio::net::TcpStream;

    use super::*;
    use crate::connector::Settings;
    use crate::harness::loopback_allowed;
    use crate::{Dial, Roots, System, SystemClock};

    /// A network on which no connection attempt is ever answered.
    #[derive(Debug)]
    struct Silence;

    impl Dial for Silence {
        fn dial(&self, _: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
            Box::pin(std::future::pending())
        }
    }

    fn endpoint() -> Endpoint {
        let secrets = vec![SigningSecret::lasting(Secret::generate().reveal().as_str())];
        let (id, lane, tenant) = (EndpointId::from_raw(7), LaneId::from_raw(8), TenantId::from_raw(1));
        let target = WebhookTarget::signing("http://127.0.0.1/", secrets);
        Endpoint { max_in_flight: 10, ..Endpoint::new(id, lane, tenant, Timestamp::default(), target) }
    }

    fn message() -> Message {
        Message {
            correlation_id: Some("c".to_owned()),
            ..Message::new(MessageId::from_raw(1), TenantId::from_raw(1), Timestamp::default(), Bytes::new())
        }
    }

    fn start(probe: bool) -> AttemptStart {
        AttemptStart {
            delivery: DeliveryId(Key::from_raw(2)),
            message: MessageId::from_raw(1),
            endpoint: EndpointId::from_raw(7),
            lane: LaneId::from_raw(8),
            attempt: 1,
            due: Timestamp::default(),
            compact: false,
            probe,
        }
    }

    /// Makes an attempt at a receiver that never answers, with this endpoint in the store.
    async fn attempt(endpoint: Option<Endpoint>, probe: bool, attempt_timeout: Duration) -> Finished {
        let rules = loopback_allowed();
        let connect_timeout = Duration::from_secs(60);
        let settings = Settings { rules: rules.clone(), attempt_timeout, connect_timeout, ..Settings::default() };
        let store = Arc::new(MemoryStore::default());
        let session = store.lock().open(Timestamp::default()).session;
        if let Some(endpoint) = endpoint {
            let act = AuditStamp::at(Timestamp::default());
            _ = store.put_endpoint(session, endpoint, None, act).await.expect("this session owns the store");
        }
        let (connector, results) = Connector::with_dial(settings, Arc::new(System), Arc::new(Silence), Roots::none());
        let mut sender = AttemptSender::new(
            Arc::clone(&store),
            Arc::new(ParsedEndpointCache::new(store, rules, Timestamp::default())),
            (Arc::new(connector), results),
            Arc::new(IdKey::generate()),
            SystemClock::new(),
            attempt_timeout,
        );
        let start = start(probe);
        sender.send(SendAttempt { start, message: Some(Arc::new(message())) }, Timestamp::default());
        let mut finished = sender.finished().await;
        assert_eq!(finished.len(), 1, "{finished:?}");
        finished.remove(0)
    }

    async fn check_timeout(probe: bool, attempt_timeout: Duration, own: Option<Duration>, expected: Duration) {
        let finished = attempt(Some(Endpoint { timeout: own, ..endpoint() }), probe, attempt_timeout).await;
        assert_eq!(finished.took, expected, "{finished:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn erased_or_deleted_endpoint_gets_nothing_and_does_not_count_as_gone() {
        let deleted = Endpoint { status: EndpointStatus::Deleted, ..endpoint() };
        for (stored, cause) in [(None, Cause::Erased), (Some(deleted), Cause::EndpointDeleted)] {
            let finished = attempt(stored, false, Duration::from_secs(30)).await;
            assert_eq!(finished.verdict.cause, cause, "{finished:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_gets_ten_seconds_at_most() {
        let seconds = Duration::from_secs;
        check_timeout(false, seconds(30), None, seconds(30)).await;
        check_timeout(true, seconds(30), None, seconds(10)).await;
        check_timeout(true, seconds(3), None, seconds(3)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn endpoint_timeout_may_shorten_the_servers_and_not_extend_it() {
        let seconds = Duration::from_secs;
        check_timeout(false, seconds(30), Some(seconds(5)), seconds(5)).await;
        check_timeout(true, seconds(30), Some(seconds(15)), seconds(10)).await;
        check_timeout(false, seconds(20), Some(seconds(30)), seconds(20)).await;
    }
}
