//! `posthaste keys`: which master key seals the data, and a newer one in its place.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Subcommand;
use posthaste_engine::clock::SystemClock;
use posthaste_engine::master_key::keeper::Keeper;
use posthaste_engine::rotation::rotate_now;
use posthaste_store::sqlite::rotation::status;
use posthaste_store::{Outbox, Rotation};

use crate::config::{Config, Flags};
use crate::say::say;
use crate::serve;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Which master key is needed, and how far a rotation is; beside a server or without one
    Status {
        /// The data folder [default: as the server has it]
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
    /// Put a newer master key in the place of the old one, in a folder that no server has open
    Rotate {
        /// The data folder [default: as the server has it]
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Status { data } => {
            let config = load(data.clone())?;
            let told = words(&status(&config.data)?);
            say!("{told}")
        }
        Command::Rotate { data } => serve::runtime()?.block_on(rotate(&load(data.clone())?)),
    }
}

fn load(data: Option<PathBuf>) -> Result<Config> {
    Ok(Config::load(&Flags { data, ..Flags::default() })?)
}

async fn rotate(config: &Config) -> Result<()> {
    // Never makes a store: there would be nothing to rotate.
    status(&config.data)?;
    let store = Arc::new(serve::open(config)?);
    let session = store.open().await?.session;
    let keeper = Keeper::new(&config.master_key, &config.data);
    let rotated = rotate_now(store.as_ref(), session, &SystemClock::new(), keeper, |_| {}).await;
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
