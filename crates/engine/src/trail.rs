//! The audit trail: the journal's rows as a list, from either end.

use std::sync::Arc;

use posthaste_core::{EndpointId, Key, LaneId, TenantId, Timestamp};
use posthaste_store::{DocumentKind, Endpoint, JournalRow, ListOrder, Store, StoreError};

use crate::{Clock, Engine};

/// A part of the journal, by the times of its rows, which never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrailRange {
    /// Rows written at this time or later.
    pub since: Option<Timestamp>,
    /// Rows written before this time.
    pub until: Option<Timestamp>,
}

impl TrailRange {
    fn has(&self, row: &JournalRow) -> bool {
        self.since.is_none_or(|since| row.at >= since) && self.until.is_none_or(|until| row.at < until)
    }
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// A page of the rows of a part of the journal. It begins with the row `from`, or without it at the beginning of
    /// the part, which for [`ListOrder::NewestFirst`] is its last row. A page with fewer rows than `limit` is the last.
    pub async fn trail(
        &self,
        span: TrailRange,
        order: ListOrder,
        from: Option<u64>,
        limit: u32,
    ) -> Result<Vec<JournalRow>, StoreError> {
        let mut rows = match order {
            ListOrder::OldestFirst => {
                let before = match (from, span.since) {
                    (Some(from), _) => from.saturating_sub(1),
                    (None, Some(since)) => self.last_row(|row| row.at < since).await?,
                    (None, None) => 0,
                };
                self.store.journal(before, limit).await?
            }
            ListOrder::NewestFirst => {
                let last = match from {
                    Some(from) => from,
                    None => self.last_row(|row| span.until.is_none_or(|until| row.at < until)).await?,
                };
                let mut rows = self.store.journal(last.saturating_sub(u64::from(limit)), limit).await?;
                rows.retain(|row| row.number <= last);
                rows.reverse();
                rows
            }
        };
        rows.retain(|row| span.has(row));
        Ok(rows)
    }

    pub async fn owner(&self, endpoint: EndpointId) -> Result<Option<TenantId>, StoreError> {
        Ok(self.store.endpoint(endpoint).await?.map(|endpoint| endpoint.tenant))
    }

    pub async fn endpoint_of_lane(&self, lane: LaneId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        self.store.endpoint_of_lane(lane).await
    }

    pub async fn policy_name(&self, id: Key) -> Result<Option<String>, StoreError> {
        Ok(self.store.document(DocumentKind::Policy, id).await?.and_then(|policy| policy.name))
    }

    /// The number of the last row for which `is_so` holds, if it holds for all rows before it; 0 if not for the first.
    /// An exponential search followed by a binary search: about fifty reads for a journal of any length.
    async fn last_row(&self, is_so: impl Fn(&JournalRow) -> bool) -> Result<u64, StoreError> {
        let behind = async |number| {
            let row = self.store.journal(number, 1).await?.pop();
            Ok::<_, StoreError>(row.filter(&is_so).map(|row| row.number))
        };
        let (mut there, mut step) = (0, 1);
        while let Some(row) = behind(there + step).await? {
            (there, step) = (row, step * 2);
        }
        let mut none_behind = there + step;
        while there < none_behind {
            let middle = there + (none_behind - there) / 2;
            match behind(middle).await? {
                Some(row) => there = row,
                None => none_behind = middle,
            }
        }
        Ok(there)
    }
}
