//! A small store with every kind of row that an audit reads, with checkpoints as a server would sign them.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Cause, Delivery, RowIndex, State, TenantId, Timestamp};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::sqlite::audit::Trust;
use posthaste_store::{
    Archive, AttemptRecord, AuditStamp, Checkpoints, ErasureTarget, Outbox, PauseScope, Retention, RetentionOverride,
    RetentionOverrides, RetentionStep, Session, StoreError,
};

use crate::fixtures::{MessageMint, put_endpoints, settlement, shelf};
use crate::master_key;
use crate::prove::CannotRun;

/// The database file: the only file that the attacker has.
pub(super) const FILE: &str = "posthaste.db";

/// When the store's history begins; [`MessageMint`] uses the same time for the messages that it accepts.
const THEN: Timestamp = Timestamp::from_millis(1_760_000_000_000);
const MESSAGES: i64 = 90;
/// The time between two messages.
const EVERY_MS: i64 = 30_000;
/// A checkpoint is signed after this many messages: once a minute, as a server does.
const SIGNED_EVERY: i64 = 2;
/// The checkpoint signed after this message is the exported one.
const EXPORTED: i64 = 55;
const LANES: u64 = 5;

/// The subject of half of the messages of each tenant.
const SUBJECT: &str = "subject-1";
/// The tenant whose subject is erased, and which is then erased itself.
pub(super) const TENANT: TenantId = TenantId::from_raw(1);

/// Tenants with a retention of their own: shorter than the default, longer, and mixed.
pub(super) fn own_retention() -> Vec<(TenantId, RetentionOverride)> {
    let days = |days: u32| Some(days * Duration::from_secs(24 * 60 * 60));
    let own = [(1, 2, 30), (2, 40, 300), (3, 1, 1)];
    let own = own.map(|(tenant, payload, history)| {
        (TenantId::from_raw(tenant), RetentionOverride { payload: days(payload), history: days(history) })
    });
    own.to_vec()
}

pub(super) fn subject() -> ErasureTarget {
    ErasureTarget::Subject(SUBJECT.to_owned())
}

/// Opens a copy and begins a session at `at`.
pub(super) async fn open(folder: &Path, at: Timestamp) -> Result<(Sqlite, Session), CannotRun> {
    let store = Sqlite::open_folder(folder, master_key())?;
    let session = store.open(at).await?.session;
    Ok((store, session))
}

/// The folder of the closed store, and the checkpoint that was exported from it.
pub(super) struct AuditWorld {
    pub(super) folder: tempfile::TempDir,
    pub(super) exported: String,
}

impl AuditWorld {
    /// Makes the store. Its messages are delivered at once, delivered after a failed attempt, dead, or settled twice.
    pub(super) async fn make() -> Result<Self, CannotRun> {
        let folder = tempfile::Builder::new().prefix("audit-").tempdir_in(shelf()?)?;
        let store = Sqlite::open_folder(folder.path(), master_key())?;
        let mut session = store.open(THEN).await?.session;
        let mut mint = MessageMint::new(session, 0..LANES, RowIndex::Ready);
        let mut exported = String::new();
        for number in 0..MESSAGES {
            let at = Timestamp::from_millis(THEN.as_millis() + number * EVERY_MS);
            if number == MESSAGES / 3 {
                session = store.open(at).await?.session;
                mint = MessageMint::new(session, 0..LANES, RowIndex::Ready);
            }
            add_message(&store, session, &mint, number, at).await?;
            if number % SIGNED_EVERY == 0 || number == EXPORTED {
                let signed = store.sign(session, 1, at).await?;
                if number <= EXPORTED {
                    exported = signed.map_or(exported, |signed| signed.line);
                }
            }
        }
        _ = store.sign(session, 1, THEN).await?;
        store.close().await;
        Ok(Self { folder, exported })
    }

    /// A time after the last message.
    pub(super) fn ended(&self) -> Timestamp {
        Timestamp::from_millis(THEN.as_millis() + (MESSAGES + 1) * EVERY_MS)
    }

    /// What the verifier trusts: the exported checkpoint.
    pub(super) fn trust(&self, now: Timestamp) -> Trust {
        Trust { checkpoints: vec![self.exported.clone()], ..Trust::without_checkpoints(now) }
    }

    /// Copies the database file, and nothing else, into a new folder.
    pub(super) fn copy(&self) -> Result<tempfile::TempDir, CannotRun> {
        let folder = tempfile::Builder::new().prefix("audit-copy-").tempdir_in(shelf()?)?;
        fs::copy(self.folder.path().join(FILE), folder.path().join(FILE))?;
        Ok(folder)
    }
}

async fn add_message(
    store: &Sqlite,
    session: Session,
    mint: &MessageMint,
    number: i64,
    at: Timestamp,
) -> Result<(), StoreError> {
    let mut accepted = mint.message();
    if number % 2 == 0 {
        Arc::make_mut(&mut accepted.message).subject = Some(SUBJECT.to_owned());
    }
    let new = accepted.deliveries[0].delivery.clone();
    _ = store.accept(session, vec![accepted]).await?;
    if number % 7 == 0 {
        store.resume(session, PauseScope::All, AuditStamp::at(at)).await?;
    }
    if number % 10 == 9 {
        // Stays pending.
        return Ok(());
    }
    let mut delivery = new;
    if number % 3 == 0 {
        let due = at + Duration::from_secs(5);
        delivery = settled(store, session, &delivery, State::Retry { due, cause: Cause::Unavailable }, at).await?;
    }
    let end = match number % 4 {
        0 => State::Dead { at, cause: Cause::NotFound },
        _ => State::Delivered { at },
    };
    delivery = settled(store, session, &delivery, end, at).await?;
    if number % 5 == 0 {
        // A second attempt is settled after the delivery has ended: the store records it as late.
        settled(store, session, &delivery, State::Delivered { at }, at).await?;
    }
    Ok(())
}

/// Settles one more attempt of a delivery with the given state.
async fn settled(
    store: &Sqlite,
    session: Session,
    before: &Delivery,
    state: State,
    at: Timestamp,
) -> Result<Delivery, StoreError> {
    let number = before.attempts + 1;
    let cause = if matches!(state, State::Delivered { .. }) { Cause::Ok } else { Cause::Unavailable };
    let attempt = AttemptRecord { number, at, took: Duration::from_millis(12), cause, status: Some(200 + number) };
    let settlement = settlement(session, before, state, attempt);
    let next = settlement.record.delivery.clone();
    _ = store.settle(session, vec![settlement]).await?;
    Ok(next)
}

/// A store on which a complete retention run was made.
pub(super) struct Retain {
    store: Sqlite,
    session: Session,
    now: Timestamp,
}

impl Retain {
    /// Runs retention with the default times, or with the tenants' own times if there are any.
    pub(super) async fn begin(folder: &Path, now: Timestamp, agreed: RetentionOverrides) -> Result<Self, CannotRun> {
        let (store, session) = open(folder, now).await?;
        store.catch_up().await?;
        if !agreed.own.is_empty() {
            // Retention finds a delivery's tenant through its endpoint.
            put_endpoints(&store, session, 0..LANES).await?;
            store.set_retention_overrides(session, agreed, now).await?;
            _ = store.sign(session, 1, now).await?;
        }
        let mut step = Some(RetentionStep::START);
        while let Some(next) = step {
            step = store.retain(session, Retention::default(), now, next, Vec::new()).await?.next;
        }
        Ok(Self { store, session, now })
    }

    pub(super) async fn sign(&self) -> Result<(), CannotRun> {
        _ = self.store.sign(self.session, 1, self.now).await?;
        Ok(())
    }

    pub(super) async fn end(self) {
        self.store.close().await;
    }
}
