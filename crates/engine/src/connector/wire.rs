//! The byte stream under HTTP, TCP or TLS, which counts the bytes it reads.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

#[derive(Debug)]
pub(super) struct CountedStream {
    stream: PlainOrTls,
    traffic: Traffic,
}

pub(super) type PlainOrTls = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Bytes read since the connection was opened. The connection's task is its only user.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic(Arc<AtomicU64>);

impl Traffic {
    pub(super) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl CountedStream {
    pub(super) fn new(stream: PlainOrTls) -> (Self, Traffic) {
        let traffic = Traffic::default();
        (Self { stream, traffic: traffic.clone() }, traffic)
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.traffic.0.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
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
