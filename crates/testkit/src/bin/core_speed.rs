//! One side of the proof `core-speed`: does one thing in a process of its own, so that its time,
//! its instructions and its memory can be measured. Started by `posthaste_testkit::core_speed`.

use std::process::ExitCode;

fn main() -> ExitCode {
    posthaste_testkit::core_speed::main(std::env::args().skip(1))
}
