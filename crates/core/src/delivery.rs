//! A delivery, and the decision that follows each attempt. [`settle`] is the only place that turns the outcome of
//! an attempt into a [`Decision`]: the next state and its due time, which other deliveries must wait, whether a
//! strict lane stops, and how the endpoint's status changes. The scheduler, the dispatch loop and the stores apply it.
//!
//! Invariants: a due time is never before `now`; an attempt is counted unless it failed by our own
//! fault; a delivery without a TTL never expires.

use std::time::Duration;

use crate::cut;
use crate::scheduler::OnDead;
use crate::slice::{self, Tightness};
use crate::{
    Cause, Class, DeliveryId, EndpointChange, EndpointId, Hold, LaneId, MessageId, Policy, Roll, RowIndex, State, Tier,
    Timestamp, Why,
};

/// How many attempts in a row may fail because a name does not exist or a certificate is invalid (B3): enough to
/// outlast a faulty deployment, few enough not to try a mistyped name for days.
pub const LIMITED_IN_A_ROW_MAX: u8 = 5;

/// The only attempt of a delivery with a TTL of zero starts within this time of its birth, or never (D1).
pub const NOW_OR_NEVER: Duration = Duration::from_secs(5);

/// A `Retry-After` is lengthened at random by up to one part in this many, so that retries spread.
const RETRY_AFTER_SPREAD: u32 = 10;

/// The wait before the next attempt after a fault of our own.
const OWN_FAULT_WAIT: Duration = Duration::from_secs(1);

/// When a delivery stops being worth sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// No TTL was set: it never expires.
    Never,
    /// No attempt starts at or after this time.
    At(Timestamp),
    /// A TTL of zero: one attempt, started before this time, and no retry.
    NowOrNever(Timestamp),
}

impl Expiry {
    /// The expiry of a delivery born at `born` (the later of accept and `deliver_at`) with this TTL.
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

    pub fn is_over(self, now: Timestamp) -> bool {
        self.at().is_some_and(|at| now >= at)
    }
}

/// The smaller variant of a payload, for receivers that answer 413 (B5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compact {
    #[default]
    None,
    /// There is one, and it has not been used.
    Spare,
    /// It is sent in place of the full payload.
    InUse,
}

/// One message on its way to one endpoint, as its owner keeps it in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub message: MessageId,
    pub endpoint: EndpointId,
    pub lane: LaneId,
    pub tier: Tier,
    pub state: State,
    /// Attempts made so far.
    pub attempts: u16,
    /// The later of accept and `deliver_at`: windows and TTLs count from it.
    pub born: Timestamp,
    pub expiry: Expiry,
    /// The backoff before the last attempt; decorrelated jitter grows from it.
    pub previous_wait: Option<Duration>,
    /// How many attempts in a row ended in the same [`Class::Limited`] cause.
    pub limited_in_a_row: u8,
    /// Why the last attempt failed.
    pub last_cause: Option<Cause>,
    /// How long to wait for a receipt after a 2xx; `None` when the 2xx is the end (A3).
    pub ack_within: Option<Duration>,
    /// A receipt came before the 2xx it belongs to: [`settle`] applies it.
    pub receipt_kept: bool,
    pub compact: Compact,
}

impl Delivery {
    /// A new delivery: due at its birth, with no attempts, no TTL and no receipt.
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

    /// The waiting state of a delivery that was picked and not sent.
    pub fn put_back(&self, due: Timestamp) -> State {
        match self.last_cause {
            Some(cause) => State::Retry { due, cause },
            None => State::Queued { due },
        }
    }

    /// Whether it waits longer than its policy's backoff after the attempt at `tried`. If so, its receiver or its
    /// channel asked for the wait.
    pub fn waits_as_asked(&self, tried: Timestamp) -> bool {
        let (State::Retry { due, cause }, Some(backoff)) = (self.state, self.previous_wait) else { return false };
        let own = if cause == Cause::TooManyRequests { backoff * 2 } else { backoff };
        // A slice makes a wait longer by a quarter at most.
        due.since(tried) > own + own / 4 + Duration::from_millis(1)
    }
}

/// How far an answer applies beyond its own delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictScope {
    /// The endpoint alone: the provider is healthy and throttles one device.
    Endpoint,
    Lane,
    /// Every delivery sent with the lane's credential.
    Credential,
}

/// A channel's judgement of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What follows, with the endpoint's overrides applied.
    pub class: Class,
    pub cause: Cause,
    /// The HTTP status, where there was an answer.
    pub status: Option<u16>,
    /// A valid `Retry-After` on a status where it is obeyed, counted from our clock.
    pub retry_after: Option<Duration>,
    /// Which deliveries the `Retry-After` holds, and against what a failure counts. The class `Credential` always
    /// counts against the credential.
    pub scope: VerdictScope,
    /// The least wait before a retry of this delivery, by the channel's own rules.
    pub least_wait: Option<Duration>,
    /// Whether the endpoint no longer exists (B4). Has no effect with the classes `Credential` and `Ours`, which do not
    /// concern the endpoint and whose results are not recorded.
    pub prune: bool,
}

impl Verdict {
    /// The verdict of an attempt that ended with this cause and without an answer.
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

/// The inputs of [`settle`] beside the delivery and the verdict.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    pub policy: &'a Policy,
    /// What a strict lane does when its first delivery dies; `None` unless the lane is strict.
    pub strict: Option<OnDead>,
    /// The cause of a cut that was made while the delivery was in flight.
    pub cut: Option<Cause>,
    /// Whether a newer delivery superseded it while it was in flight: then its strict lane does not stop for it.
    pub superseded: bool,
    /// How full the slots are; `None` where retries are not released in slices.
    pub tightness: Option<Tightness>,
    /// Whether the lane's credential has a shared gate that can hold all its deliveries.
    pub credential_gate: bool,
}

impl<'a> Circumstances<'a> {
    /// A lane that is not strict, without a cut, slices or a credential gate.
    pub const fn new(policy: &'a Policy) -> Self {
        Self { policy, strict: None, cut: None, superseded: false, tightness: None, credential_gate: false }
    }
}

/// What follows an attempt. Other layers apply it and decide nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the attempt was made. If so, the gates it passed get its result; if not, they get back the token or
    /// probe it took.
    pub was_made: bool,
    /// Whether the result is written to the store. If not, the delivery waits in memory until [`Decision::state`] is
    /// due.
    pub is_recorded: bool,
    pub state: State,
    /// Where its row is kept while it is pending.
    pub place: RowIndex,
    /// Attempts made, this one included if it counts.
    pub attempts: u16,
    pub previous_wait: Option<Duration>,
    pub limited_in_a_row: u8,
    pub last_cause: Option<Cause>,
    pub compact: Compact,
    /// Whether its endpoint or channel asked for this wait, and for this delivery alone. If so, the lane has no hold
    /// for it, and a recovery of the lane does not shorten it.
    pub keeps_wait: bool,
    /// A hold for other deliveries, and which ones: never [`VerdictScope::Endpoint`], since that delivery has a due
    /// time of its own.
    pub hold: Option<(VerdictScope, Hold)>,
    /// Whether its strict lane is paused, in the same commit.
    pub pauses_lane: bool,
    pub endpoint_change: Option<EndpointChange>,
}

impl Decision {
    /// A decision that leaves the delivery unchanged.
    fn none(delivery: &Delivery, strict: Option<OnDead>) -> Self {
        Self {
            was_made: false,
            is_recorded: false,
            state: delivery.state,
            // The rows of a strict lane stay indexed by their queue, also between attempts.
            place: if strict.is_some() { RowIndex::Spilled } else { RowIndex::Delayed },
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

    /// Fills in the fields that follow from the new state.
    fn concluded(mut self, strict: Option<OnDead>, superseded: bool) -> Self {
        self.is_recorded |= self.state.is_terminal();
        self.pauses_lane = strict == Some(OnDead::Hold) && matches!(self.state, State::Dead { .. }) && !superseded;
        // The state's cause, not the verdict's: a fault of ours must not hide the receiver's last failure.
        if let State::Retry { cause, .. } = self.state {
            self.last_cause = Some(cause);
        }
        self
    }
}

/// Decides the next state of a delivery after an attempt, and what follows for its lane, credential and endpoint.
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
        // The receiver asked the other deliveries to wait too, also where this one has ended.
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
            // Where the credential has a gate, the gate's breaker holds its deliveries instead.
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
        // The receipt proves that it arrived, even if the attempt seems to have failed.
        _ if delivery.receipt_kept => decision.state = State::Delivered { at: now },
        // The payload was erased or the endpoint deleted before the attempt, so no attempt was made.
        Class::Decided if matches!(verdict.cause, Cause::Erased | Cause::EndpointDeleted) => {
            decision.was_made = false;
            decision.attempts = delivery.attempts;
            decision.state = State::Cancelled { at: now, cause: verdict.cause };
        }
        Class::Dead | Class::Decided => decision.state = State::Dead { at: now, cause: verdict.cause },
        Class::Gone => decision.state = State::Dead { at: now, cause: Cause::EndpointGone },
        Class::TooLarge if delivery.compact == Compact::Spare => {
            decision.compact = Compact::InUse;
            let asked = asked_until(verdict, given.policy, now, roll).unwrap_or(now);
            let due = asked.max(now + verdict.least_wait.unwrap_or_default());
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

/// The decision for a delivery that ends without an attempt: by a cut, its TTL or a receipt.
pub fn end(delivery: &Delivery, end: State, strict: Option<OnDead>) -> Decision {
    Decision { state: end, ..Decision::none(delivery, strict) }.concluded(strict, false)
}

/// The decision for a delivery whose receipt did not come in time (A3).
///
/// Its attempt was already counted and is not counted again.
pub fn ack_timeout(delivery: &Delivery, given: &Circumstances<'_>, now: Timestamp, roll: Roll) -> Decision {
    let before = Delivery { attempts: delivery.attempts.saturating_sub(1), receipt_kept: false, ..delivery.clone() };
    settle(&before, &Verdict::of(Cause::AckTimeout), given, now, roll)
}

/// How an answer changes the endpoint's status. This does not depend on the delivery's own end: a receipt may prove
/// that this delivery arrived, but the next one would not.
fn endpoint_change(verdict: &Verdict) -> Option<EndpointChange> {
    match verdict.cause {
        _ if verdict.prune => Some(EndpointChange::Gone),
        Cause::DisableAsked => Some(EndpointChange::Disabled),
        _ => None,
    }
}

/// The hold that a `Retry-After` puts on other deliveries, and which ones.
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

/// Delays a retry of a lower tier to the end of its slice, so that retries to one destination leave together (G2).
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

/// The end of the `Retry-After`, bounded by the policy and spread at random; `None` without one or if it is zero.
fn asked_until(verdict: &Verdict, policy: &Policy, now: Timestamp, roll: Roll) -> Option<Timestamp> {
    let asked = verdict.retry_after.filter(|wait| !wait.is_zero())?.min(policy.retry_after_max());
    Some(now + roll.between(asked, asked + asked / RETRY_AFTER_SPREAD))
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
        // Never earlier than the receiver asked, nor than the policy's backoff: a receiver that always
        // answers `Retry-After: 1` would otherwise use up every attempt within seconds.
        Some(until) => until.max(now + backoff),
        // The receiver asked us to slow down without a `Retry-After`.
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
