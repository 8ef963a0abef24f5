//! One part of the proofs `store-kill9` and `store-backlog`: a process that is killed, one whose memory
//! is looked at, or one of those that give it work. Started by the proofs.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [role, folder] if role == "accepts" => posthaste_testkit::store_backlog::main(folder),
        [role, folder] if role == "streams" => posthaste_testkit::store_backlog::streams::main(folder),
        _ => posthaste_testkit::store_kill9::main(&args),
    }
}
