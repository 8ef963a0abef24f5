//! The journal's table: each commit adds one row with the entries of its changes.
//!
//! Invariant: the end of the hash chain in memory is that of the last row that was committed.

use bytes::Bytes;
use posthaste_core::Timestamp;
use rusqlite::{Connection, Row, Statement};

use super::{failed, get, prepare};
use crate::journal::{Entries, Head};
use crate::{JournalRow, StoreError};

const COLUMNS: &str = "number, at_ms, packed, root, before";

pub(super) struct Journal<'c> {
    insert: Statement<'c>,
    head: Head,
    /// The row of the commit under way.
    next: Option<JournalRow>,
    /// The entries of the commit under way.
    pub(super) entries: Entries,
    pub(super) last: usize,
}

impl<'c> Journal<'c> {
    /// Continues the chain after the last row.
    pub(super) fn prepare(conn: &'c Connection) -> Result<Self, StoreError> {
        let doing = failed("prepare the journal");
        Ok(Self {
            insert: conn
                .prepare(&format!("INSERT INTO journal ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5)"))
                .map_err(&doing)?,
            head: last(conn)?.map_or_else(Head::default, |row| Head::behind(&row)),
            next: None,
            entries: Entries::default(),
            last: 0,
        })
    }

    /// Inserts the row of this commit, unless it has no entries.
    pub(super) fn write(&mut self) -> rusqlite::Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let row = self.head.next(&self.entries);
        self.insert.raw_bind_parameter(1, row.number.cast_signed())?;
        self.insert.raw_bind_parameter(2, row.at.as_millis())?;
        self.insert.raw_bind_parameter(3, &*row.packed)?;
        self.insert.raw_bind_parameter(4, row.root)?;
        self.insert.raw_bind_parameter(5, row.before)?;
        self.insert.raw_execute()?;
        self.next = Some(row);
        Ok(())
    }

    /// Notes that the commit is on the disk.
    pub(super) fn committed(&mut self) {
        self.last = self.entries.weight();
        if let Some(row) = self.next.take() {
            self.head = Head::behind(&row);
        }
        self.entries.clear();
    }

    pub(super) fn rolled_back(&mut self) {
        self.next = None;
        self.entries.clear();
    }
}

pub(super) fn last(conn: &Connection) -> Result<Option<JournalRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM journal ORDER BY number DESC LIMIT 1");
    prepare(conn, "read the end of the journal", &sql)?.read([], stored)
}

/// Whether [`each`] continues after a row.
#[derive(PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Stop,
}

/// Calls `read` for each row after number `after`, one at a time.
pub(super) fn each(
    conn: &Connection,
    after: u64,
    mut read: impl FnMut(&JournalRow) -> Result<Then, StoreError>,
) -> Result<(), StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM journal WHERE number > ?1 ORDER BY number");
    let mut sql = prepare(conn, "read the journal", &sql)?;
    let mut rows = sql.query([after.cast_signed()])?;
    while let Some(row) = rows.next()? {
        if read(&stored(row)?)? == Then::Stop {
            break;
        }
    }
    Ok(())
}

/// At most `limit` rows after number `after`.
pub(super) fn read(conn: &Connection, after: u64, limit: u32) -> Result<Vec<JournalRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM journal WHERE number > ?1 ORDER BY number LIMIT ?2");
    prepare(conn, "read the journal", &sql)?.read_all((i64::try_from(after).unwrap_or(i64::MAX), limit), stored)
}

fn stored(row: &Row<'_>) -> Result<JournalRow, StoreError> {
    Ok(JournalRow {
        number: get::<i64>(row, 0)?.cast_unsigned(),
        at: Timestamp::from_millis(get(row, 1)?),
        packed: Bytes::from(get::<Vec<u8>>(row, 2)?),
        root: get(row, 3)?,
        before: get(row, 4)?,
    })
}
