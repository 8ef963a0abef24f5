//! A patch: places in the sources, each found by its exact text, and what stands there instead.
//!
//! ```text
//! file crates/core/src/queue.rs
//! --- find
//! …
//! --- put
//! …
//! --- end
//! ```
//!
//! A text must occur exactly once, so that a patch that no longer fits says so instead of doing nothing.
//! What stands before the first `file` is a comment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::read;
use crate::prove::CannotRun;

/// One place and what is put there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Patch {
    bug: String,
    file: String,
    find: String,
    put: String,
}

/// The switch itself, then the patches of these bugs. A patch that no bug of the list has is a mistake.
pub(super) fn read_all(folder: &Path, bugs: &[&str]) -> Result<Vec<Patch>, CannotRun> {
    let cannot = |error: &dyn std::fmt::Display| CannotRun(format!("cannot read {}: {error}", folder.display()));
    for entry in std::fs::read_dir(folder).map_err(|error| cannot(&error))? {
        let path = entry.map_err(|error| cannot(&error))?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|ending| ending == "patch")
            && !["switch"].iter().chain(bugs).any(|bug| *bug == name)
        {
            return Err(CannotRun(format!("{} is in no list: add its bug to README.md", path.display())));
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
            return Err(wrong(&format!("`{line}` stands between two places")));
        };
        if lines.next() != Some("--- find") {
            return Err(wrong("a `file` is followed by `--- find`"));
        }
        let find = part(&mut lines, "--- put").ok_or_else(|| wrong("a `--- find` has no `--- put`"))?;
        let put = part(&mut lines, "--- end").ok_or_else(|| wrong("a `--- put` has no `--- end`"))?;
        patches.push(Patch { bug: bug.to_owned(), file: file.to_owned(), find, put });
    }
    if patches.is_empty() { Err(wrong("it changes nothing")) } else { Ok(patches) }
}

/// The lines up to a marker.
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

/// The changed files with their new text, by their path in the workspace. Says of all patches that do
/// not fit that they do not.
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
            times => wrong.push(format!("{bug}.patch no longer fits {file}: its text is there {times} times:\n{find}")),
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
    fn a_patch_is_places_and_what_is_put_there() {
        let parsed = parse("bug", TEXT).unwrap_or_else(|CannotRun(why)| panic!("{why}"));
        assert_eq!(parsed, [patch("src/a.rs", "one\n", "two\nthree\n"), patch("src/b.rs", "x\n", "")]);
    }

    #[test]
    fn a_patch_that_is_not_whole_says_what_is_missing() {
        for (text, complaint) in [
            ("file a\n--- put\n", "bug.patch: a `file` is followed by `--- find`"),
            ("file a\n--- find\nx\n", "bug.patch: a `--- find` has no `--- put`"),
            ("file a\n--- find\nx\n--- put\ny\n", "bug.patch: a `--- put` has no `--- end`"),
            ("nothing\n", "bug.patch: it changes nothing"),
        ] {
            assert_eq!(parse("bug", text).err().map(|CannotRun(why)| why).as_deref(), Some(complaint), "{text:?}");
        }
    }

    #[test]
    fn a_text_must_be_there_exactly_once() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        std::fs::write(folder.path().join("a.rs"), "one\ntwo\ntwo\n").expect("the folder is ours");
        let applied =
            |find: &str| apply(folder.path(), &[patch("a.rs", find, "three\n")]).map_err(|CannotRun(why)| why);
        let changed = applied("one\n").unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(changed[Path::new("a.rs")], "three\ntwo\ntwo\n");
        for (find, times) in [("two\n", 2), ("none\n", 0)] {
            let why = applied(find).expect_err("it is not there once");
            assert!(
                why.starts_with(&format!("bug.patch no longer fits a.rs: its text is there {times} times")),
                "{why}"
            );
        }
    }
}
