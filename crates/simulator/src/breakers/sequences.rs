//! Applies random sequences of events to the core's breaker and to the slow model, and compares the two after each
//! event. A seed always gives the same sequence.

use std::fmt::Debug;
use std::time::Duration;

use posthaste_core::flow::breaker::{
    Breaker, BreakerAnswer, BreakerChange, BreakerRule, LetsThrough, OpenReason, Pass, Signal,
};
use posthaste_core::{EndpointId, Roll, Timestamp};

use super::model::{BreakerModel, Slip};

/// How often each transition occurred: a comparison without them would prove nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    pub(super) events: u64,
    opened_in_a_row: u64,
    opened_by_share: u64,
    opened_by_overload: u64,
    reopened: u64,
    closed: u64,
    late: u64,
}

impl Reached {
    pub(super) fn add(&mut self, mut other: Self) {
        self.events += other.events;
        for (sum, more) in self.kinds().into_iter().zip(other.kinds()) {
            *sum += *more;
        }
    }

    /// The count of the rarest transition.
    pub(super) fn rarest(mut self) -> u64 {
        self.kinds().into_iter().min().map_or(0, |count| *count)
    }

    fn kinds(&mut self) -> [&mut u64; 6] {
        [
            &mut self.opened_in_a_row,
            &mut self.opened_by_share,
            &mut self.opened_by_overload,
            &mut self.reopened,
            &mut self.closed,
            &mut self.late,
        ]
    }
}

/// Runs the sequence of this seed. Returns the first difference, if there is one.
pub(super) fn run(seed: u64, slip: Slip) -> (Reached, Option<String>) {
    let mut pair = Pair::new(seed, slip);
    for nth in 1..=pair.dice.u32(20..=60) {
        let event = pair.any_event();
        if let Err(difference) = pair.happen(event) {
            let rule = pair.rule;
            return (pair.reached, Some(format!("event {nth}, {event:?} at {}, {rule:?}: {difference}", pair.now)));
        }
    }
    (pair.reached, None)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Time passes, in milliseconds; negative if the clock is set back.
    Wait(i64),
    /// Time passes until this many milliseconds after the end of the hold.
    WaitForHold(i64),
    /// A request is sent, and its answer comes later.
    Start,
    /// A number of answers come, most of them with this signal, to recent or old requests.
    Answers(u8, Signal),
    /// A request that was picked is not sent.
    PutBack,
    Reset,
    ForceClose,
    Trip(Option<Duration>),
    /// The process ends and starts again.
    Restart,
}

/// The breaker, its model, and the requests under way at both.
struct Pair {
    dice: fastrand::Rng,
    rule: BreakerRule,
    slip: Slip,
    breaker: Breaker,
    model: BreakerModel,
    now: Timestamp,
    generation: u32,
    endpoints: u64,
    under_way: Vec<Pass>,
    reached: Reached,
}

impl Pair {
    fn new(seed: u64, slip: Slip) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let rule = any_rule(&mut dice);
        Self {
            rule,
            slip,
            breaker: Breaker::default(),
            model: BreakerModel::new(rule, slip),
            // Sometimes around the epoch, where seconds change their sign.
            now: Timestamp::from_millis(if dice.u8(..8) == 0 { dice.i64(-99_999..99_999) } else { 1_700_000_000_000 }),
            generation: Pass::FIRST.generation,
            endpoints: dice.u64(1..=8),
            under_way: Vec::new(),
            reached: Reached::default(),
            dice,
        }
    }

    fn any_event(&mut self) -> Event {
        let dice = &mut self.dice;
        match dice.u8(..64) {
            0..12 => Event::Wait(any_wait(dice)),
            12..20 => Event::WaitForHold(dice.i64(-1..=1)),
            20..26 => Event::Start,
            26..58 => {
                // Enough answers to reach the rule's volume within one sequence.
                let most = (self.rule.volume / 3).clamp(2, 40).to_le_bytes()[0];
                Event::Answers(dice.u8(1..=most), any_signal(dice))
            }
            58..60 => Event::PutBack,
            60 => Event::Reset,
            61 => Event::ForceClose,
            62 => Event::Trip((dice.u8(..4) > 0).then(|| Duration::from_millis(dice.u64(..600_000)))),
            _ => Event::Restart,
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        self.reached.events += 1;
        match event {
            Event::Wait(ms) => self.now = Timestamp::from_millis(self.now.as_millis() + ms),
            Event::WaitForHold(off_ms) => {
                if let LetsThrough::Nothing { until: Some(until) } = self.model.lets_through(self.now) {
                    self.now = Timestamp::from_millis(until.as_millis() + off_ms);
                }
            }
            Event::Start => {
                let pass = self.start()?;
                self.under_way.push(pass);
            }
            Event::Answers(count, mostly) => {
                for _ in 0..count {
                    self.answer(mostly)?;
                }
            }
            Event::PutBack => {
                let generation = self.any_under_way()?.generation;
                self.breaker.put_back(generation);
                self.model.put_back(generation);
            }
            Event::Reset => {
                self.breaker.reset();
                self.model.reset();
            }
            Event::ForceClose => {
                self.breaker.force_close(self.now);
                self.model.force_close(self.now);
            }
            Event::Trip(hold) => {
                let until = hold.map(|hold| self.now + hold);
                self.breaker.trip(self.now, until);
                self.model.trip(self.now, until);
            }
            Event::Restart => self.restart(),
        }
        self.compare()
    }

    fn start(&mut self) -> Result<Pass, String> {
        let (pass, expected) = (self.breaker.start(self.now), self.model.start(self.now));
        self.generation = self.generation.max(pass.generation);
        same("start", pass, expected)
    }

    fn answer(&mut self, mostly: Signal) -> Result<(), String> {
        let generation = self.any_under_way()?.generation;
        let dice = &mut self.dice;
        let answer = BreakerAnswer {
            generation,
            endpoint: EndpointId::from_raw(dice.u64(1..=self.endpoints)),
            signal: if dice.u8(..8) == 0 { any_signal(dice) } else { mostly },
            messages_wait: dice.bool(),
            retry_after: (dice.u8(..8) == 0).then(|| Duration::from_millis(dice.u64(..200_000))),
        };
        let roll = Roll(dice.u64(..));
        self.reached.late += u64::from((1..self.generation).contains(&generation));
        let change = self.breaker.answered(self.now, roll, &self.rule, answer);
        same("answered", change, self.model.answered(self.now, roll, answer))?;
        match (change, self.breaker.reason()) {
            (Some(BreakerChange::Opened), Some(OpenReason::InARow(_))) => self.reached.opened_in_a_row += 1,
            (Some(BreakerChange::Opened), Some(OpenReason::Share { .. })) => self.reached.opened_by_share += 1,
            (Some(BreakerChange::Opened), _) => self.reached.opened_by_overload += 1,
            (Some(BreakerChange::Reopened), _) => self.reached.reopened += 1,
            (Some(BreakerChange::Closed), _) => self.reached.closed += 1,
            (None, _) => {}
        }
        Ok(())
    }

    /// A request that is sent now, or one of those under way.
    fn any_under_way(&mut self) -> Result<Pass, String> {
        if self.under_way.is_empty() || self.dice.u8(..4) > 0 {
            return self.start();
        }
        let which = self.dice.usize(..self.under_way.len());
        Ok(self.under_way.swap_remove(which))
    }

    fn restart(&mut self) {
        let (breaker, model) = match self.breaker.soft() {
            Some(soft) => (Breaker::restore(soft), BreakerModel::restore(self.rule, self.slip, soft)),
            None => (Breaker::default(), BreakerModel::new(self.rule, self.slip)),
        };
        (self.breaker, self.model) = (breaker, model);
        // Requests under way ended with the process.
        self.under_way.clear();
        self.generation = Pass::FIRST.generation;
    }

    /// Compares everything that can be read of both.
    fn compare(&self) -> Result<(), String> {
        let (breaker, model, now) = (&self.breaker, &self.model, self.now);
        same("standing", breaker.standing(now), model.standing(now))?;
        same("lets through", breaker.lets_through(now), model.lets_through(now))?;
        same("reason", breaker.reason(), model.reason())?;
        same("soft", breaker.soft(), model.soft())?;
        same("is_failing", breaker.is_failing(now), model.is_failing(now))?;
        same("successes_per_second", breaker.successes_per_second(now), model.successes_per_second(now))?;
        same("is_as_new", breaker.is_as_new(now), model.is_as_new(now))?;
        Ok(())
    }
}

fn same<T: Copy + PartialEq + Debug>(what: &str, breaker: T, model: T) -> Result<T, String> {
    if breaker == model { Ok(breaker) } else { Err(format!("{what}: {breaker:?}, and by the model {model:?}")) }
}

/// A real rule, or a random one with smaller limits, which reaches more transitions within a short sequence.
fn any_rule(dice: &mut fastrand::Rng) -> BreakerRule {
    match dice.u8(..64) {
        0..16 => BreakerRule::ENDPOINT,
        16..24 => BreakerRule::ORIGIN,
        24 => BreakerRule::REGION,
        _ => BreakerRule {
            in_a_row: dice.u16(0..=6),
            share_milli: dice.u16(1..=1_000),
            volume: dice.u32(1..=8),
            endpoints: dice.u8(0..=6),
            open_for: Duration::from_millis(dice.u64(1..=330_000)),
        },
    }
}

fn any_signal(dice: &mut fastrand::Rng) -> Signal {
    match dice.u8(..8) {
        0..3 => Signal::Success,
        3..6 => Signal::Failure,
        6 => Signal::Overload,
        _ => Signal::Neutral,
    }
}

/// A wait of up to 90 seconds, mostly short; rarely backwards, rarely by up to a day.
fn any_wait(dice: &mut fastrand::Rng) -> i64 {
    match dice.u8(..64) {
        0..24 => dice.i64(0..2_000),
        24..48 => dice.i64(0..31_000),
        48..61 => dice.i64(0..90_000),
        61..63 => -dice.i64(0..65_000),
        _ => dice.i64(-86_400_000..86_400_000),
    }
}
