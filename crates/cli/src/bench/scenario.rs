//! The scenarios of the bench: each is a load with a kind of receiver.

use clap::ValueEnum;

/// A load on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Each message in a request of its own, over many connections
    Single,
    /// A hundred messages in each request
    Batch,
    /// Each message to ten endpoints
    FanOut,
    /// Single messages to a thousand endpoints in turn
    ManyEndpoints,
    /// Batches to receivers that speak TLS
    Https,
    /// One first attempt in twenty fails
    Failures,
    /// Single messages while many others wait behind destinations that are held
    Pending,
    /// Half the rate that single messages reach, to measure latency
    HalfLoad,
}

impl Scenario {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The producer and the receivers of the scenario.
    pub(super) fn shape(self) -> Shape {
        let single = Shape { endpoints: 16, connections: 256, batch: 0, fan: 1, tls: false, failing_percent: 0 };
        // 1,600 messages under way: somewhat more than there are slots.
        let batch = Shape { connections: 16, batch: 100, ..single };
        match self {
            Self::Single | Self::Pending | Self::HalfLoad => single,
            Self::Batch => batch,
            Self::FanOut => Shape { fan: 10, ..single },
            Self::ManyEndpoints => Shape { endpoints: 1_000, ..single },
            // Batches keep the producer's cost low: sending over TLS is measured here, not accepting.
            Self::Https => Shape { tls: true, ..batch },
            Self::Failures => Shape { failing_percent: 5, ..single },
        }
    }
}

/// Producer and receivers of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The number of endpoints that messages go to in turn.
    pub(super) endpoints: u16,
    /// Connections of the producer, and of the bare client.
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

impl Shape {
    /// The connections of the bare client, in every scenario.
    pub(super) const BARE_CONNECTIONS: u16 = 256;
}
