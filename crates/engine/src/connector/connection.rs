//! The life of a connection: one task that carries attempts of its origin, one after the other. If its
//! receiver chooses HTTP/2, `streams` takes over once the connection is open.
//!
//! The task begins with the attempt that needs a connection, opens the socket, and then takes the next
//! attempt from its origin's queue or waits idle. It ends after the idle timeout, when its receiver
//! closes the connection, or when the queue is empty after a failure.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;

use super::alarm::Alarm;
use super::attempt::RunningAttempt;
use super::exchange::{Exchange, Link};
use super::open::{HttpConnection, Opener};
use super::pool::{Next, Seat};
use super::streams::{self, Streams};
use super::{Carriers, ConnectionFault, ReceivedResponse};
use crate::Target;

/// Carries attempts, beginning with this one, until the connection leaves its pool.
pub(super) async fn run(carriers: Arc<Carriers>, mut seat: Seat, mut attempt: RunningAttempt) {
    let mut alarm = Alarm::new(attempt.job.deadline);
    let mut link = None;
    loop {
        match carry(&carriers, &mut seat, &mut link, &attempt, &mut alarm).await {
            Carried::Ended(result) => attempt.finish(result),
            Carried::NotOpened(fault) => {
                attempt.finish(Err(fault));
                seat.not_opened().into_iter().for_each(|waited| waited.finish(Err(fault)));
            }
            Carried::Many(streams) => return streams::run(carriers, seat, streams, attempt).await,
        }
        let next = match &mut link {
            Some(link) => match seat.next_or_wait() {
                Next::Wait => {
                    let until = Instant::now() + carriers.opener.settings.idle_timeout;
                    wait(link, &mut seat, &mut alarm, until).await
                }
                next => next,
            },
            None => seat.next_or_leave(),
        };
        match next {
            Next::Carry(next) => attempt = next,
            Next::Wait | Next::Leave => return,
        }
    }
}

/// Waits idle until an attempt is handed over, the receiver closes the connection, or the idle timeout is over.
async fn wait(link: &mut Link, seat: &mut Seat, alarm: &mut Alarm, until: Instant) -> Next {
    alarm.set(until);
    poll_fn(|cx| {
        let is_over = seat.poll_handed(cx).is_ready() || link.poll_ended(cx).is_ready() || alarm.poll(cx).is_ready();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    seat.stop_waiting()
}

enum Carried {
    Ended(Result<ReceivedResponse, ConnectionFault>),
    NotOpened(ConnectionFault),
    /// An HTTP/2 connection was opened; it has yet to carry this attempt.
    Many(Box<Streams>),
}

/// Makes one attempt, over the kept connection if there is one that may still be used.
async fn carry(
    carriers: &Arc<Carriers>,
    seat: &mut Seat,
    kept: &mut Option<Box<Link>>,
    attempt: &RunningAttempt,
    alarm: &mut Alarm,
) -> Carried {
    let opener = &carriers.opener;
    let (target, deadline) = (Arc::clone(&attempt.job.target), attempt.job.deadline);
    let now = Instant::now();
    if now >= deadline {
        return Carried::Ended(Err(ConnectionFault::timeout(false)));
    }
    alarm.set(deadline);
    let looked_up = match reuse(opener, kept.take(), &target, now, deadline).await {
        Ok(Reuse::Link(mut link)) => match link.exchange(&attempt.job.request, &target, alarm).await {
            Exchange::Answered(answer) => return Carried::Ended(Ok(keep(kept, link, answer))),
            Exchange::Failed(fault) => return Carried::Ended(Err(fault)),
            // The receiver had closed it while it was idle: the attempt is made on a new connection.
            Exchange::GivenBack(_) => None,
        },
        Ok(Reuse::Moved(addresses)) => Some(addresses),
        Ok(Reuse::Nothing) => None,
        Err(fault) => return Carried::Ended(Err(fault)),
    };
    match open(carriers, seat, &target, looked_up, deadline).await {
        Ok(HttpConnection::Many(streams)) => Carried::Many(streams),
        Ok(HttpConnection::One(mut link)) => {
            seat.opened_one().into_iter().for_each(|attempt| carriers.pass_on(attempt));
            Carried::Ended(match link.exchange(&attempt.job.request, &target, alarm).await {
                Exchange::Answered(answer) => Ok(keep(kept, link, answer)),
                Exchange::Failed(fault) | Exchange::GivenBack(fault) => Err(fault),
            })
        }
        Err(fault) => Carried::NotOpened(fault),
    }
}

/// Opens a connection, to one of these addresses if they were resolved a moment ago.
async fn open(
    carriers: &Carriers,
    seat: &Seat,
    target: &Target,
    looked_up: Option<Vec<IpAddr>>,
    deadline: Instant,
) -> Result<HttpConnection, ConnectionFault> {
    let opener = &carriers.opener;
    let addresses = match looked_up {
        Some(addresses) => addresses,
        None => opener.check(target.origin(), deadline).await?,
    };
    let tls = seat.tls(opener);
    let tls = tls.offering(seat.may_multiplex(Instant::now()));
    opener.open(target.origin(), &addresses, tls, deadline).await
}

/// Whether a kept connection may be used.
enum Reuse {
    Link(Box<Link>),
    /// It may not: its name now has these addresses, and the connection's is not among them.
    Moved(Vec<IpAddr>),
    /// There is none, or it has ended.
    Nothing,
}

/// Checks a kept connection. When its address was checked longer than `recheck_after` ago, the name is resolved again
/// and must still have that address.
async fn reuse(
    opener: &Opener,
    kept: Option<Box<Link>>,
    target: &Target,
    now: Instant,
    deadline: Instant,
) -> Result<Reuse, ConnectionFault> {
    let Some(mut link) = kept.filter(|link| link.is_usable) else {
        return Ok(Reuse::Nothing);
    };
    if now.duration_since(link.checked_at) < opener.settings.recheck_after {
        return Ok(Reuse::Link(link));
    }
    let addresses = opener.check(target.origin(), deadline).await?;
    if !addresses.contains(&link.address) {
        return Ok(Reuse::Moved(addresses));
    }
    link.checked_at = now;
    Ok(Reuse::Link(link))
}

fn keep(kept: &mut Option<Box<Link>>, link: Box<Link>, answer: ReceivedResponse) -> ReceivedResponse {
    *kept = Some(link).filter(|link| link.is_usable);
    answer
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::time::Duration;

    use bytes::Bytes;
    use posthaste_channels::ChannelRequest;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    use super::*;
    use crate::connector::Settings;
    use crate::connector::pool::{Offer, Pools};
    use crate::harness::loopback_allowed;
    use crate::{ConnectorJob, Roots, System, Tcp};

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let address = listener.local_addr().expect("a bound socket has an address");
        (listener, address)
    }

    fn carriers() -> Arc<Carriers> {
        let settings = Settings { rules: loopback_allowed(), ..Settings::default() };
        let opener = Opener::new(settings, Arc::new(System), Arc::new(Tcp), Roots::none());
        Arc::new(Carriers { opener, pools: Arc::new(Pools::new(1, 1)), tasks: Mutex::default() })
    }

    fn attempt(opener: &Opener, address: SocketAddr) -> RunningAttempt {
        let target = Target::parse(&format!("http://{address}/"), &opener.settings.rules).expect("an allowed address");
        let (results, _receiver) = mpsc::channel(1);
        let reply = results.try_reserve_owned().expect("a channel of one");
        let request = ChannelRequest { body: Bytes::from_static(b"{}"), ..ChannelRequest::default() };
        let (now, timeout) = (Instant::now(), Duration::from_secs(10));
        let job = ConnectorJob { token: 1, target: Arc::new(target), identity: None, request, deadline: now + timeout };
        RunningAttempt::new(job, reply, now, timeout)
    }

    /// Lets the runtime process everything that happened on loopback before this call.
    async fn let_the_runtime_see_events() {
        let (listener, address) = listen().await;
        let stream = TcpStream::connect(address).await.expect("a listener on loopback");
        drop(listener.accept().await.expect("a connection"));
        stream.readable().await.expect("the other side has closed");
    }

    #[tokio::test]
    async fn stale_connection_that_took_no_byte_is_replaced_once_silently() {
        let (listener, address) = listen().await;
        let carriers = carriers();
        let offer = carriers.pools.offer(attempt(&carriers.opener, address));
        let Offer::Grow(mut seat, attempt) = offer else { panic!("the first one needs a connection") };
        let opened = open(&carriers, &seat, &attempt.job.target, Some(vec![address.ip()]), attempt.job.deadline).await;
        let Ok(HttpConnection::One(mut link)) = opened else { panic!("a listener that speaks HTTP/1.1") };
        let (other_side, _) = listener.accept().await.expect("a connection");
        assert!(poll_fn(|cx| Poll::Ready(link.poll_ended(cx))).await.is_pending());
        assert!(link.is_usable);
        // The receiver closes, and the link is not polled between this and its next use.
        drop(other_side);
        let_the_runtime_see_events().await;

        let mut kept = Some(link);
        let mut alarm = Alarm::new(attempt.job.deadline);
        let receiver = async {
            let (mut stream, _) = listener.accept().await.expect("a second connection");
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.expect("a request");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.expect("a client that reads");
            (stream, String::from_utf8_lossy(&request[..length]).into_owned())
        };
        let carried = carry(&carriers, &mut seat, &mut kept, &attempt, &mut alarm);
        let both = async { tokio::join!(carried, receiver) };
        let both = tokio::time::timeout(Duration::from_secs(5), both).await;
        let (carried, (_stream, request)) = both.expect("a second connection within the time");
        let Carried::Ended(Ok(answer)) = carried else { panic!("no answer on the second connection") };
        assert_eq!(answer.status, 200);
        assert!(request.ends_with("\r\n\r\n{}"), "{request}");
        assert!(kept.is_some(), "the new connection is kept");
    }
}
