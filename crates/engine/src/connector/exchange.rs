//! One request and its answer over one connection of HTTP/1.1.
//!
//! The connection's HTTP state and the answer are polled together in the connection's own task:
//! whatever completes the answer does so inside that poll, so the answer itself needs no waker.
//! Everything a receiver sends is bounded: the head, its interim answers, the body, the time.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;
use posthaste_core::Cause;
use tokio::time::Instant;

use super::alarm::Alarm;
use super::wire::{Traffic, Wire};
use super::{Answer, Fault, fault};

/// Of an answer's head, interim answers apart.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Of an answer's head. The library for HTTP/1.1 has the same number in it.
pub(super) const FIELDS_MAX: usize = 100;
/// Of an answer's body: reading on would cost more than a new connection.
pub const BODY_BYTES_READ_MAX: usize = 64 * 1024;
/// Of an answer that failed: error pages are noise after the first lines.
pub const EXCERPT_BYTES_MAX: usize = 4 * 1024;
/// Of `100 Continue`, `103 Early Hints` and the like before the answer.
pub const INTERIM_ANSWERS_MAX: usize = 8;

/// An open connection.
#[derive(Debug)]
pub(super) struct Link {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once it has ended: it must not be polled again.
    connection: Option<Connection<TokioIo<Wire>, Full<Bytes>>>,
    traffic: Traffic,
    interim: Arc<AtomicUsize>,
    address: IpAddr,
    checked_at: Instant,
}

/// How an exchange ended.
#[derive(Debug)]
pub(super) enum Exchange {
    /// With an answer; whether the connection can be used again, [`Link::is_usable`] tells.
    Answered(Answer),
    /// The connection was gone: nothing was written, the request is unharmed.
    GivenBack(Box<Request<Full<Bytes>>>, Fault),
    /// Without an answer; the connection is not to be used again.
    Failed(Fault),
}

impl Link {
    pub(super) fn new(
        sender: SendRequest<Full<Bytes>>,
        connection: Connection<TokioIo<Wire>, Full<Bytes>>,
        traffic: Traffic,
        address: IpAddr,
        checked_at: Instant,
    ) -> Self {
        Self { sender, connection: Some(connection), traffic, interim: Arc::default(), address, checked_at }
    }

    /// The address it is connected to.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// When that address was last checked.
    pub(super) fn checked_at(&self) -> Instant {
        self.checked_at
    }

    pub(super) fn set_checked_at(&mut self, now: Instant) {
        self.checked_at = now;
    }

    /// Whether it can take a request: the last answer was read to its end and it is still open.
    pub(super) fn is_usable(&self) -> bool {
        self.connection.is_some() && self.sender.is_ready()
    }

    /// Lets the connection read and write. Ready once it has ended.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.connection {
            Some(connection) => {
                let polled = Pin::new(connection).poll(cx).map(|_| ());
                if polled.is_ready() {
                    // Dropping it tells whoever still waits for an answer that none will come.
                    self.connection = None;
                }
                polled
            }
            None => Poll::Ready(()),
        }
    }

    /// Sends a request and reads its answer until the alarm rings.
    pub(super) async fn exchange(&mut self, mut request: Request<Full<Bytes>>, alarm: &mut Alarm) -> Exchange {
        let written_before = self.traffic.written();
        self.count_interim_answers(&mut request);
        let mut answer = pin!(self.sender.try_send_request(request));
        let head = poll_fn(|cx| self.poll_head(cx, answer.as_mut(), alarm)).await;
        let written = self.traffic.written() != written_before;
        match head {
            Head::Answered(response) => self.read_answer(response, alarm).await,
            Head::Refused(mut error) => {
                let request = error.take_message();
                let fault = fault::of_exchange(&error.into_error(), written);
                match request {
                    Some(request) => Exchange::GivenBack(Box::new(request), fault),
                    None => Exchange::Failed(fault),
                }
            }
            Head::Flooded => Exchange::Failed(Fault::new(Cause::ProtocolError, "interim_answers")),
            Head::TimedOut => Exchange::Failed(Fault::timeout(written)),
        }
    }

    fn count_interim_answers(&mut self, request: &mut Request<Full<Bytes>>) {
        self.interim.store(0, Ordering::Relaxed);
        let interim = Arc::clone(&self.interim);
        hyper::ext::on_informational(request, move |_| {
            interim.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn poll_head<F>(&mut self, cx: &mut Context<'_>, answer: Pin<&mut F>, alarm: &mut Alarm) -> Poll<Head>
    where
        F: Future<Output = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>>,
    {
        let _ = self.drive(cx);
        match answer.poll(&mut without_waker()) {
            Poll::Ready(Ok(response)) => Poll::Ready(Head::Answered(response)),
            Poll::Ready(Err(error)) => Poll::Ready(Head::Refused(error)),
            Poll::Pending if self.interim.load(Ordering::Relaxed) > INTERIM_ANSWERS_MAX => Poll::Ready(Head::Flooded),
            Poll::Pending => alarm.poll(cx).map(|()| Head::TimedOut),
        }
    }

    /// The head stands; what the body is like decides whether the connection can be kept.
    async fn read_answer(&mut self, response: Response<Incoming>, alarm: &mut Alarm) -> Exchange {
        let (head, mut body) = response.into_parts();
        if !(200..=599).contains(&head.status.as_u16()) {
            return self.refuse("status");
        }
        if head.headers.contains_key(header::TRANSFER_ENCODING) && head.headers.contains_key(header::CONTENT_LENGTH) {
            return self.refuse("two_lengths");
        }
        let mut kept = Kept { excerpt: BytesMut::new(), read: 0, wanted: !head.status.is_success() };
        let end = match body.is_end_stream() {
            true => End::Whole,
            false => poll_fn(|cx| self.poll_body(cx, &mut body, &mut kept, alarm)).await,
        };
        if let End::Broken(error) = &end
            && let Some(fault) = fault::of_body(error)
        {
            return Exchange::Failed(fault);
        }
        let cut = !matches!(end, End::Whole);
        // A 205 has no body by definition: what follows one cannot be trusted to be an answer.
        if cut || (head.status == StatusCode::RESET_CONTENT && kept.read > 0) {
            self.connection = None;
        }
        let excerpt = kept.excerpt.freeze();
        Exchange::Answered(Answer { status: head.status, headers: head.headers, excerpt, cut })
    }

    fn refuse(&mut self, detail: &'static str) -> Exchange {
        self.connection = None;
        Exchange::Failed(Fault::new(Cause::ProtocolError, detail))
    }

    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut Incoming,
        kept: &mut Kept,
        alarm: &mut Alarm,
    ) -> Poll<End> {
        let mut drove = false;
        loop {
            match Pin::new(&mut *body).poll_frame(&mut without_waker()) {
                Poll::Ready(None) => {
                    // Lets it see that the answer is over and ask for the next request.
                    let _ = self.drive(cx);
                    return Poll::Ready(End::Whole);
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(End::Broken(error)),
                Poll::Ready(Some(Ok(frame))) => {
                    drove = false;
                    if frame.data_ref().is_some_and(|data| kept.take(data).is_break()) {
                        return Poll::Ready(End::TooLong);
                    }
                }
                Poll::Pending if drove => return alarm.poll(cx).map(|()| End::TooSlow),
                Poll::Pending => {
                    let _ = self.drive(cx);
                    drove = true;
                }
            }
        }
    }
}

/// How waiting for an answer's head ended.
enum Head {
    Answered(Response<Incoming>),
    Refused(TrySendError<Request<Full<Bytes>>>),
    Flooded,
    TimedOut,
}

/// How reading an answer's body ended.
enum End {
    Whole,
    TooLong,
    TooSlow,
    Broken(hyper::Error),
}

/// What is kept of a body.
pub(super) struct Kept {
    pub(super) excerpt: BytesMut,
    pub(super) read: usize,
    pub(super) wanted: bool,
}

impl Kept {
    pub(super) fn take(&mut self, data: &[u8]) -> std::ops::ControlFlow<()> {
        self.read += data.len();
        if self.wanted {
            let room = EXCERPT_BYTES_MAX - self.excerpt.len();
            self.excerpt.extend_from_slice(&data[..data.len().min(room)]);
        }
        match self.read > BODY_BYTES_READ_MAX {
            true => std::ops::ControlFlow::Break(()),
            false => std::ops::ControlFlow::Continue(()),
        }
    }
}

/// For what only the connection's own poll can complete, which has just been done.
fn without_waker() -> Context<'static> {
    Context::from_waker(Waker::noop())
}
