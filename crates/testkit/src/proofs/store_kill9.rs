//! The proof `store-kill9`: a real process with the dispatch loop over SQLite is killed again and again while
//! producers, in separate processes, hand in messages.
//!
//! The check does not depend on the store: each producer records the acknowledged messages (its *ledger*), the loopback
//! receiver records arrivals, and the proof compares the two. Only at the very end the store is opened and queried for
//! the state of every delivery.
//!
//! The control is the same process acknowledging before the commit: the proof must detect a loss.

pub(super) mod node;
pub(super) mod producer;
pub(crate) mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use posthaste_core::scheduler::Order;
use posthaste_core::{DeliveryId, IdRange, Key, MessageId, Timestamp};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, Outbox, Query, SessionStart, StoreError};
use tokio::time::Instant;

use crate::fixtures::{ChildProcess, block_on, missing_in_the_end, seeder};
use crate::master_key;
use crate::prove::{CannotRun, Context, Figure, Findings, Options, count};
use node::SLOTS;
use record::TokenRecord;

const PRODUCERS: usize = 8;
/// The longest wait for acknowledgements.
const PATIENCE: Duration = Duration::from_secs(30);
/// If nothing has arrived for this long, the messages that are missing are lost: retries come sooner.
const STANDS_STILL: Duration = Duration::from_secs(10);
/// One cycle in this many kills the node while it starts.
const IN_THE_START: u32 = 5;
/// Cycles of the control, in which it must lose something.
const CONTROL_CYCLES: u32 = 10;

#[derive(Clone, Copy)]
struct Size {
    cycles: u32,
    acknowledged: u64,
}

const FULL: Size = Size { cycles: 60, acknowledged: 100_000 };
const QUICK: Size = Size { cycles: 20, acknowledged: 10_000 };

pub fn run(options: &Options) -> Findings {
    let size = if options.quick { QUICK } else { FULL };
    let mut dice = fastrand::Rng::with_seed(options.first.unwrap_or(9));
    let mut world = World::begin("committed")?;
    for cycle in 0..size.cycles {
        let enough = size.acknowledged * u64::from(cycle + 1) / u64::from(size.cycles);
        world.cycle(cycle, enough, &mut dice)?;
    }
    let lost = world.everything_arrives()?;
    let control = control(&mut dice)?;
    let World { kills, .. } = world;
    let (folder, books) = world.end()?;
    let astray = astray(&folder.path().join("data"), &books)?;
    let (acknowledged, arrived) = (books.acknowledged.len(), books.arrived.len());
    eprintln!("{kills} kills, {acknowledged} acknowledged, {arrived} arrived, {lost} lost, {astray} astray");
    Ok(vec![
        Figure::at_least("kills", f64::from(kills), "kills", f64::from(size.cycles)),
        Figure::at_least("acknowledged", count(acknowledged), "messages", size.acknowledged as f64),
        Figure::at_most("lost", count(lost), "messages", 0.0),
        Figure::at_most("rows_astray", count(astray), "rows", 0.0),
        // Only deliveries that were in flight at a kill may arrive twice.
        Figure::at_most("duplicates", count(books.duplicates()), "arrivals", f64::from(kills * SLOTS)),
        Figure::at_least("control_lost", count(control), "messages", 1.0),
    ])
}

/// The control: a node that acknowledges too early loses messages.
fn control(dice: &mut fastrand::Rng) -> Result<usize, CannotRun> {
    let mut world = World::begin("early")?;
    for cycle in 1..=CONTROL_CYCLES {
        world.cycle(cycle, u64::from(cycle) * 500, dice)?;
    }
    world.promise = "committed";
    world.everything_arrives()
}

/// The node, its producers, and the folder with their records.
struct World {
    folder: tempfile::TempDir,
    promise: &'static str,
    node: Option<ChildProcess>,
    producers: Vec<ChildProcess>,
    kills: u32,
}

impl World {
    fn begin(promise: &'static str) -> Result<Self, CannotRun> {
        let folder = tempfile::Builder::new().prefix("kill9-").tempdir_in(seeder::shelf()?)?;
        let mut world = Self { folder, promise, node: None, producers: Vec::new(), kills: 0 };
        for number in 0..PRODUCERS {
            world.producers.push(ChildProcess::start("store-producer", [world.path()?, &number.to_string()])?);
        }
        Ok(world)
    }

    fn path(&self) -> Result<&str, CannotRun> {
        self.folder.path().to_str().context("the folder's name is not text")
    }

    /// Starts the node and kills it: during its start, or a moment after `enough` messages have been acknowledged in
    /// all.
    fn cycle(&mut self, cycle: u32, enough: u64, dice: &mut fastrand::Rng) -> Result<(), CannotRun> {
        let mut node = ChildProcess::start("store-node", [self.path()?, self.promise])?;
        if cycle % IN_THE_START != 2 {
            node.until(|line| line == node::READY)?;
            self.acknowledges(enough)?;
        }
        thread::sleep(Duration::from_micros(dice.u64(..40_000)));
        node.kill()?;
        self.kills += 1;
        Ok(())
    }

    /// Lets the node deliver everything acknowledged. Returns how many of those messages never arrived.
    fn everything_arrives(&mut self) -> Result<usize, CannotRun> {
        // Producers exit at the end of their input, after they have written their records.
        for producer in &mut self.producers {
            producer.stop()?;
        }
        let mut node = ChildProcess::start("store-node", [self.path()?, self.promise])?;
        node.until(|line| line == node::READY)?;
        self.node = Some(node);
        missing_in_the_end(STANDS_STILL, || Ok(Books::read(self.folder.path())?.lost()))
    }

    /// Waits until this many messages have been acknowledged in all, by the length of the producers' ledgers.
    fn acknowledges(&self, enough: u64) -> Result<(), CannotRun> {
        let acknowledged = |number| record::count(&record::ledger(self.folder.path(), number));
        let began = Instant::now();
        while (0..PRODUCERS).map(acknowledged).sum::<u64>() < enough {
            if began.elapsed() > PATIENCE {
                return Err(CannotRun("the node acknowledges nothing".to_owned()));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Kills the node and returns the records of all parties.
    fn end(mut self) -> Result<(tempfile::TempDir, Books), CannotRun> {
        if let Some(mut node) = self.node.take() {
            node.kill()?;
        }
        let books = Books::read(self.folder.path())?;
        Ok((self.folder, books))
    }
}

/// Reads under way at once.
const READS: usize = 16;
/// Rows in one page.
const PAGE: u32 = 1_000;

/// The records of all parties.
struct Books {
    /// The acknowledged messages: token and message id.
    acknowledged: BTreeMap<u64, u64>,
    /// The arrivals in order, with their delivery ids.
    arrived: Vec<TokenRecord>,
}

impl Books {
    fn read(folder: &Path) -> io::Result<Self> {
        let mut acknowledged = BTreeMap::new();
        for producer in 0..PRODUCERS {
            let ledger = record::read(&record::ledger(folder, producer))?;
            acknowledged.extend(ledger.into_iter().map(|record| (record.token, record.id)));
        }
        Ok(Self { acknowledged, arrived: record::read(&record::arrivals(folder))? })
    }

    /// How many messages were acknowledged and never arrived.
    fn lost(&self) -> usize {
        let arrived: BTreeSet<u64> = self.arrived.iter().map(|record| record.token).collect();
        self.acknowledged.keys().filter(|token| !arrived.contains(token)).count()
    }

    /// How many arrivals were of a message that had arrived before.
    fn duplicates(&self) -> usize {
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
fn astray(data: &Path, books: &Books) -> Result<usize, CannotRun> {
    block_on(async {
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
