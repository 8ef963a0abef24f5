//! `cargo xtask prove`: builds the proofs with optimisation and passes them the command line.
//!
//! Figures and exit codes are in `posthaste-prove`, the proofs in the packages of [`GROUPS`]. A commit to compare with
//! is built as well ([`against`]).

mod against;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

/// Proofs that start the binary `posthaste`. It is not built for the others.
const START_POSTHASTE: &[&str] = &[
    "api",
    "isolation",
    "bench",
    "thread",
    "kill9",
    "restart",
    "disk",
    "idle",
    "outage-sockets",
    "overload",
    "noisy-neighbour",
    "fan-out-lookup",
    "redaction",
    "signatures",
];

struct Group {
    package: &'static str,
    binary: &'static str,
    /// The names of the proofs; none for the group that has all the others.
    proofs: &'static [&'static str],
}

/// The proofs on a disk that fails are alone: its VFS becomes the default of the process it is linked into.
const GROUPS: [Group; 3] = [
    Group {
        package: "posthaste-simulator",
        binary: "prove-simulator",
        proofs: &[
            "schedules",
            "limits",
            "breakers",
            "fairness",
            "outage",
            "simulation",
            "determinism",
            "crash-points",
            "planted-bugs",
        ],
    },
    Group { package: "posthaste-disk", binary: "prove-disk", proofs: &["store-powercut", "store-faults"] },
    Group { package: "posthaste-testkit", binary: "prove", proofs: &[] },
];

/// The binaries with proofs.
pub(crate) const BINARIES: [&str; 3] = [GROUPS[0].binary, GROUPS[1].binary, GROUPS[2].binary];

/// The exit code of a proof that could not be run.
const COULD_NOT_RUN: u8 = 2;

/// Builds the binaries that the proof needs, runs it, and returns its exit code.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let args = match built(root, args) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("prove: could not be run: {error:#}");
            return Ok(COULD_NOT_RUN.into());
        }
    };
    let mut worst = 0;
    for group in groups(&args) {
        let ended = command(root, group.binary)?.args(&args).status().context("cannot start the proofs")?;
        let code = ended.code().and_then(|code| u8::try_from(code).ok());
        worst = worst.max(code.unwrap_or(COULD_NOT_RUN));
    }
    Ok(worst.into())
}

/// Builds everything, and returns the arguments for the proof: a commit to compare with is replaced by its program.
fn built(root: &Path, args: &[String]) -> Result<Vec<String>> {
    let target = target_folder()?;
    let other = against::find(root, &target, args)?;
    ensure!(build_command(root, &packages(args)).status().context("cannot start cargo")?.success(), "the build failed");
    other.map_or_else(|| Ok(args.to_vec()), |other| other.built_into(args))
}

/// The group that has the requested proof, or all for `--list`.
fn groups(args: &[String]) -> &'static [Group] {
    if args.iter().any(|arg| arg == "--list") {
        return &GROUPS;
    }
    let at = args.iter().find_map(|arg| GROUPS.iter().position(|group| group.proofs.contains(&arg.as_str())));
    let at = at.unwrap_or(GROUPS.len() - 1);
    &GROUPS[at..=at]
}

pub(crate) fn binary_of(name: &str) -> &'static str {
    groups(&[name.to_owned()])[0].binary
}

/// The packages that all proofs together need.
pub(crate) const ALL_PACKAGES: &[&str] = &[GROUPS[0].package, GROUPS[1].package, GROUPS[2].package, "posthaste-cli"];

fn packages(args: &[String]) -> Vec<&'static str> {
    let mut packages: Vec<_> = groups(args).iter().map(|group| group.package).collect();
    if args.iter().any(|arg| starts_posthaste(arg)) {
        packages.push("posthaste-cli");
    }
    packages
}

pub(crate) fn starts_posthaste(name: &str) -> bool {
    START_POSTHASTE.contains(&name)
}

pub(crate) fn build_command(root: &Path, packages: &[&str]) -> Command {
    let mut build = Command::new("cargo");
    build.current_dir(root).args(["build", "--release", "--bins"]);
    build.args(packages.iter().map(|package| format!("--package={package}")));
    build
}

/// The command that runs `binary` once it is built; the caller adds the name of the proof.
pub(crate) fn command(root: &Path, binary: &str) -> Result<Command> {
    let release = target_folder()?.join("release");
    let mut prove = Command::new(release.join(binary));
    prove.current_dir(root).env("POSTHASTE_BIN", release.join("posthaste"));
    Ok(prove)
}

/// The target folder, in which this program was built.
fn target_folder() -> Result<PathBuf> {
    let here = env::current_exe().context("cannot find the path of this program")?;
    let target = here.ancestors().nth(2).context("this program is not in a target folder")?;
    Ok(target.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_built_only_for_proofs_that_start_it() {
        let args = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(packages(&args("thread --quick")), ["posthaste-testkit", "posthaste-cli"]);
        assert_eq!(packages(&args("simulation --seeds 5")), ["posthaste-simulator"]);
        assert_eq!(packages(&args("purity")), ["posthaste-testkit"]);
        assert_eq!(packages(&args("--list")), ["posthaste-simulator", "posthaste-disk", "posthaste-testkit"]);
    }

    #[test]
    fn each_group_of_proofs_has_a_binary_of_its_own() {
        for group in &GROUPS {
            for name in group.proofs {
                let args = [(*name).to_owned(), "--quick".to_owned()];
                assert_eq!((binary_of(name), packages(&args)), (group.binary, vec![group.package]));
            }
        }
        assert_eq!(binary_of("purity"), "prove");
    }
}
