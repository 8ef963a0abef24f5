//! The bench's processes: started, asked, looked at, and ended with it whatever happens.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use posthaste_testkit::cpu::Cpu;
use posthaste_testkit::prove::CannotRun;
use posthaste_testkit::rss;

/// A server of ours that runs until it is dropped, or until we end: then its input does.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(super) address: SocketAddr,
}

/// What a process has in memory, in MiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) now_mib: f64,
    pub(super) peak_mib: f64,
}

impl Child {
    /// Starts `program`, which is this one or another build of it, and waits until it says where it listens.
    pub(super) fn start(program: &Path, name: &str, args: &[&str], environment: &[(&str, &OsStr)]) -> Result<Self> {
        let mut process = command(program, args)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the {name}, {}", program.display()))?;
        let input = process.stdin.take().context("a child's input is piped")?;
        let output = BufReader::new(process.stdout.take().context("a child's output is piped")?);
        // Made before anything else can fail: dropping it ends the process.
        let mut child = Self { process, input, output, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let said = child.hear().with_context(|| format!("cannot hear the {name}"))?;
        child.address =
            address_in(&said).with_context(|| format!("the {name} said {said:?} and not where it listens"))?;
        Ok(child)
    }

    /// Asks it for the one thing it tells.
    pub(super) fn ask(&mut self) -> Result<String> {
        writeln!(self.input).context("a process of the bench has ended")?;
        self.hear()
    }

    fn hear(&mut self) -> Result<String> {
        let mut said = String::new();
        self.output.read_line(&mut said)?;
        Ok(said)
    }

    /// The CPU time of each of its threads.
    pub(super) fn cpu(&self) -> Result<Cpu> {
        Cpu::of_process(self.process.id()).map_err(refused)
    }

    /// Bytes it has had written to a disk.
    pub(super) fn written_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/io", self.process.id());
        let io = std::fs::read_to_string(path).context("cannot read what a process has written")?;
        let field = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        field.and_then(|bytes| bytes.parse().ok()).context("/proc does not say what a process has written")
    }

    pub(super) fn memory(&self) -> Result<Memory> {
        #[expect(clippy::cast_precision_loss, reason = "a process's memory is far below 2^52 KiB")]
        let mib = |kib: u64| kib as f64 / 1_024.0;
        let pid = self.process.id();
        let (now, peak) = (rss::of(pid).map_err(refused)?, rss::peak_of(pid).map_err(refused)?);
        Ok(Memory { now_mib: mib(now), peak_mib: mib(peak) })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Nothing can be done about a process that is already gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs this program with other arguments and gives what it printed.
pub(super) fn output(name: &str, args: &[&str]) -> Result<String> {
    let output = command(&this_program()?, args).stdin(Stdio::null()).spawn()?.wait_with_output()?;
    ensure!(output.status.success(), "the {name} ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The program that runs now.
pub(super) fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot tell which program this is")
}

fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::piped());
    command
}

fn refused(why: CannotRun) -> anyhow::Error {
    anyhow::Error::msg(why.0)
}

/// The address in `listening on http://127.0.0.1:8400, …`.
fn address_in(said: &str) -> Option<SocketAddr> {
    let (_, behind) = said.split_once("http://")?;
    behind.split([',', '\n']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_where_it_listens() {
        let address = SocketAddr::from(([127, 0, 0, 1], 8400));
        assert_eq!(address_in("posthaste: listening on http://127.0.0.1:8400, data in x\n"), Some(address));
        assert_eq!(address_in("listening on http://127.0.0.1:8400\n"), Some(address));
        assert_eq!(address_in("posthaste: cannot listen"), None);
    }
}
