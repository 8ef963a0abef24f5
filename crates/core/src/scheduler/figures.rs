//! SchedulerFigures of the window for operators (K1). They are computed from the whole window when they are asked for, so that
//! admitting and sending need no counters.

use std::collections::BTreeMap;

use super::{BreakerOf, Scheduler, Stage};
use crate::flow::SharedGate;
use crate::flow::breaker::BreakerState;
use crate::hold::Hold;
use crate::state::Phase;
use crate::tier::Tier;
use crate::time::Timestamp;

/// The kinds of breakers, in the order of [`BreakerScope::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerScope {
    Endpoint,
    /// Scheme, host and port.
    Origin,
    /// A provider, or a group of origins.
    Region,
    Credential,
    Resolver,
}

impl BreakerScope {
    pub const ALL: [Self; 5] = [Self::Endpoint, Self::Origin, Self::Region, Self::Credential, Self::Resolver];

    /// Its name in metrics and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Origin => "origin",
            Self::Region => "region",
            Self::Credential => "credential",
            Self::Resolver => "resolver",
        }
    }

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
    /// The figures at `now`. It looks at every delivery of the window.
    pub fn figures(&self, now: Timestamp) -> SchedulerFigures {
        let (paused_tenants, paused_origins) = self.pauses.counts(now);
        let mut figures = SchedulerFigures {
            in_flight: self.window.in_flight() as u64,
            spilling: self
                .lanes
                .iter()
                .map(|lane| Tier::ALL.iter().filter(|tier| lane.is_spilling(**tier)).count() as u64)
                .sum(),
            trips: self.shared.trips(),
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
        figures.trips[BreakerScope::Endpoint as usize] = self.lanes.trips();
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
