//! Retention overrides: tenants that have one, beside tenants that have none.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Cause, Delivery, State, TenantId, Timestamp};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after, endpoint};
use super::retention::days;
use crate::Store;
use crate::journal::{JournalEntry, JournalRow};
use crate::row::{
    Accepted, Endpoint, Erase, ErasureTarget, Message, RETENTION_STEP_MAX, Retention, RetentionOverride,
    RetentionOverrides, RetentionPhase, RetentionStep,
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

impl<S: Store> StoreCase<S> {
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
        let accepted = self.message(drafts);
        Accepted { message: Arc::new(Message { tenant: tenant(n), ..(*accepted.message).clone() }), ..accepted }
    }

    /// A message of a tenant to its lane.
    async fn send(&self, n: u64) -> Delivery {
        let accepted = self.message_of(n, &[DeliveryDraft::to(n).spilled()]);
        let delivery = accepted.deliveries[0].delivery.clone();
        _ = self.done("accept", self.store.accept(self.session(), vec![accepted]).await);
        delivery
    }

    async fn sent(&self, n: u64) -> Delivery {
        let delivery = self.send(n).await;
        self.end(&delivery, State::Delivered { at: after(1) }).await;
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
        let accepted = case.message_of(whose, &[DeliveryDraft::to(n)]);
        let delivery = accepted.deliveries[0].delivery.clone();
        _ = case.done("accept", case.store.accept(case.session(), vec![accepted]).await);
        case.end(&delivery, State::Delivered { at: after(1) }).await;
        sent.push(delivery);
    }
    for whose in [SHORT, LONG] {
        let erase =
            Erase { tenant: tenant(whose), whom: ErasureTarget::Subject("ann".to_owned()), at: after(2), by: None };
        let erasure = case.done("erase", case.store.erase(case.session(), erase).await);
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
    let rows = case.done("journal", case.store.journal(0, MANY).await);
    let entries = rows.iter().flat_map(JournalRow::entries).map(|entry| case.done("entry", entry));
    let recorded: Vec<JournalEntry> = entries
        .filter(|entry| match entry {
            JournalEntry::Retained { phase, .. } => *phase == RetentionPhase::History,
            other => matches!(other, JournalEntry::Agreed { .. }),
        })
        .map(|entry| match entry {
            JournalEntry::Retained { phase, removed, before, at, tenant, .. } => {
                JournalEntry::Retained { phase, upto: 0, removed, before, at, tenant }
            }
            other => other,
        })
        .collect();
    let expected = vec![
        JournalEntry::Agreed { tenant: tenant(SHORT), own: own(1, 2), at: NOW },
        JournalEntry::Agreed { tenant: tenant(LONG), own: own(60, 90), at: NOW },
        JournalEntry::Retained {
            phase: RetentionPhase::History,
            upto: 0,
            removed: 1,
            before: days(1),
            at: days(3),
            tenant: Some(tenant(SHORT)),
        },
    ];
    case.same("the overrides, and the deletion under one", recorded, expected);
}
