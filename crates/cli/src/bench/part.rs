//! The hidden command `bench-part`: a child process of the bench, such as the server or the producer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Subcommand;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use posthaste_engine::clock::SystemClock;
use posthaste_server::api::caller::Door;
use posthaste_server::run::Front;
use posthaste_testkit::fixtures::cpu::Cpu;
use posthaste_testkit::fixtures::part::end_with_input;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::hammer::{Lead, Load, Post, hammer};
use super::{certificate, receiver};
use crate::config::Config;
use crate::serve;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Takes all requests and counts them
    Receiver(receiver::Args),
    /// The server as `serve --dev` runs it, with the embedded settings; prints the number of commits for each line of
    /// input
    Server {
        data: PathBuf,
        /// Burn CPU beside the server, to test that a comparison finds it
        #[arg(long)]
        burns: bool,
    },
    /// Posts messages to a server
    Producer(Work),
    /// Posts webhooks directly to a receiver
    Bare(Work),
}

/// The load that a producer or a bare client makes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Work {
    #[arg(long)]
    pub(super) target: SocketAddr,
    #[arg(long)]
    pub(super) seconds: u64,
    #[arg(long)]
    pub(super) messages: u64,
    #[arg(long)]
    pub(super) connections: u16,
    /// Bytes of each payload
    #[arg(long)]
    pub(super) payload: usize,
    /// Messages in each request; 0 sends each message in a request of its own
    #[arg(long, default_value_t = 0)]
    pub(super) batch: u64,
    /// Endpoints of each message
    #[arg(long, default_value_t = 1)]
    pub(super) fan: usize,
    /// Messages a second
    #[arg(long)]
    pub(super) rate: Option<f64>,
    /// Have at most `lead` messages accepted that this receiver has not got
    #[arg(long)]
    pub(super) lead_over: Option<SocketAddr>,
    #[arg(long, default_value_t = 0)]
    pub(super) lead: u64,
    /// The receiver speaks TLS with this certificate
    #[arg(long)]
    pub(super) certificate: Option<PathBuf>,
    #[arg(long, value_delimiter = ',')]
    pub(super) endpoints: Vec<String>,
}

/// The results of a producer or a bare client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Worked {
    pub(super) answered: u64,
    pub(super) took_us: u64,
    pub(super) cpu_us: u64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let runtime = serve::runtime()?;
    let (work, bare) = match args.part {
        Part::Receiver(args) => {
            end_with_input();
            return runtime.block_on(receiver::serve(&args));
        }
        Part::Server { data, burns } => {
            if burns {
                std::thread::spawn(burn);
            }
            return runtime.block_on(server(data));
        }
        Part::Producer(work) => (work, false),
        Part::Bare(work) => (work, true),
    };
    let load = work.load()?;
    let (answered, took) = match bare {
        true => runtime.block_on(hammer(&load, &Webhooks::new(&work)))?,
        false => runtime.block_on(hammer(&load, &Messages::new(&work)))?,
    };
    let cpu = Cpu::now().map_err(|why| anyhow::Error::msg(why.0))?.all();
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let worked = Worked { answered, took_us: micros(took), cpu_us: micros(cpu) };
    println!("{}", serde_json::to_string(&worked)?);
    Ok(())
}

/// Uses a large part of a core until the process ends.
fn burn() {
    loop {
        (0..5_000_000_u32).for_each(|round| _ = std::hint::black_box(round));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the server, and prints its number of commits for each line of input: the only figure that is not visible from
/// outside the process.
async fn server(data: PathBuf) -> Result<()> {
    let mut config = Config::in_folder(data)?;
    serve::allow_this_machine(&mut config.targets);
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen")?;
    let store = Arc::new(serve::open(&config)?);
    println!("listening on http://{}", listener.local_addr()?);
    let counted = Arc::clone(&store);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {
            println!("{}", counted.commits().count);
        }
        // The parent process has ended.
        std::process::exit(0);
    });
    let front = Front { listener, metrics: None, door: Door::Open, data: None };
    serve::served(&store, SystemClock::new(), &config, front, CancellationToken::new()).await?;
    Ok(())
}

impl Work {
    /// The command line arguments for this work.
    pub(super) fn to_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut say = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        say("target", self.target.to_string());
        say("seconds", self.seconds.to_string());
        say("messages", self.messages.to_string());
        say("connections", self.connections.to_string());
        say("payload", self.payload.to_string());
        say("batch", self.batch.to_string());
        say("fan", self.fan.to_string());
        say("endpoints", self.endpoints.join(","));
        if let Some(rate) = self.rate {
            say("rate", rate.to_string());
        }
        if let Some(receiver) = self.lead_over {
            say("lead-over", receiver.to_string());
            say("lead", self.lead.to_string());
        }
        if let Some(certificate) = &self.certificate {
            say("certificate", certificate.display().to_string());
        }
        args
    }

    fn load(&self) -> Result<Load> {
        Ok(Load {
            target: self.target,
            tls: self.certificate.as_deref().map(certificate::trusted).transpose()?,
            connections: self.connections,
            lasts: Duration::from_secs(self.seconds),
            messages: self.messages,
            batch: self.batch.max(1),
            rate: self.rate,
            lead: self.lead_over.map(|receiver| Lead { receiver, messages: self.lead, fan: self.fan as u64 }),
        })
    }
}

/// Messages as a producer posts them, to the endpoints in turn.
struct Messages<'a> {
    work: &'a Work,
    fields: HeaderMap,
    to: Uri,
    payload: Payload,
}

impl<'a> Messages<'a> {
    fn new(work: &'a Work) -> Self {
        let (to, content_type) = match work.batch {
            0 => ("/v1/messages", "application/json"),
            _ => ("/v1/messages/batch", "application/x-ndjson"),
        };
        let fields =
            [(HOST, HeaderValue::from_static("127.0.0.1")), (CONTENT_TYPE, HeaderValue::from_static(content_type))];
        let payload = Payload::of(work.payload);
        Self { work, fields: HeaderMap::from_iter(fields), to: Uri::from_static(to), payload }
    }

    fn write(&self, number: u64, sent_us: u64, body: &mut Vec<u8>) {
        // Tier 1, transactional: a failed attempt is retried within a second.
        body.extend_from_slice(b"{\"event_type\":\"bench.sent\",\"tier\":1,\"payload\":");
        self.payload.write(sent_us, body);
        body.extend_from_slice(b",\"to\":{\"endpoints\":[");
        let all = self.work.endpoints.len().max(1);
        let first = usize::try_from(number).unwrap_or_default() * self.work.fan % all;
        for turn in 0..self.work.fan {
            let endpoint = self.work.endpoints.get((first + turn) % all).map_or("", String::as_str);
            body.extend_from_slice(if turn == 0 { b"\"" } else { b",\"" });
            body.extend_from_slice(endpoint.as_bytes());
            body.push(b'"');
        }
        body.extend_from_slice(b"]}}");
    }
}

impl Post for Messages<'_> {
    fn request(&self, first: u64, sent_us: u64) -> Request<Full<Bytes>> {
        let lines = self.work.batch.max(1);
        let mut body = Vec::with_capacity((self.work.payload + 256) * usize::try_from(lines).unwrap_or(1));
        for number in first..first + lines {
            self.write(number, sent_us, &mut body);
            body.push(b'\n');
        }
        post(&self.to, &self.fields, body)
    }

    fn is_taken(&self, status: StatusCode, body: &[u8]) -> bool {
        const TAKEN: &[u8] = b"{\"status\":202,";
        match self.work.batch {
            0 => status == StatusCode::ACCEPTED,
            _ => {
                let mut lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                status == StatusCode::OK && lines.all(|line| line.starts_with(TAKEN))
            }
        }
    }
}

/// Requests of the bare client, with the payloads and the length of real webhooks.
struct Webhooks {
    fields: HeaderMap,
    to: Uri,
    payload: Payload,
}

pub(super) const DELIVERY: HeaderName = HeaderName::from_static("posthaste-delivery");
/// The path of bare requests, which the receiver does not count as deliveries.
pub(super) const BARE: &str = "/bare";

impl Webhooks {
    fn new(work: &Work) -> Self {
        const SIGNATURE: &str = "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        const MESSAGE: &str = "msg_000000000000000000000000000000000000";
        let own =
            |name: &'static str, value: &'static str| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let fields = [
            (HOST, HeaderValue::from_static("127.0.0.1:65535")),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (USER_AGENT, HeaderValue::from_static(concat!("Posthaste/", env!("CARGO_PKG_VERSION")))),
            own("webhook-id", MESSAGE),
            own("webhook-timestamp", "1800000000"),
            own("webhook-signature", SIGNATURE),
            own("posthaste-attempt", "1"),
            own("posthaste-event-type", "bench.sent"),
            own("posthaste-correlation-id", MESSAGE),
        ];
        Self { fields: HeaderMap::from_iter(fields), to: Uri::from_static(BARE), payload: Payload::of(work.payload) }
    }
}

impl Post for Webhooks {
    fn request(&self, first: u64, sent_us: u64) -> Request<Full<Bytes>> {
        let mut body = Vec::with_capacity(self.payload.filled.len());
        self.payload.write(sent_us, &mut body);
        let mut request = post(&self.to, &self.fields, body);
        let delivery = HeaderValue::try_from(format!("dlv_{first:036}")).expect("digits are a header's value");
        request.headers_mut().insert(DELIVERY, delivery);
        request
    }

    fn is_taken(&self, status: StatusCode, _: &[u8]) -> bool {
        status == StatusCode::NO_CONTENT
    }
}

fn post(to: &Uri, fields: &HeaderMap, body: Vec<u8>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::from(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = to.clone();
    *request.headers_mut() = fields.clone();
    request
}

const SENT: &str = "{\"sent_us\":";
const DIGITS: usize = 16;

/// A payload of a given size that contains its send time.
struct Payload {
    filled: Vec<u8>,
}

impl Payload {
    fn of(bytes: usize) -> Self {
        let mut filled = format!("{SENT}{:0DIGITS$},\"fill\":\"", 0).into_bytes();
        let missing = bytes.saturating_sub(filled.len() + 2);
        filled.extend(std::iter::repeat_n(b'x', missing));
        filled.extend_from_slice(b"\"}");
        Self { filled }
    }

    fn write(&self, sent_us: u64, body: &mut Vec<u8>) {
        body.extend_from_slice(SENT.as_bytes());
        body.extend_from_slice(format!("{sent_us:0DIGITS$}").as_bytes());
        body.extend_from_slice(&self.filled[SENT.len() + DIGITS..]);
    }
}

/// The send time in a payload.
pub(super) fn sent_us(payload: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(SENT.as_bytes())?.get(..DIGITS)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The wall clock in microseconds, which all processes of the bench share.
#[expect(clippy::disallowed_methods, reason = "two processes can compare nothing but the wall clock")]
pub(super) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        work: Work,
    }

    fn work() -> Work {
        Work {
            target: SocketAddr::from(([127, 0, 0, 1], 8400)),
            seconds: 1,
            messages: 10,
            connections: 2,
            payload: 600,
            batch: 3,
            fan: 2,
            rate: Some(0.5),
            lead_over: Some(SocketAddr::from(([127, 0, 0, 1], 8401))),
            lead: 7,
            certificate: Some("a.pem".into()),
            endpoints: ["ep_a", "ep_b", "ep_c"].map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn a_payload_has_its_size_and_its_send_time() {
        let (mut written, now) = (Vec::new(), wall_us());
        Payload::of(600).write(now, &mut written);
        assert_eq!((written.len(), sent_us(&written)), (600, Some(now)));
        assert!(serde_json::from_slice::<serde_json::Value>(&written).is_ok());
        assert_eq!(sent_us(b"{}"), None);
    }

    #[test]
    fn work_survives_a_round_trip_through_its_arguments() {
        let args = [vec!["part".to_owned()], work().to_args()].concat();
        let read = Line::try_parse_from(args).unwrap_or_else(|error| panic!("{error}")).work;
        assert_eq!(format!("{read:?}"), format!("{:?}", work()));
    }

    #[test]
    fn messages_go_to_their_endpoints_in_turn() {
        let work = work();
        let mut line = Vec::new();
        Messages::new(&work).write(1, 1_800_000_000_000_000, &mut line);
        let message: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(message["to"]["endpoints"], serde_json::json!(["ep_c", "ep_a"]));
    }

    #[test]
    fn a_batch_is_taken_if_every_line_is() {
        let work = work();
        let taken = |body: &[u8]| Messages::new(&work).is_taken(StatusCode::OK, body);
        assert!(taken(b"{\"status\":202,\"id\":\"msg_1\"}\n{\"status\":202,\"id\":\"msg_2\"}\n"));
        assert!(!taken(b"{\"status\":202,\"id\":\"msg_1\"}\n{\"status\":429}\n"));
    }
}
