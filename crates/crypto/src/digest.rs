//! SHA-256 of one or several parts.

use aws_lc_rs::digest;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// Inputs up to this size are copied into one buffer first: a hash context is allocated on the heap, which costs more
/// than the hash.
const SHORT: usize = 256;

/// The digest of a list of parts. The length of each part is hashed too, so moving a byte from one part to the next
/// gives another digest.
pub fn hash_parts(parts: &[&[u8]]) -> Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    bytes(context.finish().as_ref())
}

/// The plain SHA-256 of the concatenated parts.
pub fn sha256(parts: &[&[u8]]) -> Digest {
    if let [whole] = parts {
        return bytes(digest::digest(&digest::SHA256, whole).as_ref());
    }
    if parts.iter().map(|part| part.len()).sum::<usize>() <= SHORT {
        let mut together = [0; SHORT];
        let mut end = 0;
        for part in parts {
            together[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        return sha256(&[&together[..end]]);
    }
    let mut context = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| context.update(part));
    bytes(context.finish().as_ref())
}

/// An incremental SHA-256, for input that does not fit into memory.
pub struct Sha256(digest::Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }
}

impl Sha256 {
    /// Hashes the next part.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    pub fn finish(self) -> Digest {
        bytes(self.0.finish().as_ref())
    }
}

crate::secret::prints_as!(Sha256, "Sha256(..)");

/// Converts the provider's output to an array.
pub(crate) fn bytes(found: &[u8]) -> Digest {
    found.try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256_matches_the_standard_for_any_split_into_parts() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for parts in [&[&b"abc"[..]][..], &[b"a", b"", b"bc"]] {
            assert_eq!(crate::hex::write(&sha256(parts)), known);
        }
        let long = [7; 3 * SHORT];
        for cut in [0, 1, SHORT - 1, SHORT, SHORT + 1, long.len()] {
            let (first, second) = long.split_at(cut);
            assert_eq!(sha256(&[first, second]), sha256(&[&long]));
            assert_eq!(sha256(&[first, b""]), sha256(&[first]));
        }
    }

    #[test]
    fn a_byte_that_moves_to_the_next_part_gives_another_digest() {
        let all =
            [hash_parts(&[b"ab", b"c"]), hash_parts(&[b"a", b"bc"]), hash_parts(&[b"abc"]), hash_parts(&[b"abc", b""])];
        for (index, digest) in all.iter().enumerate() {
            assert!(!all[..index].contains(digest), "digest {index} came before");
        }
        assert_eq!(hash_parts(&[b"ab", b"c"]), all[0]);
    }
}
