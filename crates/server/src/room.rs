//! Room for request bodies: how many bytes of them are in the server at once, over all connections (F3).
//!
//! A body that says how long it is takes its room before any of it is read, or is refused. One that does not takes
//! room as it comes. The room is given back once the request is answered: until then its message may wait for the
//! store in another copy.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All bodies together, in KiB: 16 MiB, two of the largest batches. With the copies that are sealed, queued and on their
/// way to the disk that is some 50 MiB.
const ROOM_KIB: u32 = 16 * 1024;
/// No body takes more: one that is larger is refused for that.
const BODY_KIB_MAX: u64 = 8 * 1024;

/// The room.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

/// There is none left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many bytes of requests are under way as the server takes at once")]
pub(crate) struct NoRoom;

/// What a request holds of the room, until it is answered.
pub(crate) type Held = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

impl Room {
    pub(crate) fn new() -> Self {
        Self::of_kib(ROOM_KIB)
    }

    fn of_kib(kib: u32) -> Self {
        Self(Arc::new(Semaphore::new(kib as usize)))
    }

    /// A body with what it holds of the room: nothing where there is nothing to read.
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

/// A body that takes room as it comes.
struct Metered {
    body: Incoming,
    room: Room,
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
    fn what_does_not_fit_is_refused_until_something_was_answered() {
        let room = Room::of_kib(10);
        let first = room.take(6_000).expect("an empty room");
        assert!(room.take(4_000).is_ok(), "given back at once");
        assert_eq!(room.take(5_000).map(drop), Err(NoRoom));
        drop(first);
        assert!(room.take(10_240).is_ok());
    }
}
