//! The thread that answers callers: it sends the results of a group once the writer has committed it, while the writer
//! writes the next group. To wake hundreds of callers takes as long as to write a third of their rows.
//!
//! To wake a task of the async runtime from another thread takes a system call each time; to wake it from a thread of
//! the runtime takes none. So this thread sends the replies to all accepts of a group to one of their callers, and that
//! caller wakes the rest: see [`BatchReply`].
//!
//! Invariants: groups are answered, and what they accepted is handed over, in the order of their
//! commits; everything that was committed is answered before the thread ends.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::arrivals::Arrivals;
use super::group::Refused;
use super::{AcceptResult, Joined, Reply, Shared, WriteRequest, arrivals};
use crate::{Acceptance, Accepted, ArrivedDelivery, Chunked, StoreError};

/// Groups that wait to be answered; with more, the writer waits.
const QUEUE: usize = 2;

pub(super) struct Answers {
    // Dropped before the thread is joined: the drop ends the thread.
    committed: SyncSender<Committed>,
    _thread: Joined,
}

struct Committed {
    group: Vec<WriteRequest>,
    refused: Refused,
}

impl Answers {
    pub(super) fn start(shared: Arc<Shared>) -> Result<Self, StoreError> {
        let (committed, queue) = sync_channel(QUEUE);
        let thread = Joined::spawn("store-answers", move || serve(&queue, &shared.arrivals))?;
        Ok(Self { committed, _thread: thread })
    }

    /// Queues a group for its answers; its commit must be on the disk.
    pub(super) fn committed(&self, group: Vec<WriteRequest>, refused: Refused) -> Result<(), StoreError> {
        self.committed.send(Committed { group, refused }).map_err(|_| StoreError::Stopped)
    }
}

fn serve(queue: &Receiver<Committed>, arrivals: &Arrivals) {
    while let Ok(Committed { group, refused }) = queue.recv() {
        answer(group, refused, arrivals);
    }
}

/// Hands the accepted deliveries to the dispatch loop, then answers. Callers that have hung up are ignored.
pub(super) fn answer(group: Vec<WriteRequest>, refused: Refused, arrivals: &Arrivals) {
    let mut refused = refused.into_iter().peekable();
    let mut accepted = Vec::new();
    let mut answers = Vec::new();
    let mut spreads = Vec::new();
    let mut taken = 0;
    for (place, request) in group.into_iter().enumerate() {
        let refusal = refused.next_if(|(at, _)| *at == place).map(|(_, error)| error);
        match request {
            WriteRequest::Accept { messages, found, room, reply, .. } => {
                let used = match &refusal {
                    Some(_) => 0,
                    None => arrive(messages, &found, &mut accepted).min(room),
                };
                taken += used;
                arrivals.give_back(room - used);
                answers.push((reply, refusal.map_or(Ok(BatchReply::single(found.acceptances)), Err)));
            }
            WriteRequest::Settle { settled, reply, .. } => _ = reply.send(refusal.map_or(Ok(settled), Err)),
            WriteRequest::Cut { ended, reply, .. } => _ = reply.send(refusal.map_or(Ok(ended), Err)),
            WriteRequest::PutEndpoint { put, reply, .. } => _ = reply.send(refusal.map_or(Ok(put.put), Err)),
            WriteRequest::Change { reply, .. } => _ = reply.send(refusal.map_or(Ok(()), Err)),
            WriteRequest::Spread { chunk, chunked, room, reply, .. } => {
                let used = match (&refusal, chunked) {
                    (None, Chunked::Done(_)) => room,
                    _ => 0,
                };
                taken += used;
                arrivals.give_back(room - used);
                if used > 0 {
                    let made = chunk.deliveries.into_iter();
                    accepted.extend(made.map(|spread| ArrivedDelivery {
                        new: spread.new,
                        message: spread.message,
                        superseded: Vec::new(),
                    }));
                }
                spreads.push((reply, refusal.map_or(Ok(chunked), Err)));
            }
            WriteRequest::Work { work, .. } => work.answer(refusal),
            WriteRequest::Open { start, reply, .. } => {
                _ = reply.send(refusal.map_or_else(|| start.ok_or(StoreError::Stopped), Err));
            }
            WriteRequest::Follow { reply, .. } => _ = reply.send(refusal.map_or(Ok(()), Err)),
            WriteRequest::CatchUp(_) | WriteRequest::EmptyLog(_) | WriteRequest::Wake | WriteRequest::Stop => {}
        }
    }
    arrivals.publish(accepted, taken);
    send_replies(answers);
    for (reply, answer) in spreads {
        _ = reply.send(answer);
    }
}

/// The reply to one accept, and the replies to other accepts of its group that its caller passes on.
///
/// The others get theirs when this value is dropped, at the latest when the caller stops waiting and drops its
/// receiver.
pub(super) struct BatchReply {
    acceptances: Vec<Acceptance>,
    others: Others,
}

impl BatchReply {
    fn single(acceptances: Vec<Acceptance>) -> Self {
        Self { acceptances, others: Others(Vec::new()) }
    }

    /// Returns the caller's own acceptances, and sends the other replies.
    pub(super) fn wake_rest(self) -> Vec<Acceptance> {
        self.acceptances
    }
}

/// Replies to other callers, sent when this is dropped.
struct Others(Vec<Waiting>);

type Waiting = (Reply<BatchReply>, Result<BatchReply, StoreError>);

impl Drop for Others {
    fn drop(&mut self) {
        for (reply, answer) in self.0.drain(..) {
            _ = reply.send(answer);
        }
    }
}

/// Sends replies one by one, from the last; the first successful one that reaches its caller carries all remaining
/// replies, which that caller passes on.
fn send_replies(mut waiting: Vec<Waiting>) {
    while let Some((reply, answer)) = waiting.pop() {
        let answer = answer.map(|own| BatchReply { others: Others(std::mem::take(&mut waiting)), ..own });
        if let Err(Ok(mut unsent)) = reply.send(answer) {
            waiting = std::mem::take(&mut unsent.others.0);
        }
    }
}

/// Adds the deliveries of the fresh messages to `accepted`; returns how much room they take.
fn arrive(mut messages: Vec<Accepted>, found: &AcceptResult, accepted: &mut Vec<ArrivedDelivery>) -> u32 {
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
            accepted.push(ArrivedDelivery { new, message: Arc::clone(&message), superseded: old });
        }
    }
    room
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    type Caller = oneshot::Receiver<Result<BatchReply, StoreError>>;

    fn group(answers: Vec<Result<BatchReply, StoreError>>) -> (Vec<Waiting>, Vec<Caller>) {
        answers
            .into_iter()
            .map(|answer| {
                let (reply, caller) = oneshot::channel();
                ((reply, answer), caller)
            })
            .unzip()
    }

    fn fresh() -> Result<BatchReply, StoreError> {
        Ok(BatchReply::single(vec![Acceptance::Fresh]))
    }

    fn has_reply(caller: &mut Caller) -> bool {
        caller.try_recv().is_ok()
    }

    #[test]
    fn first_caller_passes_replies_on_to_the_others() {
        let (waiting, mut callers) = group(vec![fresh(), fresh(), fresh()]);
        send_replies(waiting);
        let first = callers[2].try_recv().expect("it has its reply").expect("it was accepted");
        assert!(callers[0].try_recv().is_err(), "its reply has not been passed on yet");
        assert_eq!(first.wake_rest(), [Acceptance::Fresh]);
        assert!(has_reply(&mut callers[0]) && has_reply(&mut callers[1]));
    }

    #[test]
    fn callers_that_hang_up_do_not_delay_the_others() {
        let (waiting, mut callers) = group(vec![fresh(), fresh(), fresh()]);
        drop(callers.pop());
        send_replies(waiting);
        // This one has its reply, and hangs up before it reads it.
        drop(callers.pop());
        assert!(has_reply(&mut callers[0]));
    }

    #[test]
    fn refused_callers_are_answered_directly() {
        let (waiting, mut callers) = group(vec![fresh(), Err(StoreError::Full), Err(StoreError::Full)]);
        send_replies(waiting);
        assert!(callers.iter_mut().all(has_reply));
    }
}
