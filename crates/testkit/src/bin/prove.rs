//! The proofs of the testkit: [`PROOFS`].

use std::process::ExitCode;

use posthaste_testkit::proofs::{idempotency, simulation};
use posthaste_testkit::prove::{PROOFS, command_line};

fn main() -> ExitCode {
    // The second process of `determinism`: this binary starts itself with these arguments.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, first, seeds] = args.as_slice()
        && flag == "--traces"
        && let (Ok(first), Ok(seeds)) = (first.parse(), seeds.parse())
    {
        simulation::print_traces(first, seeds);
        return ExitCode::SUCCESS;
    }
    if let [flag, rest @ ..] = args.as_slice()
        && flag == idempotency::FLAG
    {
        return idempotency::main(&rest.iter().map(String::as_str).collect::<Vec<_>>());
    }
    command_line::main(PROOFS)
}
