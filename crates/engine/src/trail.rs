//! The audit trail, read as a list: the journal's rows, from either end.

use posthaste_core::id::MessageId;
use posthaste_core::time::Timestamp;
use posthaste_store::{JournalRow, ListOrder, Store, StoreError};

use crate::clock::Clock;
use crate::engine::Engine;

impl<S: Store, C: Clock> Engine<S, C> {
    /// Rows of the journal from this one on, itself included; from the end of the list where none is said.
    pub async fn trail(&self, order: ListOrder, from: Option<u64>, limit: u32) -> Result<Vec<JournalRow>, StoreError> {
        match (order, from) {
            (ListOrder::OldestFirst, from) => self.store.journal(from.unwrap_or(1).saturating_sub(1), limit).await,
            (ListOrder::NewestFirst, from) => {
                let last = match from {
                    Some(from) => from,
                    None => self.last_row().await?,
                };
                let mut rows = self.store.journal(last.saturating_sub(u64::from(limit)), limit).await?;
                rows.retain(|row| row.number <= last);
                rows.reverse();
                Ok(rows)
            }
        }
    }

    /// When these messages were accepted, as far as they are kept.
    pub async fn times_of(&self, messages: Vec<MessageId>) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.store.accepted_at(messages).await
    }

    /// The number of the journal's last row. The journal is read forwards: twice as far each time, then halfway
    /// between what is there and what is not; some fifty reads however long it is.
    async fn last_row(&self) -> Result<u64, StoreError> {
        let (mut there, mut step) = (0, 1);
        while let Some(row) = self.behind(there + step).await? {
            (there, step) = (row, step * 2);
        }
        let mut none_behind = there + step;
        while there < none_behind {
            let middle = there + (none_behind - there) / 2;
            match self.behind(middle).await? {
                Some(row) => there = row,
                None => none_behind = middle,
            }
        }
        Ok(there)
    }

    /// The first row behind this number.
    async fn behind(&self, number: u64) -> Result<Option<u64>, StoreError> {
        Ok(self.store.journal(number, 1).await?.first().map(|row| row.number))
    }
}
