//! A Merkle tree over a row's entries. Leaves and nodes are marked as in RFC 6962, so that they cannot be
//! mistaken for each other, and what is left over on a level goes up as it is. A node has sixteen children
//! instead of two: that takes a quarter of the hashing, and the writer waits for it in every commit.

use posthaste_crypto::digest::{Digest, sha256};

use super::NO_DIGEST;

const LEAF: &[u8] = &[0];
const NODE: &[u8] = &[1];

/// Children of a node.
const WIDTH: usize = 16;

/// The leaf of an entry.
pub(super) fn leaf(entry: &[u8]) -> Digest {
    sha256(&[LEAF, entry])
}

/// The root over these leaves; of none it is [`NO_DIGEST`].
pub(super) fn root(mut level: Vec<Digest>) -> Digest {
    while level.len() > 1 {
        let nodes = level.len().div_ceil(WIDTH);
        for node in 0..nodes {
            let children = &level[node * WIDTH..level.len().min((node + 1) * WIDTH)];
            level[node] = match children {
                [alone] => *alone,
                several => sha256(&[NODE, several.as_flattened()]),
            };
        }
        level.truncate(nodes);
    }
    level.first().copied().unwrap_or(NO_DIGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same from the top: a node's first children are whole trees, as large as can be.
    fn defined(leaves: &[Digest]) -> Digest {
        match leaves {
            [] => NO_DIGEST,
            [one] => *one,
            many => {
                let mut whole = 1;
                while whole * WIDTH < many.len() {
                    whole *= WIDTH;
                }
                let children: Vec<Digest> = many.chunks(whole).map(defined).collect();
                sha256(&[NODE, children.as_flattened()])
            }
        }
    }

    #[test]
    fn the_root_is_the_one_the_definition_gives() {
        let leaves: Vec<Digest> = (0..600_u16).map(|n| leaf(&n.to_le_bytes())).collect();
        for count in (0..70).chain(250..=leaves.len()) {
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
