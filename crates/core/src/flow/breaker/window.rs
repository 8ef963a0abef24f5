//! A sliding window of a destination's answers in the last thirty seconds: one bucket a second, and running sums.
//!
//! Invariants: a sum is always that of its buckets; a time before the newest bucket counts in that
//! bucket, unless the clock was set back by more than the whole window: then the window starts anew.

use std::array;
use std::time::Duration;

use super::Signal;
use crate::{EndpointId, Timestamp};

pub const WINDOW: Duration = Duration::from_secs(SECONDS as u64);
/// How many different endpoints a window distinguishes.
pub const ENDPOINTS_MAX: u8 = 5;

const SECONDS: u8 = 30;

/// Counts of one second, by [`Signal`] without the neutral one. They saturate: further answers of that second are not
/// counted.
type Bucket = [u16; Signal::Neutral as usize];

#[derive(Clone, Debug, Default)]
pub(super) struct AnswerWindow {
    newest: i64,
    sums: [u32; Signal::Neutral as usize],
    /// Indexed by second modulo [`SECONDS`].
    buckets: [Bucket; SECONDS as usize],
    /// The endpoints with a failure within the window, as of the last answer.
    pub(super) failed: Endpoints,
    /// Those with an overload answer.
    pub(super) overloaded: Endpoints,
    /// Seconds since the window began to fill, the newest included; 0 when it is empty.
    filled: u8,
}

/// The counts of a window at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowCounts {
    pub(super) successes: u64,
    pub(super) failures: u64,
    pub(super) overloads: u64,
    pub(super) successes_this_second: u64,
    /// Seconds since the window began to fill, the current one included.
    pub(super) seconds: u8,
}

impl WindowCounts {
    pub(super) fn answers(&self) -> u64 {
        self.successes + self.failures + self.overloads
    }
}

impl AnswerWindow {
    /// Counts an answer, unless it is neutral.
    pub(super) fn count(&mut self, now: Timestamp, signal: Signal, endpoint: EndpointId) {
        if signal == Signal::Neutral {
            return;
        }
        self.advance(now);
        let slot = slot(self.newest);
        let count = &mut self.buckets[usize::from(slot)][signal as usize];
        if let Some(more) = count.checked_add(1) {
            *count = more;
            self.sums[signal as usize] += 1;
        }
        match signal {
            Signal::Failure => self.failed.note(endpoint, slot),
            Signal::Overload => self.overloaded.note(endpoint, slot),
            Signal::Success | Signal::Neutral => {}
        }
    }

    pub(super) fn at(&self, now: Timestamp) -> WindowCounts {
        let steps = self.steps(now);
        let mut sums = self.sums;
        self.leaving(steps).for_each(|bucket| subtract(&mut sums, self.buckets[bucket]));
        let [successes, failures, overloads] = sums.map(u64::from);
        let this_second = if steps == 0 { self.buckets[usize::from(slot(self.newest))][0] } else { 0 };
        let seconds = (self.filled + steps).min(SECONDS);
        WindowCounts { successes, failures, overloads, successes_this_second: this_second.into(), seconds }
    }

    /// Moves the window on to `now` and clears the buckets that are too old.
    fn advance(&mut self, now: Timestamp) {
        let steps = self.steps(now);
        if steps > 0 {
            for bucket in self.leaving(steps) {
                subtract(&mut self.sums, self.buckets[bucket]);
                self.buckets[bucket] = Bucket::default();
            }
            let newest = slot(self.newest);
            self.failed.age(newest, steps);
            self.overloaded.age(newest, steps);
            self.newest = second(now);
            self.filled = (self.filled + steps).min(SECONDS);
        }
        if self.sums == [0; 3] {
            self.newest = second(now);
            self.filled = 1;
        }
    }

    /// How many seconds the window has to move on; [`SECONDS`] if all of it is too old.
    fn steps(&self, now: Timestamp) -> u8 {
        let (now, newest) = (second(now), self.newest);
        let apart = u8::try_from(now.abs_diff(newest)).unwrap_or(u8::MAX);
        if now < newest && apart <= SECONDS { 0 } else { apart.min(SECONDS) }
    }

    /// The buckets that are too old once the window has moved on by this many seconds.
    fn leaving(&self, steps: u8) -> impl Iterator<Item = usize> + use<> {
        let newest = slot(self.newest);
        (1..=steps).map(move |step| usize::from((newest + step) % SECONDS))
    }
}

fn subtract(sums: &mut [u32; Signal::Neutral as usize], bucket: Bucket) {
    for (sum, count) in sums.iter_mut().zip(bucket) {
        *sum -= u32::from(count);
    }
}

fn second(now: Timestamp) -> i64 {
    now.as_millis().div_euclid(1_000)
}

/// The index of a second's bucket.
fn slot(second: i64) -> u8 {
    u8::try_from(second.rem_euclid(SECONDS.into())).expect("a remainder below thirty")
}

/// The latest endpoints within the window, each once.
///
/// An entry is four bytes: a hash of 27 bits for the endpoint, and the slot of its last second in
/// the lower five bits. Two endpoints with the same hash, one pair in 134 million, count as one: the breaker then
/// opens a little later, never earlier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoints([u32; ENDPOINTS_MAX as usize]);

const SLOT_BITS: u32 = 5;
const EMPTY: u32 = u32::MAX;

impl Default for Endpoints {
    fn default() -> Self {
        Self([EMPTY; ENDPOINTS_MAX as usize])
    }
}

impl Endpoints {
    fn note(&mut self, endpoint: EndpointId, newest: u8) {
        let hash = hash(endpoint);
        let same = self.0.iter().position(|entry| *entry != EMPTY && entry >> SLOT_BITS == hash);
        // The oldest entry is replaced, so these are always the latest endpoints.
        let oldest = || (0..self.0.len()).max_by_key(|at| age(self.0[*at], newest));
        if let Some(at) = same.or_else(oldest) {
            self.0[at] = hash << SLOT_BITS | u32::from(newest);
        }
    }

    /// Removes entries that are too old once the window has moved on from `newest` by this many seconds.
    fn age(&mut self, newest: u8, steps: u8) {
        self.0 = array::from_fn(|at| if age(self.0[at], newest) + steps < SECONDS { self.0[at] } else { EMPTY });
    }

    pub(super) fn count(&self) -> u8 {
        self.0.iter().map(|entry| u8::from(*entry != EMPTY)).sum()
    }
}

/// How many seconds ago an entry was made; [`SECONDS`] for an empty one.
fn age(entry: u32, newest: u8) -> u8 {
    let slot = entry.to_le_bytes()[0] & ((1 << SLOT_BITS) - 1);
    if entry == EMPTY { SECONDS } else { (newest + SECONDS - slot) % SECONDS }
}

/// 27 bits: the high bits of a multiplication, in which neighbouring ids differ.
fn hash(endpoint: EndpointId) -> u32 {
    let mixed = endpoint.raw().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - (u32::BITS - SLOT_BITS));
    u32::try_from(mixed).expect("27 bits fit")
}
