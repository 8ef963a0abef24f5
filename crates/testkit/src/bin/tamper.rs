//! The attacker of the proof `audit-tamper`: has a copy of a store's file and an old checkpoint, and no
//! key. Changes the file in one way and says which.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    posthaste_testkit::audit_tamper::main(&args.iter().map(String::as_str).collect::<Vec<_>>())
}
