//! Where a command that works beside the server has its settings from: the same file, flags and environment.

use std::path::PathBuf;

use anyhow::Result;

use crate::config::{Config, Flags};

#[derive(clap::Args)]
pub(crate) struct SettingsArgs {
    /// The settings' file, as the server has it; else posthaste.toml, if it is there
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder [default: as the server has it]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Any other setting, as the server has it, such as master_key_file=/etc/posthaste.key; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl SettingsArgs {
    /// The settings, parsed.
    pub(crate) fn load(&self) -> Result<Config> {
        let Self { config, data, set } = self;
        let flags = Flags { config: config.clone(), data: data.clone(), set: set.clone(), ..Flags::default() };
        Ok(Config::load(&flags)?)
    }
}
