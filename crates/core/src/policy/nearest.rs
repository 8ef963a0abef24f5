//! Suggests a known name for a mistyped one, by the number of changed letters.

/// The known name that takes the fewest changed letters, or `None` when none is near: a suggestion for an unrelated
/// name would not help.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let measured = known.into_iter().map(|known| (distance(name, known), known));
    let near = measured.filter(|(changed, known)| is_near(name, known, *changed));
    near.min_by_key(|(changed, _)| *changed).map(|(_, known)| known)
}

/// `; the nearest is …` for the end of an error message; empty when no known name is near.
pub fn told_nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map(|known| format!("; the nearest is {known}")).unwrap_or_default()
}

/// Whether at most a third of the letters are changed, or one is the beginning of the other.
fn is_near(name: &str, known: &str, changed: usize) -> bool {
    let letters = name.chars().count().max(known.chars().count());
    let is_part = name.len() >= PART_BYTES_MIN && (known.starts_with(name) || name.starts_with(known));
    is_part || changed <= letters.div_ceil(3)
}

/// Fewer bytes are the beginning of too many names.
const PART_BYTES_MIN: usize = 3;

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

/// Letters compared at most: the rest of a longer name would only cost time.
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

    #[test]
    fn an_unrelated_name_gets_no_suggestion() {
        let known = ["transactional", "promotional", "engagement"];
        assert_eq!(nearest("promo", known), Some("promotional"));
        assert_eq!(told_nearest("engagment", known), "; the nearest is engagement");
        for written in ["urgent", "x", "", "🦀"] {
            assert_eq!((nearest(written, known), told_nearest(written, known)), (None, String::new()), "{written}");
        }
    }
}
