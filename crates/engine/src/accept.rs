//! Accepting: a message becomes deliveries, one transaction makes them durable, and only then is the
//! producer answered (A1). A request repeated with the same idempotency key gets the first answer again (A5).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{Audience, Delivery, EndpointId, Expiry, Fanout, MessageId, RowIndex, TenantId, Tier, Timestamp};
use posthaste_crypto::digest::Digest;
use posthaste_crypto::public_id::IdKind;
use posthaste_store::{
    Acceptance, Accepted, CollapseKey, Details, ENDPOINTS_LISTED_MAX, EndpointSelector, FanOut, FirstAnswer,
    Idempotency, KeyHash, Message, NewDelivery, Store, StoreError,
};

use crate::pending::{Looked, QuotaReservation};
use crate::{Clock, Engine, Made, ParsedEndpoint};

/// Panic message: without an answer of the store a message is neither accepted nor refused.
const ANSWERS_FOR_ALL: &str = "the store answers for every message it was asked to accept";

/// The most deliveries that an accept makes in its own transaction; a job makes the others.
pub const FANOUT_MAX: usize = 1_000;

/// Endpoints read in one page for a message that names subjects or tags.
const SELECTED_PAGE: u32 = 1_000;

/// The most such pages that an accept reads for a message with a collapse key.
const SELECTED_PAGES_MAX: usize = ENDPOINTS_LISTED_MAX / SELECTED_PAGE as usize;

/// A message as a producer hands it in, checked at the edge.
#[derive(Clone, Debug)]
pub struct NewMessage {
    pub tenant: TenantId,
    /// The kind of event, such as `order.paid`.
    pub event_type: Option<String>,
    /// The payload, byte for byte.
    pub body: Bytes,
    /// The producer's own id for everything that belongs to one business event.
    pub correlation_id: Option<String>,
    /// The person whose data it holds, for export and erasure.
    pub subject: Option<String>,
    pub tier: Tier,
    /// How long it is worth sending; `None` for ever.
    pub ttl: Option<Duration>,
    /// The earliest time of the first attempt.
    pub deliver_at: Option<Timestamp>,
    /// The endpoints to send it to; when empty, the endpoints of its audience that want its event type.
    pub endpoints: Vec<EndpointRef>,
    pub details: Details,
    /// A smaller variant of the payload, for receivers that refuse its size.
    pub compact: Option<Bytes>,
    /// It replaces the deliveries that wait for the same endpoint under the same key.
    pub collapse_key: Option<String>,
    /// The producer's idempotency key, if any.
    pub once: Option<IdempotencyRequest<PromisedMessage>>,
    /// The quota of pending deliveries of its tenant; at this many the message is refused.
    pub pending_max: Option<u64>,
}

impl NewMessage {
    /// A message for every endpoint that wants it, with nothing but its payload.
    pub fn new(tenant: TenantId, body: Bytes, tier: Tier) -> Self {
        Self {
            tenant,
            event_type: None,
            body,
            correlation_id: None,
            subject: None,
            tier,
            ttl: None,
            deliver_at: None,
            endpoints: Vec::new(),
            details: Details::default(),
            compact: None,
            collapse_key: None,
            once: None,
            pending_max: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointRef {
    Id(EndpointId),
    /// By the uid that its owner gave it.
    Uid(String),
}

/// The idempotency of a request: by it a repeated request is recognised, and answered like the first.
#[derive(Clone, Debug)]
pub struct IdempotencyRequest<P> {
    pub key: String,
    /// SHA-256 of the request's bytes: the same key with another request is refused.
    pub digest: Digest,
    /// Makes the answer that is stored, and repeated to later requests.
    pub answer: fn(&P) -> FirstAnswer,
}

/// A message that is new and durable, or the first answer under the same idempotency key.
pub type AcceptOutcome = Made<PromisedMessage>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromisedMessage {
    pub message: MessageId,
    pub public_id: String,
    /// The producer's correlation id; its public id where there is none.
    pub correlation_id: String,
    pub accepted_at: Timestamp,
    /// When its own TTL ends.
    pub expires_at: Option<Timestamp>,
    /// How many deliveries were made; `None` when there are too many and a job makes them later.
    pub deliveries: Option<usize>,
    /// How many of them may expire with attempts unspent: their policy outlasts their TTL (C3).
    pub outlasted: usize,
    /// Whether its `deliver_at` had passed when it was accepted.
    pub was_due: bool,
}

/// Why a message was not accepted. Nothing was stored, unless the store failed: then that is not known.
#[derive(Debug, thiserror::Error)]
pub enum NotAccepted {
    /// Named endpoints that do not exist, are another tenant's, or are gone: their indexes in the request.
    #[error("{} of the endpoints it names do not exist or take no messages", .0.len())]
    NoSuchEndpoints(Vec<usize>),
    #[error(
        "it names {wanted} endpoints, and a message names at most {FANOUT_MAX}; leave them out to reach all that match"
    )]
    TooMany { wanted: usize },
    #[error(
        "a message with a collapse key goes to at most {FANOUT_MAX} endpoints; name them in to.endpoints, or leave the key out"
    )]
    CollapsesTooMany,
    #[error("{pending} deliveries of this tenant are pending, which is as many as its quota allows")]
    NoRoom { pending: u64 },
    #[error("this key was used for another request within the last 24 hours; use a new one")]
    KeyReused,
    #[error("the message could not be made durable")]
    Store(#[source] Arc<StoreError>),
}

impl From<StoreError> for NotAccepted {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl<S: Store, C: Clock> Engine<S, C> {
    pub async fn accept(&self, new: NewMessage) -> Result<AcceptOutcome, NotAccepted> {
        let Prepared { accepted, promise, room: _until_stored } = self.prepare(new, &mut Known::default()).await?;
        let acceptance = self.store.accept(self.session, vec![accepted]).await?.pop();
        self.outcome(promise, acceptance.expect(ANSWERS_FOR_ALL))
    }

    /// Accepts many messages of one tenant, each on its own: one result for each, in the same order. Messages share
    /// transactions, which makes a batch cheap.
    pub async fn accept_all(&self, new: Vec<NewMessage>) -> Vec<Result<AcceptOutcome, NotAccepted>> {
        let mut outcomes: Vec<Option<Result<AcceptOutcome, NotAccepted>>> = Vec::with_capacity(new.len());
        let (mut known, mut call) = (Known::default(), Call::default());
        for new in new {
            match self.prepare(new, &mut known).await {
                Err(refusal) => outcomes.push(Some(Err(refusal))),
                Ok(prepared) => {
                    call.add(outcomes.len(), prepared);
                    outcomes.push(None);
                }
            }
            if call.is_full() {
                self.accept_together(std::mem::take(&mut call), &mut outcomes).await;
            }
        }
        self.accept_together(call, &mut outcomes).await;
        // Each message was refused above or went to the store.
        outcomes.into_iter().map(|outcome| outcome.expect(ANSWERS_FOR_ALL)).collect()
    }

    /// Stores the messages of one call in one transaction, and fills in the outcome of each.
    async fn accept_together(&self, call: Call, outcomes: &mut [Option<Result<AcceptOutcome, NotAccepted>>]) {
        let Call { accepted, promises, rooms: _until_stored, .. } = call;
        if accepted.is_empty() {
            return;
        }
        match self.store.accept(self.session, accepted).await {
            Ok(acceptances) => {
                for ((place, promise), acceptance) in promises.into_iter().zip(acceptances) {
                    outcomes[place] = Some(self.outcome(promise, acceptance));
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for (place, _) in promises {
                    outcomes[place] = Some(Err(NotAccepted::Store(Arc::clone(&error))));
                }
            }
        }
    }

    fn outcome(&self, promise: PromisedMessage, acceptance: Acceptance) -> Result<AcceptOutcome, NotAccepted> {
        match acceptance {
            Acceptance::Replayed(answer) => Ok(Made::Before(answer)),
            Acceptance::KeyReused => Err(NotAccepted::KeyReused),
            Acceptance::Unanswered => Err(StoreError::Busy.into()),
            Acceptance::Fresh => {
                self.watch.accepted.fetch_add(1, Ordering::Relaxed);
                if promise.deliveries.is_none() {
                    self.new_job.notify_one();
                }
                Ok(Made::Now(promise))
            }
        }
    }

    /// Makes a message's ids and deliveries, ready to be stored.
    async fn prepare(&self, new: NewMessage, known: &mut Known) -> Result<Prepared, NotAccepted> {
        let (wanted, fans_out) = match self.recipients(&new, known).await? {
            Recipients::Few(wanted) => (wanted, false),
            // A job makes deliveries later, when one could replace the delivery of a newer message.
            Recipients::Many if new.collapse_key.is_some() => return Err(NotAccepted::CollapsesTooMany),
            Recipients::Many => (Vec::new(), true),
        };
        let room = match new.pending_max {
            Some(most) => Some(self.take_room(new.tenant, most, wanted.len(), &mut known.looked).await?),
            None => None,
        };
        let now = self.clock.now();
        let id = MessageId(self.mint(1 + wanted.len() as u64));
        let public_id = self.public_id(IdKind::Message, id.0, now);
        let fanout = Fanout {
            message: id,
            tier: new.tier,
            accepted_at: now,
            deliver_at: new.deliver_at,
            ttl: new.ttl,
            ack_within: None,
            has_compact: new.compact.is_some(),
        };
        let collapse = new
            .collapse_key
            .map(|key| CollapseKey::of(self.lookup.hash("collapse key", new.tenant.raw(), key.as_bytes())));
        let deliveries: Vec<NewDelivery> = wanted
            .iter()
            .zip(0..)
            .map(|(to, index)| {
                let delivery = fanout.delivery(index, &to.candidate());
                NewDelivery { collapse, ..self.new_delivery(delivery, to, now) }
            })
            .collect();
        let is_outlasted = |to: &&Arc<ParsedEndpoint>| {
            let ttl = new.ttl.or(to.endpoint.ttl);
            ttl.is_some_and(|ttl| to.lane.policy.outlasts(new.tier, ttl))
        };
        let promise = PromisedMessage {
            message: id,
            correlation_id: new.correlation_id.clone().unwrap_or_else(|| public_id.clone()),
            public_id,
            accepted_at: now,
            expires_at: Expiry::from_ttl(fanout.born(), new.ttl).at(),
            deliveries: (!fans_out).then_some(deliveries.len()),
            outlasted: wanted.iter().filter(is_outlasted).count(),
            was_due: new.deliver_at.is_some_and(|at| at < now),
        };
        let audience = Audience { named: !new.endpoints.is_empty(), ..new.details.audience };
        let details = Details { audience, deliver_at: new.deliver_at, ttl: new.ttl, ..new.details };
        let message = Arc::new(Message {
            id,
            tenant: new.tenant,
            at: now,
            event_type: new.event_type,
            correlation_id: new.correlation_id,
            body: new.body,
            subject: new.subject,
            compact: new.compact,
            tier: new.tier,
            details: (details != Details::default()).then(|| Box::new(details)),
        });
        let idempotency = new.once.map(|once| self.known_by(new.tenant, once, &promise, now));
        let fan_out = FanOut { message: id, tier: new.tier, deliver_at: new.deliver_at, ttl: new.ttl };
        let accepted = Accepted { message, deliveries, idempotency, fan_out: fans_out.then_some(fan_out) };
        Ok(Prepared { accepted, promise, room })
    }

    /// A delivery of an endpoint, with its lane and its place among the pending rows.
    pub(crate) fn new_delivery(&self, delivery: Delivery, to: &ParsedEndpoint, now: Timestamp) -> NewDelivery {
        let spilling = self.handle.is_spilling(to.lane.lane, delivery.tier);
        let place = RowIndex::for_new(to.lane.order, spilling, now, delivery.born);
        NewDelivery { delivery, place, lane: Arc::clone(&to.lane), collapse: None }
    }

    /// What is stored of a request that creates something, so that it can be answered again.
    #[expect(clippy::needless_pass_by_value, reason = "each request makes one record")]
    pub(crate) fn known_by<P>(
        &self,
        tenant: TenantId,
        once: IdempotencyRequest<P>,
        made: &P,
        at: Timestamp,
    ) -> Idempotency {
        let hash = self.lookup.hash("idempotency key", tenant.raw(), once.key.as_bytes());
        Idempotency { tenant, key: KeyHash::of(hash), digest: once.digest, answer: (once.answer)(made), at }
    }

    async fn recipients(&self, new: &NewMessage, known: &mut Known) -> Result<Recipients, NotAccepted> {
        let Audience { subjects, tags, .. } = &new.details.audience;
        if let (true, Some(selector)) = (new.endpoints.is_empty(), EndpointSelector::new(subjects, tags)) {
            return Ok(self.selected(new, &selector, known).await?);
        }
        if new.endpoints.is_empty() {
            return Ok(self.listed(new, known).await?.unwrap_or(Recipients::Many));
        }
        let wanted = new.endpoints.len();
        if wanted > FANOUT_MAX {
            return Err(NotAccepted::TooMany { wanted });
        }
        let (mut found, mut missing) = (Vec::with_capacity(wanted), Vec::new());
        for (place, named) in new.endpoints.iter().enumerate() {
            match self.recipient(new.tenant, named).await? {
                Some(to) => found.push(to),
                None => missing.push(place),
            }
        }
        if !missing.is_empty() {
            return Err(NotAccepted::NoSuchEndpoints(missing));
        }
        // An endpoint that is named more than once, by id or uid, gets one delivery.
        found.sort_unstable_by_key(|to| to.endpoint.id);
        found.dedup_by_key(|to| to.endpoint.id);
        Ok(Recipients::Few(found))
    }

    /// The tenant's endpoints that want a message; `None` when the tenant has too many endpoints to list.
    async fn listed(&self, new: &NewMessage, known: &mut Known) -> Result<Option<Recipients>, StoreError> {
        let list = match known.endpoints.take() {
            Some(list) => list,
            None => {
                let endpoints = self.endpoint_cache.tenant_endpoints(new.tenant).await?;
                endpoints.map_or(TenantEndpoints::TooMany, TenantEndpoints::These)
            }
        };
        let TenantEndpoints::These(endpoints) = known.endpoints.insert(list) else { return Ok(None) };
        let wants = |to: &&Arc<ParsedEndpoint>| new.details.audience.has(&to.candidate(), new.event_type.as_deref());
        let wanted: Vec<Arc<ParsedEndpoint>> = endpoints.iter().filter(wants).cloned().collect();
        Ok(Some(if wanted.len() > FANOUT_MAX { Recipients::Many } else { Recipients::Few(wanted) }))
    }

    /// The endpoints that a message selects by subject and tag and that want it. When more than one page matches, the
    /// tenant's list in memory is filtered instead. A tenant with too many endpoints for a list leaves the selection to
    /// a job. A message with a collapse key needs it now: then as many pages are read as a list would hold.
    async fn selected(
        &self,
        new: &NewMessage,
        selector: &EndpointSelector,
        known: &mut Known,
    ) -> Result<Recipients, StoreError> {
        let wants = |to: &Arc<ParsedEndpoint>| new.details.audience.has(&to.candidate(), new.event_type.as_deref());
        let (mut wanted, mut after) = (Vec::new(), None);
        for _ in 0..SELECTED_PAGES_MAX {
            let (page, next) = self.endpoint_cache.matching(new.tenant, selector, after, SELECTED_PAGE).await?;
            wanted.extend(page.into_iter().filter(wants));
            if wanted.len() > FANOUT_MAX {
                break;
            }
            if next.is_none() {
                return Ok(Recipients::Few(wanted));
            }
            if after.is_none() {
                if let Some(listed) = self.listed(new, known).await? {
                    return Ok(listed);
                }
                // A job reads the same pages. A collapse key cannot wait for it.
                if new.collapse_key.is_none() {
                    break;
                }
            }
            after = next;
        }
        Ok(Recipients::Many)
    }

    /// The endpoint with this id or uid, if it is the tenant's and takes messages.
    async fn recipient(&self, tenant: TenantId, name: &EndpointRef) -> Result<Option<Arc<ParsedEndpoint>>, StoreError> {
        let id = match name {
            EndpointRef::Id(id) => Some(*id),
            EndpointRef::Uid(uid) => self.store.endpoint_named(tenant, uid.clone()).await?,
        };
        let Some(id) = id else { return Ok(None) };
        let known = self.endpoint_cache.load(id).await?;
        Ok(known.filter(|to| to.endpoint.tenant == tenant && to.endpoint.takes_messages()))
    }
}

/// A message on its way to the store, and the answer once it is stored.
struct Prepared {
    accepted: Accepted,
    promise: PromisedMessage,
    room: Option<QuotaReservation>,
}

/// What is looked up once for all messages of a batch, which are one tenant's.
#[derive(Default)]
struct Known {
    endpoints: Option<TenantEndpoints>,
    looked: Looked,
}

enum TenantEndpoints {
    These(Vec<Arc<ParsedEndpoint>>),
    /// More than [`ENDPOINTS_LISTED_MAX`].
    TooMany,
}

/// Deliveries of one call to the store: as many as one message may have.
const CALL_DELIVERIES_MAX: usize = FANOUT_MAX;
/// Payload bytes of one call to the store: with more, the first messages would wait for the last.
const CALL_BYTES_MAX: usize = 2_000_000;

/// Messages that go to the store together.
#[derive(Default)]
struct Call {
    accepted: Vec<Accepted>,
    /// Each with the index of its message in the batch.
    promises: Vec<(usize, PromisedMessage)>,
    /// The room that the messages take of their quota, held until they are stored.
    rooms: Vec<QuotaReservation>,
    deliveries: usize,
    bytes: usize,
}

impl Call {
    fn add(&mut self, place: usize, prepared: Prepared) {
        let Prepared { accepted, promise, room } = prepared;
        self.rooms.extend(room);
        self.deliveries += accepted.deliveries.len();
        self.bytes += accepted.message.body.len() + accepted.message.compact.as_ref().map_or(0, Bytes::len);
        self.accepted.push(accepted);
        self.promises.push((place, promise));
    }

    fn is_full(&self) -> bool {
        self.deliveries >= CALL_DELIVERIES_MAX || self.bytes >= CALL_BYTES_MAX
    }
}

enum Recipients {
    /// At most [`FANOUT_MAX`]: the accept makes their deliveries.
    Few(Vec<Arc<ParsedEndpoint>>),
    /// More: a job finds those that want it, and makes the deliveries in chunks.
    Many,
}
