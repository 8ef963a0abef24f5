//! Room held in reserve for the day the disk is full: a file that is given up so that what was
//! sent can still be settled.
//!
//! Invariant: while the reserve is given up nothing new is accepted; it is made again before
//! anything is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, fallocate};

use super::folder::{FILE_MODE, Folder};
use crate::StoreError;

const NAME: &str = "reserve";

/// The reserve of a data folder.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
    given_up: AtomicBool,
    stuck: AtomicBool,
}

impl Reserve {
    /// Makes the reserve of a folder, or finds that there is no room for it: then the store begins
    /// as one whose disk is full.
    pub(super) fn open(folder: &Folder, bytes: u64) -> Result<Self, StoreError> {
        let path = folder.path().join(NAME);
        let reserve = Self { path, bytes, given_up: AtomicBool::new(true), stuck: AtomicBool::new(false) };
        match reserve.make() {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                tracing::warn!(
                    reserve_bytes = bytes,
                    "the disk has no room for the reserve: nothing is accepted until space is freed"
                );
            }
            Err(error) => return Err(folder.refused(format!("cannot make its file {NAME}: {error}"))),
        }
        Ok(reserve)
    }

    /// Whether the disk is full, as far as we know: nothing new may be accepted.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Gives the room to whoever writes next.
    pub(super) fn give_up(&self) {
        if !self.given_up.swap(true, Ordering::AcqRel) {
            tracing::error!("the disk is full: nothing is accepted until space is freed; the reserve goes to settles");
        }
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot give up the reserve");
        }
    }

    /// Whether not even settles find room; see [`Reserve::set_stuck`].
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    /// The writer holds what it could not write: it needs the room before the reserve does.
    pub(super) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Release);
    }

    /// Tries to make the reserve again; accepting resumes when that goes well.
    pub(super) fn try_again(&self) {
        match self.make() {
            Ok(()) => tracing::info!("there is room on the disk again: messages are accepted"),
            Err(error) if is_full(&error) => {}
            Err(error) => tracing::warn!(%error, "cannot make the reserve"),
        }
    }

    fn make(&self) -> io::Result<()> {
        let made = self.allocate();
        match made {
            Ok(()) => self.given_up.store(false, Ordering::Release),
            // Half a reserve is room that settles miss.
            Err(_) => _ = fs::remove_file(&self.path),
        }
        made
    }

    fn allocate(&self) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(&self.path)?;
        if file.metadata()?.len() != self.bytes {
            file.set_len(0)?;
        }
        match fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
            // A disk that cannot promise room has to be filled.
            Err(rustix::io::Errno::OPNOTSUPP) => fill(&file, self.bytes),
            allocated => Ok(allocated?),
        }
    }
}

fn fill(mut file: &File, bytes: u64) -> io::Result<()> {
    let block = [0x5a; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let next = left.min(block.len() as u64);
        file.write_all(&block[..usize::try_from(next).unwrap_or(block.len())])?;
        left -= next;
    }
    Ok(())
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_reserve_is_room_and_not_only_a_length() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let taken = Folder::take(folder.path()).expect("a folder of its own");
        let reserve = Reserve::open(&taken, 1 << 20).expect("there is room");
        let file = || fs::metadata(folder.path().join(NAME));
        let blocks = file().expect("it is there").blocks();
        assert!(blocks * 512 >= 1 << 20, "{blocks} blocks");
        assert!(!reserve.is_given_up());

        reserve.give_up();
        reserve.give_up();
        assert!(reserve.is_given_up() && file().is_err(), "its room is free");
        reserve.try_again();
        assert!(!reserve.is_given_up());
        assert_eq!(file().expect("it is there").len(), 1 << 20);

        let smaller = Reserve::open(&taken, 4096).expect("there is room");
        assert!(!smaller.is_given_up());
        assert_eq!(file().expect("it is there").len(), 4096, "a smaller one leaves nothing of a larger");
    }
}
