//! Replays of expired deliveries and of messages an endpoint is missing, and dry runs of replays.

use posthaste_core::{Cause, CutScope, Delivery, DeliveryId, Expiry, JobId, Key, MessageId, State, Tier};

use super::fixture::{
    DeliveryDraft, MANY, NOW, STRANGER, StoreCase, TENANT, after, all_pages, dead, delivered, endpoint, endpoint_id,
};
use super::job::new_ids;
use super::retention::days;
use crate::{
    Accepted, BoundedCount, Chunked, DeadLetterFilter, DeliveryJob, Endpoint, JobCursor, JobState, ListOrder, Missing,
    NewReplay, ReplayWhat, Replayable, Skip, Skips, Store,
};

impl<S: Store> StoreCase<S> {
    pub(super) async fn expired(&self, lane: u64, ms: i64) -> Delivery {
        let draft = DeliveryDraft { expiry: Expiry::At(after(ms)), ..DeliveryDraft::to(lane) };
        self.ended(draft, State::Expired { at: after(ms) }).await
    }

    /// A replay that is asked for some time after everything else.
    async fn late_replay(&self, what: ReplayWhat) -> DeliveryJob {
        let reason = Some("the outage é".to_owned());
        let total = Some(BoundedCount::AtLeast(1));
        self.start(NewReplay { reason, total, ..self.new_replay(after(100), what) }).await
    }

    /// Runs a replay to its end in small chunks and returns the deliveries it made.
    async fn run(&self, id: JobId) -> Vec<DeliveryId> {
        let mut made = Vec::new();
        while self.job(id).await.state == JobState::Running {
            let chunk = self.replay_chunk(id, 2).await;
            self.same("made", self.spread(&chunk).await, Chunked::Done(chunk.deliveries.len() as u64));
            made.extend(new_ids(&chunk));
        }
        made
    }

    async fn has_next_life(&self, id: DeliveryId) -> bool {
        self.lives(id).await.next.is_some()
    }

    /// The items of a dry run, page by page.
    async fn dry_run(&self, what: ReplayWhat) -> Vec<Replayable> {
        let replay = self.new_replay(after(100), what);
        let page = async |from: Option<JobCursor>| {
            let from = from.unwrap_or(JobCursor::START);
            let page = self.done("would replay", self.store.would_replay(replay.clone(), from, 1).await);
            (page.items.into_iter().map(|item| item.found).collect(), (!page.last).then_some(page.next))
        };
        all_pages(page).await
    }

    async fn accept_event(&self, event_type: &str, drafts: &[DeliveryDraft]) -> Accepted {
        let accepted = self.message_with(drafts, |message| message.event_type = Some(event_type.to_owned()));
        self.put(accepted.clone()).await;
        accepted
    }
}

pub(super) async fn replay_takes_expired_deliveries_and_on_request_dead_ones<S: Store>(case: &StoreCase<S>) {
    for n in [1, 2] {
        case.put_endpoint(endpoint(n)).await;
    }
    case.put_endpoint(Endpoint { tenant: STRANGER, ..endpoint(3) }).await;
    let (early, late) = (case.expired(1, 3).await.id, case.expired(2, 50).await.id);
    let (given_up, purged) =
        (case.ended(DeliveryDraft::to(1), dead(4)).await.id, case.ended(DeliveryDraft::to(2), dead(4)).await.id);
    let (others, arrived) = (case.expired(3, 3).await.id, case.ended(DeliveryDraft::to(1), delivered(1)).await.id);
    let waits = case.accept_one(DeliveryDraft::to(1)).await.id;
    let second = DeadLetterFilter { endpoint: Some(endpoint_id(2)), ..DeadLetterFilter::of(TENANT) };
    case.purge(&second).await;
    let filter = DeadLetterFilter { until: Some(after(40)), ..DeadLetterFilter::of(TENANT) };
    let job = case.late_replay(ReplayWhat::Ended { filter, dead: true }).await;
    case.same("its reason", job.reason.as_deref(), Some("the outage é"));
    case.same("read again", case.job(job.id).await, job.clone());
    let after_it = case.expired(1, 3).await.id;
    case.same("two lives", case.run(job.id).await.len(), 2);
    let done = case.job(job.id).await;
    case.same("nothing was skipped", (done.made, done.skipped), (2, Skips::default()));
    for id in [early, given_up] {
        case.check(case.has_next_life(id).await, &format!("{id} has a next life"));
    }
    for id in [late, purged, others, arrived, waits, after_it] {
        case.check(!case.has_next_life(id).await, &format!("{id} has no next life"));
    }
    let rest = case.late_replay(ReplayWhat::Ended { filter: DeadLetterFilter::of(TENANT), dead: false }).await;
    case.same("what is left, once", case.run(rest.id).await.len(), 2);
    case.check(case.has_next_life(late).await && case.has_next_life(after_it).await, "both of them");
}

pub(super) async fn expired_deliveries_are_found_by_every_filter<S: Store>(case: &StoreCase<S>) {
    for n in [1, 2] {
        case.put_endpoint(endpoint(n)).await;
    }
    let draft = |n: u64, tier| DeliveryDraft { tier, expiry: Expiry::At(after(5)), ..DeliveryDraft::to(n) };
    let drafts = [draft(1, Tier::Promotional), draft(2, Tier::Engagement)];
    let accepted = case.accept_event("invoice.paid", &drafts).await;
    let [first, second] = [&accepted.deliveries[0].delivery, &accepted.deliveries[1].delivery];
    for delivery in [first, second] {
        let expired = Delivery { last_cause: Some(Cause::Unavailable), ..delivery.clone() };
        case.settle_done(case.attempted(&expired, State::Expired { at: after(5) }, Cause::Unavailable)).await;
    }
    let all = DeadLetterFilter::of(TENANT);
    for (filter, expected) in [
        (all.clone(), vec![first.id, second.id]),
        (DeadLetterFilter { endpoint: Some(endpoint_id(2)), ..all.clone() }, vec![second.id]),
        (DeadLetterFilter { tier: Some(Tier::Promotional), ..all.clone() }, vec![first.id]),
        (DeadLetterFilter { event_type: Some("invoice.paid".to_owned()), ..all.clone() }, vec![first.id, second.id]),
        (DeadLetterFilter { event_type: Some("invoice.late".to_owned()), ..all.clone() }, vec![]),
        (DeadLetterFilter { cause: Some(Cause::Unavailable), ..all.clone() }, vec![first.id, second.id]),
        (DeadLetterFilter { cause: Some(Cause::TtlExpired), ..all.clone() }, vec![first.id, second.id]),
        (DeadLetterFilter { cause: Some(Cause::NotFound), ..all.clone() }, vec![]),
        (DeadLetterFilter { since: Some(after(5)), until: Some(after(6)), ..all.clone() }, vec![first.id, second.id]),
        (DeadLetterFilter { since: Some(after(6)), ..all.clone() }, vec![]),
    ] {
        let items = case.dry_run(ReplayWhat::Ended { filter: filter.clone(), dead: true }).await;
        let ids = items.iter().filter_map(Replayable::ended).map(|ended| ended.id).collect();
        case.same(&format!("{filter:?}"), ids, expected);
    }
}

pub(super) async fn expired_delivery_without_a_payload_is_skipped<S: Store>(case: &StoreCase<S>) {
    case.put_endpoint(endpoint(1)).await;
    let expired = case.expired(1, 3).await;
    case.retain(days(8)).await;
    let what = ReplayWhat::Ended { filter: DeadLetterFilter::of(TENANT), dead: false };
    case.same("in a dry run", case.dry_run(what.clone()).await, vec![Replayable::Not(Skip::PayloadGone)]);
    let job = case.late_replay(what).await;
    case.same("nothing is made", case.run(job.id).await, Vec::new());
    case.same("and why", case.job(job.id).await.skipped, Skips::of(Skip::PayloadGone, 1));
    case.check(!case.has_next_life(expired.id).await, "it stays as it ended");
}

/// The messages that a dry run finds missing.
async fn missing<S: Store>(case: &StoreCase<S>, missing: Missing) -> Vec<MessageId> {
    let items = case.dry_run(ReplayWhat::Missing(missing)).await;
    let ids = items.into_iter().map(|found| match found {
        Replayable::Missing(message) => message.id,
        other => case.fail(&format!("{other:?} is not missing")),
    });
    ids.collect()
}

pub(super) async fn endpoint_gets_each_missing_message_once<S: Store>(case: &StoreCase<S>) {
    let all = Missing { endpoint: endpoint_id(2), since: None, until: None };
    for n in [1, 2] {
        case.put_endpoint(endpoint(n)).await;
    }
    let old = case.accept_event("invoice.paid", &[DeliveryDraft::to(1)]).await.message;
    let had = case.accept_event("invoice.paid", &[DeliveryDraft::to(1), DeliveryDraft::to(2)]).await;
    case.settle_done(case.attempted(&had.deliveries[1].delivery, State::Delivered { at: NOW }, Cause::Ok)).await;
    let undelivered = case.accept_event("invoice.paid", &[]).await.message;
    case.put(case.message_with(&[], |message| message.tenant = STRANGER)).await;
    let cut = case.accept_event("invoice.paid", &[DeliveryDraft::to(1)]).await.message;
    case.cut(CutScope::Message(cut.id), Key::from_raw(u64::MAX >> 1), Cause::Cancelled, &[]).await;
    let fans_out = case.fan_out().await;
    case.same("two of them", missing(case, all).await, vec![old.id, undelivered.id]);
    case.same("later", missing(case, Missing { since: Some(after(1)), ..all }).await, vec![]);
    case.same("before", missing(case, Missing { until: Some(NOW), ..all }).await, vec![]);
    // This fan-out reaches the endpoint, the next one does not.
    let chunk = crate::row::Chunk { last: true, ..case.chunk(&fans_out, JobCursor::START, 2, &[1, 2]) };
    case.same("fanned out", case.spread(&chunk).await, Chunked::Done(2));
    case.same("what was fanned out is there", missing(case, all).await, vec![old.id, undelivered.id]);
    let passed_by = case.fan_out().await;
    let chunk = crate::row::Chunk { last: true, ..case.chunk(&passed_by, JobCursor::START, 2, &[1]) };
    case.same("fanned out", case.spread(&chunk).await, Chunked::Done(1));

    let job = case.late_replay(ReplayWhat::Missing(all)).await;
    case.same("read again", case.job(job.id).await, job.clone());
    let twin = case.late_replay(ReplayWhat::Missing(all)).await;
    let twins = case.replay_chunk(twin.id, MANY).await;
    case.accept_event("invoice.paid", &[DeliveryDraft::to(1)]).await;
    let made = case.run(job.id).await;
    let mut expected = vec![old.id, undelivered.id, passed_by.id];
    expected.sort_unstable();
    let mut got = Vec::new();
    for id in &made {
        let delivery = case.shown(*id, NOW).await.delivery;
        case.same("to it", delivery.endpoint, all.endpoint);
        case.check(case.message_deliveries(delivery.message, MANY).await.contains(id), "its message knows it");
        let made = crate::MadeBy { job: job.id, asked: Some(job.at), at: NOW };
        let expected = crate::Lives { made: Some(made), ..crate::Lives::default() };
        case.same("made by the replay, and replaying no other delivery", case.lives(*id).await, expected);
        got.push(delivery.message);
    }
    got.sort_unstable();
    case.same("each once", got, expected);
    case.same("nothing is made twice", case.spread(&twins).await, Chunked::Done(0));
    case.same("and why", case.job(twin.id).await.skipped, Skips::of(Skip::ReplayedBefore, 3));
    let history = crate::HistoryFilter::of(all.endpoint);
    let history = case.store.history(history, ListOrder::OldestFirst, None, MANY, NOW).await;
    case.same("all in its history", case.done("history", history).deliveries.len(), 5);
    case.same("later messages are not part of it", missing(case, all).await.len(), 1);
}

pub(super) async fn dry_run_returns_items_and_starts_nothing<S: Store>(case: &StoreCase<S>) {
    case.put_endpoint(endpoint(1)).await;
    let given_up = case.ended(DeliveryDraft::to(1), dead(1)).await;
    let arrived = case.ended(DeliveryDraft::to(1), delivered(1)).await;
    let waits = case.accept_one(DeliveryDraft::to(1)).await;
    let letters = case.dry_run(ReplayWhat::Found(DeadLetterFilter::of(TENANT))).await;
    case.same("the letter", letters.iter().filter_map(Replayable::ended).map(|it| it.id).collect(), vec![given_up.id]);
    let listed = case.dry_run(ReplayWhat::Listed(vec![waits.id, given_up.id, arrived.id])).await;
    case.same("of the list", listed.len(), 3);
    case.same("it waits", &listed[0], &Replayable::Not(Skip::NotEnded));
    case.same("it died", listed[1].ended().map(|it| it.id), Some(given_up.id));
    case.same("it arrived", &listed[2], &Replayable::Not(Skip::Delivered));
    let none =
        case.done("jobs", case.store.jobs(crate::JobQuery::Replays(TENANT, ListOrder::OldestFirst), None, MANY).await);
    case.same("and nothing has begun", none, Vec::new());
}
