//! Bounds the bytes of request bodies that are in memory at once, over all connections (F3).
//!
//! A body with a known length reserves its bytes before any of it is read, or is refused. A body without one reserves
//! bytes as they arrive. They are released once the request is answered: until then its message may wait for the store
//! in another copy.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bound for all bodies together, in KiB: 16 MiB, two of the largest batches. With the copies that are sealed,
/// queued and being written that is some 50 MiB.
const ROOM_KIB: u32 = 16 * 1024;
/// The most that one body reserves: a larger one is refused for its size.
const BODY_KIB_MAX: u64 = 8 * 1024;

/// The free bytes for bodies, as permits of a KiB each.
#[derive(Clone, Debug)]
pub(crate) struct BodyRoom(Arc<Semaphore>);

/// There are not enough free bytes for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many bytes of requests are under way as the server takes at once")]
pub(crate) struct NoRoom;

/// The bytes that a request has reserved, until it is answered.
pub(crate) type Held = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

impl BodyRoom {
    pub(crate) fn new() -> Self {
        Self::with_kib(ROOM_KIB)
    }

    fn with_kib(kib: u32) -> Self {
        Self(Arc::new(Semaphore::new(kib as usize)))
    }

    /// Reserves bytes for a body; `None` for an empty one.
    pub(crate) fn admit(&self, body: Incoming) -> Result<(Body, Option<Held>), NoRoom> {
        match body.size_hint().exact() {
            Some(0) => Ok((Body::new(body), None)),
            Some(bytes) => {
                let held = self.take(bytes)?;
                Ok((Body::new(body), Some(Arc::new(Mutex::new(Some(held))))))
            }
            None => {
                let held = Held::default();
                Ok((Body::new(Metered { body, room: self.clone(), held: Arc::clone(&held) }), Some(held)))
            }
        }
    }

    fn take(&self, bytes: u64) -> Result<OwnedSemaphorePermit, NoRoom> {
        let kib = u32::try_from(bytes.div_ceil(1024).min(BODY_KIB_MAX)).map_err(|_| NoRoom)?;
        Arc::clone(&self.0).try_acquire_many_owned(kib).map_err(|_| NoRoom)
    }
}

/// A body without a known length: reserves bytes for each frame as it arrives.
struct Metered {
    body: Incoming,
    room: BodyRoom,
    held: Held,
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let polled = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match polled {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
                Some(self.hold(bytes).map(|()| frame).map_err(Into::into))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Metered {
    fn hold(&self, bytes: u64) -> Result<(), NoRoom> {
        let more = self.room.take(bytes)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_beyond_the_room_are_refused_until_some_is_released() {
        let room = BodyRoom::with_kib(10);
        let first = room.take(6_000).expect("an empty room");
        assert!(room.take(4_000).is_ok(), "released at once");
        assert_eq!(room.take(5_000).map(drop), Err(NoRoom));
        drop(first);
        assert!(room.take(10_240).is_ok());
    }
}
