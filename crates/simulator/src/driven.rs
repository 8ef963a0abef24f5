//! Runs a scenario through the tokio driver under paused time: the production driver with its `select!`, its channels
//! and its timer. It has fewer faults than [`super::world`]; it tests the order in which events reach the loop.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Cut, CutScope, DeliveryId, Key, LaneId, LaneSettings, MessageId, Roll, Timestamp};
use posthaste_engine::clock::Clock;
use posthaste_engine::dispatch::driver::{DispatchHandle, Driver, Transport};
use posthaste_engine::dispatch::{CommandReply, Finished, SendAttempt};
use posthaste_store::{
    Acceptance, Accepted, ApiKeyRef, ArrivedDelivery, AuditStamp, MemoryState, Outbox, Pause, PauseScope, PendingPage,
    Query, Session, SessionStart, Settled, Settlement, StoreError, Sweep, SweptRows,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::RunOutcome;
use super::history::{ApiCall, History, Ms, SentMessage, What};
use super::outsider;
use super::plan::{BEGIN, Happening, MessagePlan, RunPlan};
use super::wire::SimulatedWire;

/// Long enough for every schedule to end.
const GIVE_UP: Duration = Duration::from_secs(60 * 86_400);
/// How often the owner of the lanes resumes everything, once all faults are over.
const RESUME_EVERY: Duration = Duration::from_secs(600);

/// Runs a seed through the driver.
pub fn run(seed: u64) -> RunOutcome {
    let mut plan = RunPlan::from_seed(seed);
    plan.happenings.retain(|(_, happening)| !matches!(happening, Happening::Jump(_) | Happening::Fail(_)));
    plan.clock_jumps = false;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without IO can always be built");
    runtime.block_on(drive(plan))
}

/// The state that all tasks of a run share.
struct Shared {
    plan: RunPlan,
    clock: Virtual,
    disk: Mutex<MemoryState>,
    wire: Mutex<SimulatedWire>,
    rng: Mutex<Rng>,
    history: Mutex<History>,
    arrivals: Mutex<VecDeque<ArrivedDelivery>>,
    arrived: Notify,
    node: Mutex<Option<Node>>,
    /// How long the node stays down after each crash that was ordered and has not happened.
    crash: Mutex<VecDeque<Duration>>,
    crashed: Notify,
    store_ms: Mutex<u64>,
    /// Makes pauses and resumes take effect in the order of their calls, as with a single writer.
    pauses: tokio::sync::Mutex<()>,
    /// Receipts on their way to the node, with their arrival times.
    receipts: Mutex<VecDeque<(Instant, DeliveryId)>>,
    receipt_left: Notify,
}

#[derive(Clone)]
struct Node {
    handle: DispatchHandle,
    session: Session,
    sequence: Arc<Mutex<u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime's paused clock; its zero is the plan's beginning.
#[derive(Clone, Copy)]
struct Virtual(Instant);

impl Virtual {
    fn ms(self) -> Ms {
        BEGIN + i64::try_from(self.0.elapsed().as_millis()).unwrap_or(Ms::MAX)
    }

    fn at(self, ms: Ms) -> Instant {
        self.0 + Duration::from_millis(u64::try_from(ms - BEGIN).unwrap_or(0))
    }
}

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.ms())
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let ms = at.as_millis().min(self.ms() + i64::try_from(GIVE_UP.as_millis()).unwrap_or(0));
        Self::at(*self, ms)
    }
}

async fn drive(plan: RunPlan) -> RunOutcome {
    let seed = plan.seed;
    let mut disk = MemoryState::default();
    for lane in &plan.lanes {
        disk.put_lane(Arc::clone(&lane.settings));
    }
    let shared = Arc::new(Shared {
        wire: Mutex::new(SimulatedWire::new(&plan)),
        rng: Mutex::new(Rng::with_seed(seed ^ 0x44_52_49_56)),
        clock: Virtual(Instant::now()),
        disk: Mutex::new(disk),
        history: Mutex::default(),
        arrivals: Mutex::default(),
        arrived: Notify::new(),
        node: Mutex::default(),
        crash: Mutex::default(),
        crashed: Notify::new(),
        store_ms: Mutex::new(3),
        pauses: tokio::sync::Mutex::default(),
        receipts: Mutex::default(),
        receipt_left: Notify::new(),
        plan,
    });
    tokio::select! {
        biased;
        () = nodes(&shared) => {}
        () = outside(&shared) => {}
    }
    judge(&shared)
}

/// Runs the node, and restarts it after each crash.
async fn nodes(shared: &Arc<Shared>) {
    loop {
        let store = Arc::new(Slow(Arc::clone(shared)));
        lock(&shared.arrivals).clear();
        let start = lock(&shared.disk).open(shared.clock.now());
        let session = start.session;
        let mut dice = Rng::with_seed(shared.plan.seed ^ session.id);
        let dice = Box::new(move || Roll(dice.u64(..)));
        let wires = Wires { shared: Arc::clone(shared), under_way: FuturesUnordered::new() };
        let (driver, handle) = Driver::new(shared.plan.limits, start, store, wires, shared.clock, dice);
        *lock(&shared.node) = Some(Node { handle, session, sequence: Arc::new(Mutex::new(1)) });
        tokio::select! {
            biased;
            () = shared.crashed.notified() => {}
            ended = driver.run(CancellationToken::new()) => panic!("the loop ended by itself: {ended:?}"),
        }
        *lock(&shared.node) = None;
        let crash_now = outsider::crash(&lock(&shared.disk), &lock(&shared.wire).log, shared.clock.ms());
        lock(&shared.history).crashes.push(crash_now);
        let down = lock(&shared.crash).pop_front().unwrap_or(Duration::from_secs(1));
        sleep(down).await;
    }
}

/// Calls to the API that are under way.
type Calls = FuturesUnordered<BoxFuture<'static, ()>>;

/// Starts a call for each receipt that has left a receiver, made at its arrival time.
fn receipts(shared: &Arc<Shared>, calls: &Calls) {
    while let Some((at, delivery)) = lock(&shared.receipts).pop_front() {
        let shared = Arc::clone(shared);
        calls.push(Box::pin(async move {
            sleep_until(at).await;
            ask(&shared, What::Receipt(delivery.raw())).await;
        }));
    }
}

/// Runs the events of the plan, then waits until everything has ended.
async fn outside(shared: &Arc<Shared>) {
    let mut calls = Calls::new();
    let mut happenings: VecDeque<(Ms, Happening)> = shared.plan.happenings.iter().cloned().collect();
    let healed = shared.clock.at(shared.plan.healed_at);
    loop {
        let next = happenings.front().map_or(healed, |(at, _)| shared.clock.at(*at));
        tokio::select! {
            biased;
            Some(()) = calls.next(), if !calls.is_empty() => {}
            () = shared.receipt_left.notified() => receipts(shared, &calls),
            () = sleep_until(next) => {
                let Some((_, happening)) = happenings.pop_front() else { break };
                if let Happening::Crash(down) = happening {
                    if lock(&shared.node).is_some() {
                        lock(&shared.crash).push_back(down);
                        shared.crashed.notify_one();
                    }
                } else {
                    calls.push(Box::pin(happen(Arc::clone(shared), happening)));
                }
            }
        }
    }
    let give_up = Instant::now() + GIVE_UP;
    while Instant::now() < give_up && lock(&shared.disk).pending() > 0 {
        for resume in outsider::resume_everything(&shared.plan) {
            ask(shared, resume).await;
        }
        let rest = sleep(RESUME_EVERY);
        tokio::pin!(rest);
        loop {
            tokio::select! {
                biased;
                Some(()) = calls.next(), if !calls.is_empty() => {}
                () = shared.receipt_left.notified() => receipts(shared, &calls),
                () = &mut rest => break,
            }
        }
    }
    if lock(&shared.disk).pending() > 0 {
        lock(&shared.history).gave_up_at = Some(shared.clock.ms());
    }
}

async fn happen(shared: Arc<Shared>, happening: Happening) {
    match happening {
        Happening::Send(message) => send(&shared, &message).await,
        Happening::Cancel(ago) => {
            let cancel = outsider::cancel(&lock(&shared.history), ago);
            if let Some(cancel) = cancel {
                ask(&shared, cancel).await;
            }
        }
        Happening::EndLane(lane) => {
            let end = outsider::end_of_lane(&shared.plan, &lock(&shared.history), lane);
            ask(&shared, end).await;
        }
        Happening::Pause(kind, lane, wait) => {
            let id = outsider::paused(&shared.plan, kind, lane);
            ask(&shared, What::Pause(kind, id)).await;
            sleep(wait).await;
            ask(&shared, What::Resume(kind, id)).await;
        }
        Happening::Stall(each, length) => {
            *lock(&shared.store_ms) = u64::try_from(each.as_millis()).unwrap_or(1);
            sleep(length).await;
            *lock(&shared.store_ms) = 3;
        }
        Happening::Crash(_) | Happening::Fail(_) | Happening::Jump(_) | Happening::Erase(_) => {}
    }
}

async fn send(shared: &Arc<Shared>, message: &MessagePlan) {
    let Some(node) = lock(&shared.node).clone() else { return };
    let seq = {
        let mut sequence = lock(&node.sequence);
        *sequence += 1 + message.lanes.len() as u64;
        *sequence - 1 - message.lanes.len() as u64
    };
    let id = MessageId(Key::new(node.session.writer, seq));
    let handle = &node.handle;
    let spilling = |lane, tier| handle.is_spilling(lane, tier);
    let (accepted, sent) = outsider::compose(&shared.plan, message, id, shared.clock.now(), spilling);
    let index = {
        let mut history = lock(&shared.history);
        history.sent.push(SentMessage { called_at: shared.clock.ms(), ..sent });
        history.sent.len() - 1
    };
    let store = Slow(Arc::clone(shared));
    // A node that has crashed meanwhile does not answer its callers.
    if store.accept(node.session, vec![accepted]).await.is_ok() && is_alive(shared, node.session) {
        lock(&shared.history).sent[index].acked_at = Some(shared.clock.ms());
    }
}

fn is_alive(shared: &Shared, session: Session) -> bool {
    lock(&shared.node).as_ref().is_some_and(|node| node.session == session)
}

async fn ask(shared: &Arc<Shared>, what: What) {
    let Some(node) = lock(&shared.node).clone() else { return };
    let index = {
        let mut history = lock(&shared.history);
        history.asked.push(ApiCall { what, called_at: shared.clock.ms(), answered_at: None, done: false });
        history.asked.len() - 1
    };
    if let Ok(answer) = node.handle.ask(outsider::command(what)).await {
        let asked = &mut lock(&shared.history).asked[index];
        (asked.answered_at, asked.done) = (Some(shared.clock.ms()), answer != CommandReply::Nothing);
    }
}

fn judge(shared: &Shared) -> RunOutcome {
    let mut history = lock(&shared.history);
    let disk = lock(&shared.disk);
    let now = shared.clock.now();
    let ids: Vec<u64> = history.sent.iter().flat_map(|sent| &sent.deliveries).map(|new| new.id).collect();
    history.endings = ids.into_iter().map(|id| outsider::ending(&disk, id, now)).collect();
    history.requests = std::mem::take(&mut lock(&shared.wire).log);
    let fold = |trace: u64, value: u64| (trace ^ value).wrapping_mul(0x0000_0100_0000_01B3);
    let trace = history.requests.iter().fold(0, |trace, it| fold(fold(trace, it.delivery), it.left_at.cast_unsigned()));
    outsider::outcome(&shared.plan, &history, trace, 0)
}

/// The receivers as the driver's transport.
struct Wires {
    shared: Arc<Shared>,
    under_way: FuturesUnordered<BoxFuture<'static, (Option<usize>, Finished)>>,
}

impl Transport for Wires {
    fn send(&mut self, send: SendAttempt, now: Timestamp) {
        let (at, stamped, delivery) = (self.shared.clock.ms(), now.as_millis(), send.start.delivery);
        let recorded = outsider::recorded(&lock(&self.shared.disk), delivery, stamped);
        let fate = lock(&self.shared.wire).send(at, stamped, &send.start, recorded);
        self.under_way.push(Box::pin(async move {
            sleep(fate.after).await;
            (fate.request, Finished { delivery, verdict: fate.verdict, took: fate.after, excerpt: None })
        }));
        if let Some(after) = fate.receipt_after
            && outsider::wants_receipt(&lock(&self.shared.history), delivery)
        {
            lock(&self.shared.receipts).push_back((Instant::now() + after, delivery));
            self.shared.receipt_left.notify_one();
        }
    }

    async fn finished(&mut self) -> Vec<Finished> {
        match self.under_way.next().await {
            Some((request, finished)) => {
                if let Some(request) = request {
                    lock(&self.shared.wire).log[request].answered_at = Some(self.shared.clock.ms());
                }
                vec![finished]
            }
            None => std::future::pending().await,
        }
    }
}

/// A memory store with delays before and after each call.
struct Slow(Arc<Shared>);

impl Slow {
    async fn delay(&self) {
        let most = *lock(&self.0.store_ms);
        let wait = lock(&self.0.rng).u64(1..=most.max(1));
        sleep(Duration::from_millis(wait)).await;
    }

    /// Waits, performs the call, and waits again. A crash may come before, between or after.
    async fn slowly<T>(&self, act: impl FnOnce(&mut MemoryState) -> T) -> T {
        self.delay().await;
        let done = act(&mut lock(&self.0.disk));
        let wait = lock(&self.0.rng).u64(0..4);
        sleep(Duration::from_millis(wait)).await;
        done
    }
}

impl Outbox for Slow {
    async fn open(&self, at: Timestamp) -> Result<SessionStart, StoreError> {
        Ok(lock(&self.0.disk).open(at))
    }

    async fn accept(&self, session: Session, messages: Vec<Accepted>) -> Result<Vec<Acceptance>, StoreError> {
        self.slowly(|memory| {
            let (acceptances, arrivals) = memory.accept(session, messages)?;
            lock(&self.0.arrivals).extend(arrivals);
            self.0.arrived.notify_one();
            Ok(acceptances)
        })
        .await
    }

    async fn arrivals(&self) -> Vec<ArrivedDelivery> {
        loop {
            let arrivals: Vec<ArrivedDelivery> = lock(&self.0.arrivals).drain(..).collect();
            if !arrivals.is_empty() {
                return arrivals;
            }
            self.0.arrived.notified().await;
        }
    }

    async fn settle(&self, session: Session, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.slowly(|memory| memory.settle(session, settlements)).await
    }

    async fn spill(&self, session: Session, deliveries: Vec<DeliveryId>) -> Result<(), StoreError> {
        self.slowly(|memory| memory.spill(session, &deliveries)).await
    }

    async fn page(&self, query: Query, limit: u32, _now: Timestamp) -> Result<PendingPage, StoreError> {
        Ok(self.slowly(|memory| memory.page(query, limit)).await)
    }

    async fn lanes(&self, lanes: Vec<LaneId>) -> Result<Vec<Arc<LaneSettings>>, StoreError> {
        Ok(self.slowly(|memory| memory.lanes(&lanes)).await)
    }

    async fn cut(&self, session: Session, cut: Cut, by: Option<ApiKeyRef>) -> Result<u64, StoreError> {
        self.slowly(|memory| memory.cut(session, cut, by)).await
    }

    async fn sweep(&self, session: Session, sweep: Sweep, under_way: Vec<DeliveryId>) -> Result<SweptRows, StoreError> {
        self.slowly(|memory| memory.sweep(session, sweep, &under_way)).await
    }

    async fn uncut(&self, session: Session, scope: CutScope, at: Timestamp) -> Result<(), StoreError> {
        self.slowly(|memory| memory.uncut(session, scope, at)).await
    }

    async fn pause(&self, session: Session, pause: Pause, at: Timestamp) -> Result<(), StoreError> {
        let _in_order = self.0.pauses.lock().await;
        self.slowly(|memory| memory.pause(session, pause, at)).await
    }

    async fn resume(&self, session: Session, scope: PauseScope, act: AuditStamp) -> Result<(), StoreError> {
        let _in_order = self.0.pauses.lock().await;
        self.slowly(|memory| memory.resume(session, scope, act)).await
    }

    async fn reset(&self, session: Session, of: BreakerOf, how: Reset, act: AuditStamp) -> Result<(), StoreError> {
        self.slowly(|memory| memory.reset(session, of, how, act)).await
    }

    async fn remember(&self, session: Session, breakers: Vec<SoftBreaker>) -> Result<(), StoreError> {
        self.slowly(|memory| memory.remember(session, &breakers)).await
    }
}
