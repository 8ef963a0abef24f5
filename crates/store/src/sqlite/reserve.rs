//! Room held in reserve for the day the disk is full: a file that is given up so that what was
//! sent can still be settled.
//!
//! Invariant: while the reserve is given up nothing new is accepted; it is made again before
//! anything is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};

use super::folder::{FILE_MODE, Folder};
use crate::StoreError;

const NAME: &str = "reserve";

/// The reserve of a data folder.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
    // One lock for file and state: two threads give up and make again.
    state: Mutex<State>,
}

/// Where the room has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is held.
    Held,
    /// The disk is full and the room is the settles'. It is made again as soon as there is some.
    GivenUp,
    /// Not even settles find room: what the writer holds needs it before the reserve does.
    Stuck,
}

impl Reserve {
    /// Makes the reserve of a folder, or finds that there is no room for it: then the store begins
    /// as one whose disk is full.
    pub(super) fn open(folder: &Folder, bytes: u64) -> Result<Self, StoreError> {
        let path = folder.path().join(NAME);
        let reserve = Self { path, bytes, state: Mutex::new(State::GivenUp) };
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the disk is full, as far as we know: nothing new may be accepted.
    pub(super) fn is_given_up(&self) -> bool {
        *self.state() != State::Held
    }

    /// Whether not even settles find room.
    pub(super) fn is_stuck(&self) -> bool {
        *self.state() == State::Stuck
    }

    /// A write found no room: gives up what there is, or finds that there was nothing left.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        match *state {
            State::Held => {
                *state = State::GivenUp;
                tracing::error!(
                    "the disk is full: nothing is accepted until space is freed; the reserve goes to settles"
                );
                self.remove();
            }
            State::GivenUp | State::Stuck => {}
        }
    }

    /// The writer found no room although there is nothing left to give up.
    pub(super) fn set_stuck(&self) {
        *self.state() = State::Stuck;
    }

    /// The writer found room.
    pub(super) fn unstick(&self) {
        let mut state = self.state();
        if *state == State::Stuck {
            *state = State::GivenUp;
        }
    }

    /// Tries to make the reserve again; accepting resumes when that goes well.
    pub(super) fn try_again(&self) {
        match self.make() {
            Ok(()) => {}
            Err(error) if is_full(&error) => {}
            Err(error) => tracing::warn!(%error, "cannot make the reserve"),
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
                tracing::debug!(bytes = self.bytes, "the reserve is there");
            }
            // Half a reserve is room that settles miss.
            Err(_) => self.remove(),
        }
        made
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot give up the reserve");
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
