//! Why a delivery waits, and until when (G5).

use crate::Timestamp;

/// Why a delivery waits. The names are `waiting.why` of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// `deliver_at` has not come.
    Scheduled,
    /// Between two attempts, by the policy.
    Backoff,
    RetryAfter,
    /// The destination is failing, and its retry budget is spent.
    RetryBudget,
    /// A breaker is open, or its probe is in flight.
    BreakerOpen,
    /// A rate limit, or the pace of a recovery.
    RateLimit,
    /// As many attempts as allowed are in flight.
    Concurrency,
    /// Its off-peak window has not opened.
    OffPeak,
    /// Its lane is strict, and an earlier delivery has not ended.
    Order,
    /// Other deliveries are sent first.
    Turn,
    /// It was sent and waits for its receipt.
    Ack,
    /// The server, its tenant, its origin or its endpoint is paused.
    Paused,
    EndpointDisabled,
    /// Its credential was refused and not replaced yet.
    Credential,
    /// The store does not answer.
    Store,
}

impl Why {
    pub const ALL: [Self; 15] = [
        Self::Scheduled,
        Self::Backoff,
        Self::RetryAfter,
        Self::RetryBudget,
        Self::BreakerOpen,
        Self::RateLimit,
        Self::Concurrency,
        Self::OffPeak,
        Self::Order,
        Self::Turn,
        Self::Ack,
        Self::Paused,
        Self::EndpointDisabled,
        Self::Credential,
        Self::Store,
    ];

    /// The reason's name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Backoff => "backoff",
            Self::RetryAfter => "retry_after",
            Self::RetryBudget => "retry_budget",
            Self::BreakerOpen => "breaker_open",
            Self::RateLimit => "rate_limit",
            Self::Concurrency => "concurrency",
            Self::OffPeak => "off_peak",
            Self::Order => "order",
            Self::Turn => "turn",
            Self::Ack => "ack",
            Self::Paused => "paused",
            Self::EndpointDisabled => "endpoint_disabled",
            Self::Credential => "credential",
            Self::Store => "store",
        }
    }
}

const _: () = assert!(Why::ALL.len() == Why::Store as usize + 1, "none is left out");

/// A reason to wait, and its end. Waiting costs no attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The reason, as the API shows it.
    pub why: Why,
    /// When the hold ends; `None` if it lasts until an operator, an owner or an event ends it.
    pub until: Option<Timestamp>,
}

impl Hold {
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}
