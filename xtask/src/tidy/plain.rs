//! Plain language: no pronouns in place of actors, no doc comment without content, no name that is a riddle.
//!
//! The words are put together from parts here; otherwise the rules would report this file.

use super::source::{Complaint, SourceFile, find_word};

/// Pronouns that hide an actor, and verbs that hide what happens.
const UNCLEAR: [&str; 9] = [
    concat!("who", "ever"),
    concat!("what", "ever"),
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("every", "body"),
    concat!("any", "body"),
    concat!("to", "ld"),
    concat!("tel", "ls"),
    concat!("let go", " of"),
];

/// Doc comments of one word or two.
const EMPTY: [&str; 10] =
    ["Whose", "Of what", "Which one", "What", "When", "Where", "Who", "How", "To whom", "By whom"];

/// How no function and no test is named.
const PRONOUNS: [&str; 8] = ["who_", "whoever_", "what_", "whatever_", "nobody_", "somebody_", "one_", "where_"];

/// Texts name the actor and the thing.
pub(super) fn check_words(file: &SourceFile) -> Vec<Complaint> {
    let is_text = [".rs", ".md", ".toml", ".sql"].iter().any(|end| file.path.ends_with(end));
    if !is_text || file.path == "CHANGELOG.md" {
        return Vec::new();
    }
    let text = file.text.to_ascii_lowercase();
    let places = UNCLEAR.iter().flat_map(|word| find_word(&text, word).into_iter().map(move |at| (at, word)));
    places
        .map(|(at, word)| file.complaint(at, format!("`{word}` hides who does what"), "name the actor and the thing"))
        .collect()
}

/// A doc comment adds a unit, a bound, an owner or a consequence, or it is left out.
pub(super) fn check_doc_comments(file: &SourceFile) -> Vec<Complaint> {
    let mut at = 0;
    let mut complaints = Vec::new();
    for line in file.text.split_inclusive('\n') {
        let comment = line.trim().strip_prefix("/// ").and_then(|comment| comment.strip_suffix('.'));
        if comment.is_some_and(|comment| EMPTY.contains(&comment)) {
            complaints.push(file.complaint(at, "a doc comment without content", "write what the item holds"));
        }
        at += line.len();
    }
    complaints
}

/// The name of a function or a test begins with a verb or its subject.
pub(super) fn check_names(file: &SourceFile) -> Vec<Complaint> {
    let names = file.code.match_indices("fn ").map(|(at, keyword)| at + keyword.len());
    names
        .filter(|at| PRONOUNS.iter().chain(&["of_"]).any(|pronoun| file.code[*at..].starts_with(pronoun)))
        .map(|at| file.complaint(at, "a name that begins with a pronoun", "begin with a verb or the subject"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn unclear_words_are_reported() {
        check(check_words, "docs/a.md", concat!("\nWho", "ever asks waits."), &[2]);
        check(check_words, "crates/core/src/a.rs", concat!("// The caller is to", "ld."), &[1]);
        check(check_words, "crates/core/src/a.rs", concat!("let is_to", "ld = true; // retold"), &[]);
        check(check_words, "CHANGELOG.md", concat!("no", "body"), &[]);
    }

    #[test]
    fn doc_comments_without_content_are_reported() {
        check(check_doc_comments, "crates/core/src/a.rs", "pub struct A {\n    /// Whose.\n    a: u8,\n}", &[2]);
        check(check_doc_comments, "crates/core/src/a.rs", "/// Whose turn it is.\nfn turn() {}", &[]);
    }

    #[test]
    fn names_that_begin_with_a_pronoun_are_reported() {
        check(
            check_names,
            "crates/core/src/a.rs",
            concat!("fn o", "f_lane() {}\nfn lane() {}\nfn on", "e_row() {}"),
            &[1, 3],
        );
        check(check_names, "crates/core/src/a.rs", "fn often() {}\nfn ones() {}", &[]);
    }
}
