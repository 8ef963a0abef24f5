//! An HTTP receiver on a real socket that records every arrival: the message, the life of its sender, and the time.
//! Proofs compare the arrivals with the messages that were acknowledged to producers
//! ([`PromiseLedger`](crate::fixtures::ledger::PromiseLedger)).
//!
//! A *life* of the sender ends with its process. A message that arrives twice was in flight at the end of a life, or
//! the sender has lost its outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use tokio::time::Instant;

use super::{HttpReceiver, Responder, TimedResponse, field};
use crate::fixtures::{call, lock};

/// The longest wait until the connections of a dead sender are closed, which the operating system does at once.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// The behaviour of a counter.
#[derive(Clone, Debug)]
pub struct Manners {
    pub takes: Range<Duration>,
    /// The first attempt of one message in this many fails.
    pub fails_one_in: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedArrival {
    /// The number of the sender's life, from 0.
    pub life: usize,
    /// The time at which the request was complete.
    pub at: Instant,
}

#[derive(Clone, Debug, Default)]
pub struct ArrivalLog {
    by_message: BTreeMap<String, Vec<CountedArrival>>,
    ends: Vec<Instant>,
}

impl ArrivalLog {
    /// How many different messages have arrived.
    pub fn messages(&self) -> usize {
        self.by_message.len()
    }

    /// How many of these messages have not arrived.
    pub fn lost(&self, promised: &BTreeSet<String>) -> usize {
        self.missing(promised).count()
    }

    /// The first of these messages that has not arrived.
    pub fn first_missing<'a>(&self, promised: &'a BTreeSet<String>) -> Option<&'a str> {
        self.missing(promised).next().map(String::as_str)
    }

    fn missing<'a>(&self, promised: &'a BTreeSet<String>) -> impl Iterator<Item = &'a String> {
        promised.iter().filter(|id| !self.by_message.contains_key(*id))
    }

    /// How many messages have arrived that are not among these.
    pub fn unpromised(&self, promised: &BTreeSet<String>) -> usize {
        self.by_message.keys().filter(|id| !promised.contains(*id)).count()
    }

    /// How many arrivals were of a message that had arrived before.
    pub fn duplicates(&self) -> usize {
        self.by_message.values().map(|seen| seen.len() - 1).sum()
    }

    /// How many of those were in the same life, so that a kill does not explain them.
    pub fn unexplained(&self) -> usize {
        self.repeats().filter(|[first, again]| first.life == again.life).count()
    }

    /// How many messages arrived again in another life although they had arrived so long before the end of the first
    /// that the sender must have recorded their outcome.
    pub fn forgotten(&self, recorded_within: Duration) -> usize {
        let late =
            |first: &CountedArrival| self.ends.get(first.life).is_some_and(|end| *end - first.at > recorded_within);
        self.repeats().filter(|[first, again]| first.life != again.life && late(first)).count()
    }

    /// The most messages that arrived again after the end of one life.
    pub fn most_after_a_life(&self) -> usize {
        let mut after = vec![0; self.ends.len() + 1];
        for [first, _] in self.repeats() {
            after[first.life] += 1;
        }
        after.into_iter().max().unwrap_or(0)
    }

    /// A copy without one of the messages, for controls.
    #[must_use]
    pub fn without_one(&self) -> Self {
        let mut seens = self.clone();
        seens.by_message.pop_first();
        seens
    }

    /// A copy in which one of the messages arrived again in the same life, for controls.
    #[must_use]
    pub fn with_one_again(&self) -> Self {
        let mut seens = self.clone();
        if let Some(mut first) = seens.by_message.first_entry() {
            let seen = first.get()[0];
            first.get_mut().insert(0, seen);
        }
        seens
    }

    fn repeats(&self) -> impl Iterator<Item = [&CountedArrival; 2]> {
        self.by_message.values().flat_map(|seen| seen.iter().zip(&seen[1..]).map(|(first, again)| [first, again]))
    }
}

pub type Counter = HttpReceiver<ArrivalCounter>;

/// The responder of a [`Counter`].
#[derive(Debug)]
pub struct ArrivalCounter {
    manners: Mutex<Manners>,
    seens: Mutex<ArrivalLog>,
}

impl Counter {
    /// Listens on a free port.
    pub async fn start(manners: Manners) -> io::Result<Self> {
        Self::listen(ArrivalCounter { manners: Mutex::new(manners), seens: Mutex::default() }).await
    }

    /// Changes its behaviour.
    pub fn behave(&self, manners: Manners) {
        *lock(&self.responder().manners) = manners;
    }

    /// All arrivals so far.
    pub fn seens(&self) -> ArrivalLog {
        lock(&self.responder().seens).clone()
    }

    /// Ends a life of the sender, whose process has ended. Reads what it had still written first, so that every
    /// arrival is counted in the right life.
    pub async fn sender_ended(&self, at: Instant) -> io::Result<()> {
        // Connections are accepted in order: when this call is answered, all connections of the sender were accepted.
        call(self.address, Method::GET, "/", "").await?;
        let mut open = self.open();
        let closed = open.wait_for(|open| *open == 0);
        let closed = tokio::time::timeout(CLOSED_WITHIN, closed).await;
        if closed.is_err() {
            return Err(io::Error::other("a connection of a sender that has ended stays open"));
        }
        lock(&self.responder().seens).ends.push(at);
        Ok(())
    }

    /// Waits until this many different messages have arrived. Returns `false` after the time `within`.
    pub async fn waits_for_messages(&self, enough: usize, within: Duration) -> bool {
        self.waits_for(within, |counter| (lock(&counter.seens).messages() >= enough).then_some(())).await.is_some()
    }

    /// Waits until all promised messages have arrived, or no new message has arrived for the time `still`. Returns how
    /// many are missing.
    pub async fn waits_for_all(&self, promised: &BTreeSet<String>, still: Duration) -> usize {
        loop {
            let seens = self.seens();
            let (lost, before) = (seens.lost(promised), seens.messages());
            if lost == 0 || !self.waits_for_messages(before + 1, still).await {
                return lost;
            }
            // Counting the missing ones again at each arrival would cost too much.
            self.waits_for_messages(before + lost, still / 50).await;
        }
    }
}

impl ArrivalCounter {
    fn fails(&self, message: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        message.hash(&mut hasher);
        lock(&self.manners).fails_one_in.is_some_and(|one_in| hasher.finish().is_multiple_of(one_in))
    }
}

impl Responder for ArrivalCounter {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let message = field(&request, "webhook-id");
        let response = TimedResponse::from(StatusCode::NO_CONTENT);
        if message.is_empty() {
            return response;
        }
        if field(&request, "posthaste-attempt") == "1" && self.fails(message) {
            return StatusCode::INTERNAL_SERVER_ERROR.into();
        }
        let mut seens = lock(&self.seens);
        let seen = CountedArrival { life: seens.ends.len(), at: Instant::now() };
        seens.by_message.entry(message.to_owned()).or_default().push(seen);
        let takes = lock(&self.manners).takes.clone();
        // Most answers are fast; some take nearly the longest time.
        TimedResponse { after: takes.start + (takes.end - takes.start).mul_f64(fastrand::f64().powi(3)), ..response }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seens(arrivals: &[(&str, usize, u64)], ends: &[u64]) -> ArrivalLog {
        let begin = Instant::now();
        let at = |second: u64| begin + Duration::from_secs(second);
        let mut seens = ArrivalLog { by_message: BTreeMap::new(), ends: ends.iter().map(|end| at(*end)).collect() };
        for (message, life, second) in arrivals {
            let seen = CountedArrival { life: *life, at: at(*second) };
            seens.by_message.entry((*message).to_owned()).or_default().push(seen);
        }
        seens
    }

    #[test]
    fn lost_unpromised_and_duplicate_messages_are_counted() {
        let came = seens(&[("a", 0, 1), ("b", 0, 1), ("a", 1, 12)], &[10]);
        let promised = ["a", "c"].map(str::to_owned).into();
        assert_eq!((came.lost(&promised), came.unpromised(&promised), came.duplicates()), (1, 1, 1));
        assert_eq!(came.without_one().lost(&promised), 2);
    }

    #[test]
    fn repeats_are_explained_only_by_the_end_of_a_life_soon_after() {
        let came =
            seens(&[("a", 0, 9), ("a", 1, 12), ("b", 0, 1), ("b", 1, 12), ("c", 1, 13), ("c", 1, 14)], &[10, 20]);
        let within = Duration::from_secs(2);
        assert_eq!((came.duplicates(), came.unexplained(), came.forgotten(within)), (3, 1, 1));
        assert_eq!(came.most_after_a_life(), 2);
        assert_eq!(came.with_one_again().unexplained(), 2);
    }

    #[tokio::test]
    async fn arrival_is_counted_in_the_life_that_sent_it() {
        let manners = Manners { takes: Duration::ZERO..Duration::ZERO, fails_one_in: None };
        let counter = Counter::start(manners).await.expect("a free port");
        for life in 0..2 {
            let mut line = crate::fixtures::caller::ApiConnection::open(counter.address).await.expect("it listens");
            let answer = line.call(Method::POST, "/hook", &[("webhook-id", "msg_1")], "{}").await.expect("an answer");
            assert_eq!(answer.status, StatusCode::NO_CONTENT);
            drop(line);
            counter.sender_ended(Instant::now()).await.expect("it has left");
            assert_eq!(counter.seens().duplicates(), life);
        }
        assert_eq!(counter.seens().unexplained(), 0);
    }
}
