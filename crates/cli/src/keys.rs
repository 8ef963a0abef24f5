//! `posthaste keys`: shows which master key the data needs, and rotates it.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Subcommand;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::master_key::keeper::Keeper;
use posthaste_engine::rotation::rotate_now;
use posthaste_store::sqlite::rotation::status;
use posthaste_store::{Outbox, Rotation};
use serde_json::{Value, json};

use crate::config::{Config, SettingsArgs};
use crate::say::say;
use crate::serve;

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Show which master key is needed and the progress of a rotation, with or without a running server
    Status {
        #[command(flatten)]
        settings: SettingsArgs,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Replace the master key by a newer one, in a folder that no server has open
    Rotate {
        #[command(flatten)]
        settings: SettingsArgs,
    },
}

pub(crate) fn run(command: &KeysCommand) -> Result<()> {
    match command {
        KeysCommand::Status { settings, json } => {
            let rotation = status(&settings.load()?.data)?;
            let text = if *json { object(&rotation).to_string() } else { words(&rotation) };
            say!("{text}")
        }
        KeysCommand::Rotate { settings } => serve::runtime()?.block_on(rotate(&settings.load()?)),
    }
}

/// The answer of `GET /v1/master-key/rotation`, with what a folder alone shows.
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
    // Fails without a store: opening would create an empty one.
    status(&config.data)?;
    let store = Arc::new(serve::open(config)?);
    let clock = SystemClock::new();
    let session = store.open(clock.now()).await?.session;
    let keeper = Keeper::new(&config.master_key, &config.data);
    let rotated = rotate_now(store.as_ref(), session, &clock, keeper, |_| {}).await;
    store.close().await;
    let rotated = rotated.context("the master key is not rotated")?;
    say!(
        "{}\n{} keys were rewrapped. Earlier backups need the old key; keep a copy of the new one.",
        words(&rotated),
        rotated.rewrapped
    )
}

fn words(rotation: &Rotation) -> String {
    let Rotation { newest, older, rewrapped, left, .. } = rotation;
    if older.is_empty() {
        return format!("The data is encrypted under master key {newest}.");
    }
    let older: Vec<String> = older.iter().map(ToString::to_string).collect();
    format!(
        "The master key is being rotated from {} to {newest}: {rewrapped} keys are rewrapped, {left} are left. Both \
         master keys are needed.",
        older.join(", ")
    )
}
