//! One file as the disk has it, and what the system has not told the disk yet.
//!
//! The bytes a program reads are in the real file; here is only what a power cut would leave of it.

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// What is on the disk for certain, and what may be.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// Its bytes at the last sync.
    synced: Vec<u8>,
    /// What was done to it since, in order.
    changes: Vec<Change>,
    /// Whether its name is on the disk.
    named: Named,
    /// How often a sync failed: everybody who had the file open then is told once.
    pub(super) failed_syncs: u64,
    /// Tells one file of a name from the next.
    pub(super) inode: u64,
    /// Whether its process is gone, and its time was set so that a change from outside shows.
    pub(super) left: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Cut { len: usize },
}

/// Whether a file's name is on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Named {
    /// It is.
    #[default]
    Yes,
    /// It was made, or made anew in place of one with these bytes, and nobody has synced it.
    Perhaps { before: Option<Vec<u8>> },
    /// It was deleted, and nobody has synced that.
    PerhapsNot,
}

impl File {
    /// A file that was there, whole, before we looked.
    pub(super) fn found(bytes: Vec<u8>, inode: u64) -> Self {
        Self { synced: bytes, inode, ..Self::default() }
    }

    /// Somebody wrote all of it again and synced it.
    pub(super) fn renewed(&mut self, bytes: Vec<u8>) {
        self.synced = bytes;
        self.changes.clear();
    }

    /// Somebody wrote its beginning again and synced the whole.
    pub(super) fn renewed_head(&mut self, head: &[u8]) {
        self.write(0, head);
        _ = self.sync();
    }

    /// A file that was just made in place of another, if there was one.
    pub(super) fn made(before: Option<Self>, inode: u64) -> Self {
        let before = before.and_then(|old| match old.named {
            Named::Yes | Named::PerhapsNot => Some(old.synced),
            Named::Perhaps { before } => before,
        });
        Self { named: Named::Perhaps { before }, inode, ..Self::default() }
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.changes.push(Change::Write { at, bytes: bytes.to_vec() });
    }

    pub(super) fn cut_to(&mut self, len: usize) {
        self.changes.push(Change::Cut { len });
    }

    pub(super) fn deleted(&mut self) {
        self.named = match std::mem::take(&mut self.named) {
            // Never on the disk: what was there before may come back.
            Named::Perhaps { before } => {
                self.synced = before.unwrap_or_default();
                Named::PerhapsNot
            }
            Named::Yes | Named::PerhapsNot => Named::PerhapsNot,
        };
        self.changes.clear();
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.named == Named::PerhapsNot
    }

    /// A sync that went well: all of it is on the disk. Its name is its folder's business; whether
    /// that has to be synced as well.
    #[must_use]
    pub(super) fn sync(&mut self) -> bool {
        for change in std::mem::take(&mut self.changes) {
            apply(&mut self.synced, &change, |_| true);
        }
        matches!(self.named, Named::Perhaps { .. })
    }

    /// Its folder was synced.
    pub(super) fn sync_name(&mut self) {
        if !self.is_deleted() {
            self.named = Named::Yes;
        }
    }

    /// A sync that failed. Some of it is on the disk; the system believes that all of it is, and
    /// will not write the rest again.
    pub(super) fn fail_sync(&mut self, dice: &mut fastrand::Rng) {
        self.failed_syncs += 1;
        self.lose(dice);
    }

    /// What a power cut leaves, if anything.
    pub(super) fn survivor(mut self, dice: &mut fastrand::Rng) -> Option<Vec<u8>> {
        let named = std::mem::take(&mut self.named);
        self.lose(dice);
        match named {
            Named::Yes => Some(self.synced),
            Named::Perhaps { before } => {
                if dice.bool() {
                    Some(self.synced)
                } else {
                    before
                }
            }
            Named::PerhapsNot => dice.bool().then_some(self.synced),
        }
    }

    /// Any subset of what was not synced reaches the disk, by sectors: so writes are dropped, torn,
    /// and overtaken by later ones.
    fn lose(&mut self, dice: &mut fastrand::Rng) {
        // Most, some or none: each kind of luck has to come up.
        let share = [0.0, 0.1, 0.5, 0.9, 1.0][dice.usize(..5)];
        for change in std::mem::take(&mut self.changes) {
            apply(&mut self.synced, &change, |_| dice.f64() < share);
        }
    }
}

/// Makes a change, sector by sector as `keep` says.
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
                // To the next border of a sector of the file.
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
    fn what_was_synced_survives() {
        let mut file = File::made(None, 1);
        file.write(0, &[1; 2000]);
        file.cut_to(1500);
        assert!(file.sync(), "it is new");
        file.sync_name();
        assert!(!file.sync(), "it has its name");
        assert_eq!(file.survivor(&mut dice()), Some(vec![1; 1500]));
    }

    #[test]
    fn what_was_not_synced_survives_by_sectors_and_in_any_combination() {
        let mut dice = dice();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let mut file = File::found(vec![0; 1024], 1);
            file.write(100, &[1; 600]); // the end of one sector, the beginning of the next
            file.write(512, &[2; 512]);
            let left = file.survivor(&mut dice).expect("it was there before");
            assert!(left[..100].iter().all(|byte| *byte == 0));
            assert!(left[100..512].iter().all(|byte| *byte == left[100]), "a sector is whole");
            seen.insert((left[100], left[512], left[1000]));
        }
        let all = [(0, 0, 0), (0, 1, 0), (0, 2, 2), (1, 0, 0), (1, 1, 0), (1, 2, 2)];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
    }

    #[test]
    fn a_name_that_was_not_synced_may_be_there_or_not() {
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
    fn after_a_failed_sync_nothing_writes_the_rest_again() {
        let mut dice = dice();
        let lost = (0..50).filter(|_| {
            let mut file = File::found(Vec::new(), 1);
            file.write(0, &[1; 512]);
            file.fail_sync(&mut dice);
            assert!(!file.sync());
            file.survivor(&mut dice).expect("it is there").is_empty()
        });
        assert!(lost.count() > 5);
    }
}
