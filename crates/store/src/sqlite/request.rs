//! What the writer is asked to write, and whom it answers.

use std::sync::Arc;

use posthaste_core::cut::{Cut, Scope};
use posthaste_core::id::DeliveryId;
use posthaste_core::queue::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::time::Timestamp;
use posthaste_crypto::row_mac::RowMac;
use tokio::sync::oneshot;

use super::accept::Found;
use super::answers::Told;
use super::arrivals;
use super::derived::Slice;
use super::sealed::SealedAccept;
use super::sealed::endpoint::{EndpointNames, SealedEndpoint};
use super::work::Work;
use crate::StoreError;
use crate::journal::{Entries, Entry};
use crate::row::{
    Accepted, Act, By, Chunk, Chunked, Endpoint, EndpointPut, Idempotency, Pause, PauseScope, Session, Settled,
    Settlement, Start,
};

/// Answers one caller.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Something to write.
pub(super) enum Request {
    Open {
        at: Timestamp,
        start: Option<Start>,
        reply: Reply<Start>,
    },
    Accept {
        session: Session,
        messages: Vec<Accepted>,
        /// What is written of them, made where it was asked for.
        sealed: SealedAccept,
        /// One for each message, made there too.
        entries: Entries,
        found: Found,
        room: u32,
        reply: Reply<Told>,
    },
    Settle {
        session: Session,
        settlements: Vec<Settlement>,
        /// What they leave if they take effect.
        entries: Entries,
        /// What their rows say of themselves from then on; none where a row ends.
        macs: Vec<Option<RowMac>>,
        settled: Vec<Settled>,
        reply: Reply<Vec<Settled>>,
    },
    /// Answered with how many it ended, where the writer has the time to count them.
    Cut {
        session: Session,
        cut: Cut,
        by: Option<By>,
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
        change: Change,
        reply: Reply<()>,
    },
    /// What follows from the journal, in part.
    Follow {
        slice: Slice,
        reply: Reply<()>,
    },
    Spread {
        session: Session,
        chunk: Box<Chunk>,
        /// What its rows say of themselves, by id.
        macs: Vec<(DeliveryId, RowMac)>,
        chunked: Chunked,
        room: u32,
        reply: Reply<Chunked>,
    },
    /// Anything rarer, with an answer of its own kind.
    Work {
        session: Session,
        rows: usize,
        by: Asker,
        work: Box<dyn Work>,
    },
    /// Something has changed that the writer waits for.
    Wake,
    /// Asks the follower to catch up, and to say when it has.
    CatchUp(oneshot::Sender<()>),
    /// Copies the log into the database and cuts it off; says whether nobody was in the way.
    EmptyLog(Reply<bool>),
    Stop,
}

/// Who asks for something rare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// The dispatch loop or what keeps the store tidy: a step of something that goes on.
    Within,
    /// Somebody who waits for the answer, and can ask again.
    Caller,
}

/// Something to write that has no answer but that it is done.
pub(super) enum Change {
    Spill(Vec<DeliveryId>),
    Uncut(Scope, Timestamp),
    Pause(Pause, Timestamp),
    Resume(PauseScope, Act),
    Remember(Vec<SoftBreaker>),
    Reset(BreakerOf, Reset, Act),
}

/// An endpoint to make or change, and whether that was done.
pub(super) struct PutEndpoint {
    /// Shared with the cache, which has it from the commit on.
    pub(super) endpoint: Arc<Endpoint>,
    /// What of it is written under seal.
    pub(super) sealed: SealedEndpoint,
    /// What it is looked up by.
    pub(super) names: EndpointNames,
    /// The call it came with.
    pub(super) once: Option<Idempotency>,
    /// When it was done, and by whom.
    pub(super) act: Act,
    /// What the journal has of it beside the endpoint itself.
    pub(super) note: Option<Entry>,
    pub(super) put: EndpointPut,
}

impl Change {
    /// What it leaves in the journal: nothing where rows only move, or a restart can do without.
    pub(super) fn entry(&self) -> Option<Entry> {
        match self {
            Self::Spill(_) | Self::Remember(_) => None,
            Self::Uncut(scope, at) => Some(Entry::Uncut { scope: *scope, at: *at }),
            Self::Pause(pause, at) => Some(Entry::paused(pause, *at)),
            Self::Reset(of, how, Act { at, by }) => Some(Entry::Reset { of: *of, how: *how, at: *at, by: *by }),
            Self::Resume(scope, Act { at, by }) => Some(Entry::Resumed { scope: *scope, at: *at, by: *by }),
        }
    }
}

impl Request {
    /// Something rare.
    pub(super) fn work(session: Session, rows: usize, by: Asker, work: impl Work + 'static) -> Self {
        Self::Work { session, rows, by, work: Box::new(work) }
    }

    /// Rows and payload bytes it writes.
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
            Self::Change { change: Change::Spill(deliveries), .. } => (deliveries.len(), 0),
            Self::Change { change: Change::Remember(breakers), .. } => (breakers.len(), 0),
            Self::Open { .. }
            | Self::Cut { .. }
            | Self::PutEndpoint { .. }
            | Self::Change { .. }
            | Self::CatchUp(_)
            | Self::EmptyLog(_)
            | Self::Wake
            | Self::Stop => (1, 0),
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
            Self::Open { .. }
            | Self::Follow { .. }
            | Self::CatchUp(_)
            | Self::EmptyLog(_)
            | Self::Wake
            | Self::Stop => None,
        }
    }

    /// Whether it brings new work, or can wait: refused on a full disk. The rest is held until there is room,
    /// since the loop can do nothing about a refusal.
    pub(super) fn is_producers(&self) -> bool {
        matches!(self, Self::Accept { .. } | Self::PutEndpoint { .. } | Self::Spread { .. } | Self::Follow { .. })
    }

    /// Whether a caller waits for it who can ask again: refused where not even settles find room. Held, it would be
    /// done some day for somebody who has asked ten times since.
    pub(super) fn is_callers(&self) -> bool {
        matches!(self, Self::Work { by: Asker::Caller, .. })
    }

    /// Whether whoever asked for it has left: nothing was promised, and nothing needs to be done.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Work { by: Asker::Caller, work, .. } => work.is_abandoned(),
            Self::PutEndpoint { reply, .. } => reply.is_closed(),
            _ => false,
        }
    }

    pub(super) fn doing(&self) -> &'static str {
        match self {
            Self::Open { .. } => "begin a session",
            Self::Accept { .. } => "accept messages",
            Self::Settle { .. } => "settle deliveries",
            Self::Cut { .. } => "put a cut in force",
            Self::Change { change, .. } => match change {
                Change::Spill(_) => "spill deliveries",
                Change::Uncut(..) => "forget a cut",
                Change::Pause(..) => "record a pause",
                Change::Resume(..) => "end a pause",
                Change::Reset(..) => "record a breaker's reset",
                Change::Remember(_) => "remember breakers",
            },
            Self::PutEndpoint { .. } => "put an endpoint",
            Self::Spread { .. } => "make a chunk of deliveries",
            Self::Work { .. } => "do the store's own work",
            Self::Follow { .. } => "follow the journal",
            Self::CatchUp(_) => "catch up with the journal",
            Self::EmptyLog(_) => "empty the log",
            Self::Wake => "wake up",
            Self::Stop => "stop",
        }
    }
}
