//! Words that do not belong into the tree: notes without an owner, hosts of package registries, paths of
//! the machine on which a change was made.
//!
//! The words are put together from parts here; otherwise the rules would report this file.

use super::source::{Complaint, SourceFile, find_word};

/// Written by cargo; it names its registry in every entry.
const LOCK_FILE: &str = "Cargo.lock";

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

/// The source of packages is a setting of the machine, not of the project.
pub(super) fn check_hosts(file: &SourceFile) -> Vec<Complaint> {
    let hosts = [
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
    complain(file, &hosts, "names a package registry", "name the package; the machine's settings say where it is")
}

/// The tree does not mention the machine or the documents that were used to write it.
pub(super) fn check_workplace(file: &SourceFile) -> Vec<Complaint> {
    let words = [
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
    complain(file, &words, "speaks of a workplace", "say it in the project's own words")
}

fn complain(file: &SourceFile, words: &[&str], what: &str, instead: &'static str) -> Vec<Complaint> {
    if file.path == LOCK_FILE {
        return Vec::new();
    }
    words
        .iter()
        .flat_map(|word| find_word(&file.text, word).into_iter().map(move |at| (at, word)))
        .map(|(at, word)| file.complaint(at, format!("`{word}` {what}"), instead))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn a_note_without_an_owner_is_reported() {
        check(check_owners, "a.rs", concat!("\n// TO", "DO: later"), &[2]);
        check(check_owners, "a.md", concat!("FIX", "ME"), &[1]);
        check(check_owners, "a.md", concat!("TO", "DO()"), &[1]);
        check(check_owners, "a.rs", concat!("// TO", "DO(ada): bound this"), &[]);
    }

    #[test]
    fn a_host_of_a_registry_is_reported() {
        check(check_hosts, "README.md", concat!("\nGet it from https://crates", ".io/"), &[2]);
        check(check_hosts, "Cargo.lock", concat!("source = \"registry+https://example.com/crates", ".io-index\""), &[]);
    }

    #[test]
    fn a_workplace_is_reported() {
        check(check_workplace, "docs/a.md", concat!("see /wo", "rk/main"), &[1]);
        check(check_workplace, "crates/core/src/a.rs", concat!("//! See `sto", "rage.md` 5."), &[1]);
        check(check_workplace, "docs/a.md", "the network / a framework/ something", &[]);
        check(check_workplace, "docs/a.md", "see ARCHITECTURE.md", &[]);
    }
}
