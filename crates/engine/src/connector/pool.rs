//! Connection pools: each origin's queue of attempts and its connections, separate for each identity.
//!
//! An attempt goes to a connection with room if there is one (the one used last, so that surplus
//! ones reach their idle timeout), else to a new one if the origin may have more, else into the origin's
//! queue, from which a connection takes it when it has room. An HTTP/1.1 connection has room for one
//! attempt, an HTTP/2 connection for many: if the origin used HTTP/2 before, attempts wait for a connection
//! that is being opened instead of opening one each.
//!
//! Invariant: an origin with attempts in its queue has a connection that will take them, because a
//! connection checks the queue and leaves the pool under one lock.
//!
//! Locks are taken in the order origins, origin, slot, and never held across an await.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use posthaste_crypto::digest::Digest;
use tokio::time::Instant;

use super::Identity;
use super::attempt::RunningAttempt;
use super::open::{Opener, Tls};
use super::protocol::{Broke, Protocols, STREAMS_EXPECTED};
use crate::Origin;

pub(super) struct Pools {
    origins: Mutex<Origins>,
    connections: AtomicUsize,
    idle: AtomicUsize,
    per_origin_max: usize,
    idle_max: usize,
}

#[derive(Default)]
struct Origins {
    /// By the fingerprint of the identity, then by origin: a look-up needs no copy of the origin.
    pools: HashMap<Option<Digest>, HashMap<Origin, Arc<Pool>>>,
    protocols: Protocols,
    closing: bool,
}

/// The queue and the connections of one origin under one identity. It exists as long as it has a connection.
struct Pool {
    origin: Origin,
    identity: Option<Arc<Identity>>,
    /// Made once, since it holds a copy of all roots.
    tls: OnceLock<Tls>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<RunningAttempt>,
    /// The slots of connections with room.
    open: Vec<Arc<Slot>>,
    connections: usize,
    /// How many of the connections are not open yet.
    opening: usize,
    /// How many attempts one connection is expected to carry at once.
    streams: usize,
    closing: bool,
}

/// The inbox of a connection, into which the pool puts attempts.
#[derive(Debug, Default)]
struct Slot(Mutex<Handed>);

#[derive(Debug, Default)]
struct Handed {
    attempts: VecDeque<RunningAttempt>,
    /// How many more the connection takes.
    room: usize,
    /// Whether the connection is idle, and counted as idle.
    idle: bool,
    close: bool,
    waker: Option<Waker>,
}

pub(super) enum Offer {
    Taken,
    /// It needs a new connection, whose seat this is.
    Grow(Seat, RunningAttempt),
    Closed(RunningAttempt),
}

impl Pools {
    pub(super) fn new(per_origin_max: usize, idle_max: usize) -> Self {
        Self {
            origins: Mutex::default(),
            connections: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            per_origin_max: per_origin_max.max(1),
            idle_max,
        }
    }

    /// Places an attempt of a new job.
    pub(super) fn offer(self: &Arc<Self>, attempt: RunningAttempt) -> Offer {
        let origins = lock(&self.origins);
        if origins.closing { Offer::Closed(attempt) } else { self.place(origins, attempt) }
    }

    /// Places an attempt that a connection could not carry; also while closing, since its job was taken before.
    pub(super) fn pass_on(self: &Arc<Self>, attempt: RunningAttempt) -> Offer {
        self.place(lock(&self.origins), attempt)
    }

    fn place(self: &Arc<Self>, mut origins: MutexGuard<'_, Origins>, attempt: RunningAttempt) -> Offer {
        let pool = origins.pool(attempt.job.target.origin(), attempt.job.identity.as_ref());
        let mut state = lock(&pool.state);
        if let Some(slot) = state.open.last() {
            let slot = Arc::clone(slot);
            let mut handed = lock(&slot.0);
            if handed.hand(attempt, &self.idle) == 0 {
                state.open.pop();
            }
            let waker = handed.waker.take();
            drop((handed, state, origins));
            if let Some(waker) = waker {
                waker.wake();
            }
            return Offer::Taken;
        }
        let promised = if state.streams > 1 { state.opening * state.streams } else { 0 };
        // Each connection that is being opened has an attempt of its own already.
        if state.connections == self.per_origin_max || state.queue.len() + state.opening < promised {
            state.queue.push_back(attempt);
            return Offer::Taken;
        }
        state.connections += 1;
        state.opening += 1;
        self.connections.fetch_add(1, Ordering::Relaxed);
        drop(state);
        let seat = Seat { pools: Arc::clone(self), pool, slot: Arc::default(), opening: true, left: false };
        Offer::Grow(seat, attempt)
    }

    /// Refuses further jobs, and ends idle connections.
    pub(super) fn close(&self) {
        let mut origins = lock(&self.origins);
        origins.closing = true;
        // The order in which idle connections end does not matter.
        origins.pools.values().flat_map(HashMap::values).for_each(|pool| {
            let mut state = lock(&pool.state);
            state.closing = true;
            state.open.iter().for_each(|slot| slot.close());
        });
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Removes the pool of an origin without connections.
    fn forget(&self, pool: &Pool) {
        let mut origins = lock(&self.origins);
        if lock(&pool.state).connections > 0 {
            return;
        }
        let fingerprint = pool.fingerprint();
        if let Some(pools) = origins.pools.get_mut(&fingerprint) {
            pools.remove(&pool.origin);
            if pools.is_empty() {
                origins.pools.remove(&fingerprint);
            }
        }
    }
}

impl Origins {
    fn pool(&mut self, origin: &Origin, identity: Option<&Arc<Identity>>) -> Arc<Pool> {
        let fingerprint = fingerprint(identity);
        let pools = self.pools.entry(fingerprint).or_default();
        if let Some(pool) = pools.get(origin) {
            return Arc::clone(pool);
        }
        let streams = self.protocols.streams(fingerprint, origin);
        let state = State { streams, closing: self.closing, ..State::default() };
        let pool = Arc::new(Pool {
            origin: origin.clone(),
            identity: identity.cloned(),
            tls: OnceLock::new(),
            state: Mutex::new(state),
        });
        pools.insert(origin.clone(), Arc::clone(&pool));
        pool
    }
}

impl Pool {
    fn fingerprint(&self) -> Option<Digest> {
        fingerprint(self.identity.as_ref())
    }
}

fn fingerprint(identity: Option<&Arc<Identity>>) -> Option<Digest> {
    identity.map(|identity| identity.fingerprint)
}

/// A connection's membership in its origin's pool.
pub(super) struct Seat {
    pools: Arc<Pools>,
    pool: Arc<Pool>,
    slot: Arc<Slot>,
    opening: bool,
    left: bool,
}

/// What a connection that carries one attempt at a time does next.
#[derive(Debug)]
pub(super) enum Next {
    Carry(RunningAttempt),
    /// It waits until [`Seat::poll_handed`] is ready.
    Wait,
    /// It has left the pool and ends.
    Leave,
}

impl Seat {
    pub(super) fn origin(&self) -> &Origin {
        &self.pool.origin
    }

    pub(super) fn tls(&self, opener: &Opener) -> Tls {
        self.pool.tls.get_or_init(|| opener.tls(self.pool.identity.as_deref())).clone()
    }

    /// Whether HTTP/2 may be offered to the receiver now.
    pub(super) fn may_multiplex(&self, now: Instant) -> bool {
        let origins = lock(&self.pools.origins);
        origins.protocols.may_multiplex(self.pool.fingerprint(), &self.pool.origin, now)
    }

    /// The connection is open and carries one attempt at a time. Returns queued attempts that expected
    /// more room, to be offered again.
    pub(super) fn opened_one(&mut self) -> VecDeque<RunningAttempt> {
        self.end_opening();
        self.carries(1)
    }

    /// The connection is open and carries many attempts; its receiver has yet to send the number.
    pub(super) fn opened_many(&mut self) {
        self.end_opening();
        let mut state = lock(&self.pool.state);
        if state.streams <= 1 {
            state.streams = STREAMS_EXPECTED;
        }
    }

    /// A connection to this receiver carries this many attempts at once. Returns queued attempts for which the
    /// connections being opened will have no room, to be offered again.
    pub(super) fn carries(&self, streams: usize) -> VecDeque<RunningAttempt> {
        let mut origins = lock(&self.pools.origins);
        origins.protocols.learn(self.pool.fingerprint(), &self.pool.origin, streams);
        let mut state = lock(&self.pool.state);
        state.streams = streams;
        if state.connections == self.pools.per_origin_max {
            return VecDeque::new();
        }
        // Each connection has one attempt of its own already.
        let covered = (state.opening + 1) * (streams - 1);
        let covered = covered.min(state.queue.len());
        state.queue.split_off(covered)
    }

    /// The connection could not be opened. Returns the queued attempts that waited for this connection alone; they fail
    /// with it.
    pub(super) fn not_opened(&mut self) -> VecDeque<RunningAttempt> {
        let was_opening = self.opening;
        self.end_opening();
        let mut state = lock(&self.pool.state);
        if !was_opening || state.streams <= 1 || state.connections > 1 {
            return VecDeque::new();
        }
        std::mem::take(&mut state.queue)
    }

    /// The receiver broke an attempt over HTTP/2. Returns whether it gets HTTP/1.1 for a while.
    pub(super) fn broke(&self, how: Broke, now: Instant) -> bool {
        let mut origins = lock(&self.pools.origins);
        let gets_http1 = origins.protocols.broke(self.pool.fingerprint(), &self.pool.origin, how, now);
        if gets_http1 {
            lock(&self.pool.state).streams = 1;
        }
        gets_http1
    }

    /// HTTP/2 works with this receiver.
    pub(super) fn works(&self) {
        lock(&self.pools.origins).protocols.works(self.pool.fingerprint(), &self.pool.origin);
    }

    /// The next step of a connection that can be used again: it waits idle if the queue is empty.
    pub(super) fn next_or_wait(&mut self) -> Next {
        let mut state = lock(&self.pool.state);
        if let Some(attempt) = state.queue.pop_front() {
            return Next::Carry(attempt);
        }
        if self.rest(&state) {
            lock(&self.slot.0).room = 1;
            state.open.push(Arc::clone(&self.slot));
            return Next::Wait;
        }
        self.left = true;
        leave(&self.pools, &self.pool, state);
        Next::Leave
    }

    /// The next step of a task whose connection was closed: it continues only if the queue has an attempt.
    pub(super) fn next_or_leave(&mut self) -> Next {
        let mut state = lock(&self.pool.state);
        match state.queue.pop_front() {
            Some(attempt) => Next::Carry(attempt),
            None => {
                self.left = true;
                leave(&self.pools, &self.pool, state);
                Next::Leave
            }
        }
    }

    /// Ready when an attempt was handed over or the pool closes.
    pub(super) fn poll_handed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut handed = lock(&self.slot.0);
        if !handed.attempts.is_empty() || handed.close {
            return Poll::Ready(());
        }
        handed.wait(cx);
        Poll::Pending
    }

    /// Ends the wait: takes an attempt that was handed over, or leaves the pool.
    pub(super) fn stop_waiting(&mut self) -> Next {
        let mut state = lock(&self.pool.state);
        if let Some(attempt) = lock(&self.slot.0).attempts.pop_front() {
            return Next::Carry(attempt);
        }
        self.withdraw(&mut state);
        self.left = true;
        leave(&self.pools, &self.pool, state);
        Next::Leave
    }

    /// Moves the attempts that were handed over to an HTTP/2 connection, and returns their number;
    /// `None` when the pool closes.
    pub(super) fn take_handed(&self, into: &mut VecDeque<RunningAttempt>, cx: &mut Context<'_>) -> Option<usize> {
        let mut handed = lock(&self.slot.0);
        handed.wait(cx);
        let taken = handed.attempts.len();
        into.append(&mut handed.attempts);
        if handed.close { None } else { Some(taken) }
    }

    /// An HTTP/2 connection has room for this many more attempts. Moves queued attempts into `into`, and
    /// returns the room that is left.
    pub(super) fn announce(&self, room: usize, into: &mut VecDeque<RunningAttempt>) -> usize {
        let mut state = lock(&self.pool.state);
        let mut handed = lock(&self.slot.0);
        let before = into.len();
        into.append(&mut handed.attempts);
        while into.len() - before < room
            && let Some(attempt) = state.queue.pop_front()
        {
            into.push_back(attempt);
        }
        handed.room = if state.closing { 0 } else { room.saturating_sub(into.len() - before) };
        if into.len() > before && std::mem::take(&mut handed.idle) {
            self.pools.idle.fetch_sub(1, Ordering::Relaxed);
        }
        let is_listed = state.open.iter().any(|slot| Arc::ptr_eq(slot, &self.slot));
        match (is_listed, handed.room > 0) {
            (false, true) => state.open.push(Arc::clone(&self.slot)),
            (true, false) => state.open.retain(|slot| !Arc::ptr_eq(slot, &self.slot)),
            _ => {}
        }
        handed.room
    }

    /// Whether an HTTP/2 connection that carries nothing may wait idle.
    pub(super) fn may_rest(&self) -> bool {
        let state = lock(&self.pool.state);
        let is_empty = lock(&self.slot.0).attempts.is_empty();
        !is_empty || self.rest(&state)
    }

    /// Stops the handing over of attempts, and returns those that were handed over.
    pub(super) fn retire(&self) -> VecDeque<RunningAttempt> {
        let mut state = lock(&self.pool.state);
        self.withdraw(&mut state);
        std::mem::take(&mut lock(&self.slot.0).attempts)
    }

    /// Ends the membership of an HTTP/2 connection. If it was the last one, returns the queued attempts.
    pub(super) fn leave_with_queue(&mut self) -> VecDeque<RunningAttempt> {
        let mut state = lock(&self.pool.state);
        let queue = if state.connections == 1 { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        self.left = true;
        leave(&self.pools, &self.pool, state);
        queue
    }

    /// Counts the connection as idle, if one more is allowed.
    fn rest(&self, state: &State) -> bool {
        let mut handed = lock(&self.slot.0);
        if handed.idle || state.closing {
            return !state.closing;
        }
        handed.idle = self.pools.idle.fetch_add(1, Ordering::Relaxed) < self.pools.idle_max;
        if !handed.idle {
            self.pools.idle.fetch_sub(1, Ordering::Relaxed);
        }
        handed.idle
    }

    fn withdraw(&self, state: &mut State) {
        state.open.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        let mut handed = lock(&self.slot.0);
        handed.room = 0;
        if std::mem::take(&mut handed.idle) {
            self.pools.idle.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn end_opening(&mut self) {
        if std::mem::take(&mut self.opening) {
            lock(&self.pool.state).opening -= 1;
        }
    }
}

impl Drop for Seat {
    /// Only a task that panicked or was aborted drops its seat without having left.
    fn drop(&mut self) {
        if self.left {
            return;
        }
        self.end_opening();
        let mut state = lock(&self.pool.state);
        self.withdraw(&mut state);
        // If it was the last connection, the pool is removed, and the drop of the queued attempts answers them.
        leave(&self.pools, &self.pool, state);
    }
}

fn leave(pools: &Pools, pool: &Pool, mut state: MutexGuard<'_, State>) {
    state.connections -= 1;
    pools.connections.fetch_sub(1, Ordering::Relaxed);
    let is_last = state.connections == 0;
    drop(state);
    if is_last {
        pools.forget(pool);
    }
}

impl Slot {
    fn close(&self) {
        let mut handed = lock(&self.0);
        handed.close = true;
        if let Some(waker) = handed.waker.take() {
            waker.wake();
        }
    }
}

impl Handed {
    /// Hands over an attempt; returns the room that is left.
    fn hand(&mut self, attempt: RunningAttempt, idle: &AtomicUsize) -> usize {
        self.attempts.push_back(attempt);
        self.room = self.room.saturating_sub(1);
        if std::mem::take(&mut self.idle) {
            idle.fetch_sub(1, Ordering::Relaxed);
        }
        self.room
    }

    fn wait(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }
}

/// Locks, ignoring poisoning: these plain collections stay usable after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
