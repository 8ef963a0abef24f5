//! Who carries which attempt: each origin's queue and its connections, apart for each identity.
//!
//! An attempt goes to an idle connection if there is one (the one used last, so that surplus ones
//! age out), else to a new one if the origin may have more, else into the origin's queue, where a
//! connection finds it when it is done. Invariant: an origin with attempts in its queue has a
//! connection that will look for them, because looking and leaving are one step under one lock.
//!
//! Locks are taken in the order origins, origin, slot, and never held across an await.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use posthaste_crypto::digest::Digest;
use tokio_rustls::TlsConnector;

use super::Identity;
use super::attempt::Attempt;
use super::open::Opener;
use crate::target::Origin;

/// The queues and connections of all origins.
#[derive(Debug)]
pub(super) struct Pools {
    origins: Mutex<Origins>,
    connections: AtomicUsize,
    idle: AtomicUsize,
    per_origin_max: usize,
    idle_max: usize,
}

#[derive(Debug, Default)]
struct Origins {
    /// By the fingerprint of the identity, then by origin: found without making a key of the two.
    pools: HashMap<Option<Digest>, HashMap<Origin, Arc<Pool>>>,
    closing: bool,
}

/// One origin's under one identity. It lives as long as it has a connection.
struct Pool {
    origin: Origin,
    identity: Option<Arc<Identity>>,
    /// Made once: it holds a copy of all roots.
    tls: OnceLock<TlsConnector>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Box<Attempt>>,
    idle: Vec<Arc<Slot>>,
    connections: usize,
    closing: bool,
}

/// Where an idle connection is handed its next attempt.
#[derive(Debug, Default)]
struct Slot(Mutex<Handed>);

#[derive(Debug, Default)]
struct Handed {
    attempt: Option<Box<Attempt>>,
    close: bool,
    waker: Option<Waker>,
}

/// What became of an attempt that was offered.
#[derive(Debug)]
pub(super) enum Offer {
    /// A connection has it or will find it.
    Taken,
    /// It needs a new connection, which has this seat.
    Grow(Seat, Box<Attempt>),
    /// Nothing is taken any more.
    Closed(Box<Attempt>),
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

    pub(super) fn offer(self: &Arc<Self>, attempt: Box<Attempt>) -> Offer {
        let mut origins = lock(&self.origins);
        if origins.closing {
            return Offer::Closed(attempt);
        }
        let origin = attempt.target().origin();
        let identity = attempt.identity();
        let pools = origins.pools.entry(fingerprint(identity)).or_default();
        let pool = match pools.get(origin) {
            Some(pool) => pool,
            None => {
                let pool = Arc::new(Pool::new(origin.clone(), identity.cloned()));
                pools.entry(origin.clone()).or_insert(pool)
            }
        };
        let mut state = lock(&pool.state);
        if let Some(slot) = state.idle.pop() {
            self.idle.fetch_sub(1, Ordering::Relaxed);
            slot.hand(attempt);
            drop(state);
            drop(origins);
            slot.wake();
            return Offer::Taken;
        }
        if state.connections == self.per_origin_max {
            state.queue.push_back(attempt);
            return Offer::Taken;
        }
        state.connections += 1;
        self.connections.fetch_add(1, Ordering::Relaxed);
        let seat = Seat { pools: Arc::clone(self), pool: Arc::clone(pool), slot: Arc::default(), left: false };
        Offer::Grow(seat, attempt)
    }

    /// From now on nothing is offered, and no connection waits idle.
    pub(super) fn close(&self) {
        let mut origins = lock(&self.origins);
        origins.closing = true;
        // The order in which idle connections end does not matter.
        origins.pools.values().flat_map(HashMap::values).for_each(|pool| {
            let mut state = lock(&pool.state);
            state.closing = true;
            state.idle.iter().for_each(|slot| slot.close());
        });
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Forgets an origin without connections: nobody is left to look into its queue.
    fn forget(&self, pool: &Pool) {
        let mut origins = lock(&self.origins);
        if lock(&pool.state).connections > 0 {
            return;
        }
        let fingerprint = fingerprint(pool.identity.as_ref());
        if let Some(pools) = origins.pools.get_mut(&fingerprint) {
            pools.remove(&pool.origin);
            if pools.is_empty() {
                origins.pools.remove(&fingerprint);
            }
        }
    }
}

impl Pool {
    fn new(origin: Origin, identity: Option<Arc<Identity>>) -> Self {
        Self { origin, identity, tls: OnceLock::new(), state: Mutex::default() }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("origin", &self.origin).field("state", &self.state).finish_non_exhaustive()
    }
}

fn fingerprint(identity: Option<&Arc<Identity>>) -> Option<Digest> {
    identity.map(|identity| *identity.fingerprint())
}

/// A connection's membership in its origin's pool.
#[derive(Debug)]
pub(super) struct Seat {
    pools: Arc<Pools>,
    pool: Arc<Pool>,
    slot: Arc<Slot>,
    left: bool,
}

/// What a connection does next.
#[derive(Debug)]
pub(super) enum Next {
    /// This attempt.
    Carry(Box<Attempt>),
    /// It waits: [`Seat::poll_handed`] tells for what.
    Wait,
    /// It has left the pool and ends.
    Leave,
}

impl Seat {
    /// How this pool's connections speak TLS.
    pub(super) fn tls(&self, opener: &Opener) -> TlsConnector {
        self.pool.tls.get_or_init(|| opener.tls(self.pool.identity.as_deref())).clone()
    }

    /// For a connection that can be used again: waits idle if the queue is empty.
    pub(super) fn next_or_wait(&mut self) -> Next {
        let mut state = lock(&self.pool.state);
        if let Some(attempt) = state.queue.pop_front() {
            return Next::Carry(attempt);
        }
        let has_room = self.pools.idle.fetch_add(1, Ordering::Relaxed) < self.pools.idle_max;
        if has_room && !state.closing {
            state.idle.push(Arc::clone(&self.slot));
            return Next::Wait;
        }
        self.pools.idle.fetch_sub(1, Ordering::Relaxed);
        self.left = true;
        leave(&self.pools, &self.pool, state);
        Next::Leave
    }

    /// For a connection that was closed: its task goes on only for what is in the queue.
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

    /// Ready with `true` when an attempt was handed over, with `false` when the pool closes.
    pub(super) fn poll_handed(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut handed = lock(&self.slot.0);
        if handed.attempt.is_some() || handed.close {
            return Poll::Ready(handed.attempt.is_some());
        }
        match &mut handed.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Ends the wait, for whatever reason: takes what was handed over, else leaves.
    pub(super) fn stop_waiting(&mut self) -> Next {
        let mut state = lock(&self.pool.state);
        if let Some(attempt) = lock(&self.slot.0).attempt.take() {
            return Next::Carry(attempt);
        }
        state.idle.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        self.pools.idle.fetch_sub(1, Ordering::Relaxed);
        self.left = true;
        leave(&self.pools, &self.pool, state);
        Next::Leave
    }
}

impl Drop for Seat {
    /// Only a task that panicked or was aborted drops its seat without having left.
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let mut state = lock(&self.pool.state);
        let waiting = state.idle.len();
        state.idle.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        self.pools.idle.fetch_sub(waiting - state.idle.len(), Ordering::Relaxed);
        // If it was the last connection, the pool goes with it, and what is queued is answered by
        // being dropped.
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
    fn hand(&self, attempt: Box<Attempt>) {
        lock(&self.0).attempt = Some(attempt);
    }

    fn close(&self) {
        lock(&self.0).close = true;
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &lock(&self.0).waker {
            waker.wake_by_ref();
        }
    }
}

/// A panic elsewhere leaves these plain collections as usable as before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
