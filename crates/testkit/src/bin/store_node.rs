//! A child process of the proofs `store-kill9`, `store-backlog`, `rotation` and `backup`: a node that is killed, a
//! process whose memory is measured, or a producer. Started by the proofs.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [role, folder] if role == "accepts" => posthaste_testkit::proofs::store_backlog::main(folder),
        [role, folder] if role == "streams" => posthaste_testkit::proofs::store_backlog::streams::main(folder),
        [role, folder] if role == "keyed" => posthaste_testkit::proofs::keyed::main(folder),
        _ => posthaste_testkit::proofs::store_kill9::main(&args),
    }
}
