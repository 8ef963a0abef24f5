//! TTLs: a delivery whose TTL is over reads as expired at once, before its row is swept.

use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Expiry;
use posthaste_core::state::State;

use super::fixture::{DeliveryDraft, StoreCase, after};
use crate::Store;

pub(super) async fn a_delivery_past_its_ttl_reads_as_expired_at_once<S: Store>(case: &StoreCase<S>) {
    for expiry in [Expiry::At(after(50)), Expiry::NowOrNever(after(50))] {
        let delivery = case.accept_one(DeliveryDraft { expiry, ..DeliveryDraft::to(1) }).await;
        case.same("before", case.shown(delivery.id, after(49)).await.delivery, delivery.clone());
        for now in [50, 51] {
            let shown = case.shown(delivery.id, after(now)).await;
            case.same("after", shown.delivery.state, State::Expired { at: after(50) });
        }
        let row = case.pending(delivery.id).await;
        case.same("its row waits for the sweep", row.map(|row| row.delivery.state), Some(delivery.state));
        case.settle_done(case.attempted(&delivery, State::Delivered { at: after(40) }, Cause::Ok)).await;
        let shown = case.shown(delivery.id, after(60)).await.delivery.state;
        case.same("an ended delivery does not expire", shown, State::Delivered { at: after(40) });
    }
}

pub(super) async fn delivery_awaiting_its_receipt_does_not_expire<S: Store>(case: &StoreCase<S>) {
    let draft = DeliveryDraft {
        expiry: Expiry::At(after(50)),
        ack_within: Some(Duration::from_secs(1)),
        ..DeliveryDraft::to(1)
    };
    let delivery = case.accept_one(draft).await;
    let awaits = State::AwaitingAck { until: after(1_040) };
    case.settle_done(case.attempted(&delivery, awaits, Cause::Ok)).await;
    case.same("it awaits its receipt", case.shown(delivery.id, after(60)).await.delivery.state, awaits);
}
