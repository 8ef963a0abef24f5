//! What was answered so far: counted as answers leave, told in metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::response::Response;
use posthaste_engine::metrics::{self, Page};

use crate::problem::Code;

/// What was answered since the start.
#[derive(Debug)]
pub(crate) struct Served {
    begun: AtomicU64,
    requests: AtomicU64,
    /// By the order of [`Code::ALL`].
    refusals: Vec<AtomicU64>,
    connections: AtomicU64,
}

impl Default for Served {
    fn default() -> Self {
        let refusals = Code::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Self { begun: AtomicU64::new(0), requests: AtomicU64::new(0), refusals, connections: AtomicU64::new(0) }
    }
}

/// A connection, for as long as it is open.
#[derive(Debug)]
pub(crate) struct Open<'a>(&'a Served);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Served {
    /// A request has come: gives its number.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed)
    }

    /// An answer leaves.
    pub(crate) fn answered(&self, response: &Response) {
        if let Some(code) = response.extensions().get::<Code>() {
            self.refusals[*code as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection was accepted.
    pub(crate) fn opened(&self) -> Open<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Open(self)
    }

    /// Writes every metric of the server.
    pub(crate) fn tell(&self, page: &mut Page) {
        page.one(&metrics::CONNECTIONS_IN, self.connections.load(Ordering::Relaxed));
        page.one(&metrics::REQUESTS, self.requests.load(Ordering::Relaxed));
        let refusals = self.refusals.iter().map(|count| count.load(Ordering::Relaxed));
        let some = Code::ALL.iter().zip(refusals).filter(|(_, count)| *count > 0);
        page.each(&metrics::REFUSALS, some.map(|(code, count)| (code.name(), count)));
    }
}
