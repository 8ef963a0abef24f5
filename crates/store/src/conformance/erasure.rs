//! Erasures: erased data is unreadable at once, and after some steps only the journal refers to it.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{Cause, CutScope, Delivery, DeliveryId, Key, MessageId, State, TenantId};

use super::fixture::{
    DeliveryDraft, MANY, NOW, STRANGER, StoreCase, TENANT, after, call, dead, delivered, endpoint, endpoint_id, lane_id,
};
use crate::journal::{ErasedTarget, JournalEntry};
use crate::{
    Acceptance, Accepted, ApiKeyRef, AuditStamp, Chunked, DeadLetterFilter, Document, DocumentKind, Endpoint,
    EndpointPut, Erase, Erasure, ErasureTarget, ExportRequest, Filed, HistoryFilter, JobQuery, ListOrder, Lives, Name,
    NewReplay, Pause, PauseScope, ReplayWhat, Settlement, Store, StoreError,
};

const ANN: &str = "ann";
const OPERATOR_KEY: ApiKeyRef = ApiKeyRef { key: Key::from_raw(5), made: NOW };

impl<S: Store> StoreCase<S> {
    fn about(&self, subject: &str, drafts: &[DeliveryDraft]) -> Accepted {
        self.message_with(drafts, |message| {
            message.subject = Some(subject.to_owned());
            message.event_type = Some("some.event".to_owned());
        })
    }

    async fn accept_about(&self, subject: &str, draft: DeliveryDraft) -> Delivery {
        self.put(self.about(subject, &[draft])).await.remove(0)
    }

    async fn erase(&self, tenant: TenantId, whom: ErasureTarget) -> Erasure {
        self.erase_by(tenant, whom, Some(OPERATOR_KEY)).await
    }

    pub(super) async fn erase_by(&self, tenant: TenantId, whom: ErasureTarget, by: Option<ApiKeyRef>) -> Erasure {
        let erase = Erase { tenant, whom, at: after(50), by };
        self.done("erase", self.store.erase(self.session(), erase).await)
    }

    pub(super) async fn erase_subject(&self, subject: &str) -> Erasure {
        self.erase(TENANT, ErasureTarget::Subject(subject.to_owned())).await
    }

    /// Runs steps until the erasure is done or waits for a delivery in flight.
    pub(super) async fn finish(&self, erasure: Erasure, under_way: &[DeliveryId]) -> Erasure {
        for _ in 0..100 {
            let step = self.store.erase_step(self.session(), erasure.number, after(60), under_way.to_vec()).await;
            let step = self.done("step", step).unwrap_or_else(|| self.fail("the erasure is known"));
            if step.erasure.done.is_some() || step.waits {
                return step.erasure;
            }
        }
        self.fail("an erasure does not end")
    }

    async fn body(&self, message: MessageId) -> Option<Bytes> {
        self.done("message", self.store.message(message).await).map(|found| found.body.clone())
    }

    async fn named_messages(&self, name: Name) -> Vec<MessageId> {
        let page = self.store.named(TENANT, name, ListOrder::OldestFirst, None, MANY).await;
        self.done("named", page).messages
    }

    async fn is_known(&self, id: DeliveryId) -> bool {
        self.done("delivery", self.store.delivery(id, NOW).await).is_some()
    }

    pub(super) async fn letters_of(&self, tenant: TenantId) -> usize {
        let page = self.store.dead_letters(DeadLetterFilter::of(tenant), ListOrder::NewestFirst, None, MANY).await;
        self.done("dead letters", page).letters.len()
    }

    async fn history_of(&self, lane: u64) -> usize {
        let filter = HistoryFilter::of(endpoint_id(lane));
        let page = self.store.history(filter, ListOrder::OldestFirst, None, MANY, NOW).await;
        self.done("history", page).deliveries.len()
    }

    async fn dies(&self, delivery: &Delivery) {
        let settlement = self.attempted(delivery, dead(9), Cause::NotFound);
        self.settle_done(Settlement { excerpt: Some("not found".into()), ..settlement }).await;
    }

    /// The number of readable excerpts of a delivery's attempts.
    async fn excerpts_of(&self, delivery: &Delivery) -> usize {
        self.done("excerpts", self.store.excerpts(delivery.id).await).len()
    }

    async fn replayed(&self, old: &Delivery) -> Delivery {
        let job = self.replay(ReplayWhat::Listed(vec![old.id])).await;
        let chunk = self.replay_chunk(job.id, MANY).await;
        self.same("replayed", self.spread(&chunk).await, Chunked::Done(1));
        chunk.deliveries[0].new.delivery.clone()
    }
}

pub(super) async fn erased_data_cannot_be_read_and_other_data_can<S: Store>(case: &StoreCase<S>) {
    let erased = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    let other = case.accept_about("bob", DeliveryDraft::to(1)).await;
    let without_subject = case.accept_one(DeliveryDraft::to(1)).await;
    case.erase_subject(ANN).await;
    case.same("the payload", case.body(erased.message).await, None);
    case.same("by its subject", case.named_messages(Name::Subject(ANN.to_owned())).await, vec![]);
    case.same("reads as erased", case.state(erased.id).await, State::Cancelled { at: after(50), cause: Cause::Erased });
    for stays in [other, without_subject] {
        case.check(case.body(stays.message).await.is_some(), "others stay");
        case.same("and wait", case.state(stays.id).await, stays.state);
    }
}

pub(super) async fn nothing_of_an_erased_subject_remains<S: Store>(case: &StoreCase<S>) {
    let pending = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    let spilled = case.accept_about(ANN, DeliveryDraft::to(1).spilled()).await;
    let arrived = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    case.settle_done(case.attempted(&arrived, delivered(5), Cause::Ok)).await;
    let dead = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    case.dies(&dead).await;
    let again = case.replayed(&dead).await;
    let stays = case.accept_about("bob", DeliveryDraft::to(1)).await;
    case.dies(&stays).await;
    case.same("the excerpt", case.excerpts_of(&dead).await, 1);
    let erasure = case.erase_subject(ANN).await;
    case.same("cannot be read at once", case.excerpts_of(&dead).await, 0);
    let done = case.finish(erasure, &[]).await;
    case.same("nor later", (case.excerpts_of(&dead).await, case.excerpts_of(&stays).await), (0, 1));
    case.same("counted", (done.messages, done.deliveries), (4, 5));
    case.same("done", done.done, Some(after(60)));
    case.same("and nothing more to do", case.done("unfinished", case.store.unfinished_erasures(9).await), vec![]);
    for gone in [&pending, &spilled, &arrived, &dead, &again] {
        case.check(!case.is_known(gone.id).await, "a delivery is gone");
        let name = Name::Correlation(format!("correlation {}", gone.message));
        case.same("and its names", case.named_messages(name).await, vec![]);
        case.same("and its lives", case.lives(gone.id).await, Lives::default());
    }
    case.same("one letter is left", case.letters_of(TENANT).await, 1);
    case.same("and one delivery of the lane", case.history_of(1).await, 1);
    case.same("nothing waits", case.done("waiting", case.store.waiting(lane_id(1)).await).total(), 0);
    case.check(case.body(stays.message).await.is_some(), "others stay");
}

pub(super) async fn data_accepted_after_an_erasure_is_kept<S: Store>(case: &StoreCase<S>) {
    let before = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    let erasure = case.erase_subject(ANN).await;
    let new = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    case.check(case.body(new.message).await.is_some(), "it can be read");
    case.same("by its subject", case.named_messages(Name::Subject(ANN.to_owned())).await, vec![new.message]);
    case.finish(erasure, &[]).await;
    case.check(!case.is_known(before.id).await, "earlier data is gone");
    case.check(case.body(new.message).await.is_some(), "it stays");
    case.same("it waits", case.state(new.id).await, new.state);
    let erasure = case.erase_subject(ANN).await;
    case.same("the second finds one", case.finish(erasure, &[]).await.messages, 1);
    case.check(!case.is_known(new.id).await, "until it is erased too");
}

pub(super) async fn erasure_waits_for_deliveries_in_flight<S: Store>(case: &StoreCase<S>) {
    let sent = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    let waits = case.accept_about(ANN, DeliveryDraft::to(2)).await;
    let erasure = case.erase_subject(ANN).await;
    let count = case.store.count_erased(vec![sent.message, sent.message, stranger()]).await;
    case.same("of three", case.done("count", count), 2);
    let so_far = case.finish(erasure, &[sent.id]).await;
    case.same("one is left", (so_far.messages, so_far.done), (1, None));
    case.check(!case.is_known(waits.id).await, "the waiting delivery is gone");
    case.settle_done(case.attempted(&sent, delivered(55), Cause::Ok)).await;
    let done = case.finish(erasure, &[]).await;
    case.same("both are gone", (done.messages, done.deliveries), (2, 2));
    case.check(!case.is_known(sent.id).await, "with its outcome");
}

pub(super) async fn erasure_waits_for_ended_deliveries_still_in_flight<S: Store>(case: &StoreCase<S>) {
    // A superseded delivery has ended while its attempt is still in flight.
    let sent = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    let ended = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    for delivery in [&sent, &ended] {
        case.settle_done(case.attempted(delivery, delivered(55), Cause::Ok)).await;
    }
    let erasure = case.erase_subject(ANN).await;
    let so_far = case.finish(erasure, &[sent.id]).await;
    case.same("one is left", (so_far.messages, so_far.done), (1, None));
    let again = case.erase_subject(ANN).await;
    let count = case.store.count_erased(vec![sent.message, ended.message]).await;
    case.same("the remaining message still counts as erased", case.done("count", count), 1);
    case.same("each is counted once", case.finish(erasure, &[]).await.messages, 2);
    case.finish(again, &[]).await;
}

fn stranger() -> MessageId {
    MessageId::from_raw(77)
}

pub(super) async fn key_whose_answer_was_erased_is_fresh_again<S: Store>(case: &StoreCase<S>) {
    let once = |n| call(n, NOW, "the answer");
    let keyed = |accepted: Accepted, n| Accepted { idempotency: Some(once(n)), ..accepted };
    case.put(keyed(case.about(ANN, &[]), 1)).await;
    case.put(keyed(case.message(&[]), 2)).await;
    let erasure = case.erase_subject(ANN).await;
    case.put(keyed(case.about(ANN, &[]), 1)).await;
    case.finish(erasure, &[]).await;
    let replayed = Acceptance::Replayed(once(1).answer);
    for n in [1, 2] {
        let again = case.done("accept", case.store.accept(case.session(), vec![keyed(case.message(&[]), n)]).await);
        case.same("the first answer of a stored message", again, vec![replayed.clone()]);
    }
}

pub(super) async fn subject_is_erased_with_its_endpoints<S: Store>(case: &StoreCase<S>) {
    let once = call(5, NOW, "with a secret");
    let theirs = Endpoint { subject: Some(ANN.to_owned()), uid: Some("phone".to_owned()), ..endpoint(1) };
    let put = case.store.put_endpoint(case.session(), theirs.clone(), Some(once.clone()), AuditStamp::at(NOW)).await;
    case.same("it is put", case.done("put", put), EndpointPut::Done);
    let bob = Endpoint { subject: Some("bob".to_owned()), ..endpoint(2) };
    case.put_endpoint(bob.clone()).await;
    case.put_endpoint(endpoint(3)).await;
    // Read before the erasure too, so that a stale cache would show.
    case.done("endpoints", case.store.endpoints(TENANT).await);
    let waits = case.accept_one(DeliveryDraft::to(1)).await;
    let (flying, elsewhere) =
        (case.accept_one(DeliveryDraft::to(1)).await, case.accept_one(DeliveryDraft::to(2)).await);
    let erasure = case.erase_subject(ANN).await;
    let found = case.done("endpoint", case.store.endpoint(theirs.id).await);
    case.check(
        found.is_none_or(|found| *found == Endpoint { version: 1, ..theirs.tombstone() }),
        "nothing of it is left at once",
    );
    let named = case.store.endpoint_named(TENANT, "phone".to_owned()).await;
    case.same("also by its uid", case.done("by uid", named), None);
    let left = case.done("endpoints", case.store.endpoints(TENANT).await);
    case.same("the others stay", left, Arc::new(vec![Arc::new(bob.clone()), Arc::new(endpoint(3))]));
    let page = case.done("walk", case.store.endpoints_after(TENANT, None, 2).await);
    case.same("a full page", page, vec![Arc::new(bob), Arc::new(endpoint(3))]);
    case.finish(erasure, &[flying.id, elsewhere.id]).await;
    let erased = State::Cancelled { at: erasure.at, cause: Cause::Erased };
    case.same("waiting deliveries have ended", case.state(waits.id).await, erased);
    case.same("deliveries in flight have not", case.state(flying.id).await, flying.state);
    case.settle_done(case.attempted(&flying, delivered(1), Cause::Ok)).await;
    let found = case.done("endpoint", case.store.endpoint(theirs.id).await);
    let tombstone = Endpoint { version: 1, ..theirs.tombstone() };
    case.same("deleted", found.as_deref(), Some(&tombstone));
    case.check(case.body(waits.message).await.is_some(), "a message that is not about them stays");
    let again = Endpoint { id: endpoint_id(4), lane: lane_id(4), ..theirs };
    let put = case.store.put_endpoint(case.session(), again, Some(once), AuditStamp::at(NOW)).await;
    case.same("its key and its uid are free", case.done("put", put), EndpointPut::Done);
    let cuts = case.reopen().await.cuts.into_iter().map(|cut| (cut.scope, cut.upto, cut.cause)).collect::<Vec<_>>();
    let lane = CutScope::Lane(theirs.lane);
    case.same("its lane is cut, also after a restart", cuts, vec![(lane, Key::MAX, Cause::Erased)]);
}

pub(super) async fn tenant_is_erased_with_all_its_data<S: Store>(case: &StoreCase<S>) {
    case.put_endpoint(endpoint(1)).await;
    case.put_endpoint(endpoint(5)).await;
    case.cut(CutScope::Lane(lane_id(5)), endpoint(5).id.0, Cause::EndpointDeleted, &[]).await;
    let other = Endpoint { tenant: STRANGER, ..endpoint(2) };
    case.put_endpoint(other.clone()).await;
    let policy = Document {
        kind: DocumentKind::Policy,
        id: case.message(&[]).message.id.0,
        tenant: TENANT,
        name: Some("slow".to_owned()),
        at: NOW,
        body: Bytes::from_static(b"{}"),
    };
    let filed = case.store.file(case.session(), policy.clone(), None, AuditStamp::at(NOW)).await;
    case.same("a policy", case.done("file", filed), Filed::Done);
    let waits = case.accept_one(DeliveryDraft::to(1)).await;
    let dead = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    case.dies(&dead).await;
    let filter = DeadLetterFilter { event_type: Some("some.event".to_owned()), ..DeadLetterFilter::of(TENANT) };
    let reason = Some("she called".to_owned());
    case.start(NewReplay { reason, ..case.new_replay(NOW, ReplayWhat::Found(filter)) }).await;
    let theirs = case.message_with(&[DeliveryDraft::to(2)], |message| message.tenant = other.tenant);
    let stays = case.put(theirs).await.remove(0);
    for lane in [1, 2] {
        let pause = Pause::new(PauseScope::Lane(lane_id(lane)), None);
        case.done("pause", case.store.pause(case.session(), pause, NOW).await);
    }
    let erasure = case.erase(TENANT, ErasureTarget::Tenant).await;
    case.same("at once", case.body(waits.message).await, None);
    case.same("no endpoints", case.done("endpoints", case.store.endpoints(TENANT).await), Arc::default());
    let read = case.store.document(DocumentKind::Policy, policy.id).await;
    case.same("no documents", case.done("document", read), None);
    let new = case.accept_about(ANN, DeliveryDraft::to(3)).await;
    case.put_endpoint(endpoint(3)).await;
    let done = case.finish(erasure, &[]).await;
    case.same("counted", (done.messages, done.deliveries), (2, 2));
    for gone in [&waits, &dead] {
        case.check(!case.is_known(gone.id).await, "a delivery is gone");
    }
    case.same("no letters", case.letters_of(TENANT).await, 0);
    let jobs = case.store.jobs(JobQuery::Replays(TENANT, ListOrder::OldestFirst), None, MANY).await;
    case.same("no jobs", case.done("jobs", jobs), vec![]);
    case.same("no lane", case.done("lanes", case.store.lanes(vec![lane_id(1), lane_id(5)]).await).len(), 0);
    case.check(case.body(stays.message).await.is_some(), "another tenant's stays");
    case.check(case.done("endpoint", case.store.endpoint(other.id).await).is_some(), "with its endpoint");
    case.check(case.body(new.message).await.is_some(), "later data stays");
    let filed =
        case.store.file(case.session(), Document { id: stranger().0, ..policy }, None, AuditStamp::at(NOW)).await;
    case.same("its names are free", case.done("file", filed), Filed::Done);
    case.same("its endpoint too", case.done("endpoints", case.store.endpoints(TENANT).await).len(), 1);
    let paused: Vec<_> = case.reopen().await.pauses.iter().map(|pause| pause.scope).collect();
    case.same("no pause of an endpoint that is gone", paused, vec![PauseScope::Lane(lane_id(2))]);
}

pub(super) async fn erasure_records_its_announcement_and_its_end<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    let erasure = case.erase_subject(ANN).await;
    let done = case.finish(erasure, &[]).await;
    case.same("it is found by its number", case.done("one", case.store.erasure(erasure.number).await), Some(done));
    let announces = |entry: &JournalEntry| matches!(entry, JournalEntry::Erased { .. });
    let rows = case.journal().await;
    let announced = rows.iter().find(|row| row.entries().flatten().any(|entry| announces(&entry)));
    case.same("its row in the journal", announced.map(|row| row.number), Some(erasure.row));
    let by = case.entries_that(announces).await.first().and_then(JournalEntry::by);
    case.same("with the API key", by, Some(OPERATOR_KEY));
    let entries = case.entries().await;
    let signed = case.done("checkpoints", case.store.checkpoints(0, MANY).await);
    let is_signed = signed.iter().any(|signed| signed.row >= erasure.row);
    case.check(is_signed || std::any::type_name::<S>().contains("Memory"), "a checkpoint covers it");
    let state = State::Cancelled { at: after(50), cause: Cause::Erased };
    let ended = JournalEntry::ended(&Delivery { state, ..delivery }, None);
    case.check(entries.contains(&ended), "the waiting delivery has ended");
    let end = JournalEntry::ErasureDone { announced: erasure.row, messages: 1, deliveries: 1, at: after(60) };
    case.same("the end", entries.last(), Some(&end));
}

pub(super) async fn export_is_recorded_in_the_journal<S: Store>(case: &StoreCase<S>) {
    case.accept_about(ANN, DeliveryDraft::to(1)).await;
    for subject in [ANN, "unknown"] {
        let request =
            ExportRequest { tenant: TENANT, subject: subject.to_owned(), at: after(5), by: Some(OPERATOR_KEY) };
        case.done("note", case.store.note_export(case.session(), request).await);
    }
    case.erase_subject(ANN).await;
    let erased = case.entries().await.into_iter().find_map(|entry| match entry {
        JournalEntry::Erased { whom: ErasedTarget::Subject(mark), .. } => Some(mark),
        _ => None,
    });
    let mark = erased.unwrap_or_else(|| case.fail("it is announced"));
    case.check(mark.is_some(), "the journal has her mark");
    let exported = |subject| JournalEntry::Exported { tenant: TENANT, subject, at: after(5), by: Some(OPERATOR_KEY) };
    let noted = case.entries_that(|entry| matches!(entry, JournalEntry::Exported { .. })).await;
    case.same("with that mark", noted, vec![exported(mark), exported(None)]);
}

pub(super) async fn erasing_an_unknown_subject_succeeds<S: Store>(case: &StoreCase<S>) {
    let erasure = case.erase_subject("unknown").await;
    let done = case.finish(erasure, &[]).await;
    case.same("nothing was there", (done.messages, done.deliveries), (0, 0));
    case.check(done.done.is_some(), "and it is done");
}

pub(super) async fn a_large_fan_out_is_erased_in_small_steps<S: Store>(case: &StoreCase<S>) {
    let drafts: Vec<DeliveryDraft> =
        (0..900).map(|n| if n % 2 == 0 { DeliveryDraft::to(1) } else { DeliveryDraft::to(1).spilled() }).collect();
    let deliveries = case.put(case.about(ANN, &drafts)).await;
    let erasure = case.erase_subject(ANN).await;
    let done = case.finish(erasure, &[]).await;
    case.same("all", (done.messages, done.deliveries), (1, 900));
    case.check(!case.is_known(deliveries[899].id).await, "up to the last");
}

pub(super) async fn fenced_session_erases_nothing<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_about(ANN, DeliveryDraft::to(1)).await;
    let old = case.session();
    case.reopen().await;
    let erase = Erase { tenant: TENANT, whom: ErasureTarget::Subject(ANN.to_owned()), at: NOW, by: None };
    let refused = case.store.erase(old, erase).await;
    case.check(matches!(refused, Err(StoreError::Fenced { .. })), "the old session is fenced");
    case.check(case.body(delivery.message).await.is_some(), "and nothing is erased");
}
