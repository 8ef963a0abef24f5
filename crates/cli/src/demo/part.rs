//! The demo's server, in a process of its own so that it can be killed: `serve --dev` with a faster clock, on this
//! machine alone. `serve` has no flag for that, which could be left on by mistake.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use posthaste_core::Timestamp;
use posthaste_engine::clock::SystemClock;
use posthaste_server::api::caller::Door;
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::config::{Config, LogFormat};
use crate::serve;

/// The file that marks a demo's folder. No other folder is served, since the times in it are those of a fast clock.
pub(super) const MARK: &str = "made-by-posthaste-demo";
/// By the machine's clock. With half a second, a busy machine would look like a slow receiver.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

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

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.folder.join(MARK).exists(),
        "{} is no folder of a demo; `posthaste demo` creates one and starts this command itself",
        args.folder.display()
    );
    std::thread::Builder::new()
        .name("demo-gone".to_owned())
        .spawn(end_with_the_demo)
        .context("cannot start a thread")?;
    let mut config = Config::in_folder(args.folder.join("data"))?;
    config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config.attempt_timeout = ATTEMPT_TIMEOUT;
    serve::allow_this_machine(&mut config.targets);
    serve::log_to_stderr(Targets::new().with_default(LevelFilter::WARN), LogFormat::Text);
    let clock = SystemClock::scaled_since(Timestamp::from_millis(args.since), args.scale);
    serve::runtime()?.block_on(serve::serve(config, Door::Open, clock)).context("the demo's server ended")
}

/// Ends the process when its input closes: the demo holds the other end, and it closes however the demo ends.
fn end_with_the_demo() {
    let mut nothing = [0; 1];
    while std::io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
    std::process::exit(0);
}
