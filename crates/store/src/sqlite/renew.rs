//! Writes the log of an earlier process to the disk once more, before anything is appended to it.
//!
//! After a failed sync the operating system may mark pages it could not write as clean: processes still read them from
//! the cache, and no later sync writes them. A start that recovered from such a log would acknowledge commits that come
//! after frames that are not on the disk, and a power cut would lose them all. So every start writes the same bytes to
//! the same places again, and syncs them. A power cut meanwhile does no harm, since the bytes are the same.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Folder, PAGE_BYTES};
use crate::StoreError;

/// How many bytes are read and written at a time.
const CHUNK: usize = 1 << 20;

/// Rewrites and syncs the log and the first page of the database. Every other page of the database is either synced or
/// still in the log.
pub(super) fn renew(folder: &Folder) -> Result<(), StoreError> {
    let database = folder.database();
    let mut log = database.clone().into_os_string();
    log.push("-wal");
    for (path, bytes) in [(database.as_path(), PAGE_BYTES), (Path::new(&log), u64::MAX)] {
        rewrite(path, bytes).map_err(|error| folder.refused_to("write its database", &error))?;
    }
    Ok(())
}

fn rewrite(path: &Path, bytes: u64) -> io::Result<()> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let end = file.metadata()?.len().min(bytes);
    if end == 0 {
        return Ok(());
    }
    copy_onto_itself(&file, end)?;
    file.sync_all()
}

fn copy_onto_itself(file: &File, end: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < end {
        let len = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
        file.read_exact_at(&mut chunk[..len], at)?;
        file.write_all_at(&chunk[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rewriting_a_file_leaves_its_bytes_unchanged() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("some");
        rewrite(&path, 10).expect("nothing to write");
        let bytes: Vec<u8> = (0..2_500_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        fs::write(&path, &bytes).expect("a file");
        rewrite(&path, u64::MAX).expect("it is there");
        rewrite(&path, PAGE_BYTES).expect("it is there");
        assert!(fs::read(&path).expect("it is there") == bytes);
    }
}
