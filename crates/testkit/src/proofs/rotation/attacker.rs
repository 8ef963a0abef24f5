//! The program `attacker unwrap`: it has a store's files and all of its former master keys, but not the current one.
//!
//! It searches every offset of every file for a key that a former master key wraps, and tries to unwrap it. It also
//! searches for pieces of wrapped keys that were in the files earlier, because a wrapped key that is overwritten only
//! in part is still a leak.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::Path;

use posthaste_crypto::keyring::{KeyId, MasterWrapped, WRAPPED_BYTES};
use posthaste_crypto::master::{MasterKey, MasterKeyId, Masters};
use rusqlite::Connection;

use crate::fixtures::from_hex;
use crate::prove::{CannotRun, Context};

/// The bytes of a piece. Any sixteen consecutive bytes of a wrapped key contain at least one whole piece.
const PIECE: usize = 8;
/// The first byte of everything sealed; the id of its key follows.
const VERSION: u8 = 1;

/// The attacker's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrappedFound {
    /// Offsets with the header of something that a former key wraps.
    pub begun: u64,
    /// Those of them that a former key can unwrap.
    pub opened: u64,
    /// Pieces of wrapped keys that were in the files earlier.
    pub pieces: u64,
    pub searched: u64,
}

impl WrappedFound {
    pub(super) fn parse(output: &str) -> Result<Self, CannotRun> {
        let numbers: Vec<u64> = output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [begun, opened, pieces, searched] => Ok(Self { begun, opened, pieces, searched }),
            _ => Err(CannotRun(format!("the attacker failed, and printed {output:?}"))),
        }
    }
}

/// The id of the master key that wrapped this key, according to its header.
pub(super) fn wrapped_by(wrapped: &[u8]) -> Option<MasterKeyId> {
    let wrapped: &[u8; WRAPPED_BYTES] = wrapped.try_into().ok()?;
    Some(MasterWrapped::from_bytes(*wrapped).by())
}

/// Reads former master keys and wrapped keys from standard input, and prints the results.
pub(crate) fn run(folder: &Path) -> Result<(), CannotRun> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let mut keys = Vec::new();
    let mut pieces = HashSet::new();
    for line in input.lines() {
        match line.split_once(' ') {
            Some(("key", text)) => keys.extend(MasterKey::parse(text).ok()),
            Some(("wrapped", hex)) => pieces.extend(from_hex(hex).unwrap_or_default().as_chunks::<PIECE>().0),
            _ => return Err(CannotRun(format!("unknown line {line:?}"))),
        }
    }
    let owners = owners(folder)?;
    let old: HashSet<u32> = keys.iter().map(|key| key.id().raw()).collect();
    let masters = Masters::newest_first(keys).context("there is no former master key")?;
    let mut found = WrappedFound::default();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.is_file() {
            let bytes = fs::read(&path)?;
            found.searched += bytes.len() as u64;
            search(&bytes, &old, &masters, &pieces, &owners, &mut found);
        }
    }
    println!("{} {} {} {}", found.begun, found.opened, found.pieces, found.searched);
    Ok(())
}

fn search(
    bytes: &[u8],
    old: &HashSet<u32>,
    masters: &Masters,
    pieces: &HashSet<[u8; PIECE]>,
    owners: &[(u32, u64)],
    found: &mut WrappedFound,
) {
    for (at, window) in bytes.windows(PIECE).enumerate() {
        let Some(piece) = window.first_chunk::<PIECE>() else { continue };
        found.pieces += u64::from(pieces.contains(piece));
        let by = u32::from_be_bytes([piece[1], piece[2], piece[3], piece[4]]);
        if piece[0] != VERSION || !old.contains(&by) {
            continue;
        }
        found.begun += 1;
        let Some(wrapped) = bytes[at..].first_chunk().map(|wrapped| MasterWrapped::from_bytes(*wrapped)) else {
            continue;
        };
        let opens = owners.iter().any(|(id, tenant)| masters.unwrap_tenant(*tenant, KeyId(*id), &wrapped).is_ok());
        found.opened += u64::from(opens || masters.unwrap_store(KeyId(1), &wrapped).is_ok());
    }
}

/// The ids of tenants' data keys, with their tenants: the associated data of each wrapped key, which is not secret.
/// Reads a copy of the database, because reading one whose process was killed changes its files.
fn owners(folder: &Path) -> std::io::Result<Vec<(u32, u64)>> {
    let copy = tempfile::tempdir()?;
    for name in ["posthaste.db", "posthaste.db-wal"] {
        if folder.join(name).exists() {
            fs::copy(folder.join(name), copy.path().join(name))?;
        }
    }
    let read = Connection::open(copy.path().join("posthaste.db")).and_then(|conn| {
        let mut sql = conn.prepare("SELECT id, tenant FROM data_key WHERE tenant >= 0 AND subject = x''")?;
        sql.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())))?.collect()
    });
    Ok(read.unwrap_or_default())
}
