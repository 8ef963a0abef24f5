//! Builds messages of a plan as the API would build them.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Candidate, Fanout, LaneId, MessageId, RowIndex, TenantId, Tier, Timestamp};
use posthaste_store::{Accepted, CollapseKey, Message, NewDelivery};

use super::history::{SentDelivery, SentMessage};
use super::plan::{MessagePlan, RunPlan};

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
