//! `posthaste simulate`: simulates the load of retries on a receiver that was down.
//!
//! Runs the production dispatch loop in virtual time, and beside it naive retries that know only their schedule. The
//! simulation is the simulator's `outage`; [`table`] has the figures, and [`chart`] draws the load.

mod table;

use std::fs::File;
use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use posthaste_core::policy::{DEFAULT_PRESET, PRESETS, told_nearest};
use posthaste_core::{Policy, Roll, Tier};
use posthaste_prove::chart::{self, LoadChart, LoadSeries, svg};
use posthaste_server::duration;
use posthaste_simulator::outage::naive::{self, Naive};
use posthaste_simulator::outage::{self, FRESH, OutageOutcome, OutageScenario, Sender};

use crate::say::say;

/// The most messages of a simulation: each takes memory in every sender.
const MESSAGES_MAX: f64 = 500_000.0;
/// The most requests of naive retries: more would take minutes and gigabytes.
const BARE_REQUESTS_MAX: f64 = 20_000_000.0;
/// The number of requests of naive retries after the recovery, as a multiple of those before it.
const BARE_REQUESTS_AFTER: f64 = 1.5;
/// The shortest default time that is simulated after the recovery.
const HORIZON: Duration = Duration::from_secs(2 * 3_600);
/// The longest time that is simulated after the recovery.
const HORIZON_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The time that the chart shows after the recovery, as a multiple of the time that the best sender needs.
const PICTURE_BEYOND_BEST: f64 = 1.4;
const PICTURE_MIN: Duration = Duration::from_secs(10 * 60);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sender: Posthaste with a preset, or naive-fixed, naive-exponential, naive-spread or naive-schedule; can be
    /// given several times to compare them
    #[arg(long = "policy", value_name = "NAME", default_values = [DEFAULT_PRESET, naive::FIXED.name, naive::EXPONENTIAL.name])]
    policies: Vec<String>,
    /// Messages a second
    #[arg(long, default_value = "30", value_name = "RATE", value_parser = rate)]
    load: f64,
    /// Requests a second the receiver can take
    #[arg(long, default_value = "50", value_name = "RATE", value_parser = rate)]
    capacity: f64,
    /// The length of the outage
    #[arg(long, default_value = "20m", value_parser = time)]
    outage: Duration,
    /// What happens to a request during the outage
    #[arg(long, default_value = "refuse")]
    down: Down,
    /// The cost of refusing a request, as a share of the cost of taking it
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = share)]
    shed_cost: f64,
    /// The seed of the random numbers; the same seed gives the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The longest time to simulate after the recovery [default: 2h, or twice the shortest possible recovery]
    #[arg(long, value_parser = time)]
    horizon: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the chart to this SVG file too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What happens to a request while the receiver is down.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Down {
    /// The connection is refused
    Refuse,
    /// It is answered 503 at once
    #[value(name = "503")]
    Unavailable,
    /// It gets no answer for 30 s
    Timeout,
}

struct Row {
    /// The name on the command line.
    name: String,
    /// The name in tables and charts.
    label: String,
    outcome: OutageOutcome,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let scenario = scenario(args)?;
    for (index, name) in args.policies.iter().enumerate() {
        ensure!(!args.policies[..index].contains(name), "--policy {name} is given twice; once is enough");
    }
    let senders = args.policies.iter().map(|name| sender(name, &scenario)).collect::<Result<Vec<_>>>()?;
    // Opened first, so that a bad path is reported before the simulation runs.
    let create = |path| File::create(path).map(|file| (path, file)).with_context(|| cannot_write(path));
    let svg = args.svg.as_deref().map(create).transpose()?;
    let rows = play(&scenario, &args.policies, &senders);
    let picture = picture(&scenario, &rows);
    if let Some((path, mut file)) = svg {
        file.write_all(svg::render(&picture).as_bytes()).with_context(|| cannot_write(path))?;
    }
    if args.json {
        return say!("{}", serde_json::to_string(&table::json(&scenario, &rows))?);
    }
    say!("{}\n{}\n", picture.title, picture.subtitle)?;
    say!("{}", table::text(&rows))?;
    say!("{}", chart::terminal(&picture, chart::WIDTH))?;
    say!("{}", table::words(&scenario, &rows))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "must be a number a second, such as 30 or 0.5".to_owned())?;
    if (0.1..=1_000.0).contains(&rate) { Ok(rate) } else { Err("must be from 0.1 to 1000 a second".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "must be a share, such as 0.25".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be from 0 to 1".to_owned()) }
}

fn time(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| "must be a time such as 90s, 20m or 2h".to_owned())
}

fn scenario(args: &Args) -> Result<OutageScenario> {
    let Args { load, capacity, outage, .. } = *args;
    ensure!(
        load < capacity,
        "--load {load} is not below --capacity {capacity}: the backlog of the outage could never be delivered; raise \
         the capacity or lower the load"
    );
    ensure!(
        (Duration::from_secs(1)..=HORIZON_MAX).contains(&outage),
        "--outage {} is not from 1s to {}",
        duration::write(outage),
        duration::write(HORIZON_MAX)
    );
    let down = match args.down {
        Down::Refuse => outage::Down::Refuses,
        Down::Unavailable => outage::Down::Unavailable,
        Down::Timeout => outage::Down::Silent,
    };
    let scenario = OutageScenario {
        load,
        capacity,
        outage,
        down,
        shed_cost: args.shed_cost,
        seed: args.seed,
        ..OutageScenario::default()
    };
    let messages = load * (outage + FRESH).as_secs_f64();
    ensure!(
        messages <= MESSAGES_MAX,
        "--load {load} and --outage {} make {messages:.0} messages until half an hour after it; at most \
         {MESSAGES_MAX:.0} are simulated: lower the load or shorten the outage",
        duration::write(outage)
    );
    let best = scenario.drained_at_best().unwrap_or(HORIZON_MAX);
    let horizon = args.horizon.unwrap_or_else(|| (best * 2).clamp(HORIZON, HORIZON_MAX));
    ensure!(
        (FRESH..=HORIZON_MAX).contains(&horizon),
        "--horizon {} is not from {} to {}; fresh messages are measured for the shorter time",
        duration::write(horizon),
        duration::write(FRESH),
        duration::write(HORIZON_MAX)
    );
    let watch = best.mul_f64(PICTURE_BEYOND_BEST).clamp(PICTURE_MIN, horizon);
    Ok(OutageScenario { watch, horizon, ..scenario })
}

fn sender(name: &str, scenario: &OutageScenario) -> Result<Sender> {
    if let Some(naive) = Naive::named(name) {
        let requests = bare_requests(&naive.policy(), scenario);
        ensure!(
            requests <= BARE_REQUESTS_MAX,
            "--policy {name} would make about {:.0} million requests; at most {:.0} million are simulated: lower the \
             load, shorten the outage or leave it out",
            requests / 1e6,
            BARE_REQUESTS_MAX / 1e6
        );
        return Ok(Sender::bare(naive.policy()));
    }
    let names: Vec<&str> = PRESETS.into_iter().chain(naive::ALL.map(|naive| naive.name)).collect();
    let policy = Policy::preset(name).with_context(|| {
        let nearest = told_nearest(name, names.iter().copied());
        format!("there is no policy {name:?}{nearest}; there are {}", names.join(", "))
    })?;
    Ok(Sender::posthaste(policy))
}

/// An estimate of the number of requests that naive retries make.
fn bare_requests(policy: &Policy, scenario: &OutageScenario) -> f64 {
    let middling = Roll(u64::MAX / 2);
    let mut since_first = Duration::ZERO;
    let mut tries_of_each = 1.0;
    // A retry is made for messages that were created long enough before the recovery.
    for wait in (1..).map_while(|retry| policy.wait(retry, Tier::Promotional, None, middling)) {
        since_first += wait;
        if since_first >= scenario.outage {
            break;
        }
        tries_of_each += (scenario.outage - since_first).as_secs_f64() / scenario.outage.as_secs_f64();
    }
    scenario.held() * tries_of_each * (1.0 + BARE_REQUESTS_AFTER)
}

fn play(scenario: &OutageScenario, names: &[String], senders: &[Sender]) -> Vec<Row> {
    let plays: Vec<(OutageScenario, Sender)> =
        senders.iter().map(|sender| (scenario.clone(), sender.clone())).collect();
    let (shows, done) = (stderr().is_terminal(), AtomicUsize::new(0));
    let show = |words: &str| {
        if shows {
            eprint!("\r\x1b[K{words}");
        }
    };
    show("simulating …");
    let outcomes = outage::play_all(&plays, |index, _| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        show(&format!("simulating … {} of {} done, the last was {}", done, plays.len(), names[index]));
    });
    show("");
    names.iter().zip(outcomes).map(|(name, outcome)| row(name, outcome)).collect()
}

fn row(name: &str, outcome: OutageOutcome) -> Row {
    let (name, label) = match Naive::named(name) {
        Some(naive) => (name.to_owned(), format!("naive, {}", naive.does)),
        None if name == DEFAULT_PRESET => ("posthaste".to_owned(), "Posthaste".to_owned()),
        None => (format!("posthaste ({name})"), format!("Posthaste, {name}")),
    };
    Row { name, label, outcome }
}

fn picture(scenario: &OutageScenario, rows: &[Row]) -> LoadChart {
    let series = |row: &Row| LoadSeries {
        name: row.label.clone(),
        notes: table::notes(&row.outcome),
        seconds: row.outcome.seconds.clone(),
    };
    let (recovers, subtitle) = (scenario.recovers(), table::subtitle(scenario));
    let (outage, length) = (scenario.outage_begins()..recovers, recovers + scenario.watch);
    LoadChart::around(outage, length, scenario.capacity, subtitle, rows.iter().map(series).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_of_naive_requests_is_within_a_factor_of_two() {
        let scenario =
            OutageScenario { load: 3.0, capacity: 5.0, outage: Duration::from_secs(600), ..OutageScenario::default() };
        for naive in [naive::FIXED, naive::EXPONENTIAL] {
            let made = scenario.play(&Sender::bare(naive.policy()));
            // Every message is also taken once after the recovery; the estimate leaves these requests out.
            let made = made.tries_into_outage as f64 + made.shed as f64;
            let estimate = bare_requests(&naive.policy(), &scenario);
            assert!((0.5..2.0).contains(&(estimate / made)), "{}: {estimate} estimated, {made} made", naive.name);
        }
    }
}
