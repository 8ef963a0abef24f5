//! The health of a store, for metrics and readiness checks. Reading it is cheap and never waits.

use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub state: StoreState,
    /// Transactions since it was opened.
    pub commits: u64,
    /// Rows changed by these transactions: deliveries accepted and settled.
    pub rows: u64,
    /// The median duration of a commit.
    pub commit_p50: Duration,
    pub commit_p99: Duration,
    /// Retry tokens that had passed their lifetime and were verified again.
    pub tokens_renewed: u64,
    /// Retry tokens that were forged or altered; their deliveries are never sent.
    pub tokens_rejected: u64,
    /// Rows read to find the endpoints of messages, from endpoints and their subject and tag indexes.
    pub recipient_rows: u64,
}

/// Whether a store can read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreState {
    #[default]
    Well,
    /// The disk is full: it reads, and resumes writing when there is space.
    Full,
    /// It has stopped for good: the process must end.
    Stopped,
}

impl StoreState {
    pub const ALL: [Self; 3] = [Self::Well, Self::Full, Self::Stopped];

    /// Its name in metrics and `/readyz`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Full => "full",
            Self::Stopped => "stopped",
        }
    }
}

pub trait Watchable: Send + Sync + 'static {
    fn condition(&self) -> Condition;
}
