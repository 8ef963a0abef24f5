//! Counts of attempts, deaths and trips in the last 24 hours, by the hour.
//!
//! Invariant: an hour is cleared before it is counted in again.

use crate::Timestamp;

const HOUR_MS: i64 = 3_600_000;

/// The current hour and the 24 before it, so that no count is dropped within a day.
const HOURS: usize = 25;

/// The counts of one hour. They saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HourCounts {
    /// Attempts whose outcome concerns the endpoint.
    pub(super) tried: u32,
    pub(super) taken: u32,
    /// Deliveries that died by the endpoint's fault.
    pub(super) ended: u16,
    /// How often the endpoint's breaker opened.
    pub(super) trips: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) tried: u64,
    pub(super) taken: u64,
    pub(super) ended: u64,
    pub(super) trips: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DayCounts {
    hours: [HourCounts; HOURS],
    /// The latest hour, in hours since the epoch.
    latest: i64,
}

impl DayCounts {
    pub(super) fn hour(&mut self, now: Timestamp) -> &mut HourCounts {
        self.turn_to(now);
        &mut self.hours[place(self.latest)]
    }

    /// The sum over the last day.
    pub(super) fn total(&self, now: Timestamp) -> Total {
        let mut day = self.clone();
        day.turn_to(now);
        day.hours.iter().fold(Total::default(), |sum, hour| Total {
            tried: sum.tried + u64::from(hour.tried),
            taken: sum.taken + u64::from(hour.taken),
            ended: sum.ended + u64::from(hour.ended),
            trips: sum.trips + u64::from(hour.trips),
        })
    }

    /// Clears the hours that passed. If the clock was set back by less than a day, the latest hour lasts
    /// longer; if by more, everything is cleared, since the age of the counts is unknown.
    fn turn_to(&mut self, now: Timestamp) {
        let hour = now.as_millis().div_euclid(HOUR_MS);
        if hour.abs_diff(self.latest) >= HOURS as u64 {
            *self = Self { latest: hour, ..Self::default() };
        }
        while self.latest < hour {
            self.latest += 1;
            self.hours[place(self.latest)] = HourCounts::default();
        }
    }
}

fn place(hour: i64) -> usize {
    usize::try_from(hour.rem_euclid(HOURS as i64)).expect("below the number of hours kept")
}
