//! The settings that apply where a retry policy sets nothing. They have the bounds of a policy.

use std::time::Duration;

use posthaste_core::Policy;
use posthaste_core::policy::{BreakerSpec, PolicyDefaults, PolicySpec};
use posthaste_server::duration;

use super::layer::{Layers, Setting};

/// Reads the defaults. Each value that a policy could not have is a complaint.
pub(super) fn read(layers: &mut Layers) -> Option<PolicyDefaults> {
    let retry_after_max = layers.get("retry_after_max", time);
    let failure_rate = layers.get("breaker.failure_rate", |setting| Ok(setting.decimal()));
    let min_volume = layers.get("breaker.min_volume", count);
    let consecutive = layers.get("breaker.consecutive", count);
    let open_for = layers.get("breaker.open_for", time);
    let defaults = PolicyDefaults {
        retry_after_max: Some(retry_after_max?),
        breaker: BreakerSpec {
            failure_rate: Some(failure_rate?),
            min_volume: Some(min_volume?),
            consecutive: Some(consecutive?),
            open_for: Some(open_for?),
        },
    };
    for wrong in Policy::build(&PolicySpec::default().or(&defaults)).err().unwrap_or_default() {
        layers.blame(&wrong.field, &wrong.reason);
    }
    Some(defaults)
}

fn time(setting: &Setting) -> Result<Duration, String> {
    duration::parse(setting.text()).ok_or_else(|| format!("must be {}, not {:?}", duration::FORM, setting.text()))
}

fn count(setting: &Setting) -> Result<u64, String> {
    u64::try_from(setting.number()).map_err(|_| "must be a whole number from 1 on".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str) -> (Option<PolicyDefaults>, Vec<String>) {
        let mut layers = Layers::new(super::super::DEFAULT);
        layers.file("posthaste.toml", file);
        let read = read(&mut layers);
        (read, layers.finish().err().unwrap_or_default())
    }

    #[test]
    fn the_embedded_defaults_match_an_empty_policy() {
        let (read, complaints) = check("");
        assert_eq!(complaints, [] as [String; 0]);
        let spec = PolicySpec::default().or(&read.expect("good settings"));
        assert_eq!(Policy::build(&spec), Policy::build(&PolicySpec::default()));
    }

    #[test]
    fn each_default_is_set_by_itself_and_checked_like_a_policy() {
        let (read, complaints) = check("retry_after_max = \"1h\"\n[breaker]\nfailure_rate = 1\nconsecutive = 3");
        let read = read.expect("good settings");
        let breaker = (read.breaker.failure_rate, read.breaker.min_volume, read.breaker.consecutive);
        assert_eq!((read.retry_after_max, breaker), (Some(Duration::from_secs(3_600)), (Some(1.0), Some(20), Some(3))));
        assert_eq!(complaints, [] as [String; 0]);
        let (_, complaints) = check("retry_after_max = \"0s\"\n[breaker]\nfailure_rate = 50.0\nopen_for = \"1h\"");
        assert_eq!(
            complaints,
            [
                "retry_after_max in posthaste.toml: 0s is not from 1s to 30d; a receiver's Retry-After is always obeyed",
                "breaker.failure_rate in posthaste.toml: 50.0 is not from 0.01 to 1; 0.5 means 50%",
                "breaker.open_for in posthaste.toml: 1h is not from 1s to 5m; it grows with each failed probe",
            ]
        );
        let (_, complaints) = check("[breaker]\nmin_volume = -1\nconsecutiv = 3");
        assert_eq!(
            complaints,
            [
                "breaker.consecutiv in posthaste.toml: there is no such setting; the nearest is breaker.consecutive",
                "breaker.min_volume in posthaste.toml: must be a whole number from 1 on",
            ]
        );
    }
}
