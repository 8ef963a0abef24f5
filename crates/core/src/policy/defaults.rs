//! The server's defaults for fields that a policy leaves out.

use std::time::Duration;

use super::Policy;
use super::spec::{BreakerSpec, PolicySpec};
use crate::flow::breaker::BreakerRule;

/// Defaults that the server's settings give for fields of a policy. A field that they leave out keeps the built-in
/// default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyDefaults {
    /// The longest `Retry-After` that is obeyed in full.
    pub retry_after_max: Option<Duration>,
    /// When the breaker of an endpoint opens; also of an origin, except for `consecutive`.
    pub breaker: BreakerSpec,
}

impl PolicyDefaults {
    /// When the breaker of an origin opens. No policy sets it, since one origin may have endpoints with many policies.
    pub fn origin(&self) -> BreakerRule {
        let defaults = Policy::build(&PolicySpec::default().or(self));
        defaults.map_or(BreakerRule::ORIGIN, |policy| policy.breaker().for_origin())
    }
}

impl PolicySpec {
    /// Fills in the server's defaults for fields that are not set.
    #[must_use]
    pub fn or(mut self, defaults: &PolicyDefaults) -> Self {
        let BreakerSpec { failure_rate, min_volume, consecutive, open_for } = &defaults.breaker;
        self.retry_after_max = self.retry_after_max.or(defaults.retry_after_max);
        self.breaker.failure_rate = self.breaker.failure_rate.or(*failure_rate);
        self.breaker.min_volume = self.breaker.min_volume.or(*min_volume);
        self.breaker.consecutive = self.breaker.consecutive.or(*consecutive);
        self.breaker.open_for = self.breaker.open_for.or(*open_for);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_overrides_each_server_default_by_itself() {
        let hour = Duration::from_secs(3_600);
        let defaults = PolicyDefaults {
            retry_after_max: Some(hour),
            breaker: BreakerSpec { consecutive: Some(5), min_volume: Some(50), ..BreakerSpec::default() },
        };
        let written = BreakerSpec { consecutive: Some(3), ..BreakerSpec::default() };
        let spec = PolicySpec { breaker: written, ..PolicySpec::default() };
        let policy = Policy::build(&spec.clone().or(&defaults)).expect("a valid policy");
        let rule = policy.breaker();
        assert_eq!((rule.in_a_row, rule.volume, rule.share_milli, policy.retry_after_max()), (3, 50, 500, hour));
        let own = PolicySpec { retry_after_max: Some(2 * hour), ..spec }.or(&defaults);
        assert_eq!(Policy::build(&own).expect("a valid policy").retry_after_max(), 2 * hour);
    }

    #[test]
    fn server_defaults_apply_to_origin_breakers_except_failures_in_a_row() {
        assert_eq!(PolicyDefaults::default().origin(), BreakerRule::ORIGIN);
        let breaker = BreakerSpec {
            failure_rate: Some(0.25),
            min_volume: Some(8),
            consecutive: Some(3),
            open_for: Some(Duration::from_secs(5)),
        };
        let rule = PolicyDefaults { breaker, ..PolicyDefaults::default() }.origin();
        let open_for = Duration::from_secs(5);
        assert_eq!(rule, BreakerRule { share_milli: 250, volume: 8, open_for, ..BreakerRule::ORIGIN });
    }
}
