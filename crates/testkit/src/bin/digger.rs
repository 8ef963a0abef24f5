//! Somebody who has a store's files and its master key: for the proof `erasure`, which starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    posthaste_testkit::erasure::digger::main(&args)
}
