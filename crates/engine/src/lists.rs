//! Lists of messages and deliveries, and the cursors of all lists. A cursor is sealed and belongs to one list: whose
//! it is, by which filters, in which order.

use bytes::Bytes;
use posthaste_core::WriterId;
use posthaste_core::id::{DeliveryId, Key, MessageId};
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::{Kind, SEQ_MAX, TIME_MS_MAX};
use posthaste_store::{HistoryFilter, ListOrder, MessageFilter, MessagePage, OPERATOR, Store, StoreError};

use crate::clock::Clock;
use crate::engine::{Engine, NotDone, Sees, View};

/// Tells a list from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListId(u32);

impl<S: Store, C: Clock> Engine<S, C> {
    /// Which list it is: of what somebody sees, with these filters.
    pub fn list_id(&self, whose: Sees, filters: &str) -> ListId {
        let tenant = match whose {
            Sees::All => OPERATOR,
            Sees::Tenant(tenant) => tenant,
        };
        let hash = self.lookup.hash("list", tenant.raw(), filters.as_bytes());
        ListId(u32::from_be_bytes([0, hash[0], hash[1], hash[2]]))
    }

    /// A place in a list, as the world is told it: it opens for the same list alone.
    pub fn cursor(&self, list: ListId, at: Timestamp, number: u64) -> Option<String> {
        let at = u64::try_from(at.as_millis()).ok().filter(|at| *at <= TIME_MS_MAX)?;
        (number <= SEQ_MAX).then(|| self.ids.mint(Kind::Cursor, list.0, number, at))
    }

    /// The place that a list's cursor names.
    pub fn open_cursor(&self, list: ListId, text: &str) -> Option<(Timestamp, u64)> {
        let opened = self.ids.open(text).filter(|opened| opened.kind == Kind::Cursor && opened.writer == list.0)?;
        Some((Timestamp::from_millis(i64::try_from(opened.time_ms).ok()?), opened.seq))
    }

    /// The place behind a thing, in a list that is ordered by keys.
    pub fn cursor_behind(&self, list: ListId, key: Key) -> String {
        self.ids.mint(Kind::Cursor, list.0, key.seq(), key.writer().number().into())
    }

    /// The key that such a cursor is behind.
    pub fn open_cursor_behind(&self, list: ListId, text: &str) -> Option<Key> {
        let (writer, seq) = self.open_cursor(list, text)?;
        let writer = u32::try_from(writer.as_millis()).ok().and_then(WriterId::new)?;
        Some(Key::new(writer, seq))
    }

    /// Messages that match, by id.
    pub async fn messages(
        &self,
        filter: MessageFilter,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<MessagePage, StoreError> {
        self.store.messages(filter, order, after, limit).await
    }

    /// Deliveries that match, by id, and where to go on.
    pub async fn deliveries(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
    ) -> Result<(Vec<View>, Option<DeliveryId>), NotDone> {
        let page = self.store.history(filter, order, after, limit, self.clock.now()).await?;
        let mut views = Vec::with_capacity(page.deliveries.len());
        for shown in page.deliveries {
            views.push(self.view(shown).await?);
        }
        Ok((views, page.next))
    }

    /// How receivers' answers to a delivery's attempts begin, by the attempt's number.
    pub async fn excerpts(&self, id: DeliveryId) -> Result<Vec<(u16, Bytes)>, StoreError> {
        self.store.excerpts(id).await
    }

    /// When messages were accepted, as far as they are kept: their ids and their deliveries' are made with it.
    pub async fn accepted_at(&self, messages: Vec<MessageId>) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.store.accepted_at(messages).await
    }
}
