//! A Merkle tree over a row's entries. Leaves and nodes have domain prefixes as in RFC 6962, so that one cannot be
//! mistaken for the other, and a single node left over on a level moves up unchanged. A node has sixteen children
//! instead of two: that takes a quarter of the hashing, which is part of every commit.

use posthaste_crypto::digest::{Digest, sha256};

use super::NO_DIGEST;

const LEAF: &[u8] = &[0];
const NODE: &[u8] = &[1];

/// Maximum number of children of a node.
const WIDTH: usize = 16;

pub(super) fn leaf(entry: &[u8]) -> Digest {
    sha256(&[LEAF, entry])
}

/// The root over these leaves; [`NO_DIGEST`] if there are none.
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

    /// A recursive definition of the root: each child but the last is a complete tree, as large as possible.
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
    fn root_matches_the_recursive_definition() {
        let leaves: Vec<Digest> = (0..600_u16).map(|n| leaf(&n.to_le_bytes())).collect();
        for count in (0..70).chain(250..=leaves.len()) {
            assert_eq!(root(leaves[..count].to_vec()), defined(&leaves[..count]), "{count} leaves");
        }
    }

    #[test]
    fn another_order_or_another_leaf_gives_another_root() {
        let leaves = [leaf(b"a"), leaf(b"b"), leaf(b"c")];
        let of = |order: [usize; 3]| root(order.map(|at| leaves[at]).to_vec());
        assert_ne!(of([0, 1, 2]), of([1, 0, 2]));
        assert_ne!(of([0, 1, 2]), of([0, 1, 1]));
        assert_ne!(of([0, 1, 2]), root(leaves[..2].to_vec()));
    }
}
