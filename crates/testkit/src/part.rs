//! Child processes of proofs. No child process outlives its proof: the parent kills it by its id when it drops it, and
//! a child whose parent was killed exits at the end of its standard input.

use std::ffi::OsStr;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use crate::prove::CannotRun;

/// A child process, killed by its id when it is dropped.
#[derive(Debug)]
pub struct Part {
    child: Child,
}

impl Part {
    /// Starts a program with its standard input and output piped.
    pub fn start<A: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = A>) -> Result<Self, CannotRun> {
        let child = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.map_err(|error| CannotRun(format!("cannot start {}: {error}", program.display())))?;
        Ok(Self { child })
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, line: &str) -> Result<(), CannotRun> {
        let stdin =
            self.child.stdin.as_mut().ok_or_else(|| CannotRun("the child's standard input is closed".to_owned()))?;
        Ok(writeln!(stdin, "{line}")?)
    }

    /// Takes its standard output. A second call fails.
    pub fn says(&mut self) -> Result<BufReader<ChildStdout>, CannotRun> {
        let stdout = self
            .child
            .stdout
            .take()
            .ok_or_else(|| CannotRun("the child's standard output was taken already".to_owned()))?;
        Ok(BufReader::new(stdout))
    }

    /// Whether it is still running.
    pub fn runs(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until it exits by itself.
    pub fn ends(&mut self) -> io::Result<ExitStatus> {
        // `wait` would close the standard input first, which ends the child.
        let _open = self.child.stdin.take();
        self.child.wait()
    }

    /// Closes its standard input, and waits until it has exited.
    pub fn stop(&mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        self.child.wait().map(drop)
    }

    /// Sends it `SIGKILL`, and waits until it is gone. May be called again.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // An error means that the process is gone already.
        let _ = self.kill();
    }
}

/// Exits this process at the end of its standard input: its parent has ended then.
pub fn end_with_input() {
    thread::spawn(|| {
        io::stdin().lines().for_each(drop);
        std::process::exit(0);
    });
}

/// The exit code of a child process. An error is printed after the name of its part.
pub fn ended(part: &str, ended: Result<(), CannotRun>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(CannotRun(why)) => {
            eprintln!("{part}: {why}");
            ExitCode::from(2)
        }
    }
}
