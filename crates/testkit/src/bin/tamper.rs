//! The attacker of the proof `audit-tamper`: it has a copy of a database file and an old checkpoint, but no key. It
//! changes the file in one way and prints which. Started by the proof.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    posthaste_testkit::proofs::audit_tamper::main(&args.iter().map(String::as_str).collect::<Vec<_>>())
}
