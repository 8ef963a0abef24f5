//! The proof `idle`: CPU and memory of a server that is idle, and of one with millions of pending deliveries. `bench`
//! measures with the same code.

use std::path::Path;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tokio::time::Instant;

use crate::MASTER_KEY;
use crate::fixtures::{ApiConnection, Cpu, Launch, Of, SeedShape, binary, folder, rss, runtime, seeded_folder, seeder};
use crate::prove::{CannotRun, Figure, Findings, Options};
use crate::receivers::{Counter, Manners};

/// How long the work of a server's start may take.
const SETTLES: Duration = Duration::from_secs(2);
const WATCHED: Duration = Duration::from_secs(60);
const WATCHED_QUICK: Duration = Duration::from_secs(4);
/// The length of the control's measurement: long enough to distinguish a busy server from an idle one.
const WATCHED_BUSY: Duration = Duration::from_secs(1);

const IDLE_RSS_MIB_MAX: f64 = 40.0;
const IDLE_CPU_PERCENT_MAX: f64 = 0.1;
const PENDING: SeedShape = SeedShape { rows: 10_000_000, lanes: 1_000, of: Of::Messages };
const PENDING_RSS_MIB_MAX: f64 = 256.0;
/// Deliveries after which the server with a long backlog has filled its memory.
const DELIVERED: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(300);

/// The memory and CPU time of a process during a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerCost {
    /// The peak of its memory, in MiB.
    pub rss_mib: f64,
    /// Its CPU time, in percent of one processor.
    pub cpu_percent: f64,
}

/// Measures a process for this long.
pub async fn watch(pid: u32, lasts: Duration) -> Result<ServerCost, CannotRun> {
    rss::forget_peak_of(pid)?;
    let (before, began) = (Cpu::for_process(pid)?, Instant::now());
    tokio::time::sleep(lasts).await;
    let spent = Cpu::for_process(pid)?.since(&before).all();
    let cpu_percent = 100.0 * spent.as_secs_f64() / began.elapsed().as_secs_f64();
    Ok(ServerCost { rss_mib: rss::peak_of(pid)? as f64 / 1_024.0, cpu_percent })
}

pub fn run(options: &Options) -> Findings {
    let binary = binary()?;
    let mut figures = runtime()?.block_on(with_nothing_to_do(&binary, options))?;
    if !options.quick {
        let folder = seeded_folder(PENDING)?;
        figures.extend(runtime()?.block_on(with_millions_waiting(&binary, folder.path()))?);
    }
    Ok(figures)
}

async fn with_nothing_to_do(binary: &Path, options: &Options) -> Findings {
    let folder = folder()?;
    let server = Launch::new(binary, folder.path()).start()?;
    tokio::time::sleep(SETTLES).await;
    let idle = watch(server.pid(), if options.quick { WATCHED_QUICK } else { WATCHED }).await?;
    let calls = async {
        let mut line = ApiConnection::open(server.address).await?;
        loop {
            line.call(Method::GET, "/healthz", &[], "").await?.expect(StatusCode::OK)?;
        }
    };
    let busy = tokio::select! {
        biased;
        busy = watch(server.pid(), WATCHED_BUSY) => busy?,
        ended = calls => return ended,
    };
    Ok(vec![
        Figure::at_most("idle_rss", idle.rss_mib, "MiB", IDLE_RSS_MIB_MAX),
        Figure::at_most("idle_cpu", idle.cpu_percent, "%", IDLE_CPU_PERCENT_MAX).by_the_clock(options),
        // The control: the CPU time of a busy server must show.
        Figure::at_least("control_busy_cpu", busy.cpu_percent, "%", IDLE_CPU_PERCENT_MAX),
    ])
}

async fn with_millions_waiting(binary: &Path, folder: &Path) -> Findings {
    let manners = Manners { takes: Duration::from_millis(1)..Duration::from_millis(20), fails_one_in: None };
    let counter = Counter::start(manners).await?;
    let launch = Launch::new(binary, folder).with("POSTHASTE_MASTER_KEY", MASTER_KEY);
    seeder::send_to(&launch.data(), PENDING, &counter.url()).await?;
    let server = launch.start()?;
    let pid = server.pid();
    if !counter.waits_for_messages(DELIVERED, PATIENCE).await {
        return Err(CannotRun(format!("only {} deliveries of the backlog arrived", counter.seens().messages())));
    }
    let rss_mib = rss::peak_of(pid)? as f64 / 1_024.0;
    Ok(vec![Figure::at_most("rss_with_10_million_pending", rss_mib, "MiB", PENDING_RSS_MIB_MAX)])
}
