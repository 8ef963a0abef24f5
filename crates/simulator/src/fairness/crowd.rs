//! Ten thousand small tenants beside a heavy one.

use std::time::Duration;

use posthaste_core::Tier;

use super::plain::{Plain, PlainRule};
use super::scheduler::{CoreScheduler, FairScheduler};
use super::world::{FairnessLoad, FairnessReceiver, Got, LoadSource, play};
use super::{Part, SLOTS, in_millis, jain, millis, seconds};
use posthaste_prove::{Figure, Options};

const SMALL: u64 = 10_000;
const SMALL_TAKES: Duration = millis(50);
/// When the small tenants begin. Until then the heavy one is alone, and holds as many slots as it can use.
const COME: Duration = seconds(30);

const JAIN_BAR: f64 = 0.95;

pub(super) fn run(_: &Options) -> Part {
    let mut part = Part::default();
    for (name, takes) in [("small_beside_quick", millis(50)), ("small_beside_slow", seconds(10))] {
        part.figures.extend(judge(name, takes, &mut CoreScheduler::new(SLOTS)));
    }
    // Each small tenant has its next message as soon as the last is delivered.
    let again = LoadSource { load: FairnessLoad::Saturating { waiting: 1 }, ..small(0) };
    let sources: Vec<LoadSource> =
        beside(millis(50), |tenant| LoadSource { lanes: lane(tenant), tenant, ..again.clone() });
    let got = play(&sources, &mut CoreScheduler::new(SLOTS), COME..COME + seconds(20));
    part.figures.push(jain_of("small_again", &got));

    part.controls.extend(judge("small_fifo", seconds(10), &mut Plain::new(PlainRule::Fifo, SLOTS)));
    part
}

/// The bar for the longest wait of a small tenant. While one of them waits, the heavy tenant, which has had more
/// slot-time, gets no slot: its slots become free within its longest attempt, and from then on every slot serves one
/// small tenant after the other.
fn bound(heavy_takes: Duration) -> Duration {
    let rounds = u32::try_from(SMALL.div_ceil(SLOTS.into())).expect("a few dozens");
    FairnessReceiver::well(heavy_takes).longest() + FairnessReceiver::well(SMALL_TAKES).longest() * rounds
}

fn beside(heavy_takes: Duration, small: impl Fn(u64) -> LoadSource) -> Vec<LoadSource> {
    let heavy = LoadSource {
        tenant: 0,
        tier: Tier::Promotional,
        lanes: 0..100,
        load: FairnessLoad::Saturating { waiting: 72 },
        receiver: FairnessReceiver::well(heavy_takes),
    };
    std::iter::once(heavy).chain((1..=SMALL).map(small)).collect()
}

fn small(tenant: u64) -> LoadSource {
    LoadSource {
        tenant,
        tier: Tier::Promotional,
        lanes: lane(tenant),
        load: FairnessLoad::AtOnce { messages: 1, from: COME, attempts: 0 },
        receiver: FairnessReceiver::well(SMALL_TAKES),
    }
}

fn lane(tenant: u64) -> std::ops::Range<u64> {
    1_000 + tenant..1_001 + tenant
}

/// Runs one message for each small tenant, until shortly after the last attempt must have begun.
fn judge(name: &str, heavy_takes: Duration, scheduler: &mut dyn FairScheduler) -> [Figure; 2] {
    let bound = bound(heavy_takes);
    let got = play(&beside(heavy_takes, small), scheduler, COME..COME + bound + SMALL_TAKES);
    let longest = got[1..].iter().map(Got::longest_wait).max().unwrap_or(Duration::MAX);
    let served = got[1..].iter().filter(|got| got.sent > 0).count();
    eprintln!("fairness: {name}: {served} of {SMALL} sent, the last after {longest:?} of {bound:?}");
    [Figure::at_most(&format!("{name}_longest_wait"), in_millis(longest), "ms", in_millis(bound)), jain_of(name, &got)]
}

/// Jain's index of fairness among the small tenants.
fn jain_of(name: &str, got: &[Got]) -> Figure {
    Figure::at_least(&format!("{name}_jain"), jain(got[1..].iter().map(|got| got.slot_ms)), "of 1", JAIN_BAR)
}
