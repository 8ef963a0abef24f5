//! SQLite against the contract in its plainest form: any history of calls, with restarts and crashes
//! in between, gives the same answers and the same pages as [`MemoryStore`].
//!
//! A history comes from a seed, so that a proof can run as many as it likes and name the one that
//! failed. With a [`Fault`] the two are not told the same, as if SQLite lacked a guard: then they must
//! differ.

mod step;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::journal::{Entry, Head};
use crate::memory::MemoryStore;
use crate::sqlite::{Bounds, Sqlite};
use crate::{
    Acceptance, Accepted, Attempt, CollapseKey, Counted, DeadLetterFilter, Endpoint, EndpointStatus, FirstAnswer,
    HistoryFilter, Hour, Idempotency, KeyHash, ListOrder, Message, NewDelivery, Pause, PauseScope, Query, Session,
    Settlement, Shown, Start, Store, StoreError, Sweep,
};
use crate::{Archive, DeadLetters, Directory, Jobs, Outbox};
use crate::{Chunk, Chunked, FanOut, JobCursor, JobKind, JobQuery, JobState, NewReplay, ReplayWhat, Spread};
use crate::{Retention, RetentionStep};
use bytes::Bytes;
use posthaste_core::cause::Cause;
use posthaste_core::cut::{Cut, Scope};
use posthaste_core::delivery::{Compact, Delivery, Expiry};
use posthaste_core::id::{DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, Shard, TenantId, WriterId};
use posthaste_core::queue::{OnDead, Order, Place, Record, Span};
use posthaste_core::state::State;
use posthaste_core::tier::Tier;
use proptest::collection;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tempfile::TempDir;

use step::{Call, Draft, End, FILTERS, LANES, Outcome, Step, at, step};

/// Calls in a history, at most.
const STEPS_MAX: usize = 40;

/// A guard that SQLite seems to lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A settle of another epoch takes effect.
    EpochForgotten,
    /// A settle that counts other attempts takes effect.
    AttemptsForgotten,
    /// An attempt is not kept.
    AttemptDropped,
    /// A session that was taken over goes on writing.
    FenceForgotten,
    /// A duplicate is accepted once more.
    KeyForgotten,
    /// What was superseded goes on waiting.
    CollapseForgotten,
}

impl Fault {
    /// Every one there is.
    pub const ALL: [Self; 6] = [
        Self::EpochForgotten,
        Self::AttemptsForgotten,
        Self::AttemptDropped,
        Self::FenceForgotten,
        Self::KeyForgotten,
        Self::CollapseForgotten,
    ];
}

/// Takes both stores through the history of a seed; how many calls it had.
///
/// # Panics
/// When they differ.
pub fn run(seed: u64) -> usize {
    take_through(seed, None)
}

/// The same with a fault, which the comparison must find.
///
/// # Panics
/// When they differ, as they should in most histories.
pub fn run_with(seed: u64, fault: Fault) -> usize {
    take_through(seed, Some(fault))
}

fn take_through(seed: u64, fault: Option<Fault>) -> usize {
    let history = drawn(seed);
    let calls = history.len();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without IO can be built");
    runtime.block_on(async {
        let mut both = Both::open(fault).await;
        for step in history {
            both.take(step).await;
        }
        both.compare().await;
        both.restart().await;
        both.compare().await;
    });
    calls
}

/// The history of a seed.
fn drawn(seed: u64) -> Vec<Step> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let tree = collection::vec(step(), 1..STEPS_MAX).new_tree(&mut runner);
    tree.expect("no step is ever rejected").current()
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
    fault: Option<Fault>,
}

impl Both {
    async fn open(fault: Option<Fault>) -> Self {
        let folder = new_folder();
        let sqlite = open(&folder);
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
            fault,
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
            Step::Crash => self.crash().await,
        }
    }

    async fn accept(&mut self, drafts: &[Draft], call: Option<Call>) {
        let accepted = Accepted { idempotency: call.map(idempotency), ..self.message(drafts) };
        self.messages.push(accepted.message.id);
        let expected = self.memory.accept(self.session, vec![accepted.clone()]).await.expect("memory accepts");
        let told = self.told_to_accept(accepted.clone());
        let found = self.sqlite().accept(self.session, vec![told]).await.expect("it accepts");
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
        let told = batch.iter().map(|settlement| self.told_to_settle(settlement.clone())).collect();
        let found = self.sqlite().settle(self.session, told).await.expect("it settles");
        assert_eq!(found, expected);
        for (settlement, settled) in batch.into_iter().zip(found) {
            let id = settlement.record.delivery.id;
            if settled == crate::Settled::Done
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
        let told = if self.fault == Some(Fault::FenceForgotten) { self.session } else { old };
        let expected = self.memory.accept(old, vec![late.clone()]).await;
        same(expected, self.sqlite().accept(told, vec![late]).await);
    }

    async fn restart(&mut self) {
        self.compare_arrivals().await;
        drop(self.sqlite.take());
        self.sqlite = Some(open(&self.folder));
        self.begin().await;
    }

    /// What a process leaves that is killed now: the files as they are, without a clean end.
    async fn crash(&mut self) {
        self.compare_arrivals().await;
        let left = new_folder();
        for name in ["posthaste.db", "posthaste.db-wal"] {
            let from = self.folder.path().join(name);
            if from.exists() {
                std::fs::copy(from, left.path().join(name)).expect("what is left can be copied");
            }
        }
        drop(self.sqlite.take());
        self.folder = left;
        self.sqlite = Some(open(&self.folder));
        self.begin().await;
    }

    /// What SQLite is told instead of this, with a fault.
    fn told_to_accept(&self, mut accepted: Accepted) -> Accepted {
        match self.fault {
            Some(Fault::KeyForgotten) => accepted.idempotency = None,
            Some(Fault::CollapseForgotten) => accepted.deliveries.iter_mut().for_each(|new| new.collapse = None),
            _ => {}
        }
        accepted
    }

    /// What SQLite is told instead of this, with a fault.
    fn told_to_settle(&self, mut settlement: Settlement) -> Settlement {
        let known = self.deliveries.iter().find(|known| known.id == settlement.record.delivery.id);
        match self.fault {
            Some(Fault::EpochForgotten) => settlement.epoch = self.session.epoch,
            Some(Fault::AttemptsForgotten) => {
                settlement.record.attempts_before = known.map_or(0, |known| known.attempts);
            }
            Some(Fault::AttemptDropped) => settlement.attempt = None,
            _ => {}
        }
        settlement
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
        let of = |arrivals: Vec<crate::Arrival>| {
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

/// With a low-water mark that is raised as soon as it can be.
fn open(folder: &TempDir) -> Sqlite {
    let bounds = Bounds { low_every: 1, ..Bounds::default() };
    Sqlite::open_bounded(folder.path(), bounds).expect("what was left opens")
}

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as a check has time for; the proof `store-conformance` runs more.
    const SEEDS: u64 = 48;

    #[test]
    fn every_history_reads_the_same_from_both() {
        (0..SEEDS).for_each(|seed| _ = run(seed));
    }

    #[test]
    fn a_store_that_lacks_a_guard_reads_differently() {
        for fault in Fault::ALL {
            let differs = (0..100).any(|seed| std::panic::catch_unwind(|| run_with(seed, fault)).is_err());
            assert!(differs, "{fault:?}");
        }
    }
}
