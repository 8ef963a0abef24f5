//! `posthaste policy preview`: prints the schedule of a retry policy.

use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use posthaste_core::{Policy, Tier};
use posthaste_server::api::policies::PreviewView;
use posthaste_server::duration;

use crate::say::say;

#[derive(Subcommand)]
pub(crate) enum PolicyCommand {
    /// Show every wait of a policy with its jitter, and the longest outage that the retries outlast
    Preview {
        /// One of the presets
        name: String,
        /// 1, 2, 3, transactional, promotional or engagement
        #[arg(long, default_value = "promotional", value_parser = tier)]
        tier: Tier,
        /// The TTL of the message, such as 24h, or whole seconds; at most 30d
        #[arg(long, value_parser = duration::parse_ttl)]
        ttl: Option<Duration>,
        /// Print the JSON that the API would answer
        #[arg(long)]
        json: bool,
    },
}

fn tier(text: &str) -> Result<Tier, String> {
    let names = Tier::ALL.map(Tier::name).join(", ");
    Tier::parse(text).ok_or_else(|| format!("use 1, 2, 3 or one of {names}"))
}

pub(crate) fn run(command: &PolicyCommand) -> Result<()> {
    let PolicyCommand::Preview { name, tier, ttl, json } = command;
    let policy = Policy::named(name)?;
    let preview = policy.preview(*tier, *ttl);
    if *json {
        say!("{}", serde_json::to_string_pretty(&PreviewView::of(&preview))?)
    } else {
        say!("{}\n\n{}", preview.text, preview.table().trim_end())
    }
}
