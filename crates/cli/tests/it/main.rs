//! The command as somebody types it.

mod audit;
mod backup;
mod keys;
mod policy;
mod serve;
mod simulate;

use std::path::Path;
use std::process::{Command, Stdio};

/// The command, away from whatever settings happen to be around.
fn posthaste(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(line.split_whitespace()).current_dir(folder).env_clear().stdin(Stdio::null());
    command
}

/// Runs a command to its end: whether it succeeded, what it printed, what it complained of.
fn ended(folder: &Path, line: &str) -> (bool, String, String) {
    let output = posthaste(folder, line).output().expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}
