//! Retention: expired data is deleted, data that is still needed is kept, also for tenants with retention overrides.

use std::time::Duration;

use posthaste_core::{Cause, CutScope, Delivery, Expiry, Key, State, TenantId, Timestamp};

use super::fixture::{DeliveryDraft, NOW, StoreCase, TENANT, after, delivered, endpoint, lane_id};
use crate::journal::JournalEntry;
use crate::{
    Accepted, AuditStamp, Endpoint, ErasureTarget, JobState, Pause, PauseScope, RETENTION_STEP_MAX, ReplayWhat,
    Retention, RetentionOverride, RetentionOverrides, RetentionPhase, RetentionStep, Session, Store,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A tenant without an override. Each tenant has the lane of its number.
const DEFAULT: u64 = 1;
/// A tenant with shorter times than the default.
const SHORT: u64 = 2;
/// A tenant with longer times than the default.
const LONG: u64 = 3;

fn tenant(n: u64) -> TenantId {
    TenantId::from_raw(n)
}

fn own(payload: u32, history: u32) -> RetentionOverride {
    RetentionOverride { payload: Some(payload * DAY), history: Some(history * DAY) }
}

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

    async fn tenants(&self) {
        for n in [DEFAULT, SHORT, LONG] {
            self.put_endpoint(Endpoint { tenant: tenant(n), ..endpoint(n) }).await;
        }
        let overrides = vec![(tenant(SHORT), own(1, 2)), (tenant(LONG), own(60, 90))];
        self.same("two overrides", self.set_retention_overrides(RetentionOverrides::all(overrides)).await, 2);
    }

    async fn set_retention_overrides(&self, overrides: RetentionOverrides) -> u64 {
        self.done("agree", self.store.set_retention_overrides(self.session(), overrides, NOW).await)
    }

    fn message_of(&self, n: u64, drafts: &[DeliveryDraft]) -> Accepted {
        self.message_with(drafts, |message| message.tenant = tenant(n))
    }

    /// A message of a tenant to its lane.
    async fn send(&self, n: u64) -> Delivery {
        self.put(self.message_of(n, &[DeliveryDraft::to(n).spilled()])).await.remove(0)
    }

    async fn sent(&self, n: u64) -> Delivery {
        let delivery = self.send(n).await;
        self.end(&delivery, delivered(1)).await;
        delivery
    }

    /// Runs the message phase of retention; returns the number of messages removed.
    async fn delete_messages(&self, now: Timestamp) -> u64 {
        let mut step = RetentionStep::of(RetentionPhase::Messages);
        let mut removed = 0;
        while step.phase == RetentionPhase::Messages {
            let retained = self.store.retain(self.session(), Retention::default(), now, step, Vec::new()).await;
            let retained = self.done("retain", retained);
            removed += retained.removed;
            step = retained.next.unwrap_or_else(|| self.fail("more phases follow"));
        }
        removed
    }

    /// For each delivery, whether its payload and its history are left.
    async fn left(&self, deliveries: &[Delivery]) -> Vec<(bool, bool)> {
        let mut left = Vec::new();
        for delivery in deliveries {
            left.push((self.has_message(delivery).await, self.is_shown(delivery).await));
        }
        left
    }
}

pub(super) async fn payload_is_deleted_after_a_week_and_history_after_a_month<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let tried = case.retried(&delivery, 1, Cause::Unavailable);
    case.settle_done(tried.clone()).await;
    case.end(&tried.record.delivery, State::Delivered { at: days(1) }).await;
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
    case.same("the letter is gone", case.letters_of(TENANT).await, 0);
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
    case.same("as dead letters", case.letters_of(TENANT).await, 2);
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
    case.same("all of them", case.retain(days(8)).await, count as u64);
}

pub(super) async fn ended_jobs_are_deleted_and_running_ones_kept<S: Store>(case: &StoreCase<S>) {
    let listed = ReplayWhat::Listed(Vec::new());
    let (ended, running) = (case.replay(listed.clone()).await.id, case.replay(listed).await.id);
    let cancelled = case.store.change_job(case.session(), ended, JobState::Cancelled, AuditStamp::at(NOW)).await;
    case.check(case.done("change", cancelled), "cancelled");
    case.retain(days(31)).await;
    case.same("gone", case.done("job", case.store.job(ended).await), None);
    case.check(case.done("job", case.store.job(running).await).is_some(), "it still runs");
}

pub(super) async fn deletions_are_recorded_in_the_journal<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    case.end(&delivery, delivered(1)).await;
    case.retain(days(399)).await;
    let phase = |entry| if let JournalEntry::Retained { phase, .. } = entry { Some(phase) } else { None };
    let phases = case.entries().await.into_iter().filter_map(phase).collect();
    case.same("the phases that deleted rows", phases, vec![RetentionPhase::Messages, RetentionPhase::History]);
    case.same("from the first row", case.journal().await.first().map(|row| row.number), Some(1));
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
    let numbers = case.journal().await.iter().map(|row| row.number).collect();
    case.same("all is there", numbers, vec![1, 2, 3, 4, 5]);
}

pub(super) async fn data_of_each_tenant_is_kept_for_its_own_retention_time<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    let sent = [case.sent(LONG).await, case.sent(DEFAULT).await, case.sent(SHORT).await, case.sent(LONG).await];
    let (whole, history, gone) = ((true, true), (false, true), (false, false));
    for (day, expected) in [
        (1, [whole, whole, history, whole]),
        (3, [whole, whole, gone, whole]),
        (8, [whole, history, gone, whole]),
        (31, [whole, gone, gone, whole]),
        (61, [history, gone, gone, history]),
        (91, [gone, gone, gone, gone]),
    ] {
        case.retain(days(day)).await;
        case.same(&format!("after {day} days"), case.left(&sent).await, expected.to_vec());
    }
}

/// Outcomes of an endpoint whose subject is erased later are kept as long as the tenant's other outcomes.
pub(super) async fn outcomes_of_an_erased_endpoint_follow_the_tenants_retention<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    let mut sent = Vec::new();
    for (n, whose) in [(8, SHORT), (9, LONG)] {
        let subject = Some("ann".to_owned());
        case.put_endpoint(Endpoint { tenant: tenant(whose), subject, ..endpoint(n) }).await;
        let delivery = case.put(case.message_of(whose, &[DeliveryDraft::to(n)])).await.remove(0);
        case.end(&delivery, delivered(1)).await;
        sent.push(delivery);
    }
    for whose in [SHORT, LONG] {
        let erasure = case.erase_by(tenant(whose), ErasureTarget::Subject("ann".to_owned()), None).await;
        case.check(case.finish(erasure, &[]).await.done.is_some(), "nothing is under way");
    }
    for (day, expected) in [(1, [true, true]), (3, [false, true]), (89, [false, true]), (91, [false, false])] {
        case.retain(days(day)).await;
        let shown = [case.is_shown(&sent[0]).await, case.is_shown(&sent[1]).await];
        case.same(&format!("after {day} days"), shown, expected);
    }
}

pub(super) async fn pending_delivery_is_given_up_after_its_tenants_retention_time<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    let waiting = [case.send(LONG).await, case.send(DEFAULT).await, case.send(SHORT).await];
    for (day, given_up) in [(1, vec![]), (3, vec![2]), (31, vec![1]), (89, vec![]), (91, vec![0])] {
        case.retain(days(day)).await;
        for place in given_up {
            let state = State::Dead { at: days(day), cause: Cause::Retention };
            case.same("given up", case.state(waiting[place].id).await, state);
            case.check(case.has_message(&waiting[place]).await, "as a dead letter, which can be replayed");
        }
        case.same("with the longer time it waits", case.pending(waiting[0].id).await.is_some(), day < 90);
    }
}

pub(super) async fn changed_override_applies_to_existing_data<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    let sent = [case.sent(DEFAULT).await, case.sent(SHORT).await, case.sent(LONG).await];
    let waits = case.send(LONG).await;
    // The default walk has passed rows that an override keeps for longer.
    case.retain(days(40)).await;
    case.same("kept for longer", case.left(&sent).await, vec![(false, false), (false, false), (true, true)]);
    case.set_retention_overrides(RetentionOverrides::all(vec![(tenant(LONG), own(30, 50))])).await;
    case.retain(days(40)).await;
    case.same("the payload goes by the shorter time", case.left(&sent[2..]).await, vec![(false, true)]);
    case.check(case.pending(waits.id).await.is_some(), "50 days are not over");
    case.set_retention_overrides(RetentionOverrides::all(vec![])).await;
    case.retain(days(40)).await;
    case.same("and the history by the default", case.left(&sent[2..]).await, vec![(false, false)]);
    case.same("given up", case.state(waits.id).await, State::Dead { at: days(40), cause: Cause::Retention });
    // A new override needs a walk from the beginning.
    let later = [case.sent(SHORT).await, case.sent(LONG).await];
    case.set_retention_overrides(RetentionOverrides::all(vec![(tenant(SHORT), own(100, 200))])).await;
    case.retain(days(50)).await;
    case.same("longer than before", case.left(&later).await, vec![(true, true), (false, false)]);
    case.set_retention_overrides(RetentionOverrides::all(vec![(tenant(SHORT), own(1, 1))])).await;
    case.retain(days(50)).await;
    case.same("and shorter", case.left(&later).await, vec![(false, false), (false, false)]);
}

pub(super) async fn messages_with_a_longer_override_are_skipped_in_small_steps<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    let count = RETENTION_STEP_MAX as usize + 7;
    let messages = (0..2 * count).map(|n| case.message_of(if n < count { LONG } else { SHORT }, &[])).collect();
    _ = case.done("accept", case.store.accept(case.session(), messages).await);
    for (day, gone) in [(3, count), (59, 0), (61, count)] {
        case.same("expired messages", case.delete_messages(days(day)).await, gone as u64);
    }
}

pub(super) async fn needed_payload_outlives_every_retention_time<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    let dead = case.send(SHORT).await;
    case.end(&dead, State::Dead { at: after(1), cause: Cause::NotFound }).await;
    let waiting = case.send(LONG).await;
    case.retain(days(1)).await;
    case.check(case.has_message(&dead).await, "a dead letter needs it");
    case.retain(days(3)).await;
    case.check(!case.has_message(&dead).await, "it went with its letter");
    case.retain(days(61)).await;
    case.check(case.has_message(&waiting).await, "it can still be sent");
    // From now on the override keeps it for longer than it is needed.
    case.set_retention_overrides(RetentionOverrides::all(vec![(tenant(LONG), own(100, 100))])).await;
    case.end(&waiting, State::Delivered { at: days(62) }).await;
    case.retain(days(99)).await;
    case.check(case.has_message(&waiting).await, "a hundred days are not over");
    case.retain(days(100)).await;
    case.check(!case.has_message(&waiting).await, "now they are");
}

pub(super) async fn override_of_some_tenants_does_not_change_others<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    let none = |after, upto| RetentionOverrides { after, upto, own: Vec::new() };
    let same = vec![(tenant(SHORT), own(1, 2)), (tenant(LONG), own(60, 90))];
    case.same("the same again", case.set_retention_overrides(RetentionOverrides::all(same)).await, 0);
    case.same("before them", case.set_retention_overrides(none(None, Some(tenant(DEFAULT)))).await, 0);
    case.same("after them", case.set_retention_overrides(none(Some(tenant(LONG)), None)).await, 0);
    let sent = [case.sent(DEFAULT).await, case.sent(SHORT).await, case.sent(LONG).await];
    case.same("one of them", case.set_retention_overrides(none(Some(tenant(DEFAULT)), Some(tenant(SHORT)))).await, 1);
    case.retain(days(6)).await;
    case.same("as long as the default", case.left(&sent).await, vec![(true, true); 3]);
    case.retain(days(31)).await;
    case.same("and no longer", case.left(&sent).await, vec![(false, false), (false, false), (true, true)]);
}

pub(super) async fn overrides_outlive_their_session<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    let sent = [case.sent(SHORT).await, case.sent(LONG).await];
    let later = case.reopen().await.session;
    case.retain_in(later, days(3)).await;
    case.same("the shorter", case.left(&sent).await, vec![(false, false), (true, true)]);
    case.retain_in(later, days(59)).await;
    case.same("the longer", case.left(&sent).await, vec![(false, false), (true, true)]);
    let fenced = case.store.set_retention_overrides(case.session(), RetentionOverrides::all(vec![]), NOW).await;
    case.check(fenced.is_err(), "an older session cannot set overrides");
}

pub(super) async fn overrides_are_recorded_in_the_journal<S: Store>(case: &StoreCase<S>) {
    case.tenants().await;
    case.sent(SHORT).await;
    case.retain(days(3)).await;
    let is_ours = |entry: &JournalEntry| match entry {
        JournalEntry::Retained { phase, .. } => *phase == RetentionPhase::History,
        other => matches!(other, JournalEntry::Agreed { .. }),
    };
    let recorded = case.entries_that(is_ours).await;
    let [first, second, JournalEntry::Retained { removed, before, at, tenant: owner, .. }] = &recorded[..] else {
        case.fail("there are two overrides, and then a deletion")
    };
    let agreed = |n, own| JournalEntry::Agreed { tenant: tenant(n), own, at: NOW };
    case.same("the overrides", [first, second], [&agreed(SHORT, own(1, 2)), &agreed(LONG, own(60, 90))]);
    case.same("the deletion", (*removed, *before, *at, *owner), (1, days(1), days(3), Some(tenant(SHORT))));
}
