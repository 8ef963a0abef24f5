//! Decides whether the result of a store read may be cached: not if the value changed during the read.
//!
//! A read takes a stamp before it begins. A change is noted once it is durable and before the caller gets its answer.
//! The result of a read is cached only if no change of its key was noted since the stamp. Keys share a fixed number of
//! stripes: a change of one key rarely prevents another key's read from being cached, and never lets an old version in.

use std::hash::Hasher;

use crate::id_map::IdHasher;

/// A power of two. A change prevents about one in this many concurrent reads of other keys from being cached.
const STRIPES: usize = 256;

/// The number of the last change of each stripe of keys.
#[derive(Clone, Debug)]
pub struct ChangeStamps {
    changes: u64,
    /// The number of the last change that concerned all keys.
    of_all: u64,
    stripes: Box<[u64; STRIPES]>,
}

/// How many changes there had been when a read began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadStamp(u64);

impl Default for ChangeStamps {
    fn default() -> Self {
        Self { changes: 0, of_all: 0, stripes: Box::new([0; STRIPES]) }
    }
}

impl ChangeStamps {
    /// The stamp of a read that begins now.
    pub fn now(&self) -> ReadStamp {
        ReadStamp(self.changes)
    }

    pub fn change(&mut self, key: u64) {
        self.changes += 1;
        self.stripes[stripe(key)] = self.changes;
    }

    /// Notes a change that may concern any key.
    pub fn change_all(&mut self) {
        self.changes += 1;
        self.of_all = self.changes;
    }

    /// Whether no change of this key was noted since the read began.
    pub fn is_current(&self, key: u64, read: ReadStamp) -> bool {
        self.of_all.max(self.stripes[stripe(key)]) <= read.0
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low bits alone choose the stripe")]
fn stripe(key: u64) -> usize {
    let mut hasher = IdHasher::default();
    hasher.write_u64(key);
    hasher.finish() as usize % STRIPES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_began_before_a_change_of_its_key_is_out_of_date() {
        let mut stamps = ChangeStamps::default();
        let before = stamps.now();
        stamps.change(7);
        assert!(!stamps.is_current(7, before));
        assert!(stamps.is_current(7, stamps.now()));
    }

    #[test]
    fn a_change_of_one_key_leaves_the_reads_of_nearly_all_others_current() {
        let mut stamps = ChangeStamps::default();
        let before = stamps.now();
        stamps.change(7);
        let refused = (8..1_032).filter(|key| !stamps.is_current(*key, before)).count();
        assert!(refused <= 16, "{refused} of 1,024");
    }

    #[test]
    fn a_change_of_all_keys_puts_every_earlier_read_out_of_date() {
        let mut stamps = ChangeStamps::default();
        let before = stamps.now();
        stamps.change_all();
        assert!((0..100).all(|key| !stamps.is_current(key, before) && stamps.is_current(key, stamps.now())));
    }
}
