//! Opening a connection: look up, check, connect to what was checked, TLS, HTTP.
//!
//! Invariant: check and connect use one look-up, so a name that changes its mind in between
//! changes nothing. The addresses are tried one after the other, each with its share of the
//! connect timeout.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use hyper::client::conn::http1;
use posthaste_core::Cause;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::exchange::{HEAD_BYTES_MAX, Link};
use super::wire::{Stream, Wire};
use super::{Fault, Identity, NoAnswer, Resolve, Roots, Settings, fault};
use crate::target::{Host, Origin, Refusal, Scheme, check_addresses};

/// Opens sockets. There is one way to do it; tests have another, to witness what is contacted.
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

/// Everything it takes to open a connection.
pub(super) struct Opener {
    pub(super) settings: Settings,
    resolver: Arc<dyn Resolve>,
    dial: Arc<dyn Dial>,
    roots: Roots,
    /// For whoever has no identity of its own: nearly everybody.
    tls: TlsConnector,
    http: http1::Builder,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener")
            .field("settings", &self.settings)
            .field("resolver", &self.resolver)
            .finish_non_exhaustive()
    }
}

impl Opener {
    pub(super) fn new(settings: Settings, resolver: Arc<dyn Resolve>, dial: Arc<dyn Dial>, roots: Roots) -> Self {
        let mut http = http1::Builder::new();
        // The read buffer must be able to hold a head of the largest size.
        http.max_header_size(HEAD_BYTES_MAX).max_buf_size(2 * HEAD_BYTES_MAX);
        let tls = tls(&roots, None);
        Self { settings, resolver, dial, roots, tls, http }
    }

    /// How TLS is spoken under this identity.
    pub(super) fn tls(&self, identity: Option<&Identity>) -> TlsConnector {
        match identity {
            Some(identity) => tls(&self.roots, Some(identity)),
            None => self.tls.clone(),
        }
    }

    /// The addresses of an origin, all of which may be contacted.
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

    /// A connection to one of these addresses, which [`Opener::check`] let pass a moment ago.
    pub(super) async fn open(
        &self,
        origin: &Origin,
        addresses: &[IpAddr],
        tls: &TlsConnector,
        deadline: Instant,
    ) -> Result<Box<Link>, Fault> {
        let (address, tcp) = self.connect(origin, addresses, deadline).await?;
        // Without it a small request may wait for the acknowledgement of the one before.
        tcp.set_nodelay(true).map_err(|error| fault::of_connect(&error))?;
        let stream = match origin.scheme {
            Scheme::Http => Stream::Plain(tcp),
            Scheme::Https => Stream::Tls(self.handshake(origin, tcp, tls, deadline).await?),
        };
        let (wire, written) = Wire::new(stream);
        let (sender, connection) = self
            .http
            .handshake(hyper_util::rt::TokioIo::new(wire))
            .await
            .map_err(|error| fault::of_exchange(&error, false))?;
        Ok(Box::new(Link::new(sender, connection, written, address, Instant::now())))
    }

    async fn connect(
        &self,
        origin: &Origin,
        addresses: &[IpAddr],
        deadline: Instant,
    ) -> Result<(IpAddr, TcpStream), Fault> {
        let deadline = deadline.min(Instant::now() + self.settings.connect_timeout);
        let mut last = Fault { cause: Cause::ConnectTimeout, detail: None };
        for (address, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / u32::try_from(left).unwrap_or(u32::MAX);
            match timeout_at(now + share, self.dial.dial(SocketAddr::new(*address, origin.port))).await {
                Ok(Ok(tcp)) => return Ok((*address, tcp)),
                Ok(Err(error)) => last = fault::of_connect(&error),
                Err(_) => last = Fault { cause: Cause::ConnectTimeout, detail: None },
            }
        }
        Err(last)
    }

    async fn handshake(
        &self,
        origin: &Origin,
        tcp: TcpStream,
        tls: &TlsConnector,
        deadline: Instant,
    ) -> Result<Box<tokio_rustls::client::TlsStream<TcpStream>>, Fault> {
        let deadline = deadline.min(Instant::now() + self.settings.tls_timeout);
        let name = server_name(&origin.host)?;
        match timeout_at(deadline, tls.connect(name, tcp)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => Err(fault::of_handshake(&error)),
            Err(_) => Err(Fault::new(Cause::TlsHandshake, "tls_timeout")),
        }
    }
}

fn tls(roots: &Roots, identity: Option<&Identity>) -> TlsConnector {
    let mut config = roots.config(identity);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// The name the certificate must be valid for: the one in the URL, never one from DNS.
fn server_name(host: &Host) -> Result<ServerName<'static>, Fault> {
    match host {
        Host::Address(ip) => Ok(ServerName::from(*ip)),
        Host::Name(name) => ServerName::try_from(name.clone())
            .map_err(|_| Fault { cause: Cause::TlsCertificate, detail: Some("bad_name") }),
    }
}
