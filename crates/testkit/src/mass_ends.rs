//! The proof `mass-ends`: what ends millions of deliveries is answered at once, nothing of them is
//! sent after the answer, and whoever else has work hardly notices that their rows are swept.
//!
//! By the store's verbs, with the production dispatch loop running on a transport that counts. Three
//! ends, each with the same number of rows behind it: an unsubscribe, a cancel, and the purge of the
//! dead letters that the end of an endpoint left.

mod world;

use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::id::Key;
use posthaste_engine::dispatch::Command;
use posthaste_store::{Archive, DeadLetterFilter, DeadLetters, ListOrder};

use crate::busy::median;
use crate::prove::{CannotRun, Figure, Findings, Options};
use crate::seeder::{Shape, Target};
use world::World;

const ANSWER_BAR_MS: f64 = 50.0;
const RATE_BAR: f64 = 0.9;

const ROWS: u64 = 5_000_000;
const ROWS_QUICK: u64 = 100_000;
/// How long others are watched, each time.
const SLICES: usize = 20;
const SLICES_QUICK: usize = 10;
const SLICE: Duration = Duration::from_millis(200);
/// How often the same is asked, and the median counts: a commit of others may be under way.
const ASKED: usize = 5;

/// Higher than every id there can be.
const EVERYTHING: Key = Key::from_raw(u64::MAX >> 1);

/// Runs the proof.
pub fn run(options: &Options) -> Findings {
    let (rows, slices) = if options.quick { (ROWS_QUICK, SLICES_QUICK) } else { (ROWS, SLICES) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut figures = Vec::new();
    for end in [lane_ends(rows, slices, Cause::Unsubscribed), lane_ends(rows, slices, Cause::EndpointGone)] {
        figures.extend(runtime.block_on(end)?);
    }
    Ok(figures.into_iter().map(|figure| figure.by_the_clock(options)).collect())
}

/// A lane's end with so many rows behind it; where that makes dead letters, their purge as well.
async fn lane_ends(rows: u64, slices: usize, cause: Cause) -> Findings {
    let lane = Target(0).lane();
    let world = World::start(Shape { rows, lanes: 1 }, lane).await?;
    let before = median(&mut world.others(slices, SLICE).await?);
    world.resume().await?;
    world.waits_until_sent(100).await?;
    let end = world.asks(Command::EndLane(lane, EVERYTHING, cause)).await?;
    let mut took = vec![millis(end.took)];
    for _ in 1..ASKED {
        took.push(millis(world.asks(Command::EndLane(lane, EVERYTHING, cause)).await?.took));
    }
    let meanwhile = median(&mut world.others(slices, SLICE).await?);
    let beyond = world.sent().saturating_sub(end.sent_before + end.in_flight);
    let swept = world.waits_until_swept().await?;
    eprintln!(
        "{}: answered in {took:.1?} ms, {} ended, {} in flight, then swept in {:.1} s",
        cause.code(),
        end.ended,
        end.in_flight,
        swept.as_secs_f64()
    );
    let left = world.store.waiting(lane).await?.total();
    let name = if cause == Cause::Unsubscribed { "unsubscribe" } else { "endpoint_gone" };
    let mut figures = vec![
        Figure::at_most(&format!("{name}_answered"), median(&mut took), "ms", ANSWER_BAR_MS),
        Figure::at_least(&format!("{name}_ended"), end.ended as f64, "deliveries", rows as f64 * 0.9),
        Figure::at_most(&format!("{name}_sent_after"), beyond as f64, "deliveries", 0.0),
        Figure::at_most(&format!("{name}_left"), left as f64, "rows", 0.0),
    ];
    let mut purged = None;
    if cause == Cause::EndpointGone {
        let (purge, rate) = purge(&world, slices).await?;
        figures.extend(purge);
        purged = Some(rate);
    }
    let after = median(&mut world.others(slices, SLICE).await?);
    world.stop().await?;
    eprintln!("  others: {before:.0} deliveries/s before, {meanwhile:.0} beside the sweep, {after:.0} after");
    // What else the machine does comes and goes: the slower of the two is what it can do.
    let alone = before.min(after);
    figures.push(Figure::at_least(&format!("{name}_others_rate"), meanwhile / alone, "of 1", RATE_BAR));
    figures.extend(purged.map(|rate| Figure::at_least("purge_others_rate", rate / alone, "of 1", RATE_BAR)));
    Ok(figures)
}

/// Every dead letter of the endpoint, taken back by one filter.
async fn purge(world: &World, slices: usize) -> Result<(Vec<Figure>, f64), CannotRun> {
    let target = Target(0);
    let filter = DeadLetterFilter { endpoint: Some(target.endpoint().id), ..DeadLetterFilter::of(target.tenant()) };
    let (took, counted) = world.purges(filter.clone()).await?;
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
        Figure::at_most("purge_left", f64::from(u8::from(left != posthaste_store::Count::Exactly(0))), "of 1", 0.0),
    ];
    Ok((figures, rate))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
