//! The durable state of one file, and the changes to it that were not synced yet.
//!
//! The bytes that a program reads are in the real file. This module only keeps what a power cut would leave of it.

/// The bytes that a disk writes completely or not at all.
const SECTOR: usize = 512;

/// A file's synced bytes, and the changes that may have reached the disk too.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// Its bytes at the last sync.
    synced: Vec<u8>,
    /// The changes since the last sync, in order.
    changes: Vec<Change>,
    /// Whether the file's directory entry is durable.
    named: NameState,
    /// How many syncs failed. Each failure is reported once to every holder that had the file open.
    pub(super) failed_syncs: u64,
    /// Distinguishes successive files of the same name.
    pub(super) inode: u64,
    /// Whether the process that used the file has ended. The file's modification time was reset then, so that a later
    /// change from outside SQLite is visible.
    pub(super) left: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Cut { len: usize },
}

/// Whether a file's directory entry is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum NameState {
    #[default]
    Yes,
    /// The file was created, perhaps in place of one with the bytes `before`, and its folder was not synced since.
    Perhaps { before: Option<Vec<u8>> },
    /// The file was deleted, and its folder was not synced since.
    PerhapsNot,
}

impl File {
    /// A file that existed before the disk was made; all of it counts as synced.
    pub(super) fn found(bytes: Vec<u8>, inode: u64) -> Self {
        Self { synced: bytes, inode, ..Self::default() }
    }

    /// Records that the whole file was written again and synced.
    pub(super) fn renewed(&mut self, bytes: Vec<u8>) {
        self.synced = bytes;
        self.changes.clear();
    }

    /// Records that the file's beginning was written again and the whole file synced.
    pub(super) fn renewed_head(&mut self, head: &[u8]) {
        self.write(0, head);
        _ = self.sync();
    }

    /// A file that was just created, perhaps in place of another.
    pub(super) fn made(before: Option<Self>, inode: u64) -> Self {
        let before = before.and_then(|old| match old.named {
            NameState::Yes | NameState::PerhapsNot => Some(old.synced),
            NameState::Perhaps { before } => before,
        });
        Self { named: NameState::Perhaps { before }, inode, ..Self::default() }
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.changes.push(Change::Write { at, bytes: bytes.to_vec() });
    }

    pub(super) fn cut_to(&mut self, len: usize) {
        self.changes.push(Change::Cut { len });
    }

    pub(super) fn deleted(&mut self) {
        self.named = match std::mem::take(&mut self.named) {
            // Its own entry was never durable: the file that was there before may come back.
            NameState::Perhaps { before } => {
                self.synced = before.unwrap_or_default();
                NameState::PerhapsNot
            }
            NameState::Yes | NameState::PerhapsNot => NameState::PerhapsNot,
        };
        self.changes.clear();
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.named == NameState::PerhapsNot
    }

    /// A sync that succeeded: all bytes are durable. Returns whether the folder has to be synced as well, because the
    /// file's directory entry is not durable yet.
    #[must_use]
    pub(super) fn sync(&mut self) -> bool {
        for change in std::mem::take(&mut self.changes) {
            apply(&mut self.synced, &change, |_| true);
        }
        matches!(self.named, NameState::Perhaps { .. })
    }

    /// Records that the file's folder was synced.
    pub(super) fn sync_name(&mut self) {
        if !self.is_deleted() {
            self.named = NameState::Yes;
        }
    }

    /// A sync that failed. A part of the changes is durable. The kernel takes all of them as clean and will not write
    /// the rest again.
    pub(super) fn fail_sync(&mut self, dice: &mut fastrand::Rng) {
        self.failed_syncs += 1;
        self.lose(dice);
    }

    /// The bytes that a power cut leaves, or `None` if the file is gone.
    pub(super) fn survivor(mut self, dice: &mut fastrand::Rng) -> Option<Vec<u8>> {
        let named = std::mem::take(&mut self.named);
        self.lose(dice);
        match named {
            NameState::Yes => Some(self.synced),
            NameState::Perhaps { before } => {
                if dice.bool() {
                    Some(self.synced)
                } else {
                    before
                }
            }
            NameState::PerhapsNot => dice.bool().then_some(self.synced),
        }
    }

    /// Applies a random subset of the sectors that were not synced: writes are dropped, torn, and overtaken by later
    /// ones.
    fn lose(&mut self, dice: &mut fastrand::Rng) {
        // Nothing, a part or everything survives; all of these have to occur.
        let share = [0.0, 0.1, 0.5, 0.9, 1.0][dice.usize(..5)];
        for change in std::mem::take(&mut self.changes) {
            apply(&mut self.synced, &change, |_| dice.f64() < share);
        }
    }
}

/// Applies those sectors of a change that `keep` accepts.
fn apply(bytes: &mut Vec<u8>, change: &Change, mut keep: impl FnMut(usize) -> bool) {
    match change {
        Change::Cut { len } => {
            if keep(0) {
                bytes.resize(*len, 0);
            }
        }
        Change::Write { at, bytes: written } => {
            let mut from = 0;
            while from < written.len() {
                // Up to the end of the sector.
                let to = written.len().min(from + SECTOR - (at + from) % SECTOR);
                if keep((at + from) / SECTOR) {
                    let end = at + to;
                    if bytes.len() < end {
                        bytes.resize(end, 0);
                    }
                    bytes[at + from..end].copy_from_slice(&written[from..to]);
                }
                from = to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dice() -> fastrand::Rng {
        fastrand::Rng::with_seed(7)
    }

    #[test]
    fn synced_bytes_survive_a_power_cut() {
        let mut file = File::made(None, 1);
        file.write(0, &[1; 2000]);
        file.cut_to(1500);
        assert!(file.sync(), "a new file needs a sync of its folder");
        file.sync_name();
        assert!(!file.sync(), "the folder was synced");
        assert_eq!(file.survivor(&mut dice()), Some(vec![1; 1500]));
    }

    #[test]
    fn unsynced_sectors_survive_a_power_cut_in_any_combination() {
        let mut dice = dice();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let mut file = File::found(vec![0; 1024], 1);
            file.write(100, &[1; 600]); // the end of one sector, the beginning of the next
            file.write(512, &[2; 512]);
            let left = file.survivor(&mut dice).expect("the file existed before");
            assert!(left[..100].iter().all(|byte| *byte == 0));
            assert!(left[100..512].iter().all(|byte| *byte == left[100]), "a sector survives completely or not at all");
            seen.insert((left[100], left[512], left[1000]));
        }
        let all = [(0, 0, 0), (0, 1, 0), (0, 2, 2), (1, 0, 0), (1, 1, 0), (1, 2, 2)];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
    }

    #[test]
    fn unsynced_directory_entry_may_survive_or_not() {
        let mut dice = dice();
        let mut outcomes =
            |file: &File| (0..50).map(|_| file.clone().survivor(&mut dice).is_some()).collect::<Vec<_>>();
        let made = outcomes(&File::made(None, 1));
        assert!(made.contains(&true) && made.contains(&false));
        let mut deleted = File::found(vec![1], 1);
        deleted.deleted();
        let deleted = outcomes(&deleted);
        assert!(deleted.contains(&true) && deleted.contains(&false));
    }

    #[test]
    fn sync_after_a_failed_sync_does_not_write_the_lost_bytes() {
        let mut dice = dice();
        let lost = (0..50).filter(|_| {
            let mut file = File::found(Vec::new(), 1);
            file.write(0, &[1; 512]);
            file.fail_sync(&mut dice);
            assert!(!file.sync());
            file.survivor(&mut dice).expect("the file is there").is_empty()
        });
        assert!(lost.count() > 5);
    }
}
