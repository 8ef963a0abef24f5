//! The command as somebody types it.

mod audit;
mod backup;
mod demo;
mod keys;
mod policy;
mod serve;
mod simulate;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

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

/// A server that was started by this line, and the line it said first.
fn serving(folder: &Path, line: &str) -> (Child, String) {
    let mut server =
        posthaste(folder, line).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command starts");
    let mut said = String::new();
    let heard = BufReader::new(server.stdout.take().expect("piped")).read_line(&mut said);
    heard.expect("it says something");
    (server, said)
}

/// A server that has begun, and has signed for its first rows.
fn begun(folder: &Path) -> Child {
    let (server, said) = serving(folder, "serve --dev --listen 127.0.0.1:0");
    assert!(said.contains("listening"), "{said:?}");
    // It does so in its first second; before, it may not listen to signals yet. Each look is a process of its own.
    assert!((0..1_000).any(|_| ended(folder, "audit checkpoint").0), "it never begins");
    server
}

/// Asks a server to end, which it does well.
fn stop(mut server: Child) {
    let asked = Command::new("kill").args(["-TERM", &server.id().to_string()]).status();
    assert!(asked.expect("kill runs").success());
    assert!(server.wait().expect("it ends").success());
}
