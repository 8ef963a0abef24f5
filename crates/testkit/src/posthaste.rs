//! The real binary as a child of a proof: started, asked to stop, killed, and ended by its id whatever
//! happens to the proof.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::prove::CannotRun;

/// The binary that was built for the proofs.
///
/// # Errors
/// When nobody says where it lies.
pub fn binary() -> Result<PathBuf, CannotRun> {
    let binary = std::env::var_os("POSTHASTE_BIN");
    let why = "POSTHASTE_BIN does not name the binary; use `cargo xtask prove`";
    binary.map(PathBuf::from).ok_or_else(|| CannotRun(why.to_owned()))
}

/// How `posthaste serve --dev` is started, as often as a proof likes: over the data in one folder, each time on
/// a free port.
#[derive(Clone, Debug)]
pub struct Launch {
    binary: PathBuf,
    folder: PathBuf,
    environment: Vec<(OsString, OsString)>,
    complaints: Option<PathBuf>,
}

impl Launch {
    /// Over `data` in this folder.
    pub fn new(binary: &Path, folder: &Path) -> Self {
        let environment = vec![("POSTHASTE_LOG".into(), "warn".into())];
        Self { binary: binary.to_owned(), folder: folder.to_owned(), environment, complaints: None }
    }

    /// The same with a variable of the environment.
    #[must_use]
    pub fn with(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// The same, and what it says on stderr is written to this file, anew with each start.
    #[must_use]
    pub fn complaining_to(self, file: &Path) -> Self {
        Self { complaints: Some(file.to_owned()), ..self }
    }

    /// Where its data lies.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// When it cannot be started, or ends without listening.
    pub fn start(&self) -> io::Result<Posthaste> {
        self.begin()?.listens()
    }

    /// Starts it and waits for nothing.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin(&self) -> io::Result<Starting> {
        let stderr = match &self.complaints {
            Some(file) => File::create(file)?.into(),
            None => Stdio::inherit(),
        };
        let child = Command::new(&self.binary)
            .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--data", "data"])
            // A file of settings where the proof happens to run is none of its business.
            .current_dir(&self.folder)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()?;
        Ok(Starting(Process(child)))
    }
}

/// A server that may not listen yet.
#[derive(Debug)]
pub struct Starting(Process);

impl Starting {
    /// Waits until it listens.
    ///
    /// # Errors
    /// When it ends without listening.
    pub fn listens(mut self) -> io::Result<Posthaste> {
        let stdout = self.0.0.stdout.take().ok_or_else(|| io::Error::other("its output is not piped"))?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        let address = said.split_once("http://").and_then(|(_, behind)| behind.split([',', '\n']).next());
        let address = address
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| io::Error::other(format!("the server said {said:?} and not where it listens")))?;
        Ok(Posthaste { process: self.0, address })
    }

    /// kill -9, wherever it is.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(mut self) -> io::Result<()> {
        self.0.kill()
    }
}

/// A running `posthaste serve --dev`.
#[derive(Debug)]
pub struct Posthaste {
    process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Posthaste {
    /// Its number, as the system counts processes.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// kill -9. Killing it twice is the same as once.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.kill()
    }

    /// Asks it to stop, as a supervisor does, and waits until it has.
    ///
    /// # Errors
    /// When it cannot be asked or waited for.
    pub fn stop(&mut self) -> io::Result<ExitStatus> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no number"))?;
        kill_process(pid, Signal::TERM)?;
        self.process.0.wait()
    }

    /// How it ended by itself, if it has.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.0.try_wait()
    }
}

/// A child that does not outlive its owner.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing can be done about a process that is already gone.
        let _ = self.kill();
    }
}
