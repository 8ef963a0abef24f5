//! `posthaste audit`: verifies the journal, and prints checkpoints to keep elsewhere.
//!
//! Exit codes of `verify`: 0 if nothing was changed, 1 if there are findings, 2 if the journal could not be verified.

pub(crate) mod show;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use posthaste_crypto::checkpoint::{PublicKey, claimed};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_store::sqlite::audit::{Trust, newest_checkpoint, verify};
use posthaste_store::{Checkpoints, Outbox, Signed};

use crate::config::{Config, SettingsArgs};
use crate::say::{OutputClosed, say};
use crate::serve;

/// Begins the line of a public key, as `audit checkpoint` prints it.
const KEY: &str = "posthaste public key ";

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
        public_key: args.public_key.as_deref().map(public_key).transpose()?,
        checkpoints: checkpoints(&args.checkpoint)?,
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
    say!("{}\n{KEY}{key}", newest.line)
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

/// Reads the checkpoints in files. Fails on a file without any, and on a line that is neither checkpoint nor key.
fn checkpoints(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in files {
        let before = found.len();
        for (number, line) in lines(file)? {
            if line.starts_with(KEY) {
                continue;
            }
            if claimed(&line).is_none() {
                bail!("line {number} of {} is no checkpoint; use the lines as they were printed", file.display());
            }
            found.push(line);
        }
        ensure!(found.len() > before, "{} has no checkpoint", file.display());
    }
    Ok(found)
}

/// Reads a public key from an argument: the key itself, or a file with exactly one.
fn public_key(given: &str) -> Result<PublicKey> {
    if let Some(key) = PublicKey::parse(given.strip_prefix(KEY).unwrap_or(given)) {
        return Ok(key);
    }
    let lines = lines(Path::new(given)).context("--public-key is neither a key nor a file that can be read")?;
    let mut keys: Vec<PublicKey> = Vec::new();
    for (_, line) in lines {
        let key = PublicKey::parse(line.strip_prefix(KEY).unwrap_or(&line));
        keys.extend(key.filter(|key| !keys.contains(key)));
    }
    match keys[..] {
        [key] => Ok(key),
        [] => bail!("{given} has no public key; it is the line `{KEY}…` of `posthaste audit checkpoint`"),
        _ => bail!("{given} has {} public keys; keep only the one of this store", keys.len()),
    }
}

/// The lines of a file with their numbers, without empty lines and comments.
fn lines(file: &Path) -> Result<Vec<(usize, String)>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let kept = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    Ok(kept.map(|(number, line)| (number + 1, line.to_owned())).collect())
}
