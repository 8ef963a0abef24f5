//! Bounds what an HTTP/2 receiver may send: frames cost CPU also when no attempt waits for them.
//!
//! A receiver has a budget of bytes. Each frame takes its length and a fixed cost for its handling; each request
//! and each second adds to the budget. An ordinary answer takes a hundredth of what its request adds, so that only a
//! flood (of SETTINGS, PING, WINDOW_UPDATE, PRIORITY, RST_STREAM or CONTINUATION frames, of empty DATA frames, or of
//! data after the part of a body that is read) uses the budget up. The connection is then closed.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

/// What a frame takes beside its own bytes.
const FRAME_COST: u64 = 512;
/// What a request adds: twice the longest body that is read, with its frames.
const PER_REQUEST: u64 = 128 * 1024;
/// What a second adds: about a hundred frames.
const PER_SECOND: u64 = 64 * 1024;
/// The most that the budget holds: enough for as many requests as a connection may carry at once. A flood that uses it
/// up takes some 30 ms of CPU.
const BUDGET_MAX: u64 = 128 * PER_REQUEST;

const HEAD_BYTES: usize = 9;

/// The kind of the error with which reading ends after a flood. No socket and no TLS session fails with it.
pub(super) const FLOODED: io::ErrorKind = io::ErrorKind::QuotaExceeded;

/// Follows the frames in the bytes that are read, however they are cut.
#[derive(Debug)]
pub(super) struct FrameBudget {
    left: u64,
    /// When the time before was last added.
    filled_at: Instant,
    requests: u64,
    head: [u8; HEAD_BYTES],
    /// How many bytes of the next frame's head have come.
    head_read: usize,
    /// How many bytes of the current frame's payload have not come yet.
    payload_left: usize,
}

impl FrameBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BUDGET_MAX, filled_at: now, requests: 0, head: [0; HEAD_BYTES], head_read: 0, payload_left: 0 }
    }

    /// Takes the cost of bytes that were read; `requests` is the number of requests sent so far.
    pub(super) fn take(&mut self, mut bytes: &[u8], requests: u64, now: Instant) -> io::Result<()> {
        self.add((requests - self.requests).saturating_mul(PER_REQUEST));
        self.requests = requests;
        let mut cost = bytes.len() as u64;
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let skipped = self.payload_left.min(bytes.len());
                self.payload_left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (HEAD_BYTES - self.head_read).min(bytes.len());
            self.head[self.head_read..self.head_read + taken].copy_from_slice(&bytes[..taken]);
            self.head_read += taken;
            bytes = &bytes[taken..];
            if self.head_read == HEAD_BYTES {
                let [a, b, c, ..] = self.head;
                self.payload_left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                self.head_read = 0;
                cost += FRAME_COST;
            }
        }
        if cost > self.left {
            let elapsed = now.duration_since(self.filled_at);
            self.filled_at = now;
            self.add(in_time(elapsed));
        }
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(FLOODED.into()),
        }
    }

    fn add(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes).min(BUDGET_MAX);
    }
}

/// What a span of time adds.
fn in_time(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).saturating_mul(PER_SECOND) / 1_000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn frame(payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).expect("a small frame").to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], 8, 0, 0, 0, 0, 0];
        bytes.resize(HEAD_BYTES + payload, 0xff);
        bytes
    }

    /// How many frames a receiver can send before it is a flood; `requests` begin with each of them.
    fn frames_until_flooded(payload: usize, requests: u64, apart: Duration, at_most: u64) -> u64 {
        let (mut now, frame) = (Instant::now(), frame(payload));
        let mut budget = FrameBudget::new(now);
        for count in 0..at_most {
            now += apart;
            if budget.take(&frame, (count + 1) * requests, now).is_err() {
                return count;
            }
        }
        at_most
    }

    #[test]
    fn flood_of_small_frames_or_of_data_uses_the_budget_up() {
        assert_eq!(frames_until_flooded(4, 0, Duration::ZERO, 100_000), BUDGET_MAX / 525);
        assert_eq!(frames_until_flooded(16_384, 0, Duration::ZERO, 100_000), BUDGET_MAX / (16_384 + 521));
    }

    #[test]
    fn steady_frames_are_a_flood_from_some_125_a_second() {
        assert_eq!(frames_until_flooded(4, 0, SECOND / 120, 200_000), 200_000);
        assert!(frames_until_flooded(4, 0, SECOND / 250, 200_000) < 100_000);
    }

    #[test]
    fn answers_to_requests_are_never_a_flood() {
        // A head, a body of 64 KiB in one frame and two window updates take less than their request adds.
        let answer: Vec<u8> = [frame(200), frame(65_536), frame(4), frame(4)].concat();
        let now = Instant::now();
        let mut budget = FrameBudget::new(now);
        assert!((1..100_000).all(|request| budget.take(&answer, request, now).is_ok()));
    }

    proptest! {
        #[test]
        fn cost_does_not_depend_on_how_the_bytes_are_cut(
            payloads in prop::collection::vec(0_usize..300, 1..20),
            cuts in prop::collection::vec(1_usize..50, 1..200),
        ) {
            let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(*payload)).collect();
            let now = Instant::now();
            let (mut whole, mut cut) = (FrameBudget::new(now), FrameBudget::new(now));
            whole.take(&bytes, 0, now).expect("within the budget");
            let mut rest = &bytes[..];
            for length in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*length).min(rest.len()));
                cut.take(piece, 0, now).expect("within the budget");
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(whole.left, cut.left);
            prop_assert_eq!(whole.left, BUDGET_MAX - bytes.len() as u64 - FRAME_COST * payloads.len() as u64);
        }
    }
}
