//! Simulated disks by folder: what each does with a write, a sync, a truncation or a deletion, and what is left on it
//! after a power cut.
//!
//! This module only keeps records beside the real files: `vfs` asks it before each operation and reports what it did. A
//! disk is made for a folder with [`FaultyDisk::of`]; files in other folders are not affected.

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

/// How many bytes of the database the store writes again at a start: its first page.
const FIRST_PAGE: usize = 8192;

/// The simulated disk of one folder. It applies until it is dropped.
#[derive(Debug)]
pub struct FaultyDisk(Shared);

type Shared = Arc<Mutex<State>>;

/// A call to a disk that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskCall {
    Write,
    /// Make written bytes durable.
    Sync,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// EIO.
    Broken,
    /// ENOSPC.
    Full,
    /// The call reports success although it failed. Used by controls: a proof must notice such a disk.
    Silent,
}

/// A fault to inject: which calls fail, and how.
#[derive(Clone, Copy, Debug)]
pub struct DiskFault {
    /// The kind of call that fails.
    pub call: DiskCall,
    /// The way in which it fails.
    pub kind: FaultKind,
    /// The first call to fail, counted from now on; 1 is the next call.
    pub at: u64,
    /// How many calls fail, beginning with that one.
    pub times: u64,
}

#[derive(Debug)]
struct State {
    folder: PathBuf,
    files: BTreeMap<String, File>,
    dice: fastrand::Rng,
    /// Writes, syncs, truncations and deletions since the disk was made.
    changes: u64,
    cut_at: Option<u64>,
    survivors: Option<BTreeMap<String, Vec<u8>>>,
    fault: Option<DiskFault>,
    struck: u64,
    room: Option<u64>,
    weakened: bool,
    has_weakened: bool,
}

/// The disks of this process, by folder.
static DISKS: Mutex<BTreeMap<PathBuf, Shared>> = Mutex::new(BTreeMap::new());

fn disks() -> MutexGuard<'static, BTreeMap<PathBuf, Shared>> {
    DISKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn locked(disk: &Shared) -> MutexGuard<'_, State> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FaultyDisk {
    /// Makes the disk of a folder, which must exist. Its random choices are drawn from `seed`.
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

    /// Cuts the power at a change, counted from now on; 1 is the next change.
    pub fn cut_at(&self, change: u64) {
        let mut state = self.state();
        state.cut_at = Some(state.changes + change);
    }

    /// Cuts the power now, unless it is cut already.
    pub fn cut(&self) {
        self.state().cut();
    }

    pub fn is_cut(&self) -> bool {
        self.state().survivors.is_some()
    }

    /// How many changes were requested: writes, syncs, truncations and deletions.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Writes the files that survived the power cut into another folder.
    pub fn restore_into(&self, folder: &Path) -> io::Result<()> {
        let state = self.state();
        for (name, bytes) in state.survivors.iter().flatten() {
            fs::write(folder.join(name), bytes)?;
        }
        Ok(())
    }

    /// Injects a fault. It replaces an earlier one.
    pub fn fail(&self, fault: DiskFault) {
        self.state().fault = Some(fault);
    }

    /// Removes the fault and the limit on space.
    pub fn heal(&self) {
        let mut state = self.state();
        state.fault = None;
        state.room = None;
    }

    /// Marks that the process using the disk has ended and that the next one is about to start. The power stays on:
    /// readers still see bytes that a failed sync lost.
    pub fn restart(&self) -> io::Result<()> {
        let mut state = self.state();
        let State { folder, files, .. } = &mut *state;
        for (name, file) in files.iter_mut().filter(|(_, file)| !file.is_deleted()) {
            let path = folder.join(name);
            // A file that was renamed is no longer under this name.
            if path.exists() {
                fs::File::options().write(true).open(path)?.set_modified(UNIX_EPOCH)?;
                file.left = true;
            }
        }
        Ok(())
    }

    /// How many calls have failed so far.
    pub fn struck(&self) -> u64 {
        self.state().struck
    }

    /// Limits the disk to a total number of bytes, including the files that are in the folder already.
    pub fn set_room(&self, bytes: u64) {
        self.state().room = Some(bytes);
    }

    /// Turns `PRAGMA synchronous = FULL` into `NORMAL` on every connection to the database.
    pub fn weaken(&self) {
        self.state().weakened = true;
    }

    /// Whether such a pragma was changed.
    pub fn has_weakened(&self) -> bool {
        self.state().has_weakened
    }
}

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        let folder = self.state().folder.clone();
        disks().remove(&folder);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFate {
    /// It is carried out.
    Done,
    Fails(FaultKind),
    /// There is no power.
    Dead,
}

impl State {
    /// Counts a change. Returns whether the power is to be cut at it.
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

    /// Makes the creations and deletions of files durable.
    fn sync_folder(&mut self) {
        self.files.retain(|_, file| !file.is_deleted());
        self.files.values_mut().for_each(File::sync_name);
    }

    /// How this call fails, if it is one that is to fail.
    fn strikes(&mut self, call: DiskCall) -> Option<FaultKind> {
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

    /// How many of `bytes` bytes, written at offset `at`, there is room for.
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
pub(crate) struct OpenFile {
    disk: Shared,
    name: String,
    /// How many failed syncs of the file were reported to this holder.
    reported: u64,
}

#[derive(Debug)]
pub(crate) struct DiskPath {
    disk: Shared,
    name: String,
}

impl DiskPath {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let disk = Arc::clone(disks().get(path.parent()?)?);
        Some(Self { disk, name: path.file_name()?.to_str()?.to_owned() })
    }

    /// Whether the file exists; called before it is opened. `None` if the power is cut.
    pub(crate) fn is_there(&self) -> Option<bool> {
        let state = locked(&self.disk);
        state.survivors.is_none().then(|| state.folder.join(&self.name).exists())
    }

    pub(crate) fn opened(self, was_there: bool) -> OpenFile {
        let mut state = locked(&self.disk);
        let path = state.folder.join(&self.name);
        let inode = fs::metadata(&path).map_or(0, |file| file.ino());
        let known = state.files.get(&self.name).filter(|file| !file.is_deleted() && file.inode == inode);
        let reported = known.map(|file| file.failed_syncs);
        if let Some(file) = state.files.get_mut(&self.name)
            && reported.is_some()
        {
            look_for_renewal(file, &path);
        }
        if reported.is_none() {
            let before = state.files.remove(&self.name);
            // A file that existed before the disk knew it is taken as synced; files the store makes are tracked.
            let file = if was_there {
                File::found(fs::read(&path).unwrap_or_default(), inode)
            } else {
                File::made(before, inode)
            };
            state.files.insert(self.name.clone(), file);
        }
        drop(state);
        OpenFile { disk: self.disk, name: self.name, reported: reported.unwrap_or(0) }
    }

    /// Records that the file is deleted; `carry_out` deletes the real file.
    pub(crate) fn delete(&self, synced: bool, carry_out: impl FnOnce()) -> CallFate {
        change(&self.disk, |state, cut| {
            carry_out();
            if let Some(file) = state.files.get_mut(&self.name) {
                file.deleted();
            }
            if synced && !cut {
                state.sync_folder();
            }
            CallFate::Done
        })
    }
}

/// Makes a change of the disk. `make` also gets whether the power is cut right after it.
fn change(disk: &Shared, make: impl FnOnce(&mut State, bool) -> CallFate) -> CallFate {
    let mut state = locked(disk);
    if state.survivors.is_some() {
        return CallFate::Dead;
    }
    let cut = state.count();
    let fate = make(&mut state, cut);
    if cut {
        state.cut();
        return CallFate::Dead;
    }
    fate
}

/// Records what the store wrote again at its start. Before SQLite reads a log or a database, the store writes the
/// whole log and the first page of the database once more, without going through SQLite and so unseen by this disk.
/// The file's modification time shows that it did; that it wrote all of those bytes is checked by the store's own
/// tests.
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

impl OpenFile {
    pub(crate) fn is_dead(&self) -> bool {
        locked(&self.disk).survivors.is_some()
    }

    /// Records a write; `carry_out` writes the given bytes, which may be fewer, into the real file.
    pub(crate) fn write(&self, at: u64, bytes: &[u8], carry_out: impl FnOnce(&[u8])) -> CallFate {
        change(&self.disk, |state, _| {
            let mut fate = CallFate::Done;
            let mut written = bytes;
            if let Some(kind) = state.strikes(DiskCall::Write) {
                written = &bytes[..state.dice.usize(..bytes.len().max(1))];
                fate = CallFate::Fails(kind);
            }
            let fitting = state.fitting(&self.name, at, written.len());
            if fitting < written.len() {
                written = &written[..fitting];
                state.struck += 1;
                fate = CallFate::Fails(FaultKind::Full);
            }
            carry_out(written);
            if let Some(file) = state.files.get_mut(&self.name) {
                file.write(usize::try_from(at).unwrap_or(usize::MAX), written);
            }
            fate
        })
    }

    /// Records that the file is truncated to `len` bytes; `carry_out` truncates the real file.
    pub(crate) fn truncate(&self, len: u64, carry_out: impl FnOnce()) -> CallFate {
        change(&self.disk, |state, _| {
            carry_out();
            if let Some(file) = state.files.get_mut(&self.name) {
                file.cut_to(usize::try_from(len).unwrap_or(usize::MAX));
            }
            CallFate::Done
        })
    }

    /// Records a sync. The real file is not synced: these proofs do not cut the real disk's power.
    pub(crate) fn sync(&mut self) -> CallFate {
        change(&self.disk, |state, cut| {
            if cut {
                return CallFate::Dead;
            }
            let struck = state.strikes(DiskCall::Sync);
            let Some(file) = state.files.get_mut(&self.name) else { return CallFate::Done };
            // A sync of another holder failed: as the kernel does, report that once to this holder too.
            let kind = struck.or((file.failed_syncs > self.reported).then_some(FaultKind::Broken));
            if let Some(kind) = kind {
                file.fail_sync(&mut state.dice);
                self.reported = file.failed_syncs;
                return if kind == FaultKind::Silent { CallFate::Done } else { CallFate::Fails(kind) };
            }
            // The unix VFS syncs the folder together with the first sync of a file that it has created.
            if file.sync() {
                state.sync_folder();
            }
            CallFate::Done
        })
    }

    /// Whether `synchronous = FULL` is to be weakened. Notes that it was, if so.
    pub(crate) fn weakens(&self) -> bool {
        let mut state = locked(&self.disk);
        state.has_weakened |= state.weakened;
        state.weakened
    }
}
