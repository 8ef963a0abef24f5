//! Long reads of the file outside the store's own threads: a backup, an audit. The reader, in this or another process,
//! holds a shared lock, so that the writer does not wait at the log's bound for a read that will not end soon. The log
//! grows meanwhile.
//!
//! Invariant: a long reader checks how large the log has grown, and gives up before the log is larger than the
//! database.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{DATABASE, FILE_MODE};

/// The lock file; long readers share the lock.
const LOCK: &str = "reading";
/// During a long read the log may grow to this size even if the database is smaller.
const LOG_BYTES: u64 = 1 << 30;

/// A long read, until it is dropped.
pub(super) struct LongRead {
    // None where the lock file cannot be opened for writing: then the writer waits for this read at the log's bound, a
    // moment for each commit.
    _lock: Option<File>,
    database: PathBuf,
    log: PathBuf,
}

impl LongRead {
    /// Takes the shared lock.
    pub(super) fn begin(folder: &Path) -> Self {
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(folder.join(LOCK));
        // This may wait a moment: the writer takes the lock exclusively to test it.
        let lock = lock.and_then(|lock| lock.lock_shared().map(|()| lock));
        Self { _lock: lock.ok(), database: folder.join(DATABASE), log: folder.join(format!("{DATABASE}-wal")) }
    }

    /// Whether the log has grown so far that the read must end.
    pub(super) fn is_too_long(&self) -> bool {
        let bytes = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        bytes(&self.log) > bytes(&self.database).max(LOG_BYTES)
    }
}

/// Whether a long read is under way, in this process or another.
pub(super) fn is_under_way(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_under_way_until_the_last_reader_ends() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(!is_under_way(folder.path()));
        let (one, two) = (LongRead::begin(folder.path()), LongRead::begin(folder.path()));
        assert!(is_under_way(folder.path()) && !one.is_too_long());
        drop(one);
        assert!(is_under_way(folder.path()));
        drop(two);
        assert!(!is_under_way(folder.path()));
    }
}
