//! A lane: the pending deliveries of one destination, with one queue for each tier, and the lane's settings.
//!
//! Invariant: without settings a lane sends nothing.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::destination::DestinationState;
use super::drain::{Drain, DrainPart};
use super::ready::{Rank, Ready};
use super::turn::Speed;
use crate::flow::SharedGate;
use crate::flow::breaker::BreakerState;
use crate::flow::bucket::Rate;
use crate::id::{CredentialId, RegionId};
use crate::off_peak::OffPeak;
use crate::{DeliveryId, Hold, LaneId, OriginId, Policy, TenantId, Tier, Timestamp, Why};

/// The order in which a destination gets its deliveries (G4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First in, first out.
    #[default]
    Fifo,
    NewestFirst,
    /// First in, first out; each delivery waits until the one before has ended.
    Strict,
}

/// What a strict lane does when its first delivery dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// Continue with the next delivery.
    #[default]
    Skip,
    /// Pause the lane until it is resumed.
    Hold,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LaneSettings {
    pub lane: LaneId,
    pub tenant: TenantId,
    /// Counts the changes of these settings. Older settings that arrive late are ignored.
    pub version: u32,
    /// Counts, in this process, the changes of rules that several lanes share: named policies and tenant settings.
    /// Settings made from older rules that arrive late are ignored.
    pub rules: u32,
    /// Whether the endpoint is disabled: its deliveries wait until it is enabled.
    pub disabled: bool,
    pub order: Order,
    pub on_dead: OnDead,
    /// The most attempts in flight at once.
    pub max_in_flight: u16,
    pub policy: Arc<Policy>,
    /// The scheme, host and port of the endpoint's URL.
    pub origin: Option<OriginId>,
    pub special: Option<Box<Special>>,
}

// Every lane in the window has one. With the counts of its `Arc` it takes 72 bytes, which allocators serve from a block
// of 80.
const _: () = assert!(size_of::<LaneSettings>() <= 56);

/// Settings that only some lanes have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Special {
    pub rate: Option<Rate>,
    /// The daily window in which engagement messages may be sent.
    pub off_peak: Option<OffPeak>,
    /// The provider, or the group of origins, that the lane belongs to.
    pub region: Option<RegionId>,
    /// The credential with which the lane sends to its provider.
    pub credential: Option<CredentialId>,
}

impl LaneSettings {
    /// Settings with the defaults: first in, first out, 64 attempts in flight.
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

    #[must_use]
    pub fn with(self, special: Special) -> Self {
        Self { special: Some(Box::new(special)), ..self }
    }

    /// What a strict lane does when its first delivery dies; `None` unless it is strict.
    pub fn strict(&self) -> Option<OnDead> {
        (self.order == Order::Strict).then_some(self.on_dead)
    }

    pub fn rate(&self) -> Option<&Rate> {
        self.special.as_ref()?.rate.as_ref()
    }

    pub fn off_peak(&self) -> Option<&OffPeak> {
        self.special.as_ref()?.off_peak.as_ref()
    }

    /// The gates that the lane shares with others, narrowest first.
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

/// A lane with deliveries in the window or with other state to keep.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    /// `None` until they have been read from the store.
    pub(super) settings: Option<Arc<LaneSettings>>,
    /// The state of its destination; `None` before the first attempt.
    pub(super) destination: Option<Box<DestinationState>>,
    /// The lane's pause, and the hold that an answer asked for.
    pub(super) holds: Option<Box<Holds>>,
    /// The earliest timer that checks the lane.
    pub(super) wakes_at: Timestamp,
    pub(super) in_flight: u16,
    /// How many of its deliveries are in the window, in any stage, by tier.
    pub(super) kept: [u32; 3],
    /// Whether the store has more rows than the window, by tier; while a backlog drains, of the fresh part.
    pub(super) overflow: [Overflow; 3],
    /// Requested pages from before the lane's queues were divided differently. They do not tell what is behind the
    /// queues that exist now.
    pub(super) old_pages: u8,
    /// Whether the lane is in a tier's ring.
    pub(super) in_ring: [bool; 3],
    pub(super) wants_page: bool,
    /// New rows that requested pages may bring.
    pub(super) rows_to_come: u16,
    ready: [Ready; 3],
}

/// Why a whole lane waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holds {
    /// A `Retry-After`, or a refused credential.
    pub(super) by_answer: Option<Hold>,
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
    /// The store may have spilled rows that are not in the window.
    pub(super) more: bool,
    /// A page was requested and has not come.
    pub(super) paging: bool,
    /// Rows were spilled since that page was requested: it may have missed them.
    pub(super) since: bool,
}

impl Overflow {
    /// It is not known whether rows are behind the window: a page must be read.
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
            wants_page: false,
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

    /// The index of the queue with which a tier's rows are paged: a strict lane is paged as a whole.
    pub(super) fn paged_as(&self, tier: Tier) -> usize {
        if self.is_strict() { 0 } else { tier.index() }
    }

    /// What is behind one of its queues.
    pub(super) fn overflow(&mut self, part: DrainPart, tier: Tier) -> &mut Overflow {
        let at = self.paged_as(tier);
        let drain = self.destination.as_mut().and_then(|destination| destination.drain.as_mut());
        match (drain, part) {
            (Some(drain), DrainPart::Waited(step)) => drain.overflow(step, at),
            _ => &mut self.overflow[at],
        }
    }

    /// Whether the store has rows of this queue behind the window; while a backlog drains, fresh ones.
    pub(super) fn is_spilling(&self, tier: Tier) -> bool {
        self.overflow[self.paged_as(tier)].is_spilling()
    }

    /// [`Self::is_spilling`] of every tier.
    pub(super) fn spilling(&self) -> [bool; 3] {
        Tier::ALL.map(|tier| self.is_spilling(tier))
    }

    /// Whether rows of any of its queues may be behind the window.
    pub(super) fn has_more(&self) -> bool {
        self.overflow.iter().any(|queue| queue.more) || self.drain().is_some_and(Drain::has_more)
    }

    /// Whether the lane has no work and no state to keep, so that it may be dropped.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.kept == [0; 3]
            && self.holds.as_ref().is_none_or(|holds| holds.holding(now).is_none())
            && self.old_pages == 0
            && self.overflow.iter().all(|overflow| !overflow.is_spilling())
            && self.destination.as_ref().is_none_or(|destination| destination.is_over(self.settings.as_deref(), now))
    }

    /// Whether deliveries wait in the window, or rows behind it.
    pub(super) fn has_work(&self) -> bool {
        self.kept.iter().sum::<u32>() > u32::from(self.in_flight) || self.has_more()
    }

    /// What holds the lane by itself: missing settings, a disabled endpoint, a pause or a hold of an answer.
    pub(super) fn held(&self, now: Timestamp) -> Option<Hold> {
        let Some(settings) = &self.settings else { return Some(Hold { why: Why::Store, until: None }) };
        if settings.disabled {
            return Some(Hold { why: Why::EndpointDisabled, until: None });
        }
        self.holds.as_ref()?.holding(now)
    }

    /// The hold that an answer asked for, while it lasts.
    pub(super) fn asked(&self, now: Timestamp) -> Option<Hold> {
        self.holds.as_ref()?.by_answer.filter(|hold| hold.holds(now))
    }

    pub(super) fn holds_mut(&mut self) -> &mut Holds {
        self.holds.get_or_insert_default()
    }

    pub(super) fn release(&mut self, now: Timestamp) {
        let Some(holds) = &mut self.holds else { return };
        holds.paused = holds.paused.filter(|hold| hold.holds(now));
        holds.by_answer = holds.by_answer.filter(|hold| hold.holds(now));
        if holds.paused.is_none() && holds.by_answer.is_none() {
            self.holds = None;
        }
    }

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

    pub(super) fn breaker_state(&self, now: Timestamp) -> BreakerState {
        self.destination.as_ref().map_or(BreakerState::Closed, |destination| destination.breaker.standing(now))
    }

    /// When its last attempt started, as far as that is known.
    pub(super) fn used(&self) -> Timestamp {
        self.destination.as_ref().map_or(Timestamp::default(), |destination| destination.used)
    }

    /// Whether attempts at its destination take long.
    pub(super) fn speed(&self) -> Speed {
        match &self.destination {
            Some(destination) if destination.concurrency.is_slow() => Speed::Slow,
            _ => Speed::Quick,
        }
    }

    /// The part to which a delivery with this birth belongs.
    pub(super) fn part(&self, born: Timestamp) -> DrainPart {
        self.drain().map_or(DrainPart::Fresh, |drain| drain.part(born))
    }

    pub(super) fn ranked(&self, id: DeliveryId) -> Rank {
        Reverse(self.rank(id.raw()))
    }

    /// Puts retries that were over the budget back among the ready deliveries.
    pub(super) fn take_back_postponed(&mut self, tier: Tier) {
        let Some(destination) = &mut self.destination else { return };
        let postponed = destination.postponed[tier.index()].take();
        self.ready[tier.index()].extend(postponed);
    }

    /// When the next retry that was over the budget may be sent, if there is one.
    pub(super) fn postponed_until(&self, tier: Tier, now: Timestamp) -> Option<Timestamp> {
        let destination =
            self.destination.as_ref().filter(|destination| !destination.postponed[tier.index()].is_empty())?;
        destination.budget.next_at(now)
    }

    /// Takes a retry that was over the budget, if it may be sent now.
    pub(super) fn pop_postponed(&mut self, tier: Tier, now: Timestamp) -> Option<DeliveryId> {
        let destination = self.destination.as_mut().filter(|destination| destination.budget.next_at(now).is_none())?;
        let Reverse(rank) = destination.postponed[tier.index()].pop()?;
        Some(DeliveryId::from_raw(self.rank(rank)))
    }

    pub(super) fn push(&mut self, tier: Tier, part: DrainPart, id: DeliveryId) {
        let rank = self.ranked(id);
        match (self.drain_mut(), part) {
            (Some(drain), DrainPart::Waited(step)) => drain.push(step, tier, rank),
            _ => self.ready[tier.index()].push(rank),
        }
    }

    /// Takes the next ready delivery of a tier. `waited` returns how long a delivery has waited; it is used while a
    /// backlog drains.
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

    pub(super) fn ready_count(&self, part: DrainPart, tier: Tier) -> usize {
        match (self.drain(), part) {
            (Some(drain), DrainPart::Waited(step)) => drain.ready_count(step, tier),
            _ => self.ready[tier.index()].len(),
        }
    }

    /// Takes all ready deliveries of a tier, of every part.
    pub(super) fn take_ready(&mut self, tier: Tier) -> Vec<DeliveryId> {
        let mut taken = self.ready[tier.index()].take();
        if let Some(drain) = self.drain_mut() {
            taken.extend(drain.take_ready(tier));
        }
        taken.sort_unstable_by(|a, b| b.cmp(a));
        taken.into_iter().map(|Reverse(rank)| DeliveryId::from_raw(self.rank(rank))).collect()
    }

    /// Replaces the settings. If the order changed, ranks and queues are rebuilt.
    pub(super) fn take_over(&mut self, settings: &Arc<LaneSettings>) {
        let (old, new) = (self.order(), settings.order);
        let newest = |order| order == Order::NewestFirst;
        let strict = |order| order == Order::Strict;
        // Also without earlier settings: a reset of the breaker may have divided the lane before they were known.
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

    pub(super) fn pages_under_way(&self) -> u8 {
        let own = self.overflow.iter().map(|queue| u8::from(queue.paging)).sum::<u8>();
        own + self.drain().map_or(0, Drain::pages_under_way) + self.old_pages
    }

    /// Divides the lane into queues anew, so that requested pages no longer tell what is behind which queue. Returns
    /// whether rows may be behind any of them.
    pub(super) fn regroup(&mut self) -> bool {
        let paging = self.pages_under_way();
        let more = paging > 0 || self.has_more();
        self.old_pages = paging;
        self.overflow = [if more { Overflow::UNKNOWN } else { Overflow::default() }; 3];
        more
    }

    /// Starts to keep the current backlog apart from deliveries that come later.
    pub(super) fn begin_drain(&mut self, drain: Drain) {
        self.end_drain();
        // Rows behind the window are searched for in every part, the fresh one included, since ids do not arrive in
        // order.
        let more = self.regroup();
        let Some(destination) = &mut self.destination else { return };
        let mut drain = Box::new(drain);
        if more {
            drain.look_behind();
        }
        destination.drain = Some(drain);
    }

    /// Ends the drain: its deliveries join the lane's own queues.
    pub(super) fn end_drain(&mut self) {
        if self.drain().is_some_and(|drain| !drain.is_empty()) {
            self.regroup();
        }
        let drain = self.destination.as_mut().and_then(|destination| destination.drain.take());
        let Some(mut drain) = drain else { return };
        for tier in Tier::ALL {
            self.ready[tier.index()].extend(drain.take_ready(tier));
        }
    }

    /// Maps an id to its rank in the heap, and a rank back to the id.
    fn rank(&self, raw: u64) -> u64 {
        if self.order() == Order::NewestFirst { !raw } else { raw }
    }
}
