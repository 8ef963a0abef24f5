//! The process that is killed: it makes several calls with each key at once on a real store, each with a different
//! proposed answer, and prints every answer that it gets as a line.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{Key, MessageId, RowIndex};
use posthaste_crypto::{LookupKey, digest};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Acceptance, Accepted, FirstAnswer, Idempotency, KeyHash, Message, Outbox, Session, StoreError};
use tokio::task::JoinSet;

use crate::fixtures::{SeededTarget, part, runtime, with_delivery};
use crate::master_key;
use crate::prove::CannotRun;

/// Keys whose twins are sent at once: enough for several group commits.
const TOGETHER: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TwinKeys {
    /// They are passed to the store.
    Kept,
    /// They are left out: the fault that the proof must detect.
    Stripped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TwinAnswer {
    /// The body of the first answer of the key.
    Body(String),
    /// The key was used for another request.
    Reused,
}

/// Makes several calls with every key, then one call with each key for another request.
pub(crate) fn run(folder: &Path, keys: &str, seed: &str, with: &str) -> Result<(), CannotRun> {
    part::end_with_input();
    let with = if with == "stripped" { TwinKeys::Stripped } else { TwinKeys::Kept };
    runtime()?.block_on(send(folder, keys.parse()?, seed.parse()?, with))
}

async fn send(folder: &Path, keys: u64, seed: u64, with: TwinKeys) -> Result<(), CannotRun> {
    let store = Sqlite::open_folder(folder, master_key())?;
    let session = store.open(SystemClock::new().now()).await?.session;
    let lookup = store.lookups();
    let caller = Arc::new(Caller { store, session, lookup, clock: SystemClock::new(), with });
    let mut arrivals = JoinSet::new();
    let arriving = Arc::clone(&caller);
    // Arrivals are dropped, and deliveries stay pending: nothing is sent here.
    arrivals.spawn(async move { while !arriving.store.arrivals().await.is_empty() {} });
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut next = 1;
    for first in (0..keys).step_by(usize::try_from(TOGETHER).unwrap_or(1)) {
        let chunk = first..keys.min(first + TOGETHER);
        let mut calls: Vec<(u64, u8)> =
            chunk.clone().flat_map(|key| std::iter::repeat_n((key, 1), dice.usize(2..=8))).collect();
        dice.shuffle(&mut calls);
        caller.all(&calls, &mut next).await?;
        caller.all(&chunk.map(|key| (key, 2)).collect::<Vec<_>>(), &mut next).await?;
    }
    caller.store.close().await;
    Ok(())
}

struct Caller {
    store: Sqlite,
    session: Session,
    lookup: LookupKey,
    clock: SystemClock,
    with: TwinKeys,
}

impl Caller {
    /// Makes these calls at once, each given by its key and the number of its request. Prints each answer as it comes.
    async fn all(self: &Arc<Self>, calls: &[(u64, u8)], next: &mut u64) -> Result<(), CannotRun> {
        let mut under_way = JoinSet::new();
        for (key, request) in calls {
            let (caller, key, request, number) = (Arc::clone(self), *key, *request, *next);
            *next += 2;
            under_way.spawn(async move { (key, request, caller.call(key, request, number).await) });
        }
        while let Some(ended) = under_way.join_next().await {
            let (key, request, answer) = ended?;
            print(key, request, &answer?)?;
        }
        Ok(())
    }

    async fn call(&self, key: u64, request: u8, number: u64) -> Result<TwinAnswer, StoreError> {
        let accepted = self.message(key, request, number);
        let mine = answer(accepted.message.id);
        match self.store.accept(self.session, vec![accepted]).await?.pop() {
            Some(Acceptance::Replayed(first)) => {
                Ok(TwinAnswer::Body(String::from_utf8_lossy(&first.body).into_owned()))
            }
            Some(Acceptance::KeyReused) => Ok(TwinAnswer::Reused),
            Some(Acceptance::Unanswered) => Err(StoreError::Busy),
            Some(Acceptance::Fresh) | None => Ok(TwinAnswer::Body(mine)),
        }
    }

    /// A message with its key as its body, as the engine would pass it to the store.
    fn message(&self, key: u64, request: u8, number: u64) -> Accepted {
        let id = MessageId(Key::new(self.session.writer, number));
        let lane = Arc::new(SeededTarget(key % 16).endpoint().lane_settings());
        let now = self.clock.now();
        let (name, body) = (key.to_string(), Bytes::from(key.to_string()));
        let once = Idempotency {
            tenant: lane.tenant,
            key: KeyHash::of(self.lookup.hash("idempotency key", lane.tenant.raw(), name.as_bytes())),
            digest: digest::hash_parts(&[&body, &[request]]),
            answer: FirstAnswer { status: 202, body: Bytes::from(answer(id)) },
            at: now,
        };
        let message = Message::new(id, lane.tenant, now, body);
        let idempotency = Some(once).filter(|_| self.with == TwinKeys::Kept);
        Accepted { idempotency, ..with_delivery(message, lane, RowIndex::Ready) }
    }
}

/// The proposed answer of a message: its id, so that no two are the same.
pub(super) fn answer(message: MessageId) -> String {
    message.raw().to_string()
}

/// Prints an answer as a line, and flushes it.
fn print(key: u64, request: u8, answer: &TwinAnswer) -> io::Result<()> {
    let text = match answer {
        TwinAnswer::Body(body) => body,
        TwinAnswer::Reused => "reused",
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{key} {request} {text}")?;
    out.flush()
}

/// Parses a line of the process: key, request and answer; `None` if the line is incomplete.
pub(super) fn heard(line: &str) -> Option<(u64, u8, TwinAnswer)> {
    let mut words = line.split(' ');
    let (key, request) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let answer = match words.next()? {
        "reused" => TwinAnswer::Reused,
        body => TwinAnswer::Body(body.to_owned()),
    };
    Some((key, request, answer))
}
