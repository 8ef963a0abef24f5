//! Counts requests, refusals and connections for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::response::Response;
use posthaste_engine::metrics::{self, MetricsPage};

use crate::problem::Code;

/// The counters since the start.
#[derive(Debug)]
pub(crate) struct HttpCounters {
    begun: AtomicU64,
    requests: AtomicU64,
    /// One counter for each code, in the order of [`Code::ALL`].
    refusals: Vec<AtomicU64>,
    connections: AtomicU64,
}

impl Default for HttpCounters {
    fn default() -> Self {
        let refusals = Code::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Self { begun: AtomicU64::new(0), requests: AtomicU64::new(0), refusals, connections: AtomicU64::new(0) }
    }
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection<'a>(&'a HttpCounters);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HttpCounters {
    /// Counts a new request and returns its number, from 0.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn answered(&self, response: &Response) {
        if let Some(code) = response.extensions().get::<Code>() {
            self.refusals[*code as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn opened(&self) -> OpenConnection<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self)
    }

    pub(crate) fn tell(&self, page: &mut MetricsPage) {
        page.one(&metrics::CONNECTIONS_IN, self.connections.load(Ordering::Relaxed));
        page.one(&metrics::REQUESTS, self.requests.load(Ordering::Relaxed));
        let refusals = self.refusals.iter().map(|count| count.load(Ordering::Relaxed));
        let some = Code::ALL.iter().zip(refusals).filter(|(_, count)| *count > 0);
        page.each(&metrics::REFUSALS, some.map(|(code, count)| (code.name(), count)));
    }
}
