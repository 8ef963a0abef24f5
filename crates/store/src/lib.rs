//! The promise on disk.
//!
//! [`Store`] is the contract between the engine and whatever remembers; [`Memory`] and
//! [`sqlite::Sqlite`] keep it. It is made of small ones, by who needs them:
//!
//! | trait | who asks |
//! |---|---|
//! | [`Outbox`] | the accept path and the dispatch loop |
//! | [`Directory`] | whoever needs to know where a message goes |
//! | [`Register`] | whoever makes, names and changes tenants, API keys and policies |
//! | [`Jobs`] | what carries out large fan-outs and replays |
//! | [`Archive`] | whoever shows what became of things, and retention |
//! | [`DeadLetters`] | whoever looks through what was given up |
//! | [`Checkpoints`] | what signs for the journal |
//! | [`Erasures`] | whoever must forget somebody, or say what is held about them |
//! | [`MasterKeys`] | what rotates the master key |
//! | [`Watchable`] | whoever watches how the store is |
//!
//! Every call is one transaction, but for a count in [`Outbox::cut`]. What changes a delivery carries the
//! session's epoch and the attempts the caller counts: a caller that no longer owns the delivery is
//! told so and changes nothing but its history.
//!
//! Read [`row`] for what is kept, then [`memory`], which is the contract in its plainest form.

mod archive;
pub mod audit;
mod checkpoints;
mod condition;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod dead_letters;
mod derived;
mod directory;
mod erasures;
mod error;
mod jobs;
pub mod journal;
mod master_keys;
pub mod memory;
mod number;
mod outbox;
mod register;
pub mod row;
pub mod sqlite;

pub use archive::Archive;
pub use checkpoints::{Checkpoints, Signed};
pub use condition::{Condition, StoreState, Watchable};
pub use dead_letters::DeadLetters;
pub use directory::{Directory, ENDPOINTS_LISTED_MAX};
pub use erasures::{ERASURE_STEP_MAX, Erasures};
pub use error::StoreError;
pub use jobs::Jobs;
pub use journal::JournalRow;
pub use master_keys::{MasterKeys, Rotation};
pub use memory::{Memory, MemoryStore};
pub use outbox::Outbox;
pub use register::Register;
pub use row::{
    Acceptance, Accepted, Act, Arrival, Attempt, By, CollapseKey, Count, Counted, DeadLetter, DeadLetterCursor,
    DeadLetterFilter, DeadLetterPage, Deed, Details, EXCERPT_BYTES_MAX, Endpoint, EndpointStatus, EndpointTarget,
    FirstAnswer, HISTORY_LOOKED_MAX, HistoryFilter, HistoryOf, HistoryPage, Hour, Idempotency, KeyHash,
    LISTED_LOOKED_MAX, ListOrder, ListedMessage, Message, MessageFilter, MessagePage, Name, NamedPage, NewDelivery,
    Page, Pause, PauseScope, Pending, Query, Row, Session, Settled, Settlement, Shown, Start, Sweep, Swept, SweptRows,
    Tally, Token, Waiting, WebhookTarget,
};
pub use row::{Agreed, OwnRetention, RETENTION_STEP_MAX, Retained, Retention, RetentionPhase, RetentionStep};
pub use row::{
    Begun, Chunk, Chunked, FanOut, Job, JobCursor, JobKind, JobQuery, JobState, Lives, MadeBy, Missing, NewReplay,
    ReplayItem, ReplayPage, ReplayWhat, Replayable, Skip, Skips, Spread,
};
pub use row::{DisabledBy, EndpointPut, EndpointRate, EndpointTls, SecretAct, SigningSecret};
pub use row::{Document, DocumentKind, Filed, OPERATOR};
pub use row::{EndpointSelector, MatchedEndpoints};
pub use row::{Erase, Erasure, ErasureStep, ExportAsked, Whom};

/// Deliveries that an accept makes of one message at most: their ids are the next after its own. More
/// are made by a job, in chunks.
pub const DELIVERIES_MAX: u64 = 1_000;

/// Remembers messages, deliveries and what became of them: all that an engine needs.
///
/// The futures are cancel-safe to wait for, not to drop half-way: a call that has begun is
/// carried out whether or not its answer is awaited.
pub trait Store:
    Outbox + Directory + Register + Jobs + Archive + DeadLetters + Checkpoints + Erasures + MasterKeys + Watchable
{
}

impl<S: Outbox + Directory + Register + Jobs + Archive + DeadLetters + Checkpoints + Erasures + MasterKeys + Watchable>
    Store for S
{
}
