//! Delayed rows: which of them to read next, and when.
//!
//! A cursor over (due, id) moves forward with each page. Rows are not committed in that order, so a
//! notice of a committed row at or before the cursor moves it back: no row is skipped.

use posthaste_core::scheduler::HORIZON;
use posthaste_core::{DeliveryId, Timestamp};
use posthaste_store::{PendingPage, Query};

pub(super) const PAGE: u32 = 1_000;

#[derive(Debug)]
pub(super) struct DelayedCursor {
    after: Option<(Timestamp, DeliveryId)>,
    look_at: Timestamp,
    paging: bool,
    /// The lowest row whose commit was noticed while a page was being read.
    noticed: Option<(Timestamp, DeliveryId)>,
}

impl Default for DelayedCursor {
    fn default() -> Self {
        Self { after: None, look_at: Timestamp::MAX, paging: false, noticed: None }
    }
}

impl DelayedCursor {
    /// A delayed row is in the store and not in the window.
    pub(super) fn notice(&mut self, due: Timestamp, id: DeliveryId) {
        self.look_at = self.look_at.min(due - HORIZON);
        if self.paging {
            let lowest = self.noticed.map_or((due, id), |lowest| lowest.min((due, id)));
            self.noticed = Some(lowest);
        } else {
            self.go_back_to(due, id);
        }
    }

    /// Begins with a first page at this time.
    pub(super) fn start(&mut self, now: Timestamp) {
        self.look_at = now;
    }

    /// When the next page should be read.
    pub(super) fn look_at(&self) -> Option<Timestamp> {
        (!self.paging && self.look_at < Timestamp::MAX).then_some(self.look_at)
    }

    pub(super) fn next(&mut self, now: Timestamp) -> Option<Query> {
        if self.look_at()? > now {
            return None;
        }
        self.look_at = Timestamp::MAX;
        self.paging = true;
        Some(Query::Delayed { after: self.after, until: now + HORIZON })
    }

    /// A page was read: moves the cursor and sets the time of the next page.
    pub(super) fn paged(&mut self, now: Timestamp, page: &PendingPage) {
        self.paging = false;
        if let Some(last) = page.rows.last() {
            self.after = Some((last.delivery.state.due().unwrap_or(now), last.delivery.id));
        }
        if let Some((due, id)) = self.noticed.take() {
            self.go_back_to(due, id);
        }
        let next = if page.more { Some(now) } else { page.next_due.map(|due| due - HORIZON) };
        if let Some(next) = next {
            self.look_at = self.look_at.min(next);
        }
    }

    fn go_back_to(&mut self, due: Timestamp, id: DeliveryId) {
        if self.after.is_some_and(|after| (due, id) <= after) {
            self.after = Some((due, DeliveryId::from_raw(id.raw().saturating_sub(1))));
        }
    }
}
