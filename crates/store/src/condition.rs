//! How a store is, for whoever watches it. Asking costs nothing and waits for nobody.

use std::time::Duration;

/// How a store is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Whether it works.
    pub state: StoreState,
    /// Transactions since it was opened.
    pub commits: u64,
    /// Rows they changed: deliveries accepted and settled.
    pub rows: u64,
    /// What half of them took at most.
    pub commit_p50: Duration,
    /// What 99 of 100 took at most.
    pub commit_p99: Duration,
    /// Retry tokens that were late and verified once more.
    pub tokens_renewed: u64,
    /// Retry tokens that were forged or altered: never sent.
    pub tokens_rejected: u64,
    /// Rows read to find the endpoints of messages: of the indexes by subject and tag, and of endpoints.
    pub recipient_rows: u64,
}

/// Whether a store works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreState {
    /// It does.
    #[default]
    Well,
    /// The disk is full: it reads, and writes again when there is room.
    Full,
    /// It has stopped: the process ends.
    Stopped,
}

impl StoreState {
    /// Every one.
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

/// A store that can be watched.
pub trait Watchable: Send + Sync + 'static {
    /// How it is now.
    fn condition(&self) -> Condition;
}
