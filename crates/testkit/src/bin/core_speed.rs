//! One task of the proof `core-speed`, in a process of its own, so that its time, instructions and memory can be
//! measured. Started by `posthaste_testkit::proofs::core_speed`.

use std::process::ExitCode;

fn main() -> ExitCode {
    posthaste_testkit::proofs::core_speed::main(std::env::args().skip(1))
}
