//! Fairness between tiers: the lowest tier has its share of the slots under any load of the others, a small load in it
//! does not wait long, and urgent messages do not wait behind a campaign.

use std::ops::Range;
use std::time::Duration;

use posthaste_core::Tier;

use super::scheduler::{CoreScheduler, FairScheduler, Plain, PlainRule};
use super::world::{FairnessLoad, FairnessReceiver, Got, LoadSource, play};
use super::{Part, in_millis, millis, seconds};
use posthaste_prove::{Figure, Options};

/// Few slots, so that ten minutes are not millions of attempts.
const SLOTS: u32 = 60;
const TENANTS: u64 = 4;
/// Destinations of a tenant in each tier.
const LANES: u64 = 32;
/// Messages waiting at each destination: more than its limit of attempts in flight.
const WAITING: u64 = 72;
const TEN_MINUTES: Range<Duration> = seconds(0)..seconds(600);

const SHARE_BAR_PERCENT: f64 = 5.0;
const OLDEST_BAR: Duration = seconds(60);
/// Slots become free every few milliseconds, and an urgent message gets one of the next.
const URGENT_BAR: Duration = millis(500);

pub(super) fn run(_: &Options) -> Part {
    let mut part = Part::default();
    // The time of an attempt in each tier, in milliseconds. Below a second no receiver counts as slow.
    for (name, takes) in [("lowest_tier", [250, 250, 250]), ("lowest_tier_when_quick", [900, 900, 90])] {
        let got = play(&saturating(takes), &mut CoreScheduler::new(SLOTS), TEN_MINUTES);
        part.figures.push(share(name, &got));
        let got = play(&little_of_the_lowest(takes), &mut CoreScheduler::new(SLOTS), TEN_MINUTES);
        part.figures.push(oldest(name, &got));
    }
    let got = campaign(&mut CoreScheduler::new(CAMPAIGN_SLOTS));
    let urgent = |name, got: &[Got]| Figure::at_most(name, in_millis(got[0].wait(0.99)), "ms", in_millis(URGENT_BAR));
    part.figures.push(urgent("urgent_wait_behind_campaigns_p99", &got));

    let by_tier = play(&saturating([250; 3]), &mut Plain::new(PlainRule::ByTier, SLOTS), TEN_MINUTES);
    part.controls.push(share("lowest_tier_by_tier", &by_tier));
    let by_tier = play(&little_of_the_lowest([250; 3]), &mut Plain::new(PlainRule::ByTier, SLOTS), TEN_MINUTES);
    part.controls.push(oldest("lowest_tier_by_tier", &by_tier));
    let fifo = campaign(&mut Plain::new(PlainRule::Fifo, CAMPAIGN_SLOTS));
    part.controls.push(urgent("urgent_wait_fifo_p99", &fifo));
    part
}

/// Tenants that can use all slots in every tier.
fn saturating(takes: [u64; 3]) -> Vec<LoadSource> {
    let of_tenant = |tenant: u64| {
        Tier::ALL.map(|tier| {
            let first = tenant * 1_000 + tier as u64 * 100;
            let load = FairnessLoad::Saturating { waiting: WAITING };
            let receiver = FairnessReceiver::well(millis(takes[tier.index()]));
            LoadSource { tier, ..LoadSource::new(tenant, first..first + LANES, load, receiver) }
        })
    };
    (1..=TENANTS).flat_map(of_tenant).collect()
}

/// The same, with a load in the lowest tier that 3 % of the slots can serve.
fn little_of_the_lowest(takes: [u64; 3]) -> Vec<LoadSource> {
    let mut sources = saturating(takes);
    for source in sources.iter_mut().filter(|source| source.tier == Tier::Engagement) {
        let per_second = 0.03 * f64::from(SLOTS) / source.receiver.takes.as_secs_f64() / TENANTS as f64;
        source.load = FairnessLoad::Random { per_second, from: Duration::ZERO };
    }
    sources
}

/// The slot-time of each tier, in milliseconds.
fn slot_ms(got: &[Got]) -> [u64; 3] {
    let of = |tier: usize| got.iter().skip(tier).step_by(Tier::ALL.len()).map(|got| got.slot_ms).sum();
    [of(0), of(1), of(2)]
}

fn share(name: &str, got: &[Got]) -> Figure {
    let all = TEN_MINUTES.end.as_secs_f64() * 1e3 * f64::from(SLOTS);
    let percent = slot_ms(got).map(|held| 100.0 * held as f64 / all);
    eprintln!("fairness: {name}: {:.2}, {:.2} and {:.2} % of the slots", percent[0], percent[1], percent[2]);
    Figure::at_least(&format!("{name}_share"), percent[2], "% of slots", SHARE_BAR_PERCENT)
}

/// The longest wait of a message in the lowest tier.
fn oldest(name: &str, got: &[Got]) -> Figure {
    let oldest = got.iter().skip(2).step_by(Tier::ALL.len()).map(Got::longest_wait).max().unwrap_or(Duration::MAX);
    Figure::at_most(&format!("{name}_oldest"), oldest.as_secs_f64(), "s", OLDEST_BAR.as_secs_f64())
}

const CAMPAIGN_SLOTS: u32 = 25;
const CAMPAIGNS: u64 = 4;
const CAMPAIGN_ENDPOINTS: u64 = 5_000;

/// One tenant's urgent messages need two fifths of the slots; four others have sent campaigns to so many endpoints that
/// the last messages wait for minutes. The measurement begins when the campaigns have aged.
fn campaign(scheduler: &mut dyn FairScheduler) -> Vec<Got> {
    let takes = FairnessReceiver::well(millis(250));
    let load = FairnessLoad::Random { per_second: 40.0, from: Duration::ZERO };
    let urgent = LoadSource { tier: Tier::Transactional, ..LoadSource::new(1, 1..1 + LANES, load, takes) };
    let load = FairnessLoad::AtOnce { messages: CAMPAIGN_ENDPOINTS, from: seconds(1), attempts: 0 };
    let of_tenant = |tenant: u64| {
        let lanes = tenant * CAMPAIGN_ENDPOINTS..(tenant + 1) * CAMPAIGN_ENDPOINTS;
        LoadSource { tier: Tier::Engagement, ..LoadSource::new(tenant, lanes, load, takes) }
    };
    let sources: Vec<LoadSource> = std::iter::once(urgent).chain((2..2 + CAMPAIGNS).map(of_tenant)).collect();
    let got = play(&sources, scheduler, seconds(180)..seconds(240));
    let campaigns: u64 = got[1..].iter().map(|got| got.slot_ms).sum();
    let slots = |held: u64| held as f64 / 60e3;
    eprintln!(
        "fairness: urgent beside campaigns: {:.1} and {:.1} of {CAMPAIGN_SLOTS} slots, wait p50 {:?}, p99 {:?}",
        slots(got[0].slot_ms),
        slots(campaigns),
        got[0].wait(0.5),
        got[0].wait(0.99),
    );
    got
}
