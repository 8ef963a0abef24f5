//! One timer for a connection's whole life.
//!
//! Moving a timer costs a lock on the runtime's timer wheel, and an attempt nearly always ends long
//! before its deadline. So a later deadline leaves the timer where it is: it fires early, finds
//! that nothing is due, and is set again. A busy connection takes that lock a few times a minute.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

/// Fires at the time that was set last.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: Pin<Box<Sleep>>,
    due: Instant,
}

impl Alarm {
    pub(super) fn new(due: Instant) -> Self {
        Self { timer: Box::pin(sleep_until(due)), due }
    }

    pub(super) fn set(&mut self, due: Instant) {
        self.due = due;
        if due < self.timer.deadline() {
            self.timer.as_mut().reset(due);
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if self.timer.deadline() >= self.due {
                return Poll::Ready(());
            }
            let due = self.due;
            self.timer.as_mut().reset(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    async fn ring_after(alarm: &mut Alarm) -> Duration {
        let start = Instant::now();
        poll_fn(|cx| alarm.poll(cx)).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn alarm_fires_at_the_time_set_last() {
        let second = Duration::from_secs(1);
        let mut alarm = Alarm::new(Instant::now() + 10 * second);
        alarm.set(Instant::now() + 30 * second);
        assert_eq!(ring_after(&mut alarm).await, 30 * second);
        alarm.set(Instant::now() + 60 * second);
        assert_eq!(ring_after(&mut alarm).await, 60 * second);
        let mut alarm = Alarm::new(Instant::now() + 60 * second);
        assert!(poll_fn(|cx| Poll::Ready(alarm.poll(cx))).await.is_pending());
        alarm.set(Instant::now() + 5 * second);
        assert_eq!(ring_after(&mut alarm).await, 5 * second);
        // It fired and was not set again: it is still due.
        assert_eq!(ring_after(&mut alarm).await, Duration::ZERO);
    }
}
