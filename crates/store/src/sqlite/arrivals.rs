//! What was accepted, on its way to the dispatch loop: one hand-over for each group commit.
//!
//! Bounded from the accepting side: an accept takes room for its rows before it is queued, and
//! the loop gives the room back when it fetches them; a group with nothing to fetch gives it back
//! at once. The writer itself never waits for the loop, so a loop that waits for the writer cannot
//! stop both.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::writer::soon;
use crate::StoreError;
use crate::row::{Accepted, Arrival, Chunk};

/// Bodies and rows on their way through the writer to the loop, in KiB: 16 MiB, four groups of the largest. Each body
/// is there twice, as it came and sealed.
const ROOM_KIB: u32 = 16 * 1024;

/// Accepted rows that the loop has not fetched.
#[derive(Debug)]
pub(super) struct Arrivals {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    room: Semaphore,
}

#[derive(Debug, Default)]
struct Waiting {
    arrivals: Vec<Arrival>,
    room: u32,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::default(), arrived: Notify::new(), room: Semaphore::new(ROOM_KIB as usize) }
    }

    /// Room for what is about to be accepted; waits until the loop has fetched enough.
    pub(super) async fn make_room(&self, room: u32) -> Result<SemaphorePermit<'_>, StoreError> {
        self.room.acquire_many(room).await.map_err(|_| StoreError::Stopped)
    }

    /// The same, but not for long.
    pub(super) async fn make_room_soon(&self, room: u32) -> Result<SemaphorePermit<'_>, StoreError> {
        match self.room.try_acquire_many(room) {
            Ok(permit) => Ok(permit),
            Err(_) => soon(self.make_room(room)).await?,
        }
    }

    /// Gives back the room of an accept that was refused.
    pub(super) fn give_back(&self, room: u32) {
        self.room.add_permits(room as usize);
    }

    /// Ends the wait for room and for arrivals: nothing is accepted any more.
    pub(super) fn close(&self) {
        self.room.close();
        self.arrived.notify_one();
    }

    /// Hands over what one group accepted, in the order of its commit.
    pub(super) fn publish(&self, arrivals: Vec<Arrival>, room: u32) {
        if arrivals.is_empty() {
            self.give_back(room);
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.room += room;
        if waiting.arrivals.is_empty() {
            waiting.arrivals = arrivals;
        } else {
            waiting.arrivals.extend(arrivals);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Everything that has arrived; waits for something. Nothing when nothing will come any more.
    pub(super) async fn fetch(&self) -> Vec<Arrival> {
        loop {
            let fetched = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if !fetched.arrivals.is_empty() {
                self.give_back(fetched.room);
                return fetched.arrivals;
            }
            if self.room.is_closed() {
                return Vec::new();
            }
            self.arrived.notified().await;
        }
    }
}

/// How much room these take: their bodies, and a KiB for each delivery. More than there is takes
/// everything, and so goes alone.
pub(super) fn room<'a>(messages: impl Iterator<Item = &'a Accepted>) -> u32 {
    let kib = messages.map(|accepted| bytes(accepted) / 1024 + accepted.deliveries.len()).sum::<usize>();
    u32::try_from(kib).unwrap_or(ROOM_KIB).min(ROOM_KIB)
}

/// The bytes of a message's payloads.
pub(super) fn bytes(accepted: &Accepted) -> usize {
    accepted.message.body.len() + accepted.message.compact.as_ref().map_or(0, bytes::Bytes::len)
}

/// How much room a chunk takes: a KiB for each delivery, and each body once for every run of
/// deliveries that share it.
pub(super) fn room_of_chunk(chunk: &Chunk) -> u32 {
    let mut kib = chunk.deliveries.len();
    let mut last = None;
    for spread in &chunk.deliveries {
        if last != Some(spread.message.id) {
            kib += spread.message.body.len() / 1024;
        }
        last = Some(spread.message.id);
    }
    u32::try_from(kib).unwrap_or(ROOM_KIB).min(ROOM_KIB)
}
