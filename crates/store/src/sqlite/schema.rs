//! Connections to the database, and its shape: migrations that take an older file to this build's.
//!
//! Invariant: a file is never opened by a build older than the one that wrote it.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::failed;
use super::folder::Folder;
use crate::StoreError;

/// Each takes the file one version further; the file's version is how many it has had.
pub(super) const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_first.sql")];

/// More statements than there are in this crate: none is ever prepared twice.
const STATEMENTS_KEPT: usize = 192;

/// How long a commit waits for somebody who opened the file with another program.
const BUSY_WAIT: Duration = Duration::from_secs(10);

/// The writer's connection: makes the file if it is missing, and brings it up to date.
pub(super) fn open_writer(folder: &Folder) -> Result<Connection, StoreError> {
    let conn = connect(&folder.database(), OpenFlags::SQLITE_OPEN_CREATE)?;
    // The first two must stand before anything is written. FULL: a commit is on the disk when it
    // returns. The writer itself checkpoints every 32 MiB until a thread of its own does; the log
    // file is cut back to 64 MiB afterwards.
    let mode: String = conn
        .execute_batch("PRAGMA page_size = 8192; PRAGMA auto_vacuum = INCREMENTAL;")
        .and_then(|()| conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)))
        .map_err(failed("open the database"))?;
    if mode != "wal" {
        return Err(folder.refused(format!("the database's journal is {mode:?}, not WAL; it must be on a local disk")));
    }
    conn.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA cache_size = -32768; PRAGMA wal_autocheckpoint = 4000;
         PRAGMA journal_size_limit = 67108864;",
    )
    .map_err(failed("set up the database"))?;
    migrate(conn, folder)
}

/// A connection that only reads.
pub(super) fn open_reader(folder: &Folder) -> Result<Connection, StoreError> {
    let conn = connect(&folder.database(), OpenFlags::empty())?;
    // Only the writer tidies up at the end, and only if all its commits went well.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .and_then(|_| conn.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -4096;"))
        .map_err(failed("set up a reader"))?;
    Ok(conn)
}

fn connect(path: &Path, extra: OpenFlags) -> Result<Connection, StoreError> {
    // Each connection belongs to one thread: SQLite need not lock it.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | extra;
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
    let Some(missing) = MIGRATIONS.get(found as usize..) else {
        let known = MIGRATIONS.len();
        return Err(folder.refused(format!(
            "its database has version {found} and this build knows {known}; run the newer build that wrote it"
        )));
    };
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
