//! Whether what was read from a store may still be cached: not if it was changed while the read was under way.
//!
//! A read takes a stamp before it begins. A change is noted once it is durable, before it is answered. What a read
//! brings is cached only if nothing noted since then concerns it. Keys share a fixed number of stripes, so a change
//! of one key rarely keeps the read of another from being cached, and never lets an old version in.

use std::hash::Hasher;

use crate::id_map::IdHasher;

/// Stripes, as a power of two: a change refuses about one in so many reads of other keys that are under way.
const STRIPES: usize = 256;

/// When each stripe of keys was last changed, in numbers that count changes.
#[derive(Clone, Debug)]
pub struct ChangeStamps {
    changes: u64,
    /// The last change of every key at once.
    of_all: u64,
    stripes: Box<[u64; STRIPES]>,
}

/// A moment among the changes: a read that has it began then.
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

    /// Notes a change of a key.
    pub fn change(&mut self, key: u64) {
        self.changes += 1;
        self.stripes[stripe(key)] = self.changes;
    }

    /// Notes a change of keys that are not known one by one.
    pub fn change_all(&mut self) {
        self.changes += 1;
        self.of_all = self.changes;
    }

    /// Whether what was read of a key is still what is stored.
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
