//! One request and its answer over one HTTP/1.1 connection: this module moves the bytes, [`http1`] interprets them.
//!
//! Writing and reading go on at the same time, since a receiver may answer before it has read everything. Whether a
//! lost request may have arrived depends on the bytes written, which are counted when the socket takes them. With TLS
//! the plain bytes are counted when TLS takes them, so the count errs towards "may have arrived".

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use posthaste_channels::ChannelRequest;
use tokio::io::AsyncWrite;
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::alarm::Alarm;
use super::http1::{self, ReadProgress, ResponseReader};
use super::wire::CountedStream;
use super::{ConnectionFault, ReceivedResponse, fault};
use crate::Target;

/// Bytes read at once: nearly every answer fits.
const READ_BYTES: usize = 4 * 1024;
/// A body up to this size is copied into the buffer of its head and sent with it; a larger one is not copied.
const COPIED_BYTES_MAX: usize = 16 * 1024;
/// The most buffer space that an idle connection keeps.
const KEPT_BYTES_MAX: usize = 8 * 1024;

/// An open HTTP/1.1 connection.
#[derive(Debug)]
pub(super) struct Link {
    wire: CountedStream,
    /// Bytes received and not yet parsed.
    inbox: BytesMut,
    /// The bytes of a request's head, and of a small body.
    outbox: Vec<u8>,
    /// Whether it may carry another request: the last answer was read to its end, and no bytes followed it.
    pub(super) is_usable: bool,
    pub(super) address: IpAddr,
    /// When that address was last checked.
    pub(super) checked_at: Instant,
}

#[derive(Debug)]
pub(super) enum Exchange {
    /// With an answer; [`Link::is_usable`] says whether the connection can be used again.
    Answered(ReceivedResponse),
    /// The connection had ended before anything was written.
    GivenBack(ConnectionFault),
    /// Without an answer; the connection must not be used again.
    Failed(ConnectionFault),
}

#[derive(Debug, Default)]
struct Sent {
    bytes: usize,
    /// Everything was written, or writing has failed.
    is_over: bool,
    /// Writing has failed after some bytes. The receiver may have answered all the same.
    is_refused: bool,
}

impl Link {
    pub(super) fn new(wire: CountedStream, address: IpAddr, checked_at: Instant) -> Self {
        Self { wire, inbox: BytesMut::new(), outbox: Vec::new(), is_usable: true, address, checked_at }
    }

    /// Ready once its receiver has closed it, or sent bytes without a request.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.is_usable &= self.poll_read(cx).is_pending();
        if self.is_usable { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Sends a request and reads its answer, until the alarm fires.
    pub(super) async fn exchange(&mut self, request: &ChannelRequest, target: &Target, alarm: &mut Alarm) -> Exchange {
        self.is_usable = false;
        http1::write_head(&mut self.outbox, request, target);
        let mut body = request.body.clone();
        if body.len() <= COPIED_BYTES_MAX {
            self.outbox.extend_from_slice(&body);
            body = Bytes::new();
        }
        let (mut sent, mut reading) = (Sent::default(), ResponseReader::default());
        let ended = poll_fn(|cx| self.poll_exchange(cx, &body, &mut sent, &mut reading, alarm)).await;
        self.outbox.clear();
        self.outbox.shrink_to(KEPT_BYTES_MAX);
        let end = match ended {
            Ended::Read(end) => end,
            // The part of the answer that was read counts, if its head is complete.
            Ended::TimeOver => ReadProgress::More,
            Ended::Fault(fault) if sent.bytes == 0 => return Exchange::GivenBack(fault),
            Ended::Fault(fault) => return Exchange::Failed(fault),
        };
        let Some((answer, keeps_open)) = reading.into_answer(end) else {
            return Exchange::Failed(ConnectionFault::timeout(sent.bytes > 0));
        };
        self.is_usable = keeps_open && self.inbox.is_empty() && sent.is_over && !sent.is_refused;
        if self.inbox.capacity() > KEPT_BYTES_MAX {
            self.inbox = BytesMut::new();
        }
        Exchange::Answered(answer)
    }

    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        body: &[u8],
        sent: &mut Sent,
        reading: &mut ResponseReader,
        alarm: &mut Alarm,
    ) -> Poll<Ended> {
        if sent.bytes == 0
            && let Poll::Ready(read) = self.poll_read(cx)
        {
            return Poll::Ready(Ended::Fault(fault::before_request(read)));
        }
        if let Err(fault) = self.write(cx, body, sent) {
            return Poll::Ready(Ended::Fault(fault));
        }
        loop {
            match reading.take(&mut self.inbox) {
                Ok(ReadProgress::More) => {}
                Ok(end) => return Poll::Ready(Ended::Read(end)),
                Err(fault) => return Poll::Ready(Ended::Fault(fault)),
            }
            match self.poll_read(cx) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(ended) => {
                    let is_clean = ended.is_ok();
                    return Poll::Ready(match reading.end(&mut self.inbox, is_clean) {
                        Ok(Some(end)) => Ended::Read(end),
                        Ok(None) => Ended::Fault(fault::without_answer(ended)),
                        Err(fault) => Ended::Fault(fault),
                    });
                }
                Poll::Pending => return alarm.poll(cx).map(|()| Ended::TimeOver),
            }
        }
    }

    /// Writes what the socket takes. An error is returned only before any byte was taken; later the receiver may still
    /// have answered, and reading finds out.
    fn write(&mut self, cx: &mut Context<'_>, body: &[u8], sent: &mut Sent) -> Result<(), ConnectionFault> {
        while !sent.is_over {
            let head = self.outbox.get(sent.bytes..).unwrap_or_default();
            let rest = &body[sent.bytes.saturating_sub(self.outbox.len())..];
            let wire = Pin::new(&mut self.wire);
            let wrote = match (head, rest) {
                ([], []) => wire.poll_flush(cx).map_ok(|()| sent.is_over = true),
                (head, []) => wire.poll_write(cx, head).map_ok(|taken| sent.bytes += taken),
                ([], rest) => wire.poll_write(cx, rest).map_ok(|taken| sent.bytes += taken),
                (head, rest) => wire
                    .poll_write_vectored(cx, &[IoSlice::new(head), IoSlice::new(rest)])
                    .map_ok(|taken| sent.bytes += taken),
            };
            match wrote {
                Poll::Ready(Ok(())) => {}
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) if sent.bytes == 0 => return Err(fault::before_request(Err(error))),
                Poll::Ready(Err(_)) => (sent.is_over, sent.is_refused) = (true, true),
            }
        }
        Ok(())
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.inbox.reserve(READ_BYTES);
        poll_read_buf(Pin::new(&mut self.wire), cx, &mut self.inbox)
    }
}

enum Ended {
    /// The answer was read this far.
    Read(ReadProgress),
    TimeOver,
    Fault(ConnectionFault),
}
