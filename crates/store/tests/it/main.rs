//! Integration tests of the SQLite store and its data folder. The contract of all stores is tested in the crate itself:
//! see `conformance`.

mod audit;
mod erasure;
mod folder;
mod refused;
mod retention;
mod rotation;
mod tamper;

use std::path::Path;
use std::time::Duration;

use posthaste_core::{Cause, Delivery, DeliveryChange, RowIndex, Shard, State, Timestamp};
use posthaste_crypto::master::{MasterKey, Masters};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, AttemptRecord, Outbox, Retention, RetentionStep, Session, Settlement};
use tempfile::TempDir;

const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn day(day: u32) -> Timestamp {
    NOW + day * DAY
}

fn new_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// The same key each time, so that a test can open a folder again.
fn master_key() -> Masters {
    Masters::new(MasterKey::parse("eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=").expect("32 random bytes"))
}

fn open(folder: &Path) -> Sqlite {
    Sqlite::open_folder(folder, master_key()).expect("the folder opens")
}

/// Opens the store in a folder and begins a session.
async fn opened(folder: &Path) -> (Sqlite, Session) {
    let store = open(folder);
    let session = store.open(NOW).await.expect("a session begins").session;
    (store, session)
}

/// The settlement that ends a delivery in `state` with its first attempt.
fn ended(session: Session, delivery: &Delivery, state: State, at: Timestamp) -> Settlement {
    let (shard, took) = (Shard::of(delivery.lane), Duration::from_millis(12));
    Settlement {
        record: DeliveryChange {
            delivery: Delivery { state, attempts: 1, ..delivery.clone() },
            attempts_before: 0,
            place: RowIndex::Delayed,
            shard,
            pauses_lane: false,
            endpoint_change: None,
        },
        epoch: session.epoch,
        excerpt: None,
        attempt: Some(AttemptRecord { number: 1, at, took, cause: Cause::Ok, status: Some(200) }),
    }
}

/// Runs retention from a step on; returns the number of rows removed, and of steps.
async fn retain(
    store: &impl Archive,
    session: Session,
    retention: Retention,
    from: RetentionStep,
    now: Timestamp,
) -> (u64, u32) {
    let (mut removed, mut steps, mut next) = (0, 0, Some(from));
    while let Some(step) = next {
        let retained = store.retain(session, retention, now, step, Vec::new()).await.expect("a step of retention");
        (removed, steps, next) = (removed + retained.removed, steps + 1, retained.next);
    }
    (removed, steps)
}
