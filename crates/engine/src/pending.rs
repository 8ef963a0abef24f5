//! How many deliveries of a tenant are pending, as far as a quota needs to know it.
//!
//! Invariant: what is kept in memory is never less than there is. It is what was counted last and everything that was
//! taken in since; what ended since is left out until somebody counts again, which is when there seems to be no room.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use posthaste_core::id::TenantId;
use posthaste_core::time::Timestamp;
use posthaste_store::{Counted, Hour, Store, StoreError, Tally};

use crate::clock::Clock;
use crate::engine::Engine;
use crate::tenants::Tenant;

/// Counting reads a row for every hour in which something happened: no more often than this.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// What is known of the tenants whose pending deliveries are limited.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<HashMap<TenantId, AtMost>>);

#[derive(Clone, Copy, Debug, Default)]
struct AtMost {
    counted: u64,
    /// When, and how many had been taken in before.
    at: Option<(Timestamp, u64)>,
    /// Taken in since anybody looks.
    taken: u64,
}

/// Whether there is room for one more message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// There is.
    Some,
    /// There is none: so many are pending.
    None(u64),
    /// Nobody can say before they are counted. So many had been taken in before.
    Count(u64),
}

impl AtMost {
    fn pending(&self) -> u64 {
        self.counted.saturating_add(self.taken.saturating_sub(self.at.map_or(0, |(_, taken)| taken)))
    }
}

impl Pending {
    /// Makes room for a message, if there is some below this many.
    fn take(&self, tenant: TenantId, most: u64, now: Timestamp) -> Room {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(tenant).or_default();
        match known.at {
            Some(_) if known.pending() < most => {
                known.taken += 1;
                Room::Some
            }
            Some((at, _)) if now.since(at) < COUNT_EVERY => Room::None(known.pending()),
            _ => Room::Count(known.taken),
        }
    }

    /// So many were counted, by somebody who began when so many had been taken in.
    fn counted(&self, tenant: TenantId, counted: u64, taken: u64, now: Timestamp) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(tenant).or_default();
        // Another one may have counted later and been quicker.
        if known.at.is_none_or(|(_, before)| before <= taken) {
            (known.counted, known.at) = (counted, Some((now, taken)));
        }
    }

    /// A message becomes so many deliveries; room was made for one.
    pub(crate) fn made(&self, tenant: TenantId, deliveries: usize) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get_mut(&tenant) {
            known.taken += (deliveries as u64).saturating_sub(1);
        }
    }

    /// Forgets a tenant: it has another quota, or is no more.
    pub(crate) fn forget(&self, tenant: TenantId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tenant);
    }
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Makes room for one more message of a tenant; else says how many of its deliveries are pending.
    pub async fn take_room(&self, tenant: &Tenant) -> Result<Result<(), u64>, StoreError> {
        let Some(most) = tenant.terms.pending_max else { return Ok(Ok(())) };
        let now = self.clock.now();
        let mut room = self.pending.take(tenant.id, most, now);
        if let Room::Count(taken) = room {
            // What ends in the last hour that anybody can know of is in it.
            let tallies = self.store.tallies(tenant.id, Hour(0), Hour(Hour::of(now).0.saturating_add(2))).await?;
            self.pending.counted(tenant.id, pending(&tallies), taken, now);
            room = self.pending.take(tenant.id, most, now);
        }
        Ok(match room {
            Room::Some => Ok(()),
            Room::None(pending) | Room::Count(pending) => Err(pending),
        })
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

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn what_is_known_is_never_less_than_there_is() {
        let pending = Pending::default();
        assert_eq!(pending.take(TENANT, 5, at(0)), Room::Count(0));
        pending.counted(TENANT, 2, 0, at(0));
        assert_eq!(pending.take(TENANT, 5, at(10)), Room::Some);
        pending.made(TENANT, 2);
        assert_eq!(pending.take(TENANT, 5, at(20)), Room::Some);
        assert_eq!(pending.take(TENANT, 5, at(30)), Room::None(5));
        assert_eq!(pending.take(TENANT, 5, at(999)), Room::None(5), "counted a moment ago");
        // Somebody counts, and meanwhile two deliveries of another message are taken in.
        assert_eq!(pending.take(TENANT, 5, at(1_000)), Room::Count(3));
        pending.made(TENANT, 3);
        pending.counted(TENANT, 1, 3, at(1_000));
        assert_eq!(pending.take(TENANT, 5, at(1_001)), Room::Some);
        assert_eq!(pending.take(TENANT, 5, at(1_002)), Room::Some);
        assert_eq!(pending.take(TENANT, 5, at(1_003)), Room::None(5));
        pending.forget(TENANT);
        assert_eq!(pending.take(TENANT, 5, at(1_004)), Room::Count(0));
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
