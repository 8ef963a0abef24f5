//! Randomness for keys and secrets, always from the operating system.

use std::cell::RefCell;

/// `N` random bytes.
///
/// # Panics
/// If the operating system provides no randomness: a guessable key is worse than no process.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

/// Fills a buffer with random bytes.
///
/// # Panics
/// As [`bytes`].
pub(crate) fn fill(place: &mut [u8]) {
    getrandom::fill(place).expect("the operating system gives randomness");
}

pub(crate) const NONCE_BYTES: usize = 12;
/// Number of nonces drawn at once: one call to the operating system costs as much as sealing a payload.
const NONCES: usize = 64;

/// A buffer of nonces, of which the first `used` bytes are used.
struct Drawn {
    bytes: [u8; NONCES * NONCE_BYTES],
    used: usize,
}

/// A random nonce. Nonces are not secret (they are stored with the sealed value), so buffering them is safe.
///
/// # Panics
/// As [`bytes`].
pub(crate) fn nonce() -> [u8; NONCE_BYTES] {
    thread_local! {
        static DRAWN: RefCell<Drawn> = const { RefCell::new(Drawn { bytes: [0; _], used: NONCES * NONCE_BYTES }) };
    }
    DRAWN.with_borrow_mut(|drawn| {
        if drawn.used == drawn.bytes.len() {
            fill(&mut drawn.bytes);
            drawn.used = 0;
        }
        let nonce = drawn.bytes[drawn.used..].first_chunk().expect("a whole number of nonces fits");
        drawn.used += NONCE_BYTES;
        *nonce
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_draws_differ() {
        assert_ne!(bytes::<16>(), bytes::<16>());
    }

    #[test]
    fn no_two_nonces_are_alike_in_one_thread_or_in_several() {
        const EACH: usize = 10 * NONCES + 1;
        let draw = || (0..EACH).map(|_| nonce()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(draw)).collect();
        let drawn: BTreeSet<_> =
            threads.into_iter().flat_map(|thread| thread.join().expect("it only draws")).chain(draw()).collect();
        assert_eq!(drawn.len(), 5 * EACH);
    }
}
