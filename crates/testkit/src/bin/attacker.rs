//! Somebody who has a store's files, and no key or an old one: for the proofs `sealed` and `rotation`, which
//! start it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [what, folder] if what == "unwrap" => posthaste_testkit::rotation::attacker::main(folder),
        _ => posthaste_testkit::sealed::attacker::main(&args),
    }
}
