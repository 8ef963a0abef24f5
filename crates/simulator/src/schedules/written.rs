//! Compares the presets with their documented waits, tier by tier, to the microsecond. The documented text is parsed
//! here without the core.

use std::time::Duration;

use posthaste_core::policy::Wait;
use posthaste_core::{Policy, Tier};

/// A preset as it is documented.
pub(super) struct Written {
    /// The preset's name.
    pub(super) name: &'static str,
    waits: &'static str,
    jitter: Jitter,
    /// The longest wait before jitter, in every tier; and the window for retries.
    cap_and_window: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Copy)]
enum Jitter {
    Exact,
    Equal,
    /// Plus or minus up to this many per cent.
    Spread(u64),
    /// Plus up to this many per cent.
    Add(u64),
}

/// All presets.
pub(super) fn presets() -> Vec<Written> {
    use Jitter::{Add, Equal, Exact, Spread};
    let plain = |name, waits, jitter| Written { name, waits, jitter, cap_and_window: None };
    vec![
        plain("webhook", "10 s, 30 s, 2 min, 10 min, 30 min, 2 h, 8 h, 24 h", Spread(20)),
        plain("gethook", "30 s, 2 min, 10 min, 1 h", Spread(20)),
        Written {
            cap_and_window: Some(("60 s", "24 h")),
            ..plain("web-push", "2 s, 4 s, 8 s, 16 s, 32 s", Spread(20))
        },
        plain("backend", "1 s, 2 s, 4 s, 8 s, 16 s, 32 s, 60 s", Add(30)),
        plain("apns", "1 s, 2 s, 4 s", Add(50)),
        plain("exponential", "10 s, 20 s, 40 s, 80 s, 160 s, 320 s, 640 s, 1280 s", Equal),
        plain("linear", "30 s, 60 s, 90 s, 120 s, 150 s, 180 s, 210 s, 240 s", Exact),
        plain("fixed", "60 s, 60 s, 60 s, 60 s", Exact),
        plain("standard-webhooks", "5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h", Spread(20)),
    ]
}

impl Written {
    /// The differences between the core's preset and the documented one.
    pub(super) fn differences(&self) -> Vec<String> {
        let Some(policy) = Policy::preset(self.name) else {
            return vec!["there is no such preset".to_owned()];
        };
        let waits: Vec<u64> = self.waits.split(", ").map(micros).collect();
        let mut differences = Vec::new();
        if usize::from(policy.max_attempts()) != waits.len() + 1 {
            differences.push(format!("{} attempts for {} waits", policy.max_attempts(), waits.len()));
        }
        let window = self.cap_and_window.map(|(_, window)| Duration::from_micros(micros(window)));
        if policy.window() != window {
            differences.push(format!("window {:?}, not {window:?}", policy.window()));
        }
        for tier in Tier::ALL {
            let actual = policy.preview(tier, None).waits;
            let expected = self.tier(tier, &waits);
            if actual != expected {
                differences.push(format!("{}: {actual:?}, not {expected:?}", tier.name()));
            }
        }
        differences
    }

    /// The waits of a tier: for transactional the first within a second and the others halved, for engagement doubled.
    fn tier(&self, tier: Tier, waits: &[u64]) -> Vec<Wait> {
        let mut since_accept = Duration::ZERO;
        let cap = self.cap_and_window.map_or(u64::MAX, |(cap, _)| micros(cap));
        let rows = (1..).zip(waits).map(|(retry, written)| {
            let aim = match tier {
                Tier::Transactional if retry == 1 => (*written).min(1_000_000),
                Tier::Transactional => written / 2,
                Tier::Promotional => *written,
                Tier::Engagement => written * 2,
            }
            .min(cap);
            let (earliest, latest) = match self.jitter {
                Jitter::Exact => (aim, aim),
                Jitter::Equal => (aim / 2, aim),
                Jitter::Spread(percent) | Jitter::Add(percent) if tier == Tier::Transactional && retry == 1 => {
                    (aim - aim * percent / 100, aim)
                }
                Jitter::Spread(percent) => (aim - aim * percent / 100, aim + aim * percent / 100),
                Jitter::Add(percent) => (aim, aim + aim * percent / 100),
            };
            let [after, earliest, latest] = [aim, earliest, latest].map(Duration::from_micros);
            since_accept += after;
            Wait { retry, after, earliest, latest, since_accept }
        });
        rows.collect()
    }
}

/// `10 s`, `2 min`, `8 h` in microseconds.
fn micros(written: &str) -> u64 {
    let (count, unit) = written.split_once(' ').expect("a number, a space and a unit");
    let seconds = match unit {
        "s" => 1,
        "min" => 60,
        "h" => 3_600,
        _ => panic!("{written:?} has no unit of time"),
    };
    count.parse::<u64>().expect("a whole number") * seconds * 1_000_000
}
