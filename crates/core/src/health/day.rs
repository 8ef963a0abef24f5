//! What happened in the last 24 hours, counted by the hour: older evidence fades by itself.

use crate::time::Timestamp;

const HOUR_MS: i64 = 3_600_000;

/// The hour that has begun and the 24 before it: nothing younger than a day is forgotten.
const HOURS: usize = 25;

/// What happened in one hour. Counts saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hour {
    /// Attempts that say something of the endpoint.
    pub(super) tried: u32,
    /// Those of them that succeeded.
    pub(super) taken: u32,
    /// Deliveries that ended dead by the endpoint's fault.
    pub(super) ended: u16,
    /// Times its breaker opened.
    pub(super) trips: u16,
}

/// The same, of a whole day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) tried: u64,
    pub(super) taken: u64,
    pub(super) ended: u64,
    pub(super) trips: u64,
}

/// A ring of hours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Day {
    hours: [Hour; HOURS],
    /// The latest hour there is, since the epoch.
    latest: i64,
}

impl Day {
    /// The hour to count in.
    pub(super) fn hour(&mut self, now: Timestamp) -> &mut Hour {
        self.turn_to(now);
        &mut self.hours[place(self.latest)]
    }

    /// The sum of all hours that are still of the last day.
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

    /// Clears the hours that passed. When the clock went back a little, the latest hour lasts
    /// longer; when it went back by more than a day, nothing here has a known age.
    fn turn_to(&mut self, now: Timestamp) {
        let hour = now.as_millis().div_euclid(HOUR_MS);
        if hour.abs_diff(self.latest) >= HOURS as u64 {
            *self = Self { latest: hour, ..Self::default() };
        }
        while self.latest < hour {
            self.latest += 1;
            self.hours[place(self.latest)] = Hour::default();
        }
    }
}

fn place(hour: i64) -> usize {
    usize::try_from(hour.rem_euclid(HOURS as i64)).expect("below the number of hours kept")
}
