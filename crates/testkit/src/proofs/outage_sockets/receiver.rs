//! What a receiver that dies and returns on the same port records: the requests and connections that reached it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use tokio::time::Instant;

use crate::prove::chart::Second;
use crate::receivers::{HttpReceiver, Responder, TimedResponse, field};

pub(super) type MortalReceiver = HttpReceiver<OutageLog>;

/// A message that arrived.
#[derive(Clone, Debug)]
pub(super) struct MortalArrival {
    /// The request's `webhook-id`.
    pub(super) message: String,
    at: Duration,
}

/// Accepts every request, and records when requests and refused connections came.
#[derive(Debug)]
pub(super) struct OutageLog {
    began: Instant,
    arrived: Mutex<Vec<MortalArrival>>,
    refused: Mutex<Vec<Duration>>,
}

impl OutageLog {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), arrived: Mutex::default(), refused: Mutex::default() }
    }

    pub(super) fn arrived(&self) -> Vec<MortalArrival> {
        lock(&self.arrived).clone()
    }

    /// How many new connections were reset while the receiver was dead.
    pub(super) fn refused(&self) -> usize {
        lock(&self.refused).len()
    }

    /// The requests and the connections that were reset, in each second.
    pub(super) fn seconds(&self) -> Vec<Second> {
        let mut seconds: Vec<Second> = Vec::new();
        let arrived = self.arrived().into_iter().map(|arrival| (arrival.at, 0));
        for (at, failed) in arrived.chain(lock(&self.refused).iter().map(|at| (*at, 1))) {
            let index = usize::try_from(at.as_secs()).unwrap_or(usize::MAX).min(3_600);
            if seconds.len() <= index {
                seconds.resize(index + 1, Second::default());
            }
            seconds[index].tries += 1;
            seconds[index].failed += failed;
        }
        seconds
    }

    /// The most arrivals within one second, from this time on.
    pub(super) fn peak_after(&self, seconds: f64) -> f64 {
        let times: Vec<f64> = lock(&self.arrived).iter().map(|arrival| arrival.at.as_secs_f64()).collect();
        let after: Vec<f64> = times.into_iter().filter(|at| *at >= seconds).collect();
        let within_a_second = |from: usize| after[from..].iter().take_while(|at| **at < after[from] + 1.0).count();
        (0..after.len()).map(within_a_second).max().unwrap_or(0) as f64
    }
}

impl Responder for OutageLog {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let message = field(&request, "webhook-id").to_owned();
        lock(&self.arrived).push(MortalArrival { message, at: self.began.elapsed() });
        StatusCode::OK.into()
    }

    fn was_refused(&self) {
        lock(&self.refused).push(self.began.elapsed());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
