//! The simulated network of a row: a resolver with given answers, a dialer that records addresses, and a receiver that
//! all connections lead to.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::header::{HeaderMap, HeaderName};
use hyper::{Request, StatusCode};
use posthaste_engine::connector::{self, Connector, ConnectorJob, Dial, NoAnswer, Resolve};
use posthaste_engine::target::Target;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::fixtures::lock;
use crate::receivers::{HttpReceiver, Responder, TimedResponse};

/// The result of a look-up.
#[derive(Clone, Debug)]
pub(super) enum Lookup {
    Addresses(Vec<IpAddr>),
    Fails(NoAnswer),
    NeverEnds,
}

/// A resolver that returns these answers in order, for any name. The last answer repeats.
#[derive(Debug)]
pub(super) struct FixedNames(Mutex<VecDeque<Lookup>>);

impl FixedNames {
    pub(super) fn new(answers: impl IntoIterator<Item = Lookup>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(answers.into_iter().collect())))
    }

    fn next(&self) -> Lookup {
        let mut answers = lock(&self.0);
        match answers.len() {
            0 => Lookup::Fails(NoAnswer::Failed),
            1 => answers[0].clone(),
            _ => answers.pop_front().expect("more than one is left"),
        }
    }
}

impl Resolve for FixedNames {
    fn resolve<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>> {
        Box::pin(async move {
            match self.next() {
                Lookup::Addresses(list) => Ok(list),
                Lookup::Fails(why) => Err(why),
                Lookup::NeverEnds => std::future::pending().await,
            }
        })
    }
}

/// A dialer that records every address the connector connects to, and connects to the receiver instead.
#[derive(Debug)]
pub(super) struct Witness {
    receiver: SocketAddr,
    dialled: Mutex<Vec<SocketAddr>>,
}

impl Witness {
    pub(super) fn new(receiver: SocketAddr) -> Arc<Self> {
        Arc::new(Self { receiver, dialled: Mutex::default() })
    }

    pub(super) fn dialled(&self) -> Vec<SocketAddr> {
        lock(&self.dialled).clone()
    }
}

impl Dial for Witness {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        lock(&self.dialled).push(to);
        Box::pin(TcpStream::connect(self.receiver))
    }
}

/// Gives every request the same answer.
#[derive(Debug)]
pub(super) struct FixedAnswer {
    status: StatusCode,
    headers: HeaderMap,
}

pub(super) type Site = HttpReceiver<FixedAnswer>;

impl Site {
    /// Starts a receiver with this answer, a status line without the version and headers; over TLS if there is an
    /// acceptor.
    pub(super) async fn start(answer: &str, acceptor: Option<TlsAcceptor>) -> io::Result<Self> {
        let (status, fields) = answer.split_once("\r\n").unwrap_or((answer, ""));
        let status = status.split(' ').next().unwrap_or_default().parse().map_err(io::Error::other)?;
        let mut headers = HeaderMap::new();
        for (name, value) in fields.split("\r\n").filter_map(|field| field.split_once(": ")) {
            let name: HeaderName = name.parse().map_err(io::Error::other)?;
            headers.append(name, value.parse().map_err(io::Error::other)?);
        }
        let answer = FixedAnswer { status, headers };
        let Some(acceptor) = acceptor else { return Self::listen(answer).await };
        Self::listen_over(answer, move |stream| acceptor.accept(stream)).await
    }
}

impl Responder for FixedAnswer {
    fn answer(&self, _: Request<Bytes>) -> TimedResponse {
        let mut answer = TimedResponse::from(self.status);
        *answer.response.headers_mut() = self.headers.clone();
        answer
    }
}

/// Sends a small request.
pub(super) fn send(to: &Connector, target: &Arc<Target>) -> io::Result<()> {
    let request = connector::ChannelRequest { body: Bytes::from_static(b"{}"), ..connector::ChannelRequest::default() };
    let deadline = Instant::now() + Duration::from_secs(10);
    let job = ConnectorJob { token: 1, target: Arc::clone(target), identity: None, request, deadline };
    to.send(job).map_err(io::Error::other)
}
