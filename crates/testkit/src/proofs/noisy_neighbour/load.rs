//! Producers with a fixed rate that does not depend on the server, and the latencies of their messages.

use std::io;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::server::{NoisySetup, TARPITS};
use crate::fixtures::caller::ApiConnection;
use crate::fixtures::statistics::quantile;

/// The number of quiet tenants, and the rate of each.
pub(super) const TENANTS: usize = 100;
const QUIET_PER_SECOND: u32 = 10;
/// The rate of the noisy tenant, and the number of its connections.
pub(super) const NOISE_PER_SECOND: u32 = 200;
const NOISY_LINES: u32 = 10;
pub(super) const NOISY: &str = "noisy";

/// Whether there is a noisy tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noise {
    Off,
    On,
    /// There is one, and all quiet producers use the same tenant, so that the server cannot distinguish them.
    Unknown,
}

impl Noise {
    /// The tenant of a quiet producer.
    pub(super) fn tenant(self, number: usize) -> String {
        if self == Self::Unknown { NOISY.to_owned() } else { format!("quiet-{number}") }
    }
}

/// The event type of a quiet producer's messages, to which only its endpoint subscribes.
pub(super) fn quiet_event(number: usize) -> String {
    format!("quiet.{number}")
}

/// The event type of the noisy tenant's messages for this tarpit.
pub(super) fn noisy_event(number: usize) -> String {
    format!("tar.{number}")
}

/// How many messages of quiet producers and of the noisy one were accepted.
pub(super) struct NoisySent {
    pub(super) accepted: usize,
    pub(super) noise: usize,
}

/// Runs all producers for this long.
pub(super) async fn run(field: &NoisySetup, length: Duration, noise: Noise) -> io::Result<NoisySent> {
    let (mut quiet, mut noisy) = (JoinSet::new(), JoinSet::new());
    let begins = Instant::now() + Duration::from_millis(100);
    for number in 0..TENANTS {
        // Spreads tenants over the time between two messages of one of them.
        let pause = Duration::from_secs(1) / QUIET_PER_SECOND;
        let offset = pause * u32::try_from(number).unwrap_or(0) / u32::try_from(TENANTS).unwrap_or(1);
        let pace = Pace { first: begins + offset, pause, until: begins + length };
        let producer = Producer {
            line: ApiConnection::open(field.address()).await?,
            tenant: noise.tenant(number),
            events: vec![quiet_event(number)],
            epoch: field.receiver.responder().epoch,
        };
        quiet.spawn(producer.run(pace));
    }
    for number in 0..NOISY_LINES {
        if noise == Noise::Off {
            break;
        }
        let pause = Duration::from_secs(1) * NOISY_LINES / NOISE_PER_SECOND;
        let pace = Pace { first: begins + pause * number / NOISY_LINES, pause, until: begins + length };
        let producer = Producer {
            line: ApiConnection::open(field.address()).await?,
            tenant: NOISY.to_owned(),
            events: (0..TARPITS).map(noisy_event).collect(),
            epoch: field.receiver.responder().epoch,
        };
        noisy.spawn(producer.run(pace));
    }
    Ok(NoisySent { accepted: total(quiet).await?, noise: total(noisy).await? })
}

async fn total(mut producers: JoinSet<io::Result<usize>>) -> io::Result<usize> {
    let mut sum = 0;
    while let Some(ended) = producers.join_next().await {
        sum += ended.map_err(io::Error::other)??;
    }
    Ok(sum)
}

struct Pace {
    first: Instant,
    pause: Duration,
    until: Instant,
}

struct Producer {
    line: ApiConnection,
    tenant: String,
    /// The event types of its messages, in turn.
    events: Vec<String>,
    epoch: Instant,
}

impl Producer {
    /// Sends messages at the given rate. The payload has the time at which a message should be sent: if the server
    /// makes the producer wait, that counts for the latency of the next messages.
    async fn run(mut self, pace: Pace) -> io::Result<usize> {
        let (mut next, mut accepted) = (pace.first, 0);
        while next < pace.until {
            tokio::time::sleep_until(next).await;
            let at = next.saturating_duration_since(self.epoch).as_micros();
            let event = &self.events[accepted % self.events.len()];
            let body = format!("{{\"event_type\":\"{event}\",\"payload\":{{\"at\":{at}}}}}");
            let fields = [("posthaste-tenant", self.tenant.as_str())];
            let answer = self.line.call(Method::POST, "/v1/messages", &fields, body).await?;
            answer.expect(StatusCode::ACCEPTED)?;
            accepted += 1;
            next += pace.pause;
        }
        Ok(accepted)
    }
}

/// The latencies of messages, in milliseconds, ascending.
pub(super) struct Latencies(Vec<f64>);

impl Latencies {
    pub(super) fn of(mut milliseconds: Vec<f64>) -> Self {
        milliseconds.sort_by(f64::total_cmp);
        Self(milliseconds)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// A quantile of the latencies.
    pub(super) fn at(&self, share: f64) -> f64 {
        quantile(&self.0, share)
    }
}
