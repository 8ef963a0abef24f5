//! The simulated network of a row: a resolver with given answers, a dialer that records addresses, and a receiver that
//! all connections lead to.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use posthaste_engine::connector::{ChannelRequest, Connector, ConnectorJob, Dial, NoAnswer, Resolve};
use posthaste_engine::target::Target;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

/// The result of a look-up.
#[derive(Clone, Debug)]
pub(super) enum Lookup {
    Addresses(Vec<IpAddr>),
    Fails(NoAnswer),
    NeverEnds,
}

/// A resolver that returns these answers in order, for any name. The last answer repeats.
#[derive(Debug)]
pub(super) struct Names(Mutex<VecDeque<Lookup>>);

impl Names {
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

impl Resolve for Names {
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

/// An HTTP receiver that gives every request the same answer, until it is dropped.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Receiver {
    /// Starts a receiver with this status and these headers, over TLS if there is an acceptor.
    pub(super) async fn start(answer: &str, acceptor: Option<TlsAcceptor>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let answer: Arc<str> = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n").into();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, acceptor) = (Arc::clone(&answer), acceptor.clone());
                connections.spawn(async move {
                    match acceptor {
                        None => serve(stream, &answer).await,
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => serve(stream, &answer).await,
                            Err(_) => Ok(()),
                        },
                    }
                });
            }
        });
        Ok(Self { address, _tasks: tasks })
    }
}

/// Serves a connection. Requests are small and not pipelined, so each of them comes in one read.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, answer: &str) -> io::Result<()> {
    let mut request = [0; 4096];
    while stream.read(&mut request).await? > 0 {
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// Sends a small request.
pub(super) fn send(connector: &Connector, target: &Arc<Target>) -> io::Result<()> {
    let request = ChannelRequest { body: Bytes::from_static(b"{}"), ..ChannelRequest::default() };
    let deadline = Instant::now() + Duration::from_secs(10);
    let job = ConnectorJob { token: 1, target: Arc::clone(target), identity: None, request, deadline };
    connector.send(job).map_err(io::Error::other)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
