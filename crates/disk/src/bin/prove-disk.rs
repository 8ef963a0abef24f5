//! The proofs that need a disk which fails: [`posthaste_disk::PROOFS`].

use std::process::ExitCode;

fn main() -> ExitCode {
    posthaste_testkit::prove::command_line::main(posthaste_disk::PROOFS)
}
