//! What is measured: each scenario is a load, a kind of receiver, and what they are compared with.

use clap::ValueEnum;

/// A load on the server, and what it is good for.
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
    /// Half of what single messages reach: how long they are on their way
    HalfLoad,
}

impl Scenario {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What it takes to play it.
    pub(super) fn shape(self) -> Shape {
        let single = Shape { endpoints: 16, connections: 256, batch: 0, fan: 1, tls: false, failing_percent: 0 };
        // Sixteen hundred messages under way: as many as there are slots, and some to spare.
        let batch = Shape { connections: 16, batch: 100, ..single };
        match self {
            Self::Single | Self::Pending | Self::HalfLoad => single,
            Self::Batch => batch,
            Self::FanOut => Shape { fan: 10, ..single },
            Self::ManyEndpoints => Shape { endpoints: 1_000, ..single },
            // It is the way out that is measured, not the way in.
            Self::Https => Shape { tls: true, ..batch },
            Self::Failures => Shape { failing_percent: 5, ..single },
        }
    }
}

/// Producer and receivers of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Endpoints the messages go to in turn.
    pub(super) endpoints: u16,
    /// Connections of the producer, and of the bare client.
    pub(super) connections: u16,
    /// Messages of each request; 0 sends each on its own.
    pub(super) batch: u64,
    /// Endpoints of each message.
    pub(super) fan: usize,
    /// Whether receivers speak TLS.
    pub(super) tls: bool,
    /// First attempts that receivers refuse, of a hundred.
    pub(super) failing_percent: u64,
}

impl Shape {
    /// The bare client has as many connections, whatever the producer needs to be as fast.
    pub(super) const BARE_CONNECTIONS: u16 = 256;
}
