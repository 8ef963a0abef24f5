//! The data folder: one process at a time, and nobody else reads it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::StoreError;

/// The owner's alone: payloads and secrets are in it.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

const DATABASE: &str = "posthaste.db";

/// A data folder this process has to itself, until it is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// The lock is the open file's: the system frees it however the process ends.
    _lock: File,
}

impl Folder {
    /// Makes the folder if it is missing, and takes it.
    pub(super) fn take(path: &Path) -> Result<Self, StoreError> {
        make_private(path).map_err(|error| refused(path, format!("{error}; it must be a folder of your own")))?;
        let lock = take_lock(path)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The database in it.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Why it cannot be used.
    pub(super) fn refused(&self, reason: String) -> StoreError {
        refused(&self.path, reason)
    }
}

/// Makes the folder if it is missing. One that is there keeps its permissions: it may be shared on
/// purpose. What is kept in it is the owner's alone either way.
fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
    // The files SQLite adds beside the database get its permissions.
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path.join(DATABASE))?;
    Ok(())
}

fn take_lock(path: &Path) -> Result<File, StoreError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path.join("lock"))
        .map_err(|error| refused(path, format!("cannot open its lock: {error}")))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(refused(path, held_by(&mut file))),
        Err(TryLockError::Error(error)) => {
            return Err(refused(path, format!("cannot lock it: {error}; it must be on a local disk")));
        }
    }
    // For whoever finds the folder taken; the lock holds without it.
    let note = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    note.map_err(|error| refused(path, format!("cannot write lock: {error}")))?;
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
