//! The proof `kill9`: the real binary is killed again and again while producers call its API.
//!
//! Producers record the messages that were answered with `202`, a receiver records arrivals, and the two are compared.
//! A message may arrive twice only if it was in flight at a kill: sent, with its outcome not yet on disk.

use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::fixtures::{Launch, ProducerLoad, ServerUnderLoad, binary, folder, runtime};
use crate::prove::{Figure, Findings, Options, count};
use crate::receivers::Manners;

const PRODUCERS: usize = 32;
/// Attempts under way at once.
const SLOTS: usize = 64;
/// The most deliveries in flight at a kill: those that are being sent, and those whose outcome waits for a commit.
/// During one commit no more attempts than slots can end, because a receiver takes longer.
const IN_FLIGHT_MAX: usize = 2 * SLOTS;
/// The time of a receiver's answer; longer than a commit of some milliseconds.
const TAKES: std::ops::Range<Duration> = Duration::from_millis(10)..Duration::from_millis(40);
/// The longest time until an outcome is on disk, on a busy machine.
const RECORDED_WITHIN: Duration = Duration::from_secs(5);
/// Acknowledgements between two kills.
const PROMISES: usize = 400;
/// One cycle in this many also kills the server while it starts.
const IN_THE_START: u32 = 5;
/// The range of the time from a start to such a kill: the start and a little more.
const START_MICROS: u64 = 150_000;
/// The range of the time to the other kills: a few commits.
const KILL_MICROS: u64 = 40_000;

const CYCLES: u32 = 60;
const CYCLES_QUICK: u32 = 8;

pub fn run(options: &Options) -> Findings {
    let cycles = if options.quick { CYCLES_QUICK } else { CYCLES };
    let dice = fastrand::Rng::with_seed(options.first.unwrap_or(9));
    runtime()?.block_on(prove(&binary()?, cycles, dice))
}

async fn prove(binary: &Path, cycles: u32, mut dice: fastrand::Rng) -> Findings {
    let folder = folder()?;
    let launch = Launch::new(binary, folder.path()).with("POSTHASTE_SLOTS", SLOTS.to_string());
    // One message in twenty fails at first, so that there are deliveries that wait for a retry at a kill.
    let manners = Manners { takes: TAKES, fails_one_in: Some(20) };
    // In this tier the first retry comes within a second.
    let load = ProducerLoad { tier: "transactional", ..ProducerLoad::of(PRODUCERS) };
    let mut served = ServerUnderLoad::begin(folder, launch, manners, &load).await?;
    for cycle in 0..cycles {
        served.promises(PROMISES * (cycle as usize + 1)).await?;
        moment(&mut dice, KILL_MICROS).await;
        served.kill().await?;
        if cycle % IN_THE_START == 2 {
            let mut starting = served.launch.begin()?;
            moment(&mut dice, START_MICROS).await;
            starting.kill()?;
            served.counter.sender_ended(Instant::now()).await?;
        }
        served.start()?;
        if (cycle + 1) % 10 == 0 {
            eprintln!("killed {} times, {} messages acknowledged", cycle + 1, served.ledger().count());
        }
    }
    let ended = served.ends().await;
    let unended = ended.unended().await?;
    let seens = ended.counter.seens();
    let promised = &ended.promised;
    eprintln!(
        "{} acknowledged, {} arrived, {} duplicates, at most {} after one kill; {} calls were not answered",
        promised.len(),
        seens.messages(),
        seens.duplicates(),
        seens.most_after_a_life(),
        ended.ledger.refusals().unanswered,
    );
    let kills = cycles as usize;
    Ok(vec![
        Figure::at_least("kills", count(kills), "kills", f64::from(cycles)),
        Figure::at_least("acknowledged", count(promised.len()), "messages", count(PROMISES * kills)),
        Figure::at_most("lost", count(ended.lost), "messages", 0.0),
        Figure::at_most("unended", count(unended), "messages", 0.0),
        Figure::at_most("arrived_unacknowledged", count(seens.unpromised(promised)), "messages", 0.0),
        Figure::at_most("duplicates", count(seens.duplicates()), "arrivals", count(kills * IN_FLIGHT_MAX)),
        Figure::at_most("duplicates_of_one_kill", count(seens.most_after_a_life()), "arrivals", count(IN_FLIGHT_MAX)),
        Figure::at_most("repeated_without_a_kill", count(seens.unexplained()), "arrivals", 0.0),
        Figure::at_most("repeated_after_its_record", count(seens.forgotten(RECORDED_WITHIN)), "arrivals", 0.0),
        Figure::at_most("unexpected_answers", count(ended.surprises), "answers", 0.0),
        // The controls: the counts must be able to fail.
        Figure::at_least("control_lost", count(seens.without_one().lost(promised)), "messages", 1.0),
        Figure::at_least("control_repeated", count(seens.with_one_again().unexplained()), "arrivals", 1.0),
    ])
}

/// Waits for a random part of this time.
async fn moment(dice: &mut fastrand::Rng, micros: u64) {
    tokio::time::sleep(Duration::from_micros(dice.u64(..micros))).await;
}
