//! The attacker of the proof `retry-tokens`: it has the database file but no key. Started by the proof.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    posthaste_testkit::proofs::retry_tokens::forger::main(&args)
}
