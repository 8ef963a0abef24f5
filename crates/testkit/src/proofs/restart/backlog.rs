//! Measures how soon a server with a long backlog is ready after a kill, and how soon the first delivery arrives.

use std::io;
use std::path::Path;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::MASTER_KEY;
use crate::fixtures::caller::call;
use crate::fixtures::posthaste::{Launch, Posthaste};
use crate::fixtures::seeder::{self, SeedShape};
use crate::prove::{Figure, Findings, Options};
use crate::receivers::counter::{Counter, Manners};

/// Deliveries that must arrive before a kill, so that the server is at work.
const AT_WORK: usize = 200;
/// The timeout of every wait; far beyond the bars.
const PATIENCE: Duration = Duration::from_secs(60);

/// Kills the server this many times. The slowest start counts.
pub(super) async fn prove(
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
        is_ready(&server, began).await?;
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

async fn arrive(counter: &Counter, enough: usize) -> io::Result<()> {
    if counter.waits_for_messages(enough, PATIENCE).await {
        return Ok(());
    }
    Err(io::Error::other(format!("only {} messages of the backlog arrived", counter.seens().messages())))
}

async fn is_ready(server: &Posthaste, began: Instant) -> io::Result<()> {
    while call(server.address, Method::GET, "/readyz", "").await?.status != StatusCode::OK {
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other("the server is not ready"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
