//! A lane: the queue of one destination, one part for each tier.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::destination::Destination;
use super::drain::{Drain, Part};
use super::ready::{Rank, Ready};
use super::turn::Speed;
use crate::flow::SharedGate;
use crate::flow::bucket::Rate;
use crate::hold::{Hold, Why};
use crate::id::{CredentialId, DeliveryId, LaneId, OriginId, RegionId, TenantId};
use crate::off_peak::OffPeak;
use crate::policy::Policy;
use crate::tier::Tier;
use crate::time::Timestamp;

/// In which order a destination gets its messages (G4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First in, first out.
    #[default]
    Fifo,
    /// The newest first: old news is worth less.
    NewestFirst,
    /// One in flight, later ones wait for its end.
    Strict,
}

/// What a strict lane does when its head is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// The next one goes.
    #[default]
    Skip,
    /// The lane stops until somebody resumes it.
    Hold,
}

/// What a lane's owner has set.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneSettings {
    /// Which lane.
    pub lane: LaneId,
    /// Whose.
    pub tenant: TenantId,
    /// Counts their changes: what comes late from before a change is not taken over.
    pub version: u32,
    /// Counts the changes of the rules that several lanes share, in this process: policies by name, and what was
    /// agreed with tenants. The same holds for it.
    pub rules: u32,
    /// Whether what is for it waits until somebody enables it.
    pub disabled: bool,
    /// In which order.
    pub order: Order,
    /// For strict lanes.
    pub on_dead: OnDead,
    /// How many attempts may be under way at once.
    pub max_in_flight: u16,
    /// When to try again.
    pub policy: Arc<Policy>,
    /// The scheme, host and port it is at.
    pub origin: Option<OriginId>,
    /// What most lanes do not have.
    pub special: Option<Box<Special>>,
}

// Every lane in the window has one. With the counts of its `Arc` it takes 72 bytes, which allocators serve from a block
// of 80.
const _: () = assert!(size_of::<LaneSettings>() <= 56);

/// What is set for some lanes only.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Special {
    /// How fast it may be sent to.
    pub rate: Option<Rate>,
    /// When engagement messages may go.
    pub off_peak: Option<OffPeak>,
    /// The provider or group of origins it belongs to.
    pub region: Option<RegionId>,
    /// What its provider knows us by.
    pub credential: Option<CredentialId>,
}

impl LaneSettings {
    /// First in, first out, 64 at once, by this policy.
    pub fn new(lane: LaneId, tenant: TenantId, policy: Arc<Policy>) -> Self {
        Self {
            lane,
            tenant,
            version: 0,
            rules: 0,
            disabled: false,
            order: Order::Fifo,
            on_dead: OnDead::Skip,
            max_in_flight: 64,
            policy,
            origin: None,
            special: None,
        }
    }

    /// The same, with what most lanes do not have.
    #[must_use]
    pub fn with(self, special: Special) -> Self {
        Self { special: Some(Box::new(special)), ..self }
    }

    /// Whether others are from before a change that this one knows of. What was read after both kinds of change is
    /// never refused by this, and each of them has the lane read again.
    pub(super) fn is_newer(&self, others: &Self) -> bool {
        self.version > others.version || self.rules > others.rules
    }

    /// What the lane does behind a dead head; `None` unless it is strict.
    pub fn strict(&self) -> Option<OnDead> {
        (self.order == Order::Strict).then_some(self.on_dead)
    }

    /// How fast it may be sent to.
    pub fn rate(&self) -> Option<&Rate> {
        self.special.as_ref()?.rate.as_ref()
    }

    /// When engagement messages may go.
    pub fn off_peak(&self) -> Option<&OffPeak> {
        self.special.as_ref()?.off_peak.as_ref()
    }

    /// What its provider knows us by.
    pub fn credential(&self) -> Option<CredentialId> {
        self.special.as_ref()?.credential
    }

    /// The gates it goes through with others, narrowest first.
    pub(super) fn shared(&self) -> [Option<SharedGate>; 4] {
        let special = self.special.as_ref();
        [
            self.origin.map(SharedGate::Origin),
            special.and_then(|special| special.region).map(SharedGate::Region),
            special.and_then(|special| special.credential).map(SharedGate::Credential),
            self.origin.map(|_| SharedGate::Resolver),
        ]
    }
}

/// One lane with work in the window, or with something worth remembering.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    /// `None` until the store was asked: nothing is sent on a guess.
    pub(super) settings: Option<Arc<LaneSettings>>,
    /// What is known of its destination; `None` before anything was sent.
    pub(super) destination: Option<Box<Destination>>,
    /// What somebody's word, or the receiver's, keeps from being sent.
    pub(super) holds: Option<Box<Holds>>,
    /// The earliest timer that will look at it.
    pub(super) wakes_at: Timestamp,
    pub(super) in_flight: u16,
    /// What the window holds of it, in any stage.
    pub(super) kept: [u32; 3],
    /// Whether the store holds more of it than the window; while a backlog drains, of what is fresh.
    pub(super) overflow: [Overflow; 3],
    /// Pages under way that were asked for before the lane's queues were cut differently. They say
    /// nothing of the queues there are now.
    pub(super) old_pages: u8,
    /// Whether it stands in a tier's ring.
    pub(super) in_ring: [bool; 3],
    /// Whether it stands in line for a page.
    pub(super) hungry: bool,
    /// New rows that pages under way may bring.
    pub(super) rows_to_come: u16,
    ready: [Ready; 3],
}

/// Why a whole lane waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holds {
    /// What an answer asked for, or a credential's fault.
    pub(super) by_answer: Option<Hold>,
    /// Somebody's word.
    pub(super) paused: Option<Hold>,
}

impl Holds {
    fn holding(&self, now: Timestamp) -> Option<Hold> {
        self.paused.filter(|hold| hold.holds(now)).or(self.by_answer.filter(|hold| hold.holds(now)))
    }
}

/// What is behind the window of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overflow {
    /// The store may hold spilled rows that the window does not.
    pub(super) more: bool,
    /// A page was asked for and has not come.
    pub(super) paging: bool,
    /// Rows were spilled since that page was asked for: it may have missed them.
    pub(super) since: bool,
}

impl Overflow {
    /// Nobody knows what is behind it: it has to be looked at.
    pub(super) const UNKNOWN: Self = Self { more: true, paging: false, since: false };

    pub(super) fn is_spilling(self) -> bool {
        self.more || self.paging
    }
}

impl Lane {
    pub(super) fn new(id: LaneId) -> Self {
        Self {
            id,
            settings: None,
            destination: None,
            holds: None,
            wakes_at: Timestamp::MAX,
            in_flight: 0,
            kept: [0; 3],
            overflow: [Overflow::default(); 3],
            old_pages: 0,
            in_ring: [false; 3],
            hungry: false,
            rows_to_come: 0,
            ready: Default::default(),
        }
    }

    pub(super) fn order(&self) -> Order {
        self.settings.as_ref().map_or(Order::Fifo, |settings| settings.order)
    }

    pub(super) fn is_strict(&self) -> bool {
        self.order() == Order::Strict
    }

    pub(super) fn drain(&self) -> Option<&Drain> {
        self.destination.as_ref()?.drain.as_deref()
    }

    fn drain_mut(&mut self) -> Option<&mut Drain> {
        self.destination.as_mut()?.drain.as_deref_mut()
    }

    /// Which of its queues a tier's rows are paged with: a strict lane is paged as a whole.
    pub(super) fn paged_as(&self, tier: Tier) -> usize {
        if self.is_strict() { 0 } else { tier.index() }
    }

    /// What is behind one of its queues.
    pub(super) fn overflow(&mut self, part: Part, tier: Tier) -> &mut Overflow {
        let at = self.paged_as(tier);
        match self.destination.as_mut().and_then(|destination| destination.drain.as_mut()) {
            Some(drain) => match part {
                Part::Fresh => &mut self.overflow[at],
                Part::Waited(step) => drain.overflow(step, at),
            },
            None => &mut self.overflow[at],
        }
    }

    /// The store holds rows of this queue behind the window; while a backlog drains, fresh ones.
    pub(super) fn is_spilling(&self, tier: Tier) -> bool {
        self.overflow[self.paged_as(tier)].is_spilling()
    }

    /// Whether rows of any of its queues may be behind the window.
    pub(super) fn has_more(&self) -> bool {
        self.overflow.iter().any(|queue| queue.more) || self.drain().is_some_and(Drain::has_more)
    }

    /// Nothing of it is worth remembering.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.kept == [0; 3]
            && self.holds.as_ref().is_none_or(|holds| holds.holding(now).is_none())
            && self.old_pages == 0
            && self.overflow.iter().all(|overflow| !overflow.is_spilling())
            && self.destination.as_ref().is_none_or(|destination| destination.is_over(self.settings.as_deref(), now))
    }

    /// Whether something is there to be sent, or behind the window.
    pub(super) fn has_work(&self) -> bool {
        self.kept.iter().sum::<u32>() > u32::from(self.in_flight) || self.has_more()
    }

    /// What somebody's word keeps from being sent, or the receiver's.
    pub(super) fn held(&self, now: Timestamp) -> Option<Hold> {
        let Some(settings) = &self.settings else { return Some(Hold { why: Why::Store, until: None }) };
        if settings.disabled {
            return Some(Hold { why: Why::EndpointDisabled, until: None });
        }
        self.holds.as_ref()?.holding(now)
    }

    /// What an answer asked for, while it holds.
    pub(super) fn asked(&self, now: Timestamp) -> Option<Hold> {
        self.holds.as_ref()?.by_answer.filter(|hold| hold.holds(now))
    }

    pub(super) fn holds_mut(&mut self) -> &mut Holds {
        self.holds.get_or_insert_default()
    }

    /// Forgets what no longer holds.
    pub(super) fn release(&mut self, now: Timestamp) {
        let Some(holds) = &mut self.holds else { return };
        holds.paused = holds.paused.filter(|hold| hold.holds(now));
        holds.by_answer = holds.by_answer.filter(|hold| hold.holds(now));
        if holds.paused.is_none() && holds.by_answer.is_none() {
            self.holds = None;
        }
    }

    /// Whether one of its holds ends then.
    pub(super) fn hold_ends(&self, at: Timestamp) -> bool {
        let holds = self.holds.iter().flat_map(|holds| [holds.by_answer, holds.paused]).flatten();
        holds.into_iter().any(|hold| hold.until == Some(at))
    }

    pub(super) fn has_slot(&self) -> bool {
        let most = match &self.settings {
            Some(settings) if settings.order == Order::Strict => 1,
            Some(settings) => {
                let most = settings.max_in_flight;
                self.destination.as_ref().map_or(most, |destination| destination.in_flight_max(most))
            }
            None => 0,
        };
        self.in_flight < most
    }

    /// Whether its destination holds slots for long.
    pub(super) fn speed(&self) -> Speed {
        match &self.destination {
            Some(destination) if destination.concurrency.is_slow() => Speed::Slow,
            _ => Speed::Quick,
        }
    }

    /// Which of its queues something born then belongs to.
    pub(super) fn part(&self, born: Timestamp) -> Part {
        self.drain().map_or(Part::Fresh, |drain| drain.part(born))
    }

    pub(super) fn ranked(&self, id: DeliveryId) -> Rank {
        Reverse(self.rank(id.raw()))
    }

    /// Retries over the budget wait with the others again.
    pub(super) fn take_back_postponed(&mut self, tier: Tier) {
        let Some(destination) = &mut self.destination else { return };
        let postponed = destination.postponed[tier.index()].take();
        self.ready[tier.index()].extend(postponed);
    }

    /// When one over the budget may go, if there is one.
    pub(super) fn postponed_until(&self, tier: Tier, now: Timestamp) -> Option<Timestamp> {
        let destination =
            self.destination.as_ref().filter(|destination| !destination.postponed[tier.index()].is_empty())?;
        destination.budget.next_at(now)
    }

    /// One over the budget, if it may go now.
    pub(super) fn pop_postponed(&mut self, tier: Tier, now: Timestamp) -> Option<DeliveryId> {
        let destination = self.destination.as_mut().filter(|destination| destination.budget.next_at(now).is_none())?;
        let Reverse(rank) = destination.postponed[tier.index()].pop()?;
        Some(DeliveryId::from_raw(self.rank(rank)))
    }

    pub(super) fn push(&mut self, tier: Tier, part: Part, id: DeliveryId) {
        let rank = self.ranked(id);
        match (self.drain_mut(), part) {
            (Some(drain), Part::Waited(step)) => drain.push(step, tier, rank),
            _ => self.ready[tier.index()].push(rank),
        }
    }

    /// The next one of a tier. While a backlog drains, `waited` says how long the first of the fresh
    /// has waited.
    pub(super) fn pop(&mut self, tier: Tier, waited: impl Fn(DeliveryId) -> Duration) -> Option<DeliveryId> {
        if self.drain().is_some() {
            let first = self.ready[tier.index()].peek().map(|Reverse(rank)| DeliveryId::from_raw(self.rank(rank)));
            let fresh = first.map(waited);
            if let Some(Reverse(rank)) = self.drain_mut().and_then(|drain| drain.pop(tier, fresh)) {
                return Some(DeliveryId::from_raw(self.rank(rank)));
            }
        }
        let Reverse(rank) = self.ready[tier.index()].pop()?;
        Some(DeliveryId::from_raw(self.rank(rank)))
    }

    pub(super) fn has_ready(&self, tier: Tier, now: Timestamp) -> bool {
        !self.ready[tier.index()].is_empty()
            || self.destination.as_ref().is_some_and(|destination| {
                destination.drain.as_ref().is_some_and(|drain| drain.has_ready(tier))
                    || (!destination.postponed[tier.index()].is_empty() && destination.budget.next_at(now).is_none())
            })
    }

    /// How many of a queue's may go.
    pub(super) fn ready_count(&self, part: Part, tier: Tier) -> usize {
        match (self.drain(), part) {
            (Some(drain), Part::Waited(step)) => drain.ready_count(step, tier),
            _ => self.ready[tier.index()].len(),
        }
    }

    /// Takes everything of a tier that may go, whatever its part.
    pub(super) fn take_ready(&mut self, tier: Tier) -> Vec<DeliveryId> {
        let mut taken = self.ready[tier.index()].take();
        if let Some(drain) = self.drain_mut() {
            drain.take_ready(tier, &mut taken);
        }
        taken.sort_unstable_by(|a, b| b.cmp(a));
        taken.into_iter().map(|Reverse(rank)| DeliveryId::from_raw(self.rank(rank))).collect()
    }

    /// Takes over settings; ranks and queues that were made under another order are made anew.
    pub(super) fn take_over(&mut self, settings: &Arc<LaneSettings>) {
        let (old, new) = (self.order(), settings.order);
        let newest = |order| order == Order::NewestFirst;
        let strict = |order| order == Order::Strict;
        // Also where nothing was known before: a reset may have divided the lane on a guess.
        if strict(old) != strict(new) || newest(old) != newest(new) {
            self.end_drain();
            Tier::ALL.into_iter().for_each(|tier| self.take_back_postponed(tier));
        }
        if newest(old) != newest(new) {
            for ready in &mut self.ready {
                let ranks = ready.take();
                ready.extend(ranks.into_iter().map(|Reverse(rank)| Reverse(!rank)));
            }
        }
        if strict(old) != strict(new) {
            self.regroup();
        }
        self.settings = Some(Arc::clone(settings));
    }

    /// Pages that were asked for and have not come.
    pub(super) fn pages_under_way(&self) -> u8 {
        let own = self.overflow.iter().map(|queue| u8::from(queue.paging)).sum::<u8>();
        own + self.drain().map_or(0, Drain::pages_under_way) + self.old_pages
    }

    /// Its queues are cut differently from now on, so nobody knows what is behind which: pages under
    /// way say nothing of them. Whether anything may be behind them at all.
    pub(super) fn regroup(&mut self) -> bool {
        let paging = self.pages_under_way();
        let more = paging > 0 || self.has_more();
        self.old_pages = paging;
        self.overflow = [if more { Overflow::UNKNOWN } else { Overflow::default() }; 3];
        more
    }

    /// Keeps what waits now apart from what will come.
    pub(super) fn begin_drain(&mut self, drain: Drain) {
        self.end_drain();
        // Rows that are behind the window are looked for in every part, the fresh one included: an id
        // may be older than what arrived last.
        let more = self.regroup();
        let Some(destination) = &mut self.destination else { return };
        let mut drain = Box::new(drain);
        if more {
            drain.look_behind();
        }
        destination.drain = Some(drain);
    }

    /// Nothing is kept apart any more.
    pub(super) fn end_drain(&mut self) {
        if self.drain().is_none() {
            return;
        }
        if self.drain().is_some_and(|drain| !drain.is_empty()) {
            self.regroup();
        }
        let Some(mut drain) = self.destination.as_mut().and_then(|destination| destination.drain.take()) else {
            return;
        };
        for tier in Tier::ALL {
            let mut taken = Vec::new();
            drain.take_ready(tier, &mut taken);
            self.ready[tier.index()].extend(taken);
        }
    }

    /// A delivery's place in the heap; applied twice it gives the id back.
    fn rank(&self, raw: u64) -> u64 {
        if self.order() == Order::NewestFirst { !raw } else { raw }
    }
}
