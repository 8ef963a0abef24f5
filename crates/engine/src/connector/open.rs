//! Opening a connection: resolve, check, connect to a checked address, TLS, HTTP.
//!
//! Invariant: check and connect use one look-up, so a name whose addresses change in between cannot
//! redirect the connect. Of several addresses the next one is tried when those before it have failed or
//! had a head start, families in turn (RFC 8305); the first that connects is taken.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use posthaste_core::Cause;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::bounds::{BODY_BYTES_READ_MAX, HEAD_BYTES_MAX};
use super::exchange::Link;
use super::streams::Streams;
use super::wire::{CountedStream, PlainOrTls};
use super::{ConnectionFault, Identity, NoAnswer, Resolve, Roots, Settings, fault};
use crate::target::check_addresses;
use crate::{Host, Origin, Refusal, UrlScheme};

/// Opens sockets. Production has one implementation; tests use another to observe the contacted addresses.
pub trait Dial: std::fmt::Debug + Send + Sync + 'static {
    /// A connection to exactly this address. The caller bounds its time.
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// Plain TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(to))
    }
}

/// How long an address is tried before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// The flow-control window for answers of one HTTP/2 connection.
const WINDOW_BYTES: u32 = 1024 * 1024;

pub(super) enum HttpConnection {
    /// HTTP/1.1: it carries one attempt at a time.
    One(Box<Link>),
    /// HTTP/2: it carries many.
    Many(Box<Streams>),
}

/// TLS connectors that offer both protocols, or HTTP/1.1 alone.
#[derive(Clone)]
pub(super) struct Tls {
    both: TlsConnector,
    http1: TlsConnector,
}

impl Tls {
    fn new(roots: &Roots, identity: Option<&Identity>) -> Self {
        let mut config = roots.config(identity);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let http1 = TlsConnector::from(Arc::new(config.clone()));
        config.alpn_protocols.insert(0, b"h2".to_vec());
        Self { both: TlsConnector::from(Arc::new(config)), http1 }
    }

    /// The connector for a receiver that may or may not be offered HTTP/2.
    pub(super) fn offering(&self, may_multiplex: bool) -> &TlsConnector {
        if may_multiplex { &self.both } else { &self.http1 }
    }
}

/// Everything that is needed to open a connection.
pub(super) struct Opener {
    pub(super) settings: Settings,
    resolver: Arc<dyn Resolve>,
    dial: Arc<dyn Dial>,
    roots: Roots,
    /// For endpoints without an identity of their own, which are nearly all.
    tls: Tls,
    http2: h2::client::Builder,
}

impl Opener {
    pub(super) fn new(settings: Settings, resolver: Arc<dyn Resolve>, dial: Arc<dyn Dial>, roots: Roots) -> Self {
        let mut http2 = h2::client::Builder::new();
        http2
            .enable_push(false)
            // No stream is opened before the receiver has sent its limit, so that none is refused.
            .initial_max_send_streams(0)
            .initial_window_size(u32::try_from(BODY_BYTES_READ_MAX).unwrap_or(u32::MAX))
            .initial_connection_window_size(WINDOW_BYTES)
            // Twice the limit for heads, which is checked after reading and has a cause of its own.
            .max_header_list_size(u32::try_from(2 * HEAD_BYTES_MAX).unwrap_or(u32::MAX));
        let tls = Tls::new(&roots, None);
        Self { settings, resolver, dial, roots, tls, http2 }
    }

    pub(super) fn tls(&self, identity: Option<&Identity>) -> Tls {
        match identity {
            Some(identity) => Tls::new(&self.roots, Some(identity)),
            None => self.tls.clone(),
        }
    }

    /// Resolves an origin; returns its addresses if all of them may be contacted.
    pub(super) async fn check(&self, origin: &Origin, deadline: Instant) -> Result<Vec<IpAddr>, Refusal> {
        let answers = match &origin.host {
            Host::Address(ip) => vec![*ip],
            Host::Name(name) => {
                let deadline = deadline.min(Instant::now() + self.settings.dns_timeout);
                match timeout_at(deadline, self.resolver.resolve(name)).await {
                    Ok(Ok(answers)) => answers,
                    Ok(Err(NoAnswer::NotFound)) => return Err(Refusal::DnsNotFound),
                    Ok(Err(NoAnswer::Failed)) | Err(_) => return Err(Refusal::DnsFailed),
                }
            }
        };
        check_addresses(&answers, origin.port, &self.settings.rules)
    }

    /// Opens a connection to one of these addresses, which [`Opener::check`] returned a moment ago.
    pub(super) async fn open(
        &self,
        origin: &Origin,
        addresses: &[IpAddr],
        tls: &TlsConnector,
        deadline: Instant,
    ) -> Result<HttpConnection, ConnectionFault> {
        let (address, tcp) = self.connect(origin, addresses, deadline).await?;
        // Without it, Nagle's algorithm may delay a small request until the one before is acknowledged.
        tcp.set_nodelay(true).map_err(|error| fault::connect_fault(&error))?;
        let (stream, is_http2) = match origin.scheme {
            UrlScheme::Http => (PlainOrTls::Left(tcp), false),
            UrlScheme::Https => {
                let stream = self.handshake(origin, tcp, tls, deadline).await?;
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                (PlainOrTls::Right(stream), is_http2)
            }
        };
        let (wire, traffic) = CountedStream::new(stream, is_http2);
        if is_http2 {
            let begun = timeout_at(deadline, self.http2.handshake::<_, Bytes>(wire)).await;
            let begun = begun
                .map_err(|_| ConnectionFault::timeout(false))?
                .map_err(|error| fault::unsent_stream_fault(&error))?;
            return Ok(HttpConnection::Many(Box::new(Streams::new(begun, traffic, address, Instant::now()))));
        }
        Ok(HttpConnection::One(Box::new(Link::new(wire, address, Instant::now()))))
    }

    async fn connect(
        &self,
        origin: &Origin,
        addresses: &[IpAddr],
        deadline: Instant,
    ) -> Result<(IpAddr, TcpStream), ConnectionFault> {
        let deadline = deadline.min(Instant::now() + self.settings.connect_timeout);
        let mut left = in_turn(addresses).into_iter();
        let mut under_way = FuturesUnordered::new();
        let mut last = ConnectionFault::plain(Cause::ConnectTimeout);
        loop {
            match left.next() {
                Some(address) => {
                    let dialled = self.dial.dial(SocketAddr::new(address, origin.port));
                    under_way.push(async move { (address, dialled.await) });
                }
                None if under_way.is_empty() => return Err(last),
                None => {}
            }
            // A short timeout is divided evenly, so that every address is tried.
            let shares = u32::try_from(left.len()).unwrap_or(u32::MAX).saturating_add(1);
            let share = deadline.saturating_duration_since(Instant::now()) / shares;
            let until = if left.len() == 0 { deadline } else { Instant::now() + share.min(HEAD_START) };
            match timeout_at(until, under_way.next()).await {
                Ok(Some((address, Ok(tcp)))) => return Ok((address, tcp)),
                Ok(Some((_, Err(error)))) => last = fault::connect_fault(&error),
                Err(_) if until == deadline => return Err(ConnectionFault::plain(Cause::ConnectTimeout)),
                Ok(None) | Err(_) => {}
            }
        }
    }

    async fn handshake(
        &self,
        origin: &Origin,
        tcp: TcpStream,
        tls: &TlsConnector,
        deadline: Instant,
    ) -> Result<Box<tokio_rustls::client::TlsStream<TcpStream>>, ConnectionFault> {
        let deadline = deadline.min(Instant::now() + self.settings.tls_timeout);
        let name = server_name(&origin.host)?;
        match timeout_at(deadline, tls.connect(name, tcp)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => Err(fault::handshake_fault(&error)),
            Err(_) => Err(ConnectionFault::new(Cause::TlsHandshake, "tls_timeout")),
        }
    }
}

/// The order in which addresses are tried: families in turn, beginning with that of the first.
fn in_turn(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let first_is_v6 = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (first, other): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut other) = (first.into_iter(), other.into_iter());
    let mut order = Vec::with_capacity(addresses.len());
    while order.len() < addresses.len() {
        order.extend(first.next());
        order.extend(other.next());
    }
    order
}

/// The name the certificate must be valid for: the one in the URL, never one from DNS.
fn server_name(host: &Host) -> Result<ServerName<'static>, ConnectionFault> {
    match host {
        Host::Address(ip) => Ok(ServerName::from(*ip)),
        Host::Name(name) => ServerName::try_from(name.clone())
            .map_err(|_| ConnectionFault { cause: Cause::TlsCertificate, detail: Some("bad_name") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_beginning_with_the_first() {
        let list = |text: &str| text.split(' ').map(|one| one.parse().expect("an address")).collect::<Vec<IpAddr>>();
        assert_eq!(in_turn(&list("::1 ::2 ::3 1.1.1.1 1.1.1.2")), list("::1 1.1.1.1 ::2 1.1.1.2 ::3"));
        assert_eq!(in_turn(&list("1.1.1.1 1.1.1.2 ::1")), list("1.1.1.1 ::1 1.1.1.2"));
        assert!(in_turn(&[]).is_empty());
    }
}
