//! The first bytes of the database, read without SQLite: opening a file with it may already change
//! that file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Marks the file as ours; letters, so that `file` and a hex dump show it.
pub(super) const APPLICATION_ID: i64 = 0x5048_7374; // "PHst"

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// What a file begins with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Nothing: it has not been written yet.
    None,
    /// Our database, at this version as far as the file itself tells; the log may tell of a newer.
    Ours { version: u32 },
    /// Something else, put into words.
    Foreign(&'static str),
}

impl Header {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::open(path)?.take(100).read_to_end(&mut bytes)?;
        Ok(Self::of(&bytes))
    }

    fn of(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::None;
        }
        let Some(header) = bytes.first_chunk::<100>() else {
            return Self::Foreign("cut short: not even its first page is whole");
        };
        let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if !header.starts_with(MAGIC) {
            Self::Foreign("no database, or a damaged one")
        } else if i64::from(number(68)) != APPLICATION_ID {
            Self::Foreign("a database of another program")
        } else {
            Self::Ours { version: number(60) }
        }
    }
}
