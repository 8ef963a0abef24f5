//! `posthaste audit`: whether a journal is what was written, and checkpoints to keep elsewhere.
//!
//! Exit codes of `verify`: 0 when everything is as it was written, 1 when something is not, 2 when that
//! could not be found out.

mod keep;
pub(crate) mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_store::Retention;
use posthaste_store::sqlite::audit::{Trust, newest_checkpoint, verify};

use crate::config::{Config, Flags};
use crate::say::{NobodyReads, say};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read the whole journal, beside a server or without one, and tell what is not as it was written
    Verify(VerifyArgs),
    /// Print the newest checkpoint and the public key: keep them on another machine
    Checkpoint {
        /// The data folder [default: as the server has it]
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Print the public key alone, as openssl takes it
        #[arg(long)]
        pem: bool,
    },
}

#[derive(clap::Args)]
struct VerifyArgs {
    /// The data folder [default: as the server has it]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Checkpoints that were kept elsewhere, one a line; may be given more than once
    #[arg(long, value_name = "FILE")]
    checkpoint: Vec<PathBuf>,
    /// The store's public key, or a file with it, from elsewhere [default: the file's own]
    #[arg(long, value_name = "KEY|FILE")]
    public_key: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let ended = match &args.command {
        Command::Verify(args) => run_verify(args),
        Command::Checkpoint { data, pem } => run_checkpoint(data.clone(), *pem).map(|()| ExitCode::SUCCESS),
    };
    ended.unwrap_or_else(|error| {
        if error.is::<NobodyReads>() {
            return ExitCode::SUCCESS;
        }
        eprintln!("posthaste: {error:#}");
        ExitCode::from(2)
    })
}

fn run_verify(args: &VerifyArgs) -> Result<ExitCode> {
    let folder = folder(args.data.clone())?;
    let trust = Trust {
        now: SystemClock::new().now(),
        retention: Retention::default(),
        public_key: args.public_key.as_deref().map(keep::public_key).transpose()?,
        checkpoints: keep::checkpoints(&args.checkpoint)?,
    };
    let mut bar = show::Bar::new();
    let verified = verify(&folder, &trust, |progress| bar.show(progress));
    bar.clear();
    let verified = verified?;
    let told = if args.json { show::json(&verified, &trust) } else { show::words(&verified, &trust) };
    let code = if verified.report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    match told {
        // What was found out holds, whoever reads it.
        Err(error) if error.is::<NobodyReads>() => Ok(code),
        told => told.map(|()| code),
    }
}

fn run_checkpoint(data: Option<PathBuf>, pem: bool) -> Result<()> {
    let (newest, key) = newest_checkpoint(&folder(data)?)?;
    if pem {
        return say!("{}", key.to_pem().trim_end());
    }
    let newest = newest.context("nothing is signed for yet; a server does that in its first second")?;
    say!("{}\n{}", newest.line, keep::key_line(&key))
}

fn folder(data: Option<PathBuf>) -> Result<PathBuf> {
    Ok(Config::load(&Flags { data, ..Flags::default() })?.data)
}
