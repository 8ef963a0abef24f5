//! Hash maps by id. Ids are small ascending integers, so a multiplication is a sufficient hash. It is also the
//! same in every process, which keeps the core free of hidden randomness. Code must not iterate over
//! these maps: their order has no meaning.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
pub type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

/// Hashes one id by a multiplication that spreads its low bits over the high ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // 2^64 divided by the golden ratio, odd: consecutive ids land far apart.
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ids_spread_over_the_low_bits_a_table_uses() {
        let mut buckets = [0_u32; 64];
        for id in 0..6_400_u64 {
            let mut hasher = IdHasher::default();
            hasher.write_u64(id);
            buckets[usize::try_from(hasher.finish() & 63).expect("below 64")] += 1;
        }
        assert!(buckets.iter().all(|count| (50..=150).contains(count)), "{buckets:?}");
    }
}
