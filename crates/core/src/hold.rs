//! Why something waits, and until when (G5).

use crate::time::Timestamp;

/// Why a delivery waits. The names are `waiting.why` of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// `deliver_at` has not come.
    Scheduled,
    /// Between two attempts, by the policy.
    Backoff,
    /// The receiver said when to come back.
    RetryAfter,
    /// The destination is failing, and its retries are kept to their share.
    RetryBudget,
    /// A breaker is open, or its probe is under way.
    BreakerOpen,
    /// A rate limit, or the pace of a recovery.
    RateLimit,
    /// As many attempts as allowed are under way.
    Concurrency,
    /// Its off-peak window has not opened.
    OffPeak,
    /// A strict lane: one before it has not ended.
    Order,
    /// Others are before it.
    Turn,
    /// Sent; a receipt is awaited.
    Ack,
    /// Somebody paused it.
    Paused,
    /// Its endpoint is disabled.
    EndpointDisabled,
    /// Its credential was refused and not replaced yet.
    Credential,
    /// Our store does not answer.
    Store,
}

impl Why {
    /// Every reason there is.
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

/// Something holds: why, and until when. Holding costs no attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Why.
    pub why: Why,
    /// Until when; `None` when somebody or something else must end it.
    pub until: Option<Timestamp>,
}

impl Hold {
    /// Whether it still holds at `now`.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}
