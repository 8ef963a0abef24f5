//! A producer: hands in one message after the other and records those that were acknowledged. When the node is gone it
//! waits for the next one. A message without an answer does not count as acknowledged.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::record::{self, BYTES, TokenRecord};
use crate::fixtures::part;
use crate::prove::CannotRun;

/// Messages under way at once.
const UNDER_WAY: u64 = 32;
/// The pause before trying again to connect.
const RECONNECT_AFTER: Duration = Duration::from_millis(2);

/// Produces until its process is killed.
pub(crate) fn run(folder: &Path, number: &str) -> Result<(), CannotRun> {
    part::end_with_input();
    let number: u32 = number.parse()?;
    let mut ledger = OpenOptions::new().append(true).create(true).open(record::ledger(folder, number as usize))?;
    let mut tokens = (1..).map(|count| u64::from(number) << 40 | count);
    loop {
        let Ok(mut node) = UnixStream::connect(record::socket(folder)) else {
            thread::sleep(RECONNECT_AFTER);
            continue;
        };
        // Until the node is gone.
        let mut wanted = UNDER_WAY;
        let mut answers = vec![0; BYTES * 1_024];
        let mut filled = 0;
        loop {
            let bytes: Vec<u8> = tokens.by_ref().take(to_usize(wanted)).flat_map(u64::to_be_bytes).collect();
            if node.write_all(&bytes).is_err() {
                break;
            }
            let Ok(read @ 1..) = node.read(&mut answers[filled..]) else { break };
            filled += read;
            let whole = filled / BYTES * BYTES;
            ledger.write_all(&answers[..whole])?;
            answers.copy_within(whole..filled, 0);
            filled -= whole;
            wanted = (whole / BYTES) as u64;
        }
    }
}

/// The tokens in a producer's request, eight bytes each.
pub(super) fn tokens(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, _) = bytes.as_chunks::<8>();
    whole.iter().map(|bytes| u64::from_be_bytes(*bytes))
}

pub(super) fn acknowledgement(token: u64, id: u64) -> [u8; BYTES] {
    TokenRecord { token, id }.to_bytes()
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
