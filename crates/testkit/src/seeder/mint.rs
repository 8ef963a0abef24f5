//! Messages for stores under load: one delivery each, to lanes that take turns.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, Key, LaneId, MessageId, TenantId};
use posthaste_core::queue::{LaneSettings, Place};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_store::{Accepted, Endpoint, Message, NewDelivery, Session};

/// A small event's body.
pub(super) const BODY_BYTES: usize = 200;
/// Tenants the lanes belong to, in turn.
const TENANTS: u64 = 10;
/// When everything was accepted: some day of the past, so that everything is due.
const THEN: Timestamp = Timestamp::from_millis(1_760_000_000_000);

/// The `n`th lane of stores under load, and the endpoint behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target(pub u64);

impl Target {
    /// Its lane.
    pub fn lane(self) -> LaneId {
        self.id().into()
    }

    /// Whose it is.
    pub fn tenant(self) -> TenantId {
        TenantId::from_raw(1 + self.0 % TENANTS)
    }

    /// The endpoint.
    pub fn endpoint(self) -> Endpoint {
        Endpoint {
            secrets: vec!["whsec_some".to_owned()],
            policy: "backend".to_owned(),
            ..Endpoint::new(self.id(), self.tenant(), THEN, format!("https://{}.example.com/", self.0))
        }
    }

    /// No writer mints keys this low: ids of endpoints never meet those of messages.
    fn id(self) -> EndpointId {
        EndpointId::from_raw(1 + self.0)
    }
}

/// Mints messages of one session, each to the next lane.
#[derive(Debug)]
pub struct Mint {
    session: Session,
    next: AtomicU64,
    lanes: Vec<Arc<LaneSettings>>,
    place: Place,
    body: Bytes,
}

impl Mint {
    /// Messages to these [`Target`]s, their rows at this place.
    pub fn new(session: Session, targets: Range<u64>, place: Place) -> Self {
        let lanes = targets.map(|n| Arc::new(Target(n).endpoint().lane_settings())).collect();
        Self { session, next: AtomicU64::new(1), lanes, place, body: Bytes::from(vec![b'x'; BODY_BYTES]) }
    }

    /// The same with bodies of so many bytes.
    #[must_use]
    pub fn with_body(self, bytes: usize) -> Self {
        Self { body: Bytes::from(vec![b'x'; bytes]), ..self }
    }

    /// The next message, with its delivery.
    pub fn message(&self) -> Accepted {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = MessageId(Key::new(self.session.writer, 2 * number));
        let turn = usize::try_from(number % self.lanes.len() as u64).expect("below the number of lanes");
        let lane = Arc::clone(&self.lanes[turn]);
        let delivery = Delivery::queued(DeliveryId(id.0.plus(1)), id, lane.lane, Tier::Promotional, THEN);
        let message = Message {
            event_type: Some("invoice.paid".to_owned()),
            correlation_id: "msg_0123456789abcdefghjkmnpqrstvwxyz0123".to_owned(),
            ..Message::new(id, lane.tenant, THEN, self.body.clone())
        };
        let deliveries = vec![NewDelivery::new(delivery, self.place, lane)];
        Accepted::new(message, deliveries)
    }
}
