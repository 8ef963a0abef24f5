//! Tenants with whom another time was agreed, beside those with whom none was.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::TenantId;
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;

use super::fixture::{Case, Draft, MANY, NOW, after, endpoint};
use super::retention::days;
use crate::Store;
use crate::journal::{Entry, JournalRow};
use crate::row::{
    Accepted, Agreed, Endpoint, Erase, Message, OwnRetention, RETENTION_STEP_MAX, Retention, RetentionPhase,
    RetentionStep, Whom,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Tenants of the cases; each has the lane of its number.
const EVERYBODY: u64 = 1;
const SHORT: u64 = 2;
const LONG: u64 = 3;

fn tenant(n: u64) -> TenantId {
    TenantId::from_raw(n)
}

fn own(payload: u32, history: u32) -> OwnRetention {
    OwnRetention { payload: Some(payload * DAY), history: Some(history * DAY) }
}

impl<S: Store> Case<S> {
    async fn tenants(&self) {
        for n in [EVERYBODY, SHORT, LONG] {
            self.put_endpoint(Endpoint { tenant: tenant(n), ..endpoint(n) }).await;
        }
        let agreed = vec![(tenant(SHORT), own(1, 2)), (tenant(LONG), own(60, 90))];
        self.same("agreed with two", self.agree(Agreed::all(agreed)).await, 2);
    }

    async fn agree(&self, agreed: Agreed) -> u64 {
        self.done("agree", self.store.agree(self.session(), agreed, NOW).await)
    }

    fn message_of(&self, n: u64, drafts: &[Draft]) -> Accepted {
        let accepted = self.message(drafts);
        Accepted { message: Arc::new(Message { tenant: tenant(n), ..(*accepted.message).clone() }), ..accepted }
    }

    /// A message of a tenant to its lane.
    async fn send(&self, n: u64) -> Delivery {
        let accepted = self.message_of(n, &[Draft::to(n).spilled()]);
        let delivery = accepted.deliveries[0].delivery.clone();
        _ = self.done("accept", self.store.accept(self.session(), vec![accepted]).await);
        delivery
    }

    async fn sent(&self, n: u64) -> Delivery {
        let delivery = self.send(n).await;
        self.end(&delivery, State::Delivered { at: after(1) }).await;
        delivery
    }

    /// How many messages were removed.
    async fn let_messages_go(&self, now: Timestamp) -> u64 {
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

    /// Of which of these payload and history are left.
    async fn left(&self, deliveries: &[Delivery]) -> Vec<(bool, bool)> {
        let mut left = Vec::new();
        for delivery in deliveries {
            left.push((self.has_message(delivery).await, self.is_shown(delivery).await));
        }
        left
    }
}

pub(super) async fn each_tenant_s_things_are_kept_as_was_agreed_with_it<S: Store>(case: &Case<S>) {
    case.tenants().await;
    let sent = [case.sent(LONG).await, case.sent(EVERYBODY).await, case.sent(SHORT).await, case.sent(LONG).await];
    let (whole, told, gone) = ((true, true), (false, true), (false, false));
    for (day, expected) in [
        (1, [whole, whole, told, whole]),
        (3, [whole, whole, gone, whole]),
        (8, [whole, told, gone, whole]),
        (31, [whole, gone, gone, whole]),
        (61, [told, gone, gone, told]),
        (91, [gone, gone, gone, gone]),
    ] {
        case.retain(days(day)).await;
        case.same(&format!("after {day} days"), case.left(&sent).await, expected.to_vec());
    }
}

/// What was sent to an endpoint of a subject that is erased later is kept as long as all else of the tenant.
pub(super) async fn outcomes_of_an_erased_subjects_endpoint_go_in_the_tenants_time<S: Store>(case: &Case<S>) {
    case.tenants().await;
    let mut sent = Vec::new();
    for (n, whose) in [(8, SHORT), (9, LONG)] {
        let subject = Some("ann".to_owned());
        case.put_endpoint(Endpoint { tenant: tenant(whose), subject, ..endpoint(n) }).await;
        let accepted = case.message_of(whose, &[Draft::to(n)]);
        let delivery = accepted.deliveries[0].delivery.clone();
        _ = case.done("accept", case.store.accept(case.session(), vec![accepted]).await);
        case.end(&delivery, State::Delivered { at: after(1) }).await;
        sent.push(delivery);
    }
    for whose in [SHORT, LONG] {
        let erase = Erase { tenant: tenant(whose), whom: Whom::Subject("ann".to_owned()), at: after(2), by: None };
        let erasure = case.done("erase", case.store.erase(case.session(), erase).await);
        case.check(case.finish(erasure, &[]).await.done.is_some(), "nothing is under way");
    }
    for (day, expected) in [(1, [true, true]), (3, [false, true]), (89, [false, true]), (91, [false, false])] {
        case.retain(days(day)).await;
        let shown = [case.is_shown(&sent[0]).await, case.is_shown(&sent[1]).await];
        case.same(&format!("after {day} days"), shown, expected);
    }
}

pub(super) async fn what_waits_is_given_up_after_its_tenant_s_time<S: Store>(case: &Case<S>) {
    case.tenants().await;
    let waiting = [case.send(LONG).await, case.send(EVERYBODY).await, case.send(SHORT).await];
    for (day, given_up) in [(1, vec![]), (3, vec![2]), (31, vec![1]), (89, vec![]), (91, vec![0])] {
        case.retain(days(day)).await;
        for place in given_up {
            let state = State::Dead { at: days(day), cause: Cause::Retention };
            case.same("given up", case.state(waiting[place].id).await, state);
            case.check(case.has_message(&waiting[place]).await, "as a dead letter, which can be replayed");
        }
        case.same("who agreed on more waits", case.pending(waiting[0].id).await.is_some(), day < 90);
    }
}

pub(super) async fn a_change_holds_for_what_is_there_already<S: Store>(case: &Case<S>) {
    case.tenants().await;
    let sent = [case.sent(EVERYBODY).await, case.sent(SHORT).await, case.sent(LONG).await];
    let waits = case.send(LONG).await;
    // Everybody's walk has passed what is kept for longer.
    case.retain(days(40)).await;
    case.same("kept for longer", case.left(&sent).await, vec![(false, false), (false, false), (true, true)]);
    case.agree(Agreed::all(vec![(tenant(LONG), own(30, 50))])).await;
    case.retain(days(40)).await;
    case.same("the payload goes by the shorter time", case.left(&sent[2..]).await, vec![(false, true)]);
    case.check(case.pending(waits.id).await.is_some(), "50 days are not over");
    case.agree(Agreed::all(vec![])).await;
    case.retain(days(40)).await;
    case.same("and the history by everybody's", case.left(&sent[2..]).await, vec![(false, false)]);
    case.same("given up", case.state(waits.id).await, State::Dead { at: days(40), cause: Cause::Retention });
    // Back to where no walk has been for long.
    let later = [case.sent(SHORT).await, case.sent(LONG).await];
    case.agree(Agreed::all(vec![(tenant(SHORT), own(100, 200))])).await;
    case.retain(days(50)).await;
    case.same("longer than before", case.left(&later).await, vec![(true, true), (false, false)]);
    case.agree(Agreed::all(vec![(tenant(SHORT), own(1, 1))])).await;
    case.retain(days(50)).await;
    case.same("and shorter", case.left(&later).await, vec![(false, false), (false, false)]);
}

pub(super) async fn who_keeps_for_longer_is_passed_over_in_small_steps<S: Store>(case: &Case<S>) {
    case.tenants().await;
    let count = RETENTION_STEP_MAX as usize + 7;
    let messages = (0..2 * count).map(|n| case.message_of(if n < count { LONG } else { SHORT }, &[])).collect();
    _ = case.done("accept", case.store.accept(case.session(), messages).await);
    for (day, gone) in [(3, count), (59, 0), (61, count)] {
        case.same("those whose time is over", case.let_messages_go(days(day)).await, gone as u64);
    }
}

pub(super) async fn what_is_needed_outlives_every_time<S: Store>(case: &Case<S>) {
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
    // It is kept for longer than it is needed.
    case.agree(Agreed::all(vec![(tenant(LONG), own(100, 100))])).await;
    case.end(&waiting, State::Delivered { at: days(62) }).await;
    case.retain(days(99)).await;
    case.check(case.has_message(&waiting).await, "a hundred days are not over");
    case.retain(days(100)).await;
    case.check(!case.has_message(&waiting).await, "now they are");
}

pub(super) async fn what_is_agreed_with_some_leaves_others_alone<S: Store>(case: &Case<S>) {
    case.tenants().await;
    let nobody = |after, upto| Agreed { after, upto, own: Vec::new() };
    let same = vec![(tenant(SHORT), own(1, 2)), (tenant(LONG), own(60, 90))];
    case.same("the same again", case.agree(Agreed::all(same)).await, 0);
    case.same("before them", case.agree(nobody(None, Some(tenant(EVERYBODY)))).await, 0);
    case.same("behind them", case.agree(nobody(Some(tenant(LONG)), None)).await, 0);
    let sent = [case.sent(EVERYBODY).await, case.sent(SHORT).await, case.sent(LONG).await];
    case.same("one of them", case.agree(nobody(Some(tenant(EVERYBODY)), Some(tenant(SHORT)))).await, 1);
    case.retain(days(6)).await;
    case.same("as long as everybody's", case.left(&sent).await, vec![(true, true); 3]);
    case.retain(days(31)).await;
    case.same("and no longer", case.left(&sent).await, vec![(false, false), (false, false), (true, true)]);
}

pub(super) async fn what_was_agreed_outlives_its_session<S: Store>(case: &Case<S>) {
    case.tenants().await;
    let sent = [case.sent(SHORT).await, case.sent(LONG).await];
    let later = case.reopen().await.session;
    case.retain_in(later, days(3)).await;
    case.same("the shorter", case.left(&sent).await, vec![(false, false), (true, true)]);
    case.retain_in(later, days(59)).await;
    case.same("the longer", case.left(&sent).await, vec![(false, false), (true, true)]);
    let fenced = case.store.agree(case.session(), Agreed::all(vec![]), NOW).await;
    case.check(fenced.is_err(), "an older session agrees on nothing");
}

pub(super) async fn what_is_agreed_is_told_in_the_journal<S: Store>(case: &Case<S>) {
    case.tenants().await;
    case.sent(SHORT).await;
    case.retain(days(3)).await;
    let rows = case.done("journal", case.store.journal(0, MANY).await);
    let entries = rows.iter().flat_map(JournalRow::entries).map(|entry| case.done("entry", entry));
    let told: Vec<Entry> = entries
        .filter(|entry| match entry {
            Entry::Retained { phase, .. } => *phase == RetentionPhase::History,
            other => matches!(other, Entry::Agreed { .. }),
        })
        .map(|entry| match entry {
            Entry::Retained { phase, removed, before, at, tenant, .. } => {
                Entry::Retained { phase, upto: 0, removed, before, at, tenant }
            }
            other => other,
        })
        .collect();
    let expected = vec![
        Entry::Agreed { tenant: tenant(SHORT), own: own(1, 2), at: NOW },
        Entry::Agreed { tenant: tenant(LONG), own: own(60, 90), at: NOW },
        Entry::Retained {
            phase: RetentionPhase::History,
            upto: 0,
            removed: 1,
            before: days(1),
            at: days(3),
            tenant: Some(tenant(SHORT)),
        },
    ];
    case.same("what was agreed, and what went by it", told, expected);
}
