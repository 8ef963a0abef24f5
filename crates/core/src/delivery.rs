//! What becomes of one delivery. [`settle`] is the single place where the outcome of an attempt
//! turns into a [`Decision`]: the next state and when it is due, who else waits, whether a strict lane
//! stops, what becomes of the endpoint. The queue, the dispatch loop and the stores apply it.
//!
//! Invariants: a due time is never before `now`; an attempt is counted unless it failed by our own
//! fault; a delivery without a TTL never expires.

use std::time::Duration;

use crate::cause::{Cause, Class};
use crate::cut::{self, EndpointChange};
use crate::dice::Roll;
use crate::hold::{Hold, Why};
use crate::id::{DeliveryId, EndpointId, LaneId, MessageId};
use crate::policy::Policy;
use crate::queue::{OnDead, Place};
use crate::slice::{self, Tightness};
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
    /// Where it goes.
    pub endpoint: EndpointId,
    /// The queue it waits in, alone or with the deliveries of other endpoints.
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
    pub const fn queued(
        id: DeliveryId,
        message: MessageId,
        endpoint: EndpointId,
        lane: LaneId,
        tier: Tier,
        born: Timestamp,
    ) -> Self {
        Self {
            id,
            message,
            endpoint,
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
    /// for it, or its channel's rules do.
    pub fn waits_as_asked(&self, tried: Timestamp) -> bool {
        let (State::Retry { due, cause }, Some(backoff)) = (self.state, self.previous_wait) else { return false };
        let own = if cause == Cause::TooManyRequests { backoff * 2 } else { backoff };
        // A slice makes a wait longer by a quarter at most.
        due.since(tried) > own + own / 4 + Duration::from_millis(1)
    }
}

/// Who an answer speaks for: how far beyond its delivery it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictScope {
    /// The endpoint alone: its provider throttles one device, and is well itself.
    Endpoint,
    /// Everything in the lane.
    Lane,
    /// Everything that is sent with the lane's credential.
    Credential,
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
    /// Who is to wait for the `Retry-After`, and whom a failure speaks against. The class `Credential` always speaks
    /// against the credential.
    pub scope: VerdictScope,
    /// How long this delivery waits at least, by the channel's own rules, if it is tried again.
    pub least_wait: Option<Duration>,
    /// Whether the endpoint is no more (B4). Means nothing with the classes `Credential` and `Ours`: they say nothing of
    /// the endpoint, and nothing is recorded of them.
    pub prune: bool,
}

impl Verdict {
    /// The verdict of an attempt that ended in this cause, without an answer.
    pub const fn of(cause: Cause) -> Self {
        let class = cause.class();
        Self {
            class,
            cause,
            status: None,
            retry_after: None,
            scope: if matches!(class, Class::Credential) { VerdictScope::Credential } else { VerdictScope::Lane },
            least_wait: None,
            prune: matches!(class, Class::Gone),
        }
    }
}

/// What decides about a delivery after an attempt, beside its row and the verdict.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// When to try again.
    pub policy: &'a Policy,
    /// What its lane does behind a dead head; `None` unless the lane is strict.
    pub strict: Option<OnDead>,
    /// Why a cut has ended it while it was under way.
    pub cut: Option<Cause>,
    /// Whether a newer delivery took its place while it was under way: then nothing waits for its sake.
    pub superseded: bool,
    /// How full the slots are, where retries leave in slices.
    pub tightness: Option<Tightness>,
    /// Whether a gate holds whatever is sent with the lane's credential.
    pub credential_gate: bool,
}

impl<'a> Circumstances<'a> {
    /// Those of a lane that is not strict, by this policy, with nothing in the way.
    pub const fn new(policy: &'a Policy) -> Self {
        Self { policy, strict: None, cut: None, superseded: false, tightness: None, credential_gate: false }
    }
}

/// What to do after an attempt. Other layers apply it and decide nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the attempt was made: then the gates it went through learn what came of it. Otherwise they get back what
    /// it took.
    pub was_made: bool,
    /// Whether anything is to be written. Otherwise the delivery waits in memory until [`Decision::state`] is due.
    pub is_recorded: bool,
    /// Where the delivery is now.
    pub state: State,
    /// Where its row goes, while it has one.
    pub place: Place,
    /// Attempts made, this one included if it counts.
    pub attempts: u16,
    /// For [`Delivery::previous_wait`].
    pub previous_wait: Option<Duration>,
    /// For [`Delivery::limited_in_a_row`].
    pub limited_in_a_row: u8,
    /// For [`Delivery::last_cause`].
    pub last_cause: Option<Cause>,
    /// For [`Delivery::compact`].
    pub compact: Compact,
    /// Whether the wait is this delivery's own, asked for by its endpoint or its channel: then no hold keeps it, and a
    /// recovery of the lane does not shorten it.
    pub keeps_wait: bool,
    /// What others must wait for, and who: never [`VerdictScope::Endpoint`], whose delivery waits by itself.
    pub hold: Option<(VerdictScope, Hold)>,
    /// Whether its strict lane stops behind it, by the same commit.
    pub pauses_lane: bool,
    /// What becomes of its endpoint.
    pub endpoint_change: Option<EndpointChange>,
}

impl Decision {
    /// One that leaves a delivery as it is.
    fn none(delivery: &Delivery, strict: Option<OnDead>) -> Self {
        Self {
            was_made: false,
            is_recorded: false,
            state: delivery.state,
            // The rows of a strict lane stay where their queue is found, also between attempts.
            place: if strict.is_some() { Place::Spilled } else { Place::Delayed },
            attempts: delivery.attempts,
            previous_wait: delivery.previous_wait,
            limited_in_a_row: delivery.limited_in_a_row,
            last_cause: delivery.last_cause,
            compact: delivery.compact,
            keeps_wait: false,
            hold: None,
            pauses_lane: false,
            endpoint_change: None,
        }
    }

    /// What follows from the state it came to.
    fn concluded(mut self, strict: Option<OnDead>, superseded: bool) -> Self {
        self.is_recorded |= self.state.is_terminal();
        self.pauses_lane = strict == Some(OnDead::Hold) && matches!(self.state, State::Dead { .. }) && !superseded;
        // The state's own cause: what we failed at ourselves does not hide what the receiver did.
        if let State::Retry { cause, .. } = self.state {
            self.last_cause = Some(cause);
        }
        self
    }
}

/// Decides what becomes of a delivery after an attempt, and what that means for its lane, its credential and its
/// endpoint.
pub fn settle(
    delivery: &Delivery,
    verdict: &Verdict,
    given: &Circumstances<'_>,
    now: Timestamp,
    roll: Roll,
) -> Decision {
    let mut decision = Decision {
        was_made: true,
        is_recorded: true,
        attempts: delivery.attempts.saturating_add(1),
        limited_in_a_row: 0,
        // Whatever becomes of this one, the others were asked to wait as well.
        hold: asked_hold(verdict, given, now, roll),
        keeps_wait: verdict.least_wait.is_some() || verdict.scope == VerdictScope::Endpoint,
        endpoint_change: endpoint_change(verdict),
        ..Decision::none(delivery, given.strict)
    };
    match verdict.class {
        Class::Delivered => decision.state = taken(delivery, now),
        Class::Credential => {
            decision.is_recorded = false;
            decision.attempts = delivery.attempts;
            decision.state = delivery.put_back(now);
            // Where the credential has a gate, its breaker holds everything behind it.
            let hold = Hold { why: Why::Credential, until: None };
            decision.hold = (!given.credential_gate).then_some((VerdictScope::Lane, hold));
        }
        Class::Ours => {
            decision.was_made = false;
            decision.is_recorded = false;
            decision.attempts = delivery.attempts;
            decision.limited_in_a_row = delivery.limited_in_a_row;
            decision.state = delivery.put_back(now + OWN_FAULT_WAIT);
        }
        // A receipt already proved that it arrived, whatever the attempt looked like from here.
        _ if delivery.receipt_kept => decision.state = State::Delivered { at: now },
        // There was nothing to send any more, so nothing was tried.
        Class::Decided if verdict.cause == Cause::Erased => {
            decision.was_made = false;
            decision.attempts = delivery.attempts;
            decision.state = State::Cancelled { at: now, cause: verdict.cause };
        }
        Class::Dead | Class::Decided => decision.state = State::Dead { at: now, cause: verdict.cause },
        Class::Gone => decision.state = State::Dead { at: now, cause: Cause::EndpointGone },
        Class::TooLarge if delivery.compact == Compact::Spare => {
            decision.compact = Compact::InUse;
            let due = least_due(verdict, given, now, roll);
            decision.state = if delivery.expiry.is_over(due) {
                State::Expired { at: now }
            } else {
                State::Retry { due, cause: verdict.cause }
            };
        }
        Class::TooLarge => decision.state = State::Dead { at: now, cause: verdict.cause },
        Class::Retry | Class::Limited => try_again(delivery, verdict, given, now, roll, &mut decision),
    }
    match given.cut {
        Some(cause) if decision.is_recorded && !decision.state.is_terminal() => {
            decision.state = cut::ended(cause, now);
        }
        _ => slice(delivery, given.tightness, now, &mut decision),
    }
    decision.concluded(given.strict, given.superseded)
}

/// Decides what follows where a delivery ends without an attempt: a cut, its TTL, a receipt.
pub fn end(delivery: &Delivery, end: State, strict: Option<OnDead>) -> Decision {
    Decision { state: end, ..Decision::none(delivery, strict) }.concluded(strict, false)
}

/// Decides what becomes of a delivery whose receipt did not come in time (A3).
///
/// The attempt was counted when it was sent; only the wait is decided here.
pub fn ack_timeout(delivery: &Delivery, given: &Circumstances<'_>, now: Timestamp, roll: Roll) -> Decision {
    let before = Delivery { attempts: delivery.attempts.saturating_sub(1), receipt_kept: false, ..delivery.clone() };
    settle(&before, &Verdict::of(Cause::AckTimeout), given, now, roll)
}

/// What an answer makes of the endpoint, whatever becomes of its delivery: where a receipt proved that this one arrived,
/// the next one still would not.
fn endpoint_change(verdict: &Verdict) -> Option<EndpointChange> {
    match verdict.cause {
        _ if verdict.prune => Some(EndpointChange::Gone),
        Cause::DisableAsked => Some(EndpointChange::Disabled),
        _ => None,
    }
}

/// Who is to wait for a `Retry-After`, beside the delivery itself.
fn asked_hold(
    verdict: &Verdict,
    given: &Circumstances<'_>,
    now: Timestamp,
    roll: Roll,
) -> Option<(VerdictScope, Hold)> {
    let scope = match verdict.scope {
        VerdictScope::Endpoint => return None,
        VerdictScope::Credential if given.credential_gate => VerdictScope::Credential,
        VerdictScope::Credential | VerdictScope::Lane => VerdictScope::Lane,
    };
    let until = asked_until(verdict, given.policy, now, roll)?;
    Some((scope, Hold { why: Why::RetryAfter, until: Some(until) }))
}

/// Retries of the lower tiers leave together with others for the same destination (G2).
fn slice(delivery: &Delivery, tightness: Option<Tightness>, now: Timestamp, decision: &mut Decision) {
    let (State::Retry { due, cause }, Some(tight)) = (decision.state, tightness) else { return };
    if !decision.was_made {
        return;
    }
    let released = slice::released_at(due, now, delivery.lane, delivery.tier, tight);
    if !delivery.expiry.is_over(released) {
        decision.state = State::Retry { due: released, cause };
    }
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

/// The earliest next attempt that receiver and channel allow.
fn least_due(verdict: &Verdict, given: &Circumstances<'_>, now: Timestamp, roll: Roll) -> Timestamp {
    let asked = asked_until(verdict, given.policy, now, roll).unwrap_or(now);
    asked.max(now + verdict.least_wait.unwrap_or_default())
}

fn try_again(
    delivery: &Delivery,
    verdict: &Verdict,
    given: &Circumstances<'_>,
    now: Timestamp,
    roll: Roll,
    decision: &mut Decision,
) {
    let (cause, policy) = (verdict.cause, given.policy);
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
    let due = due.max(now + verdict.least_wait.unwrap_or_default());
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
