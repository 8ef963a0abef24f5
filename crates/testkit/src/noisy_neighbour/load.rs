//! Producers that keep their pace whatever the server does, and what their messages came to.

use std::io;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::server::{Field, TARPITS};
use crate::caller::Line;
use crate::statistics::quantile;

/// Quiet tenants, each of which sends so many a second.
pub(super) const TENANTS: usize = 100;
const QUIET_PER_SECOND: u32 = 10;
/// What the noisy tenant sends, over so many connections.
pub(super) const NOISE_PER_SECOND: u32 = 200;
const NOISY_LINES: u32 = 10;
pub(super) const NOISY: &str = "noisy";

/// Whether somebody makes noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noise {
    Off,
    On,
    /// And the server cannot tell who makes it: everything is one tenant's.
    Unknown,
}

impl Noise {
    /// The tenant that a quiet producer is.
    pub(super) fn tenant(self, number: usize) -> String {
        if self == Self::Unknown { NOISY.to_owned() } else { format!("quiet-{number}") }
    }
}

/// What a quiet producer's messages are about, which its endpoint alone wants.
pub(super) fn quiet_event(number: usize) -> String {
    format!("quiet.{number}")
}

/// What the noisy tenant's messages for this tarpit are about.
pub(super) fn noisy_event(number: usize) -> String {
    format!("tar.{number}")
}

/// What was accepted.
pub(super) struct Sent {
    pub(super) accepted: usize,
    pub(super) noise: usize,
}

/// Sends for so long.
pub(super) async fn run(field: &Field, length: Duration, noise: Noise) -> io::Result<Sent> {
    let (mut quiet, mut noisy) = (JoinSet::new(), JoinSet::new());
    let begins = Instant::now() + Duration::from_millis(100);
    for number in 0..TENANTS {
        // Spread over the pause between two messages of one tenant.
        let pause = Duration::from_secs(1) / QUIET_PER_SECOND;
        let offset = pause * u32::try_from(number).unwrap_or(0) / u32::try_from(TENANTS).unwrap_or(1);
        let pace = Pace { first: begins + offset, pause, until: begins + length };
        let producer = Producer {
            line: Line::open(field.address()).await?,
            tenant: noise.tenant(number),
            events: vec![quiet_event(number)],
            epoch: field.receiver.epoch(),
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
            line: Line::open(field.address()).await?,
            tenant: NOISY.to_owned(),
            events: (0..TARPITS).map(noisy_event).collect(),
            epoch: field.receiver.epoch(),
        };
        noisy.spawn(producer.run(pace));
    }
    Ok(Sent { accepted: total(quiet).await?, noise: total(noisy).await? })
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
    line: Line,
    tenant: String,
    /// In turn.
    events: Vec<String>,
    epoch: Instant,
}

impl Producer {
    /// A message is as old as the moment it should have been sent: a server that keeps its producer waiting
    /// does not make the next message younger.
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

/// How long messages were on their way, in milliseconds.
pub(super) struct Latencies(Vec<f64>);

impl Latencies {
    pub(super) fn of(mut milliseconds: Vec<f64>) -> Self {
        milliseconds.sort_by(f64::total_cmp);
        Self(milliseconds)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// What so large a share did not exceed.
    pub(super) fn at(&self, share: f64) -> f64 {
        quantile(&self.0, share)
    }
}
