//! The master keys in use, and how one takes the place of another while everything else goes on.
//!
//! What a master key wraps is in one of two tables. A rotation makes the other the one that is written to, moves
//! the rows over in small steps, wrapped by the newer key, clears the table that is empty then, empties the
//! log, and only then says that the older key is not needed.
//!
//! Invariants: a key wraps only once the store says that it needs it; it says so for as long as any byte that an
//! older key has wrapped is in the database or its log.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use posthaste_core::id::TenantId;
use posthaste_core::time::Timestamp;
use posthaste_crypto::keyring::{KeyId, MasterWrapped, WRAPPED_BYTES};
use posthaste_crypto::master::{KeyCheck, MasterKey, MasterKeyId, Masters};
use posthaste_crypto::spot::Whose;
use rusqlite::{Connection, OptionalExtension};

use super::column::{get, stored_key};
use super::vault::{STORE_KEY, Vault, damaged, damaged_because, expected, meta};
use super::{Sqlite, audit, failed};
use crate::journal::{Entries, Entry};
use crate::row::{By, Session};
use crate::{MasterKeys, Rotation, StoreError};

/// Keys wrapped anew by one step: everybody waits for the writer, and each takes some microseconds.
const STEP_KEYS: u32 = 128;

/// Which of the two tables.
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

/// The table that the store writes to.
pub(super) fn side(conn: &Connection) -> Result<Side, StoreError> {
    match expected::<u8>(conn, "wrapped_in")? {
        0 => Ok(Side::Zero),
        1 => Ok(Side::One),
        _ => Err(damaged("where wrapped keys are")),
    }
}

/// The master keys that the store needs, newest first; none before it has any.
pub(super) fn checks(conn: &Connection) -> Result<Vec<KeyCheck>, StoreError> {
    let stored: Vec<u8> = meta(conn, "key_check")?.unwrap_or_default();
    let (whole, rest) = stored.as_chunks();
    if rest.is_empty() {
        Ok(whole.iter().copied().map(KeyCheck::from_bytes).collect())
    } else {
        Err(damaged("which master keys are needed"))
    }
}

/// Writes a wrapped key down.
pub(super) fn put(conn: &Connection, side: Side, id: KeyId, wrapped: &[u8; WRAPPED_BYTES]) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO {} (id, wrapped) VALUES (?1, ?2)", side.table());
    conn.prepare_cached(&sql)?.execute((id.0, wrapped)).map(drop)
}

/// A key as a master key has wrapped it.
pub(super) fn wrapped(conn: &Connection, id: KeyId) -> Result<Option<MasterWrapped>, StoreError> {
    let sql = "SELECT wrapped FROM master_wrapped_0 WHERE id = ?1 UNION ALL
               SELECT wrapped FROM master_wrapped_1 WHERE id = ?1";
    let wrapped = conn.query_row(sql, [id.0], |row| row.get(0)).optional().map_err(failed("read a wrapped key"))?;
    Ok(wrapped.map(MasterWrapped::from_bytes))
}

fn put_checks(conn: &Connection, checks: &[KeyCheck]) -> rusqlite::Result<usize> {
    let bytes: Vec<u8> = checks.iter().flat_map(|check| check.to_bytes()).collect();
    conn.execute("UPDATE meta SET value = ?1 WHERE key = 'key_check'", [bytes])
}

/// What wraps, and where that is written.
pub(super) struct InUse {
    pub(super) masters: Masters,
    /// Offered, and not needed by the store yet.
    pub(super) newer: Option<MasterKey>,
    /// Who wants it.
    pub(super) newer_by: Option<By>,
    pub(super) side: Side,
}

impl InUse {
    /// Wraps by the newer key from now on, which the store says that it needs.
    fn adopt(&mut self) {
        if let Some(newer) = self.newer.take() {
            self.masters.rotate_to(newer);
            self.side = self.side.other();
        }
    }
}

impl MasterKeys for Sqlite {
    fn offer(&self, newer: MasterKey, by: Option<By>) {
        let mut in_use = self.shared.vault.in_use.write().unwrap_or_else(PoisonError::into_inner);
        // The first one stands: it may be needed already.
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
        // Only now, when it is on the disk: who asked for the first step may not have waited for its end.
        if in_use.side != side {
            in_use.adopt();
        }
        Ok(Rotation { offered: in_use.newer.as_ref().map(MasterKey::id), ..shown })
    }
}

/// How far the rotation in a data folder is, read beside whoever has it open.
pub fn status(folder: &Path) -> Result<Rotation, StoreError> {
    let conn = audit::open(folder)?;
    conn.execute_batch("BEGIN").map_err(failed("read which master keys are needed"))?;
    read(&conn)
}

/// How far the rotation in a database is.
fn read(conn: &Connection) -> Result<Rotation, StoreError> {
    let mut needed = checks(conn)?.into_iter().map(|check| check.id());
    let newest = needed.next().ok_or_else(|| damaged("which master key is needed"))?;
    let older: Vec<MasterKeyId> = needed.collect();
    let left = if older.is_empty() {
        0
    } else {
        conn.query_row(&format!("SELECT count(*) FROM {}", side(conn)?.other().table()), [], |row| row.get::<_, u32>(0))
            .map_err(failed("count the keys that are left"))?
    };
    Ok(Rotation { newest, older, offered: None, rewrapped: rewrapped(conn)?, left: left.into() })
}

/// Keys that the rotation under way, or the last one, has wrapped anew.
fn rewrapped(conn: &Connection) -> Result<u64, StoreError> {
    expected::<u32>(conn, "rewrapped").map(u64::from)
}

/// Says that the newer key is needed, too; from the next commit on it wraps.
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
    entries.push(&Entry::RotationBegun { to: newer.id(), at, by: in_use.newer_by });
    Ok(())
}

/// Wraps some of what is left anew.
fn move_some(conn: &Connection, vault: &Vault) -> Result<(), StoreError> {
    let in_use = vault.in_use.read().unwrap_or_else(PoisonError::into_inner);
    let from = in_use.side.other().table();
    let doing = failed("wrap keys anew");
    let some = wrapped_in(conn, from)?;
    for (id, whose, wrapped) in &some {
        let why = |why| damaged_because("a wrapped key", &format!("number {id}: {why}"));
        // One that the newest wraps came here before it was known to be needed.
        let anew = in_use.masters.rewrap(*whose, *id, wrapped).map_err(why)?.unwrap_or(*wrapped);
        put(conn, in_use.side, *id, anew.as_bytes()).map_err(&doing)?;
    }
    // Those that are nobody's any more go with the table.
    let Some((last, ..)) = some.last() else { return clear(conn, vault) };
    let count = u32::try_from(some.len()).unwrap_or(STEP_KEYS);
    overwriting(conn, || {
        conn.execute(&format!("DELETE FROM {from} WHERE id <= ?1"), [last.0])?;
        conn.execute("UPDATE meta SET value = value + ?1 WHERE key = 'rewrapped'", [count])
    })
    .map_err(&doing)
}

/// The first keys in a table, and whose they are.
fn wrapped_in(conn: &Connection, table: &str) -> Result<Vec<(KeyId, Whose, MasterWrapped)>, StoreError> {
    let doing = failed("read wrapped keys");
    let mut sql = conn
        .prepare_cached(&format!(
            "SELECT w.id, w.wrapped, k.tenant FROM {table} w JOIN data_key k ON k.id = w.id ORDER BY w.id LIMIT ?1"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query([STEP_KEYS]).map_err(&doing)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        let id = KeyId(get(row, 0)?);
        let wrapped: [u8; WRAPPED_BYTES] = row.get(1).map_err(&doing)?;
        let whose =
            if id == STORE_KEY { Whose::Store } else { Whose::Tenant(TenantId(stored_key(get(row, 2)?)?).raw()) };
        found.push((id, whose, MasterWrapped::from_bytes(wrapped)));
    }
    Ok(found)
}

/// Clears the table that everything was moved from, as a whole: its pages keep old bytes in their gaps.
fn clear(conn: &Connection, vault: &Vault) -> Result<(), StoreError> {
    let from = vault.in_use.read().unwrap_or_else(PoisonError::into_inner).side.other().table();
    overwriting(conn, || conn.execute(&format!("DELETE FROM {from}"), [])).map_err(failed("clear wrapped keys"))
}

/// Says that the older keys are not needed any more.
fn end(conn: &Connection, entries: &mut Entries, at: Timestamp) -> Result<(), StoreError> {
    let needed = checks(conn)?;
    let Some(newest) = needed.first().filter(|_| needed.len() > 1) else { return Ok(()) };
    put_checks(conn, &[*newest]).map_err(failed("end a rotation"))?;
    entries.push(&Entry::RotationEnded { to: newest.id(), rewrapped: rewrapped(conn)?, at });
    Ok(())
}

/// Has zeros written over whatever is deleted meanwhile.
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
