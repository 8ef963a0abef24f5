//! The bench's receiver: takes everything or refuses a share, and counts it.
//!
//! Its bytes are read and written by hand: what it costs is taken from the server under test, which shares its cores,
//! and says nothing about that server. Whoever is measured by it, the bare client too, gets the same.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::certificate;
use super::part::{BARE, DELIVERY};
use super::tally::Tally;

/// What a TLS connection begins with.
const TLS_HANDSHAKE: u8 = 22;
/// More than any request of the bench has.
const FIELDS_MAX: usize = 32;
/// A request of the bench and some more; a longer payload makes it grow.
const BUFFER_BYTES: usize = 8 * 1024;

const TAKEN: &[u8] = b"HTTP/1.1 204 No Content\r\nserver: posthaste-bench\r\n\r\n";
const REFUSED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\nserver: posthaste-bench\r\ncontent-length: 0\r\n\r\n";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Speak TLS with the certificate and key in this folder
    #[arg(long)]
    tls: Option<PathBuf>,
    /// Refuse so many of a hundred first attempts
    #[arg(long, default_value_t = 0)]
    failing_percent: u64,
}

#[derive(Debug, Default)]
struct Receiver {
    hasher: RandomState,
    failing_percent: u64,
    deliveries: Mutex<Tally>,
    bare: Mutex<Tally>,
}

/// Serves until the process is ended.
pub(super) async fn serve(args: &Args) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let tls = args.tls.as_deref().map(certificate::presented).transpose()?.map(TlsAcceptor::from);
    println!("listening on http://{}", listener.local_addr()?);
    let receiver = Arc::new(Receiver { failing_percent: args.failing_percent, ..Receiver::default() });
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, tls.clone(), Arc::clone(&receiver)));
    }
}

/// Whoever is measured may be ended in the middle of a request: how a connection ends says nothing.
async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, receiver: Arc<Receiver>) {
    let _ = stream.set_nodelay(true);
    // The bench itself asks in the clear, also where deliveries come by TLS.
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

/// One request after the other.
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

/// What matters of a request's head.
#[derive(Debug, Default)]
struct Head<'a> {
    path: &'a str,
    /// Bytes of the head, and of the body behind it.
    length: usize,
    body_length: usize,
    delivery: Option<&'a [u8]>,
    is_first_attempt: bool,
}

impl<'a> Head<'a> {
    /// `None` as long as it has not come whole.
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
    /// Answers the first request of these bytes, and says how many it was; `None` while there is more of it to come.
    fn answer(&self, came: &[u8], answer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let Some(head) = Head::parse(came)? else { return Ok(None) };
        let Some(body) = came.get(head.length..head.length + head.body_length) else { return Ok(None) };
        match head.path {
            "/count" => json(&lock(&self.deliveries).count(), answer)?,
            "/arrival" => json(&lock(&self.deliveries).arrival(), answer)?,
            "/reset" => {
                *lock(&self.deliveries) = Tally::default();
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

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"POST /hook HTTP/1.1\r\nContent-Length: 2\r\nPosthaste-Delivery: dlv_1\r\n\r\n{}";

    #[test]
    fn a_request_is_answered_once_all_of_it_has_come() {
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
}
