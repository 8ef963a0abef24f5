//! Posts over many connections at once, each sending its next request when the last was answered.
//! hyper's connection, inline: no pool, no task besides the connection's own.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How much to post.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) target: SocketAddr,
    pub(super) connections: u16,
    pub(super) seconds: u64,
    pub(super) messages: u64,
}

/// Posts until the time is over or the messages are spent; gives how many were answered with
/// `expected`, and how long that took. Any other answer ends the run with an error.
pub(super) async fn hammer(
    load: Load,
    expected: StatusCode,
    make: impl Fn(u64) -> Request<Full<Bytes>>,
) -> Result<(u64, Duration)> {
    let began = Instant::now();
    let until = began + Duration::from_secs(load.seconds);
    let (begun, answered) = (Cell::new(0_u64), Cell::new(0_u64));
    let mut connections: FuturesUnordered<_> =
        (0..load.connections).map(|_| connection(load, until, expected, &make, &begun, &answered)).collect();
    while let Some(ended) = connections.next().await {
        ended?;
    }
    Ok((answered.get(), began.elapsed()))
}

async fn connection(
    load: Load,
    until: Instant,
    expected: StatusCode,
    make: impl Fn(u64) -> Request<Full<Bytes>>,
    begun: &Cell<u64>,
    answered: &Cell<u64>,
) -> Result<()> {
    let stream = TcpStream::connect(load.target).await.context("cannot connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let posting = async {
        while Instant::now() < until && begun.get() < load.messages {
            begun.set(begun.get() + 1);
            let response = sender.send_request(make(begun.get())).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::ensure!(status == expected, "answered {status}: {}", String::from_utf8_lossy(&body));
            answered.set(answered.get() + 1);
        }
        // Ends the connection, and with it the future beside this one.
        drop(sender);
        Ok(())
    };
    let (posted, _) = tokio::join!(posting, connection);
    posted
}
