//! What becomes of one delivery. [`settle`] is the single place where the outcome of an attempt
//! turns into the next state; retry, give-up, expiry and the end of an endpoint are all decided
//! here. Obeyed by the engine's dispatch loop, remembered by the store's `settle`.
//!
//! Invariants: a due time is never before `now`; an attempt is counted unless it failed by our own
//! fault; a delivery without a TTL never expires.

use std::time::Duration;

use crate::cause::{Cause, Class};
use crate::dice::Roll;
use crate::hold::{Hold, Why};
use crate::id::{DeliveryId, LaneId, MessageId};
use crate::policy::Policy;
use crate::state::State;
use crate::tier::Tier;
use crate::time::Timestamp;

/// A name that does not exist, or a bad certificate, is tried this often in a row (B3): enough for
/// a slip of a deployment, too few to hammer a typo for days.
pub const LIMITED_IN_A_ROW_MAX: u8 = 5;

/// A message with a TTL of zero starts within this time of being accepted, or never (D1).
pub const NOW_OR_NEVER: Duration = Duration::from_secs(5);

/// How much later than asked a `Retry-After` may be answered, so that a lane's callers spread.
const RETRY_AFTER_SPREAD: u32 = 10;

/// How soon something we failed to send by our own fault is taken up again.
const OWN_FAULT_WAIT: Duration = Duration::from_secs(1);

/// When a delivery stops being worth sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It never does: no TTL was set.
    Never,
    /// No attempt starts at or after this.
    At(Timestamp),
    /// A TTL of zero: one attempt, started before this, and no retry.
    NowOrNever(Timestamp),
}

impl Expiry {
    /// The expiry of something born (accepted, or due to be delivered) at `born` with this TTL.
    pub fn from_ttl(born: Timestamp, ttl: Option<Duration>) -> Self {
        match ttl {
            None => Self::Never,
            Some(Duration::ZERO) => Self::NowOrNever(born + NOW_OR_NEVER),
            Some(ttl) => Self::At(born + ttl),
        }
    }

    /// The instant from which no attempt may start.
    pub const fn at(self) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::At(at) | Self::NowOrNever(at) => Some(at),
        }
    }

    /// Whether it is over at `now`.
    pub fn is_over(self, now: Timestamp) -> bool {
        self.at().is_some_and(|at| now >= at)
    }
}

/// The smaller variant of a payload, for receivers that answer 413 (B5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compact {
    /// There is none.
    #[default]
    None,
    /// There is one, not used so far.
    Spare,
    /// It is what is sent from now on.
    InUse,
}

/// One message on its way to one endpoint, as its owner keeps it in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// What it carries.
    pub message: MessageId,
    /// The queue of its destination.
    pub lane: LaneId,
    /// How urgent it is.
    pub tier: Tier,
    /// Where it is.
    pub state: State,
    /// Attempts made so far.
    pub attempts: u16,
    /// The later of accept and `deliver_at`: what windows and TTLs count from.
    pub born: Timestamp,
    /// When it stops being worth sending.
    pub expiry: Expiry,
    /// The wait before the last attempt, which decorrelated jitter grows from.
    pub previous_wait: Option<Duration>,
    /// How many attempts in a row ended in the same [`Class::Limited`] cause.
    pub limited_in_a_row: u8,
    /// Why the last attempt failed.
    pub last_cause: Option<Cause>,
    /// How long to wait for a receipt after a 2xx; `None` when the 2xx is the end (A3).
    pub ack_within: Option<Duration>,
    /// A receipt came before the 2xx it belongs to: the settle applies it.
    pub receipt_kept: bool,
    /// Whether a smaller payload is at hand.
    pub compact: Compact,
}

impl Delivery {
    /// One that was just made: due when it is born, nothing tried, no TTL, no receipt.
    pub const fn queued(id: DeliveryId, message: MessageId, lane: LaneId, tier: Tier, born: Timestamp) -> Self {
        Self {
            id,
            message,
            lane,
            tier,
            state: State::Queued { due: born },
            attempts: 0,
            born,
            expiry: Expiry::Never,
            previous_wait: None,
            limited_in_a_row: 0,
            last_cause: None,
            ack_within: None,
            receipt_kept: false,
            compact: Compact::None,
        }
    }

    /// The waiting state it goes back to when it was picked but not sent.
    pub fn put_back(&self, due: Timestamp) -> State {
        match self.last_cause {
            Some(cause) => State::Retry { due, cause },
            None => State::Queued { due },
        }
    }

    /// Whether it waits for longer than its policy had it wait after the attempt at that time: then its receiver asked
    /// for it.
    pub fn waits_as_asked(&self, tried: Timestamp) -> bool {
        let (State::Retry { due, cause }, Some(backoff)) = (self.state, self.previous_wait) else { return false };
        let own = if cause == Cause::TooManyRequests { backoff * 2 } else { backoff };
        // A slice makes a wait longer by a quarter at most.
        due.since(tried) > own + own / 4 + Duration::from_millis(1)
    }
}

/// What a channel says of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it means, the endpoint's overrides applied.
    pub class: Class,
    /// What happened.
    pub cause: Cause,
    /// The answer's status, where there was an answer.
    pub status: Option<u16>,
    /// A valid `Retry-After` on a status that has one, counted from our clock.
    pub retry_after: Option<Duration>,
}

impl Verdict {
    /// The verdict of an attempt that ended in this cause, without an answer.
    pub const fn of(cause: Cause) -> Self {
        Self { class: cause.class(), cause, status: None, retry_after: None }
    }
}

/// What to record of an attempt, and what it means beyond its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Where the delivery is now.
    pub state: State,
    /// Attempts made, this one included if it counts.
    pub attempts: u16,
    /// For [`Delivery::previous_wait`].
    pub previous_wait: Option<Duration>,
    /// For [`Delivery::limited_in_a_row`].
    pub limited_in_a_row: u8,
    /// For [`Delivery::compact`].
    pub compact: Compact,
    /// What the rest of the lane must wait for.
    pub lane_hold: Option<Hold>,
    /// Whether the endpoint is no more (B4).
    pub ends_endpoint: bool,
}

/// Decides what becomes of a delivery after an attempt.
pub fn settle(delivery: &Delivery, verdict: &Verdict, policy: &Policy, now: Timestamp, roll: Roll) -> Decision {
    let mut decision = Decision {
        state: delivery.state,
        attempts: delivery.attempts.saturating_add(1),
        previous_wait: delivery.previous_wait,
        limited_in_a_row: 0,
        compact: delivery.compact,
        // Whatever becomes of this one, the rest of its lane was asked to wait as well.
        lane_hold: asked_until(verdict, policy, now, roll)
            .map(|until| Hold { why: Why::RetryAfter, until: Some(until) }),
        // Also where a receipt proved that this one arrived: the next one will not.
        ends_endpoint: verdict.class == Class::Gone,
    };
    match verdict.class {
        Class::Delivered => decision.state = taken(delivery, now),
        Class::Credential => {
            decision.attempts = delivery.attempts;
            decision.state = delivery.put_back(now);
            decision.lane_hold = Some(Hold { why: Why::Credential, until: None });
        }
        Class::Ours => {
            decision.attempts = delivery.attempts;
            decision.limited_in_a_row = delivery.limited_in_a_row;
            decision.state = delivery.put_back(now + OWN_FAULT_WAIT);
        }
        // A receipt already proved that it arrived, whatever the attempt looked like from here.
        _ if delivery.receipt_kept => decision.state = State::Delivered { at: now },
        // There was nothing to send any more, so nothing was tried.
        Class::Decided if verdict.cause == Cause::Erased => {
            decision.attempts = delivery.attempts;
            decision.state = State::Cancelled { at: now, cause: verdict.cause };
        }
        Class::Dead | Class::Decided => decision.state = State::Dead { at: now, cause: verdict.cause },
        Class::Gone => decision.state = State::Dead { at: now, cause: Cause::EndpointGone },
        Class::TooLarge if delivery.compact == Compact::Spare => {
            decision.compact = Compact::InUse;
            decision.state = if delivery.expiry.is_over(now) {
                State::Expired { at: now }
            } else {
                State::Retry { due: now, cause: verdict.cause }
            };
        }
        Class::TooLarge => decision.state = State::Dead { at: now, cause: verdict.cause },
        Class::Retry | Class::Limited => try_again(delivery, verdict, policy, now, roll, &mut decision),
    }
    decision
}

/// Decides what becomes of a delivery whose receipt did not come in time (A3).
///
/// The attempt was counted when it was sent; only the wait is decided here.
pub fn ack_timeout(delivery: &Delivery, policy: &Policy, now: Timestamp, roll: Roll) -> Decision {
    let before = Delivery { attempts: delivery.attempts.saturating_sub(1), receipt_kept: false, ..delivery.clone() };
    settle(&before, &Verdict::of(Cause::AckTimeout), policy, now, roll)
}

fn taken(delivery: &Delivery, now: Timestamp) -> State {
    match delivery.ack_within {
        Some(within) if !delivery.receipt_kept => State::AwaitingAck { until: now + within },
        _ => State::Delivered { at: now },
    }
}

/// Until when the receiver asked to be left alone; a zero says nothing.
fn asked_until(verdict: &Verdict, policy: &Policy, now: Timestamp, roll: Roll) -> Option<Timestamp> {
    let asked = verdict.retry_after.filter(|wait| !wait.is_zero())?.min(policy.retry_after_max());
    Some(now + roll.between(asked, asked + asked / RETRY_AFTER_SPREAD))
}

fn try_again(
    delivery: &Delivery,
    verdict: &Verdict,
    policy: &Policy,
    now: Timestamp,
    roll: Roll,
    decision: &mut Decision,
) {
    let cause = verdict.cause;
    if verdict.class == Class::Limited {
        let in_a_row = if delivery.last_cause == Some(cause) { delivery.limited_in_a_row } else { 0 };
        decision.limited_in_a_row = in_a_row.saturating_add(1);
    }
    if matches!(delivery.expiry, Expiry::NowOrNever(_)) {
        decision.state = State::Expired { at: now };
        return;
    }
    let backoff = policy.wait(decision.attempts, delivery.tier, delivery.previous_wait, roll);
    let Some(backoff) = backoff.filter(|_| decision.limited_in_a_row < LIMITED_IN_A_ROW_MAX) else {
        return give_up(decision, now, cause);
    };
    let due = match asked_until(verdict, policy, now, roll) {
        // Never earlier than asked. Never earlier than the policy either: a receiver that always
        // says "in a second" would otherwise use up every attempt within seconds.
        Some(until) => until.max(now + backoff),
        // Told to slow down, but not how far.
        None if cause == Cause::TooManyRequests && verdict.retry_after.is_none() => now + backoff * 2,
        None => now + backoff,
    };
    let window_ends = policy.window().map(|window| delivery.born + window);
    decision.state = match (delivery.expiry, window_ends) {
        (Expiry::At(at), window) if due >= at && window.is_none_or(|end| at <= end) => State::Expired { at: now },
        (_, Some(end)) if due > end => return give_up(decision, now, cause),
        _ => State::Retry { due, cause },
    };
    decision.previous_wait = Some(backoff);
}

fn give_up(decision: &mut Decision, now: Timestamp, cause: Cause) {
    decision.state = State::Dead { at: now, cause };
}

#[cfg(test)]
mod tests;
