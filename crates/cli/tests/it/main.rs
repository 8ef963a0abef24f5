//! The `posthaste` command, run as a process.

mod audit;
mod backup;
mod bench;
mod demo;
mod keys;
mod policy;
mod serve;
mod simulate;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// The command with these arguments, in this folder and without an environment, so that no settings leak in.
fn posthaste(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(line.split_whitespace()).current_dir(folder).env_clear().stdin(Stdio::null());
    command
}

/// Runs a command to its end; returns whether it succeeded, its stdout and its stderr.
fn ended(folder: &Path, line: &str) -> (bool, String, String) {
    let output = posthaste(folder, line).output().expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Runs a command that must succeed; returns its stdout.
fn succeeded(folder: &Path, line: &str) -> String {
    let (ok, printed, complaint) = ended(folder, line);
    assert!(ok, "{line}: {printed}{complaint}");
    printed
}

/// Runs a command that must succeed and print one JSON object.
fn json(folder: &Path, line: &str) -> Value {
    let printed = succeeded(folder, line);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{line}: {error}: {printed}"))
}

/// Runs a command that must fail with a complaint that contains `expected`; returns the complaint.
fn refused(folder: &Path, line: &str, expected: &str) -> String {
    let (ok, _, complaint) = ended(folder, line);
    assert!(!ok && complaint.contains(expected), "{line}: {complaint}");
    complaint
}

/// A server that is killed when a test drops it, also when the test fails.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Starts a server with these arguments and this stderr; returns it with the first line of its stdout.
fn serving(folder: &Path, line: &str, stderr: impl Into<Stdio>) -> (ServerProcess, String) {
    let mut server = posthaste(folder, line).stdout(Stdio::piped()).stderr(stderr).spawn().expect("the command starts");
    let mut line = String::new();
    let read = BufReader::new(server.stdout.take().expect("piped")).read_line(&mut line);
    read.expect("it prints a line");
    (ServerProcess(server), line)
}

/// Starts a server and waits until it has signed its first checkpoint.
fn begun(folder: &Path) -> ServerProcess {
    let (server, line) = serving(folder, "serve --dev --listen 127.0.0.1:0", Stdio::null());
    assert!(line.contains("listening"), "{line:?}");
    // It signs in its first second; before that it may not handle signals yet. Each try is a process of its own.
    assert!((0..1_000).any(|_| ended(folder, "audit checkpoint").0), "it never signs a checkpoint");
    server
}

/// Ends a process with SIGKILL, so that it can do nothing more.
fn kill(mut server: ServerProcess) {
    server.0.kill().and_then(|()| server.0.wait()).expect("it runs until it is killed");
}

/// Ends a server with SIGTERM, and checks that it succeeds.
fn stop(mut server: ServerProcess) {
    let killed = Command::new("kill").args(["-TERM", &server.0.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    assert!(server.0.wait().expect("it ends").success());
}
