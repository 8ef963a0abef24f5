//! A file as the rules read it: its text, and for Rust the code without comments and literals.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(super) struct SourceFile {
    /// The workspace's folder, for rules that check whether another file exists.
    pub(super) root: PathBuf,
    /// Relative to the workspace's folder, with `/`.
    pub(super) path: String,
    /// The content.
    pub(super) text: String,
    /// The text with every byte of comments and literals replaced by a blank. Empty unless it is Rust.
    pub(super) code: String,
    /// The ranges of test code.
    tests: Vec<Range<usize>>,
}

/// A violation of a rule.
#[derive(Debug, PartialEq)]
pub(super) struct Complaint {
    path: String,
    line: usize,
    what: String,
    instead: &'static str,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.what, self.instead)
    }
}

impl SourceFile {
    pub(super) fn new(root: &Path, path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { blanked(text) } else { String::new() };
        let tests = if is_test_path(path) { std::iter::once(0..code.len()).collect() } else { test_items(&code) };
        Self { root: root.to_owned(), path: path.to_owned(), text: text.to_owned(), code, tests }
    }

    pub(super) fn complaint(&self, at: usize, what: impl Into<String>, instead: &'static str) -> Complaint {
        let line = self.text[..at].matches('\n').count() + 1;
        Complaint { path: self.path.clone(), line, what: what.into(), instead }
    }

    /// Where `words` occur in the code, as words and not as parts of longer names.
    pub(super) fn find(&self, words: &str) -> Vec<usize> {
        find_word(&self.code, words)
    }

    pub(super) fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }

    /// Whether the file's path starts with one of these: a file, a folder or a prefix.
    pub(super) fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// Whether the file has this extension: `rs`, `md`, `toml`.
    pub(super) fn is(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, own)| own == extension)
    }
}

/// Folders and files of the workspace's own folder that are not checked; a module may have such a name. In a second
/// work tree `.git` is a file.
const FOREIGN: &[&str] = &[".git", "target", "posthaste-data"];

pub(super) fn read_all(root: &Path) -> Result<Vec<SourceFile>> {
    let mut paths = Vec::new();
    list(root, FOREIGN, &mut paths)?;
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        // A file that is not UTF-8 is not text, such as an image.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile::new(root, &name, &text));
        }
    }
    Ok(files)
}

fn list(folder: &Path, foreign: &[&str], paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        if foreign.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_file() {
            paths.push(entry.path());
        } else if kind.is_dir() {
            list(&entry.path(), &[], paths)?;
        }
    }
    Ok(())
}

/// The lines of a text with their positions; each ends with its line break.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut end = 0;
    text.split_inclusive('\n').map(move |line| {
        end += line.len();
        (end - line.len(), line)
    })
}

/// Where `word` occurs in `text`, as a word and not as a part of a longer name.
pub(super) fn find_word(text: &str, word: &str) -> Vec<usize> {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let ends_open = !word.ends_with(part_of_name);
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| !text[..*at].ends_with(part_of_name))
        .filter(|at| ends_open || !text[at + word.len()..].starts_with(part_of_name))
        .collect()
}

fn is_test_path(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// The items with `#[cfg(test)]`: from the attribute to the end of the braces that follow.
fn test_items(code: &str) -> Vec<Range<usize>> {
    code.match_indices("#[cfg(test)]").map(|(start, _)| start..end_of_item(code, start)).collect()
}

fn end_of_item(code: &str, start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return start + at + 1,
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return start + at + 1,
            _ => {}
        }
    }
    code.len()
}

/// The text with comments and literals replaced by blanks; line breaks stay.
fn blanked(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (skip, keep) = match end_of_literal(rest, code.chars().next_back()) {
            Some(end) => (end, false),
            None => (first.len_utf8(), true),
        };
        let (piece, after) = rest.split_at(skip);
        if keep {
            code.push_str(piece);
        } else {
            code.extend(piece.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        }
        rest = after;
    }
    code
}

/// The length of the comment or literal at the start of `rest`, if there is one.
fn end_of_literal(rest: &str, before: Option<char>) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(end_of_block_comment(rest));
    }
    if rest.starts_with('"') {
        return Some(end_of_quotes(rest, '"'));
    }
    if let Some(quoted) = rest.strip_prefix('\'') {
        // A lifetime has no closing quote after its first character.
        let mut ahead = quoted.chars();
        let (first, second) = (ahead.next()?, ahead.next()?);
        return (first == '\\' || second == '\'').then(|| end_of_quotes(rest, '\''));
    }
    let in_a_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let raw = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix)).filter(|_| !in_a_name)?;
    let hashes = raw.bytes().take_while(|byte| *byte == b'#').count();
    let body = raw[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let opened = rest.len() - body.len();
    Some(body.find(&close).map_or(rest.len(), |at| opened + at + close.len()))
}

fn end_of_block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let bytes = rest.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" if depth == 1 => return at + 2,
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a literal between two `quote`s; a backslash escapes the next character.
fn end_of_quotes(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub(crate) fn check(rule: fn(&SourceFile) -> Vec<Complaint>, path: &str, text: &str, lines: &[usize]) {
        let root = crate::root();
        let complaints = rule(&SourceFile::new(&root, path, text));
        let found: Vec<_> = complaints.iter().map(|complaint| complaint.line).collect();
        assert_eq!(found, lines, "{path}:\n{text}\n{complaints:#?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, code: &str) {
        assert_eq!(blanked(text), code);
        assert_eq!(blanked(text).len(), text.len(), "offsets do not change");
    }

    #[test]
    fn comments_are_blanked() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ d */ e", "a                   e");
    }

    #[test]
    fn literals_are_blanked() {
        check(r#"a("b\"c")"#, r"a(      )");
        check(r##"a(r#"b"c"#) d"##, "a(        ) d");
        check("a('\"') b('\\'') c", "a(   ) b(    ) c");
    }

    #[test]
    fn lifetimes_and_names_are_kept() {
        check("fn f<'a>(x: &'a str, r: u8)", "fn f<'a>(x: &'a str, r: u8)");
        check("for \"x\" in bar", "for     in bar");
    }

    #[test]
    fn characters_of_several_bytes_do_not_change_offsets() {
        check("// ü\nx \"→\" y", "     \nx       y");
    }

    #[test]
    fn a_test_module_ends_where_its_braces_end() {
        let file = SourceFile::new(
            Path::new(""),
            "crates/core/src/a.rs",
            "fn a() {}\n#[cfg(test)]\nmod t { fn b() {} }\nfn c() {}",
        );
        let tested: Vec<_> = ["a", "b", "c"].iter().map(|name| file.is_test(file.find(name)[0])).collect();
        assert_eq!(tested, [false, true, false]);
    }

    #[test]
    fn a_file_of_a_tests_folder_is_all_test_code() {
        let file = SourceFile::new(Path::new(""), "crates/core/tests/it/main.rs", "fn a() {}");
        assert!(file.is_test(0));
    }

    #[test]
    fn a_module_with_the_name_of_the_build_folder_is_checked() {
        let root = tempfile::tempdir().expect("a temporary folder");
        for folder in ["target", "crates/engine/src/target"] {
            fs::create_dir_all(root.path().join(folder)).expect("a folder is made");
            fs::write(root.path().join(folder).join("host.rs"), "fn f() {}").expect("a file is written");
        }
        let paths: Vec<String> = read_all(root.path()).expect("files").into_iter().map(|file| file.path).collect();
        assert_eq!(paths, ["crates/engine/src/target/host.rs"]);
    }

    #[test]
    fn words_are_not_found_inside_longer_names() {
        assert_eq!(find_word("spawn spawned respawn _spawn spawn(", "spawn"), [0, 29]);
    }

    #[test]
    fn a_complaint_reads_place_what_and_instead() {
        let file = SourceFile::new(Path::new(""), "a.md", "x\ny\n");
        assert_eq!(file.complaint(2, "y is here", "write z").to_string(), "a.md:2: y is here: write z");
    }
}
