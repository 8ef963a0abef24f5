//! The processes of the bench that listen: started, measured, and always ended with it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{ChildStdout, Command};

use crate::fixtures::cpu::Cpu;
use crate::fixtures::part::ChildProcess;
use crate::fixtures::posthaste::address_in;
use crate::fixtures::rss;
use crate::prove::{CannotRun, Context};

/// A child process that listens. It ends when this is dropped, or when this process ends, which closes its input.
#[derive(Debug)]
pub(super) struct ListeningProcess {
    part: ChildProcess,
    output: BufReader<ChildStdout>,
    pub(super) address: SocketAddr,
}

/// The resident memory of a process, in MiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessMemory {
    pub(super) now_mib: f64,
    pub(super) peak_mib: f64,
}

impl ListeningProcess {
    /// Starts a `posthaste`, which is this program or another build of it, and waits until it prints its address.
    pub(super) fn start(name: &str, command: &mut Command) -> Result<Self, CannotRun> {
        let mut part = ChildProcess::spawn(command).context(name)?;
        let mut output = part.says()?;
        let line = read_line(&mut output).context(format!("cannot read the output of the {name}"))?;
        let address = address_in(&line).context(format!("the {name} printed {line:?} instead of its address"))?;
        Ok(Self { part, output, address })
    }

    /// Sends an empty line to the process, and returns the line that it prints in reply.
    pub(super) fn ask(&mut self) -> Result<String, CannotRun> {
        self.part.tell("").context("a process of the bench has ended")?;
        Ok(read_line(&mut self.output)?)
    }

    /// The CPU time of each of its threads.
    pub(super) fn cpu(&self) -> Result<Cpu, CannotRun> {
        Cpu::for_process(self.part.id())
    }

    /// The number of bytes that it has written to disk.
    pub(super) fn written_bytes(&self) -> Result<u64, CannotRun> {
        let path = format!("/proc/{}/io", self.part.id());
        let io = std::fs::read_to_string(path).context("cannot read what a process has written")?;
        let field = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        field.and_then(|bytes| bytes.parse().ok()).context("/proc does not have the bytes that a process has written")
    }

    pub(super) fn memory(&self) -> Result<ProcessMemory, CannotRun> {
        let mib = |kib: u64| kib as f64 / 1_024.0;
        let pid = self.part.id();
        Ok(ProcessMemory { now_mib: mib(rss::of(pid)?), peak_mib: mib(rss::peak_of(pid)?) })
    }
}

fn read_line(output: &mut BufReader<ChildStdout>) -> std::io::Result<String> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    Ok(line)
}
