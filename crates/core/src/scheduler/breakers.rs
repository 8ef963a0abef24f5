//! Breakers as an operator sees and resets them (E3), and their part that survives a restart.
//!
//! Invariant: after a restart a breaker that was not closed is half-open.

use super::destination::DestinationState;
use super::{Scheduler, TenantSettings};
use crate::flow::breaker::{Breaker, BreakerState, OpenReason, Soft};
use crate::flow::{Protection, SharedGate, pace};
use crate::{LaneId, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerOf {
    /// A lane: the breaker of an endpoint.
    Lane(LaneId),
    /// A gate that lanes share.
    Shared(SharedGate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerShown {
    pub of: BreakerOf,
    pub standing: BreakerState,
    pub opened: Option<OpenReason>,
    /// How much of the window it holds: deliveries of a lane, or lanes at a shared gate.
    pub holds: usize,
}

/// The part of a breaker that is kept over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftBreaker {
    pub of: BreakerOf,
    pub soft: Soft,
}

/// The progress of a recovery (E2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The rate of sends, in thousandths a second.
    pub rate_milli: u64,
    /// When the backlog will be drained at this rate; `None` if it never will be.
    pub drained_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Become half-open: probes are sent, and it closes when they succeed.
    Probe,
    Force,
}

impl Scheduler {
    pub fn set_tenant(&mut self, now: Timestamp, settings: TenantSettings) {
        self.turns.set(settings, now);
    }

    /// Every breaker that is not closed, lanes first.
    pub fn breakers(&self, now: Timestamp) -> Vec<BreakerShown> {
        let shown = self.known_breakers().map(|(of, breaker, holds)| {
            let (standing, opened) = (breaker.standing(now), breaker.reason());
            BreakerShown { of, standing, opened, holds }
        });
        shown.filter(|shown| shown.standing != BreakerState::Closed).collect()
    }

    /// The breakers that may not be closed, lanes first, each with [`BreakerShown::holds`].
    fn known_breakers(&self) -> impl Iterator<Item = (BreakerOf, &Breaker, usize)> {
        let lanes = self.lanes.troubled().filter_map(|lane| {
            let kept = lane.kept.iter().sum::<u32>() as usize;
            Some((BreakerOf::Lane(lane.id), &lane.destination.as_ref()?.breaker, kept))
        });
        lanes.chain(self.shared.iter().map(|(gate, breaker, parked)| (BreakerOf::Shared(gate), breaker, parked)))
    }

    /// Resets a breaker; `false` if it does not exist or is closed.
    pub fn reset(&mut self, now: Timestamp, of: BreakerOf, how: Reset) -> bool {
        let breaker = match of {
            BreakerOf::Lane(lane) => self
                .lanes
                .find(lane)
                .and_then(|index| self.lanes[index].destination.as_mut().map(|destination| &mut destination.breaker)),
            BreakerOf::Shared(gate) => self.shared.breaker_mut(gate),
        };
        let Some(breaker) = breaker.filter(|breaker| breaker.standing(now) != BreakerState::Closed) else {
            return false;
        };
        match how {
            Reset::Probe => breaker.reset(),
            Reset::Force => breaker.force_close(now),
        }
        match (of, how) {
            (BreakerOf::Lane(lane), _) => {
                let index = self.lanes.ensure(lane);
                match how {
                    Reset::Force => self.recovered(index, now),
                    Reset::Probe => self.enqueue_tiers(index, now),
                }
            }
            (BreakerOf::Shared(gate), Reset::Force) => self.shared_recovered(gate, now),
            (BreakerOf::Shared(gate), Reset::Probe) => self.enqueue_parked(gate, now),
        }
        true
    }

    /// The breakers that are not closed, for the next start.
    pub fn soft_breakers(&self) -> Vec<SoftBreaker> {
        let soft = |(of, breaker, _): (BreakerOf, &Breaker, usize)| Some(SoftBreaker { of, soft: breaker.soft()? });
        self.known_breakers().filter_map(soft).collect()
    }

    /// Restores breakers that were not closed before a restart, as half-open.
    pub fn restore_breakers(&mut self, now: Timestamp, breakers: &[SoftBreaker]) {
        if self.limits.protection == Protection::Off {
            return;
        }
        for SoftBreaker { of, soft } in breakers {
            match of {
                BreakerOf::Lane(lane) => {
                    let index = self.lanes.ensure(*lane);
                    self.lanes.breaker_opened(*lane, false);
                    let destination = &mut self.lanes[index].destination;
                    let destination = destination.get_or_insert_with(|| Box::new(DestinationState::unlimited(now)));
                    destination.breaker = Breaker::restore(*soft);
                }
                BreakerOf::Shared(gate) => self.restore_shared(*gate, *soft, now),
            }
        }
    }

    /// The progress of a lane's recovery with `waiting` deliveries to send; `None` if it is not recovering.
    pub fn recovery(&self, now: Timestamp, lane: LaneId, waiting: u64) -> Option<Recovery> {
        let destination = self.lanes.of(lane)?.destination.as_ref()?;
        let rate_milli = destination.pace.as_ref()?.rate;
        let drained_at = pace::forecast(now, waiting, rate_milli, destination.healthy);
        Some(Recovery { rate_milli, drained_at })
    }
}
