//! What operators see of the window: why a delivery waits (G5), and figures (K1). The figures are computed from the whole
//! window when they are asked for, so that admitting and sending need no counters. Nothing here changes it.

use std::collections::BTreeMap;

use super::lane::Lane;
use super::turn::Speed;
use super::window::Item;
use super::{BreakerOf, Scheduler, Stage};
use crate::flow::SharedGate;
use crate::flow::breaker::BreakerState;
use crate::named::named;
use crate::{DeliveryId, Hold, LaneId, Phase, State, Timestamp, Why};

/// Whether a delivery waits, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explained {
    /// It is being sent, or its outcome is being written.
    UnderWay,
    Waits(Hold),
}

named! {
    /// The kinds of breakers, in the order of [`BreakerScope::ALL`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BreakerScope {
        Endpoint "endpoint",
        /// Scheme, host and port.
        Origin "origin",
        /// A provider, or a group of origins.
        Region "region",
        Credential "credential",
        Resolver "resolver",
    }
}

impl BreakerScope {
    /// The kind of a shared gate's breaker.
    pub const fn of(gate: SharedGate) -> Self {
        match gate {
            SharedGate::Origin(_) => Self::Origin,
            SharedGate::Region(_) => Self::Region,
            SharedGate::Credential(_) => Self::Credential,
            SharedGate::Resolver => Self::Resolver,
        }
    }
}

/// How many deliveries are in the window, and what holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerFigures {
    /// Deliveries in memory, by the states that are kept there.
    pub states: [(Phase, u64); 4],
    /// Deliveries that are due and neither in flight nor being recorded.
    pub ready: u64,
    /// Ready deliveries of lanes that are not blocked: they only wait for their turn.
    pub unheld: u64,
    pub in_flight: u64,
    /// The earliest due time of the ready deliveries.
    pub oldest_due: Option<Timestamp>,
    /// The earliest due time of the ready deliveries of lanes that are not blocked.
    pub oldest_unheld: Option<Timestamp>,
    /// Queues that may have rows behind the window.
    pub spilling: u64,
    /// Breakers that are not closed, by [`BreakerScope`].
    pub open: [u64; 5],
    /// How often breakers opened, by [`BreakerScope`].
    pub trips: [u64; 5],
    pub paused: Option<Hold>,
    pub paused_tenants: u64,
    pub paused_origins: u64,
}

impl Scheduler {
    /// Why a delivery waits. `lane` and `state` are those of its row, for a delivery that is not in the window.
    pub fn explain(&self, now: Timestamp, id: DeliveryId, lane: LaneId, state: State) -> Explained {
        let Some(item) = self.window.get(id) else { return Explained::Waits(self.explain_row(now, lane, state)) };
        Explained::Waits(match item.stage {
            Stage::InFlight | Stage::Recording => return Explained::UnderWay,
            Stage::Waiting => until_due(item.delivery.state, Some(&self.lanes[item.lane]), now),
            Stage::Ready => self.explain_ready(item, now),
        })
    }

    fn explain_ready(&self, item: &Item, now: Timestamp) -> Hold {
        let (lane, delivery) = (&self.lanes[item.lane], &item.delivery);
        if let Some(block) = self.blocked_by(item.lane, delivery.tier, now) {
            return block.hold;
        }
        if lane.speed() == Speed::Slow && !self.has_room_for_slow() {
            return Hold { why: Why::Concurrency, until: None };
        }
        if let Some(destination) = &lane.destination
            && destination.postponed[delivery.tier.index()].contains(lane.ranked(delivery.id))
        {
            return Hold { why: Why::RetryBudget, until: destination.budget.next_at(now) };
        }
        let tenant = lane.settings.as_ref().and_then(|settings| self.turns.holding(settings.tenant, now));
        tenant.unwrap_or(Hold { why: Why::Turn, until: None })
    }

    fn explain_row(&self, now: Timestamp, lane: LaneId, state: State) -> Hold {
        let lane = self.lanes.of(lane);
        if state.due().is_some_and(|due| due > now) {
            return until_due(state, lane, now);
        }
        let hold = match lane {
            Some(lane) => self.holding(lane, now),
            None => self.pauses.holding(None, now).map(|(_, hold)| hold),
        };
        let strict = lane.is_some_and(Lane::is_strict);
        hold.unwrap_or(Hold { why: if strict { Why::Order } else { Why::Turn }, until: None })
    }

    /// The figures at `now`. It looks at every delivery of the window.
    pub fn figures(&self, now: Timestamp) -> SchedulerFigures {
        let (paused_tenants, paused_origins) = self.pauses.counts(now);
        let mut figures = SchedulerFigures {
            in_flight: self.window.in_flight() as u64,
            spilling: self
                .lanes
                .slots
                .iter()
                .map(|lane| lane.spilling().into_iter().filter(|is| *is).count() as u64)
                .sum(),
            trips: self.shared.trips,
            paused: self.pauses.all(now),
            paused_tenants,
            paused_origins,
            states: [Phase::Queued, Phase::Dispatching, Phase::Retry, Phase::AwaitingAck].map(|phase| (phase, 0)),
            ready: 0,
            unheld: 0,
            oldest_due: None,
            oldest_unheld: None,
            open: [0; 5],
        };
        figures.trips[BreakerScope::Endpoint as usize] = self.lanes.trips;
        let mut firsts = BTreeMap::new();
        for item in self.window.iter() {
            let delivery = &item.delivery;
            let phase = match item.stage {
                Stage::InFlight | Stage::Recording => Phase::Dispatching,
                Stage::Ready | Stage::Waiting => delivery.state.phase(),
            };
            if let Some((_, count)) = figures.states.iter_mut().find(|(of, _)| *of == phase) {
                *count += 1;
            }
            if item.stage == Stage::Ready {
                figures.ready += 1;
                let due = delivery.state.due().unwrap_or(now);
                let (first, count) = firsts.entry((item.lane, delivery.tier)).or_insert((due, 0));
                *first = due.min(*first);
                *count += 1;
            }
        }
        figures.oldest_due = firsts.values().map(|(first, _)| *first).min();
        firsts.retain(|(lane, tier), _| self.blocked_by(*lane, *tier, now).is_none());
        figures.oldest_unheld = firsts.values().map(|(first, _)| *first).min();
        figures.unheld = firsts.values().map(|(_, count)| *count).sum();
        for shown in self.breakers(now) {
            let scope = match shown.of {
                BreakerOf::Lane(_) => BreakerScope::Endpoint,
                BreakerOf::Shared(gate) => BreakerScope::of(gate),
            };
            figures.open[scope as usize] += u64::from(shown.standing != BreakerState::Closed);
        }
        figures
    }
}

/// Why a delivery waits that is not due yet: for its lane's `Retry-After` if that lasts as long, else for its due time.
fn until_due(state: State, lane: Option<&Lane>, now: Timestamp) -> Hold {
    let why = match state {
        State::AwaitingAck { .. } => Why::Ack,
        State::Retry { .. } => Why::Backoff,
        _ => Why::Scheduled,
    };
    let asked =
        lane.and_then(|lane| lane.asked(now)).filter(|asked| asked.until.is_none() || asked.until >= state.due());
    asked.filter(|_| why != Why::Ack).unwrap_or(Hold { why, until: state.due() })
}
