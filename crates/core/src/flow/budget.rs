//! The retry budget of a destination: retries stay a small part of its traffic (C7).
//!
//! Every first attempt earns a fifth of a retry and every second a whole one; unused ones are saved
//! up to a minute's worth. So retries add little more than a fifth to the load of a failing destination, and do not
//! prevent its recovery. A retry over the budget waits; it is neither dropped nor counted.
//!
//! A budget is a [`Bucket`] of one retry a second that first attempts also fill; the bucket's rules for a clock
//! that is set apply.

use super::bucket::{Bucket, ONE, Rate};
use crate::Timestamp;

/// What time alone earns. At most a minute's worth is saved: more would be a burst of retries when a destination fails
/// after a long idle time.
const TIME: Rate = Rate::per_second(1).with_burst(60);

/// What a first attempt earns: 20 % of a retry.
const FIRST_TRY: u64 = ONE / 5;

/// The retries of a new destination.
const AT_FIRST: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    saved: Bucket,
}

impl RetryBudget {
    pub const fn new(now: Timestamp) -> Self {
        Self { saved: Bucket::holding(AT_FIRST, now) }
    }

    /// Notes a first attempt, which earns a part of a retry.
    pub fn first_try(&mut self, now: Timestamp) {
        self.saved.catch_up(&TIME, now);
        self.saved.earn(&TIME, FIRST_TRY);
    }

    /// Takes a retry, or returns when there is one if no first attempt earns it earlier.
    pub fn take(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        self.saved.take(&TIME, now)
    }

    /// When there is a retry if no first attempt earns it earlier; `None` if there is one now. After the
    /// clock was set back, [`RetryBudget::catch_up`] must be called first.
    pub fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.saved.next_at(&TIME, now)
    }

    /// Adds the retries that time has earned until `now`.
    pub fn catch_up(&mut self, now: Timestamp) {
        self.saved.catch_up(&TIME, now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn take_all(budget: &mut RetryBudget, now: i64) -> usize {
        (0..).take_while(|_| budget.take(at(now)).is_ok()).count()
    }

    #[test]
    fn a_new_destination_has_ten_retries_and_then_one_a_second() {
        let mut budget = RetryBudget::new(at(0));
        assert_eq!(take_all(&mut budget, 0), 10);
        assert_eq!(budget.take(at(0)), Err(at(1_000)));
        assert_eq!(budget.next_at(at(400)), Some(at(1_000)));
        assert_eq!(take_all(&mut budget, 5_000), 5);
    }

    #[test]
    fn five_first_attempts_earn_a_retry() {
        let mut budget = RetryBudget::new(at(0));
        take_all(&mut budget, 0);
        (0..4).for_each(|_| budget.first_try(at(0)));
        assert_eq!(budget.take(at(0)), Err(at(200)), "a fifth is missing, which is 200 ms");
        budget.first_try(at(0));
        assert_eq!(take_all(&mut budget, 0), 1);
    }

    #[test]
    fn at_most_sixty_retries_are_saved() {
        let mut budget = RetryBudget::new(at(0));
        (0..10_000).for_each(|_| budget.first_try(at(0)));
        assert_eq!(take_all(&mut budget.clone(), 0), 60);
        assert_eq!(take_all(&mut budget, i64::MAX), 60);
    }

    #[test]
    fn a_clock_set_back_adds_nothing_and_does_not_stop_the_budget() {
        let mut budget = RetryBudget::new(at(3_600_000));
        take_all(&mut budget, 3_600_000);
        assert_eq!(budget.take(at(500)), Err(at(1_500)));
        assert_eq!(take_all(&mut budget, 1_500), 1);
    }

    proptest! {
        #[test]
        fn retries_never_exceed_a_fifth_of_first_attempts_and_one_a_second(
            moments in prop::collection::vec((0..3_000i64, 0..40u32), 1..100),
        ) {
            let mut budget = RetryBudget::new(at(0));
            let (mut now, mut first_tries, mut retries) = (0, 0, 0);
            for (gap, tries) in moments {
                now += gap;
                (0..tries).for_each(|_| budget.first_try(at(now)));
                first_tries += usize::try_from(tries).expect("below 40");
                retries += take_all(&mut budget, now);
                let seconds = f64::from(u32::try_from(now).expect("within hours")) / 1e3;
                prop_assert!(retries as f64 <= 10.0 + 0.2 * first_tries as f64 + seconds + 1e-6);
            }
        }
    }
}
