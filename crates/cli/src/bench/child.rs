//! Parts of the bench as processes of their own, ended with it whatever happens.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// A server of ours that runs until it is dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    pub(super) address: SocketAddr,
}

impl Child {
    /// Starts this program with other arguments and waits until it says where it listens.
    pub(super) fn start(args: &[&str], name: &str) -> Result<Self> {
        let mut process =
            command(args)?.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start the {name}"))?;
        let mut said = String::new();
        let stdout = process.stdout.take().context("a child's output is piped")?;
        let read = BufReader::new(stdout).read_line(&mut said);
        // Made before anything can fail: dropping it ends the process.
        let mut child = Self { process, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        read.with_context(|| format!("cannot hear the {name}"))?;
        child.address =
            address_in(&said).with_context(|| format!("the {name} said {said:?} and not where it listens"))?;
        Ok(child)
    }

    /// The CPU time it has used, all threads together.
    pub(super) fn cpu(&self) -> Result<Duration> {
        cpu_of(&self.process.id().to_string())
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
pub(super) fn output(args: &[&str], name: &str) -> Result<String> {
    let output = command(args)?.stdout(Stdio::piped()).spawn()?.wait_with_output()?;
    ensure!(output.status.success(), "the {name} ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn command(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot tell which program this is")?);
    command.args(args).env("POSTHASTE_LOG", "warn").stdin(Stdio::null());
    Ok(command)
}

/// The address in `listening on http://127.0.0.1:8400, …`.
fn address_in(said: &str) -> Option<SocketAddr> {
    let (_, behind) = said.split_once("http://")?;
    behind.split([',', '\n']).next()?.parse().ok()
}

/// The CPU time of a process, or of this one as `self`.
pub(super) fn cpu_of(process: &str) -> Result<Duration> {
    /// Linux counts in hundredths of a second here, whatever the kernel's own clock.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).context("cannot read a process's CPU time")?;
    // The name comes second, in brackets, and may hold anything: fields are counted behind it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u32>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("a process's CPU time is not where it should be")?;
    Ok(TICK * (user + system))
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

    #[test]
    fn our_own_cpu_time_can_be_read() {
        assert!(cpu_of("self").expect("this process exists") < Duration::from_secs(3_600));
    }
}
