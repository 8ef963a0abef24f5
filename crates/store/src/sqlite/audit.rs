//! The journal of a data folder, read beside whoever has it open, and held against what the tables say.
//!
//! Invariant: nothing is changed, and everything is read as it was at one moment.

use std::path::Path;

use posthaste_core::id::DeliveryId;
use rusqlite::{Connection, OpenFlags};

use super::column::{DELIVERY_COLUMNS, attempt, cause_number, delivery, delivery_columns, get, key, micros};
use super::folder::DATABASE;
use super::header::Header;
use super::journal::{self, Then};
use super::{failed, schema};
use crate::StoreError;
use crate::audit::{Archived, Audit, Report};
use crate::journal::Entry;
use crate::row::Attempt;

/// Rows between two words about how far it is.
const SAID_EVERY: u64 = 256;

/// How far an audit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows read.
    pub done: u64,
    /// Rows there were when it began.
    pub of: u64,
}

/// Audits the journal in a folder. `audit` may have been given checkpoints that were kept elsewhere.
pub fn verify(folder: &Path, mut audit: Audit, mut say: impl FnMut(Progress)) -> Result<Report, StoreError> {
    let conn = open(folder)?;
    let doing = failed("read the journal");
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs).map_err(&doing);
    conn.execute_batch("BEGIN").map_err(&doing)?;
    let outcomes = count("SELECT count(*) FROM outcome")?;
    let mut progress = Progress { done: 0, of: count("SELECT count(*) FROM journal")? };
    let mut failure = None;
    let mut archived = |entry: &Entry| {
        look_up(&conn, entry).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            Archived::Differs("it cannot be read")
        })
    };
    journal::each(&conn, 0, |row| {
        audit.row(row, &mut archived);
        progress.done += 1;
        if progress.done.is_multiple_of(SAID_EVERY) {
            say(progress);
        }
        Ok(Then::GoOn)
    })
    .or_else(|error| match error {
        // A row that is no row is a finding, and what comes behind it cannot be told.
        StoreError::Damaged { .. } => {
            audit.unreadable(error.to_string());
            Ok(())
        }
        other => Err(other),
    })?;
    say(progress);
    match failure {
        Some(error @ StoreError::Database { .. }) => Err(error),
        _ => Ok(audit.finish(outcomes)),
    }
}

/// A connection that cannot change anything.
fn open(folder: &Path) -> Result<Connection, StoreError> {
    let refused = |reason: String| StoreError::Folder { folder: folder.display().to_string(), reason };
    let path = folder.join(DATABASE);
    match Header::read(&path).map_err(|error| refused(format!("cannot read its posthaste.db: {error}")))? {
        Header::Ours { version } if version as usize <= schema::MIGRATIONS.len() => {}
        Header::Ours { version } => {
            let known = schema::MIGRATIONS.len();
            return Err(refused(format!("its database has version {version} and this build knows {known}")));
        }
        Header::None => return Err(refused("there is no posthaste.db in it".to_owned())),
        Header::Foreign(what) => return Err(refused(format!("its posthaste.db is {what}"))),
    }
    let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(failed("open the database"))?;
    conn.set_prepared_statement_cache_capacity(16);
    conn.busy_timeout(schema::BUSY_WAIT).map_err(failed("open the database"))?;
    Ok(conn)
}

/// What the tables have of what an entry tells.
fn look_up(conn: &Connection, entry: &Entry) -> Result<Archived, StoreError> {
    match entry {
        Entry::Ended { delivery, .. } => ended(conn, *delivery, entry),
        Entry::Attempted { delivery, attempt, .. } => tried(conn, *delivery, attempt, false),
        Entry::Late { delivery, attempt, .. } => tried(conn, *delivery, attempt, true),
        _ => Ok(Archived::Fits),
    }
}

fn ended(conn: &Connection, id: DeliveryId, entry: &Entry) -> Result<Archived, StoreError> {
    let doing = failed("read an outcome");
    let mut sql = conn
        .prepare_cached(concat!(
            "SELECT ",
            delivery_columns!("ended_ms"),
            ", number, at_ms, took_us, attempt_cause, status FROM outcome WHERE id = ?1"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query([key(id.0)]).map_err(&doing)?;
    let Some(row) = rows.next().map_err(&doing)? else { return Ok(Archived::Missing) };
    let led = get::<Option<i64>>(row, DELIVERY_COLUMNS)?.map(|_| attempt(row, DELIVERY_COLUMNS)).transpose();
    let (Ok(stored), Ok(led)) = (delivery(row), led) else { return Ok(Archived::Differs("its outcome is no outcome")) };
    Ok(if Entry::ended(&stored, led) == *entry { Archived::Fits } else { Archived::Differs("its outcome was changed") })
}

fn tried(conn: &Connection, id: DeliveryId, made: &Attempt, late: bool) -> Result<Archived, StoreError> {
    let doing = failed("read the attempts of a delivery");
    let exists = |sql: &str, params: &[&dyn rusqlite::ToSql]| {
        conn.prepare_cached(sql).and_then(|mut sql| sql.exists(params)).map_err(&doing)
    };
    let id = key(id.0);
    let found = exists(
        "SELECT 1 FROM attempt WHERE delivery = ?1 AND late = ?2 AND number = ?3 AND at_ms = ?4 AND took_us = ?5
           AND cause = ?6 AND status IS ?7",
        &[&id, &late, &made.number, &made.at.as_millis(), &micros(made.took), &cause_number(made.cause), &made.status],
    )?;
    if found {
        return Ok(Archived::Fits);
    }
    let there = exists("SELECT 1 FROM outcome WHERE id = ?1", &[&id])?
        || exists("SELECT 1 FROM delivery WHERE id = ?1", &[&id])?;
    Ok(if there { Archived::Differs("an attempt is missing or was changed") } else { Archived::Missing })
}
