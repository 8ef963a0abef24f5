//! `posthaste backup` and `posthaste restore`: copies the data, and creates a data folder from a copy.

use std::path::PathBuf;

use anyhow::Result;
use posthaste_core::Timestamp;
use posthaste_crypto::master::KeyCheck;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::master_key;
use posthaste_store::sqlite::backup::manifest::Manifest;
use posthaste_store::sqlite::backup::restore::{Restored, WouldSend, restore};
use posthaste_store::sqlite::backup::{CopyProgress, back_up};
use serde_json::{Value, json};

use crate::audit::show::ProgressBar;
use crate::config::{Config, SettingsArgs};
use crate::say::say;
use crate::serve;

/// The most endpoints that a restore lists; further ones are only counted.
const SHOWN: usize = 20;

#[derive(clap::Args)]
pub(crate) struct BackupArgs {
    /// The folder to create
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct RestoreArgs {
    /// The backup; the data folder may contain nothing but master.key
    #[arg(value_name = "FROM")]
    from: PathBuf,
    #[command(flatten)]
    settings: SettingsArgs,
    /// A newer list of erasures than those in the backup and beside it; can be given several times
    #[arg(long, value_name = "FILE")]
    erasures: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run_backup(args: &BackupArgs) -> Result<()> {
    let config = args.settings.load()?;
    let mut bar = ProgressBar::new();
    let made = back_up(&config.data, &args.to, SystemClock::new().now(), |progress| {
        bar.show(shown(progress));
        true
    });
    bar.clear();
    let made = made?;
    if args.json {
        return say!("{}", json!({ "to": args.to.display().to_string(), "backup": manifest(&made) }));
    }
    say!("{} holds {} MB as of {}.", args.to.display(), made.bytes / 1_000_000, at(made.at))?;
    say!("Restoring it needs master key {}, which is not in the backup.", keys(&made))
}

pub(crate) fn run_restore(args: &RestoreArgs) -> Result<()> {
    let config = args.settings.load()?;
    let ask =
        |needed: &[KeyCheck]| master_key::load(&config.master_key, &config.data, needed).map_err(|why| why.to_string());
    let mut bar = ProgressBar::new();
    let now = SystemClock::new().now();
    let restored =
        serve::runtime()?.block_on(restore(&args.from, &config.data, &args.erasures, now, ask, |progress| {
            bar.show(shown(progress));
        }));
    bar.clear();
    let restored = restored?;
    if args.json { say!("{}", object(&restored, &config)) } else { print(&restored, &config) }
}

fn object(restored: &Restored, config: &Config) -> Value {
    let Restored { manifest: made, would_send, erased_again } = restored;
    let each = |one: &WouldSend| {
        json!({
            "endpoint": one.endpoint,
            "tenant": one.tenant,
            "pending": one.pending,
            "due": one.due,
            "first_due": at(one.first_due),
        })
    };
    json!({
        "data": config.data.display().to_string(),
        "backup": manifest(made),
        "paused": true,
        "erased_again": erased_again.applied,
        "erasures_refused": erased_again.refused,
        "would_send": would_send.iter().map(each).collect::<Vec<_>>(),
    })
}

fn manifest(made: &Manifest) -> Value {
    let keys: Vec<String> = made.master_keys.iter().map(ToString::to_string).collect();
    json!({ "at": at(made.at), "bytes": made.bytes, "pending": made.pending, "master_keys": keys })
}

fn print(restored: &Restored, config: &Config) -> Result<()> {
    let Restored { manifest, would_send, erased_again } = restored;
    say!(
        "{} is restored as of {}. It is paused: nothing is sent until you resume it.",
        config.data.display(),
        at(manifest.at)
    )?;
    if erased_again.applied > 0 {
        say!("{} erasures from after the backup were made again.", erased_again.applied)?;
    }
    if erased_again.refused > 0 {
        say!("{} lines of the list of erasures were skipped: another store's, or damaged.", erased_again.refused)?;
    }
    let all: u64 = would_send.iter().map(|one| one.pending).sum();
    if all == 0 {
        return say!("No deliveries are pending.");
    }
    say!("{all} deliveries are pending. The original may have sent them since; they would be sent again:")?;
    for one in would_send.iter().take(SHOWN) {
        let tenant = one.tenant.as_ref().map_or("no tenant".to_owned(), |tenant| format!("tenant {tenant}"));
        say!(
            "  {} ({tenant}): {} pending, {} due, the first at {}",
            one.endpoint,
            one.pending,
            one.due,
            at(one.first_due)
        )?;
    }
    if would_send.len() > SHOWN {
        say!("  and {} more endpoints", would_send.len() - SHOWN)?;
    }
    say!("Resume it with POST /v1/resume and {{\"scope\": \"all\"}} once you are sure that the original sends no more.")
}

fn shown(progress: CopyProgress) -> posthaste_store::sqlite::audit::AuditProgress {
    posthaste_store::sqlite::audit::AuditProgress { done: progress.done, of: progress.of }
}

fn keys(manifest: &Manifest) -> String {
    manifest.master_keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn at(time: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(time.as_millis()).map(|at| format!("{at:.0}")).unwrap_or_default()
}
