//! The buffer of accepted deliveries between the writer and the dispatch loop: one hand-over for each group commit.
//!
//! It is bounded on the accepting side: an accept takes room for its deliveries before it is queued, and the room is
//! given back when the loop fetches them; a group that has nothing to fetch gives it back at once. The writer never
//! waits for the loop, so a loop that waits for the writer cannot deadlock.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::writer::soon;
use crate::{Accepted, ArrivedDelivery, Chunk, StoreError};

/// Room for bodies and rows between the accept and the dispatch loop, in KiB: 16 MiB, four of the largest groups. Each
/// body is in memory twice meanwhile, plain and sealed.
const ROOM_KIB: u32 = 16 * 1024;

/// Accepted rows that the loop has not fetched.
pub(super) struct Arrivals {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    room: Semaphore,
}

#[derive(Default)]
struct Waiting {
    arrivals: Vec<ArrivedDelivery>,
    room: u32,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::default(), arrived: Notify::new(), room: Semaphore::new(ROOM_KIB as usize) }
    }

    /// Takes room for an accept; waits until the loop has fetched enough.
    pub(super) async fn make_room(&self, room: u32) -> Result<SemaphorePermit<'_>, StoreError> {
        self.room.acquire_many(room).await.map_err(|_| StoreError::Stopped)
    }

    /// Like [`Self::make_room`], but returns [`StoreError::Busy`] after a few seconds.
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

    /// Ends every wait for room and for arrivals: no accept can follow.
    pub(super) fn close(&self) {
        self.room.close();
        self.arrived.notify_one();
    }

    /// Hands over the deliveries that one group accepted. Called in the order of the commits.
    pub(super) fn publish(&self, arrivals: Vec<ArrivedDelivery>, room: u32) {
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

    /// Takes all deliveries that wait; waits until there is one. Returns none only after [`Self::close`].
    pub(super) async fn fetch(&self) -> Vec<ArrivedDelivery> {
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

/// How much room these messages take, in KiB: their bodies, and one for each delivery. At most all the room there is.
pub(super) fn room<'a>(messages: impl Iterator<Item = &'a Accepted>) -> u32 {
    let kib = messages.map(|accepted| bytes(accepted) / 1024 + accepted.deliveries.len()).sum::<usize>();
    u32::try_from(kib).unwrap_or(ROOM_KIB).min(ROOM_KIB)
}

/// The bytes of a message's payloads.
pub(super) fn bytes(accepted: &Accepted) -> usize {
    accepted.message.body.len() + accepted.message.compact.as_ref().map_or(0, bytes::Bytes::len)
}

/// How much room a chunk takes, in KiB: one for each delivery, and each body once for every run of
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
