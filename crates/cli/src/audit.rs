//! `posthaste audit`: verifies the journal, and prints checkpoints to keep elsewhere.
//!
//! Exit codes of `verify`: 0 if nothing was changed, 1 if there are findings, 2 if the journal could not be verified.

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
use crate::say::{OutputClosed, say};
use crate::serve;
use crate::settings::SettingsArgs;

#[derive(Subcommand)]
pub(crate) enum AuditCommand {
    /// Read the whole journal and report what was changed, with or without a running server
    Verify(VerifyArgs),
    /// Print the newest checkpoint and the public key; keep them on another machine
    Checkpoint {
        #[command(flatten)]
        settings: SettingsArgs,
        /// Print only the public key, in PEM for openssl
        #[arg(long)]
        pem: bool,
        /// Sign a checkpoint of the journal's end first, with the master key, in a folder that no server has open
        #[arg(long, conflicts_with = "pem")]
        sign: bool,
    },
}

#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// A file of checkpoints that were kept elsewhere, one a line; can be given several times
    #[arg(long, value_name = "FILE")]
    checkpoint: Vec<PathBuf>,
    /// The store's public key, or a file with it, kept elsewhere [default: the key in the database]
    #[arg(long, value_name = "KEY|FILE")]
    public_key: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &AuditCommand) -> ExitCode {
    let ended = match command {
        AuditCommand::Verify(args) => run_verify(args),
        AuditCommand::Checkpoint { settings, pem: true, .. } => print_key(settings).map(|()| ExitCode::SUCCESS),
        AuditCommand::Checkpoint { settings, sign, .. } => run_checkpoint(settings, *sign).map(|()| ExitCode::SUCCESS),
    };
    ended.unwrap_or_else(|error| {
        if error.is::<OutputClosed>() {
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
        // What retention has deleted by these settings may be missing.
        retention: config.retention,
        public_key: args.public_key.as_deref().map(keep::public_key).transpose()?,
        checkpoints: keep::checkpoints(&args.checkpoint)?,
    };
    let mut bar = show::ProgressBar::new();
    let verified = verify(&folder, &trust, |progress| bar.show(progress));
    bar.clear();
    let verified = verified?;
    let printed = if args.json { show::json(&verified, &trust) } else { show::words(&verified, &trust) };
    let code = if verified.report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    match printed {
        // The exit code is the same if the reader closes the pipe early.
        Err(error) if error.is::<OutputClosed>() => Ok(code),
        printed => printed.map(|()| code),
    }
}

fn print_key(settings: &SettingsArgs) -> Result<()> {
    let (_, key) = newest_checkpoint(&settings.load()?.data)?;
    say!("{}", key.to_pem().trim_end())
}

fn run_checkpoint(settings: &SettingsArgs, sign: bool) -> Result<()> {
    let config = settings.load()?;
    // First, since it fails without a store: signing would create an empty one.
    let (newest, key) = newest_checkpoint(&config.data)?;
    let newest = if sign { serve::runtime()?.block_on(signed_now(&config))? } else { newest };
    let newest = newest.context("there is no checkpoint yet; a server signs one in its first second")?;
    say!("{}\n{}", newest.line, keep::key_line(&key))
}

async fn signed_now(config: &Config) -> Result<Option<Signed>> {
    let store = serve::open(config)
        .context("cannot sign; if a server has the folder open, it signs every minute: leave --sign out")?;
    let clock = SystemClock::new();
    let session = store.open(clock.now()).await?.session;
    let signed = store.sign_now(session, clock.now()).await;
    store.close().await;
    Ok(signed?)
}
