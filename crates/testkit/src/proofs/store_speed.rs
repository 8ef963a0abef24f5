//! The proof `store-speed`: the throughput of the store relative to a bare file, and its CPU cost.
//!
//! In one run, on one disk, with real syncs: the store under callers that accept one message each, while a loop settles
//! all arrivals, as the engine does; and a file that is appended to with the same logical bytes and the same number of
//! syncs. The two take turns in short slices. Each slice is compared with the one beside it and the median counts, so
//! that disturbances by other work of the machine affect both alike.
//!
//! CPU time is that of the operating system's scheduler, by thread: SQL is the time of the writer thread, following
//! the journal that of the follower thread, and hand-off the time of all other threads, callers included, without
//! sealing and hashing, which are measured separately.

use std::time::Duration;

use posthaste_store::sqlite::Commits;

use crate::fixtures::{Busy, Cpu, LOGICAL_BYTES, SyncedFile, busy, median, runtime, seeder};
use crate::prove::{Figure, Findings, Options};

const THROUGHPUT_BAR: f64 = 0.35;
const MICROS_BAR: f64 = 25.0;

/// The group sizes: deliveries accepted, and as many settled, in one commit, roughly. Two cohorts of callers take
/// turns: one is being written while the other queues.
const GROUPS: [Group; 2] = [Group { rows: 128, callers: 128 }, Group { rows: 512, callers: 640 }];
const ROUNDS: usize = 60;
const ROUNDS_QUICK: usize = 18;
/// Short, because the speed of a disk can change within a second.
const SLICE: Duration = Duration::from_millis(150);
/// The time before measuring, for files to grow to their working size and caches to fill.
const WARM_UP: Duration = Duration::from_millis(400);

/// A size of group commits, and the number of callers that leads to it.
#[derive(Clone, Copy)]
struct Group {
    rows: u64,
    callers: usize,
}

/// CPU time: in total, and for hashing and sealing of one delivery.
struct Spent {
    cpu: Cpu,
    hashing: Duration,
    sealing: Duration,
}

pub fn run(options: &Options) -> Findings {
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    let runtime = runtime()?;
    let mut figures = Vec::new();
    for group in GROUPS {
        figures.extend(runtime.block_on(measure(group, rounds))?);
    }
    Ok(figures.into_iter().map(|figure| figure.by_the_clock(options)).collect())
}

async fn measure(group: Group, rounds: usize) -> Findings {
    // Beside the seeded stores, on the disk of the build: a temporary folder may be in memory.
    let disk = tempfile::tempdir_in(seeder::shelf()?)?;
    let mut busy = Busy::start(&disk.path().join("store"), group.callers).await?;
    let mut bare = SyncedFile::create(&disk.path().join("bare"))?;
    busy.slice(WARM_UP).await?;
    let (mut cpu, mut shares) = (Cpu::default(), Vec::new());
    let (mut rates, mut bare_rates) = (Vec::new(), Vec::new());
    let mut deliveries = 0;
    let before = busy.commits();
    for _ in 0..rounds {
        let (at, commits) = (Cpu::now()?, busy.commits());
        let slice = busy.slice(SLICE).await?;
        cpu = cpu.plus(&Cpu::now()?.since(&at));
        deliveries += slice.deliveries;
        rates.push(slice.rate());
        // The same bytes with the same number of syncs.
        let commits = busy.commits().since(&commits).count;
        let each = slice.deliveries.div_ceil(commits.max(1));
        let bytes = usize::try_from(each * LOGICAL_BYTES).unwrap_or(usize::MAX);
        let bare_rate = bare.slice(SLICE, bytes)? * each as f64;
        bare_rates.push(bare_rate);
        shares.push(slice.rate() / bare_rate);
    }
    let commits = busy.commits().since(&before);
    busy.stop().await;
    let spent = Spent { cpu, hashing: busy::hashing()?, sealing: busy::sealing()? };
    Ok(figures(group, deliveries, &spent, (&mut rates, &mut bare_rates, &mut shares), (&commits, &bare)))
}

fn figures(
    group: Group,
    deliveries: u64,
    Spent { cpu, hashing, sealing }: &Spent,
    (rates, bare_rates, shares): (&mut [f64], &mut [f64], &mut [f64]),
    (commits, bare): (&Commits, &SyncedFile),
) -> Vec<Figure> {
    let each = |spent: Duration| spent.as_secs_f64() * 1e6 / deliveries.max(1) as f64;
    let (rate, bare_rate) = (median(rates), median(bare_rates));
    let sql = cpu.of("store-writer");
    eprintln!(
        "groups of {}: {:.0} rows a commit, {rate:.0} deliveries/s, bare file {bare_rate:.0}/s",
        group.rows,
        commits.rows as f64 / commits.count.max(1) as f64,
    );
    let follower = cpu.of("store-follower");
    eprintln!(
        "  CPU a delivery: {:.1} µs = SQL {:.1} + following the journal {:.1} + sealing {:.1} + hashing {:.1} + hand-off {:.1}",
        each(cpu.all()),
        each(sql),
        each(follower),
        micros(*sealing),
        micros(*hashing),
        each(cpu.all().saturating_sub(sql + follower)) - micros(*sealing + *hashing),
    );
    eprintln!(
        "  a commit's p50 {:.1} ms, p99 {:.1} ms; the disk's own {:.1} and {:.1} ms",
        millis(commits.within(0.5)),
        millis(commits.within(0.99)),
        bare.within_ms(50),
        bare.within_ms(99),
    );
    let name = |what: &str| format!("{what}_{}", group.rows);
    vec![
        Figure::at_least(&name("throughput_to_bare_file"), median(shares), "of 1", THROUGHPUT_BAR),
        Figure::at_most(&name("cpu_a_delivery"), each(cpu.all()), "µs", MICROS_BAR),
    ]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
