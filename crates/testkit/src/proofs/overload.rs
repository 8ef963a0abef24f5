//! The proof `overload`: three groups of producers hand in ten times more than can be delivered: one as fast as it is
//! answered, one far above its tenant's quota, and one with payloads near the size limit.
//!
//! The server may refuse messages, but with a `Retry-After`; it may keep accepted messages on disk, but must not lose
//! them. Its memory is measured from outside.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tokio::time::Instant;

use crate::fixtures::{
    ApiConnection, Launch, Posthaste, ProducerLoad, Producers, PromiseLedger, binary, folder, rss, runtime,
};
use crate::prove::{CannotRun, Figure, Findings, Options, count};
use crate::receivers::{Counter, Manners};

/// How long the overload lasts.
const LASTS: Duration = Duration::from_secs(60);
const LASTS_QUICK: Duration = Duration::from_secs(8);
/// How many times more messages must be offered than are delivered meanwhile.
const OVERLOAD: f64 = 10.0;
const RSS_MIB_MAX: f64 = 128.0;
/// How much more memory the last quarter of the run may use than the third, as a share.
const GROWTH_MAX: f64 = 0.05;
/// The interval between two measurements of memory.
const LOOK: Duration = Duration::from_millis(250);
/// Attempts in flight at once to an endpoint, which limits its rate of deliveries.
const IN_FLIGHT: u32 = 4;
const TAKES: std::ops::Range<Duration> = Duration::from_millis(20)..Duration::from_millis(40);
/// The same after the overload.
const IN_FLIGHT_AFTER: u32 = 128;
/// Messages a second that the tenant with a quota may send.
const QUOTA: u32 = 100;
/// A quota that no producer here reaches.
const NO_QUOTA: u32 = 1_000_000;
/// The tenants. Each group has its own, so that it has an endpoint, and with it a queue, of its own.
const GREEDY: &str = "greedy";
const WITH_QUOTA: &str = "with-quota";
const LARGE: &str = "large";
/// The longest wait for acknowledgements of the messages under way.
const PATIENCE: Duration = Duration::from_secs(60);
/// If nothing has arrived for this long, the messages that are missing are lost.
const STANDS_STILL: Duration = Duration::from_secs(15);

pub fn run(options: &Options) -> Findings {
    let lasts = if options.quick { LASTS_QUICK } else { LASTS };
    runtime()?.block_on(prove(&binary()?, lasts, options))
}

async fn prove(binary: &Path, lasts: Duration, options: &Options) -> Findings {
    let folder = folder()?;
    let launch = Launch::new(binary, folder.path());
    let server = launch.start()?;
    let counter = Counter::start(Manners { takes: TAKES, fails_one_in: None }).await?;
    let endpoints = prepare(&server, &counter).await?;
    let crowds = crowds().map(|(name, load)| (name, Producers::start(&load, server.address)));
    let before = counter.seens().messages();
    let memory = Memory::of(&server, lasts).await?;
    let delivered = counter.seens().messages() - before;
    let ledgers = crowds.each_ref().map(|(_, crowd)| Arc::clone(crowd.ledger()));
    let offered: u64 = ledgers.iter().map(|ledger| offered(ledger)).sum();
    for (name, crowd) in &crowds {
        eprintln!("{name}: {} acknowledged, {:?}", crowd.ledger().count(), crowd.ledger().refusals());
    }
    eprintln!("{offered} handed in, {delivered} delivered in {lasts:?}; {memory}");

    // The overload is over: the receiver is fast now, more attempts are allowed, and everything accepted must arrive.
    widen(&server, &endpoints).await?;
    counter.behave(Manners { takes: Duration::ZERO..Duration::from_millis(1), fails_one_in: None });
    let mut unpromised = 0;
    for (_, crowd) in crowds {
        unpromised += crowd.stop(PATIENCE).await;
    }
    let promised: BTreeSet<String> = ledgers.iter().flat_map(|ledger| ledger.promised()).collect();
    let lost = counter.waits_for_all(&promised, STANDS_STILL).await;
    let seens = counter.seens();
    let surprises: BTreeSet<String> = ledgers.iter().flat_map(|ledger| ledger.surprises()).collect();
    surprises.iter().for_each(|surprise| eprintln!("unexpected answer: {surprise}"));
    let sum = |of: fn(&PromiseLedger) -> u64| ledgers.iter().map(|ledger| of(ledger)).sum::<u64>() as f64;
    let refused = sum(|ledger| ledger.refusals().by_quota + ledger.refusals().by_server);
    Ok(vec![
        Figure::at_least("offered_over_delivered", offered as f64 / count(delivered.max(1)), "times", OVERLOAD),
        Figure::at_most("rss_peak", memory.peak(), "MiB", RSS_MIB_MAX),
        // The quick form has a wider bar: in its few seconds caches are still filling.
        Figure::at_most("rss_growth_in_the_last_quarter", memory.growth(), "share", GROWTH_MAX).by_the_clock(options),
        Figure::at_least("refused", refused, "answers", 1.0),
        Figure::at_most("refused_without_retry_after", sum(|one| one.refusals().without_retry_after), "answers", 0.0),
        Figure::at_most("unanswered", sum(|one| one.refusals().unanswered), "calls", 0.0),
        Figure::at_most("unexpected_answers", count(surprises.len() + unpromised), "answers", 0.0),
        Figure::at_most("lost", count(lost), "messages", 0.0),
        Figure::at_most("duplicates", count(seens.duplicates()), "arrivals", 0.0),
        Figure::at_least("control_lost", count(seens.without_one().lost(&promised)), "messages", 1.0),
    ])
}

/// The groups of producers, by tenant.
fn crowds() -> [(&'static str, ProducerLoad); 3] {
    let crowd = |tenant: &str, producers| ProducerLoad {
        patience: Duration::from_millis(10),
        fields: vec![("posthaste-tenant", tenant.to_owned())],
        ..ProducerLoad::of(producers)
    };
    let pause = Duration::from_secs(2)..Duration::from_secs(4);
    let large = ProducerLoad { payload_bytes: 100_000..990_000, pause, ..crowd(LARGE, 48) };
    [(GREEDY, crowd(GREEDY, 600)), (WITH_QUOTA, crowd(WITH_QUOTA, 32)), (LARGE, large)]
}

/// Creates the tenants, each with an endpoint.
async fn prepare(server: &Posthaste, counter: &Counter) -> Result<Vec<(&'static str, String)>, CannotRun> {
    let mut line = ApiConnection::open(server.address).await?;
    let mut endpoints = Vec::new();
    let endpoint = format!("{{\"url\":\"{}\",\"max_in_flight\":{IN_FLIGHT}}}", counter.url());
    for (tenant, _) in crowds() {
        let quota = if tenant == WITH_QUOTA { QUOTA } else { NO_QUOTA };
        let settings = format!("{{\"uid\":\"{tenant}\",\"quota\":{{\"per_second\":{quota},\"burst\":{quota}}}}}");
        line.call(Method::POST, "/v1/tenants", &[], settings).await?.expect(StatusCode::CREATED)?;
        let head = [("posthaste-tenant", tenant)];
        let made = line.call(Method::POST, "/v1/endpoints", &head, endpoint.clone()).await?;
        endpoints.push((tenant, made.expect(StatusCode::CREATED)?.id()?));
    }
    Ok(endpoints)
}

/// Allows the endpoints many attempts at once.
async fn widen(server: &Posthaste, endpoints: &[(&str, String)]) -> Result<(), CannotRun> {
    let mut line = ApiConnection::open(server.address).await?;
    for (tenant, id) in endpoints {
        let (path, head) = (format!("/v1/endpoints/{id}"), [("posthaste-tenant", *tenant)]);
        let changed =
            line.call(Method::PATCH, &path, &head, format!("{{\"max_in_flight\":{IN_FLIGHT_AFTER}}}")).await?;
        changed.expect(StatusCode::OK)?;
    }
    Ok(())
}

fn offered(ledger: &PromiseLedger) -> u64 {
    let refusals = ledger.refusals();
    ledger.count() as u64 + refusals.by_quota + refusals.by_server + refusals.unanswered
}

/// Measurements of a process's memory, in MiB.
struct Memory(Vec<f64>);

impl Memory {
    async fn of(server: &Posthaste, lasts: Duration) -> Result<Self, CannotRun> {
        let began = Instant::now();
        let mut seen = Vec::new();
        while began.elapsed() < lasts {
            tokio::time::sleep(LOOK).await;
            seen.push(rss::of(server.pid())? as f64 / 1_024.0);
        }
        Ok(Self(seen))
    }

    fn peak(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// How much more memory the last quarter of the measurements has than the third, as a share.
    fn growth(&self) -> f64 {
        self.quarter(3) / self.quarter(2) - 1.0
    }

    fn quarter(&self, number: usize) -> f64 {
        let all = self.0.len();
        let some = &self.0[all * number / 4..all * (number + 1) / 4];
        some.iter().sum::<f64>() / count(some.len())
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quarters = [0, 1, 2, 3].map(|number| format!("{:.0}", self.quarter(number))).join(", ");
        write!(f, "{:.0} MiB at most, by quarters {quarters}", self.peak())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_compares_only_the_last_two_quarters() {
        let flat = Memory([vec![10.0; 4], vec![100.0; 12]].concat());
        assert!(flat.growth().abs() < 1e-9 && (flat.peak() - 100.0).abs() < 1e-9);
        let grows = Memory((0..100).map(f64::from).collect());
        assert!(grows.growth() > GROWTH_MAX);
    }
}
