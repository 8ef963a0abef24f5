//! The processes of the bench beside the server: `bench-part peer JSON`, where the JSON is a `BenchPart`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client::post_all;
use super::receiver::{self, ReceiverSettings};
use super::requests::{Messages, Webhooks};
use crate::fixtures::{Cpu, end_with_input};
use crate::prove::CannotRun;

/// A process of the bench.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum BenchPart {
    /// Takes all requests and counts them, until its standard input ends.
    Receiver(ReceiverSettings),
    /// Posts messages to a server, and prints its [`ClientResult`].
    Producer(ClientLoad),
    /// Posts webhooks directly to a receiver, and prints its [`ClientResult`].
    Bare(ClientLoad),
}

/// The load that a producer or a bare client makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClientLoad {
    pub(super) target: SocketAddr,
    pub(super) seconds: u64,
    pub(super) messages: u64,
    pub(super) connections: u16,
    /// Bytes of each payload.
    pub(super) payload: usize,
    /// Messages in each request; 0 sends each message in a request of its own.
    pub(super) batch: u64,
    /// Endpoints of each message.
    pub(super) fan: usize,
    /// Messages a second; `None` posts as fast as requests are answered.
    pub(super) rate: Option<f64>,
    pub(super) lead: Option<MessageLead>,
    /// The target speaks TLS with this certificate; `None` posts without TLS.
    pub(super) certificate: Option<PathBuf>,
    pub(super) endpoints: Vec<String>,
}

/// The most messages under way. Without it a producer that is faster than deliveries would measure a growing backlog.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct MessageLead {
    /// The receiver that counts arrived deliveries.
    pub(super) receiver: SocketAddr,
    pub(super) messages: u64,
}

/// The results of a producer or a bare client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ClientResult {
    pub(super) answered: u64,
    pub(super) took: Duration,
    pub(super) cpu: Duration,
}

impl ClientResult {
    pub(super) fn per_second(&self) -> f64 {
        super::per_second(self.answered, self.took)
    }
}

impl BenchPart {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Receiver(_) => "receiver",
            Self::Producer(_) => "producer",
            Self::Bare(_) => "bare client",
        }
    }

    /// The command that runs it as a process of `posthaste`.
    pub(super) fn command(&self, posthaste: &Path) -> Result<Command, CannotRun> {
        let mut command = Command::new(posthaste);
        command.args(["bench-part", "peer", &serde_json::to_string(self)?]);
        Ok(command)
    }
}

/// Runs the part that a parent process has described as JSON.
///
/// # Errors
/// If it is not a part of the bench, or fails.
pub fn run(json: &str) -> Result<(), CannotRun> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = match serde_json::from_str(json)? {
        BenchPart::Receiver(settings) => {
            end_with_input();
            return runtime.block_on(receiver::serve(&settings));
        }
        BenchPart::Producer(load) => runtime.block_on(post_all(&load, &Messages::new(&load))),
        BenchPart::Bare(load) => runtime.block_on(post_all(&load, &Webhooks::new(&load))),
    };
    let (answered, took) = ended?;
    println!("{}", serde_json::to_string(&ClientResult { answered, took, cpu: Cpu::now()?.all() })?);
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn load() -> ClientLoad {
        let target = SocketAddr::from(([127, 0, 0, 1], 8400));
        ClientLoad {
            target,
            seconds: 1,
            messages: 10,
            connections: 2,
            payload: 600,
            batch: 3,
            fan: 2,
            rate: Some(0.5),
            lead: Some(MessageLead { receiver: target, messages: 7 }),
            certificate: Some("a.pem".into()),
            endpoints: ["ep_a", "ep_b", "ep_c"].map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn a_part_survives_a_round_trip_through_its_arguments() {
        let part = BenchPart::Producer(load());
        let command = part.command(Path::new("posthaste")).expect("a command");
        let args: Vec<&str> = command.get_args().filter_map(|arg| arg.to_str()).collect();
        let read: BenchPart = serde_json::from_str(args[2]).expect("a part");
        assert_eq!((&args[..2], format!("{read:?}")), (&["bench-part", "peer"][..], format!("{part:?}")));
    }
}
