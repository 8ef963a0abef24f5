//! Shares of slot-time: equal tenants with unequal receivers, and weights.
//!
//! Every tenant has enough destinations with enough messages that nothing but its turn limits it.

use std::ops::Range;
use std::time::Duration;

use posthaste_core::tier::Tier;

use super::plain::{Plain, Rule};
use super::scheduler::Posthaste;
use super::world::{BEGIN, Got, Load, Receiver, Source, play};
use super::{Part, SLOTS, jain, millis, seconds};
use crate::prove::{Figure, Options};

const TENANTS: u64 = 10;
/// Destinations of a tenant: at the four attempts each begins with, they want half of the slots.
const LANES: u64 = 32;
/// More than an endpoint may have under way at once.
const WAITING: u64 = 72;

const JAIN_BAR: f64 = 0.99;
const ERROR_BAR_PERCENT: f64 = 5.0;
/// Below this nobody had to wait for a slot, and shares would say nothing. Slow destinations may have
/// nine tenths of the slots.
const IN_USE_BAR: f64 = 0.9;

pub(super) fn run(options: &Options) -> Part {
    // Before anything is known of a receiver it is thought quick: who is not has its first attempts
    // beyond its share, and makes up for them before shares are even.
    let (warm_up, end) = if options.quick { (40, 70) } else { (60, 240) };
    let looked_at = seconds(warm_up)..seconds(end);
    let any = unequal(millis(5)..seconds(5));
    let slow = unequal(millis(1_500)..seconds(15));
    let mut figures = Vec::new();
    let plays = [("equal_tenants", &any, looked_at.clone()), ("equal_slow_tenants", &slow, seconds(300)..seconds(900))];
    for (name, sources, looked_at) in plays {
        let got = play(sources, &mut Posthaste::new(SLOTS), looked_at.clone());
        tell(name, &got);
        figures.push(jain_of(name, &got));
        figures.push(Figure::at_least(&format!("{name}_slots_in_use"), in_use(&got, &looked_at), "of 1", IN_USE_BAR));
    }
    // Two of each weight, so that no share is above the half that one tenant may hold.
    let pairs = [1, 1, 2, 2, 4, 4];
    let shares = weighted(&pairs, looked_at.clone());
    figures.push(error("weights_1_2_4", &shares, &pairs.map(|weight| f64::from(weight) / 14.0)));
    // One of each: the heaviest is held to its half, and the others share the rest by weight.
    let shares = weighted(&[1, 2, 4], looked_at.clone());
    figures.push(error("weights_beyond_the_half", &shares, &[1.0 / 6.0, 1.0 / 3.0, 0.5]));

    let by_count = play(&any, &mut Plain::new(Rule::ByCount, SLOTS), looked_at);
    Part { figures, controls: vec![jain_of("equal_tenants_by_count", &by_count)] }
}

/// Tenants whose receivers take from so long to so long, in even steps of a factor.
fn unequal(takes: Range<Duration>) -> Vec<Source> {
    let factor = takes.end.as_secs_f64() / takes.start.as_secs_f64();
    let part = |tenant: u64| (tenant - 1) as f64 / (TENANTS - 1) as f64;
    (1..=TENANTS).map(|tenant| source(tenant, takes.start.mul_f64(factor.powf(part(tenant))))).collect()
}

fn source(tenant: u64, takes: Duration) -> Source {
    Source {
        tenant,
        tier: Tier::Promotional,
        lanes: tenant * LANES..(tenant + 1) * LANES,
        load: Load::Saturating { waiting: WAITING },
        receiver: Receiver::well(takes),
    }
}

/// The share of each tenant, by its weight; every other one has receivers that take ten times as
/// long.
fn weighted(weights: &[u32], looked_at: Range<Duration>) -> Vec<f64> {
    let mut scheduler = Posthaste::new(SLOTS);
    let mut sources = Vec::new();
    for (tenant, weight) in (1..).zip(weights) {
        scheduler = scheduler.weight(BEGIN, tenant, weight * 1_000);
        sources.push(source(tenant, millis(if tenant % 2 == 0 { 500 } else { 50 })));
    }
    let got = play(&sources, &mut scheduler, looked_at);
    tell("weights", &got);
    shares(&got)
}

fn shares(got: &[Got]) -> Vec<f64> {
    let all: u64 = got.iter().map(|got| got.slot_ms).sum();
    got.iter().map(|got| got.slot_ms as f64 / all as f64).collect()
}

fn tell(name: &str, got: &[Got]) {
    let shares: Vec<String> = shares(got).iter().map(|share| format!("{:.2}", 100.0 * share)).collect();
    let sent: u64 = got.iter().map(|got| got.sent).sum();
    eprintln!("fairness: {name}: {sent} attempts, % of slot-time: {}", shares.join(" "));
}

fn jain_of(name: &str, got: &[Got]) -> Figure {
    let index = jain(got.iter().map(|got| got.slot_ms));
    Figure::at_least(&format!("{name}_jain"), index, "of 1", JAIN_BAR)
}

fn in_use(got: &[Got], looked_at: &Range<Duration>) -> f64 {
    let all: u64 = got.iter().map(|got| got.slot_ms).sum();
    all as f64 / 1e3 / (looked_at.end - looked_at.start).as_secs_f64() / f64::from(SLOTS)
}

/// The largest deviation from what was wanted, as a part of it.
fn error(name: &str, shares: &[f64], wanted: &[f64]) -> Figure {
    let worst = shares.iter().zip(wanted).map(|(share, wanted)| (share / wanted - 1.0).abs()).fold(0.0, f64::max);
    Figure::at_most(&format!("{name}_error"), 100.0 * worst, "%", ERROR_BAR_PERCENT)
}
