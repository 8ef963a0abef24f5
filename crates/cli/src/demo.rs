//! `posthaste demo`: a server over a real file, receivers on real sockets that fail as receivers do, thousands of
//! messages, and `kill -9` in the middle. At the end a ledger compares the accepted messages with the results that the
//! server reports and with the receivers' own counts.
//!
//! `plan` has the times of all events and `behaviour` the answers of each receiver; both are pure. `run` plays the demo:
//! `server` is a process of its own, `receiver` and `producer` are the two sides of it, and `ledger` compares them. `screen` shows `frame`s meanwhile; `report` and `outage` make the final
//! output. All traffic stays on this machine, and only the SVG file is left behind.

mod api;
mod behaviour;
mod frame;
mod ledger;
mod outage;
mod paint;
mod plan;
mod producer;
mod receiver;
mod report;
mod run;
mod screen;
pub(crate) mod server;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use posthaste_prove::chart::{self, svg};
use tokio::signal::unix::{SignalKind, signal};

use crate::say::say;
use crate::serve::runtime;
use paint::wrap;
use plan::DemoPlan;
use report::DemoReport;
use run::DemoRun;
use screen::Screen;

/// The default file of the chart.
const PICTURE: &str = "posthaste-demo.svg";
/// The exit code that shells expect of a command that was ended by Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long to send messages
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=40))]
    seconds: u64,
    /// How many messages to send
    #[arg(long, default_value_t = 6_000, value_parser = clap::value_parser!(u64).range(60..=20_000))]
    messages: u64,
    /// Print the ledger as one JSON object, and nothing else
    #[arg(long)]
    json: bool,
    /// Draw the load on the broken receiver into this file [default: posthaste-demo.svg; none with --json]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A signal ended the demo early. That is not an error, and has an exit code of its own.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped; nothing was left behind")
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let plan = DemoPlan::new(args.seconds, args.messages)?;
    // Checked before the demo begins, since the chart is written at its end.
    if let Some(folder) = args.svg.as_deref().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty()) {
        ensure!(folder.is_dir(), "cannot write {}: there is no such folder", args.svg_path().display());
    }
    // Dropped at the end of this function, and with it the data, however the demo ends.
    let folder = tempfile::Builder::new().prefix("posthaste-demo-").tempdir();
    let folder = folder.context("cannot make a folder for the data")?;
    runtime()?.block_on(async {
        tokio::select! {
            biased;
            interrupted = interrupted() => Err(anyhow::Error::msg(interrupted?)),
            ended = show(args, plan, folder.path()) => ended,
        }
    })
}

impl Args {
    fn svg_path(&self) -> &Path {
        self.svg.as_deref().unwrap_or(Path::new(PICTURE))
    }
}

/// Waits for SIGINT, SIGTERM, or SIGHUP, which a closed terminal sends.
async fn interrupted() -> Result<Interrupted> {
    let [mut interrupt, mut terminate, mut hang_up] =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    Ok(Interrupted)
}

async fn show(args: &Args, plan: DemoPlan, folder: &Path) -> Result<()> {
    let mut screen = if args.json { Screen::silent() } else { Screen::open()? };
    let report = DemoRun::begin(plan, folder).await?.run(&mut screen).await?;
    let picture = &report.outage.picture;
    let drawn = match &args.svg {
        None if args.json => None,
        given => {
            let written = std::fs::write(args.svg_path(), svg::render(picture));
            let written = written.with_context(|| format!("cannot write {}", args.svg_path().display()));
            match written {
                Ok(()) => Some(args.svg_path()),
                // Without --svg, a chart that cannot be written to the default file is not an error.
                Err(_) if given.is_none() => None,
                Err(error) => return Err(error),
            }
        }
    };
    if args.json {
        say!("{}", serde_json::to_string(&report)?)?;
    } else {
        print_report(&screen, &report, drawn)?;
    }
    match report.ledger.complaints() {
        none if none.is_empty() => Ok(()),
        complaints => bail!("the ledger does not close: {}", complaints.join(", ")),
    }
}

fn print_report(screen: &Screen, report: &DemoReport, drawn: Option<&Path>) -> Result<()> {
    let (picture, width) = (&report.outage.picture, screen.width().min(chart::WIDTH));
    screen.tell(&report.ledger(width))?;
    for prose in ["", &picture.title, &picture.subtitle, ""] {
        screen.print(&format!("{}\n", wrap(prose, width).join("\n")))?;
    }
    screen.print(&chart::terminal(picture, width))?;
    screen.print("\n")?;
    screen.print(&report.summary())?;
    let shown = drawn.map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
    screen.tell(&report::next_steps(shown.as_deref()))
}
