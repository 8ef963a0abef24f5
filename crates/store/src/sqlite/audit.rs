//! The journal of a data folder, read beside whoever has it open, and held against what the tables say.
//!
//! Invariant: nothing is changed, and everything is read as it was at one moment.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::time::Timestamp;
use posthaste_crypto::checkpoint::{PublicKey, claimed};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Rows};

use super::column::{
    DELIVERY_COLUMNS, attempt, cause_number, delivery, delivery_columns, get, key, micros, stored_key,
};
use super::derived::owner;
use super::folder::DATABASE;
use super::header::Header;
use super::journal::{self, Then};
use super::reading::Reading;
use super::{failed, schema, signed, vault};
use crate::audit::{Archived, Audit, Counts, ErasedHint, Finding, Kept, Report};
use crate::journal::{Entry, ErasedWhom, Hidden};
use crate::row::{Attempt, Retention};
use crate::{Signed, StoreError};

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

/// What an audit is given beside the folder.
#[derive(Clone, Debug)]
pub struct Trust {
    /// Now: what happens later has not happened.
    pub now: Timestamp,
    /// How long the store keeps things.
    pub retention: Retention,
    /// The store's public key, from somewhere else. Without it the file's own is taken, which whoever
    /// can write the file can replace.
    pub public_key: Option<PublicKey>,
    /// Lines that were exported.
    pub checkpoints: Vec<String>,
}

impl Trust {
    /// Nothing but the file itself, of a store that keeps things for the usual time.
    pub fn nobody(now: Timestamp) -> Self {
        Self { now, retention: Retention::default(), public_key: None, checkpoints: Vec::new() }
    }
}

/// What an audit has verified, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// What it found.
    pub report: Report,
    /// The key that checkpoints were verified with; none if there was none.
    pub public_key: Option<PublicKey>,
}

/// Audits the journal in a folder.
pub fn verify(folder: &Path, trust: &Trust, mut say: impl FnMut(Progress)) -> Result<Verified, StoreError> {
    let (reading, conn) = open_for_long(folder)?;
    let doing = failed("read the journal");
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs).map_err(&doing);
    conn.execute_batch("BEGIN").map_err(&doing)?;
    let counts =
        Counts { outcomes: count("SELECT count(*) FROM outcome")?, attempts: count("SELECT count(*) FROM attempt")? };
    let mut progress = Progress { done: 0, of: count("SELECT count(*) FROM journal")? };
    let mut audit = Audit::new(trust.now, trust.retention);
    let judge = Judge::of(&conn, trust.public_key, &mut audit)?;
    erasures(&conn, &mut audit)?;
    trust.checkpoints.iter().for_each(|line| judge.take(line, None, &mut audit));
    let mut sql = conn.prepare("SELECT row, line FROM checkpoint ORDER BY row").map_err(&doing)?;
    let mut own = Own { lines: sql.query([]).map_err(&doing)?, next: None };
    let mut failure = None;
    let mut owners = BTreeMap::new();
    let mut archived = |entry: &Entry| {
        look_up(&conn, &mut owners, entry).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            Archived::Differs("it cannot be read")
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
        // A row that is no row is a finding, and what comes behind it cannot be told.
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

/// The newest checkpoint in a folder, if there is one, and what it is verified with.
pub fn newest_checkpoint(folder: &Path) -> Result<(Option<Signed>, PublicKey), StoreError> {
    let conn = open(folder)?;
    let key = own_key(&conn)?.ok_or_else(|| vault::damaged("the public key of checkpoints"))?;
    Ok((signed::newest(&conn)?, key))
}

/// The key that the file names.
fn own_key(conn: &Connection) -> Result<Option<PublicKey>, StoreError> {
    let text: Option<String> = meta(conn, "public_key")?;
    Ok(text.and_then(|text| PublicKey::parse(&text)))
}

/// A value of `meta`; one of another kind is none.
fn meta<T: FromSql>(conn: &Connection, name: &str) -> Result<Option<T>, StoreError> {
    match conn.query_row("SELECT value FROM meta WHERE key = ?1", [name], |row| row.get(0)).optional() {
        Err(rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::FromSqlConversionFailure(..)) => Ok(None),
        read => read.map_err(failed("read what the store says of itself")),
    }
}

/// Tells the audit of the erasures that the file tells of. What is no erasure is passed over: it excuses nothing.
fn erasures(conn: &Connection, audit: &mut Audit) -> Result<(), StoreError> {
    let doing = failed("read the erasures");
    let mut sql = conn.prepare("SELECT row, tenant, kind, mark FROM erasure ORDER BY row").map_err(&doing)?;
    let mut rows = sql.query([]).map_err(&doing)?;
    while let Some(row) = rows.next().map_err(&doing)? {
        let read = || -> Result<ErasedHint, StoreError> {
            let mark: Option<[u8; 16]> = get(row, 3)?;
            let whom = if get(row, 2)? { ErasedWhom::Tenant } else { ErasedWhom::Subject(mark.map(Hidden)) };
            let tenant = TenantId(stored_key(get(row, 1)?)?);
            Ok(ErasedHint { row: get::<i64>(row, 0)?.cast_unsigned(), tenant, whom })
        };
        read().into_iter().for_each(|hint| audit.erased(hint));
    }
    Ok(())
}

/// Says whether a checkpoint is this store's.
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

    /// Takes a line: one that the file has for a row, or one that was given.
    fn take(&self, line: &str, row: Option<u64>, audit: &mut Audit) {
        let kept = if row.is_some() { Kept::InTheFile } else { Kept::Elsewhere };
        let claims = claimed(line).map(|(checkpoint, _)| checkpoint);
        let names = row.or(claims.map(|checkpoint| checkpoint.row)).unwrap_or(0);
        if claims.is_some_and(|checkpoint| Some(checkpoint.store) != self.store) {
            return audit.find(Finding::Foreign { row: names, kept });
        }
        match self.key.map(|key| key.verify(line)) {
            Some(Ok(checkpoint)) if checkpoint.row == names => audit.checkpoint(names, checkpoint.chain, kept),
            _ => audit.find(Finding::Forged { row: names, kept }),
        }
    }
}

/// The file's own checkpoints, in the order of their rows: there may be many.
struct Own<'c> {
    lines: Rows<'c>,
    /// Read, and of a row that is still to come.
    next: Option<(u64, String)>,
}

impl Own<'_> {
    /// Takes those of rows up to this one.
    fn up_to(&mut self, number: u64, judge: &Judge, audit: &mut Audit) -> Result<(), StoreError> {
        loop {
            if self.next.is_none() {
                let Some(row) = self.lines.next().map_err(failed("read checkpoints"))? else { return Ok(()) };
                // A line that is no text is no checkpoint.
                self.next = Some((get::<i64>(row, 0)?.cast_unsigned(), get(row, 1).unwrap_or_default()));
            }
            match self.next.take_if(|(row, _)| *row <= number) {
                Some((row, line)) => judge.take(&line, Some(row), audit),
                None => return Ok(()),
            }
        }
    }
}

/// A connection that cannot change anything.
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

/// The same for a read that may be long. The connection goes first when both are dropped.
pub(super) fn open_for_long(folder: &Path) -> Result<(Reading, Connection), StoreError> {
    let conn = open(folder)?;
    Ok((Reading::begin(folder), conn))
}

fn too_long(folder: &Path) -> StoreError {
    let reason = "more was written meanwhile than the database is long, so the audit was given up; try again when less \
                  is written, or audit a restored backup";
    StoreError::Folder { folder: folder.display().to_string(), reason: reason.to_owned() }
}

/// What the tables have of what an entry tells.
fn look_up(
    conn: &Connection,
    owners: &mut BTreeMap<EndpointId, TenantId>,
    entry: &Entry,
) -> Result<Archived, StoreError> {
    let (found, endpoint) = match entry {
        Entry::Ended { delivery, endpoint, .. } => (ended(conn, *delivery, entry)?, endpoint),
        Entry::Attempted { delivery, endpoint, attempt } => (tried(conn, *delivery, attempt, false)?, endpoint),
        Entry::Late { delivery, endpoint, attempt } => (tried(conn, *delivery, attempt, true)?, endpoint),
        _ => return Ok(Archived::Fits),
    };
    found.map_or_else(|| owner(conn, owners, *endpoint).map(Archived::Missing), Ok)
}

fn ended(conn: &Connection, id: DeliveryId, entry: &Entry) -> Result<Option<Archived>, StoreError> {
    let doing = failed("read an outcome");
    let mut sql = conn
        .prepare_cached(concat!(
            "SELECT ",
            delivery_columns!("ended_ms"),
            ", number, at_ms, took_us, attempt_cause, status FROM outcome WHERE id = ?1"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query([key(id.0)]).map_err(&doing)?;
    let Some(row) = rows.next().map_err(&doing)? else { return Ok(None) };
    let led = get::<Option<i64>>(row, DELIVERY_COLUMNS)?.map(|_| attempt(row, DELIVERY_COLUMNS)).transpose();
    Ok(Some(match (delivery(row), led) {
        (Ok(stored), Ok(led)) if Entry::ended(&stored, led) == *entry => Archived::Fits,
        (Ok(_), Ok(_)) => Archived::Differs("its outcome was changed"),
        (_, _) => Archived::Differs("its outcome is no outcome"),
    }))
}

fn tried(conn: &Connection, id: DeliveryId, made: &Attempt, late: bool) -> Result<Option<Archived>, StoreError> {
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
        return Ok(Some(Archived::Fits));
    }
    let there = exists("SELECT 1 FROM outcome WHERE id = ?1", &[&id])?
        || exists("SELECT 1 FROM delivery WHERE id = ?1", &[&id])?;
    Ok(there.then_some(Archived::Differs("an attempt is missing or was changed")))
}
