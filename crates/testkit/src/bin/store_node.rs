//! One part of the proof `store-kill9`: the process that is killed, or one of those that give it
//! work. Started by `posthaste_testkit::store_kill9`.

use std::process::ExitCode;

fn main() -> ExitCode {
    posthaste_testkit::store_kill9::main(std::env::args().skip(1))
}
