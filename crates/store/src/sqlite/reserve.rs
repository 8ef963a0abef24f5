//! Disk space held in reserve: a file that is deleted when the disk is full, so that deliveries that were
//! sent can still be settled.
//!
//! Invariant: while the reserve is given up no message is accepted; accepting resumes only when the
//! reserve has been made again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};

use super::{FILE_MODE, Folder};
use crate::StoreError;

const NAME: &str = "reserve";

pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
    // Covers the file too: two threads delete it and make it again.
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    /// The disk is full, and settles use the space. The file is made again as soon as there is room for it.
    GivenUp,
    /// Not even settles find room. New space goes to the requests that the writer holds, before the reserve is made
    /// again.
    Stuck,
}

impl Reserve {
    /// Makes the reserve in a folder. If there is no room for it, the store starts in the state of a full disk.
    pub(super) fn open(folder: &Folder, bytes: u64) -> Result<Self, StoreError> {
        let path = folder.path.join(NAME);
        let reserve = Self { path, bytes, state: Mutex::new(State::GivenUp) };
        match reserve.make() {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                tracing::warn!(
                    reserve_bytes = bytes,
                    "the disk has no room for its reserve: no message is accepted until space is freed"
                );
            }
            Err(error) => return Err(folder.refused(format!("cannot make its file {NAME}: {error}"))),
        }
        Ok(reserve)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the disk is considered full: no message may be accepted.
    pub(super) fn is_given_up(&self) -> bool {
        *self.state() != State::Held
    }

    /// Whether the disk is full even for settles.
    pub(super) fn is_stuck(&self) -> bool {
        *self.state() == State::Stuck
    }

    /// Deletes the reserve after a write found no room; does nothing if it is deleted already.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        match *state {
            State::Held => {
                *state = State::GivenUp;
                tracing::error!(
                    "the disk is full: no message is accepted until space is freed; its reserve serves to record outcomes"
                );
                self.remove();
            }
            State::GivenUp | State::Stuck => {}
        }
    }

    /// Notes that a write found no room although the reserve is deleted.
    pub(super) fn set_stuck(&self) {
        *self.state() = State::Stuck;
    }

    /// Notes that the writer found room again.
    pub(super) fn unstick(&self) {
        let mut state = self.state();
        if *state == State::Stuck {
            *state = State::GivenUp;
        }
    }

    /// Tries to make the reserve again; accepting resumes when that succeeds.
    pub(super) fn try_again(&self) {
        match self.make() {
            Ok(()) => {}
            Err(error) if is_full(&error) => {}
            Err(error) => tracing::warn!(%error, "cannot make the disk reserve again; no message is accepted"),
        }
    }

    fn make(&self) -> io::Result<()> {
        let mut state = self.state();
        if *state != State::GivenUp {
            return Ok(());
        }
        let made = self.allocate();
        match made {
            Ok(()) => {
                *state = State::Held;
                tracing::debug!(bytes = self.bytes, "reserve made");
            }
            // Part of a reserve is no use, and takes space that settles need.
            Err(_) => self.remove(),
        }
        made
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot delete the disk reserve");
        }
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
            // On a file system without fallocate, write the bytes.
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
    fn reserve_occupies_blocks_and_is_made_again_after_being_given_up() {
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
