//! Explains why a delivery waits, and until when (G5). It changes nothing.

use super::lane::Lane;
use super::turn::Speed;
use super::window::Item;
use super::{Scheduler, Stage};
use crate::hold::{Hold, Why};
use crate::id::{DeliveryId, LaneId};
use crate::state::State;
use crate::time::Timestamp;

/// Whether a delivery waits, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explained {
    /// It is being sent, or its outcome is being written.
    UnderWay,
    Waits(Hold),
}

impl Scheduler {
    /// Why a delivery waits. `lane` and `state` are those of its row, for a delivery that is not in the window.
    pub fn explain(&self, now: Timestamp, id: DeliveryId, lane: LaneId, state: State) -> Explained {
        let Some(item) = self.window.get(id) else {
            return Explained::Waits(self.explain_row(now, lane, state));
        };
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
        if let Some(destination) = lane
            .destination
            .as_ref()
            .filter(|destination| destination.is_postponed(delivery.tier, lane.ranked(delivery.id)))
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
