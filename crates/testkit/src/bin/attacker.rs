//! The attacker of the proofs `sealed` and `rotation`: it has a store's files, and no master key or only former ones.
//! Started by the proofs.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [what, folder] if what == "unwrap" => posthaste_testkit::proofs::rotation::attacker::main(folder),
        _ => posthaste_testkit::proofs::sealed::attacker::main(&args),
    }
}
