//! How the attacker reads the journal from the file, rebuilds it, and writes it back.

use std::path::Path;

use bytes::Bytes;
use posthaste_core::Timestamp;
use posthaste_store::JournalRow;
use posthaste_store::journal::{Entries, Head, JournalEntry};
use rusqlite::{Connection, Row};

use super::world::FILE;
use crate::prove::CannotRun;

/// Opens the database without check constraints and without syncs.
pub(super) fn open(folder: &Path) -> Result<Connection, CannotRun> {
    let conn = Connection::open(folder.join(FILE))?;
    conn.execute_batch("PRAGMA ignore_check_constraints = ON; PRAGMA synchronous = OFF;")?;
    Ok(conn)
}

/// The entries of each journal row, from the first row on.
pub(super) type JournalEntries = Vec<Vec<JournalEntry>>;

/// Reads the whole journal.
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

pub(super) fn decode(rows: &[JournalRow]) -> Result<JournalEntries, CannotRun> {
    rows.iter().map(|row| Ok(row.entries().collect::<Result<_, _>>()?)).collect()
}

/// Rows with these entries, and with consistent roots, hashes and links.
pub(super) fn made(entries: &JournalEntries) -> Vec<JournalRow> {
    let mut head = Head::default();
    let mut rows = Vec::with_capacity(entries.len());
    for of_row in entries {
        let row = next(&head, of_row);
        head = Head::behind(&row);
        rows.push(row);
    }
    rows
}

/// The row with these entries that follows `head`.
pub(super) fn next(head: &Head, entries: &[JournalEntry]) -> JournalRow {
    let mut packed = Entries::default();
    entries.iter().for_each(|entry| packed.push(entry));
    head.next(&packed)
}

/// Replaces the journal in the file by this one.
pub(super) fn replace(conn: &Connection, rows: &[JournalRow]) -> Result<(), CannotRun> {
    conn.execute_batch("BEGIN; DELETE FROM journal;")?;
    rows.iter().try_for_each(|row| append(conn, row))?;
    conn.execute_batch("COMMIT")?;
    Ok(())
}

pub(super) fn append(conn: &Connection, row: &JournalRow) -> Result<(), CannotRun> {
    conn.execute(
        "INSERT INTO journal (number, at_ms, packed, root, before) VALUES (?1, ?2, ?3, ?4, ?5)",
        (row.number.cast_signed(), row.at.as_millis(), &*row.packed, row.root, row.before),
    )?;
    Ok(())
}
