//! The proof `store-backlog`: with millions of pending rows a delivery costs hardly more, a start takes no longer, and
//! no page of a list is slow.
//!
//! Two stores take turns in short slices of one run, one with the backlog and one with ten thousand rows; their
//! medians are compared. The store with the backlog is then killed under load, in a separate process, and opened
//! again. Another process sweeps, lists, replays and purges a tenth of it, and its memory is measured. Then every list
//! is timed. Another store, in which most deliveries ended long ago, is used to measure the size of the file after
//! retention.

mod pages;
pub mod streams;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use posthaste_core::RowIndex;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, Outbox, Retention, RetentionStep, Session};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::fixtures::{
    Busy, BusySlice, ChildProcess, Cpu, MessageMint, Of, SeedShape, YOUNG, end_with_input, median, put_endpoints,
    runtime, seeder,
};
use crate::master_key;
use crate::prove::{CannotRun, Figure, Findings, Options};

const CPU_BAR: f64 = 1.35;
const RATE_BAR: f64 = 0.9;
const OPEN_BAR_MS: f64 = 1_000.0;
const PAGE_BAR_MS: f64 = 50.0;
const MEMORY_BAR_MIB: f64 = 128.0;
const FILE_BAR: f64 = 1.3;

/// How many lanes the rows are spread over.
const LANES: u64 = 1_000;
const FEW: SeedShape = SeedShape { rows: 10_000, lanes: LANES, of: Of::Messages };
const MANY: SeedShape = SeedShape { rows: 5_000_000, lanes: LANES, of: Of::Messages };
const MANY_QUICK: SeedShape = SeedShape { rows: 100_000, lanes: LANES, of: Of::Messages };
/// Concurrent callers, which make group commits of some 128 rows.
const CALLERS: usize = 128;
const ROUNDS: usize = 16;
const ROUNDS_QUICK: usize = 6;
const SLICE: Duration = Duration::from_millis(500);
/// The time before measuring, for caches to fill and the log to reach its working size.
const WARM_UP: Duration = Duration::from_secs(1);
/// How often the process is killed; the slowest start counts.
const KILLS: usize = 3;

/// The line printed by the process that will be killed once it is at work.
const AT_WORK: &str = "at work";

/// The process that is killed. It accepts and settles until then.
pub(crate) fn accept_until_killed(folder: &Path) -> Result<(), CannotRun> {
    end_with_input();
    runtime()?.block_on(async {
        let mut busy = Busy::start(folder, CALLERS).await?;
        busy.slice(Duration::from_millis(300)).await?;
        println!("{AT_WORK}");
        io::stdout().flush()?;
        loop {
            busy.slice(Duration::from_secs(60)).await?;
        }
    })
}

pub fn run(options: &Options) -> Findings {
    let (many, rounds) = if options.quick { (MANY_QUICK, ROUNDS_QUICK) } else { (MANY, ROUNDS) };
    let runtime = runtime()?;
    let (few, folder) = (seeder::copy(FEW)?, seeder::copy(many)?);
    let (cpu, rate) = runtime.block_on(compare(few.path(), folder.path(), rounds))?;
    let opened = opened_after_kill(&runtime, folder.path())?;
    let memory = streams::peak(folder.path())?;
    let pages = runtime.block_on(pages::time(folder.path()))?;
    drop((few, folder));
    let file = runtime.block_on(to_fresh(SeedShape { of: Of::Aged, ..many }))?;
    let figures = [
        Figure::at_most("cpu_a_delivery_to_few_pending", cpu, "of 1", CPU_BAR),
        Figure::at_least("rate_to_few_pending", rate, "of 1", RATE_BAR),
        Figure::at_most("open_and_accept_after_kill", opened.as_secs_f64() * 1e3, "ms", OPEN_BAR_MS),
        Figure::at_most("slowest_page", pages.slowest(), "ms", PAGE_BAR_MS),
        Figure::at_most("median_page", pages.median(), "ms", PAGE_BAR_MS),
    ];
    let mut figures: Vec<Figure> = figures.into_iter().map(|figure| figure.by_the_clock(options)).collect();
    figures.push(Figure::at_most("peak_memory_above_idle", memory, "MiB", MEMORY_BAR_MIB));
    figures.push(Figure::at_most("file_after_retention_to_fresh", file, "of 1", FILE_BAR));
    Ok(figures)
}

/// CPU time per delivery and deliveries per second with many pending rows, each as a multiple of those with few.
async fn compare(few: &Path, many: &Path, rounds: usize) -> Result<(f64, f64), CannotRun> {
    let mut sides = [Side::start(few).await?, Side::start(many).await?];
    for side in &mut sides {
        side.busy.slice(WARM_UP).await?;
    }
    for _ in 0..rounds {
        for side in &mut sides {
            side.round().await?;
        }
    }
    let [(few_cpu, few_rate), (many_cpu, many_rate)] = sides.each_mut().map(Side::medians);
    eprintln!("few pending: {few_cpu:.1} µs of CPU a delivery, {few_rate:.0} deliveries/s");
    eprintln!("many pending: {many_cpu:.1} µs of CPU a delivery, {many_rate:.0} deliveries/s");
    for side in sides {
        side.busy.stop().await;
    }
    Ok((many_cpu / few_cpu, many_rate / few_rate))
}

/// One of the two stores.
struct Side {
    busy: Busy,
    cpu: Vec<f64>,
    rates: Vec<f64>,
}

impl Side {
    async fn start(folder: &Path) -> Result<Self, CannotRun> {
        Ok(Self { busy: Busy::start(folder, CALLERS).await?, cpu: Vec::new(), rates: Vec::new() })
    }

    async fn round(&mut self) -> Result<(), CannotRun> {
        let before = Cpu::now()?;
        let slice = self.busy.slice(SLICE).await?;
        let spent = Cpu::now()?.since(&before).all();
        self.cpu.push(spent.as_secs_f64() * 1e6 / slice.deliveries.max(1) as f64);
        self.rates.push(BusySlice::rate(&slice));
        Ok(())
    }

    fn medians(&mut self) -> (f64, f64) {
        (median(&mut self.cpu), median(&mut self.rates))
    }
}

/// The longest time, of several runs, to open the store and accept a message after a `kill -9` under load.
fn opened_after_kill(runtime: &Runtime, folder: &Path) -> Result<Duration, CannotRun> {
    let mut slowest = Duration::ZERO;
    for _ in 0..KILLS {
        at_work(folder)?.kill()?;
        let began = Instant::now();
        let store = Sqlite::open_folder(folder, master_key())?;
        runtime.block_on(async {
            let session = store.open(YOUNG).await?.session;
            let mint = MessageMint::new(session, 0..LANES, RowIndex::Ready);
            store.accept(session, vec![mint.message()]).await.map(drop)
        })?;
        let took = began.elapsed();
        eprintln!("open and accepting {:.0} ms after a kill", took.as_secs_f64() * 1e3);
        slowest = slowest.max(took);
        runtime.block_on(store.close());
    }
    Ok(slowest)
}

/// Starts the process that will be killed, and waits until it is at work.
fn at_work(folder: &Path) -> Result<ChildProcess, CannotRun> {
    let mut child = ChildProcess::start("backlog-node", [folder])?;
    child.until(|line| line == AT_WORK)?;
    thread::sleep(Duration::from_millis(500));
    Ok(child)
}

/// The size of the file after retention, as a multiple of that of a fresh store with the same rows. Four fifths of an
/// aged store are past their retention; a retention run deletes them and gives their space back.
async fn to_fresh(shape: SeedShape) -> Result<f64, CannotRun> {
    let folder = tokio::task::block_in_place(|| seeder::copy(shape))?;
    let store = Sqlite::open_folder(folder.path(), master_key())?;
    let session = store.open(YOUNG).await?.session;
    let (began, full) = (Instant::now(), bytes(folder.path(), "posthaste.db")?);
    let (steps, longest) = retain(&store, session).await?;
    let (took, log) = (began.elapsed(), bytes(folder.path(), "posthaste.db-wal")?);
    store.close().await;
    let left = bytes(folder.path(), "posthaste.db")? + bytes(folder.path(), "posthaste.db-wal")?;
    drop(folder);
    let fresh = fresh(shape).await?;
    eprintln!(
        "retention: of {} MiB {} left, after {steps} steps in {:.0} s, the longest {:.0} ms, the log then {} MiB; a \
         fresh store has {} MiB",
        full >> 20,
        left >> 20,
        took.as_secs_f64(),
        longest.as_secs_f64() * 1e3,
        log >> 20,
        fresh >> 20
    );
    Ok(left as f64 / fresh as f64)
}

/// Makes a complete retention run, one hour after the last accept. Returns its number of steps, and the time of the
/// longest.
async fn retain(store: &Sqlite, session: Session) -> Result<(u64, Duration), CannotRun> {
    let now = YOUNG + Duration::from_secs(3_600);
    let mut next = Some(RetentionStep::START);
    let (mut steps, mut longest) = (0, Duration::ZERO);
    while let Some(step) = next {
        let began = Instant::now();
        next = store.retain(session, Retention::default(), now, step, Vec::new()).await?.next;
        longest = longest.max(began.elapsed());
        steps += 1;
    }
    Ok((steps, longest))
}

/// The size of a fresh store's file with the young rows alone, in bytes.
async fn fresh(shape: SeedShape) -> Result<u64, CannotRun> {
    let folder = tempfile::Builder::new().prefix("run-").tempdir_in(seeder::shelf()?)?;
    let store = Sqlite::open_folder(folder.path(), master_key())?;
    let session = store.open(YOUNG).await?.session;
    put_endpoints(&store, session, shape.targets()).await?;
    seeder::age(&store, session, &shape.mint(session), shape.young()).await?;
    store.close().await;
    bytes(folder.path(), "posthaste.db")
}

fn bytes(folder: &Path, file: &str) -> Result<u64, CannotRun> {
    match fs::metadata(folder.join(file)) {
        Ok(file) => Ok(file.len()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error.into()),
    }
}
