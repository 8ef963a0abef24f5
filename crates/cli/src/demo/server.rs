//! The demo's server as a child process: started, killed, started again, and always ended with the demo.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::part::MARK;
use super::plan::SCALE;
use super::story::Story;

/// The most time until the server listens; generous, for a busy machine.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
/// The file of its stderr.
const LOG: &str = "server.log";

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    process: Process,
    pub(super) address: SocketAddr,
    /// Kept open so that the server can print later.
    _output: BufReader<pipe::Receiver>,
}

impl Server {
    /// Marks the folder as one of a demo.
    pub(super) fn prepare(folder: &Path) -> Result<()> {
        File::create(folder.join(MARK)).context("cannot write into the demo's folder")?;
        Ok(())
    }

    /// Starts this program again, as a server over the data in the folder.
    pub(super) async fn start(folder: &Path, story: &Story) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let log = File::options().create(true).append(true).open(folder.join(LOG)).context("cannot write a log")?;
        let process = Command::new(program)
            .arg("demo-part")
            .arg("--folder")
            .arg(folder)
            .args(["--scale", &SCALE.to_string(), "--since", &story.since.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // In a group of its own, so that Ctrl-C does not reach it: the demo ends the server itself.
            .process_group(0)
            .spawn()
            .context("cannot start the server")?;
        let mut process = Process(process);
        let (address, output) = listening(&mut process.0).await.with_context(|| complaint(folder))?;
        Ok(Self { process, address, _output: output })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Kills the server with SIGKILL and waits for its end.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.process.0.kill()?;
        self.process.0.wait()?;
        Ok(())
    }

    /// Fails if the server has ended by itself.
    pub(super) fn still_runs(&mut self, folder: &Path) -> Result<()> {
        if let Some(status) = self.process.0.try_wait()? {
            bail!("the server ended by itself, {status}: {}", complaint(folder));
        }
        Ok(())
    }
}

/// A process that ends when it is dropped.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the server prints its address.
async fn listening(process: &mut Child) -> Result<(SocketAddr, BufReader<pipe::Receiver>)> {
    let output = process.stdout.take().context("its output is not piped")?;
    let mut output = BufReader::new(pipe::Receiver::from_owned_fd(OwnedFd::from(output))?);
    let mut line = String::new();
    timeout(LISTENS_WITHIN, output.read_line(&mut line)).await.context("it does not print its address")??;
    let address = line.split_once("http://").and_then(|(_, behind)| behind.split([',', '\n']).next());
    let address = address.and_then(|address| address.parse().ok());
    Ok((address.with_context(|| format!("it printed {line:?} instead of its address"))?, output))
}

/// The last line of the server's log.
fn complaint(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    let last = log.lines().next_back().unwrap_or("its log is empty");
    format!("the demo's server: {last}")
}
