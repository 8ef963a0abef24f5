//! The demo's server as a process: started, killed, started again, and ended with the demo whatever happens.

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

/// It opens a small file and listens; a busy machine may take its time.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
/// What it complains of.
const LOG: &str = "server.log";

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    process: Process,
    pub(super) address: SocketAddr,
    /// Kept open: what it prints later must not fail.
    _said: BufReader<pipe::Receiver>,
}

impl Server {
    /// Makes the folder one that a demo's server takes.
    pub(super) fn prepare(folder: &Path) -> Result<()> {
        File::create(folder.join(MARK)).context("cannot write into the demo's folder")?;
        Ok(())
    }

    /// Starts this program again, as a server over the data in the folder.
    pub(super) async fn start(folder: &Path, story: &Story) -> Result<Self> {
        let program = std::env::current_exe().context("cannot tell which program this is")?;
        let log = File::options().create(true).append(true).open(folder.join(LOG)).context("cannot write a log")?;
        let process = Command::new(program)
            .arg("demo-part")
            .arg("--folder")
            .arg(folder)
            .args(["--scale", &SCALE.to_string(), "--since", &story.since.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C in a terminal goes to a whole group: ours ends the server itself.
            .process_group(0)
            .spawn()
            .context("cannot start the server")?;
        let mut process = Process(process);
        let (address, said) = listening(&mut process.0).await.with_context(|| complaint(folder))?;
        Ok(Self { process, address, _said: said })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// kill -9.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.process.0.kill()?;
        self.process.0.wait()?;
        Ok(())
    }

    /// Complains if it has ended by itself.
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
        // Nothing can be done about one that is already gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until it says where it listens.
async fn listening(process: &mut Child) -> Result<(SocketAddr, BufReader<pipe::Receiver>)> {
    let output = process.stdout.take().context("its output is not piped")?;
    let mut output = BufReader::new(pipe::Receiver::from_owned_fd(OwnedFd::from(output))?);
    let mut said = String::new();
    timeout(LISTENS_WITHIN, output.read_line(&mut said)).await.context("it does not say where it listens")??;
    let address = said.split_once("http://").and_then(|(_, behind)| behind.split([',', '\n']).next());
    let address = address.and_then(|address| address.parse().ok());
    Ok((address.with_context(|| format!("it said {said:?} and not where it listens"))?, output))
}

/// The last line of its log.
fn complaint(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    let last = log.lines().next_back().unwrap_or("it did not say why");
    format!("the demo's server: {last}")
}
