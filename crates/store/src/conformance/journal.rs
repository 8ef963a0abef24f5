//! Whatever changes what is sent, or what became of it, is in the journal, in order and linked.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::cause::Cause;
use posthaste_core::cut::Scope;
use posthaste_core::id::Key;
use posthaste_core::queue::{BreakerOf, Reset};
use posthaste_core::state::State;

use super::fixture::{Case, Draft, MANY, NOW, after, attempt, endpoint, lane_id, somebody};
use crate::journal::{Entry, Head};
use crate::row::{Accepted, EndpointStatus, Message, Pause, PauseScope, Settled};
use crate::{JournalRow, Store};

pub(super) async fn the_journal_tells_a_delivery_s_whole_life<S: Store>(case: &Case<S>) {
    let accepted = case.message(&[Draft::to(1)]);
    let (message, delivery) = (accepted.message.clone(), accepted.deliveries[0].delivery.clone());
    case.done("accept", case.store.accept(case.session(), vec![accepted]).await);
    let retry = State::Retry { due: after(50), cause: Cause::Unavailable };
    let first = case.attempted(&delivery, retry, Cause::Unavailable);
    case.settle_done(first.clone()).await;
    let second = case.attempted(&first.record.delivery, State::Delivered { at: after(60) }, Cause::Ok);
    case.settle_done(second.clone()).await;

    let entries = entries(case).await;
    case.check(matches!(entries[0], Entry::Opened { .. }), "a session begins it");
    let Entry::Accepted { message: id, tenant, at, subject, deliveries, .. } = &entries[1] else {
        case.fail("then it is accepted")
    };
    case.same("which message", (*id, *tenant, *at, *subject), (message.id, message.tenant, NOW, None));
    case.same("where to", deliveries.clone(), vec![(delivery.lane, delivery.tier)]);
    let tried =
        Entry::Attempted { delivery: delivery.id, lane: delivery.lane, attempt: attempt(1, Cause::Unavailable) };
    let ended = Entry::ended(&second.record.delivery, Some(attempt(2, Cause::Ok)));
    case.same("then it is tried, and ends", entries[2..].to_vec(), vec![tried, ended]);
}

pub(super) async fn the_journal_marks_payloads_and_subjects<S: Store>(case: &Case<S>) {
    let message = |body: &'static [u8], subject: Option<&str>| {
        let accepted = case.message(&[]);
        let subject = subject.map(str::to_owned);
        let message = Message { body: Bytes::from_static(body), subject, ..Message::clone(&accepted.message) };
        Accepted { message: Arc::new(message), ..accepted }
    };
    let batch = vec![
        message(b"{}", None),
        message(b"{}", None),
        message(b"[]", None),
        message(b"{}", Some("one")),
        message(b"{}", Some("one")),
        message(b"{}", Some("other")),
    ];
    case.done("accept", case.store.accept(case.session(), batch).await);
    let marks = entries(case).await.into_iter().filter_map(|entry| match entry {
        Entry::Accepted { digest, subject, .. } => Some((digest, subject)),
        _ => None,
    });
    let marks: Vec<_> = marks.collect();
    case.same("equal payloads have equal marks", marks[0].0, marks[1].0);
    case.check(marks[0].0 != marks[2].0, "others have others");
    case.check(marks[..3].iter().all(|(_, subject)| subject.is_none()), "nobody's have no subject");
    case.same("one subject's are the same", marks[3], marks[4]);
    case.check(marks[3].1.is_some() && marks[3].1 != marks[5].1, "another subject is another");
}

pub(super) async fn the_journal_s_rows_are_linked_and_sound<S: Store>(case: &Case<S>) {
    for _ in 0..5 {
        case.accept(&[Draft::to(1), Draft::to(2)]).await;
    }
    case.reopen().await;
    let rows = rows(case).await;
    let mut head = Head::default();
    for row in &rows {
        case.check(head.is_followed_by(row), "each row names the one before");
        case.check(row.is_sound().unwrap_or(false), "each root is that of its entries");
        head = Head::behind(row);
    }
    let page = case.done("journal", case.store.journal(rows[1].number, 2).await);
    case.same("a page of it", page, rows[2..4].to_vec());
}

pub(super) async fn what_takes_no_effect_leaves_no_entry_but_its_attempt<S: Store>(case: &Case<S>) {
    let delivery = case.accept_one(Draft::to(1)).await;
    let end = case.attempted(&delivery, State::Delivered { at: after(9) }, Cause::Ok);
    case.settle_done(end.clone()).await;
    let before = entries(case).await.len();
    case.same("made again", case.settle(end.clone()).await, Settled::Stale);
    case.same("it leaves nothing", entries(case).await.len(), before);
    let other = case.attempted(&end.record.delivery, State::Delivered { at: after(9) }, Cause::Unavailable);
    case.same("another attempt", case.settle(other).await, Settled::Stale);
    let late = Entry::Late { delivery: delivery.id, lane: delivery.lane, attempt: attempt(2, Cause::Unavailable) };
    case.same("it is kept as late", entries(case).await[before..].to_vec(), vec![late]);
}

pub(super) async fn what_somebody_does_is_in_the_journal<S: Store>(case: &Case<S>) {
    case.put_endpoint(endpoint(1)).await;
    let scope = PauseScope::Lane(lane_id(1));
    let (paused_by, resumed_by) = (somebody(1), somebody(2));
    let pause = Pause { by: paused_by, ..Pause::new(scope, Some(after(5))) };
    case.done("pause", case.store.pause(case.session(), pause).await);
    case.done("resume", case.store.resume(case.session(), scope, resumed_by).await);
    let (of, how) = (BreakerOf::Lane(lane_id(1)), Reset::Force);
    case.done("reset", case.store.reset(case.session(), of, how, paused_by).await);
    let gone = Scope::Lane(lane_id(1));
    case.cut(gone, Key::from_raw(99), Cause::EndpointGone, &[]).await;
    case.done("uncut", case.store.uncut(case.session(), gone).await);
    let (endpoint, tenant) = (endpoint(1).id, endpoint(1).tenant);
    case.same(
        "every step",
        entries(case).await[1..].to_vec(),
        vec![
            Entry::Endpoint { endpoint, tenant, status: EndpointStatus::Active },
            Entry::Paused { scope, until: Some(after(5)), by: paused_by },
            Entry::Resumed { scope, by: resumed_by },
            Entry::Reset { of, how, by: paused_by },
            Entry::Cut { scope: gone, upto: Key::from_raw(99), cause: Cause::EndpointGone, at: after(7) },
            Entry::Endpoint { endpoint, tenant, status: EndpointStatus::Gone },
            Entry::Uncut { scope: gone },
        ],
    );
}

async fn rows<S: Store>(case: &Case<S>) -> Vec<JournalRow> {
    case.done("journal", case.store.journal(0, MANY).await)
}

async fn entries<S: Store>(case: &Case<S>) -> Vec<Entry> {
    let rows = rows(case).await;
    case.done("unpack", rows.iter().flat_map(JournalRow::entries).collect())
}
