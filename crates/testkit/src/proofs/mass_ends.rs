//! The proof `mass-ends`: a request that ends millions of deliveries is answered at once, none of them is sent after
//! the answer, and the sweep of their rows hardly slows down other tenants.
//!
//! The production dispatch loop runs over a store, with a transport that counts. There are four requests, each for the
//! same number of rows: an unsubscribe, the cancel of one message whose fan-out is under way, the end of an endpoint,
//! and the purge of the dead letters that it left.

mod world;

use std::time::Duration;

use posthaste_core::{Cause, EndpointChange, Key};
use posthaste_engine::dispatch::{Command, EndLane};
use posthaste_store::{DeadLetterFilter, DeadLetters, JobQuery, Jobs, ListOrder};

use crate::fixtures::{Of, SeedShape, SeededTarget, campaign, median, runtime};
use crate::prove::{CannotRun, Figure, Findings, Options};
use world::MassEndsWorld;

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
