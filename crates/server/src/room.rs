//! Bounds the bytes of request bodies that are in memory at once, over all connections (F3).
//!
//! A request takes room for the bytes of its body as they arrive, so that a declared length alone takes none. It gives
//! them back once it is answered: until then its message may wait for the store in another copy.
//!
//! Each tenant and each API key has a share that shrinks as the room fills: a key may hold twice what is still free, and
//! all keys of a tenant together three times that. One producer alone gets two thirds of the room, and however much
//! others hold, a part of what is left is free for a tenant that holds nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use posthaste_core::{Key, TenantId};

/// The bound for all bodies together: three of the largest batches. With the copies that are sealed, queued and being
/// written, one producer's share is some 50 MiB.
const ROOM_BYTES: u64 = 24 * 1024 * 1024;
const KEY_SHARE: u64 = 2;
const TENANT_SHARE: u64 = 3;

/// The room of a server.
#[derive(Clone, Debug)]
pub(crate) struct BodyRoom(Arc<Mutex<Shares>>);

#[derive(Debug)]
struct Shares {
    free: u64,
    tenants: HashMap<Option<TenantId>, u64>,
    keys: HashMap<RoomHolder, u64>,
}

/// Whose request it is. Requests without a tenant or a key share one place each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RoomHolder {
    pub(crate) tenant: Option<TenantId>,
    pub(crate) key: Option<Key>,
}

/// There is not enough room for a body, or its sender's share is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many bytes of requests are under way as the server takes at once")]
pub(crate) struct NoRoom;

/// What one request holds. Its clones are the same place; the room is given back when the last one is dropped.
#[derive(Clone, Debug)]
pub(crate) struct BodyPlace(Arc<Place>);

#[derive(Debug)]
struct Place {
    room: BodyRoom,
    held: Mutex<(RoomHolder, u64)>,
}

impl BodyRoom {
    pub(crate) fn new() -> Self {
        Self::with_bytes(ROOM_BYTES)
    }

    fn with_bytes(free: u64) -> Self {
        Self(Arc::new(Mutex::new(Shares { free, tenants: HashMap::new(), keys: HashMap::new() })))
    }

    /// A place for the body of one request, which holds nothing yet.
    pub(crate) fn place(&self) -> BodyPlace {
        BodyPlace(Arc::new(Place { room: self.clone(), held: Mutex::default() }))
    }
}

impl BodyPlace {
    /// Says whose request it is, before its body is read.
    pub(crate) fn belongs_to(&self, holder: RoomHolder) {
        let mut held = lock(&self.0.held);
        if held.1 == 0 {
            held.0 = holder;
        }
    }

    /// Takes room for bytes that have arrived.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), NoRoom> {
        let mut held = lock(&self.0.held);
        lock(&self.0.room.0).take(held.0, bytes)?;
        held.1 += bytes;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (holder, bytes) = *lock(&self.held);
        if bytes > 0 {
            lock(&self.room.0).give_back(holder, bytes);
        }
    }
}

impl Shares {
    fn take(&mut self, holder: RoomHolder, bytes: u64) -> Result<(), NoRoom> {
        let free = self.free.checked_sub(bytes).ok_or(NoRoom)?;
        let with_more = |held: Option<&u64>| held.copied().unwrap_or_default() + bytes;
        let by_tenant = with_more(self.tenants.get(&holder.tenant));
        let by_key = with_more(self.keys.get(&holder));
        if by_tenant > TENANT_SHARE * free || by_key > KEY_SHARE * free {
            return Err(NoRoom);
        }
        self.free = free;
        self.tenants.insert(holder.tenant, by_tenant);
        self.keys.insert(holder, by_key);
        Ok(())
    }

    fn give_back(&mut self, holder: RoomHolder, bytes: u64) {
        self.free += bytes;
        lessen(&mut self.tenants, holder.tenant, bytes);
        lessen(&mut self.keys, holder, bytes);
    }
}

/// Lessens a count, and removes it at zero: only those who hold something are in memory.
fn lessen<K: Eq + Hash>(held: &mut HashMap<K, u64>, holder: K, bytes: u64) {
    let left = held.get(&holder).copied().unwrap_or_default().saturating_sub(bytes);
    if left == 0 {
        held.remove(&holder);
    } else {
        held.insert(holder, left);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 24_000;

    fn place(room: &BodyRoom, tenant: u64, key: u64) -> BodyPlace {
        let place = room.place();
        place.belongs_to(RoomHolder { tenant: Some(TenantId::from_raw(tenant)), key: Some(Key::from_raw(key)) });
        place
    }

    /// Takes as much as a place gets, and returns it.
    fn most(place: &BodyPlace) -> u64 {
        (0..ROOM).take_while(|_| place.take(1).is_ok()).count() as u64
    }

    #[test]
    fn shares_of_keys_and_tenants_shrink_as_the_room_fills() {
        let room = BodyRoom::with_bytes(ROOM);
        let places = [place(&room, 1, 1), place(&room, 1, 1), place(&room, 1, 2), place(&room, 2, 3)];
        assert_eq!(most(&places[0]), 16_000, "one key gets two thirds");
        assert_eq!(most(&places[1]), 0, "the same key again");
        assert_eq!(most(&places[2]), 2_000, "another key of the tenant, up to the tenant's share of 18,000");
        assert_eq!(most(&places[3]), 4_000, "another tenant gets two thirds of the rest");
        assert_eq!(most(&place(&room, 3, 4)), 1_333, "and so does the next");
    }

    #[test]
    fn room_is_given_back_with_the_last_clone_of_a_place() {
        let room = BodyRoom::with_bytes(ROOM);
        let first = place(&room, 1, 1);
        let clone = first.clone();
        assert_eq!((first.take(16_000), first.take(1)), (Ok(()), Err(NoRoom)));
        drop(first);
        assert_eq!(place(&room, 1, 1).take(1), Err(NoRoom));
        drop(clone);
        assert_eq!(most(&place(&room, 1, 1)), 16_000);
        let shares = lock(&room.0);
        assert_eq!((shares.free, shares.tenants.len(), shares.keys.len()), (ROOM, 0, 0));
    }

    #[test]
    fn the_largest_batch_fits_beside_another_tenants_share() {
        let room = BodyRoom::new();
        assert_eq!(place(&room, 1, 1).take(8_000_000), Ok(()));
        let small = place(&room, 1, 1);
        assert_eq!(small.take(1_000_000), Ok(()));
        assert_eq!(place(&room, 2, 2).take(8_000_000), Ok(()));
    }
}
