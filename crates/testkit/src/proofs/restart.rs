//! The proof `restart`: the real binary is stopped and started again under load, as in an upgrade; and it is killed
//! with a long backlog, to measure how soon it is ready again.
//!
//! A shutdown loses nothing and repeats nothing: attempts in flight end and are recorded. The control is the same with
//! `kill -9` instead, which must cause duplicates.

use std::path::Path;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::MASTER_KEY;
use crate::fixtures::{
    Launch, Of, ProducerLoad, SeedShape, ServedResult, ServerUnderLoad, binary, call, folder, runtime, seeded_folder,
    seeder, wait,
};
use crate::prove::{CannotRun, Figure, Findings, Options, count};
use crate::receivers::{Counter, Manners};

const PRODUCERS: usize = 16;
/// Acknowledgements between two restarts.
const PROMISES: usize = 150;
/// The time of a receiver's answer.
const TAKES: std::ops::Range<Duration> = Duration::from_millis(1)..Duration::from_millis(950);
/// The bar for a shutdown, which waits for the slowest receiver and then for a commit or two.
const STOPS_WITHIN: Duration = Duration::from_secs(3);

/// The backlog in the quick form.
const QUEUE: SeedShape = SeedShape { rows: 50_000, lanes: 100, of: Of::Messages };

#[derive(Clone, Copy)]
struct Size {
    restarts: usize,
    queue: SeedShape,
    /// How often the server with the long backlog is killed.
    kills: u32,
}

const FULL: Size = Size { restarts: 50, queue: SeedShape { rows: 1_000_000, ..QUEUE }, kills: 5 };
const QUICK: Size = Size { restarts: 6, queue: QUEUE, kills: 2 };
const CONTROL_RESTARTS: usize = 2;

pub fn run(options: &Options) -> Findings {
    let size = if options.quick { QUICK } else { FULL };
    let binary = binary()?;
    let mut figures = runtime()?.block_on(restarts(&binary, size.restarts, options))?;
    let folder = seeded_folder(size.queue)?;
    figures.extend(runtime()?.block_on(starts_after_kills(&binary, &folder, size.queue, size.kills, options))?);
    Ok(figures)
}

async fn restarts(binary: &Path, restarts: usize, options: &Options) -> Findings {
    let (mut failed, mut slowest) = (0, Duration::ZERO);
    let stopped = under_load(binary, restarts, async |served: &mut ServerUnderLoad| {
        let (ended, took) = served.stop().await?;
        failed += usize::from(!ended.success());
        slowest = slowest.max(took);
        Ok(())
    });
    let ended = stopped.await?;
    let killed = under_load(binary, CONTROL_RESTARTS, async |served: &mut ServerUnderLoad| served.kill().await).await?;
    let seens = ended.counter.seens();
    eprintln!(
        "{restarts} restarts, {} acknowledged, {} arrived; the slowest stop took {slowest:.1?}; {} calls were not answered",
        ended.promised.len(),
        seens.messages(),
        ended.ledger.refusals().unanswered,
    );
    Ok(vec![
        Figure::at_least("restarts", count(restarts), "restarts", count(restarts)),
        Figure::at_least("acknowledged", count(ended.promised.len()), "messages", count(restarts * PROMISES)),
        Figure::at_most("lost", count(ended.lost), "messages", 0.0),
        Figure::at_most("duplicates", count(seens.duplicates()), "arrivals", 0.0),
        Figure::at_most("unended", count(ended.unended().await?), "messages", 0.0),
        Figure::at_most("arrived_unacknowledged", count(seens.unpromised(&ended.promised)), "messages", 0.0),
        Figure::at_most("failed_stops", count(failed), "stops", 0.0),
        Figure::at_most("slowest_stop", slowest.as_secs_f64(), "s", STOPS_WITHIN.as_secs_f64()).by_the_clock(options),
        Figure::at_most("unexpected_answers", count(ended.surprises), "answers", 0.0),
        Figure::at_least("control_duplicates", count(killed.counter.seens().duplicates()), "arrivals", 1.0),
        Figure::at_least("control_lost", count(seens.without_one().lost(&ended.promised)), "messages", 1.0),
    ])
}

/// Ends the server this many times under load in the given way, and starts it again each time.
async fn under_load(
    binary: &Path,
    times: usize,
    mut end: impl AsyncFnMut(&mut ServerUnderLoad) -> Result<(), CannotRun>,
) -> Result<ServedResult, CannotRun> {
    let folder = folder()?;
    let manners = Manners { takes: TAKES, fails_one_in: None };
    let launch = Launch::new(binary, folder.path());
    let mut served = ServerUnderLoad::begin(folder, launch, manners, &ProducerLoad::of(PRODUCERS)).await?;
    for time in 0..times {
        served.promises(PROMISES * (time + 1)).await?;
        end(&mut served).await?;
        served.start()?;
    }
    // A fast receiver from now on, so that the backlog does not take minutes.
    served.counter.behave(Manners { takes: Duration::ZERO..Duration::from_millis(1), fails_one_in: None });
    Ok(served.ends().await)
}

/// Deliveries that must arrive before a kill, so that the server is at work.
const AT_WORK: usize = 200;
/// The timeout of every wait; far beyond the bars.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures how soon a server with a long backlog is ready after a kill, and how soon its first delivery arrives. The
/// slowest start counts.
async fn starts_after_kills(
    binary: &Path,
    folder: &TempDir,
    queue: SeedShape,
    kills: u32,
    options: &Options,
) -> Findings {
    let manners = Manners { takes: Duration::from_millis(5)..Duration::from_millis(50), fails_one_in: None };
    let counter = Counter::start(manners).await?;
    let launch = Launch::new(binary, folder.path()).with("POSTHASTE_MASTER_KEY", MASTER_KEY);
    seeder::send_to(&launch.data(), queue, &counter.url()).await?;
    let (mut ready, mut first) = (Duration::ZERO, Duration::ZERO);
    let mut server = launch.start()?;
    for kill in 1..=kills {
        let before = counter.seens().messages();
        arrive(&counter, before + AT_WORK).await?;
        let killed = Instant::now();
        server.kill()?;
        counter.sender_ended(killed).await?;
        let before = counter.seens().messages();
        let began = Instant::now();
        server = launch.start()?;
        let ready_now = async || Ok(call(server.address, Method::GET, "/readyz", "").await?.status == StatusCode::OK);
        wait("a ready server", PATIENCE, ready_now).await?;
        let ready_after = began.elapsed();
        arrive(&counter, before + 1).await?;
        let first_after = began.elapsed();
        eprintln!("kill {kill}: ready after {ready_after:.0?}, the first delivery after {first_after:.0?}");
        (ready, first) = (ready.max(ready_after), first.max(first_after));
    }
    Ok(vec![
        Figure::at_most("ready_after_kill", ready.as_secs_f64(), "s", 1.0).by_the_clock(options),
        Figure::at_most("first_delivery_after_kill", first.as_secs_f64(), "s", 2.0).by_the_clock(options),
    ])
}

async fn arrive(counter: &Counter, enough: usize) -> Result<(), CannotRun> {
    if counter.waits_for_messages(enough, PATIENCE).await {
        return Ok(());
    }
    Err(CannotRun(format!("only {} messages of the backlog arrived", counter.seens().messages())))
}
