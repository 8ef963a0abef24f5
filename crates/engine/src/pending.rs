//! How many deliveries of a tenant are pending, as far as a quota needs to know it.
//!
//! Invariant: of what messages become, what is kept in memory is never less than there is. It is what was counted last,
//! what was stored since the count began, and what is on its way to the store. What ended since, and what jobs have made,
//! is known when somebody counts again: nobody is refused by what was counted before they asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use posthaste_core::id::TenantId;
use posthaste_store::{Counted, Hour, Store, StoreError, Tally};

use crate::accept::NotAccepted;
use crate::clock::Clock;
use crate::engine::Engine;

/// What is known of the tenants whose pending deliveries are limited.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<HashMap<TenantId, Arc<Known>>>);

/// What is known of one.
#[derive(Debug, Default)]
struct Known {
    at_most: Mutex<AtMost>,
    /// Held by who counts: the others wait for it, and use what it finds if it began after they asked.
    counting: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct AtMost {
    /// Nothing before the first count.
    counted: Option<u64>,
    /// How many counts began.
    counts: u64,
    /// Made durable since the last count began.
    stored: u64,
    /// On their way to the store.
    under_way: u64,
}

/// There is no room: so many are pending, as far as so many counts tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full {
    pending: u64,
    counts: u64,
}

impl Pending {
    fn of(&self, tenant: TenantId) -> Arc<Known> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(tenant).or_default())
    }

    /// Forgets a tenant: it has another quota, or is no more.
    pub(crate) fn forget(&self, tenant: TenantId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tenant);
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, AtMost> {
        self.at_most.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for so many deliveries of one message, if fewer than `most` are pending.
    fn take(self: &Arc<Self>, most: u64, deliveries: u64) -> Result<Room, Full> {
        let mut known = self.lock();
        let uncounted = known.stored.saturating_add(known.under_way);
        match known.counted.map(|counted| counted.saturating_add(uncounted)) {
            Some(pending) if pending < most => {
                known.under_way = known.under_way.saturating_add(deliveries);
                Ok(Room { of: Arc::clone(self), deliveries })
            }
            pending => Err(Full { pending: pending.unwrap_or(uncounted), counts: known.counts }),
        }
    }

    /// Somebody begins to count: what was stored before is in it.
    fn begin(&self) -> u64 {
        let mut known = self.lock();
        known.counts += 1;
        known.stored
    }

    /// So many were counted, by somebody who began when so many had been stored.
    fn counted(&self, counted: u64, before: u64) {
        let mut known = self.lock();
        known.counted = Some(counted);
        known.stored = known.stored.saturating_sub(before);
    }
}

/// Room for a message's deliveries, while they are on their way to the store.
#[derive(Debug)]
pub(crate) struct Room {
    of: Arc<Known>,
    deliveries: u64,
}

impl Drop for Room {
    /// They are stored. Where they were refused instead, the next count tells.
    fn drop(&mut self) {
        let mut known = self.of.lock();
        known.under_way = known.under_way.saturating_sub(self.deliveries);
        known.stored = known.stored.saturating_add(self.deliveries);
    }
}

/// Whether somebody has had a tenant's deliveries counted: for messages that come together, that is done once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Looked {
    #[default]
    Never,
    Once,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Makes room for a message that becomes so many deliveries, if fewer than `most` of its tenant's are pending.
    pub(crate) async fn take_room(
        &self,
        tenant: TenantId,
        most: u64,
        deliveries: usize,
        looked: &mut Looked,
    ) -> Result<Room, NotAccepted> {
        let known = self.pending.of(tenant);
        let mut room = known.take(most, deliveries as u64);
        if let Err(Full { counts, .. }) = room
            && *looked == Looked::Never
        {
            *looked = Looked::Once;
            // Boxed, as it is rare: every request that is accepted holds room for what it may wait for.
            Box::pin(self.count_pending(tenant, &known, counts)).await?;
            room = known.take(most, deliveries as u64);
        }
        room.map_err(|full| NotAccepted::NoRoom { pending: full.pending })
    }

    /// Counts what is pending, unless a count has begun since so many had.
    async fn count_pending(&self, tenant: TenantId, known: &Known, since: u64) -> Result<(), StoreError> {
        let _turn = known.counting.lock().await;
        if known.lock().counts != since {
            return Ok(());
        }
        let before = known.begin();
        // What ends in the last hour that anybody can know of is in it.
        let until = Hour(Hour::of(self.clock.now()).0.saturating_add(2));
        let tallies = self.store.tallies(tenant, Hour(0), until).await?;
        known.counted(pending(&tallies), before);
        Ok(())
    }
}

/// What was made and has not ended.
fn pending(tallies: &[Tally]) -> u64 {
    let mut pending: i128 = 0;
    for tally in tallies {
        let count = i128::from(tally.count);
        match tally.counted {
            Counted::Deliveries => pending += count,
            Counted::Delivered | Counted::Dead | Counted::Expired | Counted::Cancelled => pending -= count,
            Counted::Messages | Counted::Attempts => {}
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
    fn what_is_known_is_never_less_than_there_is() {
        let known = Pending::default().of(TENANT);
        assert_eq!(full(&known, 5), Some(0), "nobody has counted");
        count(&known, 2);
        let two = known.take(5, 2).expect("room");
        count(&known, 2);
        assert_eq!(full(&known, 4), Some(4), "they are on their way, and nobody can have counted them");
        drop(two);
        assert_eq!(full(&known, 4), Some(4), "they are stored, and were not counted");
        // Somebody counts, and meanwhile three more are stored, of which one was counted.
        let before = known.begin();
        drop(known.take(5, 3).expect("room"));
        known.counted(5, before);
        assert_eq!(full(&known, 8), Some(8));
        count(&known, 7);
        assert_eq!(full(&known, 8), None);
    }

    #[test]
    fn a_message_for_nobody_takes_no_room() {
        let known = Pending::default().of(TENANT);
        count(&known, 0);
        let rooms: Vec<_> = (0..5).map(|_| known.take(1, 0).expect("room")).collect();
        drop(rooms);
        let _one = known.take(1, 1).expect("room");
        assert_eq!(full(&known, 1), Some(1));
    }

    #[test]
    fn what_has_ended_is_not_pending() {
        let tally = |counted, count| Tally { tenant: TENANT, hour: Hour(1), counted, count };
        let some = [
            tally(Counted::Messages, 5),
            tally(Counted::Deliveries, 10),
            tally(Counted::Attempts, 20),
            tally(Counted::Delivered, 3),
            tally(Counted::Dead, 1),
            tally(Counted::Expired, 1),
            tally(Counted::Cancelled, 1),
        ];
        assert_eq!(pending(&some), 4);
        assert_eq!(pending(&some[3..]), 0);
    }
}
