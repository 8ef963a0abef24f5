//! Token buckets for rate limits (F1) and for retry budgets (C7).
//!
//! Every send takes a token; tokens come at the rate, and unused ones are saved up to the burst. Tokens are counted in
//! billionths and time in whole milliseconds, so that a rate of a thousandth of a token a second is exact and nothing
//! is lost to rounding. Invariant: any span of `d` milliseconds, from one send to another and both counted, has fewer
//! than `burst + rate × (d + 1 ms)` sends; at a burst of 1 no sliding second has more sends than the rate.
//!
//! The clock may be set. A jump forward fills the bucket, by at most one burst. A jump back adds
//! nothing, and the time until the next token is counted from the new time on.

use std::time::Duration;

use crate::Timestamp;

/// One token, in billionths.
const ONE: u64 = 1_000_000_000;

/// A rate limit: how many sends a second, and how many at once after an idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In thousandths of a token a second.
    milli: u64,
    /// In billionths of a token.
    burst: u64,
}

impl Rate {
    /// This many sends a second, with the least burst. A rate of 0 allows no send at all.
    pub const fn per_second(count: u32) -> Self {
        Self::milli(count as u64 * 1_000)
    }

    /// This many thousandths of a send a second, with the least burst: 6,500 is 6.5 a second. Limited to the highest
    /// rate of [`Rate::per_second`].
    pub const fn milli(milli: u64) -> Self {
        const MOST: u64 = u32::MAX as u64 * 1_000;
        let milli = if milli < MOST { milli } else { MOST };
        Self { milli, burst: Self::least_burst(milli) }
    }

    /// The same rate with this burst. A burst below the least one is raised to it.
    pub const fn with_burst(self, burst: u32) -> Self {
        let (asked, least) = (burst as u64 * ONE, Self::least_burst(self.milli));
        Self { burst: if asked > least { asked } else { least }, ..self }
    }

    /// One token, or the tokens of two milliseconds: above 500 a second the sender is not woken for each token.
    const fn least_burst(milli: u64) -> u64 {
        let two_millis = milli * 2_000;
        if two_millis > ONE { two_millis } else { ONE }
    }

    /// The billionths of a token that a millisecond adds.
    const fn each_milli(&self) -> u64 {
        self.milli * 1_000
    }

    /// Cuts `saved` to the burst, except for the growth of the millisecond in which the bucket became full: time has no
    /// finer resolution, and without that growth a rate of 499 a second at a burst of 1 would be one send every 3 ms.
    const fn kept(&self, saved: u64) -> u64 {
        if saved > self.burst && saved - self.burst >= self.each_milli() { self.burst } else { saved }
    }
}

/// The saved tokens of a rate limit. Every call takes the rate: if it changes, the tokens stay, cut to the new burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// In billionths of a token, as of `at`.
    saved: u64,
    at: Timestamp,
}

// Lanes, shared gates and tenants have one each.
const _: () = assert!(size_of::<Bucket>() <= 24);

impl Bucket {
    pub const fn full(rate: &Rate, now: Timestamp) -> Self {
        Self { saved: rate.burst, at: now }
    }

    const fn holding(tokens: u32, now: Timestamp) -> Self {
        Self { saved: tokens as u64 * ONE, at: now }
    }

    /// Takes a token, or returns the time of the next one.
    pub fn take(&mut self, rate: &Rate, now: Timestamp) -> Result<(), Timestamp> {
        self.catch_up(rate, now);
        match self.next_at(rate, now) {
            Some(at) => Err(at),
            None => {
                self.saved -= ONE;
                Ok(())
            }
        }
    }

    /// The time of the next token; `None` if there is one now.
    ///
    /// After the clock was set back, the caller must call [`Bucket::catch_up`] first: this call changes nothing and
    /// so cannot move the bucket to the new time.
    pub fn next_at(&self, rate: &Rate, now: Timestamp) -> Option<Timestamp> {
        if rate.milli == 0 {
            return Some(Timestamp::MAX);
        }
        let missing = ONE.saturating_sub(self.saved_by(rate, now));
        (missing > 0).then(|| now + Duration::from_millis(missing.div_ceil(rate.each_milli())))
    }

    pub fn tokens(&self, rate: &Rate, now: Timestamp) -> u64 {
        self.saved_by(rate, now) / ONE
    }

    /// The time until the bucket is full if no token is taken; [`Duration::MAX`] at a rate of 0.
    pub fn full_in(&self, rate: &Rate, now: Timestamp) -> Duration {
        let missing = rate.burst.saturating_sub(self.saved_by(rate, now));
        if rate.milli == 0 { Duration::MAX } else { Duration::from_millis(missing.div_ceil(rate.each_milli())) }
    }

    /// Gives back a token that was taken at `taken` and not used. It is lost if the bucket has moved on since then:
    /// together with the tokens that came in the meantime, a second could have more sends than the rate.
    pub fn give_back(&mut self, rate: &Rate, taken: Timestamp) {
        if self.at == taken {
            self.earn(rate, ONE);
        }
    }

    /// Whether the bucket is full, so that it may be dropped and created anew; always true at a rate of 0.
    pub fn is_full(&self, rate: &Rate, now: Timestamp) -> bool {
        rate.milli == 0 || self.saved_by(rate, now) >= rate.burst
    }

    /// Adds the tokens that came until `now`. To be called with the old rate before a rate changes: otherwise the
    /// time since the last call counts at the new rate.
    pub fn catch_up(&mut self, rate: &Rate, now: Timestamp) {
        self.saved = self.saved_by(rate, now);
        self.at = now;
    }

    fn earn(&mut self, rate: &Rate, billionths: u64) {
        self.saved = rate.kept(self.saved.saturating_add(billionths));
    }

    fn saved_by(&self, rate: &Rate, now: Timestamp) -> u64 {
        // Zero where the clock was set back.
        let passed = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        rate.kept(self.saved.saturating_add(passed.saturating_mul(rate.each_milli())))
    }
}

/// What time alone earns. At most a minute's worth is saved: more would be a burst of retries when a destination fails
/// after a long idle time.
const TIME: Rate = Rate::per_second(1).with_burst(60);

/// What a first attempt earns: 20 % of a retry.
const FIRST_TRY: u64 = ONE / 5;

/// The retries of a new destination.
const AT_FIRST: u32 = 10;

/// The retry budget of a destination: retries stay a small part of its traffic (C7).
///
/// Every first attempt earns a fifth of a retry and every second a whole one; unused ones are saved up to a minute's
/// worth. So retries add little more than a fifth to the load of a failing destination, and do not prevent its recovery.
/// A retry over the budget waits; it is neither dropped nor counted.
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

    const HOUR: i64 = 3_600_000;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// Takes all tokens at this moment, and counts them.
    fn take_all(bucket: &mut Bucket, rate: &Rate, now: i64) -> u64 {
        (0..).take_while(|_| bucket.take(rate, at(now)).is_ok()).count() as u64
    }

    /// Takes all tokens in every millisecond of a span.
    fn take_during(bucket: &mut Bucket, rate: &Rate, span: std::ops::Range<i64>) -> u64 {
        span.map(|now| take_all(bucket, rate, now)).sum()
    }

    #[test]
    fn a_bucket_reports_its_tokens_and_the_time_until_it_is_full() {
        let rate = Rate::per_second(2).with_burst(10);
        let now = Timestamp::from_millis(0);
        let mut bucket = Bucket::full(&rate, now);
        assert_eq!((bucket.tokens(&rate, now), bucket.full_in(&rate, now)), (10, Duration::ZERO));
        for _ in 0..4 {
            bucket.take(&rate, now).expect("there are ten");
        }
        assert_eq!((bucket.tokens(&rate, now), bucket.full_in(&rate, now)), (6, Duration::from_secs(2)));
        let later = now + Duration::from_millis(1_400);
        assert_eq!((bucket.tokens(&rate, later), bucket.full_in(&rate, later)), (8, Duration::from_millis(600)));
    }

    #[test]
    fn the_burst_is_at_least_one_and_above_500_a_second_two_milliseconds_of_rate() {
        let cases =
            [(1, 0, 1), (500, 0, 1), (500, 7, 7), (999, 1, 1), (1_000, 1, 2), (10_000, 3, 20), (10_000, 21, 21)];
        for (rate, asked, burst) in cases {
            assert_eq!(Rate::per_second(rate).with_burst(asked).burst / ONE, burst, "{asked} at {rate}/s");
        }
        assert_eq!(Rate::per_second(501), Rate::per_second(501).with_burst(1));
    }

    #[test]
    fn the_full_rate_is_reached_with_one_call_each_millisecond() {
        for rate in [7, 33, 100, 499, 500, 501, 999, 3_333, 10_000] {
            let limit = Rate::per_second(rate);
            let mut bucket = Bucket::full(&limit, at(0));
            take_all(&mut bucket, &limit, 0);
            let taken = take_during(&mut bucket, &limit, 1..10_001);
            assert!(taken.abs_diff(u64::from(rate) * 10) <= 1, "{taken} in 10 s at {rate}/s");
        }
    }

    #[test]
    fn a_rate_of_six_and_a_half_gives_thirteen_tokens_in_two_seconds() {
        let limit = Rate::milli(6_500);
        let mut bucket = Bucket::full(&limit, at(0));
        take_all(&mut bucket, &limit, 0);
        assert_eq!(take_during(&mut bucket, &limit, 1..2_001), 13);
    }

    #[test]
    fn a_rate_of_zero_allows_no_send_and_its_bucket_may_be_dropped() {
        let never = Rate::per_second(0).with_burst(100);
        let mut bucket = Bucket::full(&Rate::per_second(5), at(0));
        assert_eq!(bucket.take(&never, at(HOUR)), Err(Timestamp::MAX));
        assert_eq!(bucket.next_at(&never, at(HOUR)), Some(Timestamp::MAX));
        assert!(bucket.is_full(&never, at(HOUR)));
    }

    #[test]
    fn a_jump_forward_adds_one_burst_and_no_more() {
        let limit = Rate::per_second(100).with_burst(20);
        let mut bucket = Bucket::full(&limit, at(0));
        assert_eq!(take_all(&mut bucket, &limit, 0), 20);
        assert_eq!(take_all(&mut bucket, &limit, HOUR), 20);
        assert_eq!(take_all(&mut bucket, &limit, i64::MAX), 20);
    }

    #[test]
    fn a_clock_set_back_adds_nothing_and_counts_from_the_new_time() {
        let limit = Rate::per_second(10);
        let mut bucket = Bucket::full(&limit, at(HOUR));
        assert_eq!(bucket.take(&limit, at(HOUR)), Ok(()));
        assert_eq!(bucket.take(&limit, at(40)), Err(at(140)));
        assert_eq!(bucket.take(&limit, at(139)), Err(at(140)));
        assert_eq!(bucket.take(&limit, at(140)), Ok(()));

        // `next_at` is right once the bucket has caught up.
        let mut bucket = Bucket::holding(0, at(HOUR));
        bucket.catch_up(&limit, at(40));
        assert_eq!(bucket.next_at(&limit, at(40)), Some(at(140)));
        assert_eq!(bucket.next_at(&limit, at(140)), None);
    }

    #[test]
    fn a_new_rate_keeps_the_tokens_up_to_its_burst() {
        let (wide, narrow) = (Rate::per_second(10).with_burst(8), Rate::per_second(10).with_burst(3));
        let mut bucket = Bucket::holding(5, at(0));
        assert_eq!(take_all(&mut bucket.clone(), &wide, 0), 5);
        assert_eq!(take_all(&mut bucket, &narrow, 0), 3);
    }

    #[test]
    fn a_bucket_is_full_once_its_burst_has_come_again() {
        let limit = Rate::per_second(10).with_burst(5);
        let mut bucket = Bucket::full(&limit, at(0));
        assert!(bucket.is_full(&limit, at(0)));
        take_all(&mut bucket, &limit, 0);
        assert!(!bucket.is_full(&limit, at(499)));
        assert!(bucket.is_full(&limit, at(500)));
    }

    fn take_retries(budget: &mut RetryBudget, now: i64) -> usize {
        (0..).take_while(|_| budget.take(at(now)).is_ok()).count()
    }

    #[test]
    fn a_new_destination_has_ten_retries_and_then_one_a_second() {
        let mut budget = RetryBudget::new(at(0));
        assert_eq!(take_retries(&mut budget, 0), 10);
        assert_eq!(budget.take(at(0)), Err(at(1_000)));
        assert_eq!(budget.next_at(at(400)), Some(at(1_000)));
        assert_eq!(take_retries(&mut budget, 5_000), 5);
    }

    #[test]
    fn five_first_attempts_earn_a_retry() {
        let mut budget = RetryBudget::new(at(0));
        take_retries(&mut budget, 0);
        (0..4).for_each(|_| budget.first_try(at(0)));
        assert_eq!(budget.take(at(0)), Err(at(200)), "a fifth is missing, which is 200 ms");
        budget.first_try(at(0));
        assert_eq!(take_retries(&mut budget, 0), 1);
    }

    #[test]
    fn at_most_sixty_retries_are_saved() {
        let mut budget = RetryBudget::new(at(0));
        (0..10_000).for_each(|_| budget.first_try(at(0)));
        assert_eq!(take_retries(&mut budget.clone(), 0), 60);
        assert_eq!(take_retries(&mut budget, i64::MAX), 60);
    }

    #[test]
    fn a_clock_set_back_adds_nothing_and_does_not_stop_the_budget() {
        let mut budget = RetryBudget::new(at(3_600_000));
        take_retries(&mut budget, 3_600_000);
        assert_eq!(budget.take(at(500)), Err(at(1_500)));
        assert_eq!(take_retries(&mut budget, 1_500), 1);
    }

    fn rates() -> impl Strategy<Value = Rate> {
        let milli = prop_oneof![1..20_000u64, 1_000..20_000_000u64];
        (milli, prop_oneof![Just(0), 0..50u32]).prop_map(|(milli, burst)| Rate::milli(milli).with_burst(burst))
    }

    /// Gaps between calls: mostly short, sometimes long.
    fn gaps() -> impl Strategy<Value = Vec<i64>> {
        prop::collection::vec(prop_oneof![0..4i64, 0..300i64, 0..20_000i64], 1..60)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(i64),
        GiveBack,
        Rate(u64, u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            any::<i64>().prop_map(Step::Take),
            Just(Step::Take(i64::MIN)),
            Just(Step::Take(i64::MAX)),
            Just(Step::GiveBack),
            (any::<u64>(), any::<u32>()).prop_map(|(milli, burst)| Step::Rate(milli, burst)),
        ];
        prop::collection::vec(step, 1..40)
    }

    proptest! {
        #[test]
        fn no_span_has_more_sends_than_burst_and_rate_allow(rate in rates(), gaps in gaps()) {
            let mut bucket = Bucket::full(&rate, at(0));
            let (mut now, mut sent) = (0, Vec::new());
            for gap in gaps {
                now += gap;
                let taken = take_all(&mut bucket, &rate, now);
                sent.push((now, taken));
            }
            for (first, (from, _)) in sent.iter().enumerate() {
                let mut count = 0;
                for (to, taken) in &sent[first..] {
                    count += taken;
                    let span = u64::try_from(to - from + 1).expect("in order");
                    prop_assert!(count == 0 || count * ONE < rate.burst + rate.each_milli() * span, "{from}..={to}");
                }
            }
        }

        #[test]
        fn a_token_comes_exactly_at_the_announced_time(rate in rates(), gaps in gaps()) {
            let mut bucket = Bucket::full(&rate, at(0));
            let mut now = 0;
            for gap in gaps {
                now += gap;
                while let Ok(()) = bucket.take(&rate, at(now)) {}
                let promised = bucket.next_at(&rate, at(now)).expect("all were taken");
                prop_assert_eq!(bucket.take(&rate, promised - Duration::from_millis(1)), Err(promised));
                prop_assert_eq!(bucket.next_at(&rate, promised), None);
                prop_assert_eq!(bucket.take(&rate, promised), Ok(()));
                now = promised.as_millis();
            }
        }

        #[test]
        fn a_token_given_back_at_once_restores_the_bucket(rate in rates(), gaps in gaps()) {
            let mut bucket = Bucket::full(&rate, at(0));
            let mut now = 0;
            for gap in gaps {
                now += gap;
                bucket.catch_up(&rate, at(now));
                let before = bucket;
                if bucket.take(&rate, at(now)).is_ok() {
                    bucket.give_back(&rate, at(now));
                    prop_assert_eq!(bucket, before);
                    prop_assert_eq!(bucket.take(&rate, at(now)), Ok(()));
                }
            }
        }

        #[test]
        fn no_input_overflows_or_exceeds_the_burst(start in any::<i64>(), steps in steps()) {
            let mut rate = Rate::per_second(1);
            let mut bucket = Bucket::full(&rate, at(start));
            let mut now = at(start);
            for step in steps {
                match step {
                    Step::Take(to) => {
                        now = at(to);
                        let promised = bucket.next_at(&rate, now);
                        prop_assert!(promised.is_none_or(|promised| promised > now || promised == Timestamp::MAX));
                        prop_assert_eq!(bucket.take(&rate, now).err(), promised);
                    }
                    Step::GiveBack => bucket.give_back(&rate, now),
                    Step::Rate(milli, burst) => rate = Rate::milli(milli).with_burst(burst),
                }
                bucket.catch_up(&rate, now);
                prop_assert!(bucket.saved <= rate.burst + rate.each_milli());
            }
        }

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
                retries += take_retries(&mut budget, now);
                let seconds = f64::from(u32::try_from(now).expect("within hours")) / 1e3;
                prop_assert!(retries as f64 <= 10.0 + 0.2 * first_tries as f64 + seconds + 1e-6);
            }
        }
    }
}
