//! Audits the journal of a data folder, which another process may have open, and compares it with the tables.
//!
//! Invariant: nothing is changed, and everything is read from one snapshot.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use posthaste_core::{DeliveryId, EndpointId, TenantId, Timestamp};
use posthaste_crypto::checkpoint::{PublicKey, claimed};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Rows};

use super::derived::owner;
use super::folder::Header;
use super::reading::LongRead;
use super::{
    DATABASE, DELIVERY_COLUMNS, Then, attempt, cause_number, delivery, failed, get, journal, key, micros, prepare,
    schema, show, signed, stored_key, vault,
};
use crate::audit::{Archived, Audit, AuditCounts, AuditReport, CheckpointSource, ErasedHint, Finding};
use crate::journal::{ErasedTarget, Hidden, JournalEntry};
use crate::{AttemptRecord, Retention, Signed, StoreError};

/// Rows between two reports of progress.
const SAID_EVERY: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditProgress {
    pub done: u64,
    /// Rows of the journal when the audit began.
    pub of: u64,
}

/// The inputs of an audit beside the folder.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The present time; entries from later times are suspect.
    pub now: Timestamp,
    pub retention: Retention,
    /// The store's public key, from a source other than the file. Without it the file's own is used, which an attacker
    /// who can write the file can replace.
    pub public_key: Option<PublicKey>,
    /// Exported checkpoints, as lines.
    pub checkpoints: Vec<String>,
}

impl Trust {
    /// Trusts the file alone, and assumes the default retention times.
    pub fn without_checkpoints(now: Timestamp) -> Self {
        Self { now, retention: Retention::default(), public_key: None, checkpoints: Vec::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub report: AuditReport,
    /// The key that checkpoints were verified with; `None` if no key was given and the file has none.
    pub public_key: Option<PublicKey>,
}

/// Audits the journal in a folder. Gives up with an error when the log of a running server grows too large meanwhile.
pub fn verify(folder: &Path, trust: &Trust, mut say: impl FnMut(AuditProgress)) -> Result<Verified, StoreError> {
    let (reading, conn) = open_for_long(folder)?;
    let doing = failed("read the journal");
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs).map_err(&doing);
    conn.execute_batch("BEGIN").map_err(&doing)?;
    let counts = AuditCounts {
        outcomes: count("SELECT count(*) FROM outcome")?,
        attempts: count("SELECT count(*) FROM attempt")?,
    };
    let mut progress = AuditProgress { done: 0, of: count("SELECT count(*) FROM journal")? };
    let mut audit = Audit::new(trust.now, trust.retention);
    let judge = Judge::of(&conn, trust.public_key, &mut audit)?;
    erasures(&conn, &mut audit)?;
    trust.checkpoints.iter().for_each(|line| judge.take(line, None, &mut audit));
    let mut sql = conn.prepare("SELECT row, line FROM checkpoint ORDER BY row").map_err(&doing)?;
    let mut own = Own { lines: sql.query([]).map_err(&doing)?, next: None };
    let mut failure = None;
    let mut owners = BTreeMap::new();
    let mut archived = |entry: &JournalEntry| {
        look_up(&conn, &mut owners, entry).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            Archived::Differs("its record cannot be read")
        })
    };
    journal::each(&conn, 0, |row| {
        own.up_to(row.number, &judge, &mut audit)?;
        audit.row(row, &mut archived);
        progress.done += 1;
        if progress.done.is_multiple_of(SAID_EVERY) {
            say(progress);
            if reading.is_too_long() {
                return Err(too_long(folder));
            }
        }
        Ok(Then::GoOn)
    })
    .or_else(|error| match error {
        // A row that is damaged is a finding; the rows after it cannot be checked.
        StoreError::Damaged { .. } => {
            audit.unreadable(error.to_string());
            Ok(())
        }
        other => Err(other),
    })?;
    own.up_to(u64::MAX, &judge, &mut audit)?;
    say(progress);
    match failure {
        Some(error @ StoreError::Database { .. }) => Err(error),
        _ => Ok(Verified { report: audit.finish(counts), public_key: judge.key }),
    }
}

/// The newest checkpoint in a folder, if there is one, and the file's own public key.
pub fn newest_checkpoint(folder: &Path) -> Result<(Option<Signed>, PublicKey), StoreError> {
    let conn = open(folder)?;
    let key = own_key(&conn)?.ok_or_else(|| vault::damaged("the public key of checkpoints"))?;
    Ok((signed::newest(&conn)?, key))
}

fn own_key(conn: &Connection) -> Result<Option<PublicKey>, StoreError> {
    let text: Option<String> = meta(conn, "public_key")?;
    Ok(text.and_then(|text| PublicKey::parse(&text)))
}

/// A value of `meta`; `None` if it is missing or of another type.
fn meta<T: FromSql>(conn: &Connection, name: &str) -> Result<Option<T>, StoreError> {
    match conn.query_row("SELECT value FROM meta WHERE key = ?1", [name], |row| row.get(0)).optional() {
        Err(rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::FromSqlConversionFailure(..)) => Ok(None),
        read => read.map_err(failed("read the identity of the store")),
    }
}

/// Adds the erasures recorded in the file to the audit. Rows that are not valid are passed over: they excuse no missing
/// data.
fn erasures(conn: &Connection, audit: &mut Audit) -> Result<(), StoreError> {
    let mut sql = prepare(conn, "read the erasures", "SELECT row, tenant, kind, mark FROM erasure ORDER BY row")?;
    let mut rows = sql.query([])?;
    while let Some(row) = rows.next()? {
        let read = || -> Result<ErasedHint, StoreError> {
            let mark: Option<[u8; 16]> = get(row, 3)?;
            let whom = if get(row, 2)? { ErasedTarget::Tenant } else { ErasedTarget::Subject(mark.map(Hidden)) };
            let tenant = TenantId(stored_key(get(row, 1)?)?);
            Ok(ErasedHint { row: get::<i64>(row, 0)?.cast_unsigned(), tenant, whom })
        };
        read().into_iter().for_each(|hint| audit.erased(hint));
    }
    Ok(())
}

/// Decides whether a checkpoint is a valid one of this store.
struct Judge {
    store: Option<[u8; 16]>,
    key: Option<PublicKey>,
}

impl Judge {
    fn of(conn: &Connection, given: Option<PublicKey>, audit: &mut Audit) -> Result<Self, StoreError> {
        let (store, own) = (meta(conn, "store_id")?, own_key(conn)?);
        if store.is_none() {
            audit.find(Finding::Identity { what: "the file does not say which store it is" });
        }
        if own.is_none() {
            audit.find(Finding::Identity { what: "the file does not have its store's public key" });
        } else if given.is_some() && given != own {
            audit.find(Finding::Identity { what: "the file's public key is another than the one you gave" });
        }
        Ok(Self { store, key: given.or(own) })
    }

    /// Checks a line and adds it to the audit, as a checkpoint or as a finding. `row` is the row that the file has the
    /// line for; `None` for an exported line.
    fn take(&self, line: &str, row: Option<u64>, audit: &mut Audit) {
        let kept = if row.is_some() { CheckpointSource::InTheFile } else { CheckpointSource::Elsewhere };
        let unverified = claimed(line).map(|(checkpoint, _)| checkpoint);
        let row = row.or(unverified.map(|checkpoint| checkpoint.row)).unwrap_or(0);
        if unverified.is_some_and(|checkpoint| Some(checkpoint.store) != self.store) {
            return audit.find(Finding::Foreign { row, kept });
        }
        match self.key.map(|key| key.verify(line)) {
            Some(Ok(checkpoint)) if checkpoint.row == row => audit.checkpoint(row, checkpoint.chain, kept),
            _ => audit.find(Finding::Forged { row, kept }),
        }
    }
}

/// Reads the file's own checkpoints, in the order of their rows.
struct Own<'c> {
    lines: Rows<'c>,
    /// A checkpoint that was read, for a row that was not.
    next: Option<(u64, String)>,
}

impl Own<'_> {
    /// Checks the checkpoints of rows up to this one.
    fn up_to(&mut self, number: u64, judge: &Judge, audit: &mut Audit) -> Result<(), StoreError> {
        loop {
            if self.next.is_none() {
                let Some(row) = self.lines.next().map_err(failed("read checkpoints"))? else { return Ok(()) };
                // A line that is not text becomes an empty one, which is a finding.
                self.next = Some((get::<i64>(row, 0)?.cast_unsigned(), get(row, 1).unwrap_or_default()));
            }
            match self.next.take_if(|(row, _)| *row <= number) {
                Some((row, line)) => judge.take(&line, Some(row), audit),
                None => return Ok(()),
            }
        }
    }
}

/// Opens a read-only connection.
pub(super) fn open(folder: &Path) -> Result<Connection, StoreError> {
    let refused = |reason: String| StoreError::Folder { folder: folder.display().to_string(), reason };
    let path = folder.join(DATABASE);
    let header = match Header::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Header::None,
        read => read.map_err(|error| refused(format!("cannot read its posthaste.db: {error}")))?,
    };
    match header {
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

/// Like [`open`], for a read that may be long. The connection must be dropped before the [`LongRead`].
pub(super) fn open_for_long(folder: &Path) -> Result<(LongRead, Connection), StoreError> {
    let conn = open(folder)?;
    Ok((LongRead::begin(folder), conn))
}

fn too_long(folder: &Path) -> StoreError {
    let reason = "more was written meanwhile than the database is long, so the audit was given up; try again when less \
                  is written, or audit a restored backup";
    StoreError::Folder { folder: folder.display().to_string(), reason: reason.to_owned() }
}

/// Compares an entry with the outcome or attempt in the tables.
fn look_up(
    conn: &Connection,
    owners: &mut BTreeMap<EndpointId, TenantId>,
    entry: &JournalEntry,
) -> Result<Archived, StoreError> {
    let (found, endpoint) = match entry {
        JournalEntry::Ended { delivery, endpoint, .. } => (ended(conn, *delivery, entry)?, endpoint),
        JournalEntry::Attempted { delivery, endpoint, attempt } => (tried(conn, *delivery, attempt, false)?, endpoint),
        JournalEntry::Late { delivery, endpoint, attempt } => (tried(conn, *delivery, attempt, true)?, endpoint),
        _ => return Ok(Archived::Fits),
    };
    found.map_or_else(|| owner(conn, owners, *endpoint).map(Archived::Missing), Ok)
}

fn ended(conn: &Connection, id: DeliveryId, entry: &JournalEntry) -> Result<Option<Archived>, StoreError> {
    prepare(conn, "read an outcome", show::OUTCOME)?.read([key(id.0)], |row| {
        let led = get::<Option<i64>>(row, DELIVERY_COLUMNS)?.map(|_| attempt(row, DELIVERY_COLUMNS)).transpose();
        Ok(match (delivery(row), led) {
            (Ok(stored), Ok(led)) if JournalEntry::ended(&stored, led) == *entry => Archived::Fits,
            (Ok(_), Ok(_)) => Archived::Differs("its outcome was changed"),
            (_, _) => Archived::Differs("its outcome is damaged"),
        })
    })
}

fn tried(conn: &Connection, id: DeliveryId, made: &AttemptRecord, late: bool) -> Result<Option<Archived>, StoreError> {
    let exists = |sql: &str, params: &[&dyn rusqlite::ToSql]| {
        prepare(conn, "read the attempts of a delivery", sql)?.exists(params)
    };
    let id = key(id.0);
    let found = exists(
        "SELECT 1 FROM attempt WHERE delivery = ?1 AND late = ?2 AND number = ?3 AND at_ms = ?4 AND took_us = ?5
           AND cause = ?6 AND status IS ?7",
        &[&id, &late, &made.number, &made.at.as_millis(), &micros(made.took), &cause_number(made.cause), &made.status],
    )?;
    if found {
        return Ok(Some(Archived::Fits));
    }
    let there = exists("SELECT 1 FROM outcome WHERE id = ?1", &[&id])?
        || exists("SELECT 1 FROM delivery WHERE id = ?1", &[&id])?;
    Ok(there.then_some(Archived::Differs("an attempt is missing or was changed")))
}
