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
use posthaste_store::sqlite::audit::{Trust, newest_checkpoint, verify};
use posthaste_store::{Checkpoints, Outbox, Signed};

use crate::config::Config;
use crate::say::{NobodyReads, say};
use crate::serve;
use crate::settings::SettingsArgs;

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
        #[command(flatten)]
        settings: SettingsArgs,
        /// Print the public key alone, as openssl takes it
        #[arg(long)]
        pem: bool,
        /// Sign for the journal's end first, with the master key, in a folder that no server has open
        #[arg(long, conflicts_with = "pem")]
        sign: bool,
    },
}

#[derive(clap::Args)]
struct VerifyArgs {
    #[command(flatten)]
    settings: SettingsArgs,
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
        Command::Checkpoint { settings, pem: true, .. } => print_key(settings).map(|()| ExitCode::SUCCESS),
        Command::Checkpoint { settings, sign, .. } => run_checkpoint(settings, *sign).map(|()| ExitCode::SUCCESS),
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
    let config = args.settings.load()?;
    let folder = config.data;
    let trust = Trust {
        now: SystemClock::new().now(),
        // What the settings let go, the trail may lack.
        retention: config.retention,
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

fn print_key(settings: &SettingsArgs) -> Result<()> {
    let (_, key) = newest_checkpoint(&settings.load()?.data)?;
    say!("{}", key.to_pem().trim_end())
}

fn run_checkpoint(settings: &SettingsArgs, sign: bool) -> Result<()> {
    let config = settings.load()?;
    // Before anything is signed: it never makes a store.
    let (newest, key) = newest_checkpoint(&config.data)?;
    let newest = if sign { serve::runtime()?.block_on(signed_now(&config))? } else { newest };
    let newest = newest.context("nothing is signed for yet; a server does that in its first second")?;
    say!("{}\n{}", newest.line, keep::key_line(&key))
}

async fn signed_now(config: &Config) -> Result<Option<Signed>> {
    let store = serve::open(config)
        .context("cannot sign; a server that has the folder open signs every minute by itself: leave --sign out")?;
    let clock = SystemClock::new();
    let session = store.open(clock.now()).await?.session;
    let signed = store.sign_now(session, clock.now()).await;
    store.close().await;
    Ok(signed?)
}
