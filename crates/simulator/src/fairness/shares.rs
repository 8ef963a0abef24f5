//! Shares of slot-time: of equal tenants with unequal receivers, and by weights.
//!
//! Every tenant has so many destinations with so many messages that only its share of the slots limits it.

use std::ops::Range;
use std::time::Duration;

use super::scheduler::{CoreScheduler, Plain, PlainRule};
use super::world::{BEGIN, FairnessLoad, FairnessReceiver, Got, LoadSource, play};
use super::{Part, SLOTS, jain_of, millis, seconds};
use posthaste_prove::{Figure, Options};

const TENANTS: u64 = 10;
/// Destinations of a tenant: with the four attempts in flight that each begins with, they can use half of the slots.
const LANES: u64 = 32;
/// Messages waiting at each destination: more than its limit of attempts in flight.
const WAITING: u64 = 72;

const JAIN_BAR: f64 = 0.99;
const ERROR_BAR_PERCENT: f64 = 5.0;
/// The least use of slots: below it slots are not scarce, and shares mean nothing. Slow destinations may have nine
/// tenths of the slots.
const IN_USE_BAR: f64 = 0.9;

pub(super) fn run(options: &Options) -> Part {
    // An unknown receiver is taken to be fast, so a tenant with slow receivers first gets more than its share, and less
    // afterwards. The measurement begins when that has evened out.
    let (warm_up, end) = if options.quick { (40, 70) } else { (60, 240) };
    let measured = seconds(warm_up)..seconds(end);
    let any = unequal(millis(5)..seconds(5));
    let slow = unequal(millis(1_500)..seconds(15));
    let mut figures = Vec::new();
    let plays = [("equal_tenants", &any, measured.clone()), ("equal_slow_tenants", &slow, seconds(300)..seconds(900))];
    for (name, sources, measured) in plays {
        let got = play(sources, &mut CoreScheduler::new(SLOTS), measured.clone());
        print(name, &got);
        figures.push(jain_of(name, &got, JAIN_BAR));
        figures.push(Figure::at_least(&format!("{name}_slots_in_use"), in_use(&got, &measured), "of 1", IN_USE_BAR));
    }
    // Two tenants of each weight, so that no share is above one half, the most that one tenant may hold.
    let pairs = [1, 1, 2, 2, 4, 4];
    let shares = weighted(&pairs, measured.clone());
    figures.push(error("weights_1_2_4", &shares, &pairs.map(|weight| f64::from(weight) / 14.0)));
    // One tenant of each weight: the heaviest is limited to one half, and the others share the rest by weight.
    let shares = weighted(&[1, 2, 4], measured.clone());
    figures.push(error("weights_beyond_the_half", &shares, &[1.0 / 6.0, 1.0 / 3.0, 0.5]));

    let by_count = play(&any, &mut Plain::new(PlainRule::ByCount, SLOTS), measured);
    Part { figures, controls: vec![jain_of("equal_tenants_by_count", &by_count, JAIN_BAR)] }
}

/// Tenants whose receivers' times are a geometric progression over this range.
fn unequal(takes: Range<Duration>) -> Vec<LoadSource> {
    let factor = takes.end.as_secs_f64() / takes.start.as_secs_f64();
    let part = |tenant: u64| (tenant - 1) as f64 / (TENANTS - 1) as f64;
    (1..=TENANTS).map(|tenant| source(tenant, takes.start.mul_f64(factor.powf(part(tenant))))).collect()
}

fn source(tenant: u64, takes: Duration) -> LoadSource {
    let load = FairnessLoad::Saturating { waiting: WAITING };
    LoadSource::new(tenant, tenant * LANES..(tenant + 1) * LANES, load, FairnessReceiver::well(takes))
}

/// The measured share of each tenant. The receivers of every other tenant take ten times as long.
fn weighted(weights: &[u32], measured: Range<Duration>) -> Vec<f64> {
    let mut scheduler = CoreScheduler::new(SLOTS);
    let mut sources = Vec::new();
    for (tenant, weight) in (1..).zip(weights) {
        scheduler = scheduler.weight(BEGIN, tenant, weight * 1_000);
        sources.push(source(tenant, millis(if tenant % 2 == 0 { 500 } else { 50 })));
    }
    let got = play(&sources, &mut scheduler, measured);
    print("weights", &got);
    shares(&got)
}

fn shares(got: &[Got]) -> Vec<f64> {
    let all: u64 = got.iter().map(|got| got.slot_ms).sum();
    got.iter().map(|got| got.slot_ms as f64 / all as f64).collect()
}

fn print(name: &str, got: &[Got]) {
    let shares: Vec<String> = shares(got).iter().map(|share| format!("{:.2}", 100.0 * share)).collect();
    let sent: u64 = got.iter().map(|got| got.sent).sum();
    eprintln!("fairness: {name}: {sent} attempts, % of slot-time: {}", shares.join(" "));
}

fn in_use(got: &[Got], measured: &Range<Duration>) -> f64 {
    let all: u64 = got.iter().map(|got| got.slot_ms).sum();
    all as f64 / 1e3 / (measured.end - measured.start).as_secs_f64() / f64::from(SLOTS)
}

/// The largest relative deviation from the expected shares.
fn error(name: &str, shares: &[f64], wanted: &[f64]) -> Figure {
    let worst = shares.iter().zip(wanted).map(|(share, wanted)| (share / wanted - 1.0).abs()).fold(0.0, f64::max);
    Figure::at_most(&format!("{name}_error"), 100.0 * worst, "%", ERROR_BAR_PERCENT)
}
