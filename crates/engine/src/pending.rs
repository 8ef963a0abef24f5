//! Upper bounds of the number of pending deliveries, for tenants with a quota.
//!
//! Invariant: the bound in memory is never less than the number of pending deliveries that messages made. It is the sum
//! of the last count, what was stored since that count began, and what is on its way to the store. Deliveries that
//! ended since, and those that jobs made, are only known after the next count: a message is refused only by a count
//! that began after its request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use posthaste_core::TenantId;
use posthaste_store::{CountedEvent, HourlyCount, Store, StoreError, UtcHour};

use crate::{Clock, Engine, NotAccepted};

/// The bounds of the tenants whose pending deliveries are limited.
#[derive(Debug, Default)]
pub(crate) struct PendingBounds(Mutex<HashMap<TenantId, Arc<Known>>>);

/// The bound of one tenant.
#[derive(Debug, Default)]
struct Known {
    at_most: Mutex<AtMost>,
    /// Held by the request that counts. Others wait for it, and use its result if the count began after their check.
    counting: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct AtMost {
    /// The result of the last count; `None` before the first.
    counted: Option<u64>,
    counts: u64,
    /// Deliveries made durable since the last count began.
    stored: u64,
    /// Deliveries on their way to the store.
    under_way: u64,
}

/// The quota is used up: how many deliveries are pending, and the number of counts that this is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full {
    pending: u64,
    counts: u64,
}

impl PendingBounds {
    fn of(&self, tenant: TenantId) -> Arc<Known> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(tenant).or_default())
    }

    /// Evicts a tenant, because its quota has changed or it was erased.
    pub(crate) fn forget(&self, tenant: TenantId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tenant);
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, AtMost> {
        self.at_most.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for the deliveries of one message, if fewer than `most` are pending.
    fn take(self: &Arc<Self>, most: u64, deliveries: u64) -> Result<QuotaReservation, Full> {
        let mut known = self.lock();
        let uncounted = known.stored.saturating_add(known.under_way);
        match known.counted.map(|counted| counted.saturating_add(uncounted)) {
            Some(pending) if pending < most => {
                known.under_way = known.under_way.saturating_add(deliveries);
                Ok(QuotaReservation { of: Arc::clone(self), deliveries })
            }
            pending => Err(Full { pending: pending.unwrap_or(uncounted), counts: known.counts }),
        }
    }

    /// Begins a count, which includes everything stored before; returns how much that is.
    fn begin(&self) -> u64 {
        let mut known = self.lock();
        known.counts += 1;
        known.stored
    }

    /// Ends a count: its result, and what [`Known::begin`] returned.
    fn counted(&self, counted: u64, before: u64) {
        let mut known = self.lock();
        known.counted = Some(counted);
        known.stored = known.stored.saturating_sub(before);
    }
}

/// Reserved room for a message's deliveries, while they are on their way to the store.
#[derive(Debug)]
pub(crate) struct QuotaReservation {
    of: Arc<Known>,
    deliveries: u64,
}

impl Drop for QuotaReservation {
    /// Counts the deliveries as stored. If they were refused instead, the next count corrects it.
    fn drop(&mut self) {
        let mut known = self.of.lock();
        known.under_way = known.under_way.saturating_sub(self.deliveries);
        known.stored = known.stored.saturating_add(self.deliveries);
    }
}

/// Whether a batch has had its tenant's deliveries counted, which it does at most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Looked {
    #[default]
    Never,
    Once,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Reserves room for a message's deliveries, if fewer than `most` of its tenant's are pending.
    pub(crate) async fn take_room(
        &self,
        tenant: TenantId,
        most: u64,
        deliveries: usize,
        looked: &mut Looked,
    ) -> Result<QuotaReservation, NotAccepted> {
        let known = self.pending.of(tenant);
        let mut room = known.take(most, deliveries as u64);
        if let Err(Full { counts, .. }) = room
            && *looked == Looked::Never
        {
            *looked = Looked::Once;
            // Boxed because it is rare: its state would make the future of every accept larger.
            Box::pin(self.count_pending(tenant, &known, counts)).await?;
            room = known.take(most, deliveries as u64);
        }
        room.map_err(|full| NotAccepted::NoRoom { pending: full.pending })
    }

    /// Counts the pending deliveries, unless another count began after number `since`.
    async fn count_pending(&self, tenant: TenantId, known: &Known, since: u64) -> Result<(), StoreError> {
        let _turn = known.counting.lock().await;
        if known.lock().counts != since {
            return Ok(());
        }
        let before = known.begin();
        // Two hours beyond the current one, so that no tally is missed.
        let until = UtcHour(UtcHour::of(self.clock.now()).0.saturating_add(2));
        let tallies = self.store.tallies(tenant, UtcHour(0), until).await?;
        known.counted(pending(&tallies), before);
        Ok(())
    }
}

/// The number of deliveries that were made and have not ended.
fn pending(tallies: &[HourlyCount]) -> u64 {
    let mut pending: i128 = 0;
    for tally in tallies {
        let count = i128::from(tally.count);
        match tally.counted {
            CountedEvent::Deliveries => pending += count,
            CountedEvent::Delivered | CountedEvent::Dead | CountedEvent::Expired | CountedEvent::Cancelled => {
                pending -= count;
            }
            CountedEvent::Messages | CountedEvent::Attempts => {}
        }
    }
    u64::try_from(pending.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId::from_raw(1);

    fn full(known: &Arc<Known>, most: u64) -> Option<u64> {
        known.take(most, 0).err().map(|full| full.pending)
    }

    fn count(known: &Known, counted: u64) {
        let before = known.begin();
        known.counted(counted, before);
    }

    #[test]
    fn pending_bound_is_never_below_the_true_count() {
        let known = PendingBounds::default().of(TENANT);
        assert_eq!(full(&known, 5), Some(0), "there was no count yet");
        count(&known, 2);
        let two = known.take(5, 2).expect("room");
        count(&known, 2);
        assert_eq!(full(&known, 4), Some(4), "they are on their way, and not in the count");
        drop(two);
        assert_eq!(full(&known, 4), Some(4), "they are stored, and were not counted");
        // During a count three more are stored, and the count includes one of them.
        let before = known.begin();
        drop(known.take(5, 3).expect("room"));
        known.counted(5, before);
        assert_eq!(full(&known, 8), Some(8));
        count(&known, 7);
        assert_eq!(full(&known, 8), None);
    }

    #[test]
    fn message_without_recipients_takes_no_room() {
        let known = PendingBounds::default().of(TENANT);
        count(&known, 0);
        let rooms: Vec<_> = (0..5).map(|_| known.take(1, 0).expect("room")).collect();
        drop(rooms);
        let _one = known.take(1, 1).expect("room");
        assert_eq!(full(&known, 1), Some(1));
    }

    #[test]
    fn ended_deliveries_are_not_pending() {
        let tally = |counted, count| HourlyCount { tenant: TENANT, hour: UtcHour(1), counted, count };
        let some = [
            tally(CountedEvent::Messages, 5),
            tally(CountedEvent::Deliveries, 10),
            tally(CountedEvent::Attempts, 20),
            tally(CountedEvent::Delivered, 3),
            tally(CountedEvent::Dead, 1),
            tally(CountedEvent::Expired, 1),
            tally(CountedEvent::Cancelled, 1),
        ];
        assert_eq!(pending(&some), 4);
        assert_eq!(pending(&some[3..]), 0);
    }
}
