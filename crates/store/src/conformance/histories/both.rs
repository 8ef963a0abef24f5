//! Two stores that get the same calls and must return the same results.

use std::fmt::Debug;
use std::time::Duration;

use posthaste_core::scheduler::Order;
use posthaste_core::{
    Cause, Cut, Delivery, DeliveryId, Expiry, JobId, Key, MessageId, RowIndex, TenantId, Tier, Timestamp,
};
use tempfile::TempDir;

use super::super::fixture::ended;
use super::PlantedFault;
use super::step::{
    CallDraft, HistoryStep, LANES, RandomDelivery, SettleDraft, at, dead_letters, endpoint, idempotency, new_delivery,
    pause_scope, scope, settlement,
};
use crate::memory::MemoryStore;
use crate::sqlite::{Bounds, Sqlite};
use crate::{
    Acceptance, Accepted, Archive, AuditStamp, Chunk, ChunkDelivery, Chunked, DeadLetterFilter, DeadLetters, Directory,
    Endpoint, FanOut, JobCursor, JobKind, JobState, Jobs, Message, NewReplay, Outbox, Pause, ReplayWhat, Retention,
    RetentionOverride, RetentionOverrides, RetentionStep, Session, SessionStart, Settlement, Skips, Store, StoreError,
    Sweep,
};

/// Makes the same call on both stores, checks that the results are equal, and evaluates to the result.
macro_rules! ask {
    ($both:expr, $($call:tt)+) => {{
        let expected = $both.memory.$($call)+.await.expect("memory succeeds");
        let found = $both.sqlite().$($call)+.await.expect("SQLite succeeds");
        assert_eq!(found, expected, "{}", stringify!($($call)+));
        found
    }};
}
pub(super) use ask;

/// The two stores, and the state of their caller.
pub(super) struct Both {
    pub(super) memory: MemoryStore,
    sqlite: Option<Sqlite>,
    folder: TempDir,
    pub(super) session: Session,
    next: u64,
    pub(super) messages: Vec<MessageId>,
    pub(super) jobs: Vec<JobId>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) arrivals_due: usize,
    fault: Option<PlantedFault>,
}

impl Both {
    pub(super) async fn open(fault: Option<PlantedFault>) -> Self {
        let folder = new_folder();
        let sqlite = open(&folder);
        let memory = MemoryStore::default();
        let session = memory.open(at(0)).await.expect("memory opens").session;
        assert_eq!(sqlite.open(at(0)).await.expect("it opens").session, session);
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

    pub(super) fn sqlite(&self) -> &Sqlite {
        self.sqlite.as_ref().expect("open between restarts")
    }

    pub(super) async fn take(&mut self, step: HistoryStep) {
        match step {
            HistoryStep::Accept(drafts, call) => self.accept(&drafts, call).await,
            HistoryStep::Settle(outcomes) => self.settle(&outcomes).await,
            HistoryStep::Spill(picks) => {
                let ids: Vec<DeliveryId> = picks.iter().filter_map(|pick| self.pick(*pick)).map(|row| row.id).collect();
                ask!(self, spill(self.session, ids.clone()));
            }
            HistoryStep::Cut { lane, of, cause, spared } => self.cut(lane, of, cause, &spared).await,
            HistoryStep::Uncut { lane, of } => {
                let Some(scope) = self.pick(of).map(|row| scope(lane, row)) else { return };
                ask!(self, uncut(self.session, scope, at(0)));
            }
            HistoryStep::SweepCut { lane, of, under_way } => {
                let Some(scope) = self.pick(of).map(|row| scope(lane, row)) else { return };
                self.sweep(Sweep::Cut(scope), &under_way).await;
            }
            HistoryStep::Roll { after, now, under_way } => {
                let after = after.and_then(|pick| self.pick(pick)).map(|row| row.id);
                self.sweep(Sweep::Roll { after, now: at(now) }, &under_way).await;
            }
            HistoryStep::Pause { kind, of, until } => {
                let reason = until.map(|until| format!("since {until}"));
                let pause = Pause { reason, ..Pause::new(pause_scope(kind, of), until.map(at)) };
                ask!(self, pause(self.session, pause.clone(), at(0)));
            }
            HistoryStep::Resume { kind, of } => {
                let scope = pause_scope(kind, of);
                ask!(self, resume(self.session, scope, AuditStamp::at(at(0))));
            }
            HistoryStep::Remember(breakers) => ask!(self, remember(self.session, breakers.clone())),
            HistoryStep::PutEndpoint { lane, secrets, order, call } => {
                self.put_endpoint(endpoint(lane, secrets, order), call).await;
            }
            HistoryStep::Purge { filter } => self.purge(dead_letters(filter)).await,
            HistoryStep::CatchUp => self.sqlite().catch_up().await.expect("it catches up"),
            HistoryStep::Retain { days } => self.retain(days).await,
            HistoryStep::Agree { payload, history } => {
                let days = |days: Option<u32>| days.map(|days| days * Duration::from_secs(24 * 60 * 60));
                let own = RetentionOverride { payload: days(payload), history: days(history) };
                let overrides = RetentionOverrides::all(vec![(TenantId::from_raw(1), own)]);
                ask!(self, set_retention_overrides(self.session, overrides.clone(), at(0)));
            }
            HistoryStep::FanOut => self.fan_out().await,
            HistoryStep::Replay { filter, picks } => self.replay(filter, &picks).await,
            HistoryStep::Chunk { of, lanes, limit, stale } => self.chunk(of, &lanes, limit, stale).await,
            HistoryStep::ChangeJob { of, next } => {
                let Some(job) = self.job(of) else { return };
                ask!(self, change_job(self.session, job, next, AuditStamp::at(at(0))));
            }
            HistoryStep::Open => self.take_over().await,
            HistoryStep::Restart => self.restart().await,
            HistoryStep::Crash => self.crash().await,
        }
    }

    async fn accept(&mut self, drafts: &[RandomDelivery], call: Option<CallDraft>) {
        let accepted = Accepted { idempotency: call.map(idempotency), ..self.message(drafts) };
        self.messages.push(accepted.message.id);
        let expected = self.memory.accept(self.session, vec![accepted.clone()]).await.expect("memory accepts");
        let faulty = self.with_accept_fault(accepted.clone());
        let found = self.sqlite().accept(self.session, vec![faulty]).await.expect("it accepts");
        assert_eq!(found, expected);
        if found == [Acceptance::Fresh] {
            self.deliveries.extend(accepted.deliveries.iter().map(|new| new.delivery.clone()));
            self.arrivals_due += accepted.deliveries.len();
        }
    }

    fn message(&mut self, drafts: &[RandomDelivery]) -> Accepted {
        let id = MessageId(Key::new(self.session.writer, self.next));
        self.next += 1 + drafts.len() as u64;
        // Each message is later than the one before, so that the TTL of a superseded delivery may be over.
        let accepted_at = at(i64::try_from(self.messages.len()).unwrap_or(0));
        let message = Message {
            event_type: Some("a.b".to_owned()),
            correlation_id: Some(id.to_string()),
            ..Message::new(id, TenantId::from_raw(1), accepted_at, id.to_string())
        };
        let deliveries = (1..).zip(drafts).map(|(n, draft)| new_delivery(id, n, draft)).collect();
        Accepted::new(message, deliveries)
    }

    async fn settle(&mut self, outcomes: &[SettleDraft]) {
        let mut batch: Vec<Settlement> = Vec::new();
        for outcome in outcomes {
            let Some(row) = self.pick(outcome.of) else { return };
            // At most one settlement per delivery in a batch, as the dispatch loop would send.
            if batch.iter().all(|other| other.record.delivery.id != row.id) {
                batch.push(settlement(row, outcome, self.session));
            }
        }
        let expected = self.memory.settle(self.session, batch.clone()).await.expect("memory settles");
        let faulty = batch.iter().map(|settlement| self.with_settle_fault(settlement.clone())).collect();
        let found = self.sqlite().settle(self.session, faulty).await.expect("it settles");
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
        let cut = Cut {
            scope,
            upto: row.id.0,
            cause,
            at: at(30 + i64::from(row.attempts)),
            spared,
            endpoint: ended(scope, cause),
        };
        ask!(self, cut(self.session, cut.clone(), None));
    }

    async fn sweep(&self, sweep: Sweep, under_way: &[usize]) {
        let under_way: Vec<_> = under_way.iter().filter_map(|pick| self.pick(*pick)).map(|row| row.id).collect();
        ask!(self, sweep(self.session, sweep, under_way.clone()));
    }

    async fn put_endpoint(&self, endpoint: Endpoint, call: Option<CallDraft>) {
        let before = self.memory.endpoint(endpoint.id).await.expect("memory reads");
        let endpoint = Endpoint { version: before.map_or(0, |before| before.version + 1), ..endpoint };
        let once = call.map(idempotency);
        _ = ask!(self, put_endpoint(self.session, endpoint.clone(), once.clone(), AuditStamp::at(at(0))));
    }

    async fn retain(&mut self, days: u64) {
        // In production the follower is seconds behind, and retention deletes nothing that young.
        self.sqlite().catch_up().await.expect("it catches up");
        let now = at(0) + Duration::from_secs(days * 24 * 60 * 60);
        let expected = removed(&self.memory, self.session, now).await;
        assert_eq!(removed(self.sqlite(), self.session, now).await, expected, "after {days} days");
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
        ask!(self, accept(self.session, batch.clone()));
    }

    async fn replay(&mut self, filter: Option<usize>, picks: &[usize]) {
        let what = match filter {
            Some(filter) => ReplayWhat::Found(dead_letters(filter)),
            None => ReplayWhat::Listed(picks.iter().filter_map(|pick| self.pick(*pick)).map(|row| row.id).collect()),
        };
        let id = JobId(self.message(&[]).message.id.0);
        let replay = NewReplay::new(id, TenantId::from_raw(1), at(2), what);
        self.jobs.push(id);
        ask!(self, start_replay(self.session, replay.clone(), None));
    }

    async fn chunk(&mut self, of: usize, lanes: &[u64], limit: u32, stale: bool) {
        let Some(id) = self.job(of) else { return };
        let job = self.memory.job(id).await.expect("memory reads").expect("the job is there");
        let page = ask!(self, replay_page(id, limit));
        let from = if stale { JobCursor::behind(99) } else { job.cursor };
        let mut chunk = Chunk {
            job: id,
            at: at(4),
            from,
            to: from,
            deliveries: Vec::new(),
            skipped: Skips::default(),
            last: lanes.is_empty(),
        };
        match (page, job.kind) {
            (Some(page), _) => {
                (chunk.to, chunk.last) = (page.next, page.last);
                for ended in page.items.iter().filter_map(|item| item.found.ended()) {
                    let spread = self.spread(ended.message, ended.lane.raw(), Some(ended.id)).await;
                    chunk.deliveries.push(spread);
                }
            }
            (None, JobKind::FanOut(fan_out)) => {
                chunk.to = JobCursor::behind(job.cursor.number + 1);
                // The message of an ended fan-out may be deleted already.
                if job.state == JobState::Running {
                    for lane in lanes {
                        chunk.deliveries.push(self.spread(fan_out.message, *lane, None).await);
                    }
                }
            }
            (None, _) => unreachable!("a replay has pages"),
        }
        if let Chunked::Done(made) = ask!(self, spread(self.session, chunk.clone())) {
            self.arrivals_due += usize::try_from(made).expect("a chunk is small");
            for spread in chunk.deliveries {
                let id = spread.new.delivery.id;
                if self.memory.delivery(id, at(0)).await.expect("memory reads").is_some() {
                    self.deliveries.push(spread.new.delivery);
                }
            }
        }
    }

    async fn spread(&mut self, message: MessageId, lane: u64, replays: Option<DeliveryId>) -> ChunkDelivery {
        let id = DeliveryId(self.message(&[]).message.id.0);
        let message = self.memory.message(message).await.expect("memory reads").expect("the message is kept");
        let draft = RandomDelivery {
            lane,
            tier: Tier::Promotional,
            place: RowIndex::Ready,
            due: 0,
            expiry: Expiry::Never,
            acks: false,
            collapse: None,
        };
        let mut new = new_delivery(message.id, 0, &draft);
        new.delivery.id = id;
        ChunkDelivery { new, message, replays }
    }

    async fn purge(&self, filter: DeadLetterFilter) {
        let tenant = filter.tenant.unwrap_or(TenantId::from_raw(1));
        ask!(self, purge_dead_letters(self.session, tenant, filter.clone(), AuditStamp::at(at(0))));
        ask!(self, sweep_dead_letters(self.session));
    }

    async fn take_over(&mut self) {
        let old = self.session;
        self.begin().await;
        let late = self.message(&[]);
        let session = if self.fault == Some(PlantedFault::FenceForgotten) { self.session } else { old };
        let expected = self.memory.accept(old, vec![late.clone()]).await;
        same(expected, self.sqlite().accept(session, vec![late]).await);
    }

    pub(super) async fn restart(&mut self) {
        self.compare_arrivals().await;
        drop(self.sqlite.take());
        self.sqlite = Some(open(&self.folder));
        self.begin().await;
    }

    /// Continues with the files as a process killed now would leave them.
    async fn crash(&mut self) {
        self.compare_arrivals().await;
        let left = new_folder();
        for name in ["posthaste.db", "posthaste.db-wal"] {
            let from = self.folder.path().join(name);
            if from.exists() {
                std::fs::copy(from, left.path().join(name)).expect("the file can be copied");
            }
        }
        drop(self.sqlite.take());
        self.folder = left;
        self.sqlite = Some(open(&self.folder));
        self.begin().await;
    }

    /// The message that SQLite gets instead, with a fault.
    fn with_accept_fault(&self, mut accepted: Accepted) -> Accepted {
        match self.fault {
            Some(PlantedFault::KeyForgotten) => accepted.idempotency = None,
            Some(PlantedFault::CollapseForgotten) => accepted.deliveries.iter_mut().for_each(|new| new.collapse = None),
            _ => {}
        }
        accepted
    }

    /// The settlement that SQLite gets instead, with a fault.
    fn with_settle_fault(&self, mut settlement: Settlement) -> Settlement {
        let known = self.deliveries.iter().find(|known| known.id == settlement.record.delivery.id);
        match self.fault {
            Some(PlantedFault::EpochForgotten) => settlement.epoch = self.session.epoch,
            Some(PlantedFault::AttemptsForgotten) => {
                settlement.record.attempts_before = known.map_or(0, |known| known.attempts);
            }
            Some(PlantedFault::AttemptDropped) => settlement.attempt = None,
            _ => {}
        }
        settlement
    }

    async fn begin(&mut self) {
        let expected = self.memory.open(at(0)).await.expect("memory opens");
        let found = self.sqlite().open(at(0)).await.expect("it opens");
        let parts = |start: SessionStart| (start.session, start.cuts, start.pauses, start.spilled, start.breakers);
        self.session = expected.session;
        self.next = 1;
        assert_eq!(parts(found), parts(expected));
    }

    pub(super) fn pick(&self, pick: usize) -> Option<&Delivery> {
        self.deliveries.get(pick % self.deliveries.len().max(1))
    }
}

/// Runs retention and returns how many rows it removed, moved or ended.
async fn removed(store: &impl Store, session: Session, now: Timestamp) -> u64 {
    let (mut removed, mut step) = (0, Some(RetentionStep::START));
    while let Some(next) = step {
        let retained = store.retain(session, Retention::default(), now, next, Vec::new()).await.expect("it retains");
        (removed, step) = (removed + retained.removed, retained.next);
    }
    removed
}

fn same<T: PartialEq + Debug>(expected: Result<T, StoreError>, found: Result<T, StoreError>) {
    assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(|error| error.to_string()));
}

/// Opens SQLite with a low-water mark that is raised as soon as possible.
fn open(folder: &TempDir) -> Sqlite {
    let bounds = Bounds { low_every: 1, ..Bounds::default() };
    Sqlite::open_bounded(folder.path(), crate::conformance::master_key_of_tests(), bounds).expect("the folder opens")
}

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}
