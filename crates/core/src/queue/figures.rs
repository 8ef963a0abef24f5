//! How much there is to do, as an operator watches it (K1). Asked for now and then: it looks at the whole
//! window, so that nothing is counted while deliveries come and go.

use std::collections::BTreeMap;

use super::{BreakerOf, Queue, Stage};
use crate::flow::SharedGate;
use crate::flow::breaker::Standing;
use crate::hold::Hold;
use crate::state::Phase;
use crate::tier::Tier;
use crate::time::Timestamp;

/// What has a breaker of its own, in the order of [`BreakerScope::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerScope {
    /// An endpoint.
    Endpoint,
    /// Scheme, host and port.
    Origin,
    /// A provider, or a group of origins.
    Region,
    /// A credential.
    Credential,
    /// What finds out where receivers are.
    Resolver,
}

impl BreakerScope {
    /// Every one.
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

    /// What a gate that lanes share is.
    pub const fn of(gate: SharedGate) -> Self {
        match gate {
            SharedGate::Origin(_) => Self::Origin,
            SharedGate::Region(_) => Self::Region,
            SharedGate::Credential(_) => Self::Credential,
            SharedGate::Resolver => Self::Resolver,
        }
    }
}

/// How much is in the window, and what holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Deliveries in memory by state: those that can be there.
    pub states: [(Phase, u64); 4],
    /// Those of them whose time has come and that are not under way.
    pub ready: u64,
    /// Those of them that nothing holds: only the turns of others are before them.
    pub unheld: u64,
    /// Attempts under way.
    pub in_flight: u64,
    /// How long ago the first of those that are ready was due.
    pub oldest_due: Option<Timestamp>,
    /// The same of those that nothing holds.
    pub oldest_unheld: Option<Timestamp>,
    /// Queues with more on the disk than in memory.
    pub spilling: u64,
    /// Breakers that are not closed, by [`BreakerScope`].
    pub open: [u64; 5],
    /// How often one opened, by [`BreakerScope`].
    pub trips: [u64; 5],
    /// The pause of everything, if there is one.
    pub paused: Option<Hold>,
    /// Tenants that are paused.
    pub paused_tenants: u64,
    /// Origins that are paused.
    pub paused_origins: u64,
}

impl Queue {
    /// Looks at everything in the window.
    pub fn figures(&self, now: Timestamp) -> Figures {
        let mut figures = Figures {
            in_flight: self.in_flight.len() as u64,
            spilling: self
                .lanes
                .iter()
                .map(|lane| Tier::ALL.iter().filter(|tier| lane.is_spilling(**tier)).count() as u64)
                .sum(),
            trips: self.trips,
            paused: self.paused_all.filter(|hold| hold.holds(now)),
            paused_tenants: self.paused_tenants.values().filter(|hold| hold.holds(now)).count() as u64,
            paused_origins: self.paused_origins.values().filter(|hold| hold.holds(now)).count() as u64,
            states: [Phase::Queued, Phase::Dispatching, Phase::Retry, Phase::AwaitingAck].map(|phase| (phase, 0)),
            ready: 0,
            unheld: 0,
            oldest_due: None,
            oldest_unheld: None,
            open: [0; 5],
        };
        let mut firsts = BTreeMap::new();
        for item in self.items.iter() {
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
        firsts.retain(|(lane, tier), _| self.bar(*lane, *tier, now).is_none());
        figures.oldest_unheld = firsts.values().map(|(first, _)| *first).min();
        figures.unheld = firsts.values().map(|(_, count)| *count).sum();
        for shown in self.breakers(now) {
            let scope = match shown.of {
                BreakerOf::Lane(_) => BreakerScope::Endpoint,
                BreakerOf::Shared(gate) => BreakerScope::of(gate),
            };
            figures.open[scope as usize] += u64::from(shown.standing != Standing::Closed);
        }
        figures
    }
}
