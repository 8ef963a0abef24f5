//! Jobs: chunks of deliveries applied with their cursor, large fan-outs and replays.

use std::sync::Arc;

use posthaste_core::{
    Cause, CutScope, Delivery, DeliveryId, JobId, Key, MessageId, RowIndex, State, TenantId, Tier, Timestamp,
};

use super::fixture::{
    DeliveryDraft, MANY, NOW, STRANGER, StoreCase, TENANT, after, all_pages, call, dead, delivered, endpoint,
    endpoint_id, lane_id, number_of,
};
use crate::{
    Acceptance, Accepted, AuditStamp, Begun, BoundedCount, Chunk, ChunkDelivery, Chunked, DeadLetterFilter,
    DeliveryJob, FanOut, FirstAnswer, Idempotency, JobCursor, JobKind, JobQuery, JobState, ListOrder, Lives, MadeBy,
    Message, NewReplay, ReplayWhat, Replayable, Skip, Skips, Store, StoreError, Sweep,
};

impl<S: Store> StoreCase<S> {
    /// Accepts a message whose deliveries a job makes.
    pub(super) async fn fan_out(&self) -> Arc<Message> {
        let accepted = self.message(&[]);
        let message = Arc::clone(&accepted.message);
        let fan_out = fan_out(message.id);
        let accepted = Accepted { fan_out: Some(fan_out), ..accepted };
        let answer = self.done("accept", self.store.accept(self.session(), vec![accepted]).await);
        self.same("accepted", answer, vec![Acceptance::Fresh]);
        message
    }

    /// A chunk that advances a fan-out's cursor from `from` to `to`, with a delivery to each lane.
    pub(super) fn chunk(&self, message: &Arc<Message>, from: JobCursor, to: u64, lanes: &[u64]) -> Chunk {
        let deliveries = lanes.iter().map(|lane| self.spread_to(message, *lane, None)).collect();
        Chunk {
            job: JobId(message.id.0),
            at: NOW,
            from,
            to: JobCursor::behind(to),
            deliveries,
            skipped: Skips::default(),
            last: false,
        }
    }

    fn spread_to(&self, message: &Arc<Message>, lane: u64, replays: Option<DeliveryId>) -> ChunkDelivery {
        // The delivery gets the id of a message that is never accepted, which is unique.
        let id = DeliveryId(self.message(&[]).message.id.0);
        let mut new = self.message(&[DeliveryDraft::to(lane)]).deliveries.remove(0);
        new.delivery = Delivery::queued(id, message.id, endpoint_id(lane), lane_id(lane), Tier::Promotional, NOW);
        ChunkDelivery { new, message: Arc::clone(message), replays }
    }

    pub(super) async fn spread(&self, chunk: &Chunk) -> Chunked {
        self.done("spread", self.store.spread(self.session(), chunk.clone()).await)
    }

    pub(super) async fn job(&self, id: JobId) -> DeliveryJob {
        let job = self.done("job", self.store.job(id).await);
        job.unwrap_or_else(|| self.fail("there is no such job"))
    }

    pub(super) async fn lives(&self, id: DeliveryId) -> Lives {
        let lives = self.done("lives", self.store.lives(vec![id]).await);
        self.same("one result for each", lives.len(), 1);
        lives[0]
    }

    pub(super) async fn message_deliveries(&self, message: MessageId, limit: u32) -> Vec<DeliveryId> {
        let page = async |after| {
            let page = self.done("deliveries", self.store.deliveries(message, after, NOW, limit).await);
            let ids: Vec<DeliveryId> = page.iter().map(|shown| shown.delivery.id).collect();
            let next = ids.last().copied().filter(|_| ids.len() == limit as usize);
            (ids, next)
        };
        all_pages(page).await
    }

    pub(super) async fn ended(&self, draft: DeliveryDraft, state: State) -> Delivery {
        let delivery = self.accept_one(draft).await;
        self.settle_done(self.attempted(&delivery, state, Cause::NotFound)).await;
        delivery
    }

    /// A replay of the tenant's under a new id.
    pub(super) fn new_replay(&self, at: Timestamp, what: ReplayWhat) -> NewReplay {
        NewReplay::new(JobId(self.message(&[]).message.id.0), TENANT, at, what)
    }

    pub(super) async fn start(&self, replay: NewReplay) -> DeliveryJob {
        self.done("start a replay", self.store.start_replay(self.session(), replay, None).await)
    }

    pub(super) async fn replay(&self, what: ReplayWhat) -> DeliveryJob {
        self.start(NewReplay { per_second: Some(7), ..self.new_replay(NOW, what) }).await
    }

    /// The ids of the jobs that match.
    async fn job_ids(&self, query: JobQuery, after: Option<JobId>) -> Vec<JobId> {
        self.done("jobs", self.store.jobs(query, after, MANY).await).iter().map(|job| job.id).collect()
    }

    /// The next chunk of a replay, as the engine would build it.
    pub(super) async fn replay_chunk(&self, id: JobId, limit: u32) -> Chunk {
        let job = self.job(id).await;
        let page = self.done("replay page", self.store.replay_page(id, limit).await);
        let page = page.unwrap_or_else(|| self.fail("it is a replay"));
        let mut deliveries = Vec::new();
        let mut skipped = Skips::default();
        for item in &page.items {
            let (message, lane, old) = match (&item.found, &job.kind) {
                (Replayable::Ended(ended), _) => (ended.message, ended.lane.raw(), Some(ended.id)),
                (Replayable::Missing(message), JobKind::ReplayMissing(missing)) => {
                    (message.id, number_of(missing.endpoint), None)
                }
                (Replayable::Missing(_), _) => self.fail("the replay is not for missing messages"),
                (Replayable::Not(why), _) => {
                    skipped.add(*why, 1);
                    continue;
                }
            };
            let message = self.done("message", self.store.message(message).await);
            let message = message.unwrap_or_else(|| self.fail("a replayable delivery has its payload"));
            deliveries.push(self.spread_to(&message, lane, old));
        }
        let DeliveryJob { cursor: from, .. } = job;
        Chunk { job: id, at: NOW, from, to: page.next, deliveries, skipped, last: page.last }
    }
}

fn fan_out(message: MessageId) -> FanOut {
    FanOut { message, tier: Tier::Engagement, deliver_at: Some(after(5)), ttl: Some(std::time::Duration::from_secs(9)) }
}

pub(super) fn new_ids(chunk: &Chunk) -> Vec<DeliveryId> {
    chunk.deliveries.iter().map(|spread| spread.new.delivery.id).collect()
}

pub(super) async fn a_large_fan_out_is_accepted_as_one_job<S: Store>(case: &StoreCase<S>) {
    let message = case.fan_out().await;
    let expected = DeliveryJob {
        id: JobId(message.id.0),
        tenant: TENANT,
        at: message.at,
        kind: JobKind::FanOut(fan_out(message.id)),
        state: JobState::Running,
        cursor: JobCursor::START,
        made: 0,
        skipped: Skips::default(),
        total: None,
        per_second: None,
        reason: None,
    };
    case.same("its job", case.job(expected.id).await, expected.clone());
    let running = case.done("jobs", case.store.jobs(JobQuery::Running, None, MANY).await);
    case.same("it runs", running, vec![expected.clone()]);
    case.same("nothing after it", case.job_ids(JobQuery::Running, Some(expected.id)).await, Vec::new());
    case.same("no delivery yet", case.message_deliveries(message.id, 10).await, Vec::new());
    case.same("nor a replay", case.done("page", case.store.replay_page(expected.id, 1).await), None);
}

pub(super) async fn chunk_is_applied_once_with_its_cursor<S: Store>(case: &StoreCase<S>) {
    let message = case.fan_out().await;
    let first = case.chunk(&message, JobCursor::START, 2, &[1, 2]);
    case.same("made", case.spread(&first).await, Chunked::Done(2));
    case.same("they arrive", case.arrived().await, new_ids(&first));
    case.same("once more", case.spread(&first).await, Chunked::Stale);
    // A second caller read the same cursor and minted other ids.
    let twin = case.chunk(&message, JobCursor::START, 2, &[1, 2]);
    case.same("a twin", case.spread(&twin).await, Chunked::Stale);
    for id in new_ids(&twin) {
        case.check(case.pending(id).await.is_none(), "a stale chunk makes nothing");
    }
    let second =
        Chunk { last: true, skipped: Skips::of(Skip::EndpointGone, 3), ..case.chunk(&message, first.to, 9, &[7]) };
    case.same("the next", case.spread(&second).await, Chunked::Done(1));
    let job = case.job(first.job).await;
    case.same("progress", (job.made, job.skipped, job.cursor), (3, second.skipped, second.to));
    case.same("done", job.state, JobState::Done);
    let late = case.chunk(&message, second.to, 10, &[8]);
    case.same("a job that is done makes nothing", case.spread(&late).await, Chunked::Stale);
}

pub(super) async fn message_lists_deliveries_made_by_its_job<S: Store>(case: &StoreCase<S>) {
    let message = case.fan_out().await;
    let other = case.fan_out().await;
    let mut expected = Vec::new();
    let mut from = JobCursor::START;
    for to in 1..4 {
        let chunk = case.chunk(&message, from, to, &[to, to + 10]);
        case.same("made", case.spread(&chunk).await, Chunked::Done(2));
        from = chunk.to;
        expected.extend(new_ids(&chunk));
        let others = case.chunk(&other, if to == 1 { JobCursor::START } else { JobCursor::behind(to - 1) }, to, &[to]);
        case.same("another's", case.spread(&others).await, Chunked::Done(1));
    }
    let ended = case.shown(expected[3], NOW).await.delivery;
    case.settle_done(case.attempted(&ended, State::Delivered { at: after(1) }, Cause::Ok)).await;
    for limit in [1, 2, 3, 100] {
        case.same("its own, by id", case.message_deliveries(message.id, limit).await, expected.clone());
    }
}

pub(super) async fn cut_ends_a_fan_out_and_its_deliveries<S: Store>(case: &StoreCase<S>) {
    let message = case.fan_out().await;
    let chunk = case.chunk(&message, JobCursor::START, 3, &[1, 2, 3]);
    case.same("made", case.spread(&chunk).await, Chunked::Done(3));
    let ids = new_ids(&chunk);
    let scope = CutScope::Message(message.id);
    let everything = Key::from_raw(u64::MAX >> 1);
    case.same("ended", case.cut(scope, everything, Cause::Cancelled, &ids[..1]).await, 2);
    case.same("its job", case.job(chunk.job).await.state, JobState::Cancelled);
    case.same("no more", case.spread(&case.chunk(&message, chunk.to, 4, &[4])).await, Chunked::Stale);
    case.check(case.state(ids[1]).await.is_terminal(), "read as ended at once");
    let swept = case.done("sweep", case.store.sweep(case.session(), Sweep::Cut(scope), ids[..1].to_vec()).await);
    case.same("swept, but for what is under way", (swept.ended, swept.spared), (ids[1..].to_vec(), 1));
}

pub(super) async fn a_job_is_paused_resumed_and_cancelled<S: Store>(case: &StoreCase<S>) {
    let message = case.fan_out().await;
    let id = JobId(message.id.0);
    let change =
        async |next| case.done("change", case.store.change_job(case.session(), id, next, AuditStamp::at(NOW)).await);
    let chunk = case.chunk(&message, JobCursor::START, 1, &[1]);
    case.check(!change(JobState::Running).await, "it runs already");
    case.check(change(JobState::Paused).await, "it pauses");
    case.same("paused", case.spread(&chunk).await, Chunked::Stale);
    case.same("not among those that run", case.job_ids(JobQuery::Running, None).await, Vec::new());
    case.check(change(JobState::Running).await, "it goes on");
    case.check(!change(JobState::Done).await, "only its last chunk makes it done");
    case.check(change(JobState::Cancelled).await, "it is cancelled");
    case.same("cancelled", case.spread(&chunk).await, Chunked::Stale);
    case.check(!change(JobState::Running).await, "for good");
    let unknown =
        case.store.change_job(case.session(), JobId::from_raw(77), JobState::Paused, AuditStamp::at(NOW)).await;
    case.check(!case.done("change", unknown), "there is no such job");
}

pub(super) async fn each_dead_letter_is_replayed_once<S: Store>(case: &StoreCase<S>) {
    let mut old = Vec::new();
    for ms in 1..4 {
        old.push(case.ended(DeliveryDraft::to(1), dead(ms)).await.id);
    }
    let other = case.ended(DeliveryDraft::to(2), dead(1)).await.id;
    let filter = DeadLetterFilter { endpoint: Some(endpoint_id(1)), ..DeadLetterFilter::of(TENANT) };
    let job = case.replay(ReplayWhat::Found(filter.clone())).await;
    case.same("found", job.total, Some(BoundedCount::Exactly(3)));
    case.same("its pace", job.per_second, Some(7));
    let twin = case.replay(ReplayWhat::Found(filter.clone())).await;
    let fan_out = JobId(case.fan_out().await.id.0);
    for (query, expected) in [
        (JobQuery::Running, vec![job.id, twin.id, fan_out]),
        (JobQuery::FanOuts, vec![fan_out]),
        (JobQuery::ReplaysOf(TENANT), vec![job.id, twin.id]),
        (JobQuery::ReplaysOf(TenantId::from_raw(77)), Vec::new()),
    ] {
        case.same(&format!("{query:?}"), case.job_ids(query, None).await, expected);
    }
    for (order, after, expected) in [
        (ListOrder::OldestFirst, None, vec![job.id, twin.id]),
        (ListOrder::OldestFirst, Some(job.id), vec![twin.id]),
        (ListOrder::NewestFirst, None, vec![twin.id, job.id]),
        (ListOrder::NewestFirst, Some(twin.id), vec![job.id]),
    ] {
        for query in [JobQuery::Replays(TENANT, order), JobQuery::EveryReplay(order)] {
            case.same(&format!("{query:?}"), case.job_ids(query, after).await, expected.clone());
        }
    }
    let later = case.ended(DeliveryDraft::to(1), dead(2)).await.id;
    let twins = case.replay_chunk(twin.id, MANY).await;
    let mut lives = Vec::new();
    for _ in 0..2 {
        let chunk = case.replay_chunk(job.id, 2).await;
        let made = chunk.deliveries.len() as u64;
        case.same("made", case.spread(&chunk).await, Chunked::Done(made));
        case.same("once", case.spread(&chunk).await, Chunked::Stale);
        lives.extend(new_ids(&chunk));
    }
    case.same("nothing is replayed twice", case.spread(&twins).await, Chunked::Done(0));
    let twin = case.job(twin.id).await;
    let none_made = (0, Skips::of(Skip::ReplayedBefore, 3), JobState::Done);
    case.same("all skipped", (twin.made, twin.skipped, twin.state), none_made);
    for (old, new) in old.iter().zip(&lives) {
        case.same("its next life", case.lives(*old).await, Lives { next: Some(*new), ..Lives::default() });
        let made = MadeBy { job: job.id, asked: Some(job.at), at: NOW };
        let back = Lives { before: Some(*old), next: None, made: Some(made) };
        case.same("and back, with the replay that made it", case.lives(*new).await, back);
        let shown = case.shown(*new, NOW).await.delivery;
        case.same("a new life", (shown.attempts, shown.state), (0, State::Queued { due: NOW }));
        let message = case.shown(*old, NOW).await.delivery.message;
        case.same("of the same message", shown.message, message);
        case.check(case.message_deliveries(message, MANY).await.contains(new), "its message knows it");
    }
    let letters = case.done("list", case.store.dead_letters(filter, ListOrder::OldestFirst, None, MANY).await).letters;
    let replayed: Vec<Option<DeliveryId>> = letters.iter().map(|letter| letter.replayed_as).collect();
    case.same("the list says so", replayed, vec![Some(lives[0]), Some(lives[1]), None, Some(lives[2])]);
    for id in [other, later] {
        case.same("not asked for", case.lives(id).await, Lives::default());
    }
    let again = case.shown(lives[0], NOW).await.delivery;
    case.settle_done(case.attempted(&again, dead(9), Cause::NotFound)).await;
    let third = case.replay(ReplayWhat::Listed(vec![lives[0], old[0]])).await;
    let chunk = case.replay_chunk(third.id, MANY).await;
    case.same("a life that ended has a next one", case.spread(&chunk).await, Chunked::Done(1));
    case.same("the first has had its own", case.job(third.id).await.skipped, Skips::of(Skip::ReplayedBefore, 1));
}

pub(super) async fn listed_replay_takes_dead_and_expired_deliveries<S: Store>(case: &StoreCase<S>) {
    let expired = case.expired(1, 3).await.id;
    let given_up = case.ended(DeliveryDraft::to(1), dead(1)).await.id;
    let delivered = case.ended(DeliveryDraft::to(1), delivered(1)).await.id;
    let waiting = case.accept_one(DeliveryDraft::to(1)).await.id;
    let unknown = DeliveryId::from_raw(12_345);
    let list = vec![expired, delivered, waiting, given_up, unknown];
    let job = case.replay(ReplayWhat::Listed(list)).await;
    case.same("as many", job.total, Some(BoundedCount::Exactly(5)));
    while case.job(job.id).await.state == JobState::Running {
        let chunk = case.replay_chunk(job.id, 2).await;
        let made = chunk.deliveries.len() as u64;
        case.same("made", case.spread(&chunk).await, Chunked::Done(made));
    }
    let job = case.job(job.id).await;
    let mut skipped = Skips::default();
    [Skip::Delivered, Skip::NotEnded, Skip::NotFound].into_iter().for_each(|why| skipped.add(why, 1));
    case.same("two lives", (job.made, job.skipped), (2, skipped));
    for id in [expired, given_up] {
        case.check(case.lives(id).await.next.is_some(), "it has a next life");
    }
}

pub(super) async fn a_replay_under_a_key_begins_once<S: Store>(case: &StoreCase<S>) {
    let only_replay = || NewReplay { running_max: Some(1), ..case.new_replay(NOW, ReplayWhat::Listed(Vec::new())) };
    let begin = async |digest: u8| {
        let replay = only_replay();
        let answer = FirstAnswer { status: 202, body: format!("{}", replay.id).into() };
        let once = Idempotency { digest: [digest; 32], answer: answer.clone(), ..call(5, NOW, "") };
        (answer, case.done("replay", case.store.start_replay_once(case.session(), replay, once, None).await))
    };
    let (answer, first) = begin(1).await;
    case.check(matches!(first, Begun::Now(_)), "it begins");
    case.same("the same again", begin(1).await.1, Begun::Before(answer));
    case.same("another request", begin(2).await.1, Begun::KeyReused);
    let refused = case.store.start_replay(case.session(), only_replay(), None).await;
    case.check(matches!(refused, Err(StoreError::TooMany { limit: 1, .. })), "no room for one more");
    let all = case.job_ids(JobQuery::Replays(TENANT, ListOrder::OldestFirst), None).await;
    case.same("one of them", all.len(), 1);
}

pub(super) async fn purged_and_cut_deliveries_are_not_replayed<S: Store>(case: &StoreCase<S>) {
    let purged = case.ended(DeliveryDraft::to(1), dead(1)).await;
    let cut = case.ended(DeliveryDraft::to(2), dead(2)).await;
    let job = case.replay(ReplayWhat::Listed(vec![purged.id, cut.id])).await;
    let chunk = case.replay_chunk(job.id, MANY).await;
    case.same("both could be", chunk.deliveries.len(), 2);
    let filter = DeadLetterFilter { endpoint: Some(endpoint_id(1)), ..DeadLetterFilter::of(TENANT) };
    case.purge(&filter).await;
    case.cut(CutScope::Message(cut.message), Key::from_raw(u64::MAX >> 1), Cause::Cancelled, &[]).await;
    case.same("neither is", case.spread(&chunk).await, Chunked::Done(0));
    let mut skipped = Skips::of(Skip::Purged, 1);
    skipped.add(Skip::Cancelled, 1);
    case.same("and why", case.job(job.id).await.skipped, skipped);
    for id in new_ids(&chunk) {
        case.check(case.pending(id).await.is_none(), "nothing was made");
    }
}

pub(super) async fn a_fenced_session_spreads_nothing<S: Store>(case: &StoreCase<S>) {
    let message = case.fan_out().await;
    let chunk = case.chunk(&message, JobCursor::START, 1, &[1]);
    let start = case.reopen().await;
    case.check(case.store.spread(case.session(), chunk.clone()).await.is_err(), "fenced");
    let now = case.done("spread", case.store.spread(start.session, chunk.clone()).await);
    case.same("the new session continues at the same cursor", now, Chunked::Done(1));
    let row = case.pending(new_ids(&chunk)[0]).await;
    case.same("ready", row.map(|row| row.place), Some(RowIndex::Ready));
}

pub(super) async fn endpoints_of_a_tenant_are_read_in_pages<S: Store>(case: &StoreCase<S>) {
    for n in [3, 1, 2] {
        case.put_endpoint(endpoint(n)).await;
    }
    case.put_endpoint(crate::Endpoint { tenant: STRANGER, ..endpoint(4) }).await;
    let page = async |after| {
        let page = case.done("endpoints", case.store.endpoints_after(TENANT, after, 2).await);
        let next = page.last().map(|last| last.id).filter(|_| page.len() == 2);
        (page.iter().map(|endpoint| number_of(endpoint.id)).collect(), next)
    };
    case.same("by id", all_pages(page).await, vec![1, 2, 3]);
}
