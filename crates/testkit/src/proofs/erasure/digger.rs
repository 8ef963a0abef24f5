//! The attacker of the proof `erasure`: it has the files *and* the master key, and knows the erased data.
//!
//! It searches every file for the erased data, in windows of sixteen bytes at every offset; and it opens and reads
//! every row that is left.

use std::fs;
use std::io::{self, BufRead};
use std::path::Path;

use posthaste_core::id_map::IdSet;
use posthaste_core::{DeliveryId, EndpointId, MessageId, TenantId};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, DeadLetterFilter, DeadLetters, Directory, ListOrder};
use rusqlite::{Connection, OpenFlags};

use crate::fixtures::{block_on, from_hex, hex, part};
use crate::master_key;
use crate::prove::{CannotRun, Context};

/// The bytes of a window. A shorter match could be a coincidence.
pub const WINDOW: usize = 16;

/// Runs the process in this role. Returns how many matches it found and how much it read: bytes or texts.
pub(super) fn dig(role: &str, folders: &[&Path], values: &[Vec<u8>]) -> Result<(u64, u64), CannotRun> {
    let lines: String = values.iter().map(|value| hex(value) + "\n").collect();
    part::found_and_searched(&part::run(role, folders, &lines)?)
}

fn values() -> Result<Vec<Vec<u8>>, CannotRun> {
    let bytes = |line: io::Result<String>| from_hex(&line?).context("an input line is not hexadecimal");
    io::stdin().lock().lines().map(bytes).collect()
}

pub(crate) fn search(folders: &[&str]) -> Result<(), CannotRun> {
    let wanted: IdSet<_> = values()?.iter().flat_map(|value| windows(value).collect::<Vec<_>>()).collect();
    let (mut found, mut read) = (0_u64, 0_u64);
    for folder in folders {
        for file in fs::read_dir(folder)? {
            let path = file?.path();
            let bytes = fs::read(&path)?;
            read += bytes.len() as u64;
            let here = windows(&bytes).filter(|window| wanted.contains(window)).count() as u64;
            if here > 0 {
                println!("found {here} windows in {}", path.display());
            }
            found += here;
        }
    }
    println!("{found} {read}");
    Ok(())
}

/// Every window of some bytes, as two numbers: their hash is cheap, which is enough because they are random already.
fn windows(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let halves = |window: &[u8]| Some((*window.first_chunk()?, *window.last_chunk()?));
    let numbers = |(first, last)| (u64::from_be_bytes(first), u64::from_be_bytes(last));
    bytes.windows(WINDOW).filter_map(halves).map(numbers)
}

/// Opens every row that is left, and searches its texts.
pub(crate) fn open(folder: &Path) -> Result<(), CannotRun> {
    let wanted = values()?;
    let (mut found, mut read) = (0_u64, 0_u64);
    let mut look = |what: &str, text: &[u8]| {
        read += 1;
        let hits = wanted.iter().filter(|value| text.windows(value.len()).any(|window| window == value.as_slice()));
        let hits = hits.count() as u64;
        if hits > 0 {
            println!("found {hits} in {what}");
        }
        found += hits;
    };
    let ids = ids(folder)?;
    block_on(async {
        let store = Sqlite::open_folder(folder, master_key())?;
        for id in ids.messages {
            if let Some(message) = store.message(MessageId::from_raw(id)).await? {
                look("a payload", &message.body);
                let texts = [&message.subject, &message.correlation_id, &message.event_type];
                texts.into_iter().flatten().for_each(|text| look("a message", text.as_bytes()));
            }
        }
        for id in ids.answered {
            let excerpts = store.excerpts(DeliveryId::from_raw(id)).await?;
            excerpts.iter().for_each(|(_, excerpt)| look("an answer", excerpt));
        }
        for id in ids.endpoints {
            if let Some(endpoint) = store.endpoint(EndpointId::from_raw(id)).await? {
                look("an endpoint", format!("{endpoint:?}").as_bytes());
            }
        }
        for tenant in ids.tenants {
            let filter = DeadLetterFilter::of(TenantId::from_raw(tenant));
            let mut after = None;
            loop {
                let page = store.dead_letters(filter.clone(), ListOrder::OldestFirst, after, 500).await?;
                page.letters.iter().for_each(|letter| look("a dead letter", format!("{letter:?}").as_bytes()));
                let Some(next) = page.next else { break };
                after = Some(next);
            }
        }
        store.close().await;
        Ok::<_, CannotRun>(())
    })?;
    println!("{found} {read}");
    Ok(())
}

struct Ids {
    messages: Vec<u64>,
    /// Deliveries with an excerpt of an answer.
    answered: Vec<u64>,
    endpoints: Vec<u64>,
    tenants: Vec<u64>,
}

fn ids(folder: &Path) -> Result<Ids, CannotRun> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let conn = Connection::open_with_flags(folder.join("posthaste.db"), flags)?;
    let column = |sql: &str| -> rusqlite::Result<Vec<u64>> {
        let mut sql = conn.prepare(sql)?;
        sql.query_map([], |row| row.get(0).map(i64::unsigned_abs))?.collect()
    };
    Ok(Ids {
        messages: column("SELECT id FROM message UNION SELECT id FROM kept")?,
        answered: column("SELECT DISTINCT delivery FROM excerpt")?,
        endpoints: column("SELECT id FROM endpoint")?,
        tenants: column("SELECT DISTINCT tenant FROM dead_letter")?,
    })
}
