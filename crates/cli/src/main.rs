//! The `posthaste` command: parses the command line and runs a subcommand.
//!
//! The crate has no rules of its own: each subcommand puts parts of the other crates together. Read [`serve`] first.

mod audit;
mod backup;
mod bench;
mod config;
mod demo;
mod keys;
mod policy;
mod say;
mod serve;
mod simulate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A delivery makes about a hundred small allocations, and another thread frees many of them: with this allocator it
/// takes an eighth less CPU (docs/performance.md).
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Accepts messages, stores them durably and delivers them as webhooks.
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
    /// Deliver thousands of messages to failing receivers, and kill the server meanwhile
    Demo(demo::Args),
    /// Measure deliveries a second, CPU time and latency on this machine, beside a bare HTTP client and the disk
    Bench(bench::Args),
    /// Simulate an outage of a receiver: naive retries compared with Posthaste's
    Simulate(simulate::Args),
    /// Show retry policies
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Verify the audit trail, and print checkpoints to keep elsewhere
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Show or rotate the master key
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Copy the data to a new folder, with or without a running server
    Backup(backup::BackupArgs),
    /// Create a data folder from a backup; it is paused until you resume it
    Restore(backup::RestoreArgs),
    /// A part of `bench`, in a process of its own
    #[command(subcommand, hide = true)]
    BenchPart(bench::BenchProcess),
    /// The server of `demo`, in a process of its own
    #[command(hide = true)]
    DemoPart(demo::server::Args),
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Policy(command) => policy::run(&command),
        // It has exit codes of its own.
        Command::Audit(command) => return audit::run(&command),
        Command::Keys(command) => keys::run(&command),
        Command::Backup(args) => backup::run_backup(&args),
        Command::Restore(args) => backup::run_restore(&args),
        Command::BenchPart(process) => bench::run_process(process),
        Command::DemoPart(args) => demo::server::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<say::OutputClosed>() => ExitCode::SUCCESS,
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
