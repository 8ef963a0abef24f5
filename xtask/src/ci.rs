//! `cargo xtask ci`: every check, in one order, the same on a laptop and on a build machine.
//!
//! A failed step does not stop the others: one run shows everything that is wrong. With `CI=true` a
//! step that had to be skipped counts as failed; on a laptop the report lists it. [`report`] prints the
//! result and has the time budget of each group of steps.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{dependencies, docs, prove, tidy};
use report::{CiReport, Group, Step, StepResult, TestCounts};

mod report;

pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let mut ci = Ci { root, steps: Vec::new() };
    ci.command("format", Group::Checks, ci.cargo("fmt --all --check"));
    ci.chore("tidy", || tidy::run(root));
    ci.chore("docs", || docs::check(root));
    ci.chore("dependencies", || dependencies::check(root));
    ci.command("clippy", Group::Build, ci.cargo("clippy --workspace --all-targets --locked -- -D warnings"));
    ci.tests();
    ci.openapi();
    ci.proofs();

    let skipped_counts_as_failed = env::var_os("CI").is_some_and(|value| value == "true");
    let report = CiReport { steps: ci.steps, skipped_counts_as_failed };
    println!("\n{report}");
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Ci<'a> {
    root: &'a Path,
    steps: Vec<Step>,
}

impl Ci<'_> {
    fn cargo(&self, args: &str) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(self.root).args(args.split(' '));
        cargo
    }

    fn tests(&mut self) {
        if answers(self.cargo("nextest --version")) {
            self.command("build tests", Group::Build, self.cargo("nextest run --workspace --locked --no-run"));
            self.command("tests", Group::Unit, self.cargo("nextest run --workspace --locked --profile ci"));
        } else {
            let targets = "test --workspace --locked --lib --bins --tests";
            self.command("build tests", Group::Build, self.cargo(&format!("{targets} --no-run")));
            self.command("tests", Group::Unit, self.cargo(&format!("{targets} --no-fail-fast")));
        }
        self.command("doc tests", Group::Unit, self.cargo("test --workspace --locked --doc --no-fail-fast"));
    }

    fn openapi(&mut self) {
        let python = |args: &[&str]| {
            let mut python = Command::new("python3");
            python.args(args);
            python
        };
        if !answers(python(&["-c", "import openapi_spec_validator"])) {
            let why = "openapi-spec-validator is not installed: `scripts/test --install` installs it beside the build";
            return self.note("openapi", Group::Unit, StepResult::Skipped(why.to_owned()));
        }
        match written_openapi(self.root) {
            Ok(file) => {
                let file = file.to_string_lossy().into_owned();
                self.command("openapi", Group::Unit, python(&["-m", "openapi_spec_validator", &file]));
            }
            Err(error) => self.note("openapi", Group::Unit, StepResult::Failed(format!("{error:#}"))),
        }
    }

    /// Runs every proof in its short form, from binaries that are built once.
    fn proofs(&mut self) {
        self.command("build proofs", Group::Build, prove::build_command(self.root, prove::ALL_PACKAGES));
        match proof_names(self.root) {
            Ok(names) => names.iter().for_each(|name| self.proof(name)),
            Err(error) => self.note("proofs", Group::Simulation, StepResult::Failed(format!("{error:#}"))),
        }
    }

    fn proof(&mut self, name: &str) {
        let group = if prove::starts_posthaste(name) { Group::Sockets } else { Group::Simulation };
        let step = format!("prove {name}");
        match prove::command(self.root, prove::binary_of(name)) {
            Ok(mut command) => {
                command.args([name, "--quick"]);
                self.command(&step, group, command);
            }
            Err(error) => self.note(&step, group, StepResult::Failed(format!("{error:#}"))),
        }
    }

    fn command(&mut self, name: &str, group: Group, mut command: Command) {
        let line = line(&command);
        println!("\n── {name}: {line}");
        let (ran, took) = timed(|| echo(&mut command));
        let (tests, result) = match ran {
            Ok((tests, true)) => (tests, StepResult::Passed),
            Ok((tests, false)) => (tests, StepResult::Failed(line)),
            Err(error) => (TestCounts::default(), StepResult::Failed(format!("{line}: {error:#}"))),
        };
        self.steps.push(Step { name: name.to_owned(), group, took, tests, result });
    }

    fn chore(&mut self, name: &str, chore: impl FnOnce() -> Result<()>) {
        println!("\n── {name}: cargo xtask {name}");
        let (ran, took) = timed(chore);
        let result = ran.map_or_else(|error| StepResult::Failed(format!("{error:#}")), |()| StepResult::Passed);
        self.steps.push(Step { took, ..Step::untested(name, Group::Checks, result) });
    }

    fn note(&mut self, name: &str, group: Group, result: StepResult) {
        println!("\n── {name}: {result}");
        self.steps.push(Step::untested(name, group, result));
    }
}

fn written_openapi(root: &Path) -> Result<PathBuf> {
    let print = ["run", "--quiet", "--locked", "--package=posthaste-server", "--example=openapi"];
    let printed = Command::new("cargo").current_dir(root).args(print).output().context("cannot start cargo")?;
    if !printed.status.success() {
        bail!("cannot print the document: {}", String::from_utf8_lossy(&printed.stderr).trim());
    }
    let here = env::current_exe().context("cannot find the path of this program")?;
    let file = here.with_file_name("openapi.json");
    fs::write(&file, printed.stdout).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn proof_names(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for binary in prove::BINARIES {
        let listed = prove::command(root, binary)?.arg("--list").output().context("cannot list the proofs")?;
        let listed = String::from_utf8(listed.stdout).context("the list of proofs is not text")?;
        let own: Vec<_> = listed.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect();
        if own.is_empty() {
            bail!("{binary} has no proof to run");
        }
        names.extend(own);
    }
    Ok(names)
}

/// Whether a tool is installed: its command succeeds.
fn answers(mut command: Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let mut line =
        if prove::BINARIES.contains(&&*program) { "cargo xtask prove".to_owned() } else { program.into_owned() };
    for word in command.get_args() {
        line.push(' ');
        line += &word.to_string_lossy();
    }
    line
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    #[expect(clippy::disallowed_methods, reason = "the time a check takes on this machine is what is measured")]
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Runs a program, prints its output, and counts the tests it reports. True when it succeeded.
fn echo(command: &mut Command) -> Result<(TestCounts, bool)> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot start it")?;
    let stdout = child.stdout.take().context("its output was not piped")?;
    let stderr = child.stderr.take().context("its errors were not piped")?;
    let tests = thread::scope(|scope| {
        let from_stderr = scope.spawn(|| copy_lines(stderr, io::stderr()));
        let from_stdout = copy_lines(stdout, io::stdout());
        [from_stdout, from_stderr.join().unwrap_or_default()].into_iter().sum()
    });
    Ok((tests, child.wait().context("cannot wait for it")?.success()))
}

fn copy_lines(from: impl Read, mut to: impl Write) -> TestCounts {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    lines
        .map(|line| {
            let line = String::from_utf8_lossy(&line);
            // A closed terminal is no reason to stop checking.
            let _ = writeln!(to, "{line}");
            TestCounts::read(&line)
        })
        .sum()
}
