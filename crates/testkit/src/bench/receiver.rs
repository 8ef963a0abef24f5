//! The bench's receiver: takes all requests or refuses a share of them, and counts them.
//!
//! It parses and writes HTTP by hand to use little CPU time, since it shares the cores with the server under test. The
//! bare client posts to the same receiver.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::certificate;
use super::requests::{BARE, DELIVERY, sent_us, wall_us};
use crate::fixtures::lock;
use crate::prove::CannotRun;

/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 22;
/// The most header fields: more than any request of the bench has.
const FIELDS_MAX: usize = 32;
/// The initial size of the buffer, larger than a request of the bench; it grows with a longer payload.
const BUFFER_BYTES: usize = 8 * 1024;

const TAKEN: &[u8] = b"HTTP/1.1 204 No Content\r\nserver: posthaste-bench\r\n\r\n";
const REFUSED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\nserver: posthaste-bench\r\ncontent-length: 0\r\n\r\n";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReceiverSettings {
    /// The folder of the certificate and key to use for TLS; `None` takes requests without TLS only.
    pub(super) tls: Option<PathBuf>,
    /// The share of first attempts to refuse, in percent.
    pub(super) failing_percent: u64,
}

#[derive(Debug, Default)]
struct Receiver {
    hasher: RandomState,
    failing_percent: u64,
    deliveries: Mutex<ArrivalTally>,
    bare: Mutex<ArrivalTally>,
}

/// Serves until the process is ended.
pub(super) async fn serve(settings: &ReceiverSettings) -> Result<(), CannotRun> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let tls = settings.tls.as_deref().map(certificate::presented).transpose()?.map(TlsAcceptor::from);
    println!("listening on http://{}", listener.local_addr()?);
    let receiver = Arc::new(Receiver { failing_percent: settings.failing_percent, ..Receiver::default() });
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, tls.clone(), Arc::clone(&receiver)));
    }
}

/// Serves a connection. Errors are ignored, since the client may be ended in the middle of a request.
async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, receiver: Arc<Receiver>) {
    let _ = stream.set_nodelay(true);
    // The bench's own requests come without TLS, also if deliveries come with it.
    let mut first = [0];
    let is_tls = stream.peek(&mut first).await.is_ok() && first[0] == TLS_HANDSHAKE;
    let _ = match tls.filter(|_| is_tls) {
        None => answer_over(stream, &receiver).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => answer_over(stream, &receiver).await,
            Err(error) => Err(error),
        },
    };
}

/// Answers the requests of a connection one after the other.
async fn answer_over(mut stream: impl AsyncRead + AsyncWrite + Unpin, receiver: &Receiver) -> io::Result<()> {
    let mut came = Vec::with_capacity(BUFFER_BYTES);
    let mut answer = Vec::new();
    loop {
        answer.clear();
        match receiver.answer(&came, &mut answer)? {
            Some(read) => {
                came.drain(..read);
                stream.write_all(&answer).await?;
                stream.flush().await?;
            }
            None if stream.read_buf(&mut came).await? == 0 => return Ok(()),
            None => {}
        }
    }
}

/// The parts of a request's head that the receiver needs.
#[derive(Debug, Default)]
struct Head<'a> {
    path: &'a str,
    /// The length of the head in bytes; `body_length` is that of the body after it.
    length: usize,
    body_length: usize,
    delivery: Option<&'a [u8]>,
    is_first_attempt: bool,
}

impl<'a> Head<'a> {
    /// Parses a head; `None` if it is not complete.
    fn parse(came: &'a [u8]) -> io::Result<Option<Self>> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let httparse::Status::Complete(length) = request.parse(came).map_err(io::Error::other)? else {
            return Ok(None);
        };
        let mut head = Self { path: request.path.unwrap_or_default(), length, ..Self::default() };
        for field in request.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                let digits = std::str::from_utf8(field.value).map_err(io::Error::other)?;
                head.body_length = digits.parse().map_err(io::Error::other)?;
            } else if field.name.eq_ignore_ascii_case(DELIVERY.as_str()) {
                head.delivery = Some(field.value);
            } else if field.name.eq_ignore_ascii_case("posthaste-attempt") {
                head.is_first_attempt = field.value == b"1";
            }
        }
        Ok(Some(head))
    }
}

impl Receiver {
    /// Answers the first request in these bytes and returns its length; `None` if the request is not complete.
    fn answer(&self, came: &[u8], answer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let Some(head) = Head::parse(came)? else { return Ok(None) };
        let Some(body) = came.get(head.length..head.length + head.body_length) else { return Ok(None) };
        match head.path {
            "/count" => json(&lock(&self.deliveries).count(), answer)?,
            "/arrival" => json(&lock(&self.deliveries).arrival(), answer)?,
            "/reset" => {
                *lock(&self.deliveries) = ArrivalTally::default();
                answer.extend_from_slice(TAKEN);
            }
            BARE => {
                lock(&self.bare).take(self.hash(&head), body);
                answer.extend_from_slice(TAKEN);
            }
            _ => answer.extend_from_slice(self.deliver(&head, body)),
        }
        Ok(Some(head.length + head.body_length))
    }

    fn deliver(&self, head: &Head<'_>, body: &[u8]) -> &'static [u8] {
        let id = self.hash(head);
        if head.is_first_attempt && id.is_some_and(|id| id % 100 < self.failing_percent) {
            lock(&self.deliveries).refuse();
            return REFUSED;
        }
        lock(&self.deliveries).take(id, body);
        TAKEN
    }

    fn hash(&self, head: &Head<'_>) -> Option<u64> {
        head.delivery.map(|id| self.hasher.hash_one(id))
    }
}

fn json(of: &impl Serialize, answer: &mut Vec<u8>) -> io::Result<()> {
    let body = serde_json::to_vec(of)?;
    answer.extend_from_slice(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes());
    answer.extend_from_slice(&body);
    Ok(())
}

/// The deliveries that arrived.
#[derive(Debug, Default)]
pub(super) struct ArrivalTally {
    taken: u64,
    refused: u64,
    /// Hashes of deliveries' ids: 64 bits of a million ids collide once in 30 million runs.
    deliveries: HashSet<u64>,
    /// The time from sending to arrival of each, in microseconds.
    took_us: Vec<u64>,
}

/// The numbers of requests and deliveries.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct ArrivalCount {
    /// Deliveries; one that came twice counts once.
    pub(super) distinct: u64,
    /// Requests that were answered with success.
    pub(super) taken: u64,
    /// Requests that were answered with a failure.
    pub(super) refused: u64,
}

/// Percentiles of the time from sending to arrival, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct ArrivalTimes {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
}

impl ArrivalTally {
    /// Counts a request that is answered with a failure.
    pub(super) fn refuse(&mut self) {
        self.refused += 1;
    }

    /// Counts a request that is answered with success, by the hash of its delivery's id.
    pub(super) fn take(&mut self, id: Option<u64>, body: &[u8]) {
        self.taken += 1;
        if id.is_some_and(|id| self.deliveries.insert(id))
            && let Some(sent) = sent_us(body)
        {
            self.took_us.push(wall_us().saturating_sub(sent));
        }
    }

    pub(super) fn count(&self) -> ArrivalCount {
        ArrivalCount { distinct: self.deliveries.len() as u64, taken: self.taken, refused: self.refused }
    }

    pub(super) fn arrival(&mut self) -> ArrivalTimes {
        self.took_us.sort_unstable();
        let at = |of_thousand| percentile_ms(&self.took_us, of_thousand);
        ArrivalTimes { p50_ms: at(500), p99_ms: at(990), p999_ms: at(999) }
    }
}

/// A percentile of ascending times in microseconds.
pub(super) fn percentile_ms(sorted_us: &[u64], of_thousand: usize) -> f64 {
    sorted_us.get(sorted_us.len() * of_thousand / 1_000).copied().unwrap_or_default() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"POST /hook HTTP/1.1\r\nContent-Length: 2\r\nPosthaste-Delivery: dlv_1\r\n\r\n{}";

    #[test]
    fn a_request_is_answered_once_it_is_complete() {
        let (receiver, mut answer) = (Receiver::default(), Vec::new());
        let twice = [REQUEST, REQUEST].concat();
        for length in 0..REQUEST.len() {
            assert_eq!(receiver.answer(&twice[..length], &mut answer).expect("a request"), None);
        }
        assert_eq!(receiver.answer(&twice, &mut answer).expect("a request"), Some(REQUEST.len()));
        assert_eq!(answer, TAKEN);
        assert_eq!(lock(&receiver.deliveries).count().distinct, 1);
    }

    #[test]
    fn a_share_of_first_attempts_is_refused() {
        let receiver = Receiver { failing_percent: 100, ..Receiver::default() };
        let first = Head { delivery: Some(b"dlv_1"), is_first_attempt: true, ..Head::default() };
        assert_eq!(receiver.deliver(&first, b"{}"), REFUSED);
        assert_eq!(receiver.deliver(&Head { is_first_attempt: false, ..first }, b"{}"), TAKEN);
    }

    #[test]
    fn a_repeated_delivery_counts_once_as_distinct_and_twice_as_taken() {
        let mut tally = ArrivalTally::default();
        tally.refuse();
        for id in [1, 2, 2] {
            tally.take(Some(id), b"{}");
        }
        let count = tally.count();
        assert_eq!((count.distinct, count.taken, count.refused), (2, 3, 1));
    }

    #[test]
    fn percentiles_are_those_of_the_arrived_deliveries() {
        let mut tally =
            ArrivalTally { took_us: (1..=1_000).rev().map(|ms| ms * 1_000).collect(), ..ArrivalTally::default() };
        let arrival = tally.arrival();
        assert_eq!((arrival.p50_ms, arrival.p99_ms, arrival.p999_ms), (501.0, 991.0, 1_000.0));
        assert_eq!(ArrivalTally::default().arrival().p99_ms, 0.0);
    }
}
