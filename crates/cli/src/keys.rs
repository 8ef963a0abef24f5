//! `posthaste keys`: which master key seals the data, and a newer one in its place.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Subcommand;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::master_key::keeper::Keeper;
use posthaste_engine::rotation::rotate_now;
use posthaste_store::sqlite::rotation::status;
use posthaste_store::{Outbox, Rotation};
use serde_json::{Value, json};

use crate::config::Config;
use crate::say::say;
use crate::serve;
use crate::settings::SettingsArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Which master key is needed, and how far a rotation is; beside a server or without one
    Status {
        #[command(flatten)]
        settings: SettingsArgs,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put a newer master key in the place of the old one, in a folder that no server has open
    Rotate {
        #[command(flatten)]
        settings: SettingsArgs,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Status { settings, json } => {
            let rotation = status(&settings.load()?.data)?;
            let told = if *json { object(&rotation).to_string() } else { words(&rotation) };
            say!("{told}")
        }
        Command::Rotate { settings } => serve::runtime()?.block_on(rotate(&settings.load()?)),
    }
}

/// What the API answers to `GET /v1/master-key/rotation`, as far as a folder tells it.
fn object(rotation: &Rotation) -> Value {
    let Rotation { newest, older, offered, rewrapped, left } = rotation;
    json!({
        "under_way": rotation.is_under_way(),
        "newest": newest.to_string(),
        "older": older.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "offered": offered.map(|offered| offered.to_string()),
        "rewrapped": rewrapped,
        "left": left,
    })
}

async fn rotate(config: &Config) -> Result<()> {
    // Never makes a store: there would be nothing to rotate.
    status(&config.data)?;
    let store = Arc::new(serve::open(config)?);
    let clock = SystemClock::new();
    let session = store.open(clock.now()).await?.session;
    let keeper = Keeper::new(&config.master_key, &config.data);
    let rotated = rotate_now(store.as_ref(), session, &clock, keeper, |_| {}).await;
    store.close().await;
    let rotated = rotated.context("the master key is not rotated")?;
    say!(
        "{}\n{} keys were wrapped anew. Backups made before need the old key; keep a copy of the new one.",
        words(&rotated),
        rotated.rewrapped
    )
}

fn words(rotation: &Rotation) -> String {
    let Rotation { newest, older, rewrapped, left, .. } = rotation;
    if older.is_empty() {
        return format!("The data are sealed under master key {newest}.");
    }
    let older: Vec<String> = older.iter().map(ToString::to_string).collect();
    format!(
        "The master key is being rotated from {} to {newest}: {rewrapped} keys are wrapped anew, {left} are left. Both are \
         needed.",
        older.join(", ")
    )
}
