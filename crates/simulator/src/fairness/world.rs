//! Runs sources of messages against a scheduler and model receivers in virtual time, with steps of a millisecond, and
//! counts from outside how each source was served.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use posthaste_core::{Cause, Tier, Timestamp, Verdict};

use super::scheduler::{DueMessage, FairScheduler};

/// The first moment on the scheduler's clock.
pub(super) const BEGIN: Timestamp = Timestamp::from_millis(1_790_000_000_000);

/// The messages of one tenant in one tier.
#[derive(Clone, Debug)]
pub(super) struct LoadSource {
    pub(super) tenant: u64,
    pub(super) tier: Tier,
    /// Its destinations, which get messages in turn.
    pub(super) lanes: Range<u64>,
    pub(super) load: FairnessLoad,
    pub(super) receiver: FairnessReceiver,
}

impl LoadSource {
    /// A source in the promotional tier.
    pub(super) fn new(tenant: u64, lanes: Range<u64>, load: FairnessLoad, receiver: FairnessReceiver) -> Self {
        Self { tenant, tier: Tier::Promotional, lanes, load, receiver }
    }
}

/// The arrival of a source's messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum FairnessLoad {
    /// A number of messages waits at each destination at first; each delivery adds another.
    Saturating { waiting: u64 },
    /// A Poisson process that begins at `from`.
    Random { per_second: f64, from: Duration },
    /// A number of messages at the same moment, with this many earlier attempts.
    AtOnce { messages: u64, from: Duration, attempts: u16 },
}

/// The behaviour of a destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct FairnessReceiver {
    /// The average time of an answer; it varies by up to a fifth.
    pub(super) takes: Duration,
    pub(super) answer: Cause,
}

impl FairnessReceiver {
    pub(super) const fn well(takes: Duration) -> Self {
        Self { takes, answer: Cause::Ok }
    }

    /// A receiver that never answers, so that attempts end by timeout.
    pub(super) const fn hangs(timeout: Duration) -> Self {
        Self { takes: timeout, answer: Cause::Unknown }
    }

    fn verdict(&self) -> Verdict {
        let status = (self.answer == Cause::Ok).then_some(200);
        Verdict { status, ..Verdict::of(self.answer) }
    }

    fn took(&self, rng: &mut Rng) -> Duration {
        match self.answer {
            Cause::Ok => self.takes.mul_f64(0.8 + 0.4 * rng.f64()),
            _ => self.takes,
        }
    }

    /// The longest time of an answer, including one millisecond for the clock's resolution.
    pub(super) fn longest(&self) -> Duration {
        self.takes.mul_f64(1.2) + Duration::from_millis(1)
    }
}

/// How a source was served in the measured time.
#[derive(Clone, Debug, Default)]
pub(super) struct Got {
    /// Milliseconds that its attempts held slots.
    pub(super) slot_ms: u64,
    /// Attempts that began.
    pub(super) sent: u64,
    /// The wait of each message from its due time to its first attempt, or to the end of the measurement if it is still
    /// waiting.
    pub(super) waits: Vec<Duration>,
    /// The most slots it held at once.
    pub(super) slots_most: u32,
}

impl Got {
    pub(super) fn wait(&self, share: f64) -> Duration {
        quantile(self.waits.clone(), share)
    }

    pub(super) fn longest_wait(&self) -> Duration {
        self.waits.iter().max().copied().unwrap_or_default()
    }
}

/// The quantile of a list: the least value that this share of them does not exceed.
pub(super) fn quantile(mut waits: Vec<Duration>, share: f64) -> Duration {
    waits.sort_unstable();
    let count = waits.len() as f64 * share;
    let rank = waits.iter().enumerate().find(|(index, _)| (index + 1) as f64 >= count);
    rank.map(|(_, wait)| *wait).unwrap_or_default()
}

/// Runs the sources against a scheduler until the end of the range `measured`; only that range counts. Returns one
/// result for each source.
pub(super) fn play(sources: &[LoadSource], scheduler: &mut dyn FairScheduler, measured: Range<Duration>) -> Vec<Got> {
    let ends = BEGIN + measured.end;
    let mut world = World::new(sources, scheduler, measured);
    while world.now < ends {
        world.happen();
        world.now = world.next_moment().min(ends);
    }
    world.got()
}

struct World<'a> {
    now: Timestamp,
    sources: &'a [LoadSource],
    scheduler: &'a mut dyn FairScheduler,
    measured: Range<Timestamp>,
    /// Every job, by number.
    jobs: Vec<Known>,
    /// Attempts under way, by their end and then by the order in which they began.
    under_way: BTreeMap<(Timestamp, u64), usize>,
    begun: u64,
    /// The time of each source's next message; finer than the clock.
    arrivals: BTreeSet<(Duration, usize)>,
    gaps: Vec<Rng>,
    answers: Vec<Rng>,
    next_lane: Vec<u64>,
    in_flight: Vec<u32>,
    got: Vec<Got>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    source: usize,
    lane: u64,
    due: Timestamp,
    sent: bool,
}

impl<'a> World<'a> {
    fn new(sources: &'a [LoadSource], scheduler: &'a mut dyn FairScheduler, measured: Range<Duration>) -> Self {
        let seeds = 1..=u64::try_from(sources.len()).expect("fits");
        let mut world = Self {
            now: BEGIN,
            sources,
            scheduler,
            measured: BEGIN + measured.start..BEGIN + measured.end,
            jobs: Vec::new(),
            under_way: BTreeMap::new(),
            begun: 0,
            arrivals: BTreeSet::new(),
            // Each source has its own generators, so that it behaves the same beside any others.
            gaps: seeds.clone().map(Rng::with_seed).collect(),
            answers: seeds.map(|seed| Rng::with_seed(seed << 32)).collect(),
            next_lane: sources.iter().map(|source| source.lanes.start).collect(),
            in_flight: vec![0; sources.len()],
            got: vec![Got::default(); sources.len()],
        };
        for (index, source) in sources.iter().enumerate() {
            match source.load {
                FairnessLoad::Saturating { waiting } => {
                    for lane in source.lanes.clone() {
                        (0..waiting).for_each(|_| world.arrive(index, lane, 0));
                    }
                }
                FairnessLoad::Random { from, .. } => {
                    let first = from + world.gap(index);
                    world.arrivals.insert((first, index));
                }
                FairnessLoad::AtOnce { from, .. } => {
                    world.arrivals.insert((from, index));
                }
            }
        }
        world
    }

    fn happen(&mut self) {
        while let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= self.now
        {
            let job = entry.remove();
            self.land(job);
        }
        while let Some((at, index)) = self.arrivals.pop_first() {
            if BEGIN + at > self.now {
                self.arrivals.insert((at, index));
                break;
            }
            self.come(index, at);
        }
        while let Some(job) = self.scheduler.next(self.now) {
            self.send(job);
        }
    }

    fn next_moment(&self) -> Timestamp {
        let lands = self.under_way.first_key_value().map(|((at, _), _)| *at);
        let comes = self.arrivals.first().map(|(at, _)| BEGIN + *at);
        let wakes = self.scheduler.wake_at().map(|at| at.max(self.now + Duration::from_millis(1)));
        [lands, comes, wakes].into_iter().flatten().min().unwrap_or(Timestamp::MAX)
    }

    fn come(&mut self, index: usize, at: Duration) {
        match self.sources[index].load {
            FairnessLoad::Saturating { .. } => {}
            FairnessLoad::Random { .. } => {
                let next = at + self.gap(index);
                self.arrivals.insert((next, index));
                let lane = self.lane_in_turn(index);
                self.arrive(index, lane, 0);
            }
            FairnessLoad::AtOnce { messages, attempts, .. } => {
                for _ in 0..messages {
                    let lane = self.lane_in_turn(index);
                    self.arrive(index, lane, attempts);
                }
            }
        }
    }

    /// The time between two messages of a Poisson process.
    fn gap(&mut self, index: usize) -> Duration {
        let FairnessLoad::Random { per_second, .. } = self.sources[index].load else { return Duration::MAX };
        Duration::from_secs_f64(-(1.0 - self.gaps[index].f64()).ln() / per_second)
    }

    fn lane_in_turn(&mut self, index: usize) -> u64 {
        let lanes = &self.sources[index].lanes;
        let lane = self.next_lane[index];
        self.next_lane[index] = if lane + 1 < lanes.end { lane + 1 } else { lanes.start };
        lane
    }

    fn arrive(&mut self, index: usize, lane: u64, attempts: u16) {
        let source = &self.sources[index];
        let job =
            DueMessage { id: self.jobs.len(), tenant: source.tenant, lane, tier: source.tier, due: self.now, attempts };
        self.jobs.push(Known { source: index, lane, due: self.now, sent: false });
        self.scheduler.arrive(self.now, job);
    }

    fn send(&mut self, job: usize) {
        let known = &mut self.jobs[job];
        let (index, first) = (known.source, !known.sent);
        known.sent = true;
        let took = self.sources[index].receiver.took(&mut self.answers[index]).max(Duration::from_millis(1));
        let ends = self.now + took;
        self.under_way.insert((ends, self.begun), job);
        self.begun += 1;
        self.in_flight[index] += 1;

        let got = &mut self.got[index];
        let seen = self.now.max(self.measured.start)..ends.min(self.measured.end);
        got.slot_ms += u64::try_from(seen.end.since(seen.start).as_millis()).expect("a run is short");
        if self.now >= self.measured.start {
            got.sent += 1;
            got.slots_most = got.slots_most.max(self.in_flight[index]);
            if first && known.due >= self.measured.start {
                got.waits.push(self.now.since(known.due));
            }
        }
    }

    fn land(&mut self, job: usize) {
        let Known { source: index, lane, .. } = self.jobs[job];
        let source = &self.sources[index];
        self.in_flight[index] -= 1;
        self.scheduler.landed(self.now, job, &source.receiver.verdict());
        if matches!(source.load, FairnessLoad::Saturating { .. }) {
            self.arrive(index, lane, 0);
        }
    }

    fn got(mut self) -> Vec<Got> {
        for known in &self.jobs {
            if !known.sent && known.due >= self.measured.start {
                self.got[known.source].waits.push(self.measured.end.since(known.due));
            }
        }
        self.got
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::scheduler::{Plain, PlainRule};

    const SECOND: Duration = Duration::from_secs(1);

    fn at_once(messages: u64) -> LoadSource {
        let load = FairnessLoad::AtOnce { messages, from: SECOND, attempts: 0 };
        LoadSource::new(1, 1..2, load, FairnessReceiver::hangs(SECOND * 10))
    }

    #[test]
    fn waits_last_from_due_to_sent_or_to_the_end_of_the_measurement() {
        let got = play(&[at_once(3)], &mut Plain::new(PlainRule::Fifo, 1), Duration::ZERO..SECOND * 15);
        assert_eq!(got[0].waits, [Duration::ZERO, SECOND * 10, SECOND * 14]);
        assert_eq!(got[0].longest_wait(), SECOND * 14);
        assert_eq!(got[0].wait(0.5), SECOND * 10);
    }

    #[test]
    fn slot_time_counts_within_the_measured_range() {
        let got = play(&[at_once(3)], &mut Plain::new(PlainRule::Fifo, 2), SECOND * 5..SECOND * 13);
        // Two attempts from second 1 to 11 count 6 seconds each; the third, from 11 on, counts 2.
        assert_eq!(got[0].slot_ms, 14_000);
        assert_eq!((got[0].sent, got[0].slots_most), (1, 1));
        assert!(got[0].waits.is_empty(), "they were due before");
    }

    #[test]
    fn saturating_source_keeps_its_slot_busy() {
        let source = LoadSource {
            load: FairnessLoad::Saturating { waiting: 2 },
            receiver: FairnessReceiver::hangs(SECOND / 10),
            ..at_once(0)
        };
        let got = play(&[source], &mut Plain::new(PlainRule::Fifo, 1), Duration::ZERO..SECOND * 60);
        assert_eq!((got[0].slot_ms, got[0].sent), (60_000, 600));
    }

    #[test]
    fn quantile_is_the_least_value_that_the_share_does_not_exceed() {
        let waits: Vec<Duration> = (1..=100).rev().map(Duration::from_secs).collect();
        assert_eq!(quantile(waits.clone(), 0.99), SECOND * 99);
        assert_eq!(quantile(waits, 1.0), SECOND * 100);
        assert_eq!(quantile(Vec::new(), 0.5), Duration::ZERO);
    }
}
