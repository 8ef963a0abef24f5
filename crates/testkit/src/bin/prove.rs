//! The proofs of the testkit: [`PROOFS`].

use std::process::ExitCode;

use posthaste_testkit::proofs::{PROOFS, idempotency};
use posthaste_testkit::prove::command_line;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, rest @ ..] = args.as_slice()
        && flag == idempotency::FLAG
    {
        return idempotency::main(&rest.iter().map(String::as_str).collect::<Vec<_>>());
    }
    command_line::main(PROOFS)
}
