//! An HTTP/2 connection, which carries many attempts at once.
//!
//! One task drives the connection and all its streams; no task is made for an attempt. The number of
//! streams is bounded by the receiver's limit and by our own. An attempt without room goes to another
//! connection or waits in the origin's queue. A stream that the receiver did not process, by the rules of
//! HTTP/2, is offered once more, to any connection with room; no other is ever repeated.
//!
//! The guarantees are those of an HTTP/1.1 connection: an attempt ends once and by its own deadline, and
//! when the address was checked too long ago, no attempt begins before it was checked again.
//! Read next: `stream` (one request and its answer).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong};
use posthaste_core::Cause;
use tokio::time::Instant;

use super::alarm::Alarm;
use super::attempt::RunningAttempt;
use super::pool::Seat;
use super::protocol::Broke;
use super::stream::{self, How};
use super::wire::{CountedStream, Traffic};
use super::{Carriers, ConnectionFault, fault};
use crate::Refusal;

pub(super) struct Streams {
    sender: SendRequest<Bytes>,
    /// `None` once it has ended: it must not be polled again.
    connection: Option<Connection<CountedStream, Bytes>>,
    ping: PingPong,
    traffic: Traffic,
    address: IpAddr,
    checked_at: Instant,
    /// What ended it, if the receiver violated the protocol.
    broken: Option<ConnectionFault>,
}

impl Streams {
    pub(super) fn new(
        (sender, mut connection): (SendRequest<Bytes>, Connection<CountedStream, Bytes>),
        traffic: Traffic,
        address: IpAddr,
        checked_at: Instant,
    ) -> Self {
        let ping = connection.ping_pong().expect("a connection gives it once");
        Self { sender, connection: Some(connection), ping, traffic, address, checked_at, broken: None }
    }

    /// Lets the connection read and write. Returns whether it takes requests.
    fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        if let Poll::Ready(ended) = Pin::new(connection).poll(cx) {
            // Dropping the connection ends all streams that still wait for an answer.
            self.connection = None;
            self.broken = ended.err().and_then(|error| fault::connection_fault(&error));
            return false;
        }
        // It fails once the receiver has sent `GOAWAY`.
        !matches!(self.sender.poll_ready(cx), Poll::Ready(Err(_)))
    }
}

/// Carries attempts, beginning with this one, until the connection and all its attempts have ended.
pub(super) async fn run(carriers: Arc<Carriers>, mut seat: Seat, streams: Box<Streams>, first: RunningAttempt) {
    seat.opened_many();
    let look_at = Instant::now() + carriers.opener.settings.ping_after;
    let mut task = Task {
        alarm: Alarm::new(look_at),
        carriers,
        seat,
        streams,
        waiting: VecDeque::from([first]),
        under_way: FuturesUnordered::new(),
        recheck: None,
        just_checked: true,
        limit: 0,
        room: 0,
        retired: false,
        abandoned: false,
        clean: false,
        timed_out: false,
        rests_since: None,
        silence: Silence { read_before: 0, look_at, pinged: false },
    };
    poll_fn(|cx| task.poll(cx)).await;
    let queue = task.seat.leave_with_queue();
    queue.into_iter().for_each(|attempt| task.carriers.pass_on(attempt));
}

struct Task {
    carriers: Arc<Carriers>,
    seat: Seat,
    streams: Box<Streams>,
    alarm: Alarm,
    /// Attempts that were handed over and have not begun: the receiver has not sent its limit yet, has lowered
    /// it, or its address is being checked.
    waiting: VecDeque<RunningAttempt>,
    under_way: FuturesUnordered<BoxFuture<'static, (RunningAttempt, How)>>,
    recheck: Option<BoxFuture<'static, Result<Vec<IpAddr>, Refusal>>>,
    /// Whether no attempt has begun since the last check.
    just_checked: bool,
    /// How many streams may be open at once: the lower of the receiver's limit and ours.
    limit: usize,
    /// How many more attempts the pool may hand over, as announced to it.
    room: usize,
    /// It takes no further attempt, and ends after those it has.
    retired: bool,
    /// It begins no further attempt either, and ends after those under way.
    abandoned: bool,
    /// Whether an attempt was answered since one was broken.
    clean: bool,
    /// Whether the last attempt that ended has timed out. Such a connection does not wait idle: frames that come later
    /// would cost CPU for nothing.
    timed_out: bool,
    rests_since: Option<Instant>,
    silence: Silence,
}

/// Detects a receiver that sends nothing.
struct Silence {
    read_before: u64,
    look_at: Instant,
    pinged: bool,
}

impl Task {
    /// Ready once the connection has ended, or was idle for the idle timeout.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.seat.take_handed(&mut self.waiting, cx) {
                Some(taken) => self.room -= taken.min(self.room),
                None => self.retire(),
            }
            if !self.streams.drive(cx) {
                self.abandon();
            }
            while let Poll::Ready(Some((attempt, how))) = self.under_way.poll_next_unpin(cx) {
                self.ended(attempt, how);
            }
            self.poll_recheck(cx);
            self.see_limit();
            let begun = self.begin();
            if !self.announce() && !begun {
                break;
            }
        }
        if self.is_over() { Poll::Ready(()) } else { self.poll_alarm(cx) }
    }

    /// Whether there is nothing to carry and no further attempt will be taken.
    fn is_over(&mut self) -> bool {
        if !self.under_way.is_empty() || !self.waiting.is_empty() || (!self.retired && !self.timed_out && self.rests())
        {
            return false;
        }
        self.retire();
        // Attempts that were handed over at the last moment.
        self.give_back();
        true
    }

    /// Begins waiting attempts as far as there is room. Returns whether one was begun.
    fn begin(&mut self) -> bool {
        if self.waiting.is_empty() || self.recheck.is_some() {
            return false;
        }
        if self.abandoned {
            self.give_back();
            return false;
        }
        let now = Instant::now();
        let is_old = now.duration_since(self.streams.checked_at) >= self.carriers.opener.settings.recheck_after;
        if is_old && !self.just_checked {
            return self.check_again();
        }
        if self.under_way.is_empty() {
            self.silence = self.silent_since(now);
        }
        let mut begun = false;
        while self.under_way.len() < self.limit
            && let Some(attempt) = self.waiting.pop_front()
        {
            self.streams.traffic.requested();
            self.under_way.push(Box::pin(stream::exchange(self.streams.sender.clone(), attempt)));
            begun = true;
        }
        self.just_checked &= !begun;
        begun
    }

    fn ended(&mut self, attempt: RunningAttempt, how: How) {
        match how {
            How::Answered(answer) => {
                self.timed_out = false;
                if !std::mem::replace(&mut self.clean, true) {
                    self.seat.works();
                }
                attempt.finish(Ok(answer));
            }
            How::Failed(fault, broke) => {
                if let Some(how) = broke {
                    self.broke(how);
                }
                attempt.finish(Err(fault));
            }
            How::TimedOut => {
                self.timed_out = true;
                attempt.finish(Err(ConnectionFault::timeout(true)));
            }
            How::NotProcessed(fault, broke) => {
                if broke == Some(Broke::WantsHttp1) {
                    self.broke(Broke::WantsHttp1);
                }
                if attempt.repeated {
                    self.broke(Broke::Stream);
                }
                self.carriers.repeat(attempt, fault);
            }
        }
    }

    /// Offers attempts that were handed over and not begun to other connections.
    fn give_back(&mut self) {
        let fault = self.streams.broken.unwrap_or(ConnectionFault::plain(Cause::ClosedEarly));
        std::mem::take(&mut self.waiting).into_iter().for_each(|attempt| self.carriers.repeat(attempt, fault));
    }

    fn broke(&mut self, how: Broke) {
        self.clean = false;
        if self.seat.broke(how, Instant::now()) {
            self.abandon();
        }
    }

    /// Takes over the receiver's limit of streams, which it may change at any time.
    fn see_limit(&mut self) {
        let ours = self.carriers.opener.settings.streams_per_connection_max;
        let limit = self.streams.sender.current_max_send_streams().min(ours);
        if limit == self.limit {
            return;
        }
        self.limit = limit;
        if limit > 0 && !self.retired {
            let surplus = self.seat.carries(limit);
            surplus.into_iter().for_each(|attempt| self.carriers.pass_on(attempt));
        }
    }

    /// Announces to the pool how many more attempts may be handed over, if that has changed. Returns whether it took
    /// attempts from the queue.
    fn announce(&mut self) -> bool {
        let free = self.limit.saturating_sub(self.under_way.len() + self.waiting.len());
        if self.retired || free == self.room {
            return false;
        }
        let waiting = self.waiting.len();
        self.room = self.seat.announce(free, &mut self.waiting);
        self.waiting.len() > waiting
    }

    /// Takes no further attempt.
    fn retire(&mut self) {
        if !std::mem::replace(&mut self.retired, true) {
            self.room = 0;
            self.waiting.append(&mut self.seat.retire());
        }
    }

    /// Begins no further attempt: the receiver is going away, its address has changed, or it gets HTTP/1.1.
    fn abandon(&mut self) {
        self.retire();
        self.abandoned = true;
    }

    /// Checks the address again before another attempt begins.
    fn check_again(&mut self) -> bool {
        let deadline = self.first_deadline().unwrap_or_else(Instant::now);
        let (carriers, origin) = (Arc::clone(&self.carriers), self.seat.origin().clone());
        self.recheck = Some(Box::pin(async move { carriers.opener.check(&origin, deadline).await }));
        true
    }

    fn poll_recheck(&mut self, cx: &mut Context<'_>) {
        let Some(recheck) = &mut self.recheck else { return };
        let Poll::Ready(checked) = recheck.as_mut().poll(cx) else { return };
        self.recheck = None;
        match checked {
            Ok(addresses) if addresses.contains(&self.streams.address) => {
                self.streams.checked_at = Instant::now();
                self.just_checked = true;
            }
            // The name has other addresses: waiting attempts go to a new connection.
            Ok(_) => self.abandon(),
            Err(refusal) => {
                self.abandon();
                let fault = ConnectionFault::from(refusal);
                std::mem::take(&mut self.waiting).into_iter().for_each(|attempt| attempt.finish(Err(fault)));
            }
        }
    }

    /// Whether a connection with nothing to carry may go on waiting.
    fn rests(&mut self) -> bool {
        if !self.seat.may_rest() {
            return false;
        }
        let now = Instant::now();
        let since = *self.rests_since.get_or_insert(now);
        now.duration_since(since) < self.carriers.opener.settings.idle_timeout
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.under_way.is_empty() || !self.waiting.is_empty() {
            self.rests_since = None;
        }
        self.alarm.set(self.next_look());
        while self.alarm.poll(cx).is_ready() {
            let now = Instant::now();
            self.give_up(now);
            self.listen(now, cx);
            if self.is_over() {
                return Poll::Ready(());
            }
            self.alarm.set(self.next_look());
        }
        Poll::Pending
    }

    fn next_look(&self) -> Instant {
        let rest = self.rests_since.map(|since| since + self.carriers.opener.settings.idle_timeout);
        let look_at = if self.under_way.is_empty() { None } else { Some(self.silence.look_at) };
        let soonest = [self.first_deadline(), rest, look_at].into_iter().flatten().min();
        soonest.unwrap_or_else(|| Instant::now() + self.carriers.opener.settings.idle_timeout)
    }

    fn first_deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|attempt| attempt.job.deadline).min()
    }

    /// Ends waiting attempts whose deadline has come.
    fn give_up(&mut self, now: Instant) {
        for _ in 0..self.waiting.len() {
            let Some(attempt) = self.waiting.pop_front() else { return };
            match attempt.job.deadline > now {
                true => self.waiting.push_back(attempt),
                false => attempt.finish(Err(ConnectionFault::timeout(false))),
            }
        }
    }

    /// Sends a ping to a silent receiver, and closes the connection if nothing comes after it.
    fn listen(&mut self, now: Instant, cx: &mut Context<'_>) {
        if self.under_way.is_empty() || now < self.silence.look_at {
            return;
        }
        let _ = self.streams.ping.poll_pong(cx);
        if self.streams.traffic.read() != self.silence.read_before {
            self.silence = self.silent_since(now);
        } else if self.silence.pinged || self.streams.ping.send_ping(Ping::opaque()).is_err() {
            // Its streams end with it, and so do their attempts.
            self.streams.connection = None;
            self.silence = self.silent_since(now);
        } else {
            self.silence.pinged = true;
            self.silence.look_at = now + self.carriers.opener.settings.ping_after / 2;
        }
    }

    fn silent_since(&self, now: Instant) -> Silence {
        let look_at = now + self.carriers.opener.settings.ping_after;
        Silence { read_before: self.streams.traffic.read(), look_at, pinged: false }
    }
}
