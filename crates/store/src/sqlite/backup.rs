//! Backups: a copy of the database as of one snapshot, made while the server runs. [`restore`] makes a data folder of
//! such a copy.
//!
//! A connection of its own reads the copy in one read transaction (`LongRead`), so it blocks no write and never has to
//! start over. Data written meanwhile stays in the log; when the log grows larger than the database, the backup is
//! given up. The copy pauses half of the time, to leave the disk to commits.
//!
//! Invariants: a backup under its final name is complete and on the disk; the master key is never in it; a backup that
//! failed leaves no files behind.

pub mod manifest;
pub mod restore;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_core::Timestamp;
use posthaste_crypto::digest::{Digest, Sha256};
use posthaste_crypto::hex;
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::erasures_file::ERASURES;
use super::folder::sync_folder;
use super::reading::LongRead;
use super::{DATABASE, FILE_MODE, FOLDER_MODE, audit, failed, journal, rotation, vault};
use crate::StoreError;
use manifest::{MANIFEST, Manifest};

/// The lock file, locked while a process makes a backup of the folder: one at a time.
const LOCK: &str = "backup";
/// Pages copied in one step, between two reports of progress: 2 MiB.
const STEP_PAGES: i32 = 256;
/// Steps between two syncs of the copy. A single sync at the end would delay commits for long.
const SYNC_STEPS: u32 = 8;
/// The longest pause between two steps: on a very slow disk, longer pauses would not help.
const PAUSE_MAX: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    pub done: u64,
    pub of: u64,
}

/// Why a backup or a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum NotCopied {
    /// The destination exists already.
    #[error("{path} is there already; name a folder that is not, nothing was changed")]
    Exists { path: String },
    #[error(
        "there is no folder {parent} to make it in: make that one, or mount the disk that it should be on; nothing was \
         changed"
    )]
    NoParent { parent: String },
    #[error("cannot {doing} {path}")]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
    /// Another process makes a backup of the folder.
    #[error("another backup of {folder} is under way; wait for its end")]
    UnderWay { folder: String },
    /// The log has grown larger than the database.
    #[error(
        "more was written meanwhile than the database is long, so the backup was given up; try again when less is written"
    )]
    TooMuchWritten,
    /// The caller cancelled it, or another program locked the copy.
    #[error("the backup was given up, nothing of it is left")]
    GivenUp,
    /// The backup is damaged, incomplete or not a backup.
    #[error("the backup {path} cannot be used: {why}")]
    Refused {
        path: String,
        /// Why it cannot be used, and what to do.
        why: String,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NotCopied {
    let path = path.display().to_string();
    move |source| NotCopied::Io { doing, path, source }
}

/// Copies the database of a data folder, which another process may have open, to a new folder. `say` is called with the
/// progress, and returns whether to continue.
pub fn back_up(
    folder: &Path,
    to: &Path,
    now: Timestamp,
    mut say: impl FnMut(CopyProgress) -> bool,
) -> Result<Manifest, NotCopied> {
    if to.symlink_metadata().is_ok() {
        return Err(NotCopied::Exists { path: to.display().to_string() });
    }
    let parent = parent_of(to);
    if !parent.is_dir() {
        return Err(NotCopied::NoParent { parent: parent.display().to_string() });
    }
    let (reading, conn) = audit::open_for_long(folder)?;
    let _lock = take_lock(folder)?;
    let part = Part::make(to)?;
    let database = part.path.join(DATABASE);
    let manifest = copy((&reading, &conn), &database, now, &mut say)?;
    drop((conn, reading));
    let (bytes, digest) = digest_of(&database).map_err(io_error("read", &database))?;
    let manifest = Manifest { bytes, digest, ..manifest };
    write_new(&part.path.join(MANIFEST), manifest.to_text().as_bytes())?;
    if let Some(erased) = erasures(folder)? {
        write_new(&part.path.join(ERASURES), &erased)?;
        // Also write it beside the backups of this store, so that a restore of an older one finds it.
        let beside = part.parent.join(beside(&manifest.store));
        replace(&beside, &erased).map_err(io_error("write", &beside))?;
    }
    part.put_in_place(to)?;
    Ok(manifest)
}

fn take_lock(folder: &Path) -> Result<File, NotCopied> {
    let path = folder.join(LOCK);
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(&path);
    let lock = lock.map_err(io_error("open", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(NotCopied::UnderWay { folder: folder.display().to_string() }),
        Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
    }
}

fn parent_of(to: &Path) -> &Path {
    to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A folder under a temporary name, removed on drop unless it was put in place.
struct Part {
    path: PathBuf,
    parent: PathBuf,
    is_done: bool,
}

impl Part {
    fn make(to: &Path) -> Result<Self, NotCopied> {
        let parent = parent_of(to);
        let suffix = hex::write(&posthaste_crypto::random::bytes::<4>());
        let path = PathBuf::from(format!("{}.part-{suffix}", to.display()));
        DirBuilder::new().mode(FOLDER_MODE).create(&path).map_err(io_error("make", &path))?;
        Ok(Self { path, parent: parent.to_owned(), is_done: false })
    }

    fn put_in_place(mut self, to: &Path) -> Result<(), NotCopied> {
        sync_folder(&self.path).map_err(io_error("write", &self.path))?;
        // The rename fails if `to` exists by now, unless it is an empty folder.
        fs::rename(&self.path, to).map_err(io_error("make", to))?;
        self.is_done = true;
        sync_folder(&self.parent).map_err(io_error("write", &self.parent))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_done
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the files of a failed backup");
        }
    }
}

/// Copies one snapshot of the database; returns its manifest without length and digest.
fn copy(
    (reading, conn): (&LongRead, &Connection),
    to: &Path,
    now: Timestamp,
    say: &mut impl FnMut(CopyProgress) -> bool,
) -> Result<Manifest, NotCopied> {
    let doing = failed("copy the database");
    conn.execute_batch("BEGIN").map_err(&doing)?;
    let manifest = described(conn, now)?;
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(to).map_err(io_error("make", to))?;
    let mut copy = Connection::open(to).map_err(&doing)?;
    // No journal and no syncs by SQLite: the copy is of no use until it is complete, and is synced as a whole.
    copy.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -4096;")
        .map_err(&doing)?;
    let file = File::open(to).map_err(io_error("read", to))?;
    let backup = Backup::new(conn, &mut copy).map_err(&doing)?;
    for step in 1_u32.. {
        let began = now_for_pace();
        match backup.step(STEP_PAGES).map_err(&doing)? {
            StepResult::Done => break,
            StepResult::More => {}
            // Another program has locked the database or the copy.
            _ => return Err(NotCopied::GivenUp),
        }
        let pages = |count: i32| u64::from(count.unsigned_abs()) * super::schema::PAGE_BYTES;
        let seen = backup.progress();
        let progress = CopyProgress { done: pages(seen.pagecount - seen.remaining), of: pages(seen.pagecount) };
        if reading.is_too_long() {
            return Err(NotCopied::TooMuchWritten);
        }
        if !say(progress) {
            return Err(NotCopied::GivenUp);
        }
        if step.is_multiple_of(SYNC_STEPS) {
            file.sync_data().map_err(io_error("write", to))?;
        }
        thread::sleep(began.elapsed().min(PAUSE_MAX));
    }
    drop(backup);
    conn.execute_batch("COMMIT").map_err(&doing)?;
    copy.close().map_err(|(_, error)| doing(error))?;
    file.sync_all().map_err(io_error("write", to))?;
    Ok(manifest)
}

#[expect(clippy::disallowed_methods, reason = "the length of a pause need not be reproducible")]
fn now_for_pace() -> Instant {
    Instant::now()
}

/// The manifest of the snapshot. Length and digest of the copy are not known yet.
fn described(conn: &Connection, now: Timestamp) -> Result<Manifest, StoreError> {
    let doing = failed("read the database to copy");
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(&doing);
    let head = journal::last(conn)?;
    Ok(Manifest {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        schema: u32::try_from(number("PRAGMA user_version")?).unwrap_or(0),
        store: vault::expected(conn, "store_id")?,
        master_keys: rotation::checks(conn)?.iter().map(posthaste_crypto::master::KeyCheck::id).collect(),
        at: now,
        journal_row: head.as_ref().map_or(0, |row| row.number),
        journal_hash: head.map_or([0; 32], |row| row.hash()),
        pending: number("SELECT count(*) FROM delivery")?.unsigned_abs(),
        bytes: 0,
        digest: [0; 32],
    })
}

/// A file's length and SHA-256.
pub(super) fn digest_of(path: &Path) -> io::Result<(u64, Digest)> {
    let mut digest = Sha256::default();
    let bytes = each_chunk(path, |chunk| {
        digest.update(chunk);
        Ok(())
    })?;
    Ok((bytes, digest.finish()))
}

/// Calls `with` for each part of a file; returns the file's length.
fn each_chunk(path: &Path, mut with: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut chunk = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(bytes),
            read => {
                with(&chunk[..read])?;
                bytes += read as u64;
            }
        }
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), NotCopied> {
    let written = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(io_error("write", path))
}

/// Replaces a file atomically.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = PathBuf::from(format!("{}.new", path.display()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// The list of erasures in a folder, if it has one.
fn erasures(folder: &Path) -> Result<Option<Vec<u8>>, NotCopied> {
    let path = folder.join(ERASURES);
    match fs::read(&path) {
        Ok(erased) => Ok(Some(erased)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", &path)(error)),
    }
}

/// The name of a store's newest list of erasures, in the folder with its backups.
fn beside(store: &[u8; 16]) -> String {
    format!("{ERASURES}-{}", hex::write(&store[..4]))
}
