//! A node with its master key in a file: a store under load, for proofs that rotate, back up or kill
//! it meanwhile. It runs the production driver over SQLite, a receiver that records what it took, and producers that
//! record what was acknowledged. It reads commands from its standard input, one a line, and exits at end of input.
//!
//! Proofs do not ask the store what was acknowledged or has arrived: both are in files of
//! [records](crate::proofs::store_kill9).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::scheduler::{Limits, Order};
use posthaste_core::{Key, LaneSettings, MessageId, RowIndex, TenantId, Tier, Verdict};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::dispatch::Command;
use posthaste_engine::dispatch::driver::DispatchHandle;
use posthaste_engine::master_key::keeper::Keeper;
use posthaste_engine::master_key::{self, MasterKeySource};
use posthaste_engine::rotation::rotate_now;
use posthaste_store::sqlite::backup::back_up;
use posthaste_store::sqlite::{Bounds, Sqlite};
use posthaste_store::{Accepted, Archive, Message, Outbox, PauseScope, Session, StoreError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{Loopback, SeededTarget, lock, put_endpoints, runtime, taken, with_delivery};
use crate::proofs::store_kill9::record::{self, TokenRecord};
use crate::prove::CannotRun;

/// The line printed once everything runs.
pub const READY: &str = "ready";
/// The line printed when a rotation has ended.
pub const ROTATED: &str = "rotated";

/// The line printed when a backup is complete.
pub const BACKED_UP: &str = "backed up";
/// The line printed when the pause of everything is lifted.
pub const RELEASED: &str = "released";

/// The two ledgers, by index: messages with a delivery, and messages of new tenants without one.
pub(crate) const DELIVERED: usize = 0;
pub(crate) const BARE: usize = 1;

const LANES: u64 = 16;
const PRODUCERS: u64 = 8;
/// Tenants of the first start: more than a few steps of a rotation.
const FIRST_TENANTS: u64 = 300;
/// One message in this many belongs to a new tenant.
const NEW_TENANT: u64 = 32;
/// The time between two messages of a producer.
const PACE: Duration = Duration::from_millis(2);
/// How long an attempt takes: long enough that some are in flight at any time.
const ATTEMPT: Duration = Duration::from_millis(40);
const BODY_BYTES: usize = 200;

/// The store's data folder.
pub(crate) fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Opens the store of a data folder with the master key file beside it.
pub(crate) fn open(data: &Path) -> Result<Sqlite, StoreError> {
    let ask = |needed: &[_]| master_key::load(&MasterKeySource::Folder, data, needed).map_err(|why| why.to_string());
    Sqlite::open_asking(data, Bounds { reserve_bytes: 0, ..Bounds::default() }, ask)
}

/// How many of the recorded messages cannot be read with the body that was handed in.
pub(crate) async fn unreadable(store: &Sqlite, records: &[TokenRecord]) -> usize {
    let mut count = 0;
    for record in records {
        let found = store.message(MessageId(Key::from_raw(record.id))).await;
        let reads = found.is_ok_and(|found| found.is_some_and(|message| message.body == body(record.token)));
        count += usize::from(!reads);
    }
    count
}

/// Runs the node in this folder.
pub(crate) fn serve(folder: &Path) -> Result<(), CannotRun> {
    runtime()?.block_on(serve_until_killed(folder))
}

async fn serve_until_killed(folder: &Path) -> Result<(), CannotRun> {
    let data = data(folder);
    let store = Arc::new(open(&data)?);
    let clock = SystemClock::new();
    let start = store.open(clock.now()).await?;
    let session = start.session;
    put_endpoints(&store, session, 0..LANES).await?;
    let arrivals = OpenOptions::new().append(true).create(true).open(record::arrivals(folder))?;
    let transport = Loopback::new(Arc::clone(&store), ATTEMPT, Box::new(receiver(arrivals)));
    let (driver, handle) = transport.drive(Limits::default(), start, clock.clone(), session.id);
    let ledger = |number| OpenOptions::new().append(true).create(true).open(record::ledger(folder, number));
    let producers = Arc::new(Producers {
        store: Arc::clone(&store),
        session,
        handle,
        clock: clock.clone(),
        lanes: (0..LANES).map(|n| Arc::new(SeededTarget(n).endpoint().lane_settings())).collect(),
        next: AtomicU64::new(1),
        ledgers: [Mutex::new(ledger(DELIVERED)?), Mutex::new(ledger(BARE)?)],
    });
    if session.id == 1 {
        futures_util::future::try_join_all((0..FIRST_TENANTS).map(|_| producers.hand_in(BARE))).await?;
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(async { driver.run(CancellationToken::new()).await.map_err(CannotRun::from) });
    let (sender, mut commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        io::stdin().lines().map_while(Result::ok).for_each(|line| _ = sender.send(line));
        std::process::exit(0);
    });
    say(READY)?;
    loop {
        tokio::select! {
            biased;
            Some(ended) = tasks.join_next() => return ended?,
            Some(line) = commands.recv() => match line.split_once(' ').unwrap_or((&line, "")) {
                ("load", _) => for producer in 0..PRODUCERS {
                    let producers = Arc::clone(&producers);
                    tasks.spawn(async move { producers.produce(producer).await });
                },
                ("rotate", _) => {
                    let (store, clock, data) = (Arc::clone(&store), clock.clone(), data.clone());
                    tasks.spawn(async move { rotate(&store, session, &clock, &data).await });
                }
                ("backup", to) => {
                    let (data, to, now) = (data.clone(), PathBuf::from(to), clock.now());
                    tasks.spawn(async move {
                        let copying = tokio::task::spawn_blocking(move || back_up(&data, &to, now, |_| true));
                        let made = copying.await?;
                        made?;
                        say(BACKED_UP)?;
                        std::future::pending().await
                    });
                }
                ("release", _) => {
                    let released = producers.handle.ask(Command::Resume(PauseScope::All, None)).await;
                    released?;
                    say(RELEASED)?;
                }
                _ => return Err(CannotRun(format!("unknown command {line:?}"))),
            },
        }
    }
}

fn say(line: &str) -> Result<(), CannotRun> {
    println!("{line}");
    Ok(io::stdout().flush()?)
}

/// Rotates the master key again and again.
async fn rotate(store: &Sqlite, session: Session, clock: &SystemClock, data: &Path) -> Result<(), CannotRun> {
    loop {
        let report = |now: &posthaste_store::Rotation| {
            let _ = say(&format!("step {} {}", now.older.len(), now.left));
        };
        let keeper = Keeper::new(&MasterKeySource::Folder, data);
        rotate_now(store, session, clock, keeper, report).await?;
        say(ROTATED)?;
    }
}

/// A receiver that records each message that arrives, and accepts it.
fn receiver(mut arrivals: File) -> impl FnMut(&posthaste_engine::dispatch::SendAttempt, &Message) -> Verdict {
    move |send, message| {
        let token = message.body.first_chunk().map_or(0, |token| u64::from_be_bytes(*token));
        let record = TokenRecord { token, id: send.start.delivery.raw() };
        arrivals.write_all(&record.to_bytes()).expect("the file of arrivals can be written");
        taken()
    }
}

fn body(token: u64) -> Vec<u8> {
    let mut body = token.to_be_bytes().to_vec();
    body.resize(BODY_BYTES, b'x');
    body
}

/// Producers that hand in messages and record those that were acknowledged.
struct Producers {
    store: Arc<Sqlite>,
    session: Session,
    handle: DispatchHandle,
    clock: SystemClock,
    lanes: Vec<Arc<LaneSettings>>,
    next: AtomicU64,
    ledgers: [Mutex<File>; 2],
}

impl Producers {
    async fn produce(&self, producer: u64) -> Result<(), CannotRun> {
        for count in producer.. {
            self.hand_in(if count.is_multiple_of(NEW_TENANT) { BARE } else { DELIVERED }).await?;
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    }

    /// Hands in one message, and records it once it is acknowledged.
    async fn hand_in(&self, ledger: usize) -> Result<(), CannotRun> {
        let token = self.session.id << 40 | self.next.fetch_add(1, Ordering::Relaxed);
        let accepted = if ledger == BARE { self.bare(token) } else { self.delivered(token) };
        let record = TokenRecord { token, id: accepted.message.id.raw() }.to_bytes();
        self.store.accept(self.session, vec![accepted]).await?;
        Ok(lock(&self.ledgers[ledger]).write_all(&record)?)
    }

    /// A message of a new tenant, with a subject.
    fn bare(&self, token: u64) -> Accepted {
        let tenant = TenantId::from_raw(1 << 50 | token & 0xffff_ffff_ffff);
        let message = Message { subject: Some("subject-1".to_owned()), ..self.message(token, tenant) };
        Accepted::new(message, Vec::new())
    }

    fn delivered(&self, token: u64) -> Accepted {
        let lane = Arc::clone(&self.lanes[usize::try_from(token % LANES).unwrap_or(0)]);
        let message = self.message(token, lane.tenant);
        let is_spilling = self.handle.is_spilling(lane.lane, Tier::Promotional);
        let place = RowIndex::for_new(Order::Fifo, is_spilling, message.at, message.at);
        with_delivery(message, lane, place)
    }

    fn message(&self, token: u64, tenant: TenantId) -> Message {
        let id = MessageId(Key::new(self.session.writer, 2 * (token & 0xff_ffff_ffff)));
        Message::new(id, tenant, self.clock.now(), body(token))
    }
}
