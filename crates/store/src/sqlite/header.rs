//! Reads the header of the database without SQLite: opening a file with SQLite may already change
//! it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Marks the file as a Posthaste database; letters, so that `file` and a hex dump show it.
pub(super) const APPLICATION_ID: i64 = 0x5048_7374; // "PHst"

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The kind of file, by its first 100 bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// The file is empty.
    None,
    /// A Posthaste database. The version is the database file's; the write-ahead log may have a newer one.
    Ours { version: u32 },
    /// Another file; the text says what it is.
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
