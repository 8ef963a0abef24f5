//! The list of erasures, a file in the data folder and beside backups: a restore of an older copy applies it again,
//! before the copy is served.
//!
//! One line for each: `posthaste erasure 1 STORE ROW TIME HIDDEN MAC`. `HIDDEN` is a keyed hash of the subject or
//! tenant, `MAC` a keyed hash of the line up to it. Without the store's key it is not possible to find out who was
//! erased, or to add a line.
//!
//! Invariant: a line is on the disk before its erasure is answered.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use posthaste_core::Timestamp;
use posthaste_crypto::LookupKey;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::hex;

use super::FILE_MODE;

/// The file's name in the data folder.
pub(super) const ERASURES: &str = "erasures";

const HEAD: &str = "posthaste erasure 1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErasureLine {
    pub(super) store: [u8; 16],
    /// The row of the journal that announced it.
    pub(super) row: u64,
    pub(super) at: Timestamp,
    pub(super) hidden: Digest,
}

impl ErasureLine {
    /// The line with its MAC, as written to the file.
    pub(super) fn to_text(self, key: &LookupKey) -> String {
        let words = self.words();
        let mac = mac(key, &words);
        format!("{words} {}\n", hex::write(&mac))
    }

    /// Parses a line; `None` unless it is complete and its MAC was made with this key.
    pub(super) fn parse(text: &str, key: &LookupKey) -> Option<Self> {
        let (words, given) = text.rsplit_once(' ')?;
        let mut parts = words.strip_prefix(HEAD)?.strip_prefix(' ')?.split(' ');
        let line = Self {
            store: hex::read(parts.next()?)?,
            row: parts.next()?.parse().ok()?,
            at: Timestamp::from_millis(parts.next()?.parse().ok()?),
            hidden: hex::read(parts.next()?)?,
        };
        (line.words() == words && hex::write(&mac(key, words)) == given).then_some(line)
    }

    fn words(&self) -> String {
        format!("{HEAD} {} {} {} {}", hex::write(&self.store), self.row, self.at.as_millis(), hex::write(&self.hidden))
    }
}

/// Appends a line; it is on the disk when this returns.
pub(super) fn append(folder: &Path, line: &str) -> io::Result<()> {
    let path = folder.join(ERASURES);
    let is_new = !path.exists();
    let mut file = OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(&path)?;
    // A crash may have left an incomplete line: begin a new one.
    let text = if ends_whole(&path)? { line.to_owned() } else { format!("\n{line}") };
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    if is_new {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn ends_whole(path: &Path) -> io::Result<bool> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

pub(super) fn has(folder: &Path, line: &str) -> io::Result<bool> {
    match std::fs::read_to_string(folder.join(ERASURES)) {
        Ok(text) => Ok(text.lines().any(|one| one == line.trim_end())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn mac(key: &LookupKey, words: &str) -> Digest {
    key.hash("line", 0, words.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: ErasureLine =
        ErasureLine { store: [7; 16], row: 12, at: Timestamp::from_millis(1_760_000_000_000), hidden: [9; 32] };

    fn key() -> LookupKey {
        LookupKey::from_bytes([1; 32])
    }

    #[test]
    fn a_line_parses_as_written_and_altered_lines_are_refused() {
        let text = LINE.to_text(&key());
        let line = text.trim_end();
        assert_eq!(ErasureLine::parse(line, &key()), Some(LINE));
        let forged = [
            line.replace(" 12 ", " 13 "),
            line.replace(" 1 ", " 2 "),
            line.to_uppercase(),
            line[..line.len() - 1].to_owned(),
            format!("{line} "),
            String::new(),
        ];
        for forged in forged {
            assert_eq!(ErasureLine::parse(&forged, &key()), None, "{forged}");
        }
        assert_eq!(ErasureLine::parse(line, &LookupKey::from_bytes([2; 32])), None, "another store's");
    }

    #[test]
    fn an_incomplete_line_after_a_crash_does_not_affect_the_next() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = LINE.to_text(&key());
        std::fs::write(folder.path().join(ERASURES), &text[..40]).expect("a part");
        append(folder.path(), &text).expect("it is appended");
        append(folder.path(), &text).expect("it is appended");
        let file = std::fs::read_to_string(folder.path().join(ERASURES)).expect("it is there");
        let read: Vec<_> = file.lines().map(|line| ErasureLine::parse(line, &key())).collect();
        assert_eq!(read, [None, Some(LINE), Some(LINE)]);
        assert!(has(folder.path(), &text).expect("it reads"));
    }
}
