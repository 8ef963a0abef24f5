//! The flow-control state of one destination: its breaker, limits, budget and drain. It is created with the first
//! attempt and dropped some time after the last one.

use std::collections::BTreeSet;
use std::time::Duration;

use super::blocked_by::{LaneBlock, UnblockedBy};
use super::drain::Drain;
use super::flight::Flight;
use super::lane::LaneSettings;
use super::ready::Ready;
use super::shared::AnswerSignals;
use crate::flow::Protection;
use crate::flow::breaker::{Breaker, BreakerAnswer, BreakerChange, BreakerState, LetsThrough, Pass, Signal};
use crate::flow::bucket::{Bucket, RetryBudget};
use crate::flow::concurrency::Concurrency;
use crate::flow::pace::{Pace, PaceAnswer};
use crate::{Cause, DeliveryId, Hold, Timestamp, Why};

/// How long a healthy destination is kept after its last attempt, with its concurrency limit and rate.
const KEPT_WELL: Duration = Duration::from_secs(60);
/// How long a destination is kept after its last attempt if its breaker is not closed or has counted failures.
const KEPT_FAILING: Duration = Duration::from_secs(3_600);

/// The most retries kept in the window so that a recovery can make them due at once.
const RETRIES_MAX: usize = 256;

/// The rate, in thousandths a second, that is assumed of a destination that answers 429 or 503 before its own rate is
/// known. It is slowed down to half of this.
const UNKNOWN_RATE: u64 = 10_000;

#[derive(Debug)]
pub(super) struct DestinationState {
    protection: Protection,
    pub(super) breaker: Breaker,
    pub(super) concurrency: Concurrency,
    pub(super) budget: RetryBudget,
    pub(super) bucket: Option<Bucket>,
    pub(super) pace: Option<Pace>,
    /// The rate of successes when it was last healthy, in thousandths a second.
    pub(super) healthy: u64,
    /// When the last attempt started.
    pub(super) used: Timestamp,
    /// Retries that wait in the window: a recovery makes them due at once.
    pub(super) retries: BTreeSet<DeliveryId>,
    /// Retries over the budget, by tier.
    pub(super) postponed: [Ready; 3],
    pub(super) drain: Option<Box<Drain>>,
}

impl DestinationState {
    pub(super) fn new(settings: &LaneSettings, protection: Protection, now: Timestamp) -> Self {
        Self { protection, bucket: settings.rate().map(|rate| Bucket::full(rate, now)), ..Self::unlimited(now) }
    }

    /// A destination without a rate limit, for a lane whose settings are not known.
    pub(super) fn unlimited(now: Timestamp) -> Self {
        Self {
            protection: Protection::On,
            breaker: Breaker::default(),
            concurrency: Concurrency::default(),
            budget: RetryBudget::new(now),
            bucket: None,
            pace: None,
            healthy: 0,
            used: now,
            retries: BTreeSet::new(),
            postponed: Default::default(),
            drain: None,
        }
    }

    /// Whether the destination is protected, not only rate-limited.
    pub(super) fn is_protected(&self) -> bool {
        self.protection == Protection::On
    }

    /// The most attempts in flight, where the lane's settings allow `most`.
    pub(super) fn in_flight_max(&self, most: u16) -> u16 {
        if self.is_protected() { self.concurrency.limit(most) } else { most }
    }

    /// What blocks the destination's lane from sending now.
    pub(super) fn blocked_by(&self, settings: &LaneSettings, now: Timestamp) -> Option<LaneBlock> {
        match self.breaker.lets_through(now) {
            LetsThrough::Nothing { until: Some(at) } => return Some(LaneBlock::until(Why::BreakerOpen, at)),
            LetsThrough::Nothing { until: None } => {
                let hold = Hold { why: Why::BreakerOpen, until: None };
                return Some(LaneBlock { hold, unblocked_by: UnblockedBy::AttemptEnd });
            }
            LetsThrough::All | LetsThrough::Probe => {}
        }
        let limited = settings.rate().zip(self.bucket.as_ref()).and_then(|(rate, bucket)| bucket.next_at(rate, now));
        let paced = self.pace.as_ref().and_then(|pace| pace.next_at(now));
        limited.max(paced).map(|at| LaneBlock::until(Why::RateLimit, at))
    }

    /// Notes the start of an attempt, which takes its tokens.
    pub(super) fn start(&mut self, settings: &LaneSettings, first_try: bool, now: Timestamp) -> Pass {
        self.used = now;
        if let Some(rate) = settings.rate() {
            let bucket = self.bucket.get_or_insert_with(|| Bucket::full(rate, now));
            // `blocked_by` was checked before: there is a token.
            let _ = bucket.take(rate, now);
        }
        if let Some(pace) = &mut self.pace {
            pace.take(now);
        }
        if first_try {
            self.budget.first_try(now);
        }
        self.breaker.start(now)
    }

    /// Learns from the outcome of an attempt, which was one of `in_flight`.
    pub(super) fn answered(
        &mut self,
        settings: &LaneSettings,
        flight: &Flight,
        cause: Cause,
        heard: &AnswerSignals,
        in_flight: u16,
        now: Timestamp,
    ) -> Option<BreakerChange> {
        let took = now.since(flight.started);
        let pace_answer = match heard.signal {
            Signal::Success => {
                self.concurrency.succeeded(now, took, in_flight, settings.max_in_flight);
                if self.concurrency.latency_holds() { PaceAnswer::Well } else { PaceAnswer::Slowly }
            }
            Signal::Overload => {
                self.concurrency.overloaded(now);
                PaceAnswer::TooMuch
            }
            Signal::Failure if is_timeout(cause) => {
                self.concurrency.timed_out(now, took);
                PaceAnswer::Nothing
            }
            Signal::Failure | Signal::Neutral => {
                self.concurrency.failed(now, took);
                PaceAnswer::Nothing
            }
        };
        let took_lately = self.breaker.successes_per_second(now);
        if heard.signal == Signal::Success && self.pace.is_none() && !self.is_troubled(now) {
            self.healthy = took_lately;
        }
        match &mut self.pace {
            Some(pace) => pace.answered(now, pace_answer),
            // While the breaker is not closed, it limits the rate by itself.
            None if pace_answer == PaceAnswer::TooMuch && self.breaker.standing(now) == BreakerState::Closed => {
                self.pace = Some(Pace::slowed(now, took_lately.max(UNKNOWN_RATE)));
            }
            None => {}
        }
        let answer = BreakerAnswer {
            generation: flight.generation,
            endpoint: flight.endpoint,
            signal: heard.signal,
            messages_wait: heard.messages_wait,
            retry_after: heard.retry_after,
        };
        self.breaker.answered(now, heard.roll, &settings.policy.breaker(), answer)
    }

    /// After the clock was set back: buckets continue from the new time.
    pub(super) fn catch_up(&mut self, settings: Option<&LaneSettings>, now: Timestamp) {
        if let (Some(rate), Some(bucket)) = (settings.and_then(LaneSettings::rate), &mut self.bucket) {
            bucket.catch_up(rate, now);
        }
        if let Some(pace) = &mut self.pace {
            pace.catch_up(now);
        }
        self.budget.catch_up(now);
    }

    /// Gives back the tokens of an attempt that was not made.
    pub(super) fn put_back(&mut self, settings: &LaneSettings, flight: &Flight) {
        if let (Some(rate), Some(bucket)) = (settings.rate(), &mut self.bucket) {
            bucket.give_back(rate, flight.started);
        }
        if let Some(pace) = &mut self.pace {
            pace.give_back(flight.started);
        }
        self.breaker.put_back(flight.generation);
    }

    /// Whether the breaker is not closed, or many recent answers were failures.
    pub(super) fn is_troubled(&self, now: Timestamp) -> bool {
        self.breaker.standing(now) != BreakerState::Closed || self.breaker.is_failing(now)
    }

    /// Notes a waiting retry for a recovery; `false` if there is no room.
    pub(super) fn keep_retry(&mut self, id: DeliveryId) -> bool {
        self.retries.len() < RETRIES_MAX && self.retries.insert(id)
    }

    /// Whether the destination may be dropped.
    pub(super) fn is_over(&self, settings: Option<&LaneSettings>, now: Timestamp) -> bool {
        let limit = settings.and_then(LaneSettings::rate).zip(self.bucket.as_ref());
        let owes = limit.is_some_and(|(rate, bucket)| !bucket.is_full(rate, now));
        now.since(self.used) >= self.kept(now) && !owes && self.drain.is_none()
    }

    /// When to check [`Self::is_over`] again.
    pub(super) fn over_at(&self, now: Timestamp) -> Timestamp {
        (self.used + self.kept(now)).max(now + Duration::from_secs(1))
    }

    fn kept(&self, now: Timestamp) -> Duration {
        if self.breaker.is_as_new(now) { KEPT_WELL } else { KEPT_FAILING }
    }
}

/// Whether the attempt timed out, which may be a sign of overload.
fn is_timeout(cause: Cause) -> bool {
    matches!(cause, Cause::Unknown | Cause::ConnectTimeout | Cause::GatewayTimeout | Cause::RequestTimeout)
}
