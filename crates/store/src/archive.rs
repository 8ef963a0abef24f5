//! What is kept of messages and deliveries, for whoever looks them up, and how it is let go in the end.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, LaneId, MessageId, TenantId};
use posthaste_core::time::Timestamp;

use crate::row::{
    Act, Agreed, HistoryFilter, HistoryPage, Hour, ListOrder, Message, MessageFilter, MessagePage, Name, NamedPage,
    Pending, Retained, Retention, RetentionStep, Session, Shown, Tally, Waiting,
};
use crate::{JournalRow, StoreError};

/// Shows what is kept. Readers wait for nobody; whatever was answered before they began, they see.
pub trait Archive: Send + Sync + 'static {
    /// A message with its payload, while it is kept.
    fn message(&self, id: MessageId) -> impl Future<Output = Result<Option<Arc<Message>>, StoreError>> + Send;

    /// When these messages were accepted, as far as they are kept: a part of every id they are known by.
    fn accepted_at(
        &self,
        messages: Vec<MessageId>,
    ) -> impl Future<Output = Result<Vec<Option<Timestamp>>, StoreError>> + Send;

    /// One delivery as a reader sees it at `now`: pending or ended, with every attempt.
    fn delivery(
        &self,
        id: DeliveryId,
        now: Timestamp,
    ) -> impl Future<Output = Result<Option<Shown>, StoreError>> + Send;

    /// How receivers' answers to a delivery's attempts begin, by the attempt's number, as far as they are kept.
    fn excerpts(&self, id: DeliveryId) -> impl Future<Output = Result<Vec<(u16, Bytes)>, StoreError>> + Send;

    /// Deliveries of a message as a reader sees them at `now`, by id, from behind one. A page that is
    /// not full is the last.
    fn deliveries(
        &self,
        message: MessageId,
        after: Option<DeliveryId>,
        now: Timestamp,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Shown>, StoreError>> + Send;

    /// Messages that match, by id, without their payloads. A page may be short and still have a next: one request
    /// looks at a bounded number of rows.
    fn messages(
        &self,
        filter: MessageFilter,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> impl Future<Output = Result<MessagePage, StoreError>> + Send;

    /// Deliveries that match, by id. A page may be short and still have a next: one
    /// request looks at a bounded number of rows.
    fn history(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
        now: Timestamp,
    ) -> impl Future<Output = Result<HistoryPage, StoreError>> + Send;

    /// A tenant's messages that have this name, by id.
    fn named(
        &self,
        tenant: TenantId,
        name: Name,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> impl Future<Output = Result<NamedPage, StoreError>> + Send;

    /// What happened to a tenant in these hours, the last one not included.
    fn tallies(
        &self,
        tenant: TenantId,
        since: Hour,
        until: Hour,
    ) -> impl Future<Output = Result<Vec<Tally>, StoreError>> + Send;

    /// How much is pending in a lane.
    fn waiting(&self, lane: LaneId) -> impl Future<Output = Result<Waiting, StoreError>> + Send;

    /// How much is pending in all lanes together, however many there are.
    fn pending(&self) -> impl Future<Output = Result<Pending, StoreError>> + Send;

    /// The journal's rows behind the `after`th, as many as `limit`.
    fn journal(&self, after: u64, limit: u32) -> impl Future<Output = Result<Vec<JournalRow>, StoreError>> + Send;

    /// Says in the journal that somebody asked for a delivery to be sent now; whose turn it is, its owner's memory knows.
    fn note_hurry(
        &self,
        session: Session,
        delivery: &Delivery,
        act: Act,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes over what was agreed with tenants on how long their things are kept; says with how many it is another
    /// than before. It holds for what is there already. An audit believes that things are gone by it once it is
    /// signed for.
    fn agree(
        &self,
        session: Session,
        agreed: Agreed,
        now: Timestamp,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Lets go of what was kept for long enough: one small step of a run, which says what the next one
    /// is. What was pending all that time ends as dead, unless the caller has it `under_way`: that ends by itself, or the
    /// next run meets it. A payload that somebody needs stays.
    fn retain(
        &self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
        under_way: Vec<DeliveryId>,
    ) -> impl Future<Output = Result<Retained, StoreError>> + Send;
}
