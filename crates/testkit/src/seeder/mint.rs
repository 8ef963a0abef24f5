//! Makes messages for stores under load: many messages of one delivery each, to lanes in turn; or one message with many
//! deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, Shard, TenantId, WriterId};
use posthaste_core::scheduler::{DeliveryRecord, LaneSettings, RowIndex};
use posthaste_core::state::State;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_store::{
    Accepted, Attempt, Chunk, Endpoint, EndpointTarget, FanOut, JobCursor, Message, NewDelivery, Session, Settlement,
    SigningSecret, Spread, WebhookTarget,
};

/// A small event's body.
pub(super) const BODY_BYTES: usize = 200;
/// How many tenants the lanes belong to, in turn.
pub(super) const TENANTS: u64 = 10;
/// When messages are accepted: a time in the past, so that all deliveries are due.
pub const THEN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// When the messages are accepted that retention must keep: so long after [`THEN`] that nothing from then is kept.
pub const YOUNG: Timestamp = Timestamp::from_millis(THEN.as_millis() + 500 * 24 * 60 * 60 * 1_000);
/// The number of the message with many deliveries.
const CAMPAIGN: u64 = 1;
/// The only message of a store that was seeded with [`Of::OneMessage`](super::Of::OneMessage).
pub fn campaign() -> MessageId {
    let first = WriterId::new(1).expect("the first session's");
    MessageId(Key::new(first, CAMPAIGN))
}

/// The uid of the tenant of endpoints that are [addressed](Target::addressed).
pub const CROWD: &str = "crowd";
/// The event types that they subscribe to.
pub const CROWD_EVENTS: &str = "crowd.*";

/// Deliveries of one chunk. The ids of successive chunks have gaps between them, as in production, where other keys are
/// minted in between.
pub(super) const CHUNK: u64 = 1_000;

/// The `n`th lane of stores under load, and the endpoint behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target(pub u64);

impl Target {
    /// The lane of this target.
    pub fn lane(self) -> LaneId {
        LaneId(self.id().0.plus(1))
    }

    /// The target of a lane.
    pub fn of(lane: LaneId) -> Self {
        Self(lane.raw() / 2 - 1)
    }

    /// The tenant that owns the endpoint.
    pub fn tenant(self) -> TenantId {
        TenantId::from_raw(1 + self.0 % TENANTS)
    }

    /// A webhook at this URL, with a signing secret.
    pub fn target(self, url: String) -> EndpointTarget {
        let secret = SigningSecret::lasting("whsec_YSBzZWNyZXQgZm9yIHNlZWRlZCByb3dz");
        WebhookTarget::signing(url, vec![secret]).into()
    }

    /// The endpoint, as it is first stored.
    pub fn endpoint(self) -> Endpoint {
        let target = self.target(format!("https://{}.example.com/", self.0));
        Endpoint {
            policy: Some("backend".to_owned()),
            ..Endpoint::new(self.id(), self.lane(), self.tenant(), THEN, target)
        }
    }

    /// The endpoint with a subject and a tag of its own, and a tag that all have. It subscribes to [`CROWD_EVENTS`].
    pub fn addressed(self) -> Endpoint {
        Endpoint {
            subject: Some(self.subject()),
            tags: vec![self.tag(), "crowd".to_owned()],
            event_types: vec![CROWD_EVENTS.to_owned()],
            ..self.endpoint()
        }
    }

    /// The endpoint's subject, where it is [addressed](Self::addressed).
    pub fn subject(self) -> String {
        format!("person-{}", self.0)
    }

    /// The tag that no other endpoint has.
    pub fn tag(self) -> String {
        format!("device-{}", self.0)
    }

    /// The endpoint's id. No writer mints keys this low, so it never equals the id of a message.
    pub fn id(self) -> EndpointId {
        EndpointId::from_raw(1 + 2 * self.0)
    }
}

/// Mints messages of one session, each to the next lane.
#[derive(Debug)]
pub struct Mint {
    session: Session,
    next: AtomicU64,
    lanes: Vec<Arc<LaneSettings>>,
    place: RowIndex,
    body: Bytes,
    correlation_id: Option<String>,
    /// The first number whose message is accepted at [`YOUNG`].
    young_from: u64,
}

impl Mint {
    /// A mint of messages to these [`Target`]s, with their rows at this place.
    pub fn new(session: Session, targets: impl IntoIterator<Item = u64>, place: RowIndex) -> Self {
        let lanes = targets.into_iter().map(|n| Arc::new(Target(n).endpoint().lane_settings())).collect();
        let body = Bytes::from(vec![b'x'; BODY_BYTES]);
        let correlation_id = Some("order-2026-11-16-000099".to_owned());
        Self { session, next: AtomicU64::new(1), lanes, place, body, correlation_id, young_from: u64::MAX }
    }

    /// With bodies of this many bytes and without a correlation id, as most producers send them.
    #[must_use]
    pub fn with_body(self, bytes: usize) -> Self {
        Self { body: Bytes::from(vec![b'x'; bytes]), correlation_id: None, ..self }
    }

    /// With messages accepted at [`YOUNG`] from this number on.
    #[must_use]
    pub fn with_young(self, from: u64) -> Self {
        Self { young_from: from, ..self }
    }

    /// The next message, with its delivery.
    pub fn message(&self) -> Accepted {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.numbered(number)
    }

    /// The message of this number. It is the same at every call.
    pub fn numbered(&self, number: u64) -> Accepted {
        let id = MessageId(Key::new(self.session.writer, 2 * number));
        let lane = self.lane(number);
        let at = if number < self.young_from { THEN } else { YOUNG };
        let delivery = Delivery::queued(
            DeliveryId(id.0.plus(1)),
            id,
            Target::of(lane.lane).id(),
            lane.lane,
            Tier::Promotional,
            at,
        );
        let message = self.bare(id, lane.tenant, at);
        Accepted::new(message, vec![NewDelivery::new(delivery, self.place, lane)])
    }

    /// The end of the delivery of this number in an [aged](super::Of::Aged) store, if it has ended: by its first
    /// attempt, at the time of its birth.
    pub fn ended(&self, number: u64) -> Option<Settlement> {
        let is_young = number >= self.young_from;
        let mut delivery =
            self.numbered(number).deliveries.pop().filter(|_| !is_young || number.is_multiple_of(2))?.delivery;
        let (at, shard) = (delivery.born, Shard::of(delivery.lane));
        let cause = if is_young { Cause::Gone } else { Cause::Ok };
        delivery.state = if is_young { State::Dead { at, cause } } else { State::Delivered { at } };
        delivery.last_cause = is_young.then_some(cause);
        delivery.attempts = 1;
        let attempt = Attempt { number: 1, at, took: Duration::from_millis(20), cause, status: None };
        let record = DeliveryRecord {
            delivery,
            attempts_before: 0,
            place: RowIndex::Delayed,
            shard,
            pauses_lane: false,
            endpoint_change: None,
        };
        Some(Settlement { record, epoch: self.session.epoch, attempt: Some(attempt), excerpt: None })
    }

    fn bare(&self, id: MessageId, tenant: TenantId, at: Timestamp) -> Message {
        Message {
            event_type: Some("invoice.paid".to_owned()),
            correlation_id: self.correlation_id.clone(),
            ..Message::new(id, tenant, at, self.body.clone())
        }
    }

    fn lane(&self, number: u64) -> Arc<LaneSettings> {
        let turn = usize::try_from(number % self.lanes.len() as u64).expect("below the number of lanes");
        Arc::clone(&self.lanes[turn])
    }

    /// One message for all lanes, whose deliveries a fan-out job makes.
    pub fn campaign(&self) -> Accepted {
        let id = MessageId(Key::new(self.session.writer, CAMPAIGN));
        let message = Arc::new(self.bare(id, self.lane(0).tenant, THEN));
        let fan_out = Some(FanOut { message: id, tier: Tier::Promotional, deliver_at: None, ttl: None });
        Accepted { message, deliveries: Vec::new(), idempotency: None, fan_out }
    }

    /// The `n`th chunk of the fan-out, with this many deliveries.
    pub fn chunk(&self, campaign: &Accepted, n: u64, deliveries: u64) -> Chunk {
        let cursor = |n| if n == 0 { JobCursor::START } else { JobCursor::behind(n) };
        let message = &campaign.message;
        let first = Key::new(self.session.writer, CAMPAIGN + 2_000 + n * (CHUNK + 1));
        let spread = |m: u64| {
            let (id, lane) = (DeliveryId(first.plus(m)), self.lane(m));
            let delivery =
                Delivery::queued(id, message.id, Target::of(lane.lane).id(), lane.lane, Tier::Promotional, THEN);
            let new = NewDelivery::new(delivery, self.place, lane);
            Spread { new, message: Arc::clone(message), replays: None }
        };
        Chunk {
            job: JobId(message.id.0),
            at: THEN,
            from: cursor(n),
            to: cursor(n + 1),
            deliveries: (0..deliveries).map(spread).collect(),
            skipped: posthaste_store::Skips::default(),
            last: false,
        }
    }
}
