//! A patch: places in the sources, each given by its exact text, with their replacements.
//!
//! ```text
//! file crates/core/src/scheduler.rs
//! --- find
//! …
//! --- put
//! …
//! --- end
//! ```
//!
//! The text must occur exactly once, so that a patch that no longer applies is an error and not silently ignored. Text
//! before the first `file` is a comment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::read;
use posthaste_prove::{CannotRun, Context};

/// A place in a source file, and its replacement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Patch {
    bug: String,
    file: String,
    find: String,
    put: String,
}

/// Reads the patch of the switch itself, and the patches of these bugs. A patch without a bug in the list is an error.
pub(super) fn read_all(folder: &Path, bugs: &[&str]) -> Result<Vec<Patch>, CannotRun> {
    let cannot = || format!("cannot read {}", folder.display());
    for entry in std::fs::read_dir(folder).context(cannot())? {
        let path = entry.context(cannot())?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|ending| ending == "patch")
            && !["switch"].iter().chain(bugs).any(|bug| *bug == name)
        {
            return Err(CannotRun(format!("{} is not in the list: add its bug to README.md", path.display())));
        }
    }
    let mut patches = Vec::new();
    for bug in ["switch"].iter().chain(bugs) {
        let text = read(&folder.join(format!("{bug}.patch")))?;
        patches.extend(parse(bug, &text)?);
    }
    Ok(patches)
}

fn parse(bug: &str, text: &str) -> Result<Vec<Patch>, CannotRun> {
    let wrong = |what: &str| CannotRun(format!("{bug}.patch: {what}"));
    let mut patches = Vec::new();
    let mut lines = text.lines().skip_while(|line| !line.starts_with("file "));
    while let Some(line) = lines.next() {
        let Some(file) = line.strip_prefix("file ") else {
            if line.trim().is_empty() {
                continue;
            }
            return Err(wrong(&format!("unexpected line `{line}` between two places")));
        };
        if lines.next() != Some("--- find") {
            return Err(wrong("a `file` must be followed by `--- find`"));
        }
        let find = part(&mut lines, "--- put").ok_or_else(|| wrong("a `--- find` has no `--- put`"))?;
        let put = part(&mut lines, "--- end").ok_or_else(|| wrong("a `--- put` has no `--- end`"))?;
        patches.push(Patch { bug: bug.to_owned(), file: file.to_owned(), find, put });
    }
    if patches.is_empty() { Err(wrong("it changes nothing")) } else { Ok(patches) }
}

fn part<'a>(lines: &mut impl Iterator<Item = &'a str>, marker: &str) -> Option<String> {
    let mut text = String::new();
    for line in lines {
        if line == marker {
            return Some(text);
        }
        text += line;
        text.push('\n');
    }
    None
}

/// Applies patches. Returns the changed files with their new text, by their path in the workspace. The error lists all
/// patches that do not apply.
pub(super) fn apply(workspace: &Path, patches: &[Patch]) -> Result<BTreeMap<PathBuf, String>, CannotRun> {
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut wrong = Vec::new();
    for Patch { bug, file, find, put } in patches {
        let path = PathBuf::from(file);
        if !files.contains_key(&path) {
            files.insert(path.clone(), read(&workspace.join(file))?);
        }
        let text = files.get_mut(&path).expect("read just now");
        match text.matches(find.as_str()).count() {
            1 => *text = text.replacen(find.as_str(), put, 1),
            times => {
                wrong.push(format!("{bug}.patch does not apply to {file}: its text occurs {times} times:\n{find}"));
            }
        }
    }
    if wrong.is_empty() { Ok(files) } else { Err(CannotRun(wrong.join("\n"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a comment\nfile src/a.rs\n--- find\none\n--- put\ntwo\nthree\n--- end\n\nfile src/b.rs\n--- find\nx\n--- put\n--- end\n";

    fn patch(file: &str, find: &str, put: &str) -> Patch {
        Patch { bug: "bug".into(), file: file.into(), find: find.into(), put: put.into() }
    }

    #[test]
    fn patch_is_parsed_into_places_and_replacements() {
        let parsed = parse("bug", TEXT).unwrap_or_else(|CannotRun(why)| panic!("{why}"));
        assert_eq!(parsed, [patch("src/a.rs", "one\n", "two\nthree\n"), patch("src/b.rs", "x\n", "")]);
    }

    #[test]
    fn incomplete_patch_is_refused_with_the_missing_part() {
        for (text, complaint) in [
            ("file a\n--- put\n", "bug.patch: a `file` must be followed by `--- find`"),
            ("file a\n--- find\nx\n", "bug.patch: a `--- find` has no `--- put`"),
            ("file a\n--- find\nx\n--- put\ny\n", "bug.patch: a `--- put` has no `--- end`"),
            ("nothing\n", "bug.patch: it changes nothing"),
        ] {
            assert_eq!(parse("bug", text).err().map(|CannotRun(why)| why).as_deref(), Some(complaint), "{text:?}");
        }
    }

    #[test]
    fn patch_applies_only_if_its_text_occurs_once() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        std::fs::write(folder.path().join("a.rs"), "one\ntwo\ntwo\n").expect("the test owns the folder");
        let applied =
            |find: &str| apply(folder.path(), &[patch("a.rs", find, "three\n")]).map_err(|CannotRun(why)| why);
        let changed = applied("one\n").unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(changed[Path::new("a.rs")], "three\ntwo\ntwo\n");
        for (find, times) in [("two\n", 2), ("none\n", 0)] {
            let why = applied(find).expect_err("the text does not occur once");
            assert!(
                why.starts_with(&format!("bug.patch does not apply to a.rs: its text occurs {times} times")),
                "{why}"
            );
        }
    }
}
