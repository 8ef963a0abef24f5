//! The one thread that writes. It does SQL only: it takes what queued up during the last sync,
//! runs it in one transaction, commits, and answers everybody.
//!
//! Invariants: nothing is answered or handed over before its commit is on the disk; after a failed
//! commit nothing is ever written again, since what a failed sync left behind cannot be known. A
//! full disk is the one exception: its transaction is undone, producers are refused, and everything
//! else is held here and tried again until there is room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::cut::{Cut, Scope};
use posthaste_core::id::{DeliveryId, EndpointId, TenantId, WriterId};
use posthaste_core::queue::SoftBreaker;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, Statement};
use tokio::sync::{mpsc, oneshot, watch};

use super::accept::{Accept, Found};
use super::arrivals::{self, Arrivals};
use super::checkpoint::Log;
use super::column::key;
use super::derived::{self, Slice};
use super::fault::{is_callers, is_full};
use super::follower::Follower;
use super::journal::Journal;
use super::settle::Settle;
use super::thread::Joined;
use super::work::Work;
use super::{Bounds, Shared, breaker, cut, endpoint, failed, idempotency, job, page, pause};
use crate::StoreError;
use crate::journal::{Entries, Entry};
use crate::row::{
    Acceptance, Accepted, Arrival, Chunk, Chunked, Endpoint, EndpointStatus, Idempotency, Pause, PauseScope, Session,
    Settled, Settlement, Start,
};

/// Deliveries changed by one commit: more make the first of them wait too long for the rest.
const GROUP_ROWS_MAX: usize = 512;
/// Payload written by one commit, for the same reason.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Requests that wait for the writer: two groups of single ones. The next caller waits in its task.
const QUEUE: usize = 2 * GROUP_ROWS_MAX;

/// Answers one caller.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Something to write.
pub(super) enum Request {
    Open {
        start: Option<Start>,
        reply: Reply<Start>,
    },
    Accept {
        session: Session,
        messages: Vec<Accepted>,
        /// One for each message, made where it was asked for.
        entries: Entries,
        found: Found,
        room: u32,
        reply: Reply<Vec<Acceptance>>,
    },
    Settle {
        session: Session,
        settlements: Vec<Settlement>,
        /// What they leave if they take effect.
        entries: Entries,
        settled: Vec<Settled>,
        reply: Reply<Vec<Settled>>,
    },
    /// Answered with how many it ended, where the writer has the time to count them.
    Cut {
        session: Session,
        cut: Cut,
        ended: Option<u64>,
        reply: Reply<Option<u64>>,
    },
    PutEndpoint {
        session: Session,
        put: Box<PutEndpoint>,
        reply: Reply<Acceptance>,
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
        chunked: Chunked,
        room: u32,
        reply: Reply<Chunked>,
    },
    /// Anything rarer, with an answer of its own kind.
    Work {
        session: Session,
        rows: usize,
        work: Box<dyn Work>,
    },
    /// Something has changed that the writer waits for.
    Wake,
    /// Asks the follower to catch up, and to say when it has.
    CatchUp(oneshot::Sender<()>),
    Stop,
}

/// Something to write that has no answer but that it is done.
pub(super) enum Change {
    Spill(Vec<DeliveryId>),
    Uncut(Scope),
    Pause(Pause),
    Resume(PauseScope),
    Remember(Vec<SoftBreaker>),
}

/// An endpoint to make or change, and whether that was done.
pub(super) struct PutEndpoint {
    pub(super) endpoint: Endpoint,
    pub(super) once: Option<Idempotency>,
    pub(super) acceptance: Acceptance,
}

impl Change {
    /// What it leaves in the journal: nothing where rows only move, or a restart can do without.
    fn entry(&self) -> Option<Entry> {
        match self {
            Self::Spill(_) | Self::Remember(_) => None,
            Self::Uncut(scope) => Some(Entry::Uncut { scope: *scope }),
            Self::Pause(pause) => Some(Entry::paused(*pause)),
            Self::Resume(scope) => Some(Entry::Resumed { scope: *scope }),
        }
    }
}

/// The writing thread.
#[derive(Debug)]
pub(super) struct Writer {
    // Dropped before the thread is joined: that is what ends it.
    requests: mpsc::Sender<Request>,
    /// Closed when the thread has closed the file.
    ended: watch::Receiver<()>,
    _thread: Joined,
}

impl Writer {
    /// Starts the thread; `log` is for the one beside it.
    pub(super) fn start(
        mut conn: Connection,
        log: Connection,
        follower: Connection,
        bounds: Bounds,
        shared: Arc<Shared>,
    ) -> Result<Self, StoreError> {
        let (requests, queue) = mpsc::channel(QUEUE);
        let log = Log::start(&mut conn, log, bounds, Arc::clone(&shared), requests.downgrade())?;
        let follower = Follower::start(follower, requests.downgrade())?;
        let (lives, ended) = watch::channel(());
        let thread = Joined::spawn("store-writer", move || {
            run(conn, queue, log, follower, &shared);
            drop(lives);
        })?;
        Ok(Self { requests, ended, _thread: thread })
    }

    /// Queues a request and waits for its answer.
    pub(super) async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        // The place first: what `request` promises is kept by whoever takes it from the queue.
        let place = self.requests.reserve().await.map_err(|_| StoreError::Stopped)?;
        place.send(request(reply));
        answer.await.map_err(|_| StoreError::Stopped)?
    }

    /// Queues a request whose answer goes elsewhere.
    pub(super) async fn send(&self, request: Request) -> Result<(), StoreError> {
        self.requests.send(request).await.map_err(|_| StoreError::Stopped)
    }

    /// Lets the thread finish what is queued, and waits for its end.
    pub(super) async fn stop(&self) {
        // Nobody takes it: the thread has stopped already, or is about to.
        _ = self.requests.send(Request::Stop).await;
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}

fn run(conn: Connection, mut queue: mpsc::Receiver<Request>, mut log: Log, follower: Follower, shared: &Shared) {
    // Outlives the reason for the end: whoever hears of it finds the reason.
    let mut waiting = Vec::with_capacity(QUEUE);
    if let Err(error) = serve(&conn, &mut queue, &mut waiting, &mut log, &follower, shared) {
        // Closing must not sync again behind the failure's back.
        let quiet = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        if let Err(error) = quiet {
            tracing::warn!(%error, "cannot close the database without tidying up");
        }
        shared.fail(&error);
    }
    shared.arrivals.close();
    drop(waiting);
    // It may be waiting for an answer that nobody will give.
    drop(queue);
    // Their connections first: the last one to close tidies the file up, and that must be ours.
    drop(follower);
    drop(log);
    drop(conn);
}

fn serve(
    conn: &Connection,
    queue: &mut mpsc::Receiver<Request>,
    waiting: &mut Vec<Request>,
    log: &mut Log,
    follower: &Follower,
    shared: &Shared,
) -> Result<(), StoreError> {
    let mut group = Group::prepare(conn)?;
    loop {
        // What found no room is tried again when somebody wakes us, not at once.
        let stuck = shared.reserve.is_stuck();
        if (stuck || waiting.is_empty()) && queue.blocking_recv_many(waiting, GROUP_ROWS_MAX) == 0 {
            return Ok(());
        }
        while waiting.len() < GROUP_ROWS_MAX
            && let Ok(request) = queue.try_recv()
        {
            waiting.push(request);
        }
        if shared.stopped.get().is_some() {
            return Err(StoreError::Stopped);
        }
        for request in waiting.extract_if(.., |request| matches!(request, Request::CatchUp(_))) {
            if let Request::CatchUp(reply) = request {
                follower.catch_up(reply);
            }
        }
        let woken = wake_up(waiting);
        if shared.reserve.is_given_up() {
            refuse(waiting, Request::is_producers, &shared.arrivals);
        }
        if stuck && !woken {
            if waiting.iter().any(|request| matches!(request, Request::Stop)) {
                return Ok(());
            }
            continue;
        }
        let together = fitting(waiting);
        if together == 0 {
            shared.reserve.unstick();
            continue;
        }
        match group.write(&mut waiting[..together]) {
            Ok(refused) => {
                shared.reserve.unstick();
                let rows = waiting[..together].iter().map(|request| request.weight().0).sum();
                shared.commits.note(rows, group.commit_took);
                shared.kept.forget(&group.changed);
                group.changed.clear();
                follower.grew(group.journal.last);
                if answer(waiting.drain(..together), refused, &shared.arrivals) == Then::Stop {
                    return Ok(());
                }
                log.committed(conn, shared)?;
            }
            Err(error) if is_full(&error) => {
                // The first time there is the reserve to try with, after that nothing but to wait.
                if shared.reserve.is_given_up() {
                    shared.reserve.set_stuck();
                    refuse(waiting, |request| matches!(request, Request::Open { .. }), &shared.arrivals);
                }
                shared.reserve.give_up();
                log.wake();
            }
            Err(error) => return Err(error),
        }
    }
}

/// Takes out what only wakes; says whether there was any.
fn wake_up(waiting: &mut Vec<Request>) -> bool {
    let before = waiting.len();
    waiting.retain(|request| !matches!(request, Request::Wake));
    waiting.len() < before
}

/// Refuses some of what waits because the disk is full. What remains is what the dispatch loop asks
/// for, whose own bounds are bounds for us.
fn refuse(waiting: &mut Vec<Request>, which: impl Fn(&Request) -> bool, arrivals: &Arrivals) {
    let some: Vec<_> = waiting.extract_if(.., |request| which(request)).collect();
    let refused = (0..some.len()).map(|place| (place, StoreError::Full)).collect();
    answer(some.into_iter(), refused, arrivals);
}

/// How many of these fit into one group: at least one.
fn fitting(waiting: &[Request]) -> usize {
    let (mut rows, mut bytes) = (0, 0);
    let full = waiting.iter().position(|request| {
        let full = rows >= GROUP_ROWS_MAX || bytes >= GROUP_BYTES_MAX;
        let (more_rows, more_bytes) = request.weight();
        rows += more_rows;
        bytes += more_bytes;
        full
    });
    full.unwrap_or(waiting.len())
}

impl Request {
    /// Rows and payload bytes it writes.
    fn weight(&self) -> (usize, usize) {
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
            | Self::Wake
            | Self::Stop => (1, 0),
        }
    }

    fn session(&self) -> Option<Session> {
        match self {
            Self::Accept { session, .. }
            | Self::Settle { session, .. }
            | Self::Cut { session, .. }
            | Self::PutEndpoint { session, .. }
            | Self::Change { session, .. }
            | Self::Spread { session, .. }
            | Self::Work { session, .. } => Some(*session),
            Self::Open { .. } | Self::Follow { .. } | Self::CatchUp(_) | Self::Wake | Self::Stop => None,
        }
    }

    /// Whether it brings new work, or can wait: refused on a full disk. The rest is held until there is room,
    /// since the loop can do nothing about a refusal.
    fn is_producers(&self) -> bool {
        matches!(self, Self::Accept { .. } | Self::PutEndpoint { .. } | Self::Spread { .. } | Self::Follow { .. })
    }

    fn doing(&self) -> &'static str {
        match self {
            Self::Open { .. } => "begin a session",
            Self::Accept { .. } => "accept messages",
            Self::Settle { .. } => "settle deliveries",
            Self::Cut { .. } => "put a cut in force",
            Self::Change { change, .. } => match change {
                Change::Spill(_) => "spill deliveries",
                Change::Uncut(_) => "forget a cut",
                Change::Pause(_) => "record a pause",
                Change::Resume(_) => "end a pause",
                Change::Remember(_) => "remember breakers",
            },
            Self::PutEndpoint { .. } => "put an endpoint",
            Self::Spread { .. } => "make a chunk of deliveries",
            Self::Work { .. } => "do the store's own work",
            Self::Follow { .. } => "follow the journal",
            Self::CatchUp(_) => "catch up with the journal",
            Self::Wake => "wake up",
            Self::Stop => "stop",
        }
    }
}

/// What runs a group of requests in one transaction.
struct Group<'c> {
    conn: &'c Connection,
    begin: Statement<'c>,
    commit: Statement<'c>,
    spill: Statement<'c>,
    accept: Accept<'c>,
    settle: Settle<'c>,
    journal: Journal<'c>,
    /// Who may write. The folder's lock makes memory enough to know it.
    session: Option<Session>,
    /// Endpoints changed by this group, with whose they are or were.
    changed: Vec<(EndpointId, TenantId)>,
    /// How long the last commit took, its sync included.
    commit_took: Duration,
}

/// Requests of a group that were refused, by their place in it.
type Refused = Vec<(usize, StoreError)>;

impl<'c> Group<'c> {
    fn prepare(conn: &'c Connection) -> Result<Self, StoreError> {
        let doing = failed("prepare the writer");
        Ok(Self {
            conn,
            begin: conn.prepare("BEGIN IMMEDIATE").map_err(&doing)?,
            commit: conn.prepare("COMMIT").map_err(&doing)?,
            spill: conn.prepare("UPDATE delivery SET place = 2 WHERE id = ?1").map_err(&doing)?,
            accept: Accept::prepare(conn).map_err(&doing)?,
            settle: Settle::prepare(conn).map_err(&doing)?,
            journal: Journal::prepare(conn)?,
            session: None,
            changed: Vec::new(),
            commit_took: Duration::ZERO,
        })
    }

    /// Makes a group durable. An error is the end of the writer, unless the disk is full: then
    /// nothing has happened.
    fn write(&mut self, group: &mut [Request]) -> Result<Refused, StoreError> {
        let session = self.session;
        match self.write_together(group) {
            Err(error) if is_callers(&error) => {
                self.undo(session)?;
                self.write_apart(group)
            }
            written => written,
        }
        .or_else(|error| {
            if is_full(&error) {
                self.undo(session)?;
            }
            Err(error)
        })
    }

    /// Takes back what a failed transaction did, here and in the database.
    fn undo(&mut self, session: Option<Session>) -> Result<(), StoreError> {
        // Some failures have undone it already.
        if !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK").map_err(failed("roll back a group"))?;
        }
        self.journal.rolled_back();
        self.session = session;
        self.changed.clear();
        Ok(())
    }

    fn write_together(&mut self, group: &mut [Request]) -> Result<Refused, StoreError> {
        let mut refused = Refused::new();
        self.begin.raw_execute().map_err(failed("begin a commit"))?;
        for (place, request) in group.iter_mut().enumerate() {
            match self.apply(request) {
                Ok(()) => {}
                // Both are said before anything is written.
                Err(error @ (StoreError::Fenced { .. } | StoreError::TooMany { .. })) => refused.push((place, error)),
                Err(error) => return Err(error),
            }
        }
        self.commit()?;
        Ok(refused)
    }

    /// The same once more with each request on its own, so that a bad one fails alone.
    fn write_apart(&mut self, group: &mut [Request]) -> Result<Refused, StoreError> {
        let mut refused = Refused::new();
        self.begin.raw_execute().map_err(failed("begin a commit"))?;
        for (place, request) in group.iter_mut().enumerate() {
            self.conn.execute_batch("SAVEPOINT request").map_err(failed("begin a request"))?;
            let before = self.journal.entries.len();
            let applied = self.apply(request);
            let end = if applied.is_ok() { "RELEASE request" } else { "ROLLBACK TO request; RELEASE request" };
            match applied {
                Err(error) if !is_callers(&error) => return Err(error),
                Err(error) => {
                    self.journal.entries.truncate(before);
                    refused.push((place, error));
                }
                Ok(()) => {}
            }
            self.conn.execute_batch(end).map_err(failed("end a request"))?;
        }
        self.commit()?;
        Ok(refused)
    }

    #[expect(clippy::disallowed_methods, reason = "how long the disk took is measured, not decided by")]
    fn commit(&mut self) -> Result<(), StoreError> {
        self.journal.write().map_err(failed("write the journal"))?;
        let began = Instant::now();
        self.commit.raw_execute().map_err(failed("commit"))?;
        self.commit_took = began.elapsed();
        self.journal.committed();
        Ok(())
    }

    fn apply(&mut self, request: &mut Request) -> Result<(), StoreError> {
        if let Some(session) = request.session()
            && self.session != Some(session)
        {
            return Err(StoreError::Fenced { session: session.id });
        }
        let doing = request.doing();
        match request {
            Request::Open { start, .. } => {
                let begun = begin_session(self.conn)?;
                self.journal.entries.push(&Entry::Opened { session: begun.session.id });
                self.session = Some(begun.session);
                *start = Some(begun);
                Ok(())
            }
            Request::Accept { messages, entries, found, .. } => {
                *found = self.accept.run(messages, entries, &mut self.journal.entries)?;
                Ok(())
            }
            Request::Settle { session, settlements, entries, settled, .. } => {
                let written = &mut self.journal.entries;
                self.settle.run(*session, settlements, settled, entries, written).map_err(failed(doing))
            }
            Request::Cut { cut, ended, .. } => self.cut(cut, ended),
            Request::PutEndpoint { put, .. } => self.put_endpoint(put).map_err(failed(doing)),
            Request::Change { change, .. } => self.change(change).map_err(failed(doing)),
            Request::Spread { chunk, chunked, .. } => {
                *chunked = job::spread(self.conn, &mut self.accept, chunk, &mut self.journal.entries)?;
                Ok(())
            }
            Request::Work { work, .. } => work.run(self.conn, &mut self.journal.entries),
            Request::Follow { slice, .. } => derived::write(self.conn, slice).map_err(failed(doing)),
            Request::CatchUp(_) | Request::Wake | Request::Stop => Ok(()),
        }
    }

    fn cut(&mut self, cut: &Cut, ended: &mut Option<u64>) -> Result<(), StoreError> {
        self.journal.entries.push(&Entry::cut(cut));
        if let Some((endpoint, tenant)) = cut::put(self.conn, cut)? {
            self.journal.entries.push(&Entry::Endpoint { endpoint, tenant, status: EndpointStatus::Gone });
            self.changed.push((endpoint, tenant));
        }
        // A lane's are left to a reader: it looks at every pending row, and everybody waits for us.
        if let Scope::Message(_) = cut.scope {
            *ended = Some(page::count_ended(self.conn, cut.scope)?);
        }
        Ok(())
    }

    fn put_endpoint(&mut self, put: &mut PutEndpoint) -> rusqlite::Result<()> {
        let PutEndpoint { endpoint, once, acceptance } = put;
        *acceptance = idempotency::once(self.conn, once.as_ref())?;
        if *acceptance == Acceptance::Fresh {
            self.journal.entries.push(&Entry::endpoint(endpoint));
            let before = endpoint::put(self.conn, endpoint)?;
            self.changed.extend(before.map(|tenant| (endpoint.id, tenant)));
            self.changed.push((endpoint.id, endpoint.tenant));
        }
        Ok(())
    }

    fn change(&mut self, change: &Change) -> rusqlite::Result<()> {
        if let Some(entry) = change.entry() {
            self.journal.entries.push(&entry);
        }
        match change {
            Change::Spill(deliveries) => {
                for delivery in deliveries {
                    self.spill.raw_bind_parameter(1, key(delivery.0))?;
                    self.spill.raw_execute()?;
                }
            }
            Change::Uncut(scope) => cut::remove(self.conn, *scope)?,
            Change::Pause(pause) => pause::put(self.conn, *pause)?,
            Change::Resume(scope) => pause::remove(self.conn, *scope)?,
            Change::Remember(breakers) => breaker::replace(self.conn, breakers)?,
        }
        Ok(())
    }
}

fn begin_session(conn: &Connection) -> Result<Start, StoreError> {
    let number: u32 = conn
        .query_row("UPDATE meta SET value = value + 1 WHERE key = 'starts' RETURNING value", [], |row| row.get(0))
        .map_err(failed("count a start"))?;
    let writer = WriterId::new(number);
    let writer = writer.ok_or(StoreError::Damaged { what: "the start counter", found: number.to_string() })?;
    // What was in flight in an earlier session is not sent again.
    conn.execute("DELETE FROM spared", []).map_err(failed("forget what cuts spared"))?;
    Ok(Start {
        session: Session { id: number.into(), writer, epoch: number.into() },
        cuts: cut::all(conn)?,
        pauses: pause::all(conn)?,
        spilled: page::spilled_queues(conn)?,
        breakers: breaker::all(conn)?,
    })
}

/// What to do after a group.
#[derive(PartialEq, Eq)]
enum Then {
    GoOn,
    Stop,
}

/// Hands over what was accepted, then answers. Whoever does not listen any more is no loss.
fn answer(group: impl Iterator<Item = Request>, refused: Refused, arrivals: &Arrivals) -> Then {
    let mut refused = refused.into_iter().peekable();
    let mut then = Then::GoOn;
    let mut accepted = Vec::new();
    let mut answers = Vec::new();
    let mut spreads = Vec::new();
    let mut taken = 0;
    for (place, request) in group.enumerate() {
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
            Request::PutEndpoint { put, reply, .. } => _ = reply.send(refusal.map_or(Ok(put.acceptance), Err)),
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
            Request::CatchUp(_) | Request::Wake => {}
            Request::Stop => then = Then::Stop,
        }
    }
    arrivals.publish(accepted, taken);
    for (reply, answer) in answers {
        _ = reply.send(answer);
    }
    for (reply, answer) in spreads {
        _ = reply.send(answer);
    }
    then
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
