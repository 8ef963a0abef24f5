//! The journal: every change is recorded, in order, in linked rows. Checkpoints are signed for its last row, and only if
//! it has grown.

use posthaste_core::scheduler::{BreakerOf, Reset};
use posthaste_core::{Cause, Cut, CutScope, Key, Timestamp};

use super::fixture::{
    DeliveryDraft, MANY, NOW, StoreCase, TENANT, after, api_key, attempt, delivered, ended, endpoint, lane_id,
};
use crate::journal::{Head, JournalEntry};
use crate::{
    AuditStamp, ChangeKind, DeadLetterFilter, Endpoint, EndpointPut, EndpointStatus, JobState, Pause, PauseScope,
    ReplayWhat, Session, Settled, Signed, Store, StoreError,
};

impl<S: Store> StoreCase<S> {
    async fn sign(&self, grown: u64) -> Option<Signed> {
        self.sign_in(self.session(), grown).await
    }

    async fn sign_in(&self, session: Session, grown: u64) -> Option<Signed> {
        self.done("sign", self.store.sign(session, grown, after(5)).await)
    }
}

pub(super) async fn journal_records_all_changes_of_a_delivery<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let first = case.retried(&delivery, 50, Cause::Unavailable);
    case.settle_done(first.clone()).await;
    let second = case.attempted(&first.record.delivery, delivered(60), Cause::Ok);
    case.settle_done(second.clone()).await;

    let entries = case.entries().await;
    case.check(matches!(entries[0], JournalEntry::Opened { .. }), "it begins with the session");
    let JournalEntry::Accepted { message: id, tenant, at, subject, deliveries, .. } = &entries[1] else {
        case.fail("then it is accepted")
    };
    case.same("which message", (*id, *tenant, *at, *subject), (delivery.message, TENANT, NOW, None));
    case.same("where to", deliveries.clone(), vec![(delivery.endpoint, delivery.lane, delivery.tier)]);
    let (endpoint, attempted) = (delivery.endpoint, attempt(1, Cause::Unavailable));
    let tried = JournalEntry::Attempted { delivery: delivery.id, endpoint, attempt: attempted };
    let ended = JournalEntry::ended(&second.record.delivery, Some(attempt(2, Cause::Ok)));
    case.same("then it is tried, and ends", entries[2..].to_vec(), vec![tried, ended]);
}

pub(super) async fn journal_has_fingerprints_of_payloads_and_subjects<S: Store>(case: &StoreCase<S>) {
    let message = |body: &'static [u8], subject: Option<&str>| {
        case.message_with(&[], |message| {
            (message.body, message.subject) = (body.into(), subject.map(str::to_owned));
        })
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
    let marks =
        |entry| if let JournalEntry::Accepted { digest, subject, .. } = entry { Some((digest, subject)) } else { None };
    let marks: Vec<_> = case.entries().await.into_iter().filter_map(marks).collect();
    case.same("equal payloads have equal marks", marks[0].0, marks[1].0);
    case.check(marks[0].0 != marks[2].0, "another payload has another mark");
    case.check(marks[..3].iter().all(|(_, subject)| subject.is_none()), "messages without a subject have no mark");
    case.same("one subject's marks are equal", marks[3], marks[4]);
    case.check(marks[3].1.is_some() && marks[3].1 != marks[5].1, "another subject has another mark");
}

pub(super) async fn journal_rows_are_linked_and_match_their_roots<S: Store>(case: &StoreCase<S>) {
    for _ in 0..5 {
        case.accept(&[DeliveryDraft::to(1), DeliveryDraft::to(2)]).await;
    }
    case.reopen().await;
    let rows = case.journal().await;
    let mut head = Head::default();
    for row in &rows {
        case.check(head.is_followed_by(row), "each row is linked to the one before");
        case.check(row.is_sound().unwrap_or(false), "each root matches its entries");
        head = Head::behind(row);
    }
    let page = case.done("journal", case.store.journal(rows[1].number, 2).await);
    case.same("a page of it", page, rows[2..4].to_vec());
}

pub(super) async fn stale_settle_writes_only_its_attempt<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let end = case.attempted(&delivery, delivered(9), Cause::Ok);
    case.settle_done(end.clone()).await;
    let before = case.entries().await.len();
    case.same("a repeated settle", case.settle(end.clone()).await, Settled::Stale);
    case.same("it writes no entry", case.entries().await.len(), before);
    let other = case.attempted(&end.record.delivery, delivered(9), Cause::Unavailable);
    case.same("another attempt", case.settle(other).await, Settled::Stale);
    let (endpoint, attempted) = (delivery.endpoint, attempt(2, Cause::Unavailable));
    let late = JournalEntry::Late { delivery: delivery.id, endpoint, attempt: attempted };
    case.same("it is recorded as late", case.entries().await[before..].to_vec(), vec![late]);
}

pub(super) async fn changes_are_in_the_journal_with_their_api_key<S: Store>(case: &StoreCase<S>) {
    let (ann, bob) = (api_key(1), api_key(2));
    let act = |ms, by| AuditStamp { at: after(ms), by };
    let put = case.store.put_endpoint(case.session(), endpoint(1), None, act(1, ann)).await;
    case.same("put", case.done("put_endpoint", put), EndpointPut::Done);
    let changed = Endpoint { version: 1, ..endpoint(1) };
    let put = case.store.put_endpoint(case.session(), changed, None, act(2, bob)).await;
    case.same("changed", case.done("put_endpoint", put), EndpointPut::Done);
    let scope = PauseScope::Lane(lane_id(1));
    let pause = Pause { by: ann, ..Pause::new(scope, Some(after(50))) };
    case.done("pause", case.store.pause(case.session(), pause, after(3)).await);
    case.done("resume", case.store.resume(case.session(), scope, act(4, bob)).await);
    let (of, how) = (BreakerOf::Lane(lane_id(1)), Reset::Force);
    case.done("reset", case.store.reset(case.session(), of, how, act(5, ann)).await);
    let (gone, upto, cause) = (CutScope::Lane(lane_id(1)), Key::from_raw(99), Cause::EndpointDeleted);
    let cut = Cut { scope: gone, upto, cause, at: after(6), spared: Vec::new(), endpoint: ended(gone, cause) };
    case.done("cut", case.store.cut(case.session(), cut, bob).await);
    case.done("uncut", case.store.uncut(case.session(), gone, after(7)).await);
    let (endpoint, tenant) = (endpoint(1).id, endpoint(1).tenant);
    let (active, deleted) = (EndpointStatus::Active, EndpointStatus::Deleted);
    let endpoint =
        |deed, status, AuditStamp { at, by }| JournalEntry::Endpoint { endpoint, tenant, deed, status, at, by };
    let expected = vec![
        endpoint(ChangeKind::Made, active, act(1, ann)),
        endpoint(ChangeKind::Changed, active, act(2, bob)),
        JournalEntry::Paused { scope, until: Some(after(50)), at: after(3), by: ann },
        JournalEntry::Resumed { scope, at: after(4), by: bob },
        JournalEntry::Reset { of, how, at: after(5), by: ann },
        JournalEntry::Cut { scope: gone, upto, cause, at: after(6), by: bob },
        endpoint(ChangeKind::Removed, deleted, act(6, bob)),
        JournalEntry::Uncut { scope: gone, at: after(7) },
    ];
    case.same("every step", case.entries().await[1..].to_vec(), expected);
    let times: Vec<Timestamp> = case.journal().await.iter().map(|row| row.at).collect();
    case.same("the rows' times", times, [0, 1, 2, 3, 4, 5, 6, 7].map(after).to_vec());
}

pub(super) async fn retry_now_is_in_the_journal_with_its_api_key<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let before = case.entries().await.len();
    let act = AuditStamp { at: after(3), by: api_key(1) };
    case.done("note_retry_now", case.store.note_retry_now(case.session(), &delivery, act).await);
    case.same("the entry", case.entries().await[before..].to_vec(), vec![JournalEntry::hurried(&delivery, act)]);
}

pub(super) async fn replay_and_purge_are_in_the_journal_with_their_api_key<S: Store>(case: &StoreCase<S>) {
    let (ann, bob) = (api_key(1), api_key(2));
    let replay = case.new_replay(after(1), ReplayWhat::Listed(Vec::new()));
    let (job, tenant) = (replay.id, TENANT);
    case.done("replay", case.store.start_replay(case.session(), replay, ann).await);
    let cancel = AuditStamp { at: after(2), by: bob };
    let changed = case.store.change_job(case.session(), job, JobState::Cancelled, cancel).await;
    case.check(case.done("change", changed), "it is cancelled");
    let (filter, purge) = (DeadLetterFilter::of(tenant), AuditStamp { at: after(3), by: ann });
    _ = case.done("purge", case.store.purge_dead_letters(case.session(), tenant, filter, purge).await);
    let replay = Some(after(1));
    let expected = vec![
        JournalEntry::Job { job, tenant, state: JobState::Running, replay, at: after(1), by: ann },
        JournalEntry::Job { job, tenant, state: JobState::Cancelled, replay, at: after(2), by: bob },
        JournalEntry::Purged { tenant, upto: 0, at: after(3), by: ann },
    ];
    case.same("every step", case.entries().await[1..].to_vec(), expected);
}

pub(super) async fn checkpoint_covers_the_last_row<S: Store>(case: &StoreCase<S>) {
    case.accept(&[DeliveryDraft::to(1)]).await;
    let Some(signed) = case.sign(1).await else { case.fail("there are rows to sign") };
    let rows = case.journal().await;
    let last = &rows[rows.len() - 1];
    let Ok(checkpoint) = case.store.public_key().verify(&signed.line) else { case.fail("its own key verifies it") };
    case.same("the last row", (checkpoint.row, checkpoint.chain), (last.number, last.hash()));
    case.same("its time", (signed.row, checkpoint.at_ms), (last.number, after(5).as_millis()));
    case.same("it is kept", case.done("read", case.store.checkpoints(0, MANY).await), vec![signed.clone()]);
    let again = case.done("sign now", case.store.sign_now(case.session(), after(9)).await);
    case.same("a second request gets the same checkpoint", again, Some(signed.clone()));
    case.same("none after it", case.done("read", case.store.checkpoints(signed.row, MANY).await), vec![]);
}

pub(super) async fn rows_already_covered_are_not_signed_again<S: Store>(case: &StoreCase<S>) {
    case.check(case.sign(2).await.is_none(), "one row is not two");
    case.check(case.sign(0).await.is_some(), "a session has begun");
    case.same("nothing since", (case.sign(0).await, case.sign(1).await), (None, None));
    case.accept(&[DeliveryDraft::to(1)]).await;
    case.check(case.sign(2).await.is_none(), "one more is not two more");
    case.accept(&[DeliveryDraft::to(1)]).await;
    let key = case.store.public_key();
    case.check(case.sign(2).await.is_some(), "two more");
    let newer = case.reopen().await.session;
    let Some(next) = case.sign_in(newer, 1).await else { case.fail("another session has begun") };
    case.check(case.store.public_key() == key && key.verify(&next.line).is_ok(), "one key for the store's life");
    let rows: Vec<u64> = case.done("read", case.store.checkpoints(0, MANY).await).iter().map(|one| one.row).collect();
    case.same("in order", rows, vec![1, 3, 4]);
}

pub(super) async fn sign_now_covers_the_current_last_row<S: Store>(case: &StoreCase<S>) {
    case.same("nothing is signed yet", case.done("last", case.store.last_checkpoint().await), None);
    for row in 1..=3 {
        let signed = case.done("sign now", case.store.sign_now(case.session(), after(5)).await);
        case.same("for the last row", signed.as_ref().map(|signed| signed.row), Some(row));
        case.same("and it is kept", case.done("last", case.store.last_checkpoint().await), signed);
        case.accept(&[DeliveryDraft::to(1)]).await;
    }
}

pub(super) async fn fenced_session_signs_nothing<S: Store>(case: &StoreCase<S>) {
    let newer = case.reopen().await.session;
    let refused = case.store.sign(case.session(), 1, NOW).await;
    case.check(matches!(refused, Err(StoreError::Fenced { .. })), "an older session is fenced");
    case.same("nothing is stored", case.done("read", case.store.checkpoints(0, MANY).await), vec![]);
    case.check(case.sign_in(newer, 1).await.is_some(), "the newer one signs");
}
