//! The states of a delivery and the table of allowed transitions between them (A2).
//!
//! Invariant: a terminal state never changes. Every change goes through [`State::become_`], which
//! refuses transitions that the table does not list; the caller counts refusals.

use crate::named::named;
use crate::{Cause, Timestamp};

/// The state of a delivery, with the data that belongs to that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Accepted and not tried yet; the scheduler sends it once `due` has passed.
    Queued { due: Timestamp },
    /// Being sent. Kept in the owner's memory only; ends with the outcome of the attempt.
    Dispatching,
    /// The last attempt failed with `cause`; the next starts at `due` or later.
    Retry { due: Timestamp, cause: Cause },
    /// The receiver answered 2xx; ends with a receipt, or without one at `until`.
    AwaitingAck { until: Timestamp },
    /// The receiver has it. Terminal.
    Delivered { at: Timestamp },
    /// Given up; kept as a dead letter. Terminal.
    Dead { at: Timestamp, cause: Cause },
    /// Its TTL was over. Terminal.
    Expired { at: Timestamp },
    /// Ended by its owner or superseded by a newer message. Terminal.
    Cancelled { at: Timestamp, cause: Cause },
}

named! {
    /// A [`State`] without its data. The names are the states of the API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Phase {
        Queued "queued",
        Dispatching "dispatching",
        Retry "retry",
        AwaitingAck "awaiting_ack",
        Delivered "delivered",
        Dead "dead",
        Expired "expired",
        Cancelled "cancelled",
    }
}

use Phase::{AwaitingAck, Cancelled, Dead, Delivered, Dispatching, Expired, Queued, Retry};

/// Every allowed transition: from, to, and its reason. Any other is refused.
pub const TABLE: &[(Phase, Phase, &str)] = &[
    (Queued, Dispatching, "due, and its turn"),
    (Queued, Expired, "TTL over"),
    (Queued, Cancelled, "cancelled or superseded"),
    (Queued, Dead, "endpoint gone or quarantined"),
    (Dispatching, Queued, "not sent, no attempt made yet"),
    (Dispatching, Delivered, "2xx"),
    (Dispatching, AwaitingAck, "2xx, receipt required"),
    (Dispatching, Retry, "failed, or not sent"),
    (Dispatching, Dead, "refused, or attempts spent"),
    (Dispatching, Expired, "no retry fits the TTL"),
    (Dispatching, Cancelled, "failed after a cancel, or erased"),
    (Retry, Dispatching, "due, and its turn"),
    (Retry, Delivered, "late receipt"),
    (Retry, Expired, "TTL over"),
    (Retry, Cancelled, "cancelled or superseded"),
    (Retry, Dead, "endpoint gone or quarantined"),
    (AwaitingAck, Delivered, "receipt"),
    (AwaitingAck, Retry, "no receipt in time"),
    (AwaitingAck, Dead, "no receipt, attempts spent"),
    (AwaitingAck, Expired, "no receipt, no retry fits the TTL"),
    (AwaitingAck, Cancelled, "cancelled"),
];

impl Phase {
    /// Whether no transition leaves this state.
    pub fn is_terminal(self) -> bool {
        TABLE.iter().all(|(from, ..)| *from != self)
    }

    /// Whether the table lists this transition.
    pub fn may_become(self, to: Self) -> bool {
        TABLE.iter().any(|(a, b, _)| *a == self && *b == to)
    }
}

impl State {
    pub const fn phase(&self) -> Phase {
        match self {
            Self::Queued { .. } => Queued,
            Self::Dispatching => Dispatching,
            Self::Retry { .. } => Retry,
            Self::AwaitingAck { .. } => AwaitingAck,
            Self::Delivered { .. } => Delivered,
            Self::Dead { .. } => Dead,
            Self::Expired { .. } => Expired,
            Self::Cancelled { .. } => Cancelled,
        }
    }

    /// Whether the state never changes again.
    pub const fn is_terminal(&self) -> bool {
        matches!(self.phase(), Delivered | Dead | Expired | Cancelled)
    }

    /// Why the last attempt failed or the delivery ended; `None` if it has not failed.
    pub const fn cause(&self) -> Option<Cause> {
        match self {
            Self::Retry { cause, .. } | Self::Dead { cause, .. } | Self::Cancelled { cause, .. } => Some(*cause),
            Self::Expired { .. } => Some(Cause::TtlExpired),
            Self::Queued { .. } | Self::Dispatching | Self::AwaitingAck { .. } | Self::Delivered { .. } => None,
        }
    }

    /// When the next transition is due: an attempt, or the deadline of a receipt.
    pub const fn due(&self) -> Option<Timestamp> {
        match self {
            Self::Queued { due } | Self::Retry { due, .. } => Some(*due),
            Self::AwaitingAck { until } => Some(*until),
            _ => None,
        }
    }

    /// Changes to `next` and returns `true`, or keeps the current state if the table does not list the transition.
    #[must_use]
    pub fn become_(&mut self, next: Self) -> bool {
        let is_listed = self.phase().may_become(next.phase());
        if is_listed {
            *self = next;
        }
        is_listed
    }
}

/// The table as a Mermaid diagram, for `docs/states.md`.
pub fn mermaid() -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> queued\n");
    for (from, to, why) in TABLE {
        text += &format!("    {} --> {}: {why}\n", from.name(), to.name());
    }
    for phase in Phase::ALL.into_iter().filter(|phase| phase.is_terminal()) {
        text += &format!("    {} --> [*]\n", phase.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_state() -> impl Strategy<Value = State> {
        let at = Timestamp::from_millis(7);
        prop::sample::select(vec![
            State::Queued { due: at },
            State::Dispatching,
            State::Retry { due: at, cause: Cause::Unavailable },
            State::AwaitingAck { until: at },
            State::Delivered { at },
            State::Dead { at, cause: Cause::NotFound },
            State::Expired { at },
            State::Cancelled { at, cause: Cause::Cancelled },
        ])
    }

    #[test]
    fn terminal_phases_are_those_without_a_transition() {
        let terminal: Vec<_> = Phase::ALL.into_iter().filter(|phase| phase.is_terminal()).collect();
        assert_eq!(terminal, [Delivered, Dead, Expired, Cancelled]);
    }

    #[test]
    fn the_table_lists_no_transition_twice() {
        for (index, (from, to, _)) in TABLE.iter().enumerate() {
            assert!(TABLE[index + 1..].iter().all(|(a, b, _)| (a, b) != (from, to)), "{from:?} to {to:?}");
        }
    }

    #[test]
    fn every_state_can_reach_an_end() {
        for phase in Phase::ALL {
            let mut reached = vec![phase];
            let mut at = 0;
            while at < reached.len() {
                let here = reached[at];
                let next = TABLE.iter().filter(|(from, to, _)| *from == here && !reached.contains(to));
                let next: Vec<_> = next.map(|row| row.1).collect();
                reached.extend(next);
                at += 1;
            }
            assert!(reached.iter().any(|phase| phase.is_terminal()), "{phase:?} leads nowhere");
        }
    }

    proptest! {
        #[test]
        fn every_end_but_delivered_has_a_cause(state in any_state()) {
            let ends_undelivered = state.is_terminal() && state.phase() != Delivered;
            prop_assert_eq!(state.cause().is_some(), ends_undelivered || state.phase() == Retry);
        }

        #[test]
        fn a_walk_of_any_length_stays_on_the_table_and_ends_for_good(walk in prop::collection::vec(any_state(), 0..40)) {
            let mut state = State::Queued { due: Timestamp::from_millis(0) };
            for next in walk {
                let before = state;
                let allowed = TABLE.iter().any(|(a, b, _)| *a == before.phase() && *b == next.phase());
                prop_assert_eq!(state.become_(next), allowed);
                prop_assert!(!allowed || !before.is_terminal());
                prop_assert_eq!(state, if allowed { next } else { before }, "a refused transition changes nothing");
            }
        }
    }
}
