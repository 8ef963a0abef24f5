//! Retention: expired data is deleted, data that is still needed is kept.

use std::time::Duration;

use posthaste_core::{Cause, CutScope, Delivery, Expiry, Key, State, TenantId, Timestamp};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after, lane_id};
use crate::Store;
use crate::journal::{JournalEntry, JournalRow};
use crate::row::{
    AuditStamp, DeadLetterFilter, JobState, ListOrder, NewReplay, Pause, PauseScope, RETENTION_STEP_MAX, ReplayWhat,
    Retention, RetentionPhase, RetentionStep, Session,
};

pub(super) fn days(days: u64) -> Timestamp {
    NOW + Duration::from_secs(days * 24 * 60 * 60)
}

impl<S: Store> StoreCase<S> {
    /// A whole run; returns the number of rows removed, moved or ended.
    pub(super) async fn retain(&self, now: Timestamp) -> u64 {
        self.retain_in(self.session(), now).await
    }

    pub(super) async fn retain_in(&self, session: Session, now: Timestamp) -> u64 {
        let mut step = Some(RetentionStep::START);
        let mut removed = 0;
        while let Some(next) = step {
            let retained = self.store.retain(session, Retention::default(), now, next, Vec::new()).await;
            let retained = self.done("retain", retained);
            removed += retained.removed;
            step = retained.next;
        }
        removed
    }

    pub(super) async fn has_message(&self, delivery: &Delivery) -> bool {
        self.done("message", self.store.message(delivery.message).await).is_some()
    }

    pub(super) async fn is_shown(&self, delivery: &Delivery) -> bool {
        self.done("delivery", self.store.delivery(delivery.id, NOW).await).is_some()
    }

    pub(super) async fn end(&self, delivery: &Delivery, state: State) {
        self.settle_done(self.attempted(delivery, state, Cause::NotFound)).await;
    }

    async fn letters(&self) -> usize {
        let filter = DeadLetterFilter::of(TenantId::from_raw(9));
        let page = self.store.dead_letters(filter, ListOrder::NewestFirst, None, MANY).await;
        self.done("dead letters", page).letters.len()
    }
}

pub(super) async fn payload_is_deleted_after_a_week_and_history_after_a_month<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    case.settle_done(case.attempted(&delivery, State::Retry { due: after(1), cause: Cause::Unavailable }, Cause::Ok))
        .await;
    let tried = case.shown(delivery.id, NOW).await.delivery;
    case.end(&tried, State::Delivered { at: days(1) }).await;
    case.same("nothing yet", case.retain(days(6)).await, 0);
    case.check(case.has_message(&delivery).await, "it is kept for a week");
    case.same("the payload", case.retain(days(8)).await, 1);
    case.check(!case.has_message(&delivery).await, "the payload is gone");
    case.same("the history stays", case.shown(delivery.id, NOW).await.attempts.len(), 2);
    case.same("nothing more", case.retain(days(30)).await, 0);
    case.check(case.retain(days(31)).await > 0, "a month after its end");
    case.check(!case.is_shown(&delivery).await, "the history is gone");
}

pub(super) async fn a_payload_stays_while_a_delivery_or_a_dead_letter_needs_it<S: Store>(case: &StoreCase<S>) {
    let waiting = case.accept_one(DeliveryDraft::to(1).spilled()).await;
    let dead = case.accept_one(DeliveryDraft::to(2)).await;
    case.end(&dead, State::Dead { at: days(5), cause: Cause::NotFound }).await;
    let before = case.done("message", case.store.message(dead.message).await);
    case.retain(days(8)).await;
    case.same("byte for byte", case.done("message", case.store.message(dead.message).await), before);
    case.check(case.has_message(&waiting).await, "it can still be sent");
    case.end(&waiting, State::Delivered { at: days(9) }).await;
    case.retain(days(10)).await;
    case.check(!case.has_message(&waiting).await, "it is no longer needed");
    case.check(case.has_message(&dead).await, "a dead letter needs it");
    case.retain(days(36)).await;
    case.same("the letter is gone", case.letters().await, 0);
    case.check(!case.has_message(&dead).await, "and so is its payload");
    case.check(!case.is_shown(&dead).await, "and its history");
}

pub(super) async fn delivery_pending_for_a_month_is_given_up<S: Store>(case: &StoreCase<S>) {
    let waiting = case.accept_one(DeliveryDraft::to(1).spilled()).await;
    let flies = case.accept_one(DeliveryDraft::to(5)).await;
    let cut = case.accept_one(DeliveryDraft::to(2)).await;
    let over = case.accept_one(DeliveryDraft { expiry: Expiry::At(after(50)), ..DeliveryDraft::to(3) }).await;
    let sent =
        case.accept_one(DeliveryDraft { ack_within: Some(Duration::from_secs(1)), ..DeliveryDraft::to(4) }).await;
    let awaits = State::AwaitingAck { until: days(40) };
    case.settle_done(case.attempted(&sent, awaits, Cause::Ok)).await;
    case.cut(CutScope::Lane(lane_id(2)), Key::from_raw(u64::MAX >> 1), Cause::Cancelled, &[]).await;
    case.retain(days(29)).await;
    case.check(case.pending(waiting.id).await.is_some(), "a month is not over");
    let give_up =
        |under_way| case.store.retain(case.session(), Retention::default(), days(31), RetentionStep::START, under_way);
    let step = give_up(vec![flies.id]).await;
    case.same("it says which", case.done("retain", step).given_up, vec![waiting.id]);
    case.check(case.pending(flies.id).await.is_some(), "a delivery in flight is skipped");
    let step = give_up(Vec::new()).await;
    case.same("the next run finds it", case.done("retain", step).given_up, vec![flies.id]);
    case.same("given up", case.state(waiting.id).await, State::Dead { at: days(31), cause: Cause::Retention });
    case.same("as dead letters", case.letters().await, 2);
    case.check(case.has_message(&waiting).await, "which can be replayed");
    for other in [cut.id, over.id, sent.id] {
        case.check(case.pending(other).await.is_some(), "rows that ended otherwise are left to their sweep");
    }
    case.same("still awaited", case.state(sent.id).await, awaits);
}

pub(super) async fn retention_runs_in_small_steps<S: Store>(case: &StoreCase<S>) {
    let count = RETENTION_STEP_MAX as usize * 2 + 7;
    let messages = (0..count).map(|_| case.message(&[])).collect();
    _ = case.done("accept", case.store.accept(case.session(), messages).await);
    let mut removed = 0;
    let mut step = Some(RetentionStep::START);
    while let Some(next) = step {
        let retained = case
            .done("retain", case.store.retain(case.session(), Retention::default(), days(8), next, Vec::new()).await);
        removed += retained.removed;
        step = retained.next;
    }
    case.same("all of them", removed, count as u64);
}

pub(super) async fn ended_jobs_are_deleted_and_running_ones_kept<S: Store>(case: &StoreCase<S>) {
    let mut ids = Vec::new();
    for _ in 0..2 {
        let id = posthaste_core::JobId(case.message(&[]).message.id.0);
        let what = ReplayWhat::Listed(Vec::new());
        let replay = NewReplay::new(id, TenantId::from_raw(9), NOW, what);
        case.done("replay", case.store.start_replay(case.session(), replay, None).await);
        ids.push(id);
    }
    let ended = case.store.change_job(case.session(), ids[0], JobState::Cancelled, AuditStamp::at(NOW)).await;
    case.check(case.done("change", ended), "cancelled");
    case.retain(days(31)).await;
    case.same("gone", case.done("job", case.store.job(ids[0]).await), None);
    case.check(case.done("job", case.store.job(ids[1]).await).is_some(), "it still runs");
}

pub(super) async fn deletions_are_recorded_in_the_journal<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    case.end(&delivery, State::Delivered { at: after(1) }).await;
    case.retain(days(399)).await;
    let rows = case.done("journal", case.store.journal(0, MANY).await);
    let phases: Vec<RetentionPhase> = rows
        .iter()
        .flat_map(JournalRow::entries)
        .filter_map(|entry| match case.done("entry", entry) {
            JournalEntry::Retained { phase, .. } => Some(phase),
            _ => None,
        })
        .collect();
    case.same("the phases that deleted rows", phases, vec![RetentionPhase::Messages, RetentionPhase::History]);
    case.same("from the first row", rows.first().map(|row| row.number), Some(1));
}

/// A run that keeps a younger outcome must not make later runs skip it.
pub(super) async fn younger_outcome_is_deleted_once_expired_after_an_older_one<S: Store>(case: &StoreCase<S>) {
    let old = case.accept_one(DeliveryDraft::to(1)).await;
    let young = case.accept_one(DeliveryDraft::to(2)).await;
    case.end(&old, State::Delivered { at: days(1) }).await;
    case.end(&young, State::Delivered { at: days(20) }).await;
    case.retain(days(32)).await;
    case.check(!case.is_shown(&old).await, "a month after its end");
    case.check(case.is_shown(&young).await, "its month is not over");
    case.retain(days(33)).await;
    case.retain(days(51)).await;
    case.check(!case.is_shown(&young).await, "a month after its own end");
}

pub(super) async fn journal_rows_are_kept_until_they_expire<S: Store>(case: &StoreCase<S>) {
    case.done("pause", case.store.pause(case.session(), Pause::new(PauseScope::All, None), after(1)).await);
    case.done("resume", case.store.resume(case.session(), PauseScope::All, AuditStamp::at(after(2))).await);
    case.reopen().await;
    let last = case.reopen().await.session;
    case.same("nothing has expired", case.retain_in(last, days(399)).await, 0);
    let rows = case.done("journal", case.store.journal(0, MANY).await);
    case.same("all is there", rows.iter().map(|row| row.number).collect(), vec![1, 2, 3, 4, 5]);
}
