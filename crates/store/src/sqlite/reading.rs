//! Long reads of the file by others than the store's own threads: a backup, an audit. Whoever makes one holds a lock,
//! in whatever process, so that the writer does not wait at the log's bound for a read that will not end soon. The
//! log grows meanwhile.
//!
//! Invariant: whoever reads for so long looks how much was written, and gives up rather than let the log grow beyond
//! the database.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::folder::{DATABASE, FILE_MODE};

/// Held, beside others, by whoever reads for long.
const LOCK: &str = "reading";
/// The log may grow so far in any case while somebody reads.
const LOG_BYTES: u64 = 1 << 30;

/// A long read, until it is dropped.
pub(super) struct Reading {
    // None where we may not write: then the writer waits for us at the log's bound, a moment for each commit.
    _lock: Option<File>,
    database: PathBuf,
    log: PathBuf,
}

impl Reading {
    /// Says that one begins.
    pub(super) fn begin(folder: &Path) -> Self {
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(folder.join(LOCK));
        // The writer has it to itself for the moment of a look.
        let lock = lock.and_then(|lock| lock.lock_shared().map(|()| lock));
        Self { _lock: lock.ok(), database: folder.join(DATABASE), log: folder.join(format!("{DATABASE}-wal")) }
    }

    /// Whether so much was written meanwhile that the read must end.
    pub(super) fn is_too_long(&self) -> bool {
        let bytes = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        bytes(&self.log) > bytes(&self.database).max(LOG_BYTES)
    }
}

/// Whether somebody reads for long, in this process or another.
pub(super) fn is_under_way(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_read_at_once_and_the_last_one_ends_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(!is_under_way(folder.path()));
        let (one, two) = (Reading::begin(folder.path()), Reading::begin(folder.path()));
        assert!(is_under_way(folder.path()) && !one.is_too_long());
        drop(one);
        assert!(is_under_way(folder.path()));
        drop(two);
        assert!(!is_under_way(folder.path()));
    }
}
