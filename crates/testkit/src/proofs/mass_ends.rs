//! The proof `mass-ends`: a request that ends millions of deliveries is answered at once, none of them is sent after
//! the answer, and the sweep of their rows hardly slows down other tenants.
//!
//! The production dispatch loop runs over a store, with a transport that counts. There are four requests, each for the
//! same number of rows: an unsubscribe, the cancel of one message whose fan-out is under way, the end of an endpoint,
//! and the purge of the dead letters that it left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use posthaste_core::scheduler::{Limits, Order};
use posthaste_core::{Cause, EndpointChange, IdRange, Key, LaneId, RowIndex, TenantId, Tier, Timestamp};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::dispatch::driver::DispatchHandle;
use posthaste_engine::dispatch::{Command, CommandReply, EndLane};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Archive, AuditStamp, BoundedCount, DeadLetterFilter, DeadLetters, JobQuery, Jobs, ListOrder, Outbox, Pause,
    PauseScope, Query, Session, StoreError,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{
    Loopback, MessageMint, Of, SeedShape, SeededTarget, campaign, median, put_endpoints, runtime, seeder, taken, wait,
};
use crate::master_key;
use crate::prove::{CannotRun, Figure, Findings, Options};

const ANSWER_BAR_MS: f64 = 50.0;
const RATE_BAR: f64 = 0.9;

const ROWS: u64 = 5_000_000;
const ROWS_QUICK: u64 = 100_000;
/// How many slices each measurement of the other tenants has.
const SLICES: usize = 20;
const SLICES_QUICK: usize = 6;
const SLICE: Duration = Duration::from_millis(200);
/// How often each request is made. The median of the times counts, because a commit of others may be under way.
const ASKED: usize = 5;

/// The lanes of the one message, each of which gets it many times. A lane for each delivery would need as many
/// endpoints.
const CAMPAIGN_LANES: u64 = 100;
/// Deliveries of a job that the store counts before it answers.
const COUNTED: u64 = 20_000;

/// A request that ends deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MassEnd {
    Unsubscribe,
    EndpointGone,
    Cancel,
}

impl MassEnd {
    fn name(self) -> &'static str {
        match self {
            Self::Unsubscribe => "unsubscribe",
            Self::EndpointGone => "endpoint_gone",
            Self::Cancel => "cancel",
        }
    }

    fn shape(self, rows: u64) -> SeedShape {
        match self {
            Self::Cancel => SeedShape { rows, lanes: CAMPAIGN_LANES, of: Of::OneMessage },
            Self::Unsubscribe | Self::EndpointGone => SeedShape { rows, lanes: 1, of: Of::Messages },
        }
    }

    fn command(self) -> Command {
        let lane = SeededTarget(0).lane();
        let end = |cause, endpoint| Command::EndLane(EndLane { lane, upto: Key::MAX, cause, endpoint }, None);
        match self {
            Self::Unsubscribe => end(Cause::Unsubscribed, None),
            Self::EndpointGone => end(Cause::EndpointGone, Some((SeededTarget(0).endpoint().id, EndpointChange::Gone))),
            Self::Cancel => Command::Cancel(campaign(), None),
        }
    }

    /// The least number of ended deliveries that its answer must report.
    fn min_reported(self, rows: u64) -> u64 {
        let counted = if self == Self::Cancel { COUNTED.min(rows) } else { rows };
        counted * 9 / 10
    }
}

pub fn run(options: &Options) -> Findings {
    let (rows, slices) = if options.quick { (ROWS_QUICK, SLICES_QUICK) } else { (ROWS, SLICES) };
    let runtime = runtime()?;
    let mut figures = Vec::new();
    for end in [MassEnd::Unsubscribe, MassEnd::Cancel, MassEnd::EndpointGone] {
        figures.extend(runtime.block_on(ends(rows, slices, end))?);
    }
    Ok(figures.into_iter().map(|figure| figure.by_the_clock(options)).collect())
}

/// Measures a request on this many rows, and the purge of the dead letters if it leaves any.
async fn ends(rows: u64, slices: usize, what: MassEnd) -> Findings {
    let world = MassEndsWorld::start(what.shape(rows)).await?;
    let before = median(&mut world.others(slices, SLICE).await?);
    world.resume().await?;
    world.waits_until_sent(100).await?;
    let end = world.asks(what.command()).await?;
    let mut took = vec![millis(end.took)];
    for _ in 1..ASKED {
        took.push(millis(world.asks(what.command()).await?.took));
    }
    let meanwhile = median(&mut world.others(slices, SLICE).await?);
    let swept = world.waits_until_swept().await?;
    let beyond = world.sent().saturating_sub(end.sent_before + end.in_flight);
    let name = what.name();
    eprintln!(
        "{name}: answered in {took:.1?} ms, {} ended, {} in flight, then swept in {:.1} s",
        end.ended,
        end.in_flight,
        swept.as_secs_f64()
    );
    let jobs = world.store.jobs(JobQuery::Running, None, 1).await?.len();
    let left = world.left().await? + jobs as u64;
    let mut figures = vec![
        Figure::at_most(&format!("{name}_answered"), median(&mut took), "ms", ANSWER_BAR_MS),
        Figure::at_least(&format!("{name}_ended"), end.ended as f64, "deliveries", what.min_reported(rows) as f64),
        Figure::at_most(&format!("{name}_sent_after"), beyond as f64, "deliveries", 0.0),
        Figure::at_most(&format!("{name}_left"), left as f64, "rows", 0.0),
    ];
    let mut purged = None;
    if what == MassEnd::EndpointGone {
        let (purge, rate) = purge(&world, slices).await?;
        figures.extend(purge);
        purged = Some(rate);
    }
    let after = median(&mut world.others(slices, SLICE).await?);
    world.stop().await?;
    eprintln!("  others: {before:.0} deliveries/s before, {meanwhile:.0} beside the sweep, {after:.0} after");
    // Other work of the machine comes and goes: compare with the slower of the two measurements without a sweep.
    let alone = before.min(after);
    figures.push(Figure::at_least(&format!("{name}_others_rate"), meanwhile / alone, "of 1", RATE_BAR));
    figures.extend(purged.map(|rate| Figure::at_least("purge_others_rate", rate / alone, "of 1", RATE_BAR)));
    Ok(figures)
}

/// Measures the purge of all dead letters of the endpoint. Returns its figures, and the rate of other tenants
/// meanwhile.
async fn purge(world: &MassEndsWorld, slices: usize) -> Result<(Vec<Figure>, f64), CannotRun> {
    let target = SeededTarget(0);
    let filter = DeadLetterFilter { endpoint: Some(target.endpoint().id), ..DeadLetterFilter::of(target.tenant()) };
    let (took, counted) = world.purges(target.tenant(), filter.clone()).await?;
    let listed = world.store.dead_letters(filter.clone(), ListOrder::NewestFirst, None, 10).await?;
    let rate = median(&mut world.others_while_purged(slices, SLICE).await?);
    let removed = world.purges_on().await?;
    eprintln!(
        "purge: answered in {:.1} ms, {counted:?} and more behind it, {removed} removed afterwards",
        millis(took)
    );
    let left = world.store.count_dead_letters(filter).await?;
    let figures = vec![
        Figure::at_most("purge_answered", millis(took), "ms", ANSWER_BAR_MS),
        Figure::at_most("purge_listed_after", listed.letters.len() as f64, "dead letters", 0.0),
        Figure::at_most(
            "purge_left",
            f64::from(u8::from(left != posthaste_store::BoundedCount::Exactly(0))),
            "of 1",
            0.0,
        ),
    ];
    Ok((figures, rate))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The other lanes.
const OTHERS: std::ops::Range<u64> = 10_000..10_050;
/// Messages of the other lanes under way at once.
const UNDER_WAY: usize = 256;
const ATTEMPT: Duration = Duration::from_millis(2);
/// The timeout of every wait; far longer than any of them takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// The store, the loop, and the counts of the transport.
struct MassEndsWorld {
    store: Arc<Sqlite>,
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
struct EndReply {
    took: Duration,
    ended: u64,
    in_flight: u64,
    /// Attempts of the seeded lanes before the answer.
    sent_before: u64,
}

impl MassEndsWorld {
    /// Starts the loop, and pauses the seeded lanes.
    async fn start(shape: SeedShape) -> Result<Self, CannotRun> {
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

    async fn resume(&self) -> Result<(), CannotRun> {
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
    fn sent(&self) -> u64 {
        self.counts.mine.load(Ordering::SeqCst)
    }

    async fn waits_until_sent(&self, count: u64) -> Result<(), CannotRun> {
        wait("the first attempts", PATIENCE, async || Ok(self.sent() >= count)).await.map(drop)
    }

    /// Makes a request that ends deliveries.
    async fn asks(&self, command: Command) -> Result<EndReply, CannotRun> {
        let began = Instant::now();
        let answer = self.ask(command).await?;
        let (took, sent_before) = (began.elapsed(), self.sent());
        match answer {
            CommandReply::Ended { ended, in_flight } => Ok(EndReply { took, ended, in_flight, sent_before }),
            answer => Err(CannotRun(format!("an end was answered with {answer:?}"))),
        }
    }

    /// Deliveries per second of the other lanes, in each slice.
    async fn others(&self, slices: usize, slice: Duration) -> Result<Vec<f64>, CannotRun> {
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
    async fn waits_until_swept(&self) -> Result<Duration, CannotRun> {
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
    async fn left(&self) -> Result<u64, StoreError> {
        let mut left = 0;
        for lane in &self.lanes {
            left += self.store.waiting(*lane).await?.total();
        }
        Ok(left)
    }

    /// Purges dead letters.
    async fn purges(&self, tenant: TenantId, filter: DeadLetterFilter) -> Result<(Duration, BoundedCount), CannotRun> {
        let began = Instant::now();
        let count = self
            .store
            .purge_dead_letters(self.session, tenant, filter, AuditStamp::at(SystemClock::new().now()))
            .await?;
        Ok((began.elapsed(), count))
    }

    /// Deliveries per second of the other lanes while purged dead letters are swept, for a twentieth of the time, as
    /// the loop does it.
    async fn others_while_purged(&self, slices: usize, slice: Duration) -> Result<Vec<f64>, CannotRun> {
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
    async fn purges_on(&self) -> Result<u64, CannotRun> {
        let mut removed = 0;
        loop {
            let swept = self.store.sweep_dead_letters(self.session).await?;
            removed += swept.removed;
            if !swept.more {
                return Ok(removed);
            }
        }
    }

    async fn stop(mut self) -> Result<(), CannotRun> {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        self.store.close().await;
        Ok(())
    }
}
