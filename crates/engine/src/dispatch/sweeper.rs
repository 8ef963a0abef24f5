//! Sweeps: writing outcomes for rows that a cut covers or whose TTL has ended. The store turns a
//! bounded number of rows into outcomes with each call; this module decides which call comes next,
//! and when a cut may be deleted.
//!
//! The rows of a cut are first found by key or index, in a *look* of the cut's own. A lane's cut then
//! needs the *roll*, which reads every pending row and serves all lanes and expiry at once.
//!
//! Invariants: one call is under way at a time, and while there is other work the calls take a
//! twentieth of the time; a cut is deleted only after a look or roll that began when no row could
//! join the cut any more, read everything, and spared no row that was under way.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use posthaste_core::{CutScope, DeliveryId, Key, Timestamp};
use posthaste_store::{Sweep, SweptRows};

use super::call::StoreCall;
use super::{Dispatch, Effect};

/// How often every row is read: half of the promised bound for expiry (D2), so that a busy store has
/// time to follow.
const ROLL_EVERY: Duration = Duration::from_secs(300);
/// How soon a cut is looked at again after rows of it were under way.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// While there is other work, the pause after a call, in multiples of the call's duration. What the
/// follower derives from the call costs about as much again, so other work gets nine tenths.
const OTHERS: u32 = 19;
/// Far longer than any accept takes.
const LANE_CUT_KEPT: Duration = Duration::from_secs(600);
/// Far longer than an arrival takes from the commit to the loop.
const MESSAGE_CUT_KEPT: Duration = Duration::from_secs(60);

/// The cuts that are not deleted yet, and the progress of sweeping.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    cuts: BTreeMap<CutScope, Made>,
    roll: Option<Roll>,
    /// When the next regular roll is due.
    roll_at: Option<Timestamp>,
    /// When the call under way was made.
    asked_at: Option<Timestamp>,
    rest_until: Option<Timestamp>,
    last: Option<CutScope>,
    /// Whether the roll had its turn since.
    rolled: bool,
}

/// A cut that is not deleted yet.
#[derive(Clone, Copy, Debug)]
struct Made {
    upto: Key,
    since: Timestamp,
    /// When its own look is due; `None` while the cut is not durable, and once the look has found everything.
    look_at: Option<Timestamp>,
    /// A roll that begins at this time or later serves the cut.
    roll_from: Option<Timestamp>,
}

impl Made {
    /// When a cut without rows may be deleted. A lane's cut is kept for as long as an accept that
    /// was under way when it was made could still become durable. A message's cut covers rows that
    /// are durable already, but their arrival may still be on its way to the loop.
    fn forget_at(&self, scope: CutScope) -> Timestamp {
        match scope {
            CutScope::Lane(_) => self.since + LANE_CUT_KEPT,
            CutScope::Message(_) => self.since + MESSAGE_CUT_KEPT,
        }
    }

    fn look_from(&mut self, scope: CutScope, at: Timestamp) {
        self.look_at = Some(at);
        self.roll_from = matches!(scope, CutScope::Lane(_)).then_some(at);
    }
}

/// A pass over every pending row, part by part.
#[derive(Clone, Copy, Debug)]
struct Roll {
    began: Timestamp,
    after: Option<DeliveryId>,
    /// Whether it spared rows that were under way.
    left: bool,
}

impl Sweeper {
    pub(super) fn start(&mut self, now: Timestamp) {
        self.roll_at = Some(now);
    }

    /// A cut is in force in memory and on its way to the store.
    pub(super) fn cut(&mut self, scope: CutScope, upto: Key, since: Timestamp) {
        let upto = self.cuts.get(&scope).map_or(upto, |before| before.upto.max(upto));
        self.cuts.insert(scope, Made { upto, since, look_at: None, roll_from: None });
    }

    pub(super) fn is_ending(&self, scope: CutScope) -> bool {
        self.cuts.contains_key(&scope)
    }

    /// The cut is in the store: its rows can be looked for.
    pub(super) fn durable(&mut self, scope: CutScope, now: Timestamp) {
        if let Some(made) = self.cuts.get_mut(&scope) {
            made.look_from(scope, now);
        }
    }

    /// When the next call is due, if nothing happens before.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        if self.asked_at.is_some() {
            return None;
        }
        let looks = self.cuts.values().filter_map(|made| made.look_at);
        let due = looks.chain(self.roll_due()).min()?;
        Some(self.rest_until.map_or(due, |rest| due.max(rest)))
    }

    fn roll_due(&self) -> Option<Timestamp> {
        if let Some(roll) = self.roll {
            return Some(roll.began);
        }
        self.cuts.values().filter_map(|made| made.roll_from).chain(self.roll_at).min()
    }

    fn next(&mut self, now: Timestamp) -> Option<Sweep> {
        if self.wake_at().is_none_or(|at| at > now) {
            return None;
        }
        let scope = self.next_scope(now);
        let rolls = self.roll_due().is_some_and(|at| at <= now);
        self.asked_at = Some(now);
        // Cuts and the roll take turns: neither millions of rows of one cut nor a long roll delays the other.
        match scope {
            Some(scope) if !rolls || self.rolled => {
                (self.last, self.rolled) = (Some(scope), false);
                Some(Sweep::Cut(scope))
            }
            _ => {
                self.rolled = true;
                let roll = *self.roll.get_or_insert(Roll { began: now, after: None, left: false });
                Some(Sweep::Roll { after: roll.after, now })
            }
        }
    }

    fn next_scope(&self, now: Timestamp) -> Option<CutScope> {
        let is_due = |(_, made): &(&CutScope, &Made)| made.look_at.is_some_and(|at| at <= now);
        let behind = self.cuts.range((self.last.map_or(Unbounded, Excluded), Unbounded));
        let found = behind.clone().find(is_due).or_else(|| self.cuts.iter().find(is_due));
        found.map(|(scope, _)| *scope)
    }

    /// A call has ended: returns the cuts that have no rows any more.
    fn swept(&mut self, now: Timestamp, sweep: Sweep, swept: &SweptRows, others: bool) -> Vec<CutScope> {
        let asked_at = self.asked_at.take().unwrap_or(now);
        let took = now.since(asked_at).max(Duration::from_millis(1));
        self.rest_until = others.then(|| now + took * OTHERS);
        match sweep {
            Sweep::Cut(scope) => self.looked(now, asked_at, scope, swept),
            Sweep::Roll { .. } => self.rolled(now, swept),
        }
    }

    fn looked(&mut self, now: Timestamp, asked_at: Timestamp, scope: CutScope, swept: &SweptRows) -> Vec<CutScope> {
        let Some(made) = self.cuts.get_mut(&scope) else { return Vec::new() };
        let forget_at = made.forget_at(scope);
        if !swept.ended.is_empty() || swept.stopped_at.is_some() {
            made.look_at = Some(now);
        } else if let CutScope::Lane(_) = scope {
            // The roll finds the remaining rows.
            made.look_at = None;
        } else if swept.spared > 0 {
            made.look_at = Some(now + LOOK_AGAIN);
        } else if asked_at < forget_at {
            made.look_at = Some(forget_at);
        } else {
            return vec![scope];
        }
        Vec::new()
    }

    fn rolled(&mut self, now: Timestamp, swept: &SweptRows) -> Vec<CutScope> {
        let Some(roll) = &mut self.roll else { return Vec::new() };
        roll.left |= swept.spared > 0;
        if swept.stopped_at.is_some() {
            roll.after = swept.stopped_at;
            return Vec::new();
        }
        let Roll { began, left, .. } = *roll;
        self.roll = None;
        self.roll_at = Some(began + ROLL_EVERY);
        let mut over = Vec::new();
        for (scope, made) in &mut self.cuts {
            if made.roll_from.is_none_or(|from| from > began) {
                continue;
            }
            let forget_at = made.forget_at(*scope);
            if began < forget_at {
                made.roll_from = Some(forget_at);
            } else if left || made.look_at.is_some() {
                made.roll_from = Some(now + LOOK_AGAIN);
            } else {
                over.push(*scope);
            }
        }
        over
    }
}

impl Dispatch {
    /// Takes over a cut of an earlier session.
    pub(super) fn sweep_on(&mut self, now: Timestamp, cut: &posthaste_core::Cut) {
        self.scheduler.cut(cut.scope, cut.upto, cut.cause);
        self.scheduler.cut_recorded(cut.scope);
        self.sweeper.cut(cut.scope, cut.upto, cut.at);
        self.sweeper.durable(cut.scope, now);
    }

    /// Makes the next call of a sweep, if it is due.
    pub(super) fn sweep(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if let Some(sweep) = self.sweeper.next(now) {
            effects.push(Effect::Store(StoreCall::Sweep(sweep, self.scheduler.under_way())));
        }
    }

    /// The store has ended these deliveries without a decision of the loop.
    pub(super) fn ended_elsewhere(&mut self, now: Timestamp, ended: &[DeliveryId]) {
        for id in ended {
            self.scheduler.ended_elsewhere(now, *id);
            self.depart(*id);
        }
    }

    /// The store has written the outcomes of some rows.
    pub(super) fn swept(&mut self, now: Timestamp, sweep: Sweep, swept: &SweptRows, effects: &mut Vec<Effect>) {
        self.ended_elsewhere(now, &swept.ended);
        // Queues that passed over rows of a cut read on at the pace of the sweep.
        match sweep {
            Sweep::Cut(_) if swept.ended.is_empty() && swept.stopped_at.is_none() => self.scheduler.all_read_on(),
            _ => self.scheduler.read_on(),
        }
        let others = self.scheduler.in_flight() > 0 || !self.unsettled.is_empty() || !self.settling.is_empty();
        for scope in self.sweeper.swept(now, sweep, swept, others) {
            let waiting = self.scheduler.end_covered(now, scope);
            if !waiting.is_empty() {
                waiting.into_iter().for_each(|record| self.record(record, None, None));
                self.sweeper.durable(scope, now + LOOK_AGAIN);
            } else if let Some(made) = self.sweeper.cuts.remove(&scope) {
                self.scheduler.forget_cut(scope, made.upto);
                effects.push(Effect::Store(StoreCall::Uncut(scope, now)));
            }
        }
    }
}
