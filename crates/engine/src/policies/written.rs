//! The stored form of a policy: the values that its owner gave, with times in milliseconds. Values that were left out
//! stay out, so that the API returns the policy as it was written.

use std::time::Duration;

use posthaste_core::policy::{BreakerSpec, JitterSpec, PolicySpec, TierSpec, TiersSpec};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Written {
    strategy: Option<String>,
    base_ms: Option<u64>,
    multiplier: Option<f64>,
    cap_ms: Option<u64>,
    step_ms: Option<u64>,
    delays_ms: Option<Vec<u64>>,
    jitter: Option<String>,
    share: Option<f64>,
    max_attempts: Option<u64>,
    window_ms: Option<u64>,
    retry_after_max_ms: Option<u64>,
    transactional: Tier,
    promotional: Tier,
    engagement: Tier,
    failure_rate: Option<f64>,
    min_volume: Option<u64>,
    consecutive: Option<u64>,
    open_for_ms: Option<u64>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
struct Tier {
    scale: Option<f64>,
    first_ms: Option<u64>,
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn write(spec: &PolicySpec) -> Vec<u8> {
    let tier = |tier: &TierSpec| Tier { scale: tier.scale, first_ms: tier.first.map(ms) };
    let written = Written {
        strategy: spec.strategy.clone(),
        base_ms: spec.base.map(ms),
        multiplier: spec.multiplier,
        cap_ms: spec.cap.map(ms),
        step_ms: spec.step.map(ms),
        delays_ms: spec.delays.as_ref().map(|delays| delays.iter().copied().map(ms).collect()),
        jitter: spec.jitter.kind.clone(),
        share: spec.jitter.share,
        max_attempts: spec.max_attempts,
        window_ms: spec.window.map(ms),
        retry_after_max_ms: spec.retry_after_max.map(ms),
        transactional: tier(&spec.tiers.transactional),
        promotional: tier(&spec.tiers.promotional),
        engagement: tier(&spec.tiers.engagement),
        failure_rate: spec.breaker.failure_rate,
        min_volume: spec.breaker.min_volume,
        consecutive: spec.breaker.consecutive,
        open_for_ms: spec.breaker.open_for.map(ms),
    };
    serde_json::to_vec(&written).expect("numbers and texts always serialise")
}

/// Reads the bytes that [`write()`] made.
pub(super) fn read(body: &[u8]) -> Result<PolicySpec, serde_json::Error> {
    let written: Written = serde_json::from_slice(body)?;
    let duration = |ms: Option<u64>| ms.map(Duration::from_millis);
    let tier = |tier: Tier| TierSpec { scale: tier.scale, first: duration(tier.first_ms) };
    Ok(PolicySpec {
        strategy: written.strategy,
        base: duration(written.base_ms),
        multiplier: written.multiplier,
        cap: duration(written.cap_ms),
        step: duration(written.step_ms),
        delays: written.delays_ms.map(|delays| delays.into_iter().map(Duration::from_millis).collect()),
        jitter: JitterSpec { kind: written.jitter, share: written.share },
        max_attempts: written.max_attempts,
        window: duration(written.window_ms),
        retry_after_max: duration(written.retry_after_max_ms),
        tiers: TiersSpec {
            transactional: tier(written.transactional),
            promotional: tier(written.promotional),
            engagement: tier(written.engagement),
        },
        breaker: BreakerSpec {
            failure_rate: written.failure_rate,
            min_volume: written.min_volume,
            consecutive: written.consecutive,
            open_for: duration(written.open_for_ms),
        },
    })
}

#[cfg(test)]
mod tests {
    use posthaste_core::policy::PRESETS;

    use super::*;

    #[test]
    fn a_policy_comes_back_as_it_was_written() {
        let presets = PRESETS.iter().filter_map(|name| PolicySpec::preset(name));
        let full = PolicySpec {
            step: Some(Duration::from_millis(1)),
            retry_after_max: Some(Duration::from_secs(3_600)),
            tiers: TiersSpec {
                transactional: TierSpec { scale: Some(0.25), first: Some(Duration::from_millis(500)) },
                promotional: TierSpec { scale: None, first: Some(Duration::from_secs(2)) },
                engagement: TierSpec { scale: Some(3.0), first: None },
            },
            breaker: BreakerSpec {
                failure_rate: Some(0.3),
                min_volume: Some(7),
                consecutive: Some(3),
                open_for: Some(Duration::from_secs(5)),
            },
            ..PolicySpec::default()
        };
        for spec in presets.chain([full, PolicySpec::default()]) {
            assert_eq!(read(&write(&spec)).expect("write made these bytes"), spec);
        }
    }
}
