//! The low-water mark: a start scans for ready rows from this id on, not through all pending rows.
//!
//! Ready rows are in no index, so finding them takes a scan of all rows (see `page`). But they are the newest: older
//! deliveries have ended, or their rows are delayed or spilled. The mark is raised only now and then, which is cheap; a
//! start scans the rows between the mark and the first ready row without need.
//!
//! Invariant: no row below `meta.low` is ready. A request that makes a row below it ready lowers the mark in the same
//! transaction; the mark is raised only in a transaction that has read every row it passes.

use posthaste_core::{DeliveryId, RowIndex};
use rusqlite::{Connection, Statement};

use super::{SmallChange, WriteRequest, key, place_number};

/// Rows read for each row that was written. More than one, so that the mark catches up with accepted rows.
const LOOKS_PER_ROW: usize = 2;

/// The low-water mark and the statements that maintain it.
pub(super) struct Low<'c> {
    read: Statement<'c>,
    set: Statement<'c>,
    /// The mark as it is on the disk.
    durable: i64,
    /// The mark as the transaction under way will write it.
    mark: i64,
    /// Rows written since the last attempt to raise the mark.
    written: usize,
    /// Number of written rows after which the next attempt is made.
    every: usize,
}

impl<'c> Low<'c> {
    pub(super) fn prepare(conn: &'c Connection, every: usize) -> rusqlite::Result<Self> {
        let durable = conn.query_row("SELECT value FROM meta WHERE key = 'low'", [], |row| row.get(0))?;
        Ok(Self {
            read: conn.prepare("SELECT id, place FROM delivery WHERE id >= ?1 ORDER BY id LIMIT ?2")?,
            set: conn.prepare("UPDATE meta SET value = ?1 WHERE key = 'low'")?,
            durable,
            mark: durable,
            written: 0,
            every,
        })
    }

    /// Lowers the mark for a request that is about to run. If it is then refused, the mark is lower than necessary.
    pub(super) fn notice(&mut self, request: &WriteRequest) {
        match request {
            WriteRequest::Accept { messages, .. } => {
                let new = messages.iter().flat_map(|accepted| &accepted.deliveries);
                new.for_each(|new| self.wrote(new.delivery.id, new.place));
            }
            WriteRequest::Spread { chunk, .. } => {
                let new = chunk.deliveries.iter().map(|spread| &spread.new);
                new.for_each(|new| self.wrote(new.delivery.id, new.place));
            }
            WriteRequest::Settle { settlements, .. } => {
                for record in settlements.iter().map(|settlement| &settlement.record) {
                    self.wrote(record.delivery.id, record.place);
                }
            }
            WriteRequest::Change { change: SmallChange::Spill(deliveries), .. } => self.written += deliveries.len(),
            WriteRequest::Work { rows, .. } => self.written += rows,
            _ => {}
        }
    }

    fn wrote(&mut self, id: DeliveryId, place: RowIndex) {
        self.written += 1;
        if place == RowIndex::Ready {
            self.mark = self.mark.min(key(id.0));
        }
    }

    /// Before the commit: raises the mark if it is time, and writes it if it has changed.
    pub(super) fn write(&mut self) -> rusqlite::Result<()> {
        if self.written >= self.every {
            self.raise(self.written * LOOKS_PER_ROW)?;
            self.written = 0;
        }
        // A mark below its last durable value is written too, so that it covers rows made ready there.
        if self.mark != self.durable {
            self.set.raw_bind_parameter(1, self.mark)?;
            self.set.raw_execute()?;
        }
        Ok(())
    }

    /// Raises the mark to the first ready row, reading at most so many rows.
    fn raise(&mut self, limit: usize) -> rusqlite::Result<()> {
        self.read.raw_bind_parameter(1, self.mark)?;
        self.read.raw_bind_parameter(2, i64::try_from(limit).unwrap_or(i64::MAX))?;
        let mut rows = self.read.raw_query();
        while let Some(row) = rows.next()? {
            let (id, place): (i64, u8) = (row.get(0)?, row.get(1)?);
            if place == place_number(RowIndex::Ready) {
                self.mark = id;
                break;
            }
            self.mark = id + 1;
        }
        Ok(())
    }

    /// Notes that the commit is on the disk.
    pub(super) fn committed(&mut self) {
        self.durable = self.mark;
    }

    pub(super) fn rolled_back(&mut self) {
        self.mark = self.durable;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use posthaste_core::{
        Delivery, EndpointId, Key, LaneId, LaneSettings, MessageId, TenantId, Tier, Timestamp, WriterId,
    };
    use tempfile::TempDir;

    use super::*;
    use crate::sqlite::{Bounds, Sqlite, fixture, page};
    use crate::{Accepted, Message, NewDelivery, Outbox, Session};

    const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
    const EVERY: usize = 100;

    fn folder() -> TempDir {
        tempfile::tempdir().expect("a temporary folder")
    }

    async fn open(folder: &TempDir) -> (Sqlite, Session) {
        fixture::open(folder, Bounds { reserve_bytes: 0, low_every: EVERY, ..Bounds::default() }).await
    }

    /// Accepts one row for each of these numbers, with one commit.
    async fn accept(store: &Sqlite, session: Session, place: RowIndex, numbers: impl Iterator<Item = u64>) {
        let (tenant, lane) = (TenantId::from_raw(9), LaneId::from_raw(5));
        let settings = Arc::new(LaneSettings::new(lane, tenant, Arc::default()));
        let messages = numbers.map(|number| {
            let id = MessageId(Key::new(session.writer, 2 * number));
            let delivery =
                Delivery::queued(DeliveryId(id.0.plus(1)), id, EndpointId::from_raw(4), lane, Tier::Promotional, NOW);
            let new = NewDelivery::new(delivery, place, Arc::clone(&settings));
            Accepted::new(Message::new(id, tenant, NOW, "{}"), vec![new])
        });
        _ = store.accept(session, messages.collect()).await.expect("they are accepted");
        _ = store.arrivals().await;
    }

    /// A copy of the files as a process that is killed now would leave them.
    fn left_by(killed: &TempDir) -> TempDir {
        let left = folder();
        for name in ["posthaste.db", "posthaste.db-wal"] {
            fs::copy(killed.path().join(name), left.path().join(name)).expect("what is left can be copied");
        }
        left
    }

    /// The numbers that the next start finds ready, and how many rows it reads to find them.
    async fn found(folder: &TempDir) -> (Vec<u64>, u32) {
        let (store, session) = open(folder).await;
        found_before(&store, session.writer).await
    }

    async fn found_before(store: &Sqlite, writer: WriterId) -> (Vec<u64>, u32) {
        let read = store.readers.read(move |conn| page::left(conn, None, None, writer, u32::MAX));
        let (page, looked) = read.await.expect("it reads");
        (page.rows.iter().map(|row| row.delivery.id.0.seq() / 2).collect(), looked)
    }

    #[tokio::test]
    async fn a_start_reads_only_the_newest_rows_however_many_are_spilled() {
        let killed = folder();
        let (store, session) = open(&killed).await;
        for batch in 0..30 {
            accept(&store, session, RowIndex::Spilled, batch * 100..(batch + 1) * 100).await;
        }
        accept(&store, session, RowIndex::Ready, 3_000..3_003).await;
        let (ready, looked) = found(&left_by(&killed)).await;
        assert_eq!(ready, [3_000, 3_001, 3_002]);
        assert!(looked as usize <= 2 * EVERY, "it read {looked} of 3,003 rows");
    }

    #[tokio::test]
    async fn a_mark_that_lags_behind_hides_no_ready_row() {
        let killed = folder();
        let (store, session) = open(&killed).await;
        accept(&store, session, RowIndex::Ready, [1, 3].into_iter()).await;
        for batch in 1..10 {
            accept(&store, session, RowIndex::Spilled, batch * 100..(batch + 1) * 100).await;
        }
        // The first row is ready all the while, so the mark stays at it.
        let (ready, looked) = found(&left_by(&killed)).await;
        assert_eq!((ready, looked), (vec![1, 3], 902));
        // Once it is spilled the mark follows: two rows for each row that is written.
        let spilled = [1, 3].map(|number| DeliveryId(Key::new(session.writer, 2 * number + 1)));
        store.spill(session, spilled.to_vec()).await.expect("they are spilled");
        for batch in 10..20 {
            accept(&store, session, RowIndex::Spilled, batch * 100..(batch + 1) * 100).await;
        }
        let (ready, looked) = found(&left_by(&killed)).await;
        assert_eq!(ready, [0; 0]);
        assert!(looked as usize <= 2 * EVERY, "it read {looked} of 1,902 rows");
    }

    #[tokio::test]
    async fn a_row_made_ready_below_the_mark_is_found() {
        let killed = folder();
        let (store, session) = open(&killed).await;
        for batch in 1..10 {
            accept(&store, session, RowIndex::Spilled, batch * 100..(batch + 1) * 100).await;
        }
        // Its id was minted before those, its accept was slower.
        accept(&store, session, RowIndex::Ready, [7].into_iter()).await;
        let (ready, _) = found(&left_by(&killed)).await;
        assert_eq!(ready, [7]);
    }
}
