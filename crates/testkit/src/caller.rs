//! Calls an HTTP API over a real socket, the way a producer without a library would.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// No answer of a server on this machine takes longer unless something is wrong.
const WITHIN: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
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
}

/// Calls `http://address/path` over a connection of its own.
pub async fn call(address: SocketAddr, method: Method, path: &str, json: &str) -> io::Result<Answer> {
    timeout(WITHIN, call_patiently(address, method, path, json)).await?
}

async fn call_patiently(address: SocketAddr, method: Method, path: &str, json: &str) -> io::Result<Answer> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address.to_string())
        .header("content-type", "application/json")
        .body(Full::new(Bytes::copy_from_slice(json.as_bytes())))
        .map_err(io::Error::other)?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        // Ends the connection, and with it the future beside this one.
        drop(sender);
        Ok::<_, hyper::Error>(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
    };
    let (answered, _) = tokio::join!(exchange, connection);
    answered.map_err(io::Error::other)
}
