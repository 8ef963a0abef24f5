//! The bytes under HTTP: TCP or TLS, whether anything of a request has left us, and whether anything
//! comes back.
//!
//! What was written decides whether a lost request may have arrived, so it is counted here, below
//! the HTTP library, where nothing can be mistaken. With TLS the count is of plain bytes taken,
//! which errs towards "may have arrived".

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A stream that counts what it takes.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    traffic: Traffic,
}

#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Bytes written and read since the connection was opened. The connection's task is its only user.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    read: AtomicU64,
}

impl Traffic {
    pub(super) fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    pub(super) fn read(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }
}

impl Wire {
    pub(super) fn new(stream: Stream) -> (Self, Traffic) {
        let traffic = Traffic::default();
        (Self { stream, traffic: traffic.clone() }, traffic)
    }

    fn count(&self, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let bytes = ready!(wrote)?;
        self.traffic.0.written.fetch_add(bytes as u64, Ordering::Relaxed);
        Poll::Ready(Ok(bytes))
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        self.traffic.0.read.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        self.count(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        self.count(wrote)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
