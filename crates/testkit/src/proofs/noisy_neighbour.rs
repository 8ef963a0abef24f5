//! The proof `noisy-neighbour`: a tenant whose receivers never answer does not slow down the others (G3).
//!
//! A hundred quiet tenants send ten messages per second each to a receiver that answers at once; one noisy tenant sends
//! two hundred per second to receivers that read requests and never answer. The proof runs the real binary over real
//! sockets. It measures the time from the moment at which a producer should send a message to its arrival, with and
//! without the noise, each time on a fresh server. The two take turns, so that other work of the machine affects both.
//!
//! With few slots the noisy tenant would take all of them. It must get half of them at most, and the others must not
//! be affected. The negative control is the same with all endpoints in one tenant, which the server cannot treat
//! fairly: it must miss the bar.

mod load;
mod server;

use std::path::Path;
use std::time::Duration;

use crate::fixtures::posthaste;
use crate::fixtures::statistics;
use crate::prove::{CannotRun, Figure, Findings, Options};
use load::{Latencies, Noise};
use server::NoisySetup;

/// Pairs of a quiet and a noisy phase; the median counts.
const PAIRS: usize = 3;
const PHASE: Duration = Duration::from_secs(10);
const PHASE_QUICK: Duration = Duration::from_secs(2);
/// The longest wait after a phase for the last messages to arrive.
const GRACE: Duration = Duration::from_secs(2);
/// The latency of quiet tenants may grow by this much, or by half.
const ADDED_MS_MAX: f64 = 10.0;
/// The least share of accepted messages that must arrive, in percent.
const ARRIVED_MIN: f64 = 99.0;
/// Attempts under way at once: the default of the settings, and fewer than the noisy tenant could use.
const SLOTS: u32 = 1_024;
const SLOTS_TIGHT: u32 = 64;

pub fn run(options: &Options) -> Findings {
    let binary = posthaste::binary()?;
    let length = if options.quick { PHASE_QUICK } else { PHASE };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut pairs = Vec::new();
    for number in 1..=PAIRS {
        let quiet = runtime.block_on(phase(&binary, length, Noise::Off, SLOTS))?;
        eprintln!("pair {number}, quiet: {quiet}");
        let noisy = runtime.block_on(phase(&binary, length, Noise::On, SLOTS))?;
        eprintln!("pair {number}, noisy: {noisy}");
        pairs.push((quiet, noisy));
    }
    let mut figures = figures(&pairs, options);
    let tight = runtime.block_on(phase(&binary, length, Noise::On, SLOTS_TIGHT))?;
    eprintln!("{SLOTS_TIGHT} slots, noisy: {tight}");
    figures.push(Figure::at_least("throughput_when_tight", tight.arrived(), "%", ARRIVED_MIN));
    let unknown = runtime.block_on(phase(&binary, length, Noise::Unknown, SLOTS_TIGHT))?;
    eprintln!("{SLOTS_TIGHT} slots, one tenant: {unknown}");
    let control = Figure::at_least("throughput_when_tight", unknown.arrived(), "%", ARRIVED_MIN);
    eprintln!("control, all in one tenant: {control}");
    let caught = u32::from(!control.is_ok());
    figures.push(Figure::at_least("negative_control_caught", f64::from(caught), "bars", 1.0));
    Ok(figures)
}

struct Phase {
    latencies: Latencies,
    /// Messages of quiet tenants that were accepted.
    accepted: usize,
    /// Accepted messages of the noisy tenant per second.
    noise: f64,
    /// The most attempts that waited for the tarpit's answer at once.
    hanging: usize,
}

impl Phase {
    /// The share of accepted messages that arrived, in percent.
    fn arrived(&self) -> f64 {
        100.0 * self.latencies.count() as f64 / self.accepted.max(1) as f64
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {} arrived, p50 {:.1} ms, p99 {:.1} ms; noise {:.0}/s, {} hang",
            self.latencies.count(),
            self.accepted,
            self.latencies.at(0.50),
            self.latencies.at(0.99),
            self.noise,
            self.hanging
        )
    }
}

async fn phase(binary: &Path, length: Duration, noise: Noise, slots: u32) -> Result<Phase, CannotRun> {
    let folder = tempfile::tempdir()?;
    let field = NoisySetup::start(binary, folder.path(), noise, slots).await?;
    let sent = load::run(&field, length, noise).await?;
    // On a timeout the figures show the missing messages.
    let _ = field.receiver.waits_for(GRACE, |log| (log.count() >= sent.accepted).then_some(())).await;
    let phase = Phase {
        latencies: field.receiver.responder().latencies(),
        accepted: sent.accepted,
        noise: sent.noise as f64 / length.as_secs_f64(),
        hanging: field.tarpit.most_open(),
    };
    field.end()?;
    Ok(phase)
}

fn figures(pairs: &[(Phase, Phase)], options: &Options) -> Vec<Figure> {
    let p99 = |phase: &Phase| phase.latencies.at(0.99);
    let base = median(pairs.iter().map(|(quiet, _)| p99(quiet)));
    let added = median(pairs.iter().map(|(quiet, noisy)| p99(noisy) - p99(quiet)));
    let throughput = median(pairs.iter().map(|(_, noisy)| noisy.arrived()));
    let quiet_rate =
        median(pairs.iter().map(|(quiet, noisy)| 100.0 * noisy.accepted as f64 / quiet.accepted.max(1) as f64));
    let noise = median(pairs.iter().map(|(_, noisy)| noisy.noise));
    let hanging = pairs.iter().map(|(_, noisy)| noisy.hanging).max().unwrap_or(0);
    vec![
        Figure::at_most("quiet_p99_added", added, "ms", ADDED_MS_MAX.max(base / 2.0)).by_the_clock(options),
        Figure::at_least("throughput", throughput, "%", ARRIVED_MIN),
        Figure::at_least("accepted_beside_noise", quiet_rate, "%", 99.0),
        Figure::at_least("noise", noise, "messages/s", 0.9 * load::NOISE_PER_SECOND as f64).by_the_clock(options),
        // The noise must be real: attempts must wait for an answer.
        Figure::at_least("hanging", hanging as f64, "attempts", 20.0),
    ]
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    statistics::median(&mut values.collect::<Vec<_>>())
}
