//! The one place that reads a clock.
//!
//! Due times are wall-clock milliseconds; waiting uses a monotonic clock anchored to the wall
//! clock at the start. A jump of the wall clock therefore neither fires everything at once nor
//! stalls: the anchor follows it slowly ([`Anchor::follow`]) and the jump can be reported.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use posthaste_core::Timestamp;
use tokio::time::Instant;

/// A clock for wall-clock times, and their instants on the runtime's clock.
pub trait Clock: Clone + Send + Sync + 'static {
    fn now(&self) -> Timestamp;

    /// The runtime's instant at which [`Clock::now`] will reach `at`.
    fn instant(&self, at: Timestamp) -> Instant;

    /// Moves a step towards the wall clock; returns how far off it still is, in milliseconds.
    fn follow(&self) -> i64 {
        0
    }
}

/// The anchor follows the wall clock by at most this share of the time that passed: an hour's
/// jump is taken over in ten hours, and no minute is ever shorter than 54 or longer than 66 s.
const FOLLOW: i64 = 10;

/// A monotonic clock tied to the wall clock at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    wall: Timestamp,
    elapsed: Duration,
}

impl Anchor {
    /// Ties `wall` to the monotonic clock's reading.
    pub const fn new(wall: Timestamp, elapsed: Duration) -> Self {
        Self { wall, elapsed }
    }

    /// The time at a reading of the monotonic clock.
    pub fn at(&self, elapsed: Duration) -> Timestamp {
        let since = i64::try_from(elapsed.saturating_sub(self.elapsed).as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.wall.as_millis().saturating_add(since))
    }

    /// Moves a step towards the wall clock; returns how far off it still is, in milliseconds.
    pub fn follow(&mut self, elapsed: Duration, wall: Timestamp) -> i64 {
        let here = self.at(elapsed);
        let off = wall.as_millis().saturating_sub(here.as_millis());
        let passed = here.as_millis().saturating_sub(self.wall.as_millis());
        let step = off.clamp(-(passed / FOLLOW), passed / FOLLOW);
        *self = Self { wall: Timestamp::from_millis(here.as_millis().saturating_add(step)), elapsed };
        off.saturating_sub(step)
    }
}

/// The machine's clock, or a faster one for demos and tests.
#[derive(Clone, Debug)]
pub struct SystemClock {
    anchor: Arc<Mutex<Anchor>>,
    began: Instant,
    scale: u32,
}

impl SystemClock {
    pub fn new() -> Self {
        Self::scaled(1)
    }

    /// A clock that runs `scale` times as fast from now on.
    pub fn scaled(scale: u32) -> Self {
        Self::scaled_since(wall(), scale)
    }

    /// A clock that has run `scale` times as fast since the wall-clock time `began`: processes with
    /// the same two values have the same time.
    pub fn scaled_since(began: Timestamp, scale: u32) -> Self {
        let scale = scale.max(1);
        let anchor = Anchor::new(began + wall().since(began).saturating_mul(scale), Duration::ZERO);
        Self { anchor: Arc::new(Mutex::new(anchor)), began: Instant::now(), scale }
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed().saturating_mul(self.scale)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Anchor> {
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.lock().at(self.elapsed())
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let wait = at.since(self.now()) / self.scale;
        // Far longer than any wait in use, and still within what the runtime can add.
        Instant::now() + wait.min(Duration::from_secs(86_400 * 365))
    }

    fn follow(&self) -> i64 {
        // A faster clock left the wall clock behind on purpose.
        if self.scale == 1 { self.lock().follow(self.elapsed(), wall()) } else { 0 }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is where the wall clock is read")]
fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn ms(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_jump_of_the_wall_clock_is_followed_slowly_in_both_directions() {
        for jump in [HOUR_MS, -HOUR_MS] {
            let mut anchor = Anchor::new(ms(10 * HOUR_MS), Duration::ZERO);
            let minute = Duration::from_secs(60);
            let left = anchor.follow(minute, ms(10 * HOUR_MS + 60_000 + jump));
            assert_eq!(left, jump - jump.signum() * 6_000, "a tenth of the minute is taken over");
            let gone = anchor.at(minute).as_millis() - 10 * HOUR_MS;
            assert_eq!(gone, 60_000 + jump.signum() * 6_000);
        }
    }

    #[test]
    fn a_small_drift_is_corrected_at_once() {
        let mut anchor = Anchor::new(ms(0), Duration::ZERO);
        assert_eq!(anchor.follow(Duration::from_secs(60), ms(60_020)), 0);
        assert_eq!(anchor.at(Duration::from_secs(61)), ms(61_020));
    }

    #[tokio::test(start_paused = true)]
    async fn a_scaled_clock_runs_faster_and_waits_less() {
        let clock = SystemClock::scaled(600);
        let start = clock.now();
        let at = start + Duration::from_secs(600);
        assert_eq!(clock.instant(at) - Instant::now(), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.now(), at);
    }

    #[tokio::test(start_paused = true)]
    async fn scaled_clocks_of_one_beginning_agree() {
        let began = SystemClock::new().now() - Duration::from_secs(10);
        let (first, second) = (SystemClock::scaled_since(began, 60), SystemClock::scaled_since(began, 60));
        let ahead = first.now().since(began);
        assert!(ahead >= Duration::from_secs(600), "ten seconds are ten minutes, not {ahead:?}");
        // They read the machine's clock one after the other.
        assert!(second.now().since(first.now()) < Duration::from_secs(60));
    }
}
