//! Calls an HTTP API over a real socket, the way a producer without a library would.

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

/// No answer of a server on this machine takes longer unless something is wrong.
const WITHIN: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its head's fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// The first text field of that name. Not a JSON parser: our answers write a field as
    /// `"name":"value"`, and the values looked for hold no quotes.
    pub fn text(&self, name: &str) -> Option<&str> {
        let (_, behind) = self.body.split_once(&format!("\"{name}\":\""))?;
        behind.split('"').next()
    }

    /// Complains unless it has this status.
    ///
    /// # Errors
    /// When it has another one.
    pub fn expect(self, status: StatusCode) -> io::Result<Self> {
        if self.status == status {
            return Ok(self);
        }
        Err(io::Error::other(format!("answered {} instead of {status}: {}", self.status, self.body)))
    }
}

/// Calls `http://address/path` over a connection of its own.
///
/// # Errors
/// When there is no answer.
pub async fn call(address: SocketAddr, method: Method, path: &str, json: &str) -> io::Result<Answer> {
    Line::open(address).await?.call(method, path, &[], json.to_owned()).await
}

/// A connection for one call after the other.
#[derive(Debug)]
pub struct Line {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    /// Ends with the line.
    _connection: JoinSet<()>,
}

impl Line {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = timeout(WITHIN, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let mut driven = JoinSet::new();
        driven.spawn(async {
            // Whoever waits for an answer hears of its end.
            let _ = connection.await;
        });
        Ok(Self { address, sender, _connection: driven })
    }

    /// Calls a path, with more fields in its head.
    ///
    /// # Errors
    /// When there is no answer: the line is of no use any more.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        json: impl Into<Bytes>,
    ) -> io::Result<Answer> {
        self.call_as(method, path, fields, "application/json", json).await
    }

    /// The same with a body that is declared as something else.
    ///
    /// # Errors
    /// When there is no answer: the line is of no use any more.
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
