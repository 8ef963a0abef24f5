//! Lists of messages and deliveries, and the cursors of all lists. A cursor is encrypted and works only for the list
//! that it was made for: the same visible tenant, filters and order.

use bytes::Bytes;
use posthaste_core::{DeliveryId, Key, MessageId, Timestamp, WriterId};
use posthaste_crypto::public_id::{IdKind, SEQ_MAX, TIME_MS_MAX};
use posthaste_store::{HistoryFilter, ListOrder, MessageFilter, MessagePage, OPERATOR, Store, StoreError};

use crate::{Clock, Engine, ExplainedDelivery, NotDone, Visibility};

/// Identifies a list: the visible tenant and a hash of its filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListId(u32);

impl<S: Store, C: Clock> Engine<S, C> {
    /// The id of a list with these filters, for a caller with this visibility.
    pub fn list_id(&self, visibility: Visibility, filters: &str) -> ListId {
        let tenant = match visibility {
            Visibility::All => OPERATOR,
            Visibility::Tenant(tenant) => tenant,
        };
        let hash = self.lookup.hash("list", tenant.raw(), filters.as_bytes());
        ListId(u32::from_be_bytes([0, hash[0], hash[1], hash[2]]))
    }

    /// The public text of a cursor in a list; `None` if the time or the number is out of range.
    pub fn cursor(&self, list: ListId, at: Timestamp, number: u64) -> Option<String> {
        let at = u64::try_from(at.as_millis()).ok().filter(|at| *at <= TIME_MS_MAX)?;
        (number <= SEQ_MAX).then(|| self.ids.mint(IdKind::Cursor, list.0, number, at))
    }

    /// The time and number in a cursor, if it is one of this list.
    pub fn open_cursor(&self, list: ListId, text: &str) -> Option<(Timestamp, u64)> {
        let opened = self.ids.open(text).filter(|opened| opened.kind == IdKind::Cursor && opened.writer == list.0)?;
        Some((Timestamp::from_millis(i64::try_from(opened.time_ms).ok()?), opened.seq))
    }

    /// The cursor after this key, in a list that is ordered by keys.
    pub fn cursor_behind(&self, list: ListId, key: Key) -> String {
        self.ids.mint(IdKind::Cursor, list.0, key.seq(), key.writer().number().into())
    }

    /// The key in a cursor of [`Engine::cursor_behind`], if it is one of this list.
    pub fn open_cursor_behind(&self, list: ListId, text: &str) -> Option<Key> {
        let (writer, seq) = self.open_cursor(list, text)?;
        let writer = u32::try_from(writer.as_millis()).ok().and_then(WriterId::new)?;
        Some(Key::new(writer, seq))
    }

    pub async fn messages(
        &self,
        filter: MessageFilter,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<MessagePage, StoreError> {
        self.store.messages(filter, order, after, limit).await
    }

    /// A page of the deliveries that match, by id, and the id after which the next page begins.
    pub async fn deliveries(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
    ) -> Result<(Vec<ExplainedDelivery>, Option<DeliveryId>), NotDone> {
        let page = self.store.history(filter, order, after, limit, self.clock.now()).await?;
        let mut views = Vec::with_capacity(page.deliveries.len());
        for shown in page.deliveries {
            views.push(self.view(shown).await?);
        }
        Ok((views, page.next))
    }

    /// The beginnings of receivers' answers to a delivery's attempts, by the attempt's number.
    pub async fn excerpts(&self, id: DeliveryId) -> Result<Vec<(u16, Bytes)>, StoreError> {
        self.store.excerpts(id).await
    }

    /// When these messages were accepted; `None` for one that is no longer kept. Public ids of messages and deliveries
    /// contain that time.
    pub async fn accepted_at(&self, messages: Vec<MessageId>) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.store.accepted_at(messages).await
    }
}
