//! The figures for metrics: how much there is to do, what happened since the start, and the state of the store. They
//! are collected when metrics are read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use posthaste_core::scheduler::BreakerScope;
use posthaste_core::{Tier, Timestamp};
use posthaste_store::{Condition, PendingCounts, Store, StoreError, StoreState};

use crate::dispatch::counts::{CLASSES, Watched};
use crate::metrics::{self, MetricsPage};
use crate::{Clock, Command, CommandReply, Engine, EngineStopped};

/// The engine's own counter, and the sample of the last read.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Messages that were accepted.
    pub(crate) accepted: AtomicU64,
    last: Mutex<Option<Sample>>,
}

/// How many attempts had ended when metrics were read.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Timestamp,
    attempts: u64,
    /// The rate in the time before it, in thousandths of an attempt a second.
    pace_milli: u64,
}

/// The shortest time over which a rate is measured.
const LOOK_LEAST: Duration = Duration::from_secs(1);

impl Watch {
    /// The rate at which attempts ended since the last read, in thousandths of an attempt a second.
    fn pace_milli(&self, now: Timestamp, attempts: u64) -> u64 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *last.get_or_insert(Sample { at: now, attempts, pace_milli: 0 });
        let passed = now.since(before.at);
        if passed < LOOK_LEAST {
            return before.pace_milli;
        }
        let ms = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let pace_milli = attempts.saturating_sub(before.attempts).saturating_mul(1_000_000) / ms;
        *last = Some(Sample { at: now, attempts, pace_milli });
        pace_milli
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFigures {
    pub now: Timestamp,
    pub dispatch: Watched,
    pub store: Condition,
    pub accepted: u64,
    pub connections_out: u64,
    /// The time to send all ready deliveries that are not held, at the rate since the last read.
    pub backlog: Duration,
}

impl<S: Store, C: Clock> Engine<S, C> {
    pub async fn watch(&self) -> Result<EngineFigures, EngineStopped> {
        let CommandReply::Watched(dispatch) = self.handle.ask(Command::Watch).await? else { return Err(EngineStopped) };
        let now = self.clock.now();
        let attempts = dispatch.counts.attempts.iter().sum();
        let pace_milli = self.watch.pace_milli(now, attempts).max(1_000);
        let backlog = Duration::from_millis(dispatch.queue.unheld.saturating_mul(1_000_000) / pace_milli);
        Ok(EngineFigures {
            now,
            dispatch: *dispatch,
            store: self.store.condition(),
            accepted: self.watch.accepted.load(Ordering::Relaxed),
            connections_out: self.connector.connections() as u64,
            backlog,
        })
    }

    /// How many deliveries have not ended. Reads the store, so it is not for frequent calls.
    pub async fn pending(&self) -> Result<PendingCounts, StoreError> {
        self.store.pending().await
    }
}

impl EngineFigures {
    /// Writes every metric of the engine; `pending` counts the deliveries that have not ended.
    pub fn tell(&self, page: &mut MetricsPage, pending: PendingCounts) {
        self.write_queue(page, pending);
        self.write_results(page);
        self.write_store(page);
        page.one(&metrics::CONNECTIONS_OUT, self.connections_out);
    }

    fn write_queue(&self, page: &mut MetricsPage, pending: PendingCounts) {
        let queue = &self.dispatch.queue;
        let ago = |due: Option<Timestamp>| due.map_or(0.0, |due| self.now.since(due).as_secs_f64());
        page.one(&metrics::ACCEPTED, self.accepted);
        page.one(&metrics::ARRIVED, self.dispatch.counts.arrived);
        page.each(&metrics::DEPTH, Tier::ALL.map(|tier| (tier.name(), pending.by_tier[tier.index()])));
        page.each(&metrics::PENDING, [("untried", pending.untried), ("tried", pending.tried())]);
        page.each(&metrics::WINDOW, queue.states.iter().map(|(phase, count)| (phase.name(), *count)));
        page.one(&metrics::SPILLING, queue.spilling);
        page.one(&metrics::READY, queue.ready);
        page.seconds(&metrics::OLDEST_DUE, ago(queue.oldest_due));
        page.seconds(&metrics::OVERDUE, ago(queue.oldest_unheld));
        page.seconds(&metrics::BACKLOG, self.backlog.as_secs_f64());
        page.one(&metrics::IN_FLIGHT, queue.in_flight);
        page.one(&metrics::UNSETTLED, self.dispatch.unsettled);
        page.each(&metrics::TRIPS, BreakerScope::ALL.map(|scope| (scope.name(), queue.trips[scope as usize])));
        page.each(&metrics::OPEN, BreakerScope::ALL.map(|scope| (scope.name(), queue.open[scope as usize])));
        let all = u64::from(queue.paused.is_some());
        page.each(&metrics::PAUSED, [("all", all), ("tenant", queue.paused_tenants), ("origin", queue.paused_origins)]);
    }

    fn write_results(&self, page: &mut MetricsPage) {
        let counts = &self.dispatch.counts;
        page.spread(&metrics::LATENCY, &counts.latency);
        page.spread(&metrics::TOOK, &counts.took);
        page.each(&metrics::ATTEMPTS, CLASSES.iter().zip(counts.attempts).map(|((_, name), count)| (*name, count)));
        page.one(&metrics::DELIVERED, counts.delivered);
        page.one(&metrics::CANCELLED, counts.cancelled);
        page.each(&metrics::DEAD_LETTERS, counts.dead.iter().map(|(cause, count)| (cause.code(), *count)));
        page.one(&metrics::TTL_PURGES, counts.expired);
        page.one(&metrics::SWEPT, counts.swept);
        page.one(&metrics::ILLEGAL, counts.refused_moves);
    }

    fn write_store(&self, page: &mut MetricsPage) {
        let store = &self.store;
        page.one(&metrics::TOKENS_REJECTED, store.tokens_rejected);
        page.one(&metrics::TOKENS_RENEWED, store.tokens_renewed);
        page.one(&metrics::RECIPIENT_ROWS, store.recipient_rows);
        page.one(&metrics::COMMITS, store.commits);
        page.one(&metrics::COMMIT_ROWS, store.rows);
        let percentiles = [(0.5, store.commit_p50.as_secs_f64()), (0.99, store.commit_p99.as_secs_f64())];
        page.percentiles(&metrics::COMMIT_SECONDS, &percentiles, store.commits);
        page.each(&metrics::STORE, StoreState::ALL.map(|state| (state.name(), u64::from(state == store.state))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_measured_since_the_last_read() {
        let watch = Watch::default();
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
        assert_eq!(watch.pace_milli(at(10), 100), 0, "nothing is known yet");
        assert_eq!(watch.pace_milli(at(20), 300), 20_000);
        assert_eq!(watch.pace_milli(at(20), 400), 20_000, "the time is too short");
        assert_eq!(watch.pace_milli(at(30), 300), 0);
    }
}
