//! The hidden `bench-part`: one process of the bench.

use std::net::SocketAddr;
use std::time::SystemTime;

use anyhow::Result;
use bytes::Bytes;
use clap::Subcommand;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};

use super::hammer::{Load, hammer};
use super::{child, tally};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Takes everything and counts it
    Receiver,
    /// Posts messages to a server
    Producer(Work),
    /// Posts webhooks straight to a receiver
    Bare(Work),
}

#[derive(clap::Args)]
struct Work {
    #[arg(long)]
    target: SocketAddr,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    messages: u64,
    #[arg(long)]
    connections: u16,
    #[arg(long)]
    payload: usize,
    #[arg(long, value_delimiter = ',')]
    endpoints: Vec<String>,
}

/// What a producer or a bare client did.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Worked {
    pub(super) answered: u64,
    pub(super) took_us: u64,
    pub(super) cpu_us: u64,
}

/// What the receiver counted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stats {
    pub(super) arrivals: u64,
    pub(super) distinct: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let runtime = crate::serve::runtime()?;
    let worked = match &args.part {
        Part::Receiver => return runtime.block_on(tally::serve()),
        Part::Producer(work) => {
            runtime.block_on(hammer(work.load(), StatusCode::ACCEPTED, |number| work.message(number)))?
        }
        Part::Bare(work) => {
            runtime.block_on(hammer(work.load(), StatusCode::NO_CONTENT, |number| work.webhook(number)))?
        }
    };
    let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let (answered, took) = worked;
    let worked = Worked { answered, took_us: micros(took), cpu_us: micros(child::cpu_of("self")?) };
    println!("{}", serde_json::to_string(&worked)?);
    Ok(())
}

impl Work {
    fn load(&self) -> Load {
        Load { target: self.target, connections: self.connections, seconds: self.seconds, messages: self.messages }
    }

    /// A message as a producer posts it, to one endpoint after the other.
    fn message(&self, number: u64) -> Request<Full<Bytes>> {
        let turn = usize::try_from(number).unwrap_or_default() % self.endpoints.len().max(1);
        let endpoint = self.endpoints.get(turn).map_or("", String::as_str);
        let payload = payload(self.payload);
        let body = format!(
            "{{\"event_type\":\"bench.sent\",\"payload\":{payload},\"to\":{{\"endpoints\":[\"{endpoint}\"]}}}}"
        );
        Request::post("/v1/messages")
            .header("host", "127.0.0.1")
            .header("content-type", "application/json")
            .body(Full::from(body))
            .expect("its parts are all known")
    }

    /// The same payload as a receiver gets it. The fields are as long as real ones.
    fn webhook(&self, number: u64) -> Request<Full<Bytes>> {
        Request::post("/hook/0")
            .header("host", "127.0.0.1:65535")
            .header("content-type", "application/json")
            .header("user-agent", concat!("Posthaste/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", format!("msg_{number:036}"))
            .header("webhook-timestamp", "1800000000")
            .header("webhook-signature", "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
            .header("posthaste-delivery", "dlv_000000000000000000000000000000000000")
            .header("posthaste-attempt", "1")
            .header("posthaste-event-type", "bench.sent")
            .header("posthaste-correlation-id", "msg_000000000000000000000000000000000000")
            .body(Full::from(payload(self.payload)))
            .expect("its parts are all known")
    }
}

const SENT: &str = "{\"sent_us\":";

/// A payload of that many bytes that says when it was made.
fn payload(bytes: usize) -> String {
    let mut payload = format!("{SENT}{:016},\"fill\":\"", wall_us());
    let missing = bytes.saturating_sub(payload.len() + 2);
    payload.extend(std::iter::repeat_n('x', missing));
    payload.push_str("\"}");
    payload
}

/// When a payload was made.
pub(super) fn sent_us(payload: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(SENT.as_bytes())?.get(..16)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Microseconds by the machine's clock, which all processes of the bench share.
#[expect(clippy::disallowed_methods, reason = "two processes can compare nothing but the wall clock")]
pub(super) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_says_when_it_was_made() {
        let payload = payload(600);
        assert_eq!(payload.len(), 600);
        assert!(sent_us(payload.as_bytes()).is_some_and(|sent| sent <= wall_us()));
        assert_eq!(sent_us(b"{}"), None);
    }
}
