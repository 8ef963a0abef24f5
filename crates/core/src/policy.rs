//! Retry policies: how long to wait before each retry (C1–C6). Randomness is an argument.
//!
//! A wait is computed in four steps: the *strategy* gives the delay (`strategy.rs`), the tier scales it, the cap bounds
//! it, and *jitter* spreads it at random (`jitter.rs`). Users write a [`PolicySpec`]; a [`Policy`] is a spec that was
//! checked. `preset.rs` has the built-in policies; [`Policy::preview`] describes what a policy does.
//!
//! Invariants: a policy holds only bounded numbers, so that no retry, roll or previous wait makes it panic; it has a
//! wait for every retry up to its attempts and none after; the cap bounds the delay *before* jitter, so that capped
//! retries do not all happen at once (decorrelated alone is cut after jitter, as published).
//!
//! Called by [`crate::delivery::settle`], which also applies `Retry-After`, the window and the TTL.
//!
//! ```
//! use std::time::Duration;
//! use posthaste_core::{Policy, Roll, Tier};
//!
//! let policy = Policy::default(); // `webhook`: 10 s, 30 s, 2 min, …, ±20 %
//! let shortest = policy.wait(1, Tier::Promotional, None, Roll(0));
//! assert_eq!(shortest, Some(Duration::from_secs(8)));
//! assert_eq!(policy.wait(9, Tier::Promotional, None, Roll(0)), None, "nine attempts are all");
//! ```

mod jitter;
mod nearest;
mod preset;
mod preview;
mod ratio;
mod spec;
mod strategy;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::flow::breaker::BreakerRule;
use crate::{Roll, Tier};

use jitter::{Band, Jitter};
use ratio::Ratio;
use strategy::Strategy;

pub use nearest::{nearest, told_nearest};
pub use preset::{DEFAULT_PRESET, PRESETS, UnknownPolicy};
pub use preview::{Preview, Wait};
pub use spec::{
    ATTEMPTS_MAX, BadPolicy, BreakerSpec, DELAYS_MAX, JitterSpec, PolicyDefaults, PolicySpec, TierSpec, TiersSpec,
    WAIT_MAX, WAIT_MIN,
};

/// When to try again, how often, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    strategy: Strategy,
    jitter: Jitter,
    /// [`WAIT_MAX`] where no cap applies.
    cap: Duration,
    max_attempts: u16,
    window: Option<Duration>,
    retry_after_max: Duration,
    /// By [`Tier::index`].
    tiers: [Variant; 3],
    breaker: BreakerRule,
    /// The latest start of the last retry, counted from birth; by [`Tier::index`].
    reach: [Duration; 3],
    /// Fields that were set and have no effect with this strategy or jitter; the preview lists them.
    unused: Vec<&'static str>,
}

/// How a tier changes the waits of a policy (C6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    scale: Ratio,
    /// The first retry starts within this time: jitter only shortens the wait.
    first: Option<Duration>,
}

impl Policy {
    /// The preset with that name, one of [`PRESETS`].
    pub fn preset(name: &str) -> Option<Self> {
        let spec = PolicySpec::preset(name)?;
        Some(Self::build(&spec).expect("presets are valid: a test builds each of them"))
    }

    /// The preset with that name, or an error that suggests the nearest one.
    pub fn named(name: &str) -> Result<Self, UnknownPolicy> {
        Self::preset(name).ok_or_else(|| UnknownPolicy::beside(name, []))
    }

    /// How long to wait before retry number `retry` (the first is 1), or `None` when `retry` attempts
    /// are all that the policy allows.
    ///
    /// `previous` is the wait before the last attempt; decorrelated jitter grows from it.
    pub fn wait(&self, retry: u16, tier: Tier, previous: Option<Duration>, roll: Roll) -> Option<Duration> {
        (retry < self.max_attempts).then(|| self.band(retry, tier, previous).draw(roll))
    }

    /// How many attempts the policy allows, the first included.
    pub fn max_attempts(&self) -> u16 {
        self.max_attempts
    }

    /// How long after its birth a delivery is still retried; `None` if without limit.
    pub fn window(&self) -> Option<Duration> {
        self.window
    }

    /// The longest `Retry-After` that is obeyed in full.
    pub fn retry_after_max(&self) -> Duration {
        self.retry_after_max
    }

    /// When the endpoint's own breaker opens, and for how long.
    pub fn breaker(&self) -> BreakerRule {
        self.breaker
    }

    /// Whether a delivery with this TTL may expire before its last attempt (C3). Always `false` for a TTL of
    /// zero, which asks for one attempt.
    pub fn outlasts(&self, tier: Tier, ttl: Duration) -> bool {
        !ttl.is_zero() && self.reach[tier.index()] >= ttl
    }

    /// The range of the wait before this retry.
    fn band(&self, retry: u16, tier: Tier, previous: Option<Duration>) -> Band {
        let variant = self.variant(tier);
        let aim = self.aim(retry, tier);
        match self.jitter {
            _ if retry <= 1 && variant.first.is_some() => self.jitter.below(aim),
            Jitter::Decorrelated => Band::decorrelated(variant.scale.of(self.strategy.delay(1)), previous, self.cap),
            jitter => jitter.around(aim),
        }
    }

    /// The wait before this retry, before jitter.
    fn aim(&self, retry: u16, tier: Tier) -> Duration {
        let variant = self.variant(tier);
        let written = self.strategy.delay(retry);
        let aim = match variant.first {
            Some(first) if retry <= 1 => written.min(first),
            _ => variant.scale.of(written),
        };
        // After the scale, so that the cap holds in every tier.
        aim.min(self.cap)
    }

    fn variant(&self, tier: Tier) -> Variant {
        self.tiers[tier.index()]
    }
}

impl Default for Policy {
    /// The preset [`DEFAULT_PRESET`].
    fn default() -> Self {
        Self::preset(DEFAULT_PRESET).expect("the default is one of the presets")
    }
}
