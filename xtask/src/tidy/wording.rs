//! Rules for texts and names: plain language, unique names of types, and words that do not belong into the tree, such
//! as notes without an owner, hosts of package registries and paths of the machine on which a change was made.
//!
//! The words are put together from parts here; otherwise the rules would report this file.

use std::collections::BTreeMap;

use super::source::{Complaint, SourceFile, find_word, lines};

/// Written by cargo; it names its registry in every entry.
const LOCK_FILE: &str = "Cargo.lock";

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
const PRONOUNS: [&str; 9] =
    ["who_", "whoever_", "what_", "whatever_", "nobody_", "somebody_", "one_", "where_", concat!("o", "f_")];

/// Names that several types have by convention.
const CONVENTIONAL_NAMES: [&str; 4] = ["Args", "Error", "Settings", "Builder"];

const HOSTS: [&str; 12] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npm", "js.org"),
    concat!("npm", "js.com"),
    concat!("yarn", "pkg.com"),
    concat!("proxy.", "golang.org"),
    concat!("ruby", "gems.org"),
    concat!("deb.", "debian.org"),
    concat!("ghcr", ".io"),
    concat!("docker", ".io"),
    concat!("quay", ".io"),
];

const WORKPLACE: [&str; 15] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("shared/", "design"),
    concat!("require", "ments.md"),
    concat!("archi", "tecture.md"),
    concat!("reli", "ability.md"),
    concat!("proto", "cols.md"),
    concat!("sto", "rage.md"),
    concat!("depen", "dencies.md"),
    concat!("Cla", "ude"),
    concat!("Anth", "ropic"),
    concat!("language ", "model"),
    concat!("AI ", "agent"),
    concat!("coding ", "agent"),
];

/// Texts name the actor and the thing, and neither package registries, which are a setting of the machine, nor the
/// machine or the documents that were used to write them.
pub(super) fn check_words(file: &SourceFile) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut complain = |text: &str, words: &[&str], what: &str, instead| {
        let places = words.iter().flat_map(|word| find_word(text, word).into_iter().map(move |at| (at, word)));
        complaints.extend(places.map(|(at, word)| file.complaint(at, format!("`{word}` {what}"), instead)));
    };
    let is_text = ["rs", "md", "toml", "sql"].iter().any(|extension| file.is(extension));
    if is_text && file.path != "CHANGELOG.md" {
        let text = file.text.to_ascii_lowercase();
        complain(&text, &UNCLEAR, "hides who does what", "name the actor and the thing");
    }
    if file.path != LOCK_FILE {
        let machine = "name the package; the machine's settings say where it is";
        complain(&file.text, &HOSTS, "names a package registry", machine);
        complain(&file.text, &WORKPLACE, "speaks of a workplace", "say it in the project's own words");
    }
    complaints
}

/// A note about work to be done names its owner.
pub(super) fn check_owners(file: &SourceFile) -> Vec<Complaint> {
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")]
        .iter()
        .flat_map(|note| find_word(&file.text, note).into_iter().map(move |at| (at, note)))
        .filter(|(at, note)| !has_owner(&file.text[at + note.len()..]))
        .map(|(at, note)| {
            file.complaint(at, format!("a {note} without an owner"), "do it, drop it, or name its owner in brackets")
        })
        .collect()
}

fn has_owner(behind: &str) -> bool {
    let owner = behind.strip_prefix('(').and_then(|rest| rest.split_once(')')).map(|(owner, _)| owner);
    owner.is_some_and(|owner| !owner.is_empty() && !owner.contains(char::is_whitespace))
}

/// A doc comment adds a unit, a bound, an owner or a consequence, or it is left out.
pub(super) fn check_doc_comments(file: &SourceFile) -> Vec<Complaint> {
    let is_empty = |line: &str| {
        let comment = line.trim().strip_prefix("/// ").and_then(|comment| comment.strip_suffix('.'));
        comment.is_some_and(|comment| EMPTY.contains(&comment))
    };
    let empty = lines(&file.text).filter(|(_, line)| is_empty(line));
    empty.map(|(at, _)| file.complaint(at, "a doc comment without content", "write what the item holds")).collect()
}

/// The name of a function or a test begins with a verb or its subject.
pub(super) fn check_names(file: &SourceFile) -> Vec<Complaint> {
    let names = file.code.match_indices("fn ").map(|(at, keyword)| at + keyword.len());
    names
        .filter(|at| PRONOUNS.iter().any(|pronoun| file.code[*at..].starts_with(pronoun)))
        .map(|at| file.complaint(at, "a name that begins with a pronoun", "begin with a verb or the subject"))
        .collect()
}

/// The name of a type that leaves its module is a noun that no other such type has.
pub(super) fn check_type_names(files: &[SourceFile]) -> Vec<Complaint> {
    let mut places: BTreeMap<&str, Vec<(&SourceFile, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_in(&["crates/"]) && file.path.contains("/src/")) {
        for (at, name) in exported_types(&file.code) {
            places.entry(name).or_default().push((file, at));
        }
    }
    places.retain(|name, places| places.len() > 1 && !CONVENTIONAL_NAMES.contains(name));
    let complain = |(name, (file, at)): (&str, (&SourceFile, usize))| {
        let what = format!("several types are named {name}");
        file.complaint(at, what, "make the type private, or give it a noun that says what it holds")
    };
    let all = places.into_iter().flat_map(|(name, places)| places.into_iter().map(move |place| (name, place)));
    all.map(complain).collect()
}

fn exported_types(code: &str) -> impl Iterator<Item = (usize, &str)> {
    lines(code).filter_map(|(at, line)| {
        let rest = line.trim_start().strip_prefix("pub")?;
        let item = match rest.strip_prefix('(') {
            // A type with `pub(in …)` stays close to its module, and is not counted.
            Some(scoped) if scoped.starts_with("in ") => return None,
            Some(scoped) => scoped.split_once(')')?.1,
            None => rest,
        };
        let name = item.strip_prefix(" struct ").or_else(|| item.strip_prefix(" enum "))?;
        let end = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
        Some((at, &name[..end]))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
    fn a_host_of_a_registry_is_reported() {
        check(check_words, "README.md", concat!("\nGet it from https://crates", ".io/"), &[2]);
        check(check_words, "Cargo.lock", concat!("source = \"registry+https://example.com/crates", ".io-index\""), &[]);
    }

    #[test]
    fn a_workplace_is_reported() {
        check(check_words, "docs/a.md", concat!("see /wo", "rk/main"), &[1]);
        check(check_words, "crates/core/src/a.rs", concat!("//! See `sto", "rage.md` 5."), &[1]);
        check(check_words, "docs/a.md", "the network / a framework/ something", &[]);
        check(check_words, "docs/a.md", "see ARCHITECTURE.md", &[]);
    }

    #[test]
    fn a_note_without_an_owner_is_reported() {
        check(check_owners, "a.rs", concat!("\n// TO", "DO: later"), &[2]);
        check(check_owners, "a.md", concat!("FIX", "ME"), &[1]);
        check(check_owners, "a.md", concat!("TO", "DO()"), &[1]);
        check(check_owners, "a.rs", concat!("// TO", "DO(ada): bound this"), &[]);
    }

    #[test]
    fn doc_comments_without_content_are_reported() {
        check(check_doc_comments, "crates/core/src/a.rs", "pub struct A {\n    /// Whose.\n    a: u8,\n}", &[2]);
        check(check_doc_comments, "crates/core/src/a.rs", "/// Whose turn it is.\nfn turn() {}", &[]);
    }

    #[test]
    fn names_that_begin_with_a_pronoun_are_reported() {
        let names = concat!("fn o", "f_lane() {}\nfn lane() {}\nfn on", "e_row() {}");
        check(check_names, "crates/core/src/a.rs", names, &[1, 3]);
        check(check_names, "crates/core/src/a.rs", "fn often() {}\nfn ones() {}", &[]);
    }

    #[test]
    fn name_of_several_types_is_reported_wherever_it_is() {
        let file = |path: &str, text: &str| SourceFile::new(Path::new(""), path, text);
        let files = [
            file("crates/core/src/a.rs", "pub struct Row {}\npub(super) enum Kind {}\nstruct Own;\npub struct Error;"),
            file(
                "crates/core/src/b.rs",
                "mod m {\n    pub(crate) struct Row<T>(T);\n}\nstruct Own;\npub enum Error {}",
            ),
            file("crates/core/tests/it/c.rs", "pub enum Kind {}"),
        ];
        let found: Vec<String> = check_type_names(&files).iter().map(ToString::to_string).collect();
        assert!(found[0].starts_with("crates/core/src/a.rs:1:") && found[1].starts_with("crates/core/src/b.rs:2:"));
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
