//! The scenarios of the bench: each is a load with a kind of receiver.

use serde::Serialize;

/// A load on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BenchScenario {
    Single,
    Batch,
    FanOut,
    ManyEndpoints,
    Https,
    Failures,
    Pending,
    HalfLoad,
}

impl BenchScenario {
    /// Every scenario, with its name in arguments and reports, and its description.
    pub const ALL: [(Self, &str, &str); 8] = [
        (Self::Single, "single", "Each message in a request of its own, over many connections"),
        (Self::Batch, "batch", "A hundred messages in each request"),
        (Self::FanOut, "fan-out", "Each message to ten endpoints"),
        (Self::ManyEndpoints, "many-endpoints", "Single messages to a thousand endpoints in turn"),
        (Self::Https, "https", "Batches to receivers that speak TLS"),
        (Self::Failures, "failures", "One first attempt in twenty fails"),
        (Self::Pending, "pending", "Single messages while many others wait behind destinations that are held"),
        (Self::HalfLoad, "half-load", "Half the rate that single messages reach, to measure latency"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(scenario, ..)| *scenario == self).map_or("", |(_, name, _)| name)
    }

    /// The producer and the receivers of the scenario.
    pub(super) fn shape(self) -> ScenarioShape {
        let single =
            ScenarioShape { endpoints: 16, connections: 256, batch: 0, fan: 1, tls: false, failing_percent: 0 };
        // 1,600 messages under way: somewhat more than there are slots.
        let batch = ScenarioShape { connections: 16, batch: 100, ..single };
        match self {
            Self::Single | Self::Pending | Self::HalfLoad => single,
            Self::Batch => batch,
            Self::FanOut => ScenarioShape { fan: 10, ..single },
            Self::ManyEndpoints => ScenarioShape { endpoints: 1_000, ..single },
            // Batches keep the producer's cost low: sending over TLS is measured here, not accepting.
            Self::Https => ScenarioShape { tls: true, ..batch },
            Self::Failures => ScenarioShape { failing_percent: 5, ..single },
        }
    }
}

/// Producer and receivers of a scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScenarioShape {
    /// The number of endpoints that messages go to in turn.
    pub(super) endpoints: u16,
    /// Connections of the producer.
    pub(super) connections: u16,
    /// Messages in each request; 0 sends each message in a request of its own.
    pub(super) batch: u64,
    /// The number of endpoints of each message.
    pub(super) fan: usize,
    /// Whether receivers use TLS.
    pub(super) tls: bool,
    /// The share of first attempts that receivers refuse, in percent.
    pub(super) failing_percent: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_have_the_names_of_the_arguments() {
        for (scenario, name, _) in BenchScenario::ALL {
            assert_eq!(serde_json::to_value(scenario).expect("a name"), name);
        }
    }
}
