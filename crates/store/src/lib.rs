//! Durable storage of messages, deliveries and everything the engine must remember.
//!
//! [`Store`] is the contract between the engine and its storage; [`MemoryState`] and [`sqlite::Sqlite`] implement it.
//! It is composed of small traits, one per kind of caller:
//!
//! | trait | used by |
//! |---|---|
//! | [`Outbox`] | the accept path and the dispatch loop |
//! | [`Directory`] | code that finds or changes the endpoints a message goes to |
//! | [`Register`] | the API for tenants, API keys and retry policies |
//! | [`Jobs`] | the tasks that carry out large fan-outs and replays |
//! | [`Archive`] | the API for messages, deliveries and counts; the retention task |
//! | [`DeadLetters`] | the API for dead letters |
//! | [`Checkpoints`] | the task that signs checkpoints of the journal |
//! | [`Erasures`] | erasure of subjects and tenants, and data export |
//! | [`MasterKeys`] | rotation of the master key |
//! | [`Watchable`] | metrics and readiness checks |
//!
//! Every call is one transaction, except for the count in [`Outbox::cut`]. A call that changes a delivery carries
//! the session's epoch and the number of attempts the caller has counted. If the caller no longer owns the delivery,
//! the call reports that and only adds the attempt to the history.
//!
//! Read [`row`] for the stored records, then [`memory`] for the simplest implementation of the contract.

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
pub use memory::{MemoryState, MemoryStore};
pub use outbox::Outbox;
pub use register::Register;
pub use row::*;

/// Maximum number of deliveries that one accept creates for a message; their ids directly follow the message's id. A
/// message with more recipients gets its deliveries from a job, in chunks.
pub const DELIVERIES_MAX: u64 = 1_000;

/// The result of a call to the store, once it is there.
pub trait StoreFuture<T>: Future<Output = Result<T, StoreError>> + Send {}

impl<T, F: Future<Output = Result<T, StoreError>> + Send> StoreFuture<T> for F {}

/// The full storage contract that an engine needs.
///
/// Dropping a future does not cancel its call: a call that has begun is carried out, and only its result is lost.
pub trait Store:
    Outbox + Directory + Register + Jobs + Archive + DeadLetters + Checkpoints + Erasures + MasterKeys + Watchable
{
}

impl<S: Outbox + Directory + Register + Jobs + Archive + DeadLetters + Checkpoints + Erasures + MasterKeys + Watchable>
    Store for S
{
}
