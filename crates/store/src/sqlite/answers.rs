//! The thread that answers: it tells whoever asked what became of a group, once the writer has
//! committed it, while the writer writes the next one. To wake hundreds of callers takes as long as to
//! write a third of their rows.
//!
//! Invariants: groups are answered, and what they accepted is handed over, in the order of their
//! commits; everything that was committed is answered before the thread ends.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::Shared;
use super::accept::Found;
use super::arrivals::{self, Arrivals};
use super::group::Refused;
use super::request::Request;
use super::thread::Joined;
use crate::StoreError;
use crate::row::{Acceptance, Accepted, Arrival, Chunked};

/// Groups that wait to be answered: the writer is never further ahead.
const QUEUE: usize = 2;

/// The answering thread, as the writer sees it.
pub(super) struct Answers {
    // Dropped before the thread is joined: that is what ends it.
    committed: SyncSender<Committed>,
    _thread: Joined,
}

struct Committed {
    group: Vec<Request>,
    refused: Refused,
}

impl Answers {
    pub(super) fn start(shared: Arc<Shared>) -> Result<Self, StoreError> {
        let (committed, queue) = sync_channel(QUEUE);
        let thread = Joined::spawn("store-answers", move || serve(&queue, &shared.arrivals))?;
        Ok(Self { committed, _thread: thread })
    }

    /// Has a group answered that is on the disk.
    pub(super) fn committed(&self, group: Vec<Request>, refused: Refused) -> Result<(), StoreError> {
        self.committed.send(Committed { group, refused }).map_err(|_| StoreError::Stopped)
    }
}

fn serve(queue: &Receiver<Committed>, arrivals: &Arrivals) {
    while let Ok(Committed { group, refused }) = queue.recv() {
        answer(group, refused, arrivals);
    }
}

/// Hands over what was accepted, then answers. Whoever does not listen any more is no loss.
pub(super) fn answer(group: Vec<Request>, refused: Refused, arrivals: &Arrivals) {
    let mut refused = refused.into_iter().peekable();
    let mut accepted = Vec::new();
    let mut answers = Vec::new();
    let mut spreads = Vec::new();
    let mut taken = 0;
    for (place, request) in group.into_iter().enumerate() {
        let refusal = refused.next_if(|(at, _)| *at == place).map(|(_, error)| error);
        match request {
            Request::Accept { messages, found, room, reply, .. } => {
                let stays = match &refusal {
                    Some(_) => 0,
                    None => arrive(messages, &found, &mut accepted).min(room),
                };
                taken += stays;
                arrivals.give_back(room - stays);
                answers.push((reply, refusal.map_or(Ok(found.acceptances), Err)));
            }
            Request::Settle { settled, reply, .. } => _ = reply.send(refusal.map_or(Ok(settled), Err)),
            Request::Cut { ended, reply, .. } => _ = reply.send(refusal.map_or(Ok(ended), Err)),
            Request::PutEndpoint { put, reply, .. } => _ = reply.send(refusal.map_or(Ok(put.put), Err)),
            Request::Change { reply, .. } => _ = reply.send(refusal.map_or(Ok(()), Err)),
            Request::Spread { chunk, chunked, room, reply, .. } => {
                let stays = match (&refusal, chunked) {
                    (None, Chunked::Done(_)) => room,
                    _ => 0,
                };
                taken += stays;
                arrivals.give_back(room - stays);
                if stays > 0 {
                    let made = chunk.deliveries.into_iter();
                    accepted.extend(made.map(|spread| Arrival {
                        new: spread.new,
                        message: spread.message,
                        superseded: Vec::new(),
                    }));
                }
                spreads.push((reply, refusal.map_or(Ok(chunked), Err)));
            }
            Request::Work { work, .. } => work.answer(refusal),
            Request::Open { start, reply } => {
                _ = reply.send(refusal.map_or_else(|| start.ok_or(StoreError::Stopped), Err));
            }
            Request::Follow { reply, .. } => _ = reply.send(refusal.map_or(Ok(()), Err)),
            Request::CatchUp(_) | Request::EmptyLog(_) | Request::Wake | Request::Stop => {}
        }
    }
    arrivals.publish(accepted, taken);
    for (reply, answer) in answers {
        _ = reply.send(answer);
    }
    for (reply, answer) in spreads {
        _ = reply.send(answer);
    }
}

/// Lets what is new among these arrive; says how much room that takes.
fn arrive(mut messages: Vec<Accepted>, found: &Found, accepted: &mut Vec<Arrival>) -> u32 {
    let mut acceptances = found.acceptances.iter();
    messages.retain(|_| acceptances.next() == Some(&Acceptance::Fresh));
    let room = arrivals::room(messages.iter());
    let mut superseded = found.superseded.iter().peekable();
    for Accepted { message, deliveries, .. } in messages {
        for new in deliveries {
            let mut old = Vec::new();
            while let Some((_, id)) = superseded.next_if(|(by, _)| *by == new.delivery.id) {
                old.push(*id);
            }
            accepted.push(Arrival { new, message: Arc::clone(&message), superseded: old });
        }
    }
    room
}
