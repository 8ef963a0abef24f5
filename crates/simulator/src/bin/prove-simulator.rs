//! The proofs of the simulator: [`PROOFS`].

use std::process::ExitCode;

use posthaste_prove::command_line;
use posthaste_simulator::{PROOFS, simulation};

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
    command_line::main(PROOFS)
}
