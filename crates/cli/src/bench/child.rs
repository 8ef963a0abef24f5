//! The child processes of the bench: started, measured, and always ended with it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use posthaste_testkit::fixtures::cpu::Cpu;
use posthaste_testkit::fixtures::rss;
use posthaste_testkit::prove::CannotRun;

/// A child process that listens. It ends when this is dropped, or when this process ends, which closes its input.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(super) address: SocketAddr,
}

/// The resident memory of a process, in MiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) now_mib: f64,
    pub(super) peak_mib: f64,
}

impl Child {
    /// Starts `program`, which is this one or another build of it, and waits until it prints its address.
    pub(super) fn start(program: &Path, name: &str, args: &[&str], environment: &[(&str, &OsStr)]) -> Result<Self> {
        let mut process = command(program, args)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the {name}, {}", program.display()))?;
        let input = process.stdin.take().context("a child's input is piped")?;
        let output = BufReader::new(process.stdout.take().context("a child's output is piped")?);
        // Made before anything else can fail, since dropping it ends the process.
        let mut child = Self { process, input, output, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let line = child.read_line().with_context(|| format!("cannot read the output of the {name}"))?;
        child.address =
            address_in(&line).with_context(|| format!("the {name} printed {line:?} instead of its address"))?;
        Ok(child)
    }

    /// Sends an empty line to the process, and returns the line that it prints in reply.
    pub(super) fn ask(&mut self) -> Result<String> {
        writeln!(self.input).context("a process of the bench has ended")?;
        self.read_line()
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    /// The CPU time of each of its threads.
    pub(super) fn cpu(&self) -> Result<Cpu> {
        Cpu::for_process(self.process.id()).map_err(refused)
    }

    /// The number of bytes that it has written to disk.
    pub(super) fn written_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/io", self.process.id());
        let io = std::fs::read_to_string(path).context("cannot read what a process has written")?;
        let field = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        field.and_then(|bytes| bytes.parse().ok()).context("/proc does not have the bytes that a process has written")
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
        // Errors mean that the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs this program with other arguments, and returns its output.
pub(super) fn output(name: &str, args: &[&str]) -> Result<String> {
    let output = command(&this_program()?, args).stdin(Stdio::null()).spawn()?.wait_with_output()?;
    ensure!(output.status.success(), "the {name} ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The file of this program.
pub(super) fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's file")
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
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, behind) = line.split_once("http://")?;
    behind.split([',', '\n']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_a_server_s_first_line() {
        let address = SocketAddr::from(([127, 0, 0, 1], 8400));
        assert_eq!(address_in("posthaste: listening on http://127.0.0.1:8400, data in x\n"), Some(address));
        assert_eq!(address_in("listening on http://127.0.0.1:8400\n"), Some(address));
        assert_eq!(address_in("posthaste: cannot listen"), None);
    }
}
