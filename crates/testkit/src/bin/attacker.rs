//! Somebody who has a store's files and no key: for the proof `sealed`, which starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    posthaste_testkit::sealed::attacker::main(&args)
}
