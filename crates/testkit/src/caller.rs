//! A small HTTP client for calls to the API over real sockets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderMap;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The timeout of a call.
const WITHIN: Duration = Duration::from_secs(10);

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, decoded as UTF-8 with replacements.
    pub body: String,
}

impl Answer {
    /// The first text field of that name in the body. Not a JSON parser: the server writes a field as `"name":"value"`,
    /// and the values read with this have no quotes.
    pub fn text(&self, name: &str) -> Option<&str> {
        let (_, behind) = self.body.split_once(&format!("\"{name}\":\""))?;
        behind.split('"').next()
    }

    /// Returns the answer if it has this status.
    ///
    /// # Errors
    /// If it has another status.
    pub fn expect(self, status: StatusCode) -> io::Result<Self> {
        if self.status == status {
            return Ok(self);
        }
        Err(io::Error::other(format!("answered {} instead of {status}: {}", self.status, self.body)))
    }
}

/// Calls `http://address/path` over a new connection.
///
/// # Errors
/// If there is no answer within ten seconds.
pub async fn call(address: SocketAddr, method: Method, path: &str, json: &str) -> io::Result<Answer> {
    Line::open(address).await?.call(method, path, &[], json.to_owned()).await
}

/// A connection for successive calls.
#[derive(Debug)]
pub struct Line {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    /// Drives the connection; ends when this is dropped.
    _connection: JoinSet<()>,
}

impl Line {
    /// Connects to a server.
    ///
    /// # Errors
    /// If the connection is refused, or times out.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = timeout(WITHIN, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let mut driven = JoinSet::new();
        driven.spawn(async {
            // An error is reported to the caller that waits for an answer.
            let _ = connection.await;
        });
        Ok(Self { address, sender, _connection: driven })
    }

    /// Calls a path with a JSON body and these headers.
    ///
    /// # Errors
    /// If there is no answer. The connection cannot be used any more then.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        json: impl Into<Bytes>,
    ) -> io::Result<Answer> {
        self.call_as(method, path, fields, "application/json", json).await
    }

    /// Calls a path with a body of the given content type and these headers.
    ///
    /// # Errors
    /// If there is no answer. The connection cannot be used any more then.
    pub async fn call_as(
        &mut self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        declared: &str,
        body: impl Into<Bytes>,
    ) -> io::Result<Answer> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("content-type", declared);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).map_err(io::Error::other)?;
        let exchange = async {
            self.sender.ready().await?;
            let (head, body) = self.sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            let body = String::from_utf8_lossy(&body).into_owned();
            Ok::<_, hyper::Error>(Answer { status: head.status, headers: head.headers, body })
        };
        timeout(WITHIN, exchange).await?.map_err(io::Error::other)
    }
}
