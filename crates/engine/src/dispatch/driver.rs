//! The loop's shell: waits for the next event, passes it to [`Dispatch::step`] and carries out the
//! effects. It decides nothing; the branches of its `select!` only wait.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use posthaste_core::scheduler::Limits;
use posthaste_core::{EndpointId, IdSet, LaneId, LaneSettings, Roll, Tier, Timestamp};
use posthaste_store::{ArrivedDelivery, Outbox, Session, SessionStart, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{StoreCall, StoreReply, perform};
use super::{Command, CommandReply, Dispatch, Effect, Event, Finished, SendAttempt, Ticket};
use crate::Clock;

/// Commands that may be queued for the loop; the senders of more wait.
const COMMANDS_MAX: usize = 1_024;

/// How often the clock is compared with the wall clock.
const FOLLOW_EVERY: Duration = Duration::from_secs(60);

/// An offset above this between two comparisons is a jump of the wall clock, not drift.
const JUMP_MS: u64 = 1_000;

/// Makes attempts. Each call of [`Transport::send`] leads to exactly one [`Finished`]; the loop
/// bounds how many are under way.
pub trait Transport: Send {
    /// Begins an attempt. Does not wait.
    fn send(&mut self, send: SendAttempt, now: Timestamp);

    /// An endpoint has ended: evicts what is cached of it.
    fn endpoint_ended(&mut self, _endpoint: EndpointId) {}

    /// Waits for attempts that ended. Cancel safe: dropping the future loses none of them.
    fn finished(&mut self) -> impl Future<Output = Vec<Finished>> + Send;
}

/// The source of random numbers: with a fixed seed a run is repeatable.
pub type Dice = Box<dyn FnMut() -> Roll + Send>;

/// Sends commands to the loop from other tasks.
#[derive(Clone, Debug)]
pub struct DispatchHandle {
    commands: mpsc::Sender<(Command, oneshot::Sender<CommandReply>)>,
    spilling: Arc<RwLock<IdSet<(LaneId, Tier)>>>,
}

/// The loop has ended: the process is going down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine is shutting down; ask again after the restart")]
pub struct EngineStopped;

impl DispatchHandle {
    pub async fn ask(&self, command: Command) -> Result<CommandReply, EngineStopped> {
        let (answer, answered) = oneshot::channel();
        self.commands.send((command, answer)).await.map_err(|_| EngineStopped)?;
        answered.await.map_err(|_| EngineStopped)
    }

    /// Whether new rows of this queue must be stored as spilled.
    pub fn is_spilling(&self, lane: LaneId, tier: Tier) -> bool {
        self.spilling.read().unwrap_or_else(PoisonError::into_inner).contains(&(lane, tier))
    }
}

/// Adds the rules of their tenants to lane settings that were read from the store.
pub(crate) type LaneRules =
    Box<dyn Fn(Vec<Arc<LaneSettings>>) -> BoxFuture<'static, Result<Vec<Arc<LaneSettings>>, StoreError>> + Send + Sync>;

/// The dispatch loop with everything it needs to run.
pub struct Driver<S, T, C> {
    dispatch: Dispatch,
    start: Option<SessionStart>,
    store: Arc<S>,
    /// `None` where tenants have no rules.
    pub(crate) lane_rules: Option<LaneRules>,
    transport: T,
    clock: C,
    dice: Dice,
    commands: mpsc::Receiver<(Command, oneshot::Sender<CommandReply>)>,
    waiting: BTreeMap<Ticket, oneshot::Sender<CommandReply>>,
    tickets: u64,
    refused_moves: u64,
    spilling: Arc<RwLock<IdSet<(LaneId, Tier)>>>,
}

impl<S: Outbox, T: Transport, C: Clock> Driver<S, T, C> {
    /// A loop over this store, transport and clock, and the handle for its commands.
    pub fn new(
        limits: Limits,
        start: SessionStart,
        store: Arc<S>,
        transport: T,
        clock: C,
        dice: Dice,
    ) -> (Self, DispatchHandle) {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let spilling = Arc::new(RwLock::default());
        let handle = DispatchHandle { commands: sender, spilling: Arc::clone(&spilling) };
        let dispatch = Dispatch::new(limits, start.session);
        let driver = Self {
            dispatch,
            start: Some(start),
            store,
            lane_rules: None,
            transport,
            clock,
            dice,
            commands,
            waiting: BTreeMap::new(),
            tickets: 0,
            refused_moves: 0,
            spilling,
        };
        (driver, handle)
    }

    /// Runs until `stop`, then waits until the attempts in flight have ended and are recorded.
    ///
    /// An error means that the store has stopped or belongs to another session: nothing more may
    /// be sent.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        let (store, lane_rules) = (Arc::clone(&self.store), self.lane_rules.take());
        let session = self.start.as_ref().expect("a driver runs once").session;
        let mut calls = FuturesUnordered::new();
        let mut effects = Vec::new();
        let mut event = Event::Started(Box::new(self.start.take().expect("a driver runs once")));
        let mut stopping = false;
        let mut follow_at = Instant::now() + FOLLOW_EVERY;
        let timer = tokio::time::sleep_until(follow_at);
        tokio::pin!(timer);
        loop {
            // Arrivals of answered accepts are handled before a delivery is picked: deliveries that
            // they superseded must not be sent any more. Arrivals keep their order.
            if !matches!(event, Event::Started(_) | Event::Arrived(_))
                && let Some(arrivals) = store.arrivals().now_or_never()
            {
                self.dispatch.step(self.clock.now(), (self.dice)(), arrived(arrivals)?, &mut effects);
            }
            self.dispatch.step(self.clock.now(), (self.dice)(), event, &mut effects);
            self.publish_spilling();
            self.report_refused_moves();
            for effect in effects.drain(..) {
                match effect {
                    Effect::Send(send) => self.transport.send(send, self.clock.now()),
                    Effect::Store(call) => calls.push(called(&store, lane_rules.as_ref(), session, call)),
                    Effect::Answer(ticket, answer) => self.answer(ticket, answer),
                }
            }
            if self.dispatch.is_drained() {
                return Ok(());
            }
            let wake = self.dispatch.wake_at().map_or(follow_at, |at| self.clock.instant(at).min(follow_at));
            if timer.deadline() != wake {
                timer.as_mut().reset(wake);
            }
            event = tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    Event::Drain
                }
                Some(reply) = calls.next(), if !calls.is_empty() => self.replied(reply?),
                finished = self.transport.finished() => Event::Finished(finished),
                Some((command, answer)) = self.commands.recv() => self.ticket(command, answer),
                arrivals = store.arrivals() => arrived(arrivals)?,
                () = &mut timer => {
                    if wake == follow_at {
                        follow_at += FOLLOW_EVERY;
                        self.follow();
                    }
                    Event::Woke
                }
            };
        }
    }

    /// Logs state changes that the table of states refused. Each is a bug in Posthaste; the delivery kept its state.
    fn report_refused_moves(&mut self) {
        let refused = self.dispatch.scheduler.refused_moves();
        if refused > self.refused_moves {
            tracing::error!(refused, "refused an impossible state change of a delivery; please report this bug");
            self.refused_moves = refused;
        }
    }

    /// Lets the clock follow the wall clock, and logs a jump of the wall clock.
    fn follow(&self) {
        let off_ms = self.clock.follow();
        if off_ms.unsigned_abs() > JUMP_MS {
            tracing::warn!(off_ms, "the wall clock has jumped; due times follow it slowly");
        }
    }

    fn replied(&mut self, reply: StoreReply) -> Event {
        if let StoreReply::Cut { endpoint: Some(endpoint), .. } = reply {
            self.transport.endpoint_ended(endpoint);
        }
        Event::Replied(reply)
    }

    fn ticket(&mut self, command: Command, answer: oneshot::Sender<CommandReply>) -> Event {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiting.insert(ticket, answer);
        Event::Command(ticket, command)
    }

    fn answer(&mut self, ticket: Ticket, answer: CommandReply) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            // The caller may have stopped waiting; the work is done all the same.
            let _ = waiting.send(answer);
        }
    }

    fn publish_spilling(&mut self) {
        let changes = self.dispatch.scheduler.take_spilling_changes();
        if changes.is_empty() {
            return;
        }
        let mut spilling = self.spilling.write().unwrap_or_else(PoisonError::into_inner);
        for (lane, tier, spills) in changes {
            if spills {
                spilling.insert((lane, tier));
            } else {
                spilling.remove(&(lane, tier));
            }
        }
    }
}

/// The event for these arrivals; an empty list means that the store has stopped.
fn arrived(arrivals: Vec<ArrivedDelivery>) -> Result<Event, StoreError> {
    if arrivals.is_empty() { Err(StoreError::Stopped) } else { Ok(Event::Arrived(arrivals)) }
}

/// Makes a call. A read that fails is repeated later, and so is a sweep, which begins with a read. A
/// write that fails ends the loop, since it is not known whether it was stored.
async fn called<S: Outbox>(
    store: &Arc<S>,
    lane_rules: Option<&LaneRules>,
    session: Session,
    call: StoreCall,
) -> Result<StoreReply, StoreError> {
    let again = matches!(call, StoreCall::Page(..) | StoreCall::Lanes(_) | StoreCall::Sweep(..)).then(|| call.clone());
    let mut reply = perform(store.as_ref(), session, call).await;
    if let (Ok(StoreReply::Lanes(_, found)), Some(add_rules)) = (&mut reply, lane_rules) {
        match add_rules(std::mem::take(found)).await {
            Ok(ruled) => *found = ruled,
            Err(error) => reply = Err(error),
        }
    }
    match (reply, again) {
        (Err(error @ StoreError::Database { .. }), Some(call)) => {
            tracing::warn!(%error, "store read failed; retrying in a second");
            Ok(StoreReply::Failed(call))
        }
        (reply, _) => reply,
    }
}
