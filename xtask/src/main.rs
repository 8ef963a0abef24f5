//! The chores of this workspace: `cargo xtask ci`, `tidy`, `dependencies`, `prove` and `docs`.
//!
//! Start with [`ci`], which runs all checks, and [`tidy`], the project's rules that no lint checks.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod ci;
mod dependencies;
mod docs;
mod prove;
mod tidy;

/// The chores of this workspace.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Every check: format, lints, tests, the project's own rules, licences, docs, and the proofs in short form
    Ci,
    /// The project's own rules, which no compiler and no lint checks
    Tidy,
    /// The licences and sources of all crates in the tree, and crates that are refused
    Dependencies,
    /// One of the named proofs, optimised: NAME [--quick] [--seeds N] [--first S] [--json], or --list; and
    /// bench --against COMMIT [--pairs N] [--at-most RATIO]
    #[command(disable_help_flag = true)]
    Prove {
        /// Passed to `prove` unchanged
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Writes the pages that are generated from the code
    Docs {
        /// Writes nothing and fails when a page is stale
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    run(Args::parse().chore, &root()).unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(chore: Chore, root: &Path) -> Result<ExitCode> {
    match chore {
        Chore::Ci => return ci::run(root),
        Chore::Prove { args } => return prove::run(root, &args),
        Chore::Tidy => tidy::run(root)?,
        Chore::Dependencies => dependencies::check(root)?,
        Chore::Docs { check: false } => docs::write(root)?,
        Chore::Docs { check: true } => docs::check(root)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is one folder below the workspace").to_owned()
}
