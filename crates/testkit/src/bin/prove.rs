//! The proofs of the testkit ([`PROOFS`]), and the child processes that they start.

use std::process::ExitCode;

use posthaste_testkit::fixtures::part::CHILD;
use posthaste_testkit::proofs::{self, PROOFS};
use posthaste_testkit::prove::command_line;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [CHILD, role, ref rest @ ..] => proofs::child(role, rest),
        _ => command_line::main(PROOFS),
    }
}
