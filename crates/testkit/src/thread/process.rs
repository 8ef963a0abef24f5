//! The real binary as a child, ended by its id whatever happens to the proof.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running `posthaste serve --dev`.
#[derive(Debug)]
pub(super) struct Posthaste {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Posthaste {
    /// Starts it over the data in `folder`, on a free port, and waits until it listens.
    pub(super) fn start(binary: &Path, folder: &Path) -> io::Result<Self> {
        let child = Command::new(binary)
            .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--data", "data"])
            // A file of settings where the proof happens to run is none of its business.
            .current_dir(folder)
            .env("POSTHASTE_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        // Made before anything can fail: dropping it ends the process.
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let stdout = server.child.stdout.take().ok_or_else(|| io::Error::other("its output is not piped"))?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        let address = said.split_once("http://").and_then(|(_, behind)| behind.split([',', '\n']).next());
        server.address = address
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| io::Error::other(format!("the server said {said:?} and not where it listens")))?;
        Ok(server)
    }

    /// kill -9. Killing it twice is the same as once.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Posthaste {
    fn drop(&mut self) {
        // Nothing can be done about a process that is already gone.
        let _ = self.kill();
    }
}
