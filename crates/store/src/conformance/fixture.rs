//! Building blocks of the cases: a store with a session, drafts of deliveries, and checks whose failures name the case
//! and the store.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::scheduler::{OnDead, Order};
use posthaste_core::{
    Cause, Compact, Cut, CutScope, Delivery, DeliveryChange, DeliveryId, EndpointChange, EndpointId, Expiry, Key,
    LaneId, LaneSettings, MessageId, RowIndex, Shard, State, TenantId, Tier, Timestamp,
};

use crate::journal::JournalEntry;
use crate::row::{
    Acceptance, Accepted, ApiKeyRef, AttemptRecord, AuditStamp, CollapseKey, DeliveryRecord, Endpoint, EndpointPut,
    EndpointRate, EndpointStatus, EndpointTarget, EndpointTls, FirstAnswer, Idempotency, KeyHash, Message, NewDelivery,
    PendingPage, PendingRow, Query, Session, SessionStart, Settled, Settlement, SigningSecret, Token, WebhookTarget,
};
use crate::{JournalRow, Store, StoreError};

pub(super) const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

/// The tenant of all messages and endpoints that do not name another.
pub(super) const TENANT: TenantId = TenantId::from_raw(9);
pub(super) const STRANGER: TenantId = TenantId::from_raw(8);

/// A page limit above the number of rows in any case.
pub(super) const MANY: u32 = 100;

pub(super) struct StoreCase<S> {
    name: &'static str,
    pub(super) store: S,
    pub(super) start: SessionStart,
    next: Cell<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryDraft {
    pub(super) lane: LaneId,
    pub(super) tier: Tier,
    pub(super) place: RowIndex,
    pub(super) due: Timestamp,
    pub(super) expiry: Expiry,
    pub(super) ack_within: Option<Duration>,
    pub(super) compact: Compact,
    pub(super) collapse: Option<CollapseKey>,
}

impl DeliveryDraft {
    /// A delivery to the `n`th lane, ready now.
    pub(super) fn to(lane: u64) -> Self {
        Self {
            lane: lane_id(lane),
            tier: Tier::Promotional,
            place: RowIndex::Ready,
            due: NOW,
            expiry: Expiry::Never,
            ack_within: None,
            compact: Compact::None,
            collapse: None,
        }
    }

    pub(super) fn spilled(self) -> Self {
        Self { place: RowIndex::Spilled, ..self }
    }

    pub(super) fn delayed(self, due: Timestamp) -> Self {
        Self { place: RowIndex::Delayed, due, ..self }
    }
}

pub(super) fn api_key(number: u64) -> Option<ApiKeyRef> {
    Some(ApiKeyRef { key: Key::from_raw(number), made: NOW })
}

/// The `n`th lane of all cases.
pub(super) fn lane_id(n: u64) -> LaneId {
    LaneId::from_raw(n)
}

/// The endpoint that has the `n`th lane. Its id is never the id of a lane, so that a mix-up of the two fails.
pub(super) fn endpoint_id(n: u64) -> EndpointId {
    EndpointId::from_raw(ENDPOINTS_FROM + n)
}

/// The number of the lane of an endpoint made with [`endpoint_id`].
pub(super) fn number_of(endpoint: EndpointId) -> u64 {
    endpoint.raw() - ENDPOINTS_FROM
}

const ENDPOINTS_FROM: u64 = 7_000;

/// A point in time some milliseconds after [`NOW`].
pub(super) fn after(ms: i64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + ms)
}

/// The endpoint of the `n`th lane.
pub(super) fn endpoint(n: u64) -> Endpoint {
    Endpoint {
        id: endpoint_id(n),
        lane: lane_id(n),
        tenant: TENANT,
        at: NOW,
        target: EndpointTarget::Webhook(webhook(n)),
        version: 0,
        uid: Some(format!("endpoint-{n}")),
        subject: None,
        description: Some("the é endpoint".to_owned()),
        tags: vec!["beta".to_owned(), "eu".to_owned()],
        event_types: vec!["invoice.*".to_owned(), "é 漢".to_owned()],
        policy: Some("backend".to_owned()),
        ttl: Some(Duration::from_secs(60)),
        timeout: Some(Duration::from_millis(2_500)),
        rate: Some(EndpointRate { milli: 6_500, burst: 10 }),
        order: Order::Fifo,
        on_dead: OnDead::Skip,
        max_in_flight: 10,
        time_zone: Some("Europe/Berlin".to_owned()),
        status: EndpointStatus::Active,
    }
}

/// The target of the endpoint of the `n`th lane.
pub(super) fn webhook(n: u64) -> WebhookTarget {
    WebhookTarget {
        url: format!("https://example.com/{n}"),
        headers: vec![("x-team".to_owned(), "a".to_owned())],
        secrets: vec![
            SigningSecret::lasting("whsec_new"),
            SigningSecret { text: "whsec_old".to_owned(), until: Some(after(1_000)) },
        ],
        tls: EndpointTls {
            ca: Some("some authority".to_owned()),
            client_cert: Some("some certificate".to_owned()),
            client_key: Some("its key".to_owned()),
        },
        status_overrides: vec![("404".to_owned(), "retry".to_owned()), ("4xx".to_owned(), "dead".to_owned())],
    }
}

pub(super) fn ended(scope: CutScope, cause: Cause) -> Option<(EndpointId, EndpointChange)> {
    let CutScope::Lane(lane) = scope else { return None };
    let change = match cause {
        Cause::EndpointGone => EndpointChange::Gone,
        Cause::EndpointDeleted => EndpointChange::Deleted,
        _ => return None,
    };
    Some((endpoint_id(lane.raw()), change))
}

pub(super) fn delivered(ms: i64) -> State {
    State::Delivered { at: after(ms) }
}

pub(super) fn dead(ms: i64) -> State {
    State::Dead { at: after(ms), cause: Cause::NotFound }
}

/// A call with the `n`th key whose answer is `text`.
pub(super) fn call(n: u8, at: Timestamp, text: &'static str) -> Idempotency {
    let answer = FirstAnswer { status: 202, body: text.into() };
    Idempotency { tenant: TENANT, key: KeyHash([n; 16]), digest: [1; 32], answer, at }
}

/// All items of a list, which `page` reads from a position on; it also returns where the next page begins.
pub(super) async fn all_pages<T, C>(page: impl AsyncFn(Option<C>) -> (Vec<T>, Option<C>)) -> Vec<T> {
    let (mut all, mut next) = page(None).await;
    while next.is_some() {
        let (more, behind) = page(next).await;
        all.extend(more);
        next = behind;
    }
    all
}

pub(super) fn attempt(number: u16, cause: Cause) -> AttemptRecord {
    AttemptRecord {
        number,
        at: after(i64::from(number) * 1_000),
        took: Duration::from_micros(12_345),
        cause,
        status: Some(500 + number),
    }
}

impl<S: Store> StoreCase<S> {
    pub(super) async fn begin(name: &'static str, store: S) -> Self {
        let start = match store.open(NOW).await {
            Ok(start) => start,
            Err(error) => panic!("case {name} on {}: open: {error}", std::any::type_name::<S>()),
        };
        Self { name, store, start, next: Cell::new(1) }
    }

    pub(super) fn session(&self) -> Session {
        self.start.session
    }

    // --- checks ---

    pub(super) fn fail(&self, what: &str) -> ! {
        panic!("case {} on {}: {what}", self.name, std::any::type_name::<S>())
    }

    pub(super) fn check(&self, holds: bool, what: &str) {
        if !holds {
            self.fail(what);
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers mostly pass temporary values")]
    pub(super) fn same<T: PartialEq + Debug>(&self, what: &str, found: T, expected: T) {
        if found != expected {
            self.fail(&format!("{what}\n   found: {found:#?}\nexpected: {expected:#?}"));
        }
    }

    pub(super) fn done<T>(&self, doing: &str, result: Result<T, StoreError>) -> T {
        result.unwrap_or_else(|error| self.fail(&format!("{doing}: {error}")))
    }

    // --- calls to the store ---

    /// A message with these deliveries, not accepted yet.
    pub(super) fn message(&self, drafts: &[DeliveryDraft]) -> Accepted {
        let id = MessageId(Key::new(self.session().writer, self.next.get()));
        self.next.set(self.next.get() + 1 + drafts.len() as u64);
        let message =
            Message { correlation_id: Some(format!("correlation {id}")), ..Message::new(id, TENANT, NOW, "{}") };
        let deliveries = (1..).zip(drafts).map(|(n, draft)| draft.delivery(id, n)).collect();
        Accepted::new(message, deliveries)
    }

    /// Like [`message`](Self::message), with other fields than the default.
    pub(super) fn message_with(&self, drafts: &[DeliveryDraft], change: impl FnOnce(&mut Message)) -> Accepted {
        let mut accepted = self.message(drafts);
        change(Arc::make_mut(&mut accepted.message));
        accepted
    }

    /// Accepts a message and returns its deliveries.
    pub(super) async fn put(&self, accepted: Accepted) -> Vec<Delivery> {
        let deliveries = accepted.deliveries.iter().map(|new| new.delivery.clone()).collect();
        let acceptances = self.done("accept", self.store.accept(self.session(), vec![accepted]).await);
        self.same("it is fresh", acceptances, vec![Acceptance::Fresh]);
        deliveries
    }

    /// Accepts one message with these deliveries and returns their ids.
    pub(super) async fn accept(&self, drafts: &[DeliveryDraft]) -> Vec<DeliveryId> {
        self.put(self.message(drafts)).await.iter().map(|delivery| delivery.id).collect()
    }

    pub(super) async fn accept_one(&self, draft: DeliveryDraft) -> Delivery {
        self.put(self.message(&[draft])).await.remove(0)
    }

    pub(super) async fn arrived(&self) -> Vec<DeliveryId> {
        self.store.arrivals().await.iter().map(|arrival| arrival.new.delivery.id).collect()
    }

    /// The settlement that moves a delivery to `state` after one more attempt.
    pub(super) fn attempted(&self, before: &Delivery, state: State, cause: Cause) -> Settlement {
        let delivery = Delivery { state, attempts: before.attempts + 1, ..before.clone() };
        let attempt = attempt(delivery.attempts, cause);
        Settlement { attempt: Some(attempt), ..self.settlement(before, delivery) }
    }

    /// The settlement that lets a delivery wait for a retry after one more attempt.
    pub(super) fn retried(&self, before: &Delivery, due_ms: i64, cause: Cause) -> Settlement {
        self.attempted(before, State::Retry { due: after(due_ms), cause }, cause)
    }

    /// The settlement that records `next`, without an attempt.
    pub(super) fn settlement(&self, before: &Delivery, next: Delivery) -> Settlement {
        let shard = Shard::of(next.lane);
        Settlement {
            record: DeliveryChange {
                delivery: next,
                attempts_before: before.attempts,
                place: RowIndex::Delayed,
                shard,
                pauses_lane: false,
                endpoint_change: None,
            },
            epoch: self.session().epoch,
            excerpt: None,
            attempt: None,
        }
    }

    pub(super) async fn settle(&self, settlement: Settlement) -> Settled {
        let settled = self.done("settle", self.store.settle(self.session(), vec![settlement]).await);
        self.same("one result for one settlement", settled.len(), 1);
        settled[0]
    }

    pub(super) async fn settle_done(&self, settlement: Settlement) {
        self.same("the settlement takes effect", self.settle(settlement).await, Settled::Done);
    }

    pub(super) async fn cut(&self, scope: CutScope, upto: Key, cause: Cause, spared: &[DeliveryId]) -> u64 {
        let cut = Cut { scope, upto, cause, at: after(7), spared: spared.to_vec(), endpoint: ended(scope, cause) };
        self.done("cut", self.store.cut(self.session(), cut, None).await)
    }

    pub(super) async fn page(&self, query: Query, limit: u32) -> PendingPage {
        let page = self.done("page", self.store.page(query, limit, NOW).await);
        self.same("every row's token is valid", page.rows.iter().all(|row| row.token == Token::Valid), true);
        page
    }

    pub(super) async fn ids(&self, query: Query, limit: u32) -> Vec<DeliveryId> {
        self.page(query, limit).await.rows.iter().map(|row| row.delivery.id).collect()
    }

    pub(super) async fn pending(&self, id: DeliveryId) -> Option<PendingRow> {
        self.page(Query::One(id), 1).await.rows.pop()
    }

    pub(super) async fn shown(&self, id: DeliveryId, now: Timestamp) -> DeliveryRecord {
        let shown = self.done("delivery", self.store.delivery(id, now).await);
        shown.unwrap_or_else(|| self.fail(&format!("delivery {id} is not known")))
    }

    pub(super) async fn state(&self, id: DeliveryId) -> State {
        self.shown(id, NOW).await.delivery.state
    }

    pub(super) async fn put_endpoint(&self, endpoint: Endpoint) {
        let put = self
            .done("put_endpoint", self.store.put_endpoint(self.session(), endpoint, None, AuditStamp::at(NOW)).await);
        self.same("it is put", put, EndpointPut::Done);
    }

    pub(super) async fn journal(&self) -> Vec<JournalRow> {
        self.done("journal", self.store.journal(0, 1_000).await)
    }

    pub(super) async fn entries(&self) -> Vec<JournalEntry> {
        self.done("unpack", self.journal().await.iter().flat_map(JournalRow::entries).collect())
    }

    /// The entries of the journal for which `is` holds.
    pub(super) async fn entries_that(&self, is: impl Fn(&JournalEntry) -> bool) -> Vec<JournalEntry> {
        self.entries().await.into_iter().filter(is).collect()
    }

    pub(super) async fn reopen(&self) -> SessionStart {
        self.done("open", self.store.open(NOW).await)
    }
}

impl DeliveryDraft {
    fn delivery(&self, message: MessageId, n: u64) -> NewDelivery {
        let delivery = Delivery {
            state: State::Queued { due: self.due },
            expiry: self.expiry,
            ack_within: self.ack_within,
            compact: self.compact,
            ..Delivery::queued(
                DeliveryId(message.0.plus(n)),
                message,
                endpoint_id(self.lane.raw()),
                self.lane,
                self.tier,
                NOW,
            )
        };
        let settings = LaneSettings { lane: self.lane, ..endpoint(self.lane.raw()).lane_settings() };
        NewDelivery { delivery, place: self.place, lane: Arc::new(settings), collapse: self.collapse }
    }
}
