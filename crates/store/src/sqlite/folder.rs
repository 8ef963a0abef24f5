//! The data folder: one process uses it at a time, and other users of the system cannot read its files. Errors that
//! prevent its use get their wording here.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::fault;
use crate::StoreError;

/// Access for the owner only: the folder holds payloads and secrets.
pub(super) const FOLDER_MODE: u32 = 0o700;
pub(super) const FILE_MODE: u32 = 0o600;

pub(super) const DATABASE: &str = "posthaste.db";
/// The lock file, locked by the process that uses the folder.
pub(super) const LOCK: &str = "lock";
const NEW_DATABASE: &str = "posthaste.db-new";
/// The subfolder in which a restore builds the database before it puts it in place.
pub(super) const RESTORING: &str = "restoring";

/// A data folder that this process has locked; the lock is released on drop.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// The lock belongs to the open file: the operating system releases it however the process ends.
    _lock: File,
}

impl Folder {
    /// Creates the folder if it is missing, and locks it.
    pub(super) fn take(path: &Path) -> Result<Self, StoreError> {
        make_private(path).map_err(|error| refused(path, cannot("write in it", &error)))?;
        let lock = take_lock(path)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Reads the database's header without SQLite.
    pub(super) fn header(&self) -> Result<Header, StoreError> {
        Header::read(&self.database()).map_err(|error| self.refused_to("read its posthaste.db", &error))
    }

    /// Whether there is a write-ahead log that is not empty.
    pub(super) fn has_log(&self) -> bool {
        fs::metadata(self.path.join("posthaste.db-wal")).is_ok_and(|log| log.len() > 0)
    }

    pub(super) fn is_half_restored(&self) -> bool {
        self.path.join(RESTORING).exists()
    }

    /// Makes an empty file for a new database; removes the files that an interrupted first start has left.
    pub(super) fn new_database(&self) -> io::Result<PathBuf> {
        for left in ["-journal", "-wal", "-shm", ""] {
            match fs::remove_file(self.path.join(format!("{NEW_DATABASE}{left}"))) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let path = self.path.join(NEW_DATABASE);
        OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path)?;
        Ok(path)
    }

    /// Renames a new database, which must be closed, to the database's own name.
    pub(super) fn put_in_place(&self, new: &Path) -> io::Result<()> {
        File::open(new)?.sync_all()?;
        fs::rename(new, self.database())?;
        sync_folder(&self.path)
    }

    /// Turns an error of SQLite while the database is opened into one that says what it means and what to do.
    pub(super) fn explained(&self, error: StoreError) -> StoreError {
        let what = match fault::code(&error) {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                "its posthaste.db is damaged or cut short; restore it from a backup; nothing was changed"
            }
            Some(ErrorCode::DiskFull) => "the disk is full; free some space and start again",
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                "its posthaste.db cannot be written; it must belong to the user who runs this, on a disk that can be \
                 written"
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another program has its posthaste.db open; close that one first"
            }
            _ => return error,
        };
        self.refused(format!("{what} ({})", fault::chain(&error)))
    }

    /// The error for a system call that failed.
    pub(super) fn refused_to(&self, doing: &str, error: &io::Error) -> StoreError {
        self.refused(cannot(doing, error))
    }

    /// The error that says why the folder cannot be used.
    pub(super) fn refused(&self, reason: String) -> StoreError {
        refused(&self.path, reason)
    }
}

/// Creates the folder if it is missing. An existing folder keeps its permissions: it may be shared on
/// purpose. The files in it are accessible to the owner only either way.
fn make_private(path: &Path) -> io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
    let database = path.join(DATABASE);
    let is_new = !database.exists();
    // The files SQLite adds beside the database get its permissions.
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(database)?;
    if is_new {
        sync_folder(path)?;
        // If a power cut lost the folder's own entry, acknowledged messages would be lost with it.
        missing.into_iter().filter_map(Path::parent).try_for_each(sync_folder)?;
    }
    Ok(())
}

pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// Says which system call failed, and what to do about it.
fn cannot(doing: &str, error: &io::Error) -> String {
    let instead = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space and start again",
        ErrorKind::ReadOnlyFilesystem => "put it on a disk that can be written",
        _ => "it must be a folder of the user who runs this",
    };
    format!("cannot {doing}: {error}; {instead}")
}

fn take_lock(path: &Path) -> Result<File, StoreError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path.join(LOCK))
        .map_err(|error| refused(path, cannot("open its lock", &error)))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(refused(path, held_by(&mut file))),
        Err(TryLockError::Error(error)) => {
            return Err(refused(path, format!("cannot lock it: {error}; it must be on a local disk")));
        }
    }
    // A restore that fails deletes its lock file. A lock on a deleted file does not exclude other processes, so check
    // that this file is still the one in the folder.
    let found = fs::metadata(path.join(LOCK)).ok().zip(file.metadata().ok());
    if found.is_none_or(|(there, own)| (there.dev(), there.ino()) != (own.dev(), own.ino())) {
        return Err(refused(path, "another process had it open and has just left it; try again".to_owned()));
    }
    // The process id is for the error message of a process that finds the folder locked; the lock works without it.
    let note = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    note.map_err(|error| refused(path, cannot("write its lock", &error)))?;
    Ok(file)
}

fn held_by(file: &mut File) -> String {
    let mut holder = String::new();
    let process = match file.read_to_string(&mut holder) {
        Ok(_) if !holder.trim().is_empty() => format!("process {}", holder.trim()),
        _ => "another process".to_owned(),
    };
    format!("{process} has it open; stop that one, or give this one a folder of its own")
}

fn refused(path: &Path, reason: String) -> StoreError {
    StoreError::Folder { folder: path.display().to_string(), reason }
}

/// Marks the file as a Posthaste database; letters, so that `file` and a hex dump show it.
pub(super) const APPLICATION_ID: i64 = 0x5048_7374; // "PHst"

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The kind of file, by its first 100 bytes: read without SQLite, since opening a file with it may already change it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// The file is empty.
    None,
    /// A Posthaste database. The version is the database file's; the write-ahead log may have a newer one.
    Ours { version: u32 },
    /// Another file; the text says what it is.
    Foreign(&'static str),
}

impl Header {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::open(path)?.take(100).read_to_end(&mut bytes)?;
        Ok(Self::of(&bytes))
    }

    fn of(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::None;
        }
        let Some(header) = bytes.first_chunk::<100>() else {
            return Self::Foreign("cut short: not even its first page is whole");
        };
        let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if !header.starts_with(MAGIC) {
            Self::Foreign("no database, or a damaged one")
        } else if i64::from(number(68)) != APPLICATION_ID {
            Self::Foreign("a database of another program")
        } else {
            Self::Ours { version: number(60) }
        }
    }
}
