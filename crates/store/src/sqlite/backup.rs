//! A copy of the database as it was at one moment, made while everything goes on, and a folder made of such a
//! copy again ([`restore`]).
//!
//! The copy is read by a connection of its own in one read transaction ([`Reading`]), so nobody waits for it and it
//! never begins anew; what is written meanwhile stays in the log: no more than the database is long, or the backup is
//! given up. Half of the time it pauses, and leaves the disk to those who commit.
//!
//! Invariants: a backup that has its name is whole and on the disk; the master key is never in it; one that
//! failed leaves nothing behind.

pub mod manifest;
pub mod restore;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_core::time::Timestamp;
use posthaste_crypto::digest::{Digest, Sha256};
use posthaste_crypto::hex;
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::erasures_file::ERASURES;
use super::folder::{DATABASE, FILE_MODE, FOLDER_MODE, sync_folder};
use super::reading::Reading;
use super::{audit, failed, fault, journal, rotation, vault};
use crate::StoreError;
use manifest::{MANIFEST, Manifest};

/// Held by whatever process makes a backup of the folder: one at a time.
const LOCK: &str = "backup";
/// Pages copied between two looks at how far it is: 2 MiB.
const STEP_PAGES: i32 = 256;
/// Steps after which the copy is brought to the disk: what gathers for its end, everybody who commits then waits for.
const SYNC_STEPS: u32 = 8;
/// The longest pause between two steps: on a disk that is this slow, more would not help.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes copied.
    pub done: u64,
    /// Bytes there are.
    pub of: u64,
}

/// Why there is no backup, or no folder made of one.
#[derive(Debug, thiserror::Error)]
pub enum NotCopied {
    /// There is something where it should be made.
    #[error("{path} is there already; name a folder that is not, nothing was changed")]
    Exists {
        /// Where.
        path: String,
    },
    /// There is no folder to make it in.
    #[error(
        "there is no folder {parent} to make it in: make that one, or mount the disk that it should be on; nothing was \
         changed"
    )]
    NoParent {
        /// Which.
        parent: String,
    },
    /// The system refused.
    #[error("cannot {doing} {path}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: String,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// Somebody else makes one.
    #[error("another backup of {folder} is under way; wait for its end")]
    UnderWay {
        /// Of which folder.
        folder: String,
    },
    /// The log has grown too far.
    #[error(
        "more was written meanwhile than the database is long, so the backup was given up; try again when less is written"
    )]
    TooMuchWritten,
    /// Whoever asked for it has left.
    #[error("the backup was given up, nothing of it is left")]
    GivenUp,
    /// The backup is not one, or not whole.
    #[error("the backup {path} cannot be used: {why}")]
    Refused {
        /// Which.
        path: String,
        /// Why, and what to do.
        why: String,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NotCopied {
    let path = path.display().to_string();
    move |source| NotCopied::Io { doing, path, source }
}

/// Copies the database of a data folder to a new folder, beside whoever has it open. `say` is told how far it is,
/// and says whether to go on.
pub fn back_up(
    folder: &Path,
    to: &Path,
    now: Timestamp,
    mut say: impl FnMut(Progress) -> bool,
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
        // And beside all backups of this store, so that older ones have it too.
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

/// A folder on its way, gone when it fails.
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
        // A folder is renamed over nothing but an empty one.
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
            tracing::warn!(%error, path = %self.path.display(), "what is left of a backup could not be removed");
        }
    }
}

/// Copies everything as it is at one moment, and says what it is.
fn copy(
    (reading, conn): (&Reading, &Connection),
    to: &Path,
    now: Timestamp,
    say: &mut impl FnMut(Progress) -> bool,
) -> Result<Manifest, NotCopied> {
    let doing = failed("copy the database");
    conn.execute_batch("BEGIN").map_err(&doing)?;
    let manifest = described(conn, now)?;
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(to).map_err(io_error("make", to))?;
    let mut copy = Connection::open(to).map_err(&doing)?;
    // Until it has its name nobody looks at it: it is synced as a whole.
    copy.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -4096;")
        .map_err(&doing)?;
    let file = File::open(to).map_err(io_error("read", to))?;
    let backup = Backup::new(conn, &mut copy).map_err(&doing)?;
    for step in 1_u32.. {
        let began = now_for_pace();
        match backup.step(STEP_PAGES).map_err(&doing)? {
            StepResult::Done => break,
            StepResult::More => {}
            // Somebody else writes the copy, or has locked everybody out.
            _ => return Err(NotCopied::GivenUp),
        }
        let pages = |count: i32| u64::from(count.unsigned_abs()) * super::schema::PAGE_BYTES;
        let seen = backup.progress();
        let progress = Progress { done: pages(seen.pagecount - seen.remaining), of: pages(seen.pagecount) };
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

#[expect(clippy::disallowed_methods, reason = "how long to pause is no decision that anybody could want to repeat")]
fn now_for_pace() -> Instant {
    Instant::now()
}

/// What a database is a copy of. Its length and digest are not known yet.
fn described(conn: &Connection, now: Timestamp) -> Result<Manifest, StoreError> {
    let doing = failed("read what is copied");
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

/// Reads a file in parts.
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

/// Puts another text in a file's place, at once.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = PathBuf::from(format!("{}.new", path.display()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Who was erased, as a folder has it.
fn erasures(folder: &Path) -> Result<Option<Vec<u8>>, NotCopied> {
    let path = folder.join(ERASURES);
    match fs::read(&path) {
        Ok(erased) => Ok(Some(erased)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", &path)(error)),
    }
}

/// Where the newest list of a store's erasures is, beside its backups.
fn beside(store: &[u8; 16]) -> String {
    format!("{ERASURES}-{}", hex::write(&store[..4]))
}

/// What a failed read or write of SQLite means for a copy.
fn in_words(error: &StoreError) -> String {
    fault::chain(error)
}
