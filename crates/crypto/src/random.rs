//! Randomness for keys and secrets, from the operating system and nowhere else.

/// `N` random bytes.
///
/// # Panics
/// If the operating system has no randomness to give: a key that could be guessed is worse than
/// no process.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_draws_differ() {
        assert_ne!(bytes::<16>(), bytes::<16>());
    }
}
