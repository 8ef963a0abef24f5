//! The requests that the writer thread takes, each with the channel that its answer goes to.

use std::sync::Arc;

use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Cut, CutScope, DeliveryId, Timestamp};
use posthaste_crypto::row_mac::RowMac;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::answers::BatchReply;
use super::derived::FactSlice;
use super::sealed::endpoint::{EndpointNames, SealedEndpoint};
use super::{AcceptResult, SealedAccept, arrivals};
use crate::journal::{Entries, JournalEntry};
use crate::{
    Accepted, ApiKeyRef, AuditStamp, Chunk, Chunked, Endpoint, EndpointPut, Idempotency, Pause, PauseScope, Session,
    SessionStart, Settled, Settlement, StoreError,
};

/// The channel to the caller that waits for an answer.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// A request to the writer. A `session` in it is checked first; a field such as `settled` or `ended` is filled in by
/// the writer and sent back on `reply` after the commit.
pub(super) enum WriteRequest {
    Open {
        at: Timestamp,
        start: Option<SessionStart>,
        reply: Reply<SessionStart>,
    },
    Accept {
        session: Session,
        messages: Vec<Accepted>,
        /// The encrypted columns of their rows, made in the caller's task.
        sealed: SealedAccept,
        /// The journal entries, one for each message, made in the caller's task too.
        entries: Entries,
        found: AcceptResult,
        room: u32,
        reply: Reply<BatchReply>,
    },
    Settle {
        session: Session,
        settlements: Vec<Settlement>,
        /// The journal entries of those that take effect.
        entries: Entries,
        /// The new MAC of each delivery's row; none where the delivery ends.
        macs: Vec<Option<RowMac>>,
        settled: Vec<Settled>,
        reply: Reply<Vec<Settled>>,
    },
    /// Answered with the number of deliveries it ended, where that is cheap enough for the writer to count.
    Cut {
        session: Session,
        cut: Cut,
        by: Option<ApiKeyRef>,
        ended: Option<u64>,
        reply: Reply<Option<u64>>,
    },
    PutEndpoint {
        session: Session,
        put: Box<PutEndpoint>,
        reply: Reply<EndpointPut>,
    },
    Change {
        session: Session,
        change: SmallChange,
        reply: Reply<()>,
    },
    /// Writes part of what is derived from the journal.
    Follow {
        slice: FactSlice,
        reply: Reply<()>,
    },
    Spread {
        session: Session,
        chunk: Box<Chunk>,
        /// The MACs of its rows, by delivery.
        macs: Vec<(DeliveryId, RowMac)>,
        chunked: Chunked,
        room: u32,
        reply: Reply<Chunked>,
    },
    /// A rarer write, with an answer type of its own.
    Work {
        session: Session,
        rows: usize,
        by: Asker,
        work: Box<dyn Work>,
    },
    /// Wakes a writer that waits for room on a full disk.
    Wake,
    /// Has the follower catch up with the journal; answered when it has.
    CatchUp(oneshot::Sender<()>),
    /// Copies the log into the database and truncates it. Answered with `false` if a read was in the way, or the disk
    /// is full.
    EmptyLog(Reply<bool>),
    Stop,
}

/// The origin of a [`WriteRequest::Work`]: decides whether it may be refused on a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// The dispatch loop or the store's own upkeep: one step of work that continues.
    Within,
    /// A call of the API: its caller waits for the answer, and can repeat it.
    Caller,
}

/// A change that is answered with success or an error only.
pub(super) enum SmallChange {
    Spill(Vec<DeliveryId>),
    Uncut(CutScope, Timestamp),
    Pause(Pause, Timestamp),
    Resume(PauseScope, AuditStamp),
    Remember(Vec<SoftBreaker>),
    Reset(BreakerOf, Reset, AuditStamp),
}

/// An endpoint to create or change, and whether that was done.
pub(super) struct PutEndpoint {
    /// Shared with the cache of endpoints, which gets it with the commit.
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) sealed: SealedEndpoint,
    /// Keyed hashes of the names it is looked up by.
    pub(super) names: EndpointNames,
    /// The idempotency key and answer of the call that creates it.
    pub(super) once: Option<Idempotency>,
    /// The time of the change, and the API key behind it.
    pub(super) act: AuditStamp,
    pub(super) note: Option<JournalEntry>,
    pub(super) put: EndpointPut,
}

impl SmallChange {
    /// Its journal entry; `None` where rows only move, or where a restart does not need it.
    pub(super) fn entry(&self) -> Option<JournalEntry> {
        match self {
            Self::Spill(_) | Self::Remember(_) => None,
            Self::Uncut(scope, at) => Some(JournalEntry::Uncut { scope: *scope, at: *at }),
            Self::Pause(pause, at) => Some(JournalEntry::paused(pause, *at)),
            Self::Reset(of, how, AuditStamp { at, by }) => {
                Some(JournalEntry::Reset { of: *of, how: *how, at: *at, by: *by })
            }
            Self::Resume(scope, AuditStamp { at, by }) => {
                Some(JournalEntry::Resumed { scope: *scope, at: *at, by: *by })
            }
        }
    }

    /// What an error says was being done.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Self::Spill(_) => "spill deliveries",
            Self::Uncut(..) => "remove a cut",
            Self::Pause(..) => "record a pause",
            Self::Resume(..) => "end a pause",
            Self::Reset(..) => "record a breaker's reset",
            Self::Remember(_) => "store the breakers",
        }
    }
}

impl WriteRequest {
    pub(super) fn work(session: Session, rows: usize, by: Asker, work: impl Work + 'static) -> Self {
        Self::Work { session, rows, by, work: Box::new(work) }
    }

    /// About how many rows and payload bytes it writes.
    pub(super) fn weight(&self) -> (usize, usize) {
        match self {
            Self::Accept { messages, .. } => (
                messages.iter().map(|accepted| accepted.deliveries.len()).sum(),
                messages.iter().map(arrivals::bytes).sum(),
            ),
            Self::Settle { settlements, .. } => (settlements.len(), 0),
            Self::Spread { chunk, .. } => (chunk.deliveries.len(), 0),
            Self::Work { rows, .. } => (*rows, 0),
            Self::Follow { slice, .. } => (slice.facts.len(), 0),
            Self::Change { change: SmallChange::Spill(deliveries), .. } => (deliveries.len(), 0),
            Self::Change { change: SmallChange::Remember(breakers), .. } => (breakers.len(), 0),
            Self::Open { .. } | Self::Cut { .. } | Self::PutEndpoint { .. } | Self::Change { .. } => (1, 0),
            Self::CatchUp(_) | Self::EmptyLog(_) | Self::Wake | Self::Stop => (1, 0),
        }
    }

    pub(super) fn session(&self) -> Option<Session> {
        match self {
            Self::Accept { session, .. }
            | Self::Settle { session, .. }
            | Self::Cut { session, .. }
            | Self::PutEndpoint { session, .. }
            | Self::Change { session, .. }
            | Self::Spread { session, .. }
            | Self::Work { session, .. } => Some(*session),
            Self::Open { .. } | Self::Follow { .. } => None,
            Self::CatchUp(_) | Self::EmptyLog(_) | Self::Wake | Self::Stop => None,
        }
    }

    /// Whether it brings new work, or can wait: refused as soon as the disk is full. Other requests are held until
    /// there is room, since the dispatch loop cannot act on a refusal.
    pub(super) fn is_producers(&self) -> bool {
        matches!(self, Self::Accept { .. } | Self::PutEndpoint { .. } | Self::Spread { .. } | Self::Follow { .. })
    }

    /// Whether it is a call of the API, which can be repeated: refused when the disk is full even for settles. If it
    /// were held, it would be done much later, after its caller has repeated it many times.
    pub(super) fn is_callers(&self) -> bool {
        matches!(self, Self::Work { by: Asker::Caller, .. })
    }

    /// Whether its caller has hung up: it was not acknowledged, so it need not be done.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Work { by: Asker::Caller, work, .. } => work.is_abandoned(),
            Self::PutEndpoint { reply, .. } => reply.is_closed(),
            _ => false,
        }
    }
}

/// A write with an answer type of its own, for rare verbs: the writer runs it in a group like every other request,
/// without knowing what it does.
pub(super) trait Work: Send {
    /// Runs the write in the current transaction. May be called again in another transaction, when another request of
    /// the group failed. Its `entries` go into the journal with those of the group.
    fn run(&mut self, conn: &Connection, entries: &mut Entries) -> Result<(), StoreError>;

    /// Whether the caller has stopped waiting for the answer.
    fn is_abandoned(&self) -> bool;

    /// Answers the caller, after the commit: with the result, or with the error that refused the write.
    fn answer(self: Box<Self>, refusal: Option<StoreError>);
}

/// A function to run, and its result until the commit.
pub(super) struct WorkCall<F, T> {
    run: F,
    done: Option<T>,
    reply: Reply<T>,
}

impl<F, T> WorkCall<F, T> {
    pub(super) fn new(run: F, reply: Reply<T>) -> Self {
        Self { run, done: None, reply }
    }
}

impl<T: Send, F: FnMut(&Connection, &mut Entries) -> Result<T, StoreError> + Send> Work for WorkCall<F, T> {
    fn run(&mut self, conn: &Connection, entries: &mut Entries) -> Result<(), StoreError> {
        self.done = Some((self.run)(conn, entries)?);
        Ok(())
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn answer(self: Box<Self>, refusal: Option<StoreError>) {
        let Self { done, reply, .. } = *self;
        _ = reply.send(refusal.map_or_else(|| done.ok_or(StoreError::Stopped), Err));
    }
}
