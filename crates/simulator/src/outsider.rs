//! The part that both ways to run a plan share: the messages and calls from outside, built as the API would build them,
//! and the observations for the history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Candidate, Cause, DeliveryId, Fanout, Key, LaneId, MessageId, RowIndex, State, TenantId, Tier, Timestamp,
};
use posthaste_engine::dispatch::{Command, EndLane};
use posthaste_store::{Accepted, CollapseKey, MemoryState, Message, NewDelivery, Pause, PauseScope};

use super::history::{Crash, Ending, History, Ms, SentDelivery, SentMessage, SentRequest, What};
use super::plan::{MessagePlan, RunPlan};
use super::{RunOutcome, oracle};

pub(super) const TENANT: TenantId = TenantId::from_raw(1);
/// How long a delivery waits for a required receipt.
const ACK_WITHIN: Duration = Duration::from_secs(300);

/// The message for the store, and its record in the history.
pub(super) fn compose(
    plan: &RunPlan,
    message: &MessagePlan,
    id: MessageId,
    now: Timestamp,
    is_spilling: impl Fn(LaneId, Tier) -> bool,
) -> (Accepted, SentMessage) {
    let fanout = Fanout {
        message: id,
        tier: message.tier,
        accepted_at: now,
        deliver_at: message.deliver_after.map(|wait| now + wait),
        ttl: message.ttl,
        ack_within: message.wants_receipt.then_some(ACK_WITHIN),
        has_compact: false,
    };
    let mut deliveries = Vec::new();
    let mut remembered = Vec::new();
    for (index, lane) in message.lanes.iter().enumerate() {
        let lane = &plan.lanes[*lane];
        let to = Candidate {
            endpoint: lane.endpoint(),
            lane: &lane.settings,
            event_types: &[],
            subject: None,
            tags: &[],
            ttl: lane.ttl,
        };
        let delivery = fanout.delivery(index as u64, &to);
        let spilling = is_spilling(lane.settings.lane, message.tier);
        let place = RowIndex::for_new(lane.settings.order, spilling, now, fanout.born());
        let ttl = message.ttl.or(lane.ttl);
        remembered.push(SentDelivery {
            id: delivery.id.raw(),
            lane: delivery.lane.raw(),
            expires_at: ttl.map(|ttl| (fanout.born() + ttl).as_millis()),
        });
        let collapse = message.collapse.map(CollapseKey);
        deliveries.push(NewDelivery { delivery, place, lane: Arc::clone(&lane.settings), collapse });
    }
    let sent = SentMessage {
        called_at: now.as_millis(),
        acked_at: None,
        message: id.raw(),
        deliveries: remembered,
        deliver_at: fanout.deliver_at.map(Timestamp::as_millis),
        now_or_never: message.ttl == Some(Duration::ZERO),
        wants_receipt: message.wants_receipt,
        tier: message.tier.index(),
        collapse: message.collapse,
        subject: message.subject,
    };
    let message = Message { subject: message.subject.map(subject_name), ..Message::new(id, TENANT, now, "{}") };
    (Accepted::new(message, deliveries), sent)
}

pub(super) fn subject_name(subject: u64) -> String {
    format!("subject {subject}")
}

/// A cancel of the message that was acknowledged `ago` messages before the last one.
pub(super) fn cancel(history: &History, ago: usize) -> Option<What> {
    let acked = history.sent.iter().rev().filter(|sent| sent.acked_at.is_some());
    acked.map(|sent| What::Cancel(sent.message)).nth(ago)
}

/// A call that ends a lane for all deliveries sent so far.
pub(super) fn end_of_lane(plan: &RunPlan, history: &History, lane: usize) -> What {
    let upto = history.sent.iter().flat_map(|sent| &sent.deliveries).map(|new| new.id).max();
    What::EndLane(plan.lanes[lane].settings.lane.raw(), upto.unwrap_or(0))
}

/// The id of a pause's scope by its kind: 0 for everything, the lane's tenant, or the lane.
pub(super) fn paused(plan: &RunPlan, kind: u8, lane: usize) -> u64 {
    let settings = &plan.lanes[lane].settings;
    [0, settings.tenant.raw(), settings.lane.raw()][usize::from(kind)]
}

/// Resumes of every scope that may be paused.
pub(super) fn resume_everything(plan: &RunPlan) -> impl Iterator<Item = What> {
    let mut scopes = vec![(0, 0)];
    scopes.extend(plan.lanes.iter().map(|lane| (1, lane.settings.tenant.raw())));
    scopes.extend(plan.lanes.iter().map(|lane| (2, lane.settings.lane.raw())));
    scopes.sort_unstable();
    scopes.dedup();
    scopes.into_iter().map(|(kind, id)| What::Resume(kind, id))
}

/// The command to the dispatch loop for an action.
pub(super) fn command(what: What) -> Command {
    match what {
        What::Cancel(message) => Command::Cancel(MessageId::from_raw(message), None),
        What::EndLane(lane, upto) => {
            let (lane, upto) = (LaneId::from_raw(lane), Key::from_raw(upto));
            Command::EndLane(EndLane { lane, upto, cause: Cause::Unsubscribed, endpoint: None }, None)
        }
        What::Pause(kind, id) => Command::Pause(Pause::new(scope(kind, id), None)),
        What::Resume(kind, id) => Command::Resume(scope(kind, id), None),
        What::Receipt(id) => Command::Receipt(DeliveryId::from_raw(id)),
        What::Erase(subject) => Command::Erased(TENANT, subject.map(subject_name)),
    }
}

fn scope(kind: u8, id: u64) -> PauseScope {
    match kind {
        0 => PauseScope::All,
        1 => PauseScope::Tenant(TenantId::from_raw(id)),
        _ => PauseScope::Lane(LaneId::from_raw(id)),
    }
}

/// Whether a delivery's message requires a receipt.
pub(super) fn wants_receipt(history: &History, delivery: DeliveryId) -> bool {
    let mine = |sent: &&SentMessage| sent.deliveries.iter().any(|new| new.id == delivery.raw());
    history.sent.iter().find(mine).is_some_and(|sent| sent.wants_receipt)
}

/// The record of a crash at this time, with the deliveries whose last attempt is not on disk.
pub(super) fn crash(disk: &MemoryState, requests: &[SentRequest], at: Ms) -> Crash {
    let last: BTreeMap<u64, u16> = requests.iter().map(|request| (request.delivery, request.attempt)).collect();
    let now = Timestamp::from_millis(at);
    let on_disk = |id: u64| disk.delivery(DeliveryId::from_raw(id), now).map_or(0, |found| found.attempts.len());
    let unsettled = last.iter().filter(|(id, attempt)| on_disk(**id) < usize::from(**attempt));
    Crash { at, unsettled: unsettled.map(|(id, _)| *id).collect() }
}

/// The highest attempt of a delivery's history, as the API shows it.
pub(super) fn recorded(disk: &MemoryState, id: DeliveryId, stamped: Ms) -> u16 {
    let found = disk.delivery(id, Timestamp::from_millis(stamped));
    found.and_then(|found| found.attempts.iter().map(|attempt| attempt.number).max()).unwrap_or(0)
}

/// How the API shows a delivery at the end of a run.
pub(super) fn ending(disk: &MemoryState, id: u64, now: Timestamp) -> Ending {
    let Some(found) = disk.delivery(DeliveryId::from_raw(id), now) else {
        return Ending { delivery: id, state: "missing", cause: "", attempts: 0, numbers: Vec::new() };
    };
    let cause = match found.delivery.state {
        State::Dead { cause, .. } | State::Cancelled { cause, .. } => cause.code(),
        _ => "",
    };
    Ending {
        delivery: id,
        state: found.delivery.state.phase().name(),
        cause,
        attempts: found.delivery.attempts,
        numbers: found.attempts.iter().map(|attempt| attempt.number).collect(),
    }
}

/// Judges a history, and returns the outcome of the run.
pub(super) fn outcome(plan: &RunPlan, history: &History, trace: u64, points: u64) -> RunOutcome {
    let acked = history.sent.iter().filter(|sent| sent.acked_at.is_some());
    RunOutcome {
        seed: plan.seed,
        violations: oracle::judge(plan, history),
        trace,
        deliveries: acked.map(|sent| sent.deliveries.len()).sum(),
        requests: history.requests.len(),
        duplicates: oracle::duplicates(history),
        crashes: history.crashes.len(),
        exercised: oracle::exercised(plan, history),
        points,
    }
}
