//! Token buckets: how often something may be sent (F1).
//!
//! A token is there for every send that the rate allows; unused ones are saved up to the burst.
//! Tokens are counted in billionths and time in whole milliseconds, so that a thousandth of a token
//! a second is an exact number and nothing is lost to rounding. Invariant: between two sends `d`
//! milliseconds apart, both counted, lie fewer than `burst + rate × (d + 1 ms)`; at a burst of 1 no
//! sliding second holds more than the rate.
//!
//! The clock may be set. Forward it fills the bucket, which is at most one burst; back it adds
//! nothing, and the time until the next token is counted from the new time on.

use std::time::Duration;

use crate::time::Timestamp;

/// One token, in billionths.
pub(super) const ONE: u64 = 1_000_000_000;

/// How many a second, and how many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Thousandths a second.
    milli: u64,
    /// Billionths of a token.
    burst: u64,
}

impl Rate {
    /// So many a second, with the least burst. Of 0 a second nothing goes, ever.
    pub const fn per_second(count: u32) -> Self {
        Self::milli(count as u64 * 1_000)
    }

    /// So many thousandths a second, with the least burst: 6,500 is 6.5 a second. More than
    /// [`Rate::per_second`] can say is that much.
    pub const fn milli(milli: u64) -> Self {
        const MOST: u64 = u32::MAX as u64 * 1_000;
        let milli = if milli < MOST { milli } else { MOST };
        Self { milli, burst: Self::least_burst(milli) }
    }

    /// The same rate with so many at once. A burst below the least is raised to it.
    pub const fn with_burst(self, burst: u32) -> Self {
        let (asked, least) = (burst as u64 * ONE, Self::least_burst(self.milli));
        Self { burst: if asked > least { asked } else { least }, ..self }
    }

    /// One token, or two milliseconds of rate: above 500 a second nobody wakes up for each of them.
    const fn least_burst(milli: u64) -> u64 {
        let two_millis = milli * 2_000;
        if two_millis > ONE { two_millis } else { ONE }
    }

    /// What grows in a millisecond.
    const fn each_milli(&self) -> u64 {
        self.milli * 1_000
    }

    /// What is kept of so much. It is cut to the burst, except for what grew within the millisecond
    /// in which the bucket became full: nobody can ask in between, and without it a rate of 499 a
    /// second at a burst of 1 would be one every 3 ms.
    const fn kept(&self, saved: u64) -> u64 {
        if saved > self.burst && saved - self.burst >= self.each_milli() { self.burst } else { saved }
    }
}

/// What is saved of a rate. The rate comes with every question: where it changes, the tokens stay,
/// as far as the new burst goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Billionths of a token.
    saved: u64,
    /// When that was.
    at: Timestamp,
}

impl Bucket {
    /// One that nobody took from for long.
    pub const fn full(rate: &Rate, now: Timestamp) -> Self {
        Self { saved: rate.burst, at: now }
    }

    /// One with so many tokens.
    pub(super) const fn holding(tokens: u32, now: Timestamp) -> Self {
        Self { saved: tokens as u64 * ONE, at: now }
    }

    /// Takes a token, or says when the next one is there.
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

    /// When the next token is there; `None` when one is there now.
    ///
    /// It changes nothing, so it cannot tell how long ago a clock was set back: whoever asks before
    /// it takes calls [`Bucket::catch_up`] first.
    pub fn next_at(&self, rate: &Rate, now: Timestamp) -> Option<Timestamp> {
        if rate.milli == 0 {
            return Some(Timestamp::MAX);
        }
        let missing = ONE.saturating_sub(self.saved_by(rate, now));
        (missing > 0).then(|| now + Duration::from_millis(missing.div_ceil(rate.each_milli())))
    }

    /// How many whole tokens are there.
    pub fn tokens(&self, rate: &Rate, now: Timestamp) -> u64 {
        self.saved_by(rate, now) / ONE
    }

    /// How long nobody may take one until it is full; [`Duration::MAX`] at a rate of 0.
    pub fn full_in(&self, rate: &Rate, now: Timestamp) -> Duration {
        let missing = rate.burst.saturating_sub(self.saved_by(rate, now));
        if rate.milli == 0 { Duration::MAX } else { Duration::from_millis(missing.div_ceil(rate.each_milli())) }
    }

    /// Gives back a token that was taken then and not sent; never above the burst. One that comes back after
    /// something has grown is lost: it would come on top of that, and a second would hold too many.
    pub fn give_back(&mut self, rate: &Rate, taken: Timestamp) {
        if self.at == taken {
            self.earn(rate, ONE);
        }
    }

    /// Whether nothing of it is worth remembering: a new one would be the same. At a rate of 0 none
    /// is.
    pub fn is_full(&self, rate: &Rate, now: Timestamp) -> bool {
        rate.milli == 0 || self.saved_by(rate, now) >= rate.burst
    }

    /// Adds what grew until `now`. Before a rate changes, with the old one: otherwise the time since
    /// the last question counts at the new rate.
    pub fn catch_up(&mut self, rate: &Rate, now: Timestamp) {
        self.saved = self.saved_by(rate, now);
        self.at = now;
    }

    /// Adds so many billionths.
    pub(super) fn earn(&mut self, rate: &Rate, billionths: u64) {
        self.saved = rate.kept(self.saved.saturating_add(billionths));
    }

    fn saved_by(&self, rate: &Rate, now: Timestamp) -> u64 {
        // Zero where the clock was set back.
        let passed = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        rate.kept(self.saved.saturating_add(passed.saturating_mul(rate.each_milli())))
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

    /// How many can be taken at this moment.
    fn take_all(bucket: &mut Bucket, rate: &Rate, now: i64) -> u64 {
        (0..).take_while(|_| bucket.take(rate, at(now)).is_ok()).count() as u64
    }

    /// Asks every millisecond of a span.
    fn take_during(bucket: &mut Bucket, rate: &Rate, span: std::ops::Range<i64>) -> u64 {
        span.map(|now| take_all(bucket, rate, now)).sum()
    }

    #[test]
    fn what_is_left_of_a_rate_and_when_it_is_whole_again_can_be_told() {
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
    fn a_bucket_is_small() {
        assert!(size_of::<Bucket>() <= 24);
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
    fn every_second_brings_the_rate_though_nobody_can_ask_between_two_milliseconds() {
        for rate in [7, 33, 100, 499, 500, 501, 999, 3_333, 10_000] {
            let limit = Rate::per_second(rate);
            let mut bucket = Bucket::full(&limit, at(0));
            take_all(&mut bucket, &limit, 0);
            let taken = take_during(&mut bucket, &limit, 1..10_001);
            assert!(taken.abs_diff(u64::from(rate) * 10) <= 1, "{taken} in 10 s at {rate}/s");
        }
    }

    #[test]
    fn half_a_token_more_a_second_is_one_more_every_two_seconds() {
        let limit = Rate::milli(6_500);
        let mut bucket = Bucket::full(&limit, at(0));
        take_all(&mut bucket, &limit, 0);
        assert_eq!(take_during(&mut bucket, &limit, 1..2_001), 13);
    }

    #[test]
    fn at_a_rate_of_zero_nothing_goes_and_nothing_is_remembered() {
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
    fn a_clock_set_back_adds_nothing_and_the_next_token_comes_in_its_time() {
        let limit = Rate::per_second(10);
        let mut bucket = Bucket::full(&limit, at(HOUR));
        assert_eq!(bucket.take(&limit, at(HOUR)), Ok(()));
        assert_eq!(bucket.take(&limit, at(40)), Err(at(140)));
        assert_eq!(bucket.take(&limit, at(139)), Err(at(140)));
        assert_eq!(bucket.take(&limit, at(140)), Ok(()));
    }

    #[test]
    fn whoever_only_asks_after_a_set_back_catches_up_first() {
        let limit = Rate::per_second(10);
        let mut bucket = Bucket::holding(0, at(HOUR));
        bucket.catch_up(&limit, at(40));
        assert_eq!(bucket.next_at(&limit, at(40)), Some(at(140)));
        assert_eq!(bucket.next_at(&limit, at(140)), None);
    }

    #[test]
    fn a_new_rate_keeps_the_tokens_as_far_as_its_burst_goes() {
        let (wide, narrow) = (Rate::per_second(10).with_burst(8), Rate::per_second(10).with_burst(3));
        let mut bucket = Bucket::holding(5, at(0));
        assert_eq!(take_all(&mut bucket.clone(), &wide, 0), 5);
        assert_eq!(take_all(&mut bucket, &narrow, 0), 3);
    }

    #[test]
    fn a_bucket_is_full_again_when_its_burst_has_grown() {
        let limit = Rate::per_second(10).with_burst(5);
        let mut bucket = Bucket::full(&limit, at(0));
        assert!(bucket.is_full(&limit, at(0)));
        take_all(&mut bucket, &limit, 0);
        assert!(!bucket.is_full(&limit, at(499)));
        assert!(bucket.is_full(&limit, at(500)));
    }

    fn rates() -> impl Strategy<Value = Rate> {
        let milli = prop_oneof![1..20_000u64, 1_000..20_000_000u64];
        (milli, prop_oneof![Just(0), 0..50u32]).prop_map(|(milli, burst)| Rate::milli(milli).with_burst(burst))
    }

    /// Gaps between questions: mostly short, sometimes long.
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
        fn no_span_holds_more_than_the_burst_and_the_rate(rate in rates(), gaps in gaps()) {
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
        fn a_token_is_there_when_it_was_promised_and_not_before(rate in rates(), gaps in gaps()) {
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
        fn what_is_taken_and_given_back_leaves_no_trace(rate in rates(), gaps in gaps()) {
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
        fn no_input_overflows_or_fills_it_above_its_burst(start in any::<i64>(), steps in steps()) {
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
    }
}
