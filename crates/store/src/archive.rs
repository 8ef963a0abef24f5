//! Read access to messages, deliveries, counts and the journal, and the retention that removes them.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{Delivery, DeliveryId, LaneId, MessageId, TenantId, Timestamp};

use crate::{
    AuditStamp, DeliveryRecord, HistoryFilter, HistoryPage, HourlyCount, JournalRow, LaneBacklog, ListOrder, Message,
    MessageFilter, MessagePage, Name, NamedPage, PendingCounts, Retained, Retention, RetentionOverrides, RetentionStep,
    Session, StoreFuture, UtcHour,
};

/// Reads what is stored. Reads do not wait for writers, and they see every write that returned before they began.
pub trait Archive: Send + Sync + 'static {
    /// A message with its payload, as long as it is retained.
    fn message(&self, id: MessageId) -> impl StoreFuture<Option<Arc<Message>>>;

    /// When these messages were accepted; `None` for those no longer retained. The time is part of a public id.
    fn accepted_at(&self, messages: Vec<MessageId>) -> impl StoreFuture<Vec<Option<Timestamp>>>;

    /// One delivery as a reader sees it at `now`: pending or ended, with every attempt.
    fn delivery(&self, id: DeliveryId, now: Timestamp) -> impl StoreFuture<Option<DeliveryRecord>>;

    /// The stored beginnings of the receiver's responses to a delivery's failed attempts, with the attempt's number.
    fn excerpts(&self, id: DeliveryId) -> impl StoreFuture<Vec<(u16, Bytes)>>;

    /// Deliveries of a message as a reader sees them at `now`, by id, after `after`. A page with fewer than `limit`
    /// deliveries is the last.
    fn deliveries(
        &self,
        message: MessageId,
        after: Option<DeliveryId>,
        now: Timestamp,
        limit: u32,
    ) -> impl StoreFuture<Vec<DeliveryRecord>>;

    /// Messages that match, by id, without their payloads. One request reads a bounded number of rows, so a page may
    /// have fewer than `limit` messages and still have a next one.
    fn messages(
        &self,
        filter: MessageFilter,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> impl StoreFuture<MessagePage>;

    /// Deliveries that match, by id. One request reads a bounded number of rows, so a page may have fewer than `limit`
    /// deliveries and still have a next one.
    fn history(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
        now: Timestamp,
    ) -> impl StoreFuture<HistoryPage>;

    /// A tenant's messages with this subject or correlation id, by id.
    fn named(
        &self,
        tenant: TenantId,
        name: Name,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> impl StoreFuture<NamedPage>;

    /// A tenant's counts for the hours from `since` up to, but not including, `until`.
    fn tallies(&self, tenant: TenantId, since: UtcHour, until: UtcHour) -> impl StoreFuture<Vec<HourlyCount>>;

    /// The number of pending deliveries in a lane.
    fn waiting(&self, lane: LaneId) -> impl StoreFuture<LaneBacklog>;

    /// The number of pending deliveries in all lanes; the cost does not depend on the number of lanes.
    fn pending(&self) -> impl StoreFuture<PendingCounts>;

    /// Up to `limit` rows of the journal with numbers above `after`.
    fn journal(&self, after: u64, limit: u32) -> impl StoreFuture<Vec<JournalRow>>;

    /// Records in the journal that a caller asked for a delivery to be retried now. The schedule itself is in the
    /// dispatch loop's memory.
    fn note_retry_now(&self, session: Session, delivery: &Delivery, act: AuditStamp) -> impl StoreFuture<()>;

    /// Sets the retention overrides of tenants and returns how many tenants' overrides changed. They apply to existing
    /// data too. An audit accepts a removal made under an override only once a checkpoint covers the override's entry.
    fn set_retention_overrides(
        &self,
        session: Session,
        overrides: RetentionOverrides,
        now: Timestamp,
    ) -> impl StoreFuture<u64>;

    /// Deletes expired data: one small step of a retention run, which returns the next step. A delivery that was
    /// pending for the whole retention time ends as dead; one in `under_way` is skipped, because its attempt will
    /// settle it or the next run finds it again. A payload that a pending delivery or a dead letter needs is kept.
    fn retain(
        &self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
        under_way: Vec<DeliveryId>,
    ) -> impl StoreFuture<Retained>;
}
