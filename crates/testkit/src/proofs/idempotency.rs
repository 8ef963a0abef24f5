//! The proof `idempotency`: every idempotency key is used by several calls at once (its *twins*), in a process that is
//! killed again and again.
//!
//! Each call proposes a different answer. This process records every answer, over all lives of the other one, and reads
//! the store only at the end: it must have one message for each key, and all answers of a key must name that message.
//!
//! The control is the same process without the keys, in which the proof must find differences.

pub(super) mod twins;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::BufRead;
use std::path::Path;

use posthaste_core::Timestamp;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, Outbox, Query};

use crate::fixtures::{ChildProcess, block_on};
use crate::prove::{CannotRun, Context, Figure, Findings, Options, count};
use twins::TwinAnswer;

/// Rows read from the store at a time.
const PAGE: u32 = 2_000;
/// Keys of the control.
const CONTROL_KEYS: u64 = 200;

#[derive(Clone, Copy)]
struct Size {
    keys: u64,
    kills: u64,
}

const FULL: Size = Size { keys: 10_000, kills: 12 };
const QUICK: Size = Size { keys: 1_000, kills: 4 };

pub fn run(options: &Options) -> Findings {
    let size = if options.quick { QUICK } else { FULL };
    let seed = options.first.unwrap_or(11);
    let (ledger, found) = lives(size, seed, "kept")?;
    let verdict = ledger.judge(size.keys, &found);
    let (control, stripped) = lives(Size { keys: CONTROL_KEYS, kills: 1 }, seed, "stripped")?;
    let control = control.judge(CONTROL_KEYS, &stripped);
    eprintln!("{verdict:?}; without keys {control:?}");
    Ok(vec![
        Figure::at_least("keys", size.keys as f64, "keys", size.keys as f64),
        Figure::at_least("twins_answered", count(ledger.answers), "calls", (2 * size.keys) as f64),
        Figure::at_least("kills", count(ledger.kills), "kills", size.kills as f64),
        Figure::at_most("keys_without_their_one_message", count(verdict.not_one), "keys", 0.0),
        Figure::at_most("keys_answered_differently", count(verdict.differ), "keys", 0.0),
        Figure::at_least("other_requests_refused", count(ledger.refused), "calls", size.keys as f64),
        Figure::at_most("other_requests_taken", count(ledger.taken), "calls", 0.0),
        Figure::at_least("negative_control_caught", count(control.not_one.min(control.differ)), "keys", 1.0),
    ])
}

/// All answers, in every life of the process.
#[derive(Default)]
struct PromiseLedger {
    /// The answers given to the twins of each key.
    given: BTreeMap<u64, BTreeSet<String>>,
    answers: usize,
    refused: usize,
    taken: usize,
    kills: usize,
}

/// How many keys have a fault, by kind.
#[derive(Debug)]
struct Verdict {
    not_one: usize,
    differ: usize,
}

impl PromiseLedger {
    fn note(&mut self, line: &str) {
        match twins::heard(line) {
            Some((key, 1, TwinAnswer::Body(body))) => {
                self.answers += 1;
                self.given.entry(key).or_default().insert(body);
            }
            // The first request of a key must not be refused: counts as a different answer.
            Some((key, 1, TwinAnswer::Reused)) => _ = self.given.entry(key).or_default().insert("reused".to_owned()),
            Some((_, _, TwinAnswer::Reused)) => self.refused += 1,
            Some(_) => self.taken += 1,
            None => {}
        }
    }

    /// Compares the answers with the messages that the store has for each key.
    fn judge(&self, keys: u64, found: &BTreeMap<u64, Vec<String>>) -> Verdict {
        let none = Vec::new();
        let of = |key: u64| found.get(&key).unwrap_or(&none);
        let agrees = |key: u64| {
            let given = self.given.get(&key);
            given.is_some_and(|given| given.len() == 1 && of(key).iter().all(|message| given.contains(message)))
        };
        Verdict {
            not_one: (0..keys).filter(|key| of(*key).len() != 1).count(),
            differ: (0..keys).filter(|key| !agrees(*key)).count(),
        }
    }
}

/// Starts and kills the other process several times, then lets it finish. Returns all answers, and for each key the
/// answers that name its messages in the store.
fn lives(size: Size, seed: u64, with: &str) -> Result<(PromiseLedger, BTreeMap<u64, Vec<String>>), CannotRun> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut ledger = PromiseLedger::default();
    for life in 0..size.kills {
        // A random point in the first part of the calls: each key has five twins and one other request, on average.
        let upto = dice.u64(1..size.keys * 5 * (life + 1) / size.kills);
        let process = start(&data, size.keys, dice.u64(..), with)?;
        ledger.kills += usize::from(kill_after(process, upto, &mut ledger)?);
    }
    finish(start(&data, size.keys, dice.u64(..), with)?, &mut ledger)?;
    let found = messages(&data)?;
    Ok((ledger, found))
}

fn start(data: &Path, keys: u64, seed: u64, with: &str) -> Result<ChildProcess, CannotRun> {
    let (keys, seed) = (keys.to_string(), seed.to_string());
    let args: [&OsStr; 4] = [data.as_ref(), keys.as_ref(), seed.as_ref(), with.as_ref()];
    ChildProcess::start("twins", args)
}

/// Kills the process after this many answers. Returns `false` if it had ended before.
fn kill_after(mut process: ChildProcess, answers: u64, ledger: &mut PromiseLedger) -> Result<bool, CannotRun> {
    let mut lines = process.says()?.lines();
    for line in lines.by_ref().take(usize::try_from(answers).unwrap_or(usize::MAX)) {
        ledger.note(&line?);
    }
    let runs = process.runs()?;
    process.kill()?;
    // Answers that it had printed before it died count.
    lines.map_while(Result::ok).for_each(|line| ledger.note(&line));
    Ok(runs)
}

fn finish(mut process: ChildProcess, ledger: &mut PromiseLedger) -> Result<(), CannotRun> {
    for line in process.says()?.lines() {
        ledger.note(&line?);
    }
    let ended = process.ends()?;
    if ended.success() { Ok(()) } else { Err(CannotRun(format!("the other process ended with {ended}"))) }
}

/// For each key the answers that name its messages in the store.
fn messages(data: &Path) -> Result<BTreeMap<u64, Vec<String>>, CannotRun> {
    block_on(async {
        let store = Sqlite::open_folder(data, crate::master_key())?;
        let before = store.open(SystemClock::new().now()).await?.session.writer;
        let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = store.page(Query::Left { after, before }, PAGE, Timestamp::MAX).await?;
            for row in &page.rows {
                let message = store.message(row.delivery.message).await?;
                let body = message.map(|message| String::from_utf8_lossy(&message.body).into_owned());
                let key = body.and_then(|body| body.parse().ok());
                let key = key.context(format!("delivery {} has no message", row.delivery.id))?;
                found.entry(key).or_default().push(twins::answer(row.delivery.message));
            }
            after = page.rows.last().map(|row| row.delivery.id);
            if !page.more {
                break;
            }
        }
        store.close().await;
        Ok(found)
    })
}
