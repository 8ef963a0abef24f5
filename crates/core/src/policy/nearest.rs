//! Guesses what somebody meant: the known name nearest to one that is not.

/// The known name that takes the fewest changed letters, or `None` when nothing is known.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().min_by_key(|candidate| distance(name, candidate))
}

/// How many letters must be added, dropped or replaced to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(NAME_CHARS_MAX).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// A longer name is no slip of the finger; the rest of it would only cost time.
const NAME_CHARS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_changed_letters_win() {
        let known = ["event_type", "payload", "tier", "ttl"];
        for (written, meant) in [("eventType", "event_type"), ("pay_load", "payload"), ("tll", "ttl"), ("teir", "tier")]
        {
            assert_eq!(nearest(written, known), Some(meant));
        }
        assert_eq!(nearest("x", []), None);
    }
}
