//! Compares the records of producers and receiver with each other, and at the very end with the store.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use posthaste_core::scheduler::Order;
use posthaste_core::{DeliveryId, IdRange, Key, MessageId, Timestamp};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, Outbox, Query, SessionStart, StoreError};

use super::PRODUCERS;
use super::record::{self, TokenRecord};
use crate::master_key;
use crate::prove::CannotRun;

/// Reads under way at once.
const READS: usize = 16;
/// Rows in one page.
const PAGE: u32 = 1_000;

/// The records of all parties.
pub(super) struct Books {
    /// The acknowledged messages: token and message id.
    pub(super) acknowledged: BTreeMap<u64, u64>,
    /// The arrivals in order, with their delivery ids.
    pub(super) arrived: Vec<TokenRecord>,
}

impl Books {
    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        let mut acknowledged = BTreeMap::new();
        for producer in 0..PRODUCERS {
            let ledger = record::read(&record::ledger(folder, producer))?;
            acknowledged.extend(ledger.into_iter().map(|record| (record.token, record.id)));
        }
        Ok(Self { acknowledged, arrived: record::read(&record::arrivals(folder))? })
    }

    /// How many messages were acknowledged and never arrived.
    pub(super) fn lost(&self) -> usize {
        let arrived: BTreeSet<u64> = self.arrived.iter().map(|record| record.token).collect();
        self.acknowledged.keys().filter(|token| !arrived.contains(token)).count()
    }

    /// How many arrivals were of a message that had arrived before.
    pub(super) fn duplicates(&self) -> usize {
        let distinct: BTreeSet<u64> = self.arrived.iter().map(|record| record.token).collect();
        self.arrived.len() - distinct.len()
    }

    /// The ids of all messages that were acknowledged or have arrived.
    fn messages(&self) -> BTreeSet<u64> {
        let arrived = self.arrived.iter().map(|record| record.id - 1);
        self.acknowledged.values().copied().chain(arrived).collect()
    }
}

/// How many deliveries are pending but unreachable for the dispatch loop. Every pending delivery must be found by one
/// of the queries with which the loop finds its rows.
pub(super) fn astray(data: &Path, books: &Books) -> Result<usize, CannotRun> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = Sqlite::open_folder(data, master_key())?;
        let start = store.open(SystemClock::new().now()).await?;
        let found = findable(&store, &start).await?;
        eprintln!("{} rows are pending after the last start", found.len());
        let (store, found) = (&store, &found);
        let reads = stream::iter(books.messages()).map(|id| is_astray(store, MessageId(Key::from_raw(id)), found));
        let astray = reads.buffer_unordered(READS).try_fold(0, async |sum, one| Ok(sum + usize::from(one))).await?;
        store.close().await;
        Ok(astray)
    })
}

async fn is_astray(store: &Sqlite, message: MessageId, found: &BTreeSet<DeliveryId>) -> Result<bool, StoreError> {
    let deliveries = store.deliveries(message, None, Timestamp::MAX, u32::MAX).await?;
    let [only] = deliveries.as_slice() else { return Ok(true) };
    Ok(!only.delivery.state.is_terminal() && !found.contains(&only.delivery.id))
}

/// Every pending row that the loop's queries find: rows left behind, delayed rows, spilled rows.
async fn findable(store: &Sqlite, start: &SessionStart) -> Result<BTreeSet<DeliveryId>, StoreError> {
    let mut found = BTreeSet::new();
    let mut left = None;
    loop {
        let page = store.page(Query::Left { after: left, before: start.session.writer }, PAGE, Timestamp::MAX).await?;
        found.extend(page.rows.iter().map(|row| row.delivery.id));
        left = page.looked;
        if !page.more {
            break;
        }
    }
    let mut late = None;
    loop {
        let page = store.page(Query::Delayed { after: late, until: Timestamp::MAX }, PAGE, Timestamp::MAX).await?;
        found.extend(page.rows.iter().map(|row| row.delivery.id));
        late = page.rows.last().and_then(|row| Some((row.delivery.state.due()?, row.delivery.id)));
        if !page.more {
            break;
        }
    }
    for (lane, tier) in &start.spilled {
        let query = Query::Spilled { lane: *lane, tier: *tier, order: Order::Fifo, span: IdRange::ALL };
        found.extend(store.page(query, u32::MAX >> 1, Timestamp::MAX).await?.rows.iter().map(|row| row.delivery.id));
    }
    Ok(found)
}
