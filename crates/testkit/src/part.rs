//! Processes that play a part in a proof: started, listened to, killed, and never left behind.
//!
//! Both sides are here: whoever starts one ends it by its id whatever happens to the proof, and one
//! whose starter was killed ends with its input.

use std::ffi::OsStr;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use crate::prove::CannotRun;

/// A process of ours, ended by its id whatever happens to the proof.
#[derive(Debug)]
pub struct Part {
    child: Child,
}

impl Part {
    /// Starts a program that was built beside this one, or this one itself.
    pub fn start<A: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = A>) -> Result<Self, CannotRun> {
        let child = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.map_err(|error| CannotRun(format!("cannot start {}: {error}", program.display())))?;
        Ok(Self { child })
    }

    /// Tells it something, in one line.
    pub fn tell(&mut self, line: &str) -> Result<(), CannotRun> {
        let stdin = self.child.stdin.as_mut().ok_or_else(|| CannotRun("it does not listen any more".to_owned()))?;
        Ok(writeln!(stdin, "{line}")?)
    }

    /// What it says, for whoever asks first.
    pub fn says(&mut self) -> Result<BufReader<ChildStdout>, CannotRun> {
        let stdout = self.child.stdout.take().ok_or_else(|| CannotRun("somebody listens to it already".to_owned()))?;
        Ok(BufReader::new(stdout))
    }

    /// Whether it has not ended by itself.
    pub fn runs(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until it ends by itself.
    pub fn ends(&mut self) -> io::Result<ExitStatus> {
        // To wait would end its input.
        let _open = self.child.stdin.take();
        self.child.wait()
    }

    /// Ends its input, which ends it.
    pub fn stop(&mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        self.child.wait().map(drop)
    }

    /// kill -9. Killing it twice is the same as once.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Nothing can be done about a process that is already gone.
        let _ = self.kill();
    }
}

/// Ends this process when its input does: whoever started it has ended, and nobody stays behind.
pub fn end_with_input() {
    thread::spawn(|| {
        io::stdin().lines().for_each(drop);
        std::process::exit(0);
    });
}

/// How a process ends that played this part.
pub fn ended(part: &str, ended: Result<(), CannotRun>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(CannotRun(why)) => {
            eprintln!("{part}: {why}");
            ExitCode::from(2)
        }
    }
}
