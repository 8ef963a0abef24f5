//! Gates that several lanes share: origin, region, credential (E1, F1) and the DNS resolver (B3).
//!
//! A gate is created by the first failure of a lane behind it, or by its settings, and dropped when there were no
//! failures or no attempts for a while. The lanes that it holds are parked with the gate, so that they cost nothing
//! while they wait.
//!
//! Invariant: a parked lane is checked again when its gate lets requests through.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::blocked_by::{LaneBlock, UnblockedBy};
use super::flight::Flight;
use super::lane::{Lane, LaneSettings};
use super::timer::{Timer, Timers};
use super::{BreakerScope, Scheduler};
use crate::flow::SharedGate;
use crate::flow::breaker::{
    Breaker, BreakerAnswer, BreakerChange, BreakerRule, BreakerState, LetsThrough, Pass, Signal, Soft,
};
use crate::flow::bucket::{Bucket, Rate};
use crate::id::CredentialId;
use crate::{EndpointId, Hold, IdMap, LaneId, OriginId, Roll, Timestamp, Why};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharedSettings {
    /// When its breaker opens, in place of the rule for its kind.
    pub rule: Option<BreakerRule>,
    /// The rate limit over all its lanes.
    pub rate: Option<Rate>,
}

/// The gates that an attempt passed, each with its pass.
pub(super) type PassedGates = [Option<(SharedGate, Pass)>; 4];

#[derive(Debug)]
struct Shared {
    breaker: Breaker,
    settings: SharedSettings,
    bucket: Option<Bucket>,
    /// The waiting lanes, with the time of their last attempt: the oldest is first.
    parked: BTreeSet<(Timestamp, LaneId)>,
    /// When the last attempt passed it.
    used: Timestamp,
    /// The earliest timer that checks it.
    wakes_at: Timestamp,
}

/// How many parked lanes are checked at once when a gate lets requests through; the others after [`ENQUEUE_AGAIN`].
const ENQUEUED_AT_ONCE: usize = 64;
const ENQUEUE_AGAIN: Duration = Duration::from_secs(1);
/// How often a gate without parked lanes is checked whether it may be dropped.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long a gate whose breaker is not closed is kept after its last attempt.
const KEPT: Duration = Duration::from_secs(3_600);
/// The most origins with a single failing endpoint that are remembered. Dropping one only delays its breaker.
const SUSPECTS_MAX: usize = 65_536;

impl Shared {
    fn new(settings: SharedSettings, now: Timestamp) -> Self {
        Self {
            breaker: Breaker::default(),
            bucket: settings.rate.map(|rate| Bucket::full(&rate, now)),
            settings,
            parked: BTreeSet::new(),
            used: now,
            wakes_at: Timestamp::MAX,
        }
    }

    fn rule(&self, gate: SharedGate, origin_rule: BreakerRule) -> BreakerRule {
        self.settings.rule.unwrap_or(match gate {
            SharedGate::Region(_) => BreakerRule::REGION,
            SharedGate::Origin(_) => origin_rule,
            SharedGate::Credential(_) => BreakerRule { in_a_row: 1, ..BreakerRule::ENDPOINT },
            SharedGate::Resolver => BreakerRule::RESOLVER,
        })
    }

    fn blocked_by(&self, gate: SharedGate, now: Timestamp) -> Option<LaneBlock> {
        let unblocked_by = UnblockedBy::Gate(gate);
        if let LetsThrough::Nothing { until } = self.breaker.lets_through(now) {
            return Some(LaneBlock { hold: Hold { why: why(gate), until }, unblocked_by });
        }
        let (rate, bucket) = (self.settings.rate.as_ref()?, self.bucket.as_ref()?);
        let until = Some(bucket.next_at(rate, now)?);
        Some(LaneBlock { hold: Hold { why: Why::RateLimit, until }, unblocked_by })
    }
}

#[derive(Debug, Default)]
pub(super) struct SharedGates {
    gates: BTreeMap<SharedGate, Box<Shared>>,
    /// Origins with failures of a single endpoint so far, and that endpoint.
    suspects: IdMap<OriginId, EndpointId>,
    /// How often a breaker opened, by [`BreakerScope`].
    pub(super) trips: [u64; 5],
}

impl SharedGates {
    /// The first of a lane's gates whose breaker is open, and its hold.
    pub(super) fn open(&self, lane: &Lane, now: Timestamp) -> Option<(SharedGate, Hold)> {
        self.of(lane)?.find_map(|(gate, shared)| {
            let BreakerState::Open { until, .. } = shared.breaker.standing(now) else { return None };
            Some((gate, Hold { why: why(gate), until }))
        })
    }

    /// The first of a lane's gates that blocks it from sending now.
    pub(super) fn blocked_by(&self, lane: &Lane, now: Timestamp) -> Option<LaneBlock> {
        self.of(lane)?.find_map(|(gate, shared)| shared.blocked_by(gate, now))
    }

    /// The gates of a lane that exist; `None` if there are none at all.
    fn of(&self, lane: &Lane) -> Option<impl Iterator<Item = (SharedGate, &Shared)>> {
        if self.gates.is_empty() {
            return None;
        }
        let gates = lane.settings.as_ref()?.shared().into_iter().flatten();
        Some(gates.filter_map(|gate| Some((gate, &**self.gates.get(&gate)?))))
    }

    /// Parks a lane, whose last attempt was at `used`, until the gate lets requests through.
    pub(super) fn park(
        &mut self,
        gate: SharedGate,
        lane: LaneId,
        used: Timestamp,
        until: Option<Timestamp>,
        timers: &mut Timers,
    ) {
        let Some(shared) = self.gates.get_mut(&gate) else { return };
        shared.parked.insert((used, lane));
        if let Some(at) = until.filter(|at| *at < shared.wakes_at) {
            shared.wakes_at = at;
            timers.set(at, Timer::Gate(gate));
        }
    }

    /// Takes some of the lanes that are parked at a gate, which may try again now. A timer is set for the others.
    fn take_parked(&mut self, gate: SharedGate, now: Timestamp, timers: &mut Timers) -> Vec<LaneId> {
        let Some(shared) = self.gates.get_mut(&gate) else { return Vec::new() };
        shared.wakes_at = Timestamp::MAX;
        let first = std::iter::from_fn(|| shared.parked.pop_first());
        let taken = first.take(ENQUEUED_AT_ONCE).map(|(_, lane)| lane).collect();
        if !shared.parked.is_empty() {
            shared.wakes_at = now + ENQUEUE_AGAIN;
            timers.set(shared.wakes_at, Timer::Gate(gate));
        }
        taken
    }

    fn entry(&mut self, gate: SharedGate, now: Timestamp, timers: &mut Timers) -> &mut Shared {
        self.gates.entry(gate).or_insert_with(|| {
            let look_at = now + LOOK_EVERY;
            timers.set(look_at, Timer::Gate(gate));
            Box::new(Shared { wakes_at: look_at, ..Shared::new(SharedSettings::default(), now) })
        })
    }

    /// After the clock was set back: buckets continue from the new time.
    pub(super) fn catch_up(&mut self, now: Timestamp) {
        for shared in self.gates.values_mut() {
            if let (Some(rate), Some(bucket)) = (&shared.settings.rate, &mut shared.bucket) {
                bucket.catch_up(rate, now);
            }
        }
    }

    /// Notes an attempt at a lane's gates, and returns the passes.
    pub(super) fn start(&mut self, settings: &LaneSettings, now: Timestamp) -> PassedGates {
        settings.shared().map(|gate| {
            let gate = gate?;
            let Some(shared) = self.gates.get_mut(&gate) else { return Some((gate, Pass::FIRST)) };
            shared.used = now;
            if let (Some(rate), Some(bucket)) = (&shared.settings.rate, &mut shared.bucket) {
                // `blocked_by` was checked before: there is a token.
                let _ = bucket.take(rate, now);
            }
            Some((gate, shared.breaker.start(now)))
        })
    }

    /// Gives back the token and pass of an attempt that was not made.
    pub(super) fn put_back(&mut self, gate: SharedGate, pass: Pass, started: Timestamp) {
        let Some(shared) = self.gates.get_mut(&gate) else { return };
        if let (Some(rate), Some(bucket)) = (&shared.settings.rate, &mut shared.bucket) {
            bucket.give_back(rate, started);
        }
        shared.breaker.put_back(pass.generation);
    }

    /// Whether a signal is to be counted at a gate. Most origins have one endpoint, which alone never opens the
    /// origin's breaker, so a gate is created only by a failure, and an origin's only when a second endpoint fails.
    fn counts(&mut self, gate: SharedGate, signal: Signal, endpoint: EndpointId) -> bool {
        if self.gates.contains_key(&gate) {
            return true;
        }
        if !matches!(signal, Signal::Failure | Signal::Overload) {
            return false;
        }
        let SharedGate::Origin(origin) = gate else { return true };
        if self.suspects.len() >= SUSPECTS_MAX {
            self.suspects.clear();
        }
        *self.suspects.entry(origin).or_insert(endpoint) != endpoint
    }

    /// Drops a quiet gate without parked lanes and settings. A credential's gate stays while its breaker is not closed.
    fn forget(&mut self, gate: SharedGate, now: Timestamp) {
        let Some(shared) = self.gates.get(&gate) else { return };
        let is_quiet = shared.breaker.is_as_new(now) || now.since(shared.used) >= KEPT;
        let is_kept = matches!(gate, SharedGate::Credential(_)) && shared.breaker.standing(now) != BreakerState::Closed;
        if is_quiet && !is_kept && shared.settings == SharedSettings::default() && shared.parked.is_empty() {
            self.gates.remove(&gate);
        }
    }

    pub(super) fn parked_at(&self, gate: SharedGate) -> Vec<LaneId> {
        self.gates.get(&gate).map(|shared| shared.parked.iter().map(|(_, lane)| *lane).collect()).unwrap_or_default()
    }

    pub(super) fn breaker_mut(&mut self, gate: SharedGate) -> Option<&mut Breaker> {
        self.gates.get_mut(&gate).map(|shared| &mut shared.breaker)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SharedGate, &Breaker, usize)> {
        self.gates.iter().map(|(gate, shared)| (*gate, &shared.breaker, shared.parked.len()))
    }
}

impl Scheduler {
    pub fn set_shared(&mut self, now: Timestamp, gate: SharedGate, settings: SharedSettings) {
        let shared = self.shared.entry(gate, now, &mut self.timers);
        if shared.settings.rate != settings.rate {
            shared.bucket = settings.rate.map(|rate| Bucket::full(&rate, now));
        }
        shared.settings = settings;
        self.enqueue_parked(gate, now);
    }

    /// Notes that a credential was replaced: the deliveries it held are tried again (B6).
    pub fn replaced(&mut self, now: Timestamp, credential: CredentialId) {
        let gate = SharedGate::Credential(credential);
        if let Some(breaker) = self.shared.breaker_mut(gate) {
            breaker.force_close(now);
        }
        // The gate is not dropped at once: answers of attempts in flight still refer to it.
        self.enqueue_parked(gate, now);
    }

    /// Holds all lanes of a credential at a provider's request; a probe is sent first when the hold ends. A hold that
    /// already lasts longer, or has no end, stays.
    pub(super) fn hold_credential(&mut self, credential: CredentialId, hold: Hold, now: Timestamp) {
        self.backlog.hold_began();
        let gate = SharedGate::Credential(credential);
        let breaker = &mut self.shared.entry(gate, now, &mut self.timers).breaker;
        let lasts = |until: Option<Timestamp>| until.unwrap_or(Timestamp::MAX);
        if let BreakerState::Open { until, .. } = breaker.standing(now)
            && lasts(until) >= lasts(hold.until)
        {
            return;
        }
        breaker.trip(now, hold.until);
    }

    /// Checks a gate when its timer fires: lanes are let through, or the gate is dropped.
    pub(super) fn look_at_gate(&mut self, gate: SharedGate, now: Timestamp) {
        self.enqueue_parked(gate, now);
        self.shared.forget(gate, now);
        if let Some(shared) = self.shared.gates.get_mut(&gate)
            && shared.wakes_at == Timestamp::MAX
            && shared.settings == SharedSettings::default()
        {
            shared.wakes_at = now + LOOK_EVERY;
            self.timers.set(shared.wakes_at, Timer::Gate(gate));
        }
    }

    /// Lets the lanes that are parked at a gate try again.
    pub(super) fn enqueue_parked(&mut self, gate: SharedGate, now: Timestamp) {
        for lane in self.shared.take_parked(gate, now, &mut self.timers) {
            if let Some(index) = self.lanes.find(lane) {
                self.enqueue_tiers(index, now);
                self.drop_if_idle(index, now);
            }
        }
    }

    /// Applies an answer to the shared gates its attempt passed, and returns those whose breaker closed.
    pub(super) fn answered_shared(
        &mut self,
        settings: &LaneSettings,
        flight: &Flight,
        heard: &AnswerSignals,
        now: Timestamp,
    ) -> Vec<SharedGate> {
        let mut closed = Vec::new();
        for (gate, pass) in flight.shared.iter().flatten().copied() {
            let is_credential = matches!(gate, SharedGate::Credential(_));
            let signal = match gate {
                SharedGate::Credential(_) => heard.credential,
                SharedGate::Resolver => heard.resolver,
                SharedGate::Origin(_) | SharedGate::Region(_) => heard.signal,
            };
            if !self.shared.counts(gate, signal, flight.endpoint) {
                continue;
            }
            let several_tenants = self.turns.tenants() > 1;
            let shared = self.shared.entry(gate, now, &mut self.timers);
            let (rule, endpoint) = match (gate, settings.origin) {
                (SharedGate::Resolver, _) if several_tenants => {
                    (BreakerRule::RESOLVER_OF_TENANTS, EndpointId::from_raw(settings.tenant.raw()))
                }
                (SharedGate::Resolver, Some(origin)) => (BreakerRule::RESOLVER, EndpointId::from_raw(origin.raw())),
                _ => (shared.rule(gate, self.limits.origin), flight.endpoint),
            };
            let answer = BreakerAnswer {
                generation: pass.generation,
                endpoint,
                signal,
                messages_wait: heard.messages_wait || !shared.parked.is_empty(),
                retry_after: heard.retry_after,
            };
            let change = shared.breaker.answered(now, heard.roll, &rule, answer);
            match change {
                Some(BreakerChange::Closed) => closed.push(gate),
                // A refused credential stays refused until an operator replaces it.
                Some(BreakerChange::Opened | BreakerChange::Reopened) if is_credential => {
                    shared.breaker.trip(now, None);
                }
                Some(BreakerChange::Opened | BreakerChange::Reopened) => {}
                // Another probe may be sent.
                None if shared.breaker.lets_through(now) == LetsThrough::Probe => self.enqueue_parked(gate, now),
                None => {}
            }
            self.shared.trips[BreakerScope::of(gate) as usize] += u64::from(change == Some(BreakerChange::Opened));
            self.shared.forget(gate, now);
        }
        closed
    }

    /// Restores a gate's breaker after a restart.
    pub(super) fn restore_shared(&mut self, gate: SharedGate, soft: Soft, now: Timestamp) {
        let breaker = &mut self.shared.entry(gate, now, &mut self.timers).breaker;
        *breaker = Breaker::restore(soft);
        // The hold of a refused credential has no end and so a length of zero; that of a `Retry-After` has a length. A
        // refused credential is not probed: it stays held until an operator replaces it.
        if matches!(gate, SharedGate::Credential(_)) && soft.hold.is_zero() {
            breaker.trip(now, None);
        }
    }
}

/// The result of an attempt, for the gates that it passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerSignals {
    pub(super) signal: Signal,
    /// The signal for the credential's gate.
    pub(super) credential: Signal,
    /// The signal for the DNS resolver's gate.
    pub(super) resolver: Signal,
    pub(super) messages_wait: bool,
    pub(super) retry_after: Option<Duration>,
    pub(super) roll: Roll,
}

/// The reason that lanes waiting at an open gate show.
fn why(gate: SharedGate) -> Why {
    match gate {
        SharedGate::Credential(_) => Why::Credential,
        SharedGate::Origin(_) | SharedGate::Region(_) | SharedGate::Resolver => Why::BreakerOpen,
    }
}
