//! SQLite against the contract in its plainest form: any history of calls, with restarts in
//! between, gives the same answers and the same pages as [`MemoryStore`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::cause::Cause;
use posthaste_core::cut::{Cut, Scope};
use posthaste_core::delivery::{Compact, Delivery, Expiry};
use posthaste_core::flow::SharedGate;
use posthaste_core::flow::breaker::Soft;
use posthaste_core::id::{
    CredentialId, DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, OriginId, RegionId, Shard, TenantId, WriterId,
};
use posthaste_core::queue::{BreakerOf, OnDead, Order, Place, Record, SoftBreaker, Span};
use posthaste_core::state::State;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_store::journal::{Entry, Head};
use posthaste_store::memory::MemoryStore;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Acceptance, Accepted, Attempt, CollapseKey, Counted, DeadLetterFilter, Endpoint, EndpointStatus, FirstAnswer,
    HistoryFilter, Hour, Idempotency, KeyHash, ListOrder, Message, NewDelivery, Pause, PauseScope, Query, Session,
    Settlement, Shown, Start, Store, StoreError, Sweep,
};
use posthaste_store::{Chunk, Chunked, FanOut, JobCursor, JobKind, JobQuery, JobState, NewReplay, ReplayWhat, Spread};
use posthaste_store::{Retention, RetentionStep};
use proptest::prelude::*;
use tempfile::TempDir;

use super::new_folder;

const LANES: u64 = 3;

#[derive(Clone, Debug)]
enum Step {
    Accept(Vec<Draft>, Option<Call>),
    Settle(Vec<Outcome>),
    Spill(Vec<usize>),
    Cut {
        lane: bool,
        of: usize,
        cause: Cause,
        spared: Vec<usize>,
    },
    Uncut {
        lane: bool,
        of: usize,
    },
    SweepCut {
        lane: bool,
        of: usize,
        under_way: Vec<usize>,
    },
    Roll {
        after: Option<usize>,
        now: i64,
        under_way: Vec<usize>,
    },
    Pause {
        kind: u8,
        of: u64,
        until: Option<i64>,
    },
    Resume {
        kind: u8,
        of: u64,
    },
    Remember(Vec<SoftBreaker>),
    PutEndpoint {
        lane: u64,
        secrets: usize,
        order: Order,
        call: Option<Call>,
    },
    /// A message whose deliveries a job makes.
    FanOut,
    /// Gives dead letters, or deliveries, another life.
    Replay {
        filter: Option<usize>,
        picks: Vec<usize>,
    },
    /// The next chunk of a job; or one that somebody made from another place.
    Chunk {
        of: usize,
        lanes: Vec<u64>,
        limit: u32,
        stale: bool,
    },
    ChangeJob {
        of: usize,
        next: JobState,
    },
    /// So many days later, what was kept for long enough goes.
    Retain {
        days: u64,
    },
    /// Takes dead letters back.
    Purge {
        filter: usize,
    },
    /// Everything derived from the journal is brought up to date.
    CatchUp,
    /// A new session takes over; the old one tries something.
    Open,
    /// The process ends and another opens the folder.
    Restart,
}

/// One of a few keys, for one of two requests, at some hour: often the same again.
#[derive(Clone, Copy, Debug)]
struct Call {
    key: u8,
    request: u8,
    hour: i64,
}

#[derive(Clone, Copy, Debug)]
struct Draft {
    lane: u64,
    tier: Tier,
    place: Place,
    due: i64,
    expiry: Expiry,
    acks: bool,
    collapse: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Outcome {
    of: usize,
    end: End,
    due: i64,
    place: Place,
    /// How wrong the caller is about the attempts made, and about its epoch.
    attempts_off: u16,
    epoch_off: u64,
    pauses_lane: bool,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Delivered,
    Sent,
    Retry(Cause),
    PutBack,
    Dead(Cause),
    Expired,
    Cancelled,
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_760_000_000_000 + ms)
}

fn step() -> impl Strategy<Value = Step> {
    let pick = 0_usize..1_000;
    prop_oneof![
        8 => (prop::collection::vec(draft(), 0..5), call()).prop_map(|(drafts, call)| Step::Accept(drafts, call)),
        8 => prop::collection::vec(outcome(), 1..6).prop_map(Step::Settle),
        2 => prop::collection::vec(pick.clone(), 1..4).prop_map(Step::Spill),
        2 => (any::<bool>(), pick.clone(), cause(), prop::collection::vec(pick.clone(), 0..3))
            .prop_map(|(lane, of, cause, spared)| Step::Cut { lane, of, cause, spared }),
        1 => (any::<bool>(), pick.clone()).prop_map(|(lane, of)| Step::Uncut { lane, of }),
        1 => (any::<bool>(), pick.clone(), prop::collection::vec(pick.clone(), 0..2))
            .prop_map(|(lane, of, under_way)| Step::SweepCut { lane, of, under_way }),
        1 => (prop::option::of(pick.clone()), 0_i64..50, prop::collection::vec(pick, 0..2))
            .prop_map(|(after, now, under_way)| Step::Roll { after, now, under_way }),
        1 => (0_u8..3, 0..LANES, prop::option::of(0_i64..50)).prop_map(|(kind, of, until)| Step::Pause { kind, of, until }),
        1 => (0_u8..3, 0..LANES).prop_map(|(kind, of)| Step::Resume { kind, of }),
        1 => prop::collection::vec(breaker(), 0..4).prop_map(Step::Remember),
        1 => (0..LANES, 0_usize..3, order(), call())
            .prop_map(|(lane, secrets, order, call)| Step::PutEndpoint { lane, secrets, order, call }),
        1 => (0..FILTERS).prop_map(|filter| Step::Purge { filter }),
        1 => Just(Step::CatchUp),
        1 => prop::sample::select(vec![6_u64, 8, 31, 500]).prop_map(|days| Step::Retain { days }),
        1 => Just(Step::FanOut),
        1 => (prop::option::of(0..FILTERS), prop::collection::vec(0_usize..1_000, 0..4))
            .prop_map(|(filter, picks)| Step::Replay { filter, picks }),
        4 => (0_usize..100, prop::collection::vec(0..LANES, 0..4), 1_u32..4, prop::bool::weighted(0.1))
            .prop_map(|(of, lanes, limit, stale)| Step::Chunk { of, lanes, limit, stale }),
        1 => (0_usize..100, job_state()).prop_map(|(of, next)| Step::ChangeJob { of, next }),
        1 => Just(Step::Open),
        1 => Just(Step::Restart),
    ]
}

fn call() -> impl Strategy<Value = Option<Call>> {
    let call = (0_u8..4, 0_u8..2, 0_i64..60).prop_map(|(key, request, hour)| Call { key, request, hour });
    prop::option::of(call)
}

fn job_state() -> impl Strategy<Value = JobState> {
    prop::sample::select(vec![JobState::Running, JobState::Running, JobState::Paused, JobState::Cancelled])
}

fn draft() -> impl Strategy<Value = Draft> {
    let expiry = prop_oneof![
        Just(Expiry::Never),
        (0_i64..50).prop_map(|ms| Expiry::At(at(ms))),
        (0_i64..50).prop_map(|ms| Expiry::NowOrNever(at(ms)))
    ];
    let collapse = prop::option::of(prop_oneof![Just(0), Just(u64::MAX)]);
    (0..LANES, prop::sample::select(Tier::ALL.to_vec()), place(), 0_i64..20, expiry, any::<bool>(), collapse).prop_map(
        |(lane, tier, place, due, expiry, acks, collapse)| Draft { lane, tier, place, due, expiry, acks, collapse },
    )
}

fn breaker() -> impl Strategy<Value = SoftBreaker> {
    let of = prop_oneof![
        (0..LANES).prop_map(|lane| BreakerOf::Lane(LaneId::from_raw(lane))),
        any::<u64>().prop_map(|origin| BreakerOf::Shared(SharedGate::Origin(OriginId::from_raw(origin)))),
        (0..LANES).prop_map(|region| BreakerOf::Shared(SharedGate::Region(RegionId::from_raw(region)))),
        (0..LANES).prop_map(|key| BreakerOf::Shared(SharedGate::Credential(CredentialId::from_raw(key)))),
    ];
    (of, 0_i64..50, 0_u64..300_000).prop_map(|(of, since, hold)| SoftBreaker {
        of,
        soft: Soft { since: at(since), hold: Duration::from_millis(hold) },
    })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let end = prop_oneof![
        Just(End::Delivered),
        Just(End::Sent),
        cause().prop_map(End::Retry),
        Just(End::PutBack),
        cause().prop_map(End::Dead),
        Just(End::Expired),
        Just(End::Cancelled)
    ];
    let off = prop_oneof![6 => Just(0_u16), 1 => Just(1)];
    let epoch = prop_oneof![8 => Just(0_u64), 1 => Just(1)];
    (0_usize..1_000, end, 0_i64..20, place(), off, epoch, prop::bool::weighted(0.1)).prop_map(
        |(of, end, due, place, attempts_off, epoch_off, pauses_lane)| Outcome {
            of,
            end,
            due,
            place,
            attempts_off,
            epoch_off,
            pauses_lane,
        },
    )
}

fn place() -> impl Strategy<Value = Place> {
    prop::sample::select(vec![Place::Ready, Place::Delayed, Place::Spilled])
}

fn order() -> impl Strategy<Value = Order> {
    prop::sample::select(vec![Order::Fifo, Order::NewestFirst, Order::Strict])
}

fn cause() -> impl Strategy<Value = Cause> {
    prop::sample::select(vec![Cause::EndpointGone, Cause::Cancelled, Cause::Unavailable, Cause::Retention])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_history_reads_the_same_from_both(history in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut both = Both::open().await;
            for step in history {
                both.take(step).await;
            }
            both.compare().await;
            both.restart().await;
            both.compare().await;
        });
    }
}

/// The two stores, and what their caller knows.
struct Both {
    memory: MemoryStore,
    sqlite: Option<Sqlite>,
    folder: TempDir,
    session: Session,
    next: u64,
    messages: Vec<MessageId>,
    jobs: Vec<JobId>,
    /// As they were settled last.
    deliveries: Vec<Delivery>,
    arrivals_due: usize,
}

impl Both {
    async fn open() -> Self {
        let folder = new_folder();
        let sqlite = Sqlite::open_folder(folder.path()).expect("a fresh folder opens");
        let memory = MemoryStore::default();
        let session = memory.open().await.expect("memory opens").session;
        assert_eq!(sqlite.open().await.expect("it opens").session, session);
        let both = Self {
            memory,
            sqlite: Some(sqlite),
            folder,
            session,
            next: 1,
            messages: Vec::new(),
            jobs: Vec::new(),
            deliveries: Vec::new(),
            arrivals_due: 0,
        };
        for lane in 0..LANES {
            both.put_endpoint(endpoint(lane, 1, Order::Fifo), None).await;
        }
        both
    }

    fn sqlite(&self) -> &Sqlite {
        self.sqlite.as_ref().expect("open between restarts")
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Accept(drafts, call) => self.accept(&drafts, call).await,
            Step::Settle(outcomes) => self.settle(&outcomes).await,
            Step::Spill(picks) => {
                let ids: Vec<DeliveryId> = picks.iter().filter_map(|pick| self.pick(*pick)).map(|row| row.id).collect();
                same(self.memory.spill(self.session, ids.clone()).await, self.sqlite().spill(self.session, ids).await);
            }
            Step::Cut { lane, of, cause, spared } => self.cut(lane, of, cause, &spared).await,
            Step::Uncut { lane, of } => {
                let Some(scope) = self.pick(of).map(|row| scope(lane, row)) else { return };
                same(self.memory.uncut(self.session, scope).await, self.sqlite().uncut(self.session, scope).await);
            }
            Step::SweepCut { lane, of, under_way } => {
                let Some(scope) = self.pick(of).map(|row| scope(lane, row)) else { return };
                self.sweep(Sweep::Cut(scope), &under_way).await;
            }
            Step::Roll { after, now, under_way } => {
                let after = after.and_then(|pick| self.pick(pick)).map(|row| row.id);
                self.sweep(Sweep::Roll { after, now: at(now) }, &under_way).await;
            }
            Step::Pause { kind, of, until } => {
                let pause = Pause { scope: pause_scope(kind, of), until: until.map(at) };
                same(self.memory.pause(self.session, pause).await, self.sqlite().pause(self.session, pause).await);
            }
            Step::Resume { kind, of } => {
                let scope = pause_scope(kind, of);
                same(self.memory.resume(self.session, scope).await, self.sqlite().resume(self.session, scope).await);
            }
            Step::Remember(breakers) => {
                let expected = self.memory.remember(self.session, breakers.clone()).await;
                same(expected, self.sqlite().remember(self.session, breakers).await);
            }
            Step::PutEndpoint { lane, secrets, order, call } => {
                self.put_endpoint(endpoint(lane, secrets, order), call).await;
            }
            Step::Purge { filter } => self.purge(dead_letters(filter)).await,
            Step::CatchUp => self.sqlite().catch_up().await.expect("it catches up"),
            Step::Retain { days } => self.retain(days).await,
            Step::FanOut => self.fan_out().await,
            Step::Replay { filter, picks } => self.replay(filter, &picks).await,
            Step::Chunk { of, lanes, limit, stale } => self.chunk(of, &lanes, limit, stale).await,
            Step::ChangeJob { of, next } => {
                let Some(job) = self.job(of) else { return };
                let expected = self.memory.change_job(self.session, job, next).await.expect("memory changes");
                assert_eq!(self.sqlite().change_job(self.session, job, next).await.expect("it changes"), expected);
            }
            Step::Open => self.take_over().await,
            Step::Restart => self.restart().await,
        }
    }

    async fn accept(&mut self, drafts: &[Draft], call: Option<Call>) {
        let accepted = Accepted { idempotency: call.map(idempotency), ..self.message(drafts) };
        self.messages.push(accepted.message.id);
        let expected = self.memory.accept(self.session, vec![accepted.clone()]).await.expect("memory accepts");
        let found = self.sqlite().accept(self.session, vec![accepted.clone()]).await.expect("it accepts");
        assert_eq!(found, expected);
        if found == [Acceptance::Fresh] {
            self.deliveries.extend(accepted.deliveries.iter().map(|new| new.delivery.clone()));
            self.arrivals_due += accepted.deliveries.len();
        }
    }

    fn message(&mut self, drafts: &[Draft]) -> Accepted {
        let id = MessageId(Key::new(self.session.writer, self.next));
        self.next += 1 + drafts.len() as u64;
        let message = Message {
            id,
            tenant: TenantId::from_raw(1),
            // Later and later: what is superseded may be over its time to live by then.
            at: at(i64::try_from(self.messages.len()).unwrap_or(0)),
            event_type: Some("a.b".to_owned()),
            correlation_id: id.to_string(),
            body: Bytes::from(id.to_string()),
            subject: None,
            compact: None,
        };
        let deliveries = (1..).zip(drafts).map(|(n, draft)| new_delivery(id, n, draft)).collect();
        Accepted { message: Arc::new(message), deliveries, idempotency: None, fan_out: None }
    }

    async fn settle(&mut self, outcomes: &[Outcome]) {
        let mut batch: Vec<Settlement> = Vec::new();
        for outcome in outcomes {
            let Some(row) = self.pick(outcome.of) else { return };
            // One settlement of a delivery at a time, as its owner would.
            if batch.iter().all(|other| other.record.delivery.id != row.id) {
                batch.push(settlement(row, outcome, self.session));
            }
        }
        let expected = self.memory.settle(self.session, batch.clone()).await.expect("memory settles");
        let found = self.sqlite().settle(self.session, batch.clone()).await.expect("it settles");
        assert_eq!(found, expected);
        for (settlement, settled) in batch.into_iter().zip(found) {
            let id = settlement.record.delivery.id;
            if settled == posthaste_store::Settled::Done
                && let Some(known) = self.deliveries.iter_mut().find(|known| known.id == id)
            {
                *known = settlement.record.delivery;
            }
        }
    }

    async fn cut(&mut self, lane: bool, of: usize, cause: Cause, spared: &[usize]) {
        let Some(row) = self.pick(of) else { return };
        let scope = scope(lane, row);
        let in_scope = |id: &DeliveryId| {
            let delivery = self.deliveries.iter().find(|known| known.id == *id);
            delivery.is_some_and(|delivery| self::scope(lane, delivery) == scope)
        };
        let mut spared: Vec<DeliveryId> =
            spared.iter().filter_map(|pick| self.pick(*pick)).map(|row| row.id).filter(in_scope).collect();
        spared.sort_unstable();
        spared.dedup();
        let cut = Cut { scope, upto: row.id.0, cause, at: at(30 + i64::from(row.attempts)), spared };
        let expected = self.memory.cut(self.session, cut.clone()).await.expect("memory cuts");
        assert_eq!(self.sqlite().cut(self.session, cut).await.expect("it cuts"), expected);
    }

    async fn sweep(&self, sweep: Sweep, under_way: &[usize]) {
        let under_way: Vec<_> = under_way.iter().filter_map(|pick| self.pick(*pick)).map(|row| row.id).collect();
        let expected = self.memory.sweep(self.session, sweep, under_way.clone()).await.expect("memory sweeps");
        assert_eq!(
            self.sqlite().sweep(self.session, sweep, under_way).await.expect("it sweeps"),
            expected,
            "{sweep:?}"
        );
    }

    async fn put_endpoint(&self, endpoint: Endpoint, call: Option<Call>) {
        let once = call.map(idempotency);
        let expected = self.memory.put_endpoint(self.session, endpoint.clone(), once.clone()).await;
        same(expected, self.sqlite().put_endpoint(self.session, endpoint, once).await);
    }

    async fn retain(&mut self, days: u64) {
        // What is derived follows within seconds; nothing is let go that is so young.
        self.sqlite().catch_up().await.expect("it catches up");
        let now = at(0) + Duration::from_secs(days * 24 * 60 * 60);
        let mut removed = [0, 0];
        let mut step = Some(RetentionStep::START);
        while let Some(next) = step {
            let retained =
                self.memory.retain(self.session, Retention::default(), now, next).await.expect("memory retains");
            (removed[0], step) = (removed[0] + retained.removed, retained.next);
        }
        let mut step = Some(RetentionStep::START);
        while let Some(next) = step {
            let retained =
                self.sqlite().retain(self.session, Retention::default(), now, next).await.expect("it retains");
            (removed[1], step) = (removed[1] + retained.removed, retained.next);
        }
        assert_eq!(removed[0], removed[1], "after {days} days");
        let mut left = Vec::new();
        for id in std::mem::take(&mut self.jobs) {
            if self.memory.job(id).await.expect("memory reads").is_some() {
                left.push(id);
            }
        }
        self.jobs = left;
    }

    fn job(&self, pick: usize) -> Option<JobId> {
        self.jobs.get(pick % self.jobs.len().max(1)).copied()
    }

    async fn fan_out(&mut self) {
        let accepted = self.message(&[]);
        let message = accepted.message.id;
        let fan_out = FanOut { message, tier: Tier::Engagement, deliver_at: Some(at(3)), ttl: None };
        let batch = vec![Accepted { fan_out: Some(fan_out), ..accepted }];
        self.messages.push(message);
        self.jobs.push(JobId(message.0));
        let expected = self.memory.accept(self.session, batch.clone()).await.expect("memory accepts");
        assert_eq!(self.sqlite().accept(self.session, batch).await.expect("it accepts"), expected);
    }

    async fn replay(&mut self, filter: Option<usize>, picks: &[usize]) {
        let what = match filter {
            Some(filter) => ReplayWhat::Found(dead_letters(filter)),
            None => ReplayWhat::Listed(picks.iter().filter_map(|pick| self.pick(*pick)).map(|row| row.id).collect()),
        };
        let id = JobId(self.message(&[]).message.id.0);
        let replay = NewReplay { id, tenant: TenantId::from_raw(1), at: at(2), what, per_second: None };
        self.jobs.push(id);
        let expected = self.memory.start_replay(self.session, replay.clone()).await.expect("memory begins");
        assert_eq!(self.sqlite().start_replay(self.session, replay).await.expect("it begins"), expected);
    }

    async fn chunk(&mut self, of: usize, lanes: &[u64], limit: u32, stale: bool) {
        let Some(id) = self.job(of) else { return };
        let job = self.memory.job(id).await.expect("memory reads").expect("the job is there");
        let page = self.memory.replay_page(id, limit).await.expect("memory reads");
        assert_eq!(self.sqlite().replay_page(id, limit).await.expect("it reads"), page);
        let from = if stale { JobCursor::behind(99) } else { job.cursor };
        let mut chunk =
            Chunk { job: id, at: at(4), from, to: from, deliveries: Vec::new(), skipped: 0, last: lanes.is_empty() };
        match (page, job.kind) {
            (Some(page), _) => {
                (chunk.to, chunk.last) = (page.next, page.last);
                for ended in page.items.into_iter().filter_map(|item| item.ended) {
                    let spread = self.spread(ended.message, ended.lane.raw(), Some(ended.id)).await;
                    chunk.deliveries.push(spread);
                }
            }
            (None, JobKind::FanOut(fan_out)) => {
                chunk.to = JobCursor::behind(job.cursor.number + 1);
                // One that has ended may have let go of its message.
                if job.state == JobState::Running {
                    for lane in lanes {
                        chunk.deliveries.push(self.spread(fan_out.message, *lane, None).await);
                    }
                }
            }
            (None, _) => unreachable!("a replay has pages"),
        }
        let expected = self.memory.spread(self.session, chunk.clone()).await.expect("memory spreads");
        assert_eq!(self.sqlite().spread(self.session, chunk.clone()).await.expect("it spreads"), expected);
        if let Chunked::Done(made) = expected {
            self.arrivals_due += usize::try_from(made).expect("a chunk is small");
            for spread in chunk.deliveries {
                let id = spread.new.delivery.id;
                if self.memory.delivery(id, at(0)).await.expect("memory reads").is_some() {
                    self.deliveries.push(spread.new.delivery);
                }
            }
        }
    }

    async fn spread(&mut self, message: MessageId, lane: u64, replays: Option<DeliveryId>) -> Spread {
        let id = DeliveryId(self.message(&[]).message.id.0);
        let message = self.memory.message(message).await.expect("memory reads").expect("the message is kept");
        let draft = Draft {
            lane,
            tier: Tier::Promotional,
            place: Place::Ready,
            due: 0,
            expiry: Expiry::Never,
            acks: false,
            collapse: None,
        };
        let mut new = new_delivery(message.id, 0, &draft);
        new.delivery.id = id;
        Spread { new, message, replays }
    }

    async fn compare_jobs(&self) {
        for id in &self.jobs {
            let expected = self.memory.job(*id).await.expect("memory reads");
            assert_eq!(self.sqlite().job(*id).await.expect("it reads"), expected);
        }
        for query in [JobQuery::Running, JobQuery::Of(TenantId::from_raw(1))] {
            let expected = self.memory.jobs(query, None, 100).await.expect("memory reads");
            assert_eq!(self.sqlite().jobs(query, None, 100).await.expect("it reads"), expected);
        }
        for delivery in &self.deliveries {
            let expected = self.memory.replay_of(delivery.id).await.expect("memory reads");
            assert_eq!(self.sqlite().replay_of(delivery.id).await.expect("it reads"), expected);
        }
        for message in &self.messages {
            let mut after = None;
            loop {
                let expected = self.memory.deliveries(*message, after, at(0), 2).await.expect("memory reads");
                let found = self.sqlite().deliveries(*message, after, at(0), 2).await.expect("it reads");
                assert_eq!(found, expected, "{message} after {after:?}");
                after = found.last().map(|shown| shown.delivery.id);
                if found.len() < 2 {
                    break;
                }
            }
        }
    }

    async fn purge(&self, filter: DeadLetterFilter) {
        let expected = self.memory.purge_dead_letters(self.session, filter.clone()).await.expect("memory purges");
        assert_eq!(self.sqlite().purge_dead_letters(self.session, filter).await.expect("it purges"), expected);
        let expected = self.memory.sweep_dead_letters(self.session).await.expect("memory sweeps");
        assert_eq!(self.sqlite().sweep_dead_letters(self.session).await.expect("it sweeps"), expected);
    }

    async fn compare_dead_letters(&self) {
        for filter in (0..FILTERS).map(dead_letters) {
            for order in [ListOrder::NewestFirst, ListOrder::OldestFirst] {
                let mut after = None;
                loop {
                    let expected = self.memory.dead_letters(filter.clone(), order, after, 2).await;
                    let found = self.sqlite().dead_letters(filter.clone(), order, after, 2).await.expect("it lists");
                    assert_eq!(found, expected.expect("memory lists"), "{filter:?} {order:?} after {after:?}");
                    after = found.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
    }

    async fn take_over(&mut self) {
        let old = self.session;
        self.begin().await;
        let late = self.message(&[]);
        let expected = self.memory.accept(old, vec![late.clone()]).await;
        same(expected, self.sqlite().accept(old, vec![late]).await);
    }

    async fn restart(&mut self) {
        self.compare_arrivals().await;
        drop(self.sqlite.take());
        self.sqlite = Some(Sqlite::open_folder(self.folder.path()).expect("the folder opens again"));
        self.begin().await;
    }

    async fn begin(&mut self) {
        let expected = self.memory.open().await.expect("memory opens");
        let found = self.sqlite().open().await.expect("it opens");
        let parts = |start: Start| (start.session, start.cuts, start.pauses, start.spilled, start.breakers);
        self.session = expected.session;
        self.next = 1;
        assert_eq!(parts(found), parts(expected));
    }

    /// Everything a caller can read.
    async fn compare(&mut self) {
        self.compare_arrivals().await;
        for delivery in &self.deliveries {
            for now in [0, 25, 60] {
                let expected = self.memory.delivery(delivery.id, at(now)).await.expect("memory reads");
                let found = self.sqlite().delivery(delivery.id, at(now)).await.expect("it reads");
                assert_eq!(found, expected, "{} at {now}", delivery.id);
            }
            self.compare_pages(Query::One(delivery.id)).await;
        }
        for message in &self.messages {
            let expected = self.memory.message(*message).await.expect("memory reads");
            assert_eq!(self.sqlite().message(*message).await.expect("it reads"), expected);
        }
        self.compare_dead_letters().await;
        self.compare_jobs().await;
        let middle = self.pick(self.deliveries.len() / 2).map(|row| row.id);
        for after in [None, middle] {
            for before in [0, 1] {
                let before = WriterId::new(self.session.writer.number() + before).expect("a small number");
                self.compare_pages(Query::Left { after, before }).await;
            }
            for ms in [0, 7, 19] {
                let after = after.map(|id| (at(ms), id));
                self.compare_pages(Query::Delayed { after, until: at(10) }).await;
            }
        }
        for lane in (0..LANES).map(LaneId::from_raw) {
            for tier in Tier::ALL {
                for order in [Order::Fifo, Order::NewestFirst, Order::Strict] {
                    let middle = middle.unwrap_or(Span::ALL.from);
                    for span in [Span::ALL, Span { from: middle, ..Span::ALL }, Span { below: middle, ..Span::ALL }] {
                        self.compare_pages(Query::Spilled { lane, tier, order, span }).await;
                    }
                }
            }
            self.compare_derived(lane).await;
            let id = lane.endpoint();
            let expected = self.memory.endpoint(id).await.expect("memory reads");
            assert_eq!(self.sqlite().endpoint(id).await.expect("it reads"), expected);
            let expected = self.memory.lanes(vec![lane]).await.expect("memory reads");
            assert_eq!(self.sqlite().lanes(vec![lane]).await.expect("it reads"), expected);
        }
        let tenant = TenantId::from_raw(1);
        let expected = self.memory.endpoints(tenant).await.expect("memory reads");
        assert_eq!(self.sqlite().endpoints(tenant).await.expect("it reads"), expected);
        assert_eq!(happened(self.sqlite()).await, happened(&self.memory).await);
    }

    async fn compare_pages(&self, query: Query) {
        for limit in [1, 3, 1_000] {
            let expected = self.memory.page(query, limit).await.expect("memory reads");
            assert_eq!(self.sqlite().page(query, limit).await.expect("it reads"), expected, "{query:?} limit {limit}");
        }
    }

    async fn compare_derived(&self, lane: LaneId) {
        for (order, limit) in [(ListOrder::NewestFirst, 3), (ListOrder::OldestFirst, 100)] {
            let expected = history(&self.memory, lane, order, limit).await;
            assert_eq!(history(self.sqlite(), lane, order, limit).await, expected);
        }
        let expected = self.memory.waiting(lane).await.expect("memory reads");
        assert_eq!(self.sqlite().waiting(lane).await.expect("it reads"), expected);
        assert_eq!(tallies(self.sqlite()).await, tallies(&self.memory).await);
    }

    async fn compare_arrivals(&mut self) {
        if self.arrivals_due == 0 {
            return;
        }
        let of = |arrivals: Vec<posthaste_store::Arrival>| {
            arrivals
                .into_iter()
                .map(|arrival| (arrival.new.delivery, arrival.new.place, arrival.message, arrival.superseded))
                .collect::<Vec<_>>()
        };
        let (expected, found) = (of(self.memory.arrivals().await), of(self.sqlite().arrivals().await));
        assert_eq!(found, expected);
        assert_eq!(found.len(), self.arrivals_due);
        self.arrivals_due = 0;
    }

    fn pick(&self, pick: usize) -> Option<&Delivery> {
        self.deliveries.get(pick % self.deliveries.len().max(1))
    }
}

/// What was counted, by hour. Whose it is depends on when its endpoint was made, which in a history
/// may be long after something was sent to it.
async fn tallies(store: &impl Store) -> BTreeMap<(Hour, Counted), u64> {
    let mut all = BTreeMap::new();
    let (since, until) = (Hour::of(at(0)), Hour(Hour::of(at(0)).0 + 48));
    for tenant in [0, 1].map(TenantId::from_raw) {
        for tally in store.tallies(tenant, since, until).await.expect("it reads") {
            *all.entry((tally.hour, tally.counted)).or_default() += tally.count;
        }
    }
    all
}

/// A lane's whole history, page by page.
async fn history(store: &impl Store, lane: LaneId, order: ListOrder, limit: u32) -> Vec<Shown> {
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let filter = HistoryFilter::of(lane.endpoint());
        let page = store.history(filter, order, from, limit, at(5)).await.expect("it reads");
        found.extend(page.deliveries);
        from = page.next;
        if from.is_none() {
            return found;
        }
    }
}

/// The journal, whose rows must be linked; what is hidden is hidden with another key in each store.
async fn happened(store: &impl Store) -> Vec<Vec<Entry>> {
    let mut head = Some(Head::default());
    let mut calls = Vec::new();
    for row in store.journal(0, u32::MAX).await.expect("it reads") {
        // Where its beginning was let go, the first row there is has nobody to follow.
        head = head.filter(|_| row.number == 1 || !calls.is_empty());
        assert!(head.is_none_or(|head| head.is_followed_by(&row)), "{row:?}");
        assert!(row.is_sound().expect("it is whole"), "{row:?}");
        head = Some(Head::behind(&row));
        let mut entries: Vec<Entry> = row.entries().collect::<Result<_, _>>().expect("it is whole");
        for entry in &mut entries {
            if let Entry::Accepted { subject, correlation, .. } = entry {
                (*subject, *correlation) = (None, None);
            }
        }
        calls.push(entries);
    }
    calls
}

fn same<T: PartialEq + Debug>(expected: Result<T, StoreError>, found: Result<T, StoreError>) {
    assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(|error| error.to_string()));
}

fn idempotency(call: Call) -> Idempotency {
    Idempotency {
        tenant: TenantId::from_raw(1),
        key: KeyHash([call.key; 16]),
        digest: [call.request; 32],
        answer: FirstAnswer { status: 202, body: Bytes::from(format!("{call:?}")) },
        at: at(call.hour * 3_600_000),
    }
}

fn new_delivery(message: MessageId, n: u64, draft: &Draft) -> NewDelivery {
    let lane = LaneId::from_raw(draft.lane);
    let delivery = Delivery {
        state: State::Queued { due: at(draft.due) },
        expiry: draft.expiry,
        ack_within: draft.acks.then(|| Duration::from_secs(1)),
        compact: if draft.acks { Compact::Spare } else { Compact::None },
        ..Delivery::queued(DeliveryId(message.0.plus(n)), message, lane, draft.tier, at(0))
    };
    let lane = Arc::new(endpoint(draft.lane, 1, Order::Fifo).lane_settings());
    NewDelivery { delivery, place: draft.place, lane, collapse: draft.collapse.map(CollapseKey) }
}

/// What an owner that last saw `row` would record; of one that has ended, too late.
fn settlement(row: &Delivery, outcome: &Outcome, session: Session) -> Settlement {
    let due = at(outcome.due);
    let tried = !matches!(outcome.end, End::PutBack | End::Expired | End::Cancelled);
    let attempts = row.attempts + u16::from(tried);
    let (state, cause) = match outcome.end {
        End::Delivered => (State::Delivered { at: due }, Cause::Ok),
        End::Sent if row.ack_within.is_some() => (State::AwaitingAck { until: due }, Cause::Ok),
        End::Sent => (State::Delivered { at: due }, Cause::Ok),
        End::Retry(cause) => (State::Retry { due, cause }, cause),
        End::PutBack if row.attempts == 0 => (State::Queued { due }, Cause::Ok),
        End::PutBack => (State::Retry { due, cause: Cause::Unknown }, Cause::Ok),
        End::Dead(cause) => (State::Dead { at: due, cause }, cause),
        End::Expired => (State::Expired { at: due }, Cause::Ok),
        End::Cancelled => (State::Cancelled { at: due, cause: Cause::Cancelled }, Cause::Ok),
    };
    let mut delivery = Delivery { state, attempts, ..row.clone() };
    if let End::Retry(cause) = outcome.end {
        delivery.last_cause = Some(cause);
        delivery.previous_wait = Some(Duration::from_micros(u64::from(attempts) * 1_234_567));
        delivery.limited_in_a_row = row.limited_in_a_row.wrapping_add(1);
        delivery.compact = Compact::InUse;
    }
    let took = Duration::from_micros(777);
    Settlement {
        record: Record {
            attempts_before: row.attempts + outcome.attempts_off,
            place: outcome.place,
            shard: Shard::of(row.lane),
            pauses_lane: outcome.pauses_lane,
            ends_endpoint: false,
            delivery,
        },
        epoch: session.epoch - outcome.epoch_off,
        attempt: tried.then_some(Attempt { number: attempts, at: due, took, cause, status: Some(200 + attempts) }),
    }
}

/// How many filters [`dead_letters`] knows.
const FILTERS: usize = 8;

fn dead_letters(filter: usize) -> DeadLetterFilter {
    let all = DeadLetterFilter::of(TenantId::from_raw(1));
    match filter {
        0 => all,
        1 => DeadLetterFilter { endpoint: Some(EndpointId::from_raw(1)), ..all },
        2 => DeadLetterFilter { cause: Some(Cause::Unavailable), ..all },
        3 => DeadLetterFilter { event_type: Some("a.b".to_owned()), ..all },
        4 => DeadLetterFilter { tier: Some(Tier::Promotional), ..all },
        5 => DeadLetterFilter { since: Some(at(7)), until: Some(at(13)), ..all },
        6 => DeadLetterFilter { endpoint: Some(EndpointId::from_raw(0)), until: Some(at(9)), ..all },
        _ => DeadLetterFilter::of(TenantId::from_raw(2)),
    }
}

fn scope(lane: bool, delivery: &Delivery) -> Scope {
    if lane { Scope::Lane(delivery.lane) } else { Scope::Message(delivery.message) }
}

fn pause_scope(kind: u8, of: u64) -> PauseScope {
    match kind {
        0 => PauseScope::All,
        1 => PauseScope::Tenant(TenantId::from_raw(of)),
        _ => PauseScope::Lane(LaneId::from_raw(of)),
    }
}

fn endpoint(lane: u64, secrets: usize, order: Order) -> Endpoint {
    Endpoint {
        id: EndpointId::from_raw(lane),
        tenant: TenantId::from_raw(1),
        at: at(0),
        url: format!("https://example.com/{lane}"),
        secrets: vec!["whsec_a".to_owned(); secrets],
        event_types: Vec::new(),
        policy: "webhook".to_owned(),
        ttl: None,
        order,
        on_dead: OnDead::Hold,
        max_in_flight: 4,
        status: EndpointStatus::Active,
    }
}
