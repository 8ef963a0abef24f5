//! `posthaste bench`: measures throughput, CPU time and latency of a server on this machine, or compares them with
//! those of another build. The measurements are the testkit's [`bench`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use posthaste_engine::clock::SystemClock;
use posthaste_prove::CannotRun;
use posthaste_server::api::caller::Door;
use posthaste_server::run::Front;
use posthaste_testkit::bench::{self, BenchScenario, BenchSettings, against};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::say::say;
use crate::serve;

const DEFAULT: BenchSettings = BenchSettings::DEFAULT;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure only this scenario; can be given several times [default: all]
    #[arg(long, value_parser = scenario())]
    scenario: Vec<BenchScenario>,
    /// Rounds of each scenario, in turn with the bare limit
    #[arg(long, default_value_t = DEFAULT.rounds, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// How many seconds to produce in each round
    #[arg(long, default_value_t = DEFAULT.seconds, value_parser = clap::value_parser!(u64).range(1..=300))]
    seconds: u64,
    /// The most messages in a round
    #[arg(long, default_value_t = DEFAULT.messages, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    messages: u64,
    /// Bytes of each payload
    #[arg(long, default_value_t = DEFAULT.payload, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    payload: u32,
    /// Deliveries that are pending during the scenario pending; rounded down to thousands
    #[arg(long, default_value_t = DEFAULT.pending, value_parser = clap::value_parser!(u64).range(1_000..=20_000_000))]
    pending: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the figures to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Compare the server's CPU time for a delivery with that of another `posthaste` [default scenarios: single, batch
    /// and fan-out]
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["rounds", "pending", "svg"])]
    against: Option<PathBuf>,
    /// Pairs of measurements in a comparison
    #[arg(long, default_value_t = 9, requires = "against", value_parser = clap::value_parser!(u32).range(1..=99))]
    pairs: u32,
}

/// A process of the bench. `--against` starts the server of other builds too: its arguments stay as they are.
#[derive(Subcommand)]
pub(crate) enum BenchProcess {
    /// The server as `serve --dev` runs it, with the embedded settings; prints the number of commits for each line of
    /// input
    Server {
        data: PathBuf,
        /// Burn CPU beside the server, to test that a comparison finds it
        #[arg(long)]
        burns: bool,
    },
    /// A receiver, producer or bare client, as the bench describes it
    Peer { json: String },
}

fn scenario() -> impl TypedValueParser<Value = BenchScenario> {
    let values = BenchScenario::ALL.map(|(_, name, description)| PossibleValue::new(name).help(description));
    PossibleValuesParser::new(values).map(|given| {
        let named = BenchScenario::ALL.into_iter().find(|(_, name, _)| *name == given);
        named.expect("the parser takes no other name").0
    })
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Args { rounds, seconds, messages, payload, pending, pairs, .. } = *args;
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let scenarios = args.scenario.clone();
    let settings = BenchSettings { program, scenarios, rounds, seconds, messages, payload, pending };
    if let Some(program) = &args.against {
        let report = until_interrupted(against::compare(&settings, program, pairs))?;
        print(args.json, &report, || report.table())?;
        return report.check().map_err(anyhow::Error::msg);
    }
    let report = until_interrupted(bench::measure_all(&settings))?;
    if let Some(file) = &args.svg {
        std::fs::write(file, report.svg()).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("figures written to {}", file.display());
    }
    print(args.json, &report, || report.tables())?;
    report.check().map_err(anyhow::Error::msg)
}

fn print(json: bool, report: &impl serde::Serialize, text: impl FnOnce() -> String) -> Result<()> {
    say!("{}", if json { serde_json::to_string(report)? } else { text() })
}

fn until_interrupted<T>(measuring: impl Future<Output = Result<T, CannotRun>>) -> Result<T> {
    serve::runtime()?.block_on(async {
        // Ctrl-C reaches the child processes too; dropping their handles here ends those that are left.
        let mut interrupted = signal(SignalKind::interrupt())?;
        tokio::select! {
            biased;
            _ = interrupted.recv() => bail!("interrupted"),
            report = measuring => report.map_err(anyhow::Error::msg),
        }
    })
}

pub(crate) fn run_process(process: BenchProcess) -> Result<()> {
    match process {
        BenchProcess::Server { data, burns } => {
            if burns {
                std::thread::spawn(burn);
            }
            serve::runtime()?.block_on(server(data))
        }
        BenchProcess::Peer { json } => bench::part::run(&json).map_err(anyhow::Error::msg),
    }
}

/// Uses a large part of a core until the process ends.
fn burn() {
    loop {
        (0..5_000_000_u32).for_each(|round| _ = std::hint::black_box(round));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the server, and prints its number of commits for each line of input: the only figure that is not visible from
/// outside the process.
async fn server(data: PathBuf) -> Result<()> {
    let mut config = Config::in_folder(data)?;
    serve::allow_this_machine(&mut config.targets);
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen")?;
    let store = Arc::new(serve::open(&config)?);
    println!("listening on http://{}", listener.local_addr()?);
    let counted = Arc::clone(&store);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {
            println!("{}", counted.commits().count);
        }
        // The parent process has ended.
        std::process::exit(0);
    });
    let front = Front { listener, metrics: None, door: Door::Open, data: None };
    serve::served(&store, SystemClock::new(), &config, front, CancellationToken::new()).await?;
    Ok(())
}
