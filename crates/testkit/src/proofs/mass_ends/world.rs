//! A seeded store under the dispatch loop: the seeded lanes, whose rows the requests end, and other lanes with a steady
//! load.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use posthaste_core::scheduler::{Limits, Order};
use posthaste_core::{IdRange, LaneId, RowIndex, TenantId, Tier, Timestamp};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::dispatch::driver::DispatchHandle;
use posthaste_engine::dispatch::{Command, CommandReply};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Archive, AuditStamp, BoundedCount, DeadLetterFilter, DeadLetters, Outbox, Pause, PauseScope, Query, Session,
    StoreError,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{Loopback, MessageMint, SeedShape, SeededTarget, put_endpoints, seeder, taken, wait};
use crate::master_key;
use crate::prove::CannotRun;

/// The other lanes.
const OTHERS: std::ops::Range<u64> = 10_000..10_050;
/// Messages of the other lanes under way at once.
const UNDER_WAY: usize = 256;
const ATTEMPT: Duration = Duration::from_millis(2);
/// The timeout of every wait; far longer than any of them takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// The store, the loop, and the counts of the transport.
pub(super) struct MassEndsWorld {
    pub(super) store: Arc<Sqlite>,
    session: Session,
    lanes: BTreeSet<LaneId>,
    handle: DispatchHandle,
    counts: Arc<Counts>,
    mint: Arc<MessageMint>,
    running: JoinSet<Result<(), StoreError>>,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

struct Counts {
    mine: AtomicU64,
    others: AtomicU64,
    /// One permit for each further message of the other lanes that may be under way.
    room: Semaphore,
    works: AtomicBool,
}

/// The answer to a request that ends deliveries.
pub(super) struct MassEnd {
    pub(super) took: Duration,
    pub(super) ended: u64,
    pub(super) in_flight: u64,
    /// Attempts of the seeded lanes before the answer.
    pub(super) sent_before: u64,
}

impl MassEndsWorld {
    /// Starts the loop, and pauses the seeded lanes.
    pub(super) async fn start(shape: SeedShape) -> Result<Self, CannotRun> {
        let lanes: BTreeSet<LaneId> = shape.targets().map(|n| SeededTarget(n).lane()).collect();
        let folder = tokio::task::block_in_place(|| seeder::copy(shape))?;
        let store = Arc::new(Sqlite::open_folder(folder.path(), master_key())?);
        let start = store.open(SystemClock::new().now()).await?;
        let session = start.session;
        put_endpoints(&store, session, OTHERS).await?;
        let counts = Arc::new(Counts {
            mine: AtomicU64::new(0),
            others: AtomicU64::new(0),
            room: Semaphore::new(UNDER_WAY),
            works: AtomicBool::new(false),
        });
        let (seen, mine) = (Arc::clone(&counts), lanes.clone());
        let receive = move |send: &posthaste_engine::dispatch::SendAttempt, _: &posthaste_store::Message| {
            if mine.contains(&send.start.lane) {
                seen.mine.fetch_add(1, Ordering::SeqCst);
            } else {
                seen.others.fetch_add(1, Ordering::SeqCst);
                seen.room.add_permits(1);
            }
            taken()
        };
        let transport = Loopback::new(Arc::clone(&store), ATTEMPT, Box::new(receive));
        let (driver, handle) = transport.drive(Limits::default(), start, SystemClock::new(), 1);
        let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
        running.spawn(driver.run(stop.clone()));
        let mint = Arc::new(MessageMint::new(session, OTHERS, RowIndex::Ready));
        let world = Self { store, session, lanes, handle, counts, mint, running, stop, _folder: folder };
        world.for_all_lanes(|scope| Command::Pause(Pause::new(scope, None))).await?;
        Ok(world)
    }

    pub(super) async fn resume(&self) -> Result<(), CannotRun> {
        self.for_all_lanes(|scope| Command::Resume(scope, None)).await
    }

    /// Sends a command for each seeded lane.
    async fn for_all_lanes(&self, command: impl Fn(PauseScope) -> Command) -> Result<(), CannotRun> {
        let asks = self.lanes.iter().map(|lane| self.ask(command(PauseScope::Lane(*lane))));
        join_all(asks).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    async fn ask(&self, command: Command) -> Result<CommandReply, CannotRun> {
        Ok(self.handle.ask(command).await?)
    }

    /// Attempts of the seeded lanes so far.
    pub(super) fn sent(&self) -> u64 {
        self.counts.mine.load(Ordering::SeqCst)
    }

    pub(super) async fn waits_until_sent(&self, count: u64) -> Result<(), CannotRun> {
        wait("the first attempts", PATIENCE, async || Ok(self.sent() >= count)).await.map(drop)
    }

    /// Makes a request that ends deliveries.
    pub(super) async fn asks(&self, command: Command) -> Result<MassEnd, CannotRun> {
        let began = Instant::now();
        let answer = self.ask(command).await?;
        let (took, sent_before) = (began.elapsed(), self.sent());
        match answer {
            CommandReply::Ended { ended, in_flight } => Ok(MassEnd { took, ended, in_flight, sent_before }),
            answer => Err(CannotRun(format!("an end was answered with {answer:?}"))),
        }
    }

    /// Deliveries per second of the other lanes, in each slice.
    pub(super) async fn others(&self, slices: usize, slice: Duration) -> Result<Vec<f64>, CannotRun> {
        let work = self.others_work();
        let rates = async {
            let mut rates = Vec::new();
            // The first slice is a warm-up.
            for round in 0..=slices {
                let (began, before) = (Instant::now(), self.counts.others.load(Ordering::SeqCst));
                tokio::time::sleep(slice).await;
                let count = self.counts.others.load(Ordering::SeqCst) - before;
                if round > 0 {
                    rates.push(count as f64 / began.elapsed().as_secs_f64());
                }
            }
            self.counts.works.store(false, Ordering::SeqCst);
            rates
        };
        self.counts.works.store(true, Ordering::SeqCst);
        let (work, rates) = tokio::join!(work, rates);
        work?;
        Ok(rates)
    }

    /// Accepts messages for the other lanes while `works` is set.
    async fn others_work(&self) -> Result<(), CannotRun> {
        let mut accepts = JoinSet::new();
        for _ in 0..UNDER_WAY {
            let (store, session) = (Arc::clone(&self.store), self.session);
            let (mint, counts) = (Arc::clone(&self.mint), Arc::clone(&self.counts));
            accepts.spawn(async move {
                while counts.works.load(Ordering::SeqCst) {
                    // The transport adds a permit when the message has arrived.
                    let Ok(room) = counts.room.acquire().await else { break };
                    room.forget();
                    store.accept(session, vec![mint.message()]).await?;
                }
                Ok::<(), StoreError>(())
            });
        }
        while let Some(ended) = accepts.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Waits until nothing is pending in the seeded lanes. Returns how long it took.
    pub(super) async fn waits_until_swept(&self) -> Result<Duration, CannotRun> {
        let swept = async || {
            for lane in self.lanes.iter().copied() {
                let query = Query::Spilled { lane, tier: Tier::Promotional, order: Order::Strict, span: IdRange::ALL };
                if !self.store.page(query, 1, Timestamp::MAX).await?.rows.is_empty() {
                    return Ok(false);
                }
            }
            Ok(self.left().await? == 0)
        };
        wait("the end of the sweep", PATIENCE, swept).await
    }

    /// How many deliveries are pending in the seeded lanes.
    pub(super) async fn left(&self) -> Result<u64, StoreError> {
        let mut left = 0;
        for lane in &self.lanes {
            left += self.store.waiting(*lane).await?.total();
        }
        Ok(left)
    }

    /// Purges dead letters.
    pub(super) async fn purges(
        &self,
        tenant: TenantId,
        filter: DeadLetterFilter,
    ) -> Result<(Duration, BoundedCount), CannotRun> {
        let began = Instant::now();
        let count = self
            .store
            .purge_dead_letters(self.session, tenant, filter, AuditStamp::at(SystemClock::new().now()))
            .await?;
        Ok((began.elapsed(), count))
    }

    /// Deliveries per second of the other lanes while purged dead letters are swept, for a twentieth of the time, as
    /// the loop does it.
    pub(super) async fn others_while_purged(&self, slices: usize, slice: Duration) -> Result<Vec<f64>, CannotRun> {
        let sweep = async {
            loop {
                let began = Instant::now();
                self.store.sweep_dead_letters(self.session).await?;
                tokio::time::sleep(19 * began.elapsed()).await;
            }
        };
        tokio::select! {
            biased;
            rates = self.others(slices, slice) => rates,
            ended = sweep => ended,
        }
    }

    /// Sweeps all purged dead letters. Returns how many were removed.
    pub(super) async fn purges_on(&self) -> Result<u64, CannotRun> {
        let mut removed = 0;
        loop {
            let swept = self.store.sweep_dead_letters(self.session).await?;
            removed += swept.removed;
            if !swept.more {
                return Ok(removed);
            }
        }
    }

    pub(super) async fn stop(mut self) -> Result<(), CannotRun> {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        self.store.close().await;
        Ok(())
    }
}
