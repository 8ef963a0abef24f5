//! Carries out erasures step by step. The store keeps their progress, so that a restart continues them. Most of the
//! writer thread's time is left to other work.
//!
//! Invariant: a delivery is not erased while it is being sent or recorded; the loop lists those before each step.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::id::{Key, LaneId};
use posthaste_store::{Erasure, ErasureStep, Erasures, PauseScope, Session, StoreError};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::dispatch::driver::{DispatchHandle, EngineStopped};
use crate::dispatch::{Command, CommandReply, EndLane};
use crate::rest::{rest, wait};

/// The most erasures that take turns; later ones wait until one of these is done.
const TURNS_MAX: u32 = 64;
/// The pause after a step, in multiples of the step's duration.
const YIELD: u32 = 4;
/// The pause when an erasure waits for an attempt to end, or for a reader of the database file.
const WAIT: Duration = Duration::from_millis(200);
/// How often the store is polled without a notice, such as after a step that failed.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The task that carries out erasures.
#[derive(Debug)]
pub(crate) struct Eraser<S, C> {
    pub(crate) store: Arc<S>,
    pub(crate) session: Session,
    pub(crate) handle: DispatchHandle,
    pub(crate) clock: C,
    pub(crate) wakes: Arc<Wakes>,
}

#[derive(Debug, Default)]
pub(crate) struct Wakes {
    pub(crate) new: Notify,
    pub(crate) done: Notify,
}

/// Why a round ended early.
enum Stopped {
    Loop,
    Store(StoreError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<EngineStopped> for Stopped {
    fn from(_: EngineStopped) -> Self {
        Self::Loop
    }
}

impl<S: Erasures, C: Clock> Eraser<S, C> {
    /// Runs until `stop`, or until the store or the loop has stopped. A step that has begun is finished.
    pub(crate) async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let look_within = match self.round(&stop).await {
                Ok(Some(soonest)) => soonest,
                Ok(None) => LOOK_EVERY,
                Err(Stopped::Loop | Stopped::Store(StoreError::Stopped | StoreError::Fenced { .. })) => return,
                Err(Stopped::Store(error)) => {
                    tracing::warn!(%error, "erasure step failed; retrying in a minute");
                    LOOK_EVERY
                }
            };
            wait(timeout(look_within, self.wakes.new.notified()), &stop).await;
        }
    }

    /// Makes a step of each erasure. Returns how soon the next round is due; `None` when no erasure is left.
    async fn round(&self, stop: &CancellationToken) -> Result<Option<Duration>, Stopped> {
        let mut soonest = None;
        for erasure in self.store.unfinished_erasures(TURNS_MAX).await? {
            if stop.is_cancelled() {
                return Ok(None);
            }
            let begun = Instant::now();
            let Some(step) = self.step(erasure).await? else { continue };
            if step.erasure.done.is_some() {
                let Erasure { row, messages, deliveries, .. } = step.erasure;
                tracing::info!(audit_row = row, messages, deliveries, "erasure done");
                self.wakes.done.notify_waiters();
            }
            let wait = if step.waits { WAIT } else { Duration::ZERO };
            soonest = Some(soonest.map_or(wait, |soonest: Duration| soonest.min(wait)));
            rest(begun.elapsed() * YIELD, stop).await;
        }
        Ok(soonest)
    }

    async fn step(&self, erasure: Erasure) -> Result<Option<ErasureStep>, Stopped> {
        let under_way = match self.handle.ask(Command::UnderWay).await? {
            CommandReply::UnderWay(under_way) => under_way,
            _ => Vec::new(),
        };
        let step = self.store.erase_step(self.session, erasure.number, self.clock.now(), under_way).await?;
        for lane in step.iter().flat_map(|step| &step.lanes) {
            self.cut(*lane).await?;
        }
        Ok(step)
    }

    /// Ends everything that waits in the lane of an erased endpoint, and removes its pause.
    async fn cut(&self, lane: LaneId) -> Result<(), EngineStopped> {
        let end = EndLane { lane, upto: Key::MAX, cause: Cause::Erased, endpoint: None };
        self.handle.ask(Command::EndLane(end, None)).await?;
        let is_paused = self.handle.ask(Command::Paused(vec![lane])).await? != CommandReply::Paused(vec![None]);
        if is_paused {
            self.handle.ask(Command::Resume(PauseScope::Lane(lane), None)).await?;
        }
        Ok(())
    }
}
