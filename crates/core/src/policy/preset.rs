//! The presets (C2). A snapshot test fixes every wait of each.

use std::fmt;
use std::time::Duration;

use super::nearest::nearest;
use super::spec::{JitterSpec, PolicySpec, WAIT_MAX, echo};
use crate::time::seconds;

/// Every preset's name, the default first.
pub const PRESETS: [&str; 9] =
    ["webhook", "gethook", "web-push", "backend", "apns", "exponential", "linear", "fixed", "standard-webhooks"];

/// The preset of an endpoint that names no policy.
pub const DEFAULT_PRESET: &str = PRESETS[0];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    pub name: String,
    pub nearest: Option<String>,
}

impl UnknownPolicy {
    /// The error for that name where these policies exist beside the presets.
    pub fn beside<'a>(name: &str, stored: impl IntoIterator<Item = &'a str>) -> Self {
        let known = PRESETS.into_iter().chain(stored);
        Self { name: name.to_owned(), nearest: nearest(name, known).map(str::to_owned) }
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, all) = (echo(&self.name), PRESETS.join(", "));
        let nearest =
            self.nearest.as_ref().map(|nearest| format!("the nearest is {nearest}, and ")).unwrap_or_default();
        write!(f, "there is no policy {name:?}; {nearest}the presets are {all}")
    }
}

impl std::error::Error for UnknownPolicy {}

impl PolicySpec {
    /// The preset with that name as a spec that users can read, copy and change.
    pub fn preset(name: &str) -> Option<Self> {
        Some(match name {
            "webhook" => Self {
                jitter: jitter("spread", 0.2),
                ..list(&[10, 30, 2 * MINUTE, 10 * MINUTE, 30 * MINUTE, 2 * HOUR, 8 * HOUR, 24 * HOUR])
            },
            "gethook" => Self { jitter: jitter("spread", 0.2), ..list(&[30, 2 * MINUTE, 10 * MINUTE, HOUR]) },
            "web-push" => Self {
                strategy: Some("exponential".to_owned()),
                base: Some(seconds(2)),
                multiplier: Some(2.0),
                cap: Some(seconds(60)),
                jitter: jitter("spread", 0.2),
                max_attempts: Some(6),
                window: Some(seconds(24 * HOUR)),
                ..Self::default()
            },
            // A list, not a capped exponential: a cap would also bound the longer waits of the engagement tier.
            "backend" => Self { jitter: jitter("add", 0.3), ..list(&[1, 2, 4, 8, 16, 32, 60]) },
            "apns" => Self { jitter: jitter("add", 0.5), ..list(&[1, 2, 4]) },
            "exponential" => Self {
                strategy: Some("exponential".to_owned()),
                base: Some(seconds(10)),
                multiplier: Some(2.0),
                cap: Some(WAIT_MAX),
                jitter: plain("equal"),
                max_attempts: Some(9),
                ..Self::default()
            },
            "linear" => Self {
                strategy: Some("linear".to_owned()),
                step: Some(seconds(30)),
                cap: Some(WAIT_MAX),
                jitter: plain("none"),
                max_attempts: Some(9),
                ..Self::default()
            },
            "fixed" => Self { cap: Some(WAIT_MAX), max_attempts: Some(5), ..Self::every(seconds(60)) },
            "standard-webhooks" => Self {
                jitter: jitter("spread", 0.2),
                ..list(&[5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR])
            },
            _ => return None,
        })
    }

    /// The same wait before every retry, without jitter.
    pub(crate) fn every(wait: Duration) -> Self {
        let strategy = Some("fixed".to_owned());
        Self { strategy, base: Some(wait), jitter: plain("none"), ..Self::default() }
    }
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

fn list(waits: &[u64]) -> PolicySpec {
    PolicySpec {
        strategy: Some("list".to_owned()),
        delays: Some(waits.iter().copied().map(seconds).collect()),
        ..PolicySpec::default()
    }
}

fn jitter(kind: &str, share: f64) -> JitterSpec {
    JitterSpec { share: Some(share), ..plain(kind) }
}

/// Jitter of that kind, with the default share.
pub(super) fn plain(kind: &str) -> JitterSpec {
    JitterSpec { kind: Some(kind.to_owned()), share: None }
}

#[cfg(test)]
mod tests {
    use super::super::{Policy, Preview};
    use super::*;
    use crate::Tier;

    #[test]
    fn every_preset_builds_and_no_other_name_does() {
        for name in PRESETS {
            let spec = PolicySpec::preset(name).expect("a preset");
            assert_eq!(Policy::build(&spec), Ok(Policy::preset(name).expect("a preset")), "{name}");
        }
        for name in ["", "Webhook", "web push", "default"] {
            assert_eq!(Policy::preset(name), None);
        }
        assert_eq!(Policy::default(), Policy::named("webhook").expect("a preset"));
    }

    #[test]
    fn the_error_for_an_unknown_policy_suggests_the_nearest_name() {
        let error = Policy::named("webhok").expect_err("no such policy");
        assert_eq!(error.nearest.as_deref(), Some("webhook"));
        assert_eq!(
            error.to_string(),
            "there is no policy \"webhok\"; the nearest is webhook, and the presets are webhook, gethook, web-push, \
             backend, apns, exponential, linear, fixed, standard-webhooks"
        );
        assert_eq!(UnknownPolicy::beside("paymnts", ["payments", "crm"]).nearest.as_deref(), Some("payments"));
        let long = UnknownPolicy::beside(&"é".repeat(1_000_000), []).to_string();
        assert!(long.chars().count() < 240, "{long}");
    }

    /// Each preset's waits in seconds, `before jitter [earliest … latest]`, tier by tier.
    fn golden() -> String {
        let mut text = String::new();
        for name in PRESETS {
            let policy = Policy::preset(name).expect("a preset");
            let tiers = Tier::ALL.map(|tier| policy.preview(tier, None));
            let window = policy.window().map_or("none".to_owned(), |window| window.as_secs().to_string());
            text += &format!("{name}: {} attempts, window {window}\n", policy.max_attempts());
            for index in 0..tiers[0].waits.len() {
                let cells = tiers.each_ref().map(|preview| cell(preview, index));
                text += format!("  {}  {:22} {:28} {}", index + 1, cells[0], cells[1], cells[2]).trim_end();
                text.push('\n');
            }
        }
        text
    }

    fn cell(preview: &Preview, index: usize) -> String {
        let wait = preview.waits[index];
        let [after, earliest, latest] = [wait.after, wait.earliest, wait.latest].map(|wait| wait.as_secs_f64());
        format!("{after} [{earliest} … {latest}]")
    }

    #[test]
    fn the_presets_have_the_documented_waits() {
        insta::assert_snapshot!(golden(), @r"
        webhook: 9 attempts, window none
          1  1 [0.8 … 1]            10 [8 … 12]                  20 [16 … 24]
          2  15 [12 … 18]           30 [24 … 36]                 60 [48 … 72]
          3  60 [48 … 72]           120 [96 … 144]               240 [192 … 288]
          4  300 [240 … 360]        600 [480 … 720]              1200 [960 … 1440]
          5  900 [720 … 1080]       1800 [1440 … 2160]           3600 [2880 … 4320]
          6  3600 [2880 … 4320]     7200 [5760 … 8640]           14400 [11520 … 17280]
          7  14400 [11520 … 17280]  28800 [23040 … 34560]        57600 [46080 … 69120]
          8  43200 [34560 … 51840]  86400 [69120 … 103680]       172800 [138240 … 207360]
        gethook: 5 attempts, window none
          1  1 [0.8 … 1]            30 [24 … 36]                 60 [48 … 72]
          2  60 [48 … 72]           120 [96 … 144]               240 [192 … 288]
          3  300 [240 … 360]        600 [480 … 720]              1200 [960 … 1440]
          4  1800 [1440 … 2160]     3600 [2880 … 4320]           7200 [5760 … 8640]
        web-push: 6 attempts, window 86400
          1  1 [0.8 … 1]            2 [1.6 … 2.4]                4 [3.2 … 4.8]
          2  2 [1.6 … 2.4]          4 [3.2 … 4.8]                8 [6.4 … 9.6]
          3  4 [3.2 … 4.8]          8 [6.4 … 9.6]                16 [12.8 … 19.2]
          4  8 [6.4 … 9.6]          16 [12.8 … 19.2]             32 [25.6 … 38.4]
          5  16 [12.8 … 19.2]       32 [25.6 … 38.4]             60 [48 … 72]
        backend: 8 attempts, window none
          1  1 [0.7 … 1]            1 [1 … 1.3]                  2 [2 … 2.6]
          2  1 [1 … 1.3]            2 [2 … 2.6]                  4 [4 … 5.2]
          3  2 [2 … 2.6]            4 [4 … 5.2]                  8 [8 … 10.4]
          4  4 [4 … 5.2]            8 [8 … 10.4]                 16 [16 … 20.8]
          5  8 [8 … 10.4]           16 [16 … 20.8]               32 [32 … 41.6]
          6  16 [16 … 20.8]         32 [32 … 41.6]               64 [64 … 83.2]
          7  30 [30 … 39]           60 [60 … 78]                 120 [120 … 156]
        apns: 4 attempts, window none
          1  1 [0.5 … 1]            1 [1 … 1.5]                  2 [2 … 3]
          2  1 [1 … 1.5]            2 [2 … 3]                    4 [4 … 6]
          3  2 [2 … 3]              4 [4 … 6]                    8 [8 … 12]
        exponential: 9 attempts, window none
          1  1 [0.5 … 1]            10 [5 … 10]                  20 [10 … 20]
          2  10 [5 … 10]            20 [10 … 20]                 40 [20 … 40]
          3  20 [10 … 20]           40 [20 … 40]                 80 [40 … 80]
          4  40 [20 … 40]           80 [40 … 80]                 160 [80 … 160]
          5  80 [40 … 80]           160 [80 … 160]               320 [160 … 320]
          6  160 [80 … 160]         320 [160 … 320]              640 [320 … 640]
          7  320 [160 … 320]        640 [320 … 640]              1280 [640 … 1280]
          8  640 [320 … 640]        1280 [640 … 1280]            2560 [1280 … 2560]
        linear: 9 attempts, window none
          1  1 [1 … 1]              30 [30 … 30]                 60 [60 … 60]
          2  30 [30 … 30]           60 [60 … 60]                 120 [120 … 120]
          3  45 [45 … 45]           90 [90 … 90]                 180 [180 … 180]
          4  60 [60 … 60]           120 [120 … 120]              240 [240 … 240]
          5  75 [75 … 75]           150 [150 … 150]              300 [300 … 300]
          6  90 [90 … 90]           180 [180 … 180]              360 [360 … 360]
          7  105 [105 … 105]        210 [210 … 210]              420 [420 … 420]
          8  120 [120 … 120]        240 [240 … 240]              480 [480 … 480]
        fixed: 5 attempts, window none
          1  1 [1 … 1]              60 [60 … 60]                 120 [120 … 120]
          2  30 [30 … 30]           60 [60 … 60]                 120 [120 … 120]
          3  30 [30 … 30]           60 [60 … 60]                 120 [120 … 120]
          4  30 [30 … 30]           60 [60 … 60]                 120 [120 … 120]
        standard-webhooks: 10 attempts, window none
          1  1 [0.8 … 1]            5 [4 … 6]                    10 [8 … 12]
          2  150 [120 … 180]        300 [240 … 360]              600 [480 … 720]
          3  900 [720 … 1080]       1800 [1440 … 2160]           3600 [2880 … 4320]
          4  3600 [2880 … 4320]     7200 [5760 … 8640]           14400 [11520 … 17280]
          5  9000 [7200 … 10800]    18000 [14400 … 21600]        36000 [28800 … 43200]
          6  18000 [14400 … 21600]  36000 [28800 … 43200]        72000 [57600 … 86400]
          7  25200 [20160 … 30240]  50400 [40320 … 60480]        100800 [80640 … 120960]
          8  36000 [28800 … 43200]  72000 [57600 … 86400]        144000 [115200 … 172800]
          9  43200 [34560 … 51840]  86400 [69120 … 103680]       172800 [138240 … 207360]
        ");
    }
}
