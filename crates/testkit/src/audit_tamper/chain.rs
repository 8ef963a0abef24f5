//! A journal in an attacker's hands: read from the file, made anew, written back.

use std::path::Path;

use bytes::Bytes;
use posthaste_core::time::Timestamp;
use posthaste_store::JournalRow;
use posthaste_store::journal::{Entries, Entry, Head};
use rusqlite::{Connection, Row};

use super::world::FILE;
use crate::prove::CannotRun;

impl From<rusqlite::Error> for CannotRun {
    fn from(error: rusqlite::Error) -> Self {
        Self(format!("the file refused: {error}"))
    }
}

/// The file, without anybody who checks what is done to it.
pub(super) fn open(folder: &Path) -> Result<Connection, CannotRun> {
    let conn = Connection::open(folder.join(FILE))?;
    conn.execute_batch("PRAGMA ignore_check_constraints = ON; PRAGMA synchronous = OFF;")?;
    Ok(conn)
}

/// What the rows tell, from the first on.
pub(super) type Told = Vec<Vec<Entry>>;

/// The whole journal.
pub(super) fn read(conn: &Connection) -> Result<Vec<JournalRow>, CannotRun> {
    let mut sql = conn.prepare("SELECT number, at_ms, packed, root, before FROM journal ORDER BY number")?;
    let rows = sql.query_map([], stored)?.collect::<Result<_, _>>()?;
    Ok(rows)
}

fn stored(row: &Row<'_>) -> rusqlite::Result<JournalRow> {
    Ok(JournalRow {
        number: row.get::<_, i64>(0)?.cast_unsigned(),
        at: Timestamp::from_millis(row.get(1)?),
        packed: Bytes::from(row.get::<_, Vec<u8>>(2)?),
        root: row.get(3)?,
        before: row.get(4)?,
    })
}

/// What each row tells.
pub(super) fn told(rows: &[JournalRow]) -> Result<Told, CannotRun> {
    rows.iter().map(|row| Ok(row.entries().collect::<Result<_, _>>()?)).collect()
}

/// Rows that tell this, with roots, hashes and links as they should be.
pub(super) fn made(told: &Told) -> Vec<JournalRow> {
    let mut head = Head::default();
    let mut rows = Vec::with_capacity(told.len());
    for tells in told {
        let row = next(&head, tells);
        head = Head::behind(&row);
        rows.push(row);
    }
    rows
}

/// One more row behind the end.
pub(super) fn next(head: &Head, tells: &[Entry]) -> JournalRow {
    let mut entries = Entries::default();
    tells.iter().for_each(|entry| entries.push(entry));
    head.next(&entries)
}

/// Puts this journal in the place of the one that is there.
pub(super) fn replace(conn: &Connection, rows: &[JournalRow]) -> Result<(), CannotRun> {
    conn.execute_batch("BEGIN; DELETE FROM journal;")?;
    rows.iter().try_for_each(|row| append(conn, row))?;
    conn.execute_batch("COMMIT")?;
    Ok(())
}

/// Adds a row.
pub(super) fn append(conn: &Connection, row: &JournalRow) -> Result<(), CannotRun> {
    conn.execute(
        "INSERT INTO journal (number, at_ms, packed, root, before) VALUES (?1, ?2, ?3, ?4, ?5)",
        (row.number.cast_signed(), row.at.as_millis(), &*row.packed, row.root, row.before),
    )?;
    Ok(())
}
