//! The records that producers and receivers write to files and send over the socket: pairs of numbers, sixteen bytes
//! each.
//!
//! Records are only appended, each with one write. A process that is killed leaves whole records, or a last one that is
//! incomplete and does not count.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The bytes of a record.
pub(crate) const BYTES: usize = 16;

/// The producer's token of a message, and an id: the message's id in a ledger, its delivery's id in a file of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TokenRecord {
    pub(crate) token: u64,
    pub(crate) id: u64,
}

impl TokenRecord {
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        (u128::from(self.token) << 64 | u128::from(self.id)).to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; BYTES]) -> Self {
        let halves = bytes.as_chunks::<8>().0;
        Self { token: u64::from_be_bytes(halves[0]), id: u64::from_be_bytes(halves[1]) }
    }
}

/// The complete records in these bytes.
pub(crate) fn all(bytes: &[u8]) -> impl Iterator<Item = TokenRecord> {
    let (whole, _) = bytes.as_chunks::<BYTES>();
    whole.iter().map(|bytes| TokenRecord::from_bytes(*bytes))
}

/// The complete records of a file; none if it is missing.
pub(crate) fn read(path: &Path) -> io::Result<Vec<TokenRecord>> {
    match fs::read(path) {
        Ok(bytes) => Ok(all(&bytes).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// How many complete records a file has.
pub(crate) fn count(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len() / BYTES as u64)
}

/// The file in which a producer records acknowledged messages.
pub(crate) fn ledger(folder: &Path, producer: usize) -> PathBuf {
    folder.join(format!("ledger-{producer}"))
}

/// The file in which the receiver records arrivals.
pub(crate) fn arrivals(folder: &Path) -> PathBuf {
    folder.join("arrivals")
}

/// The socket on which the node listens.
pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_record_does_not_count() {
        let records = [TokenRecord { token: 1 << 40 | 7, id: u64::MAX }, TokenRecord { token: 2, id: 3 }];
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.to_bytes()).collect();
        assert_eq!(all(&bytes).collect::<Vec<_>>(), records);
        assert_eq!(all(&bytes[..31]).collect::<Vec<_>>(), records[..1]);
    }
}
