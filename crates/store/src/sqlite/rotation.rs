//! The master keys in use, and their rotation while the store serves.
//!
//! Keys wrapped by a master key are in one of two tables. A rotation directs new writes to the other table, moves the
//! rows there in small steps, wrapped by the newer key, clears the old table, empties the log, and only then removes
//! the older key from the list of master keys that the store needs (`key_check` in `meta`).
//!
//! Invariants: a master key wraps only once it is in that list; it stays in the list for as long as any byte that it
//! has wrapped is in the database or its log.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use posthaste_core::{TenantId, Timestamp};
use posthaste_crypto::keyring::{KeyId, MasterWrapped, WRAPPED_BYTES};
use posthaste_crypto::master::{KeyCheck, MasterKey, MasterKeyId, Masters};
use posthaste_crypto::seal_context::SealOwner;
use rusqlite::Connection;

use super::vault::{STORE_KEY, damaged, damaged_because, expected, meta};
use super::{Sqlite, Vault, audit, failed, get, prepare, stored_key};
use crate::journal::{Entries, JournalEntry};
use crate::{ApiKeyRef, MasterKeys, Rotation, Session, StoreError};

/// Keys wrapped again by one step. Each takes some microseconds, and other writes wait meanwhile.
const STEP_KEYS: u32 = 128;

/// One of the two tables of wrapped keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Zero,
    One,
}

impl Side {
    const fn table(self) -> &'static str {
        match self {
            Self::Zero => "master_wrapped_0",
            Self::One => "master_wrapped_1",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
        }
    }
}

pub(super) fn side(conn: &Connection) -> Result<Side, StoreError> {
    match expected::<u8>(conn, "wrapped_in")? {
        0 => Ok(Side::Zero),
        1 => Ok(Side::One),
        _ => Err(damaged("wrapped_in")),
    }
}

/// The master keys that the store needs, newest first; none before it has any.
pub(super) fn checks(conn: &Connection) -> Result<Vec<KeyCheck>, StoreError> {
    let stored: Vec<u8> = meta(conn, "key_check")?.unwrap_or_default();
    let (whole, rest) = stored.as_chunks();
    if rest.is_empty() {
        Ok(whole.iter().copied().map(KeyCheck::from_bytes).collect())
    } else {
        Err(damaged("the list of needed master keys"))
    }
}

pub(super) fn put(conn: &Connection, side: Side, id: KeyId, wrapped: &[u8; WRAPPED_BYTES]) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO {} (id, wrapped) VALUES (?1, ?2)", side.table());
    conn.prepare_cached(&sql)?.execute((id.0, wrapped)).map(drop)
}

pub(super) fn wrapped(conn: &Connection, id: KeyId) -> Result<Option<MasterWrapped>, StoreError> {
    let sql = "SELECT wrapped FROM master_wrapped_0 WHERE id = ?1 UNION ALL
               SELECT wrapped FROM master_wrapped_1 WHERE id = ?1";
    Ok(prepare(conn, "read a wrapped key", sql)?.find([id.0])?.map(MasterWrapped::from_bytes))
}

fn put_checks(conn: &Connection, checks: &[KeyCheck]) -> rusqlite::Result<usize> {
    let bytes: Vec<u8> = checks.iter().flat_map(|check| check.to_bytes()).collect();
    conn.execute("UPDATE meta SET value = ?1 WHERE key = 'key_check'", [bytes])
}

/// The master keys in memory, and the table that wrapped keys are written to.
pub(super) struct InUse {
    pub(super) masters: Masters,
    /// A newer key that was offered, and does not wrap yet.
    pub(super) newer: Option<MasterKey>,
    pub(super) newer_by: Option<ApiKeyRef>,
    pub(super) side: Side,
}

impl InUse {
    /// Begins to wrap with the newer key, which must be in the list of needed keys on the disk.
    fn adopt(&mut self) {
        if let Some(newer) = self.newer.take() {
            self.masters.rotate_to(newer);
            self.side = self.side.other();
        }
    }
}

impl MasterKeys for Sqlite {
    fn offer(&self, newer: MasterKey, by: Option<ApiKeyRef>) {
        let mut in_use = self.shared.vault.in_use.write().unwrap_or_else(PoisonError::into_inner);
        // A second offer does not replace the first, whose key may be in the list already.
        if in_use.newer.is_none() && in_use.masters.iter().all(|key| key.id() != newer.id()) {
            (in_use.newer, in_use.newer_by) = (Some(newer), by);
        }
    }

    async fn rotate(&self, session: Session, at: Timestamp) -> Result<Rotation, StoreError> {
        let now = self.rotation().await?;
        let vault = Arc::clone(&self.shared.vault);
        if now.left > 0 {
            self.noted_work(session, STEP_KEYS as usize, move |conn, _| move_some(conn, &vault)).await?;
        } else if !now.older.is_empty() {
            let emptied = Arc::clone(&vault);
            self.noted_work(session, 1, move |conn, _| clear(conn, &emptied)).await?;
            if self.empty_log().await? {
                let end = move |conn: &Connection, entries: &mut Entries| end(conn, entries, at);
                self.noted_work(session, 1, end).await?;
                vault.in_use.write().unwrap_or_else(PoisonError::into_inner).masters.forget_older();
            }
        } else if now.offered.is_some() {
            let offered = Arc::clone(&vault);
            let begin = move |conn: &Connection, entries: &mut Entries| begin(conn, &offered, entries, at);
            self.noted_work(session, 1, begin).await?;
        }
        self.rotation().await
    }

    async fn rotation(&self) -> Result<Rotation, StoreError> {
        let (shown, side) = self.readers.read(|conn| Ok((read(conn)?, side(conn)?))).await?;
        let mut in_use = self.shared.vault.in_use.write().unwrap_or_else(PoisonError::into_inner);
        // Adopted here, where the list is read from the disk: the caller of the first step may have hung up before its
        // commit.
        if in_use.side != side {
            in_use.adopt();
        }
        Ok(Rotation { offered: in_use.newer.as_ref().map(MasterKey::id), ..shown })
    }
}

/// The progress of the rotation in a data folder, which another process may have open.
pub fn status(folder: &Path) -> Result<Rotation, StoreError> {
    let conn = audit::open(folder)?;
    conn.execute_batch("BEGIN").map_err(failed("read the list of needed master keys"))?;
    read(&conn)
}

fn read(conn: &Connection) -> Result<Rotation, StoreError> {
    let mut needed = checks(conn)?.into_iter().map(|check| check.id());
    let newest = needed.next().ok_or_else(|| damaged("the list of needed master keys"))?;
    let older: Vec<MasterKeyId> = needed.collect();
    let left = if older.is_empty() {
        0
    } else {
        let sql = format!("SELECT count(*) FROM {}", side(conn)?.other().table());
        prepare(conn, "count the keys that are left", &sql)?.value::<u32>([])?
    };
    Ok(Rotation { newest, older, offered: None, rewrapped: rewrapped(conn)?, left: left.into() })
}

/// The number of keys that the rotation under way, or the last one, has wrapped again.
fn rewrapped(conn: &Connection) -> Result<u64, StoreError> {
    expected::<u32>(conn, "rewrapped").map(u64::from)
}

/// Adds the newer key to the list of needed keys; from the next commit on it wraps.
fn begin(conn: &Connection, vault: &Vault, entries: &mut Entries, at: Timestamp) -> Result<(), StoreError> {
    let in_use = vault.in_use.read().unwrap_or_else(PoisonError::into_inner);
    let mut needed = checks(conn)?;
    let Some(newer) = in_use.newer.as_ref().filter(|_| needed.len() == 1) else { return Ok(()) };
    needed.insert(0, newer.check());
    put_checks(conn, &needed)
        .and_then(|_| {
            conn.execute(
                "UPDATE meta SET value = iif(key = 'rewrapped', 0, ?1) WHERE key IN ('rewrapped', 'wrapped_in')",
                [in_use.side.other().number()],
            )
        })
        .map_err(failed("begin a rotation"))?;
    entries.push(&JournalEntry::RotationBegun { to: newer.id(), at, by: in_use.newer_by });
    Ok(())
}

/// Wraps some of the remaining keys with the newest master key.
fn move_some(conn: &Connection, vault: &Vault) -> Result<(), StoreError> {
    let in_use = vault.in_use.read().unwrap_or_else(PoisonError::into_inner);
    let from = in_use.side.other().table();
    let doing = failed("wrap keys again");
    let some = wrapped_in(conn, from)?;
    for (id, whose, wrapped) in &some {
        let why = |why| damaged_because("a wrapped key", &format!("number {id}: {why}"));
        // `None`: wrapped by the newest master key already, and written here before that key was adopted.
        let anew = in_use.masters.rewrap(*whose, *id, wrapped).map_err(why)?.unwrap_or(*wrapped);
        put(conn, in_use.side, *id, anew.as_bytes()).map_err(&doing)?;
    }
    // Rows without a data key are left: clearing the whole table deletes them.
    let Some((last, ..)) = some.last() else { return clear(conn, vault) };
    let count = u32::try_from(some.len()).unwrap_or(STEP_KEYS);
    overwriting(conn, || {
        conn.execute(&format!("DELETE FROM {from} WHERE id <= ?1"), [last.0])?;
        conn.execute("UPDATE meta SET value = value + ?1 WHERE key = 'rewrapped'", [count])
    })
    .map_err(&doing)
}

fn wrapped_in(conn: &Connection, table: &str) -> Result<Vec<(KeyId, SealOwner, MasterWrapped)>, StoreError> {
    let doing = "read wrapped keys";
    let sql = format!(
        "SELECT w.id, w.wrapped, k.tenant FROM {table} w JOIN data_key k ON k.id = w.id ORDER BY w.id LIMIT ?1"
    );
    prepare(conn, doing, &sql)?.read_all([STEP_KEYS], |row| {
        let id = KeyId(get(row, 0)?);
        let wrapped: [u8; WRAPPED_BYTES] = row.get(1).map_err(failed(doing))?;
        let whose = match id {
            STORE_KEY => SealOwner::Store,
            _ => SealOwner::Tenant(TenantId(stored_key(get(row, 2)?)?).raw()),
        };
        Ok((id, whose, MasterWrapped::from_bytes(wrapped)))
    })
}

/// Clears the old table as a whole, since unused space of its pages may hold old bytes.
fn clear(conn: &Connection, vault: &Vault) -> Result<(), StoreError> {
    let from = vault.in_use.read().unwrap_or_else(PoisonError::into_inner).side.other().table();
    overwriting(conn, || conn.execute(&format!("DELETE FROM {from}"), [])).map_err(failed("clear wrapped keys"))
}

/// Removes the older keys from the list of needed keys.
fn end(conn: &Connection, entries: &mut Entries, at: Timestamp) -> Result<(), StoreError> {
    let needed = checks(conn)?;
    let Some(newest) = needed.first().filter(|_| needed.len() > 1) else { return Ok(()) };
    put_checks(conn, &[*newest]).map_err(failed("end a rotation"))?;
    entries.push(&JournalEntry::RotationEnded { to: newest.id(), rewrapped: rewrapped(conn)?, at });
    Ok(())
}

/// Runs a function while SQLite overwrites deleted bytes with zeros.
fn overwriting<T>(conn: &Connection, run: impl FnOnce() -> rusqlite::Result<T>) -> rusqlite::Result<()> {
    let set = |how: &str| conn.query_row(&format!("PRAGMA secure_delete = {how}"), [], |_| Ok(()));
    let before = match conn.query_row("PRAGMA secure_delete", [], |row| row.get::<_, i64>(0))? {
        0 => "OFF",
        1 => "ON",
        _ => "FAST",
    };
    set("ON")?;
    let done = run();
    set(before)?;
    done.map(drop)
}
