//! The byte stream under HTTP, TCP or TLS, which counts the bytes it reads, and ends when an HTTP/2 receiver floods it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::flood::FrameBudget;

#[derive(Debug)]
pub(super) struct CountedStream {
    stream: PlainOrTls,
    traffic: Traffic,
    /// Bounds the frames of an HTTP/2 receiver; `None` with HTTP/1.1, where each answer has its bounds.
    budget: Option<Box<FrameBudget>>,
}

/// Plain TCP on the left, TLS on the right.
pub(super) type PlainOrTls = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// What has happened since the connection was opened. The connection's task is its only user.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic(Arc<TrafficCounts>);

#[derive(Debug, Default)]
struct TrafficCounts {
    /// Bytes that were read.
    read: AtomicU64,
    /// Requests that were sent over HTTP/2.
    requests: AtomicU64,
}

impl Traffic {
    pub(super) fn read(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }

    /// A request is sent, so that the receiver may send an answer.
    pub(super) fn requested(&self) {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
    }
}

impl CountedStream {
    pub(super) fn new(stream: PlainOrTls, is_http2: bool) -> (Self, Traffic) {
        let traffic = Traffic::default();
        let budget = is_http2.then(|| Box::new(FrameBudget::new(Instant::now())));
        (Self { stream, traffic: traffic.clone(), budget }, traffic)
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let bytes = &buf.filled()[before..];
        self.traffic.0.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let requests = self.traffic.0.requests.load(Ordering::Relaxed);
        if let Some(budget) = &mut self.budget {
            budget.take(bytes, requests, Instant::now())?;
        }
        read
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
