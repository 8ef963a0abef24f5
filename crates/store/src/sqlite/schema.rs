//! Opens connections to the database, and migrates an older file to this build's schema.
//!
//! Invariants: a file is never opened by a build older than the one that wrote it; a file that is refused
//! is not changed by a single byte.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::folder::{APPLICATION_ID, Header};
use super::{Folder, failed, renew};
use crate::StoreError;

/// Each migration raises the version of a file by one; the version is the number of migrations the file has had.
pub(super) const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_first.sql")];

/// Size of the cache of prepared statements: more than this crate has, so that none is prepared twice.
const STATEMENTS_KEPT: usize = 192;

/// How long a statement waits for a lock that another program holds on the file.
pub(super) const BUSY_WAIT: Duration = Duration::from_secs(10);

pub(super) const PAGE_BYTES: u64 = 8192;

/// Opens the writer's connection; creates the file if it is missing, and migrates it.
pub(super) fn open_writer(folder: &Folder, log_bytes: u64) -> Result<Connection, StoreError> {
    // Read the header before SQLite opens the file: a file of another program is not opened at all.
    match folder.header()? {
        Header::Ours { version } => check_version(folder, version)?,
        Header::None if folder.has_log() => {
            return Err(folder.refused(
                "its posthaste.db is empty, and the log beside it is not; restore both from a backup; nothing was \
                 changed"
                    .to_owned(),
            ));
        }
        Header::None if folder.is_half_restored() => {
            return Err(folder.refused("a restore to it was cut short; run `posthaste restore` again".to_owned()));
        }
        Header::None => make(folder).map_err(|error| folder.explained(error))?,
        Header::Foreign(what) => {
            return Err(folder.refused(format!(
                "its posthaste.db is {what}; move that file away, or name another folder; nothing was changed"
            )));
        }
    }
    renew::renew(folder)?;
    set_up(folder, log_bytes).map_err(|error| folder.explained(error))
}

/// Creates an empty database under another name, and renames it when it is complete. If it were created under its own
/// name, SQLite would make a rollback journal and delete it without a sync: a power cut could bring that journal back
/// much later and undo the file's first page.
fn make(folder: &Folder) -> Result<(), StoreError> {
    let new = folder.new_database().map_err(|error| folder.refused_to("make its posthaste.db", &error))?;
    let conn = connect(&new)?;
    conn.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES};
         BEGIN; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
    ))
    .and_then(|()| conn.prepare("PRAGMA journal_mode = WAL"))
    // Read to the end: the pragma commits after its only row, and a failure of that commit comes after the row.
    .and_then(|mut sql| sql.query_map([], |_| Ok(()))?.collect::<rusqlite::Result<()>>())
    .map_err(failed("make the database"))?;
    check_journal(&conn, folder)?;
    conn.close().map_err(|(_, error)| error).map_err(failed("make the database"))?;
    folder.put_in_place(&new).map_err(|error| folder.refused_to("make its posthaste.db", &error))
}

fn check_version(folder: &Folder, found: u32) -> Result<(), StoreError> {
    let known = MIGRATIONS.len();
    if found as usize <= known {
        return Ok(());
    }
    Err(folder.refused(format!(
        "its database has version {found} and this build knows {known}; run the newer build that wrote it"
    )))
}

/// Refuses a database that is not in WAL mode, on which the store relies.
fn check_journal(conn: &Connection, folder: &Folder) -> Result<(), StoreError> {
    let mode: String =
        conn.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(failed("read the database"))?;
    if mode == "wal" {
        return Ok(());
    }
    Err(folder.refused(format!("the database's journal is {mode:?}, not WAL; it must be on a local disk")))
}

fn set_up(folder: &Folder, log_bytes: u64) -> Result<Connection, StoreError> {
    let conn = connect(&folder.database())?;
    // Until it is known to be a Posthaste database, closing it must not change it.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed("open the database"))?;
    let id: i64 = conn.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(failed("read the database"))?;
    if id != APPLICATION_ID {
        return Err(folder.refused("its posthaste.db is another program's; name another folder".to_owned()));
    }
    check_journal(&conn, folder)?;
    // FULL: a commit is on the disk when it returns. A thread of its own copies the log. Deleted bytes are
    // overwritten, so that an erasure need not look for copies that were deleted before it.
    conn.execute_batch(&format!(
        "PRAGMA synchronous = FULL; PRAGMA cache_size = -32768; PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = {log_bytes}; PRAGMA secure_delete = ON;"
    ))
    .map_err(failed("set up the database"))?;
    let conn = migrate(conn, folder)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(failed("set up the database"))?;
    Ok(conn)
}

/// Opens the connection that copies the log into the database.
pub(super) fn open_log(folder: &Folder) -> Result<Connection, StoreError> {
    let pragmas = "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;";
    open_beside(folder, "set up the log's connection", pragmas)
}

/// Opens a connection that only reads.
pub(super) fn open_reader(folder: &Folder) -> Result<Connection, StoreError> {
    open_beside(folder, "set up a reader", "PRAGMA query_only = ON; PRAGMA cache_size = -4096;")
}

fn open_beside(folder: &Folder, doing: &'static str, pragmas: &str) -> Result<Connection, StoreError> {
    let conn = connect(&folder.database())?;
    // Only the writer empties the log when it closes, and only if all its commits succeeded.
    let set = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    set.and_then(|_| conn.execute_batch(pragmas)).map_err(failed(doing))?;
    Ok(conn)
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    // Each connection is used by one thread: SQLite need not lock it.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(failed("open the database"))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    conn.busy_timeout(BUSY_WAIT)
        .and_then(|()| {
            conn.execute_batch(
                "PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF;
                 PRAGMA trusted_schema = OFF;",
            )
        })
        .map_err(failed("set up a connection"))?;
    Ok(conn)
}

fn migrate(mut conn: Connection, folder: &Folder) -> Result<Connection, StoreError> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed("begin the migration"))?;
    let found: u32 =
        tx.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed("read the database's version"))?;
    check_version(folder, found)?;
    let missing = &MIGRATIONS[found as usize..];
    if !missing.is_empty() {
        for migration in missing {
            tx.execute_batch(migration).map_err(failed("migrate the database"))?;
        }
        tx.execute_batch(&format!("PRAGMA user_version = {}", MIGRATIONS.len()))
            .map_err(failed("record the database's version"))?;
        tx.commit().map_err(failed("commit the migration"))?;
        return Ok(conn);
    }
    drop(tx);
    Ok(conn)
}
