//! The retry budget of a destination: retries are a small part of its traffic (C7).
//!
//! Every first try earns a fifth of a retry and every second a whole one; what is not used is saved
//! up to a minute's worth. A destination that fails is so asked at most a fifth more often than it
//! would be anyway: retries do not keep down what they wait for. A retry without budget waits; it is
//! neither dropped nor counted.
//!
//! A budget is a [`Bucket`] of one a second that first tries fill too, with its rules for a clock
//! that is set.

use super::bucket::{Bucket, ONE, Rate};
use crate::time::Timestamp;

/// What time alone earns. More saved than a minute's worth would be a storm when a long quiet
/// destination fails.
const TIME: Rate = Rate::per_second(1).with_burst(60);

/// What a first try earns: 20 %.
const FIRST_TRY: u64 = ONE / 5;

/// A destination nobody knows yet may stumble without waiting.
const AT_FIRST: u32 = 10;

/// How many retries a destination may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    saved: Bucket,
}

impl Budget {
    /// The budget of a destination nothing is known of.
    pub const fn new(now: Timestamp) -> Self {
        Self { saved: Bucket::holding(AT_FIRST, now) }
    }

    /// A first try is made.
    pub fn first_try(&mut self, now: Timestamp) {
        self.saved.catch_up(&TIME, now);
        self.saved.earn(&TIME, FIRST_TRY);
    }

    /// Takes a retry, or says when there is one if no first try comes before.
    pub fn take(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        self.saved.take(&TIME, now)
    }

    /// When there is a retry if no first try comes before; `None` when there is one now. After a
    /// clock was set back, right once [`Budget::catch_up`] was called.
    pub fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.saved.next_at(&TIME, now)
    }

    /// Adds what time has earned until `now`.
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

    fn take_all(budget: &mut Budget, now: i64) -> usize {
        (0..).take_while(|_| budget.take(at(now)).is_ok()).count()
    }

    #[test]
    fn an_unknown_destination_has_ten_retries_and_then_one_a_second() {
        let mut budget = Budget::new(at(0));
        assert_eq!(take_all(&mut budget, 0), 10);
        assert_eq!(budget.take(at(0)), Err(at(1_000)));
        assert_eq!(budget.next_at(at(400)), Some(at(1_000)));
        assert_eq!(take_all(&mut budget, 5_000), 5);
    }

    #[test]
    fn five_first_tries_earn_a_retry() {
        let mut budget = Budget::new(at(0));
        take_all(&mut budget, 0);
        (0..4).for_each(|_| budget.first_try(at(0)));
        assert_eq!(budget.take(at(0)), Err(at(200)), "a fifth is missing, which is 200 ms");
        budget.first_try(at(0));
        assert_eq!(take_all(&mut budget, 0), 1);
    }

    #[test]
    fn no_more_than_sixty_are_saved() {
        let mut budget = Budget::new(at(0));
        (0..10_000).for_each(|_| budget.first_try(at(0)));
        assert_eq!(take_all(&mut budget.clone(), 0), 60);
        assert_eq!(take_all(&mut budget, i64::MAX), 60);
    }

    #[test]
    fn a_clock_set_back_adds_nothing_and_does_not_stop_the_budget() {
        let mut budget = Budget::new(at(3_600_000));
        take_all(&mut budget, 3_600_000);
        assert_eq!(budget.take(at(500)), Err(at(1_500)));
        assert_eq!(take_all(&mut budget, 1_500), 1);
    }

    proptest! {
        #[test]
        fn retries_never_exceed_a_fifth_of_first_tries_and_one_a_second(
            moments in prop::collection::vec((0..3_000i64, 0..40u32), 1..100),
        ) {
            let mut budget = Budget::new(at(0));
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
