//! The `posthaste` command. It has no rules of its own: each subcommand puts parts together.

mod audit;
mod backup;
mod bench;
mod config;
mod demo;
mod keys;
mod policy;
mod say;
mod serve;
mod settings;
mod simulate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A delivery makes about a hundred small allocations, and another thread frees many of them: with this one it takes
/// an eighth less CPU (docs/performance.md).
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Takes messages, makes them durable, delivers them.
#[derive(Parser)]
#[command(name = "posthaste", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::Args),
    /// Thousands of messages, receivers that fail, a server that is killed: watch everything arrive
    Demo(demo::Args),
    /// Measure this machine: deliveries a second, their CPU and their way, beside the bare limit and the disk's own
    Bench(bench::Args),
    /// Play an outage: what retries do to a receiver, and what Posthaste does instead
    Simulate(simulate::Args),
    /// Retry policies
    Policy(policy::Args),
    /// Whether the journal is what was written, and checkpoints of it to keep elsewhere
    Audit(audit::Args),
    /// Which master key seals the data, and how to put a newer one in its place
    Keys(keys::Args),
    /// Copy the data to a new folder, beside a running server or without one
    Backup(backup::BackupArgs),
    /// Make a data folder of a backup: paused, until you release it
    Restore(backup::RestoreArgs),
    /// A part of `bench`, in a process of its own
    #[command(hide = true)]
    BenchPart(bench::part::Args),
    /// The server of `demo`, in a process of its own
    #[command(hide = true)]
    DemoPart(demo::part::Args),
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Policy(args) => policy::run(&args),
        // Its exit code says more than whether it went well.
        Command::Audit(args) => return audit::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Backup(args) => backup::run_backup(&args),
        Command::Restore(args) => backup::run_restore(&args),
        Command::BenchPart(args) => bench::part::run(args),
        Command::DemoPart(args) => demo::part::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<say::NobodyReads>() => ExitCode::SUCCESS,
        Err(error) if error.is::<demo::Interrupted>() => {
            eprintln!("posthaste: {error}");
            ExitCode::from(demo::INTERRUPTED)
        }
        Err(error) => {
            eprintln!("posthaste: {error:#}");
            ExitCode::FAILURE
        }
    }
}
