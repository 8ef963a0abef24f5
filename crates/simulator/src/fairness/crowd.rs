//! Ten thousand small tenants beside a heavy one.

use std::time::Duration;

use super::scheduler::{CoreScheduler, FairScheduler, Plain, PlainRule};
use super::world::{FairnessLoad, FairnessReceiver, Got, LoadSource, play};
use super::{Part, SLOTS, in_millis, jain_of, millis, seconds};
use posthaste_prove::{Figure, Options};

const SMALL: u64 = 10_000;
const SMALL_TAKES: Duration = millis(50);
/// When the small tenants begin. Until then the heavy one is alone, and holds as many slots as it can use.
const COME: Duration = seconds(30);

/// The bar for the fairness among the small tenants.
const JAIN_BAR: f64 = 0.95;

pub(super) fn run(_: &Options) -> Part {
    let mut part = Part::default();
    for (name, takes) in [("small_beside_quick", millis(50)), ("small_beside_slow", seconds(10))] {
        part.figures.extend(judge(name, takes, &mut CoreScheduler::new(SLOTS)));
    }
    // Each small tenant has its next message as soon as the last is delivered.
    let again = |tenant| LoadSource { load: FairnessLoad::Saturating { waiting: 1 }, ..small(tenant) };
    let got = play(&beside(millis(50), again), &mut CoreScheduler::new(SLOTS), COME..COME + seconds(20));
    part.figures.push(jain_of("small_again", &got[1..], JAIN_BAR));

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
    let load = FairnessLoad::Saturating { waiting: 72 };
    let heavy = LoadSource::new(0, 0..100, load, FairnessReceiver::well(heavy_takes));
    std::iter::once(heavy).chain((1..=SMALL).map(small)).collect()
}

fn small(tenant: u64) -> LoadSource {
    let load = FairnessLoad::AtOnce { messages: 1, from: COME, attempts: 0 };
    LoadSource::new(tenant, 1_000 + tenant..1_001 + tenant, load, FairnessReceiver::well(SMALL_TAKES))
}

/// Runs one message for each small tenant, until shortly after the last attempt must have begun.
fn judge(name: &str, heavy_takes: Duration, scheduler: &mut dyn FairScheduler) -> [Figure; 2] {
    let bound = bound(heavy_takes);
    let got = play(&beside(heavy_takes, small), scheduler, COME..COME + bound + SMALL_TAKES);
    let longest = got[1..].iter().map(Got::longest_wait).max().unwrap_or(Duration::MAX);
    let served = got[1..].iter().filter(|got| got.sent > 0).count();
    eprintln!("fairness: {name}: {served} of {SMALL} sent, the last after {longest:?} of {bound:?}");
    let wait = Figure::at_most(&format!("{name}_longest_wait"), in_millis(longest), "ms", in_millis(bound));
    [wait, jain_of(name, &got[1..], JAIN_BAR)]
}
