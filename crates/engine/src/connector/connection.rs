//! A connection's life: one task that carries attempt after attempt for its origin.
//!
//! It is born with the attempt that needs it, opens the socket for it, and then takes the next
//! one from its origin's queue or waits idle. It ends when it waited too long, when its receiver
//! closed it, or when nothing is left to do after a failure.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;

use super::alarm::Alarm;
use super::attempt::Attempt;
use super::exchange::{Exchange, Link};
use super::open::Opener;
use super::pool::{Next, Seat};
use super::{Answer, Fault};
use crate::target::Target;

/// Carries attempts until there are none, beginning with this one.
pub(super) async fn run(opener: Arc<Opener>, mut seat: Seat, mut attempt: Attempt) {
    let mut alarm = Alarm::new(attempt.deadline());
    let mut link = None;
    loop {
        let result = carry(&opener, &mut link, &mut attempt, &mut alarm).await;
        attempt.finish(result);
        let next = match &mut link {
            Some(link) => match seat.next_or_wait() {
                Next::Wait => wait(link, &mut seat, &mut alarm, Instant::now() + opener.settings.idle_timeout).await,
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

/// Waits idle until an attempt is handed over, the receiver closes, or it was long enough.
async fn wait(link: &mut Link, seat: &mut Seat, alarm: &mut Alarm, until: Instant) -> Next {
    alarm.set(until);
    poll_fn(|cx| {
        let is_over = seat.poll_handed(cx).is_ready() || link.drive(cx).is_ready() || alarm.poll(cx).is_ready();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    seat.stop_waiting()
}

/// Makes one attempt, over the kept connection if there is one that may still be used.
async fn carry(
    opener: &Opener,
    kept: &mut Option<Link>,
    attempt: &mut Attempt,
    alarm: &mut Alarm,
) -> Result<Answer, Fault> {
    let (target, deadline) = (Arc::clone(attempt.target()), attempt.deadline());
    let now = Instant::now();
    if now >= deadline {
        return Err(Fault::timeout(false));
    }
    alarm.set(deadline);
    let mut request = attempt.take_request();
    if let Some(mut link) = still_usable(opener, kept.take(), &target, now, deadline).await? {
        match link.exchange(request, alarm).await {
            Exchange::Answered(answer) => return Ok(keep(kept, link, answer)),
            Exchange::Failed(fault) => return Err(fault),
            // The receiver had closed it while it waited: once more, on a new one.
            Exchange::GivenBack(unsent, _) => request = *unsent,
        }
    }
    let addresses = opener.check(target.origin(), deadline).await?;
    let mut link = opener.open(target.origin(), &addresses, deadline).await?;
    match link.exchange(request, alarm).await {
        Exchange::Answered(answer) => Ok(keep(kept, link, answer)),
        Exchange::Failed(fault) | Exchange::GivenBack(_, fault) => Err(fault),
    }
}

/// A connection outlives its look-up: after a while its address must prove itself again.
async fn still_usable(
    opener: &Opener,
    kept: Option<Link>,
    target: &Target,
    now: Instant,
    deadline: Instant,
) -> Result<Option<Link>, Fault> {
    let Some(mut link) = kept.filter(Link::is_usable) else {
        return Ok(None);
    };
    if now.duration_since(link.checked_at()) >= opener.settings.recheck_after {
        let addresses = opener.check(target.origin(), deadline).await?;
        if !addresses.contains(&link.address()) {
            return Ok(None);
        }
        link.set_checked_at(now);
    }
    Ok(Some(link))
}

fn keep(kept: &mut Option<Link>, link: Link, answer: Answer) -> Answer {
    *kept = Some(link).filter(Link::is_usable);
    answer
}
