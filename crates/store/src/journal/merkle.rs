//! A Merkle tree over a row's entries, hashed as RFC 6962 does: leaves and nodes cannot be mistaken
//! for each other, and what is left over on a level goes up as it is.

use posthaste_crypto::digest::{Digest, sha256};

use super::NO_DIGEST;

const LEAF: &[u8] = &[0];
const NODE: &[u8] = &[1];

/// The leaf of an entry.
pub(super) fn leaf(entry: &[u8]) -> Digest {
    sha256(&[LEAF, entry])
}

/// The root over these leaves; of none it is [`NO_DIGEST`].
pub(super) fn root(mut level: Vec<Digest>) -> Digest {
    while level.len() > 1 {
        let pairs = level.len() / 2;
        for pair in 0..pairs {
            level[pair] = sha256(&[NODE, &level[2 * pair], &level[2 * pair + 1]]);
        }
        if level.len() % 2 == 1 {
            level[pairs] = level[2 * pairs];
        }
        level.truncate(level.len().div_ceil(2));
    }
    level.first().copied().unwrap_or(NO_DIGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition in RFC 6962, section 2.1, word for word.
    fn defined(leaves: &[Digest]) -> Digest {
        match leaves {
            [] => NO_DIGEST,
            [one] => *one,
            many => {
                let left = 1 << (many.len() - 1).ilog2();
                sha256(&[NODE, &defined(&many[..left]), &defined(&many[left..])])
            }
        }
    }

    #[test]
    fn the_root_is_the_one_the_definition_gives() {
        let leaves: Vec<Digest> = (0..70_u8).map(|n| leaf(&[n])).collect();
        for count in 0..=leaves.len() {
            assert_eq!(root(leaves[..count].to_vec()), defined(&leaves[..count]), "{count} leaves");
        }
    }

    #[test]
    fn another_order_or_another_leaf_is_another_root() {
        let leaves = [leaf(b"a"), leaf(b"b"), leaf(b"c")];
        let of = |order: [usize; 3]| root(order.map(|at| leaves[at]).to_vec());
        assert_ne!(of([0, 1, 2]), of([1, 0, 2]));
        assert_ne!(of([0, 1, 2]), of([0, 1, 1]));
        assert_ne!(of([0, 1, 2]), root(leaves[..2].to_vec()));
    }
}
