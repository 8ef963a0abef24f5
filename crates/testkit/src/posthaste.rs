//! The real binary as a child process of a proof: started, stopped or killed. It is killed by its id when its owner is
//! dropped.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::prove::CannotRun;

/// The path of the binary that was built for the proofs, from `POSTHASTE_BIN`.
///
/// # Errors
/// If the variable is not set.
pub fn binary() -> Result<PathBuf, CannotRun> {
    let binary = std::env::var_os("POSTHASTE_BIN");
    let why = "POSTHASTE_BIN does not name the binary; use `cargo xtask prove`";
    binary.map(PathBuf::from).ok_or_else(|| CannotRun(why.to_owned()))
}

/// The settings with which `posthaste serve --dev` is started, any number of times: over the data in one folder, each
/// time on a free port.
#[derive(Clone, Debug)]
pub struct Launch {
    binary: PathBuf,
    folder: PathBuf,
    environment: Vec<(OsString, OsString)>,
    stderr: Option<PathBuf>,
}

impl Launch {
    /// A server over the folder `data` in this folder, which logs warnings.
    pub fn new(binary: &Path, folder: &Path) -> Self {
        let environment = vec![("POSTHASTE_LOG".into(), "warn".into())];
        Self { binary: binary.to_owned(), folder: folder.to_owned(), environment, stderr: None }
    }

    /// With an environment variable.
    #[must_use]
    pub fn with(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// With standard error written to this file, which each start truncates.
    #[must_use]
    pub fn complaining_to(self, file: &Path) -> Self {
        Self { stderr: Some(file.to_owned()), ..self }
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the server and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started, or ends without listening.
    pub fn start(&self) -> io::Result<Posthaste> {
        self.begin()?.listens()
    }

    /// Starts the server without waiting.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn begin(&self) -> io::Result<Starting> {
        let stderr = match &self.stderr {
            Some(file) => File::create(file)?.into(),
            None => Stdio::inherit(),
        };
        let child = Command::new(&self.binary)
            .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--data", "data"])
            // So that a settings file in the folder of the proof has no effect.
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
    /// Waits until the server listens.
    ///
    /// # Errors
    /// If it ends without listening.
    pub fn listens(mut self) -> io::Result<Posthaste> {
        let stdout = self.0.0.stdout.take().ok_or_else(|| io::Error::other("its output is not piped"))?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.split_once("http://").and_then(|(_, behind)| behind.split([',', '\n']).next());
        let address = address
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| io::Error::other(format!("the server printed {line:?} and not its address")))?;
        Ok(Posthaste { process: self.0, address })
    }

    /// Kills the server with `SIGKILL`, at any point of its start.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(mut self) -> io::Result<()> {
        self.0.kill()
    }
}

/// A running `posthaste serve --dev`.
#[derive(Debug)]
pub struct Posthaste {
    process: Process,
    /// The address of its API.
    pub address: SocketAddr,
}

impl Posthaste {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Kills the server with `SIGKILL`. May be called again.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.kill()
    }

    /// Stops the server with `SIGTERM`, as a supervisor does, and waits for its exit.
    ///
    /// # Errors
    /// If it cannot be signalled or waited for.
    pub fn stop(&mut self) -> io::Result<ExitStatus> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the server has no process id"))?;
        kill_process(pid, Signal::TERM)?;
        self.process.0.wait()
    }

    /// The exit status, if the server has exited by itself.
    ///
    /// # Errors
    /// If its state cannot be read.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.0.try_wait()
    }
}

/// A child process that is killed when this is dropped.
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
        // An error means that the process is gone already.
        let _ = self.kill();
    }
}
