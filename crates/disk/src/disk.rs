//! Disks by folder: what each does with a write, a sync, a truncation or a deletion, and what is
//! left of it when the power goes.
//!
//! Pure bookkeeping beside the real files: `vfs` asks before it does anything and tells what it
//! did. A disk is made for a folder with [`Disk::of`]; folders without one are left alone.

mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use file::File;

/// What the store writes again of a database.
const FIRST_PAGE: usize = 8192;

/// A disk under one folder, until it is dropped.
#[derive(Debug)]
pub struct Disk(Shared);

type Shared = Arc<Mutex<State>>;

/// What a disk is asked to do. Each counts, for cuts and faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Write bytes.
    Write,
    /// Put what was written on the disk.
    Sync,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// EIO.
    Broken,
    /// ENOSPC.
    Full,
    /// It says that it went well. A disk that lies, to see whether anybody notices.
    Silent,
}

/// A call that fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Which kind of call.
    pub call: Call,
    /// How it fails.
    pub kind: Kind,
    /// The how-many-th from now on, from 1.
    pub at: u64,
    /// How many fail.
    pub times: u64,
}

#[derive(Debug)]
struct State {
    folder: PathBuf,
    files: BTreeMap<String, File>,
    dice: fastrand::Rng,
    /// Calls that change something, since the disk was made.
    changes: u64,
    cut_at: Option<u64>,
    survivors: Option<BTreeMap<String, Vec<u8>>>,
    fault: Option<Fault>,
    struck: u64,
    room: Option<u64>,
    weakened: bool,
    has_weakened: bool,
}

/// Every disk, by its folder.
static DISKS: Mutex<BTreeMap<PathBuf, Shared>> = Mutex::new(BTreeMap::new());

fn disks() -> MutexGuard<'static, BTreeMap<PathBuf, Shared>> {
    DISKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn locked(disk: &Shared) -> MutexGuard<'_, State> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// The disk of a folder, which must exist. What it does by chance is drawn from `seed`.
    pub fn of(folder: &Path, seed: u64) -> io::Result<Self> {
        crate::vfs::register();
        let folder = folder.canonicalize()?;
        let state = State {
            folder: folder.clone(),
            files: BTreeMap::new(),
            dice: fastrand::Rng::with_seed(seed),
            changes: 0,
            cut_at: None,
            survivors: None,
            fault: None,
            struck: 0,
            room: None,
            weakened: false,
            has_weakened: false,
        };
        let shared = Arc::new(Mutex::new(state));
        disks().insert(folder, Arc::clone(&shared));
        Ok(Self(shared))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    /// Cuts the power at the how-many-th change from now on.
    pub fn cut_at(&self, change: u64) {
        let mut state = self.state();
        state.cut_at = Some(state.changes + change);
    }

    /// Cuts the power now, unless it is cut already.
    pub fn cut(&self) {
        self.state().cut();
    }

    /// Whether the power is cut.
    pub fn is_cut(&self) -> bool {
        self.state().survivors.is_some()
    }

    /// How many changes it was asked to make.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Writes what the cut left into another folder, as one finds it when the power is back.
    pub fn restore_into(&self, folder: &Path) -> io::Result<()> {
        let state = self.state();
        for (name, bytes) in state.survivors.iter().flatten() {
            fs::write(folder.join(name), bytes)?;
        }
        Ok(())
    }

    /// Lets calls fail, in place of those that were to fail before.
    pub fn fail(&self, fault: Fault) {
        self.state().fault = Some(fault);
    }

    /// Nothing fails any more, and there is room without end.
    pub fn heal(&self) {
        let mut state = self.state();
        state.fault = None;
        state.room = None;
    }

    /// Its process has ended, and the next is about to start. The power stays on: what was lost by a
    /// failed sync is still shown to whoever reads.
    pub fn restart(&self) -> io::Result<()> {
        let mut state = self.state();
        let State { folder, files, .. } = &mut *state;
        for (name, file) in files.iter_mut().filter(|(_, file)| !file.is_deleted()) {
            let path = folder.join(name);
            // One that was renamed has another name by now.
            if path.exists() {
                fs::File::options().write(true).open(path)?.set_modified(UNIX_EPOCH)?;
                file.left = true;
            }
        }
        Ok(())
    }

    /// How many calls have failed.
    pub fn struck(&self) -> u64 {
        self.state().struck
    }

    /// Gives the disk so many bytes in all; what is in the folder counts.
    pub fn set_room(&self, bytes: u64) {
        self.state().room = Some(bytes);
    }

    /// Turns `PRAGMA synchronous = FULL` of whoever opens the database into `NORMAL`.
    pub fn weaken(&self) {
        self.state().weakened = true;
    }

    /// Whether somebody's pragma was turned.
    pub fn has_weakened(&self) -> bool {
        self.state().has_weakened
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let folder = self.state().folder.clone();
        disks().remove(&folder);
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is carried out.
    Done,
    /// It fails.
    Fails(Kind),
    /// There is no power.
    Dead,
}

impl State {
    /// Counts a change; whether the power goes at it.
    fn count(&mut self) -> bool {
        self.changes += 1;
        self.cut_at == Some(self.changes)
    }

    fn cut(&mut self) {
        if self.survivors.is_some() {
            return;
        }
        let mut left = BTreeMap::new();
        for (name, file) in std::mem::take(&mut self.files) {
            if let Some(bytes) = file.survivor(&mut self.dice) {
                left.insert(name, bytes);
            }
        }
        self.survivors = Some(left);
    }

    /// Every name is on the disk, and no other.
    fn sync_folder(&mut self) {
        self.files.retain(|_, file| !file.is_deleted());
        self.files.values_mut().for_each(File::sync_name);
    }

    /// Whether this call is one that fails.
    fn strikes(&mut self, call: Call) -> Option<Kind> {
        let fault = self.fault.as_mut().filter(|fault| fault.call == call)?;
        fault.at = fault.at.saturating_sub(1);
        if fault.at > 0 {
            return None;
        }
        let kind = fault.kind;
        fault.times -= 1;
        if fault.times == 0 {
            self.fault = None;
        }
        self.struck += 1;
        Some(kind)
    }

    /// How many of these bytes there is room for.
    fn fitting(&self, name: &str, at: u64, bytes: usize) -> usize {
        let Some(room) = self.room else { return bytes };
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.filter(|entry| !entry.file_name().to_string_lossy().ends_with("-shm"));
        let used: u64 = files.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum();
        let own = fs::metadata(self.folder.join(name)).map_or(0, |file| file.len());
        let end = own + room.saturating_sub(used);
        bytes.min(usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX))
    }
}

/// One open file of a disk, as the VFS holds it.
#[derive(Debug)]
pub(crate) struct Handle {
    disk: Shared,
    name: String,
    /// How many failed syncs of the file it was told of.
    told: u64,
}

/// Where a path lies, if on a disk of ours.
#[derive(Debug)]
pub(crate) struct Place {
    disk: Shared,
    name: String,
}

impl Place {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let disk = Arc::clone(disks().get(path.parent()?)?);
        Some(Self { disk, name: path.file_name()?.to_str()?.to_owned() })
    }

    /// Before the file is opened: whether it is there. `None` when there is no power.
    pub(crate) fn is_there(&self) -> Option<bool> {
        let state = locked(&self.disk);
        state.survivors.is_none().then(|| state.folder.join(&self.name).exists())
    }

    /// The file was opened.
    pub(crate) fn opened(self, was_there: bool) -> Handle {
        let mut state = locked(&self.disk);
        let path = state.folder.join(&self.name);
        let inode = fs::metadata(&path).map_or(0, |file| file.ino());
        let known = state.files.get(&self.name).filter(|file| !file.is_deleted() && file.inode == inode);
        let told = known.map(|file| file.failed_syncs);
        if let Some(file) = state.files.get_mut(&self.name)
            && told.is_some()
        {
            look_for_renewal(file, &path);
        }
        if told.is_none() {
            let before = state.files.remove(&self.name);
            // A file that others made is one they have synced: the store syncs what it makes itself.
            let file = if was_there {
                File::found(fs::read(&path).unwrap_or_default(), inode)
            } else {
                File::made(before, inode)
            };
            state.files.insert(self.name.clone(), file);
        }
        drop(state);
        Handle { disk: self.disk, name: self.name, told: told.unwrap_or(0) }
    }

    /// The file is deleted by `carry_out`.
    pub(crate) fn delete(&self, synced: bool, carry_out: impl FnOnce()) -> Fate {
        let mut state = locked(&self.disk);
        if state.survivors.is_some() {
            return Fate::Dead;
        }
        let cut = state.count();
        carry_out();
        if let Some(file) = state.files.get_mut(&self.name) {
            file.deleted();
        }
        if cut {
            state.cut();
            return Fate::Dead;
        }
        if synced {
            state.sync_folder();
        }
        Fate::Done
    }
}

/// The store writes some bytes once more before SQLite sees them, and without it: all of a log, the
/// first page of a database. That it did shows by the file's time, that it wrote all of them by the
/// store's own tests.
fn look_for_renewal(file: &mut File, path: &Path) {
    if !std::mem::take(&mut file.left) {
        return;
    }
    let touched = fs::metadata(path).and_then(|file| file.modified()).is_ok_and(|at| at != UNIX_EPOCH);
    let mut bytes = fs::read(path).unwrap_or_default();
    match path.extension().is_some_and(|extension| extension == "db-wal") {
        _ if !touched => {}
        true => file.renewed(bytes),
        false => {
            bytes.truncate(FIRST_PAGE);
            file.renewed_head(&bytes);
        }
    }
}

impl Handle {
    pub(crate) fn is_dead(&self) -> bool {
        locked(&self.disk).survivors.is_some()
    }

    /// Bytes are written, by `carry_out` into the real file.
    pub(crate) fn write(&self, at: u64, bytes: &[u8], carry_out: impl FnOnce(&[u8])) -> Fate {
        let mut state = locked(&self.disk);
        if state.survivors.is_some() {
            return Fate::Dead;
        }
        let cut = state.count();
        let mut fate = Fate::Done;
        let mut written = bytes;
        if let Some(kind) = state.strikes(Call::Write) {
            written = &bytes[..state.dice.usize(..bytes.len().max(1))];
            fate = Fate::Fails(kind);
        }
        let fitting = state.fitting(&self.name, at, written.len());
        if fitting < written.len() {
            written = &written[..fitting];
            state.struck += 1;
            fate = Fate::Fails(Kind::Full);
        }
        carry_out(written);
        if let Some(file) = state.files.get_mut(&self.name) {
            file.write(usize::try_from(at).unwrap_or(usize::MAX), written);
        }
        if cut {
            state.cut();
            return Fate::Dead;
        }
        fate
    }

    /// The file is cut to this length, by `carry_out` in reality.
    pub(crate) fn truncate(&self, len: u64, carry_out: impl FnOnce()) -> Fate {
        let mut state = locked(&self.disk);
        if state.survivors.is_some() {
            return Fate::Dead;
        }
        let cut = state.count();
        carry_out();
        if let Some(file) = state.files.get_mut(&self.name) {
            file.cut_to(usize::try_from(len).unwrap_or(usize::MAX));
        }
        if cut {
            state.cut();
            return Fate::Dead;
        }
        Fate::Done
    }

    /// The file is synced. Nothing is done in reality: what a real disk would lose is not the
    /// question here.
    pub(crate) fn sync(&mut self) -> Fate {
        let mut state = locked(&self.disk);
        if state.survivors.is_some() {
            return Fate::Dead;
        }
        if state.count() {
            state.cut();
            return Fate::Dead;
        }
        let struck = state.strikes(Call::Sync);
        let State { files, dice, .. } = &mut *state;
        let Some(file) = files.get_mut(&self.name) else { return Fate::Done };
        if let Some(kind) = struck {
            file.fail_sync(dice);
            self.told = file.failed_syncs;
            return if kind == Kind::Silent { Fate::Done } else { Fate::Fails(kind) };
        }
        // Another of its holders was told that a sync failed; so is this one, once.
        if file.failed_syncs > self.told {
            file.fail_sync(dice);
            self.told = file.failed_syncs;
            return Fate::Fails(Kind::Broken);
        }
        // The unix VFS syncs the folder with the first sync of a file it has made.
        if file.sync() {
            state.sync_folder();
        }
        Fate::Done
    }

    /// Whether a pragma that asks for every commit to be synced is to ask for less.
    pub(crate) fn weakens(&self) -> bool {
        let mut state = locked(&self.disk);
        state.has_weakened |= state.weakened;
        state.weakened
    }
}
