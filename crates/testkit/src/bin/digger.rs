//! The attacker of the proof `erasure`: it has a store's files and its master key. Started by the proof.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    posthaste_testkit::proofs::erasure::digger::main(&args)
}
