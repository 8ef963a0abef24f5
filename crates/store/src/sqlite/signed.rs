//! Checkpoints of the journal. (SQLite's checkpoints, copies of the log into the database, are in `log`.)
//!
//! Invariant: a checkpoint is kept only if its row is in the journal unchanged since it was signed.

use posthaste_core::Timestamp;
use posthaste_crypto::checkpoint::{Checkpoint, PublicKey};
use posthaste_crypto::digest::Digest;
use rusqlite::{Connection, Row};

use super::{Sqlite, Vault, get, journal, prepare};
use crate::{Checkpoints, JournalRow, Session, Signed, StoreError};

impl Checkpoints for Sqlite {
    fn public_key(&self) -> PublicKey {
        self.shared.vault.signer.public()
    }

    async fn sign(&self, session: Session, grown: u64, at: Timestamp) -> Result<Option<Signed>, StoreError> {
        let store = self.store_id();
        // Signed on a reader thread, so that writes do not wait for it.
        let made = self.read(move |conn, vault| make(conn, vault, store, grown, at)).await?;
        let Some((signed, hash)) = made else { return Ok(None) };
        let kept = signed.clone();
        let is_kept = self.work(session, 1, move |conn| keep(conn, &kept, &hash)).await?;
        Ok(is_kept.then_some(signed))
    }

    async fn last_checkpoint(&self) -> Result<Option<Signed>, StoreError> {
        self.readers.read(newest).await
    }

    async fn checkpoints(&self, after: u64, limit: u32) -> Result<Vec<Signed>, StoreError> {
        self.readers.read(move |conn| read(conn, after, limit)).await
    }
}

/// Signs a line for the last row, if the journal has grown by `grown` rows; returns it with that row's hash.
fn make(
    conn: &Connection,
    vault: &Vault,
    store: [u8; 16],
    grown: u64,
    at: Timestamp,
) -> Result<Option<(Signed, Digest)>, StoreError> {
    let Some(last) = journal::last(conn)? else { return Ok(None) };
    let before = newest(conn)?.map_or(0, |signed| signed.row);
    if last.number < before.saturating_add(grown.max(1)) {
        return Ok(None);
    }
    let checkpoint = Checkpoint { store, row: last.number, chain: last.hash(), at_ms: at.as_millis() };
    Ok(Some((Signed { row: last.number, line: vault.signer.sign(&checkpoint) }, checkpoint.chain)))
}

/// Keeps a line if its row still exists; retention may have deleted it meanwhile.
fn keep(conn: &Connection, signed: &Signed, hash: &Digest) -> Result<bool, StoreError> {
    let there = journal::read(conn, signed.row - 1, 1)?.into_iter().find(|row| row.number == signed.row);
    match there.as_ref().map(JournalRow::hash) {
        None => return Ok(false),
        Some(there) if there != *hash => {
            let found = format!("another row {} than the one that was signed", signed.row);
            return Err(StoreError::Damaged { what: "the journal", found });
        }
        Some(_) => {}
    }
    let sql = "INSERT INTO checkpoint (row, line) VALUES (?1, ?2) ON CONFLICT (row) DO NOTHING";
    prepare(conn, "keep a checkpoint", sql)?.execute((signed.row.cast_signed(), &signed.line))?;
    Ok(true)
}

pub(super) fn newest(conn: &Connection) -> Result<Option<Signed>, StoreError> {
    let sql = "SELECT row, line FROM checkpoint ORDER BY row DESC LIMIT 1";
    prepare(conn, "read the last checkpoint", sql)?.read([], stored)
}

fn read(conn: &Connection, after: u64, limit: u32) -> Result<Vec<Signed>, StoreError> {
    let sql = "SELECT row, line FROM checkpoint WHERE row > ?1 ORDER BY row LIMIT ?2";
    prepare(conn, "read checkpoints", sql)?.read_all((i64::try_from(after).unwrap_or(i64::MAX), limit), stored)
}

fn stored(row: &Row<'_>) -> Result<Signed, StoreError> {
    Ok(Signed { row: get::<i64>(row, 0)?.cast_unsigned(), line: get(row, 1)? })
}
