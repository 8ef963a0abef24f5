//! [`Archive`] over SQLite: reads run on a reader thread, retention in small steps on the writer.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{Delivery, DeliveryId, LaneId, MessageId, TenantId, Timestamp};
use rusqlite::Connection;

use super::{Sqlite, derived, excerpt, journal, list, retention, show};
use crate::journal::{Entries, JournalEntry};
use crate::{
    Archive, AuditStamp, DeliveryRecord, HistoryFilter, HistoryPage, HourlyCount, JournalRow, LaneBacklog, ListOrder,
    Message, MessageFilter, MessagePage, Name, NamedPage, PendingCounts, RETENTION_STEP_MAX, Retained, Retention,
    RetentionOverrides, RetentionStep, Session, StoreError, UtcHour,
};

impl Archive for Sqlite {
    async fn message(&self, id: MessageId) -> Result<Option<Arc<Message>>, StoreError> {
        self.read(move |conn, vault| show::message(conn, vault, id)).await
    }

    async fn accepted_at(&self, messages: Vec<MessageId>) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.readers.read(move |conn| messages.iter().map(|id| show::accepted_at(conn, *id)).collect()).await
    }

    async fn delivery(&self, id: DeliveryId, now: Timestamp) -> Result<Option<DeliveryRecord>, StoreError> {
        self.readers.read(move |conn| show::read(conn, id, now)).await
    }

    async fn excerpts(&self, id: DeliveryId) -> Result<Vec<(u16, Bytes)>, StoreError> {
        self.read(move |conn, vault| excerpt::of(conn, vault, id)).await
    }

    async fn deliveries(
        &self,
        message: MessageId,
        after: Option<DeliveryId>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<DeliveryRecord>, StoreError> {
        self.readers.read(move |conn| show::deliveries_of_message(conn, message, after, now, limit)).await
    }

    async fn messages(
        &self,
        filter: MessageFilter,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<MessagePage, StoreError> {
        self.read(move |conn, vault| list::messages(conn, vault, &filter, order, after, limit)).await
    }

    async fn history(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
        now: Timestamp,
    ) -> Result<HistoryPage, StoreError> {
        self.readers.read(move |conn| list::history(conn, &filter, order, after, limit, now)).await
    }

    async fn named(
        &self,
        tenant: TenantId,
        name: Name,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<NamedPage, StoreError> {
        self.read(move |conn, vault| match vault.hide(conn, tenant, &name)? {
            Some(hidden) => derived::named(conn, hidden, order, after, limit),
            None => Ok(NamedPage::default()),
        })
        .await
    }

    async fn tallies(&self, tenant: TenantId, since: UtcHour, until: UtcHour) -> Result<Vec<HourlyCount>, StoreError> {
        self.readers.read(move |conn| derived::tallies(conn, tenant, since, until)).await
    }

    async fn waiting(&self, lane: LaneId) -> Result<LaneBacklog, StoreError> {
        self.readers.read(move |conn| derived::waiting(conn, lane)).await
    }

    async fn pending(&self) -> Result<PendingCounts, StoreError> {
        self.readers.read(derived::pending).await
    }

    async fn journal(&self, after: u64, limit: u32) -> Result<Vec<JournalRow>, StoreError> {
        self.readers.read(move |conn| journal::read(conn, after, limit)).await
    }

    async fn note_retry_now(&self, session: Session, delivery: &Delivery, act: AuditStamp) -> Result<(), StoreError> {
        let entry = JournalEntry::hurried(delivery, act);
        let note = move |_: &Connection, entries: &mut Entries| {
            entries.push(&entry);
            Ok(())
        };
        self.asked_work(session, 1, note).await
    }

    async fn set_retention_overrides(
        &self,
        session: Session,
        overrides: RetentionOverrides,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let rows = overrides.own.len().max(1);
        let run = move |conn: &Connection, entries: &mut Entries| {
            retention::overrides::set_retention_overrides(conn, &overrides, now, entries)
        };
        self.noted_work(session, rows, run).await
    }

    async fn retain(
        &self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
        under_way: Vec<DeliveryId>,
    ) -> Result<Retained, StoreError> {
        let request = retention::RetentionRequest { retention, now, step };
        let under_way: BTreeSet<DeliveryId> = under_way.into_iter().collect();
        let run = move |conn: &Connection, entries: &mut Entries| retention::step(conn, request, &under_way, entries);
        self.noted_work(session, RETENTION_STEP_MAX as usize, run).await
    }
}
