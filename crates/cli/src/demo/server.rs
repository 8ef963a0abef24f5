//! The demo's server, in a process of its own so that it can be killed: `serve --dev` with a faster clock, on this
//! machine alone. `serve` has no flag for that, which could be left on by mistake.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use posthaste_core::Timestamp;
use posthaste_engine::clock::SystemClock;
use posthaste_server::api::caller::Door;
use posthaste_testkit::fixtures::part::{ChildProcess, end_with_input};
use posthaste_testkit::fixtures::posthaste::address_in;
use tokio::time::timeout;
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::plan::{DemoClock, SCALE};
use crate::config::{Config, LogFormat};
use crate::serve;

/// The file that marks a demo's folder. No other folder is served, since the times in it are those of a fast clock.
const MARK: &str = "made-by-posthaste-demo";
/// By the machine's clock. With half a second, a busy machine would look like a slow receiver.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// The most time until the server listens; generous, for a busy machine.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
/// The file of its stderr.
const LOG: &str = "server.log";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    scale: u32,
    /// The machine's time when the demo's clock began, in milliseconds
    #[arg(long)]
    since: i64,
}

/// Runs the server. It ends when its input closes: the demo holds the other end, and it closes however the demo ends.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.folder.join(MARK).exists(),
        "{} is no folder of a demo; `posthaste demo` creates one and starts this command itself",
        args.folder.display()
    );
    end_with_input();
    let mut config = Config::in_folder(args.folder.join("data"))?;
    config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config.attempt_timeout = ATTEMPT_TIMEOUT;
    serve::allow_this_machine(&mut config.targets);
    serve::log_to_stderr(Targets::new().with_default(LevelFilter::WARN), LogFormat::Text);
    let clock = SystemClock::scaled_since(Timestamp::from_millis(args.since), args.scale);
    serve::runtime()?.block_on(serve::serve(config, Door::Open, clock)).context("the demo's server ended")
}

/// A running server. Its process ends with this value.
#[derive(Debug)]
pub(super) struct DemoServer {
    process: ChildProcess,
    pub(super) address: SocketAddr,
    /// Kept open so that the server can print later.
    _output: BufReader<ChildStdout>,
}

impl DemoServer {
    pub(super) fn prepare(folder: &Path) -> Result<()> {
        File::create(folder.join(MARK)).context("cannot write into the demo's folder")?;
        Ok(())
    }

    /// Starts this program again, as a server over the data in the folder, and waits until it listens.
    pub(super) async fn start(folder: &Path, clock: &DemoClock) -> Result<Self> {
        let log = File::options().create(true).append(true).open(folder.join(LOG)).context("cannot write a log")?;
        let mut command = Command::new(std::env::current_exe().context("cannot find this program's file")?);
        command.arg("demo-part").arg("--folder").arg(folder);
        command.args(["--scale", &SCALE.to_string(), "--since", &clock.since.as_millis().to_string()]);
        // In a group of its own, so that Ctrl-C does not reach it: the demo ends the server itself.
        let mut process = ChildProcess::spawn(command.stderr(log).process_group(0)).map_err(anyhow::Error::msg)?;
        let output = process.says().map_err(anyhow::Error::msg)?;
        let (address, output) = listening(output).await.with_context(|| complaint(folder))?;
        Ok(Self { process, address, _output: output })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills the server with SIGKILL and waits for its end.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.process.kill()
    }

    /// Fails if the server has ended by itself.
    pub(super) fn still_runs(&mut self, folder: &Path) -> Result<()> {
        if self.process.runs()? {
            return Ok(());
        }
        bail!("the server ended by itself, {}: {}", self.process.ends()?, complaint(folder))
    }
}

/// Waits until the server prints its address. The receivers go on meanwhile: a thread of its own reads the line.
async fn listening(mut output: BufReader<ChildStdout>) -> Result<(SocketAddr, BufReader<ChildStdout>)> {
    let reading = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        output.read_line(&mut line).map(|_| (line, output))
    });
    let (line, output) = timeout(LISTENS_WITHIN, reading).await.context("it does not print its address")???;
    Ok((address_in(&line).with_context(|| format!("it printed {line:?} instead of its address"))?, output))
}

fn complaint(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    let last = log.lines().next_back().unwrap_or("its log is empty");
    format!("the demo's server: {last}")
}
