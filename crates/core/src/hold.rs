//! Why a delivery waits, and until when (G5).

use crate::Timestamp;
use crate::named::named;

named! {
    /// Why a delivery waits. The names are `waiting.why` of the API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Why {
        /// `deliver_at` has not come.
        Scheduled "scheduled",
        /// Between two attempts, by the policy.
        Backoff "backoff",
        RetryAfter "retry_after",
        /// The destination is failing, and its retry budget is spent.
        RetryBudget "retry_budget",
        /// A breaker is open, or its probe is in flight.
        BreakerOpen "breaker_open",
        /// A rate limit, or the pace of a recovery.
        RateLimit "rate_limit",
        /// As many attempts as allowed are in flight.
        Concurrency "concurrency",
        /// Its off-peak window has not opened.
        OffPeak "off_peak",
        /// Its lane is strict, and an earlier delivery has not ended.
        Order "order",
        /// Other deliveries are sent first.
        Turn "turn",
        /// It was sent and waits for its receipt.
        Ack "ack",
        /// The server, its tenant, its origin or its endpoint is paused.
        Paused "paused",
        EndpointDisabled "endpoint_disabled",
        /// Its credential was refused and not replaced yet.
        Credential "credential",
        /// The store does not answer.
        Store "store",
    }
}

/// A reason to wait, and its end. Waiting costs no attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    pub why: Why,
    /// When the hold ends; `None` if it lasts until an operator, an owner or an event ends it.
    pub until: Option<Timestamp>,
}

impl Hold {
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}
