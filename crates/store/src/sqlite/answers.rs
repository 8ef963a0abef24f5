//! The thread that answers: it tells whoever asked what became of a group, once the writer has
//! committed it, while the writer writes the next one. To wake hundreds of callers takes as long as to
//! write a third of their rows.
//!
//! To wake a task from another thread takes a system call each time, and from its own none. So one caller of a
//! group that accepts is told by this thread, and tells the others: see [`Told`].
//!
//! Invariants: groups are answered, and what they accepted is handed over, in the order of their
//! commits; everything that was committed is answered before the thread ends.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::Shared;
use super::accept::Found;
use super::arrivals::{self, Arrivals};
use super::group::Refused;
use super::request::{Reply, Request};
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
                answers.push((reply, refusal.map_or(Ok(Told::alone(found.acceptances)), Err)));
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
            Request::Open { start, reply, .. } => {
                _ = reply.send(refusal.map_or_else(|| start.ok_or(StoreError::Stopped), Err));
            }
            Request::Follow { reply, .. } => _ = reply.send(refusal.map_or(Ok(()), Err)),
            Request::CatchUp(_) | Request::EmptyLog(_) | Request::Wake | Request::Stop => {}
        }
    }
    arrivals.publish(accepted, taken);
    tell(answers);
    for (reply, answer) in spreads {
        _ = reply.send(answer);
    }
}

/// What an accept is answered: what became of its messages, and whoever else is to be told.
///
/// Whoever waits for an accept goes on waiting or stops for good: others may wait for the same answer.
#[derive(Debug)]
pub(super) struct Told {
    acceptances: Vec<Acceptance>,
    others: Others,
}

impl Told {
    fn alone(acceptances: Vec<Acceptance>) -> Self {
        Self { acceptances, others: Others(Vec::new()) }
    }

    /// Tells the others.
    pub(super) fn pass_on(self) -> Vec<Acceptance> {
        self.acceptances
    }
}

/// Callers who are told when this is dropped: by the one who has it, or by the end of its waiting.
#[derive(Debug)]
struct Others(Vec<Waiting>);

type Waiting = (Reply<Told>, Result<Told, StoreError>);

impl Drop for Others {
    fn drop(&mut self) {
        for (reply, answer) in self.0.drain(..) {
            _ = reply.send(answer);
        }
    }
}

/// Tells one who still waits, who tells the others.
fn tell(mut waiting: Vec<Waiting>) {
    while let Some((reply, answer)) = waiting.pop() {
        let answer = answer.map(|told| Told { others: Others(std::mem::take(&mut waiting)), ..told });
        if let Err(Ok(mut told)) = reply.send(answer) {
            waiting = std::mem::take(&mut told.others.0);
        }
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

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    type Caller = oneshot::Receiver<Result<Told, StoreError>>;

    /// A group of callers, the last of whom is told first.
    fn group(answers: Vec<Result<Told, StoreError>>) -> (Vec<Waiting>, Vec<Caller>) {
        answers
            .into_iter()
            .map(|answer| {
                let (reply, caller) = oneshot::channel();
                ((reply, answer), caller)
            })
            .unzip()
    }

    fn fresh() -> Result<Told, StoreError> {
        Ok(Told::alone(vec![Acceptance::Fresh]))
    }

    fn is_told(caller: &mut Caller) -> bool {
        caller.try_recv().is_ok()
    }

    #[test]
    fn one_caller_is_told_and_tells_the_others() {
        let (waiting, mut callers) = group(vec![fresh(), fresh(), fresh()]);
        tell(waiting);
        let first = callers[2].try_recv().expect("it is told").expect("it was accepted");
        assert!(callers[0].try_recv().is_err(), "nobody has told it yet");
        assert_eq!(first.pass_on(), [Acceptance::Fresh]);
        assert!(is_told(&mut callers[0]) && is_told(&mut callers[1]));
    }

    #[test]
    fn who_has_left_or_leaves_keeps_nobody_waiting() {
        let (waiting, mut callers) = group(vec![fresh(), fresh(), fresh()]);
        drop(callers.pop());
        tell(waiting);
        // Told, and gone before it could look.
        drop(callers.pop());
        assert!(is_told(&mut callers[0]));
    }

    #[test]
    fn a_refusal_passes_nothing_on() {
        let (waiting, mut callers) = group(vec![fresh(), Err(StoreError::Full), Err(StoreError::Full)]);
        tell(waiting);
        assert!(callers.iter_mut().all(is_told));
    }
}
