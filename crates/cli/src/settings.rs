//! The flags of commands that work on a server's data folder: they read the same settings as the server.

use std::path::PathBuf;

use anyhow::Result;

use crate::config::{Config, Flags};

#[derive(clap::Args)]
pub(crate) struct SettingsArgs {
    /// The server's settings file [default: posthaste.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder [default: as in the server's settings]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Any other setting of the server, such as master_key_file=/etc/posthaste.key; can be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl SettingsArgs {
    pub(crate) fn load(&self) -> Result<Config> {
        let Self { config, data, set } = self;
        let flags = Flags { config: config.clone(), data: data.clone(), set: set.clone(), ..Flags::default() };
        Ok(Config::load(&flags)?)
    }
}
