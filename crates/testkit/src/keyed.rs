//! A process with a store under load and its master key in a file, for proofs that do something to a store
//! while it serves: the production driver over SQLite, a receiver that writes down what it took, and producers
//! that write down what was acknowledged. It is told what to do line by line, and ends with its input.
//!
//! Nobody asks the store what was acknowledged or has arrived: both are files of
//! [records](crate::store_kill9).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use posthaste_core::delivery::{Delivery, Verdict};
use posthaste_core::dice::Roll;
use posthaste_core::id::{DeliveryId, Key, MessageId, TenantId};
use posthaste_core::queue::{LaneSettings, Limits, Order, Place};
use posthaste_core::tier::Tier;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::dispatch::Command;
use posthaste_engine::dispatch::driver::{Driver, Handle};
use posthaste_engine::master_key::keeper::Keeper;
use posthaste_engine::master_key::{self, Source};
use posthaste_engine::rotation::rotate_now;
use posthaste_store::sqlite::backup::back_up;
use posthaste_store::sqlite::{Bounds, Sqlite};
use posthaste_store::{Accepted, Archive, Message, NewDelivery, Outbox, PauseScope, Session, StoreError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::loopback::{Loopback, taken};
use crate::part;
use crate::prove::CannotRun;
use crate::seeder::{Target, put_endpoints};
use crate::store_kill9::record::{self, Record};

/// Said once everything runs.
pub const READY: &str = "ready";
/// Said when a rotation has ended.
pub const ROTATED: &str = "rotated";

/// Said when a backup is made.
pub const BACKED_UP: &str = "backed up";
/// Said when everything may be sent again.
pub const RELEASED: &str = "released";

/// Who writes down what: messages with a delivery, and messages of new tenants without one.
pub(crate) const DELIVERED: usize = 0;
pub(crate) const BARE: usize = 1;

const LANES: u64 = 16;
const PRODUCERS: u64 = 8;
/// Tenants of the first start: more than a few steps of a rotation.
const FIRST_TENANTS: u64 = 300;
/// One message of so many is a new tenant's.
const NEW_TENANT: u64 = 32;
/// Between two messages of a producer.
const PACE: Duration = Duration::from_millis(2);
/// Long enough that some are under way at any time.
const ATTEMPT: Duration = Duration::from_millis(40);
const BODY_BYTES: usize = 200;

/// Where the store is.
pub(crate) fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// The store in a folder, with the key beside it.
pub(crate) fn open(data: &Path) -> Result<Sqlite, StoreError> {
    let ask = |needed: &[_]| master_key::load(&Source::Folder, data, needed).map_err(|why| why.to_string());
    Sqlite::open_asking(data, Bounds { reserve_bytes: 0, ..Bounds::default() }, ask)
}

/// How many of the messages that were written down cannot be read as they were handed in.
pub(crate) async fn unreadable(store: &Sqlite, records: &[Record]) -> usize {
    let mut count = 0;
    for record in records {
        let found = store.message(MessageId(Key::from_raw(record.id))).await;
        let reads = found.is_ok_and(|found| found.is_some_and(|message| message.body == body(record.token)));
        count += usize::from(!reads);
    }
    count
}

/// Plays the part.
pub fn main(folder: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.map_err(CannotRun::from).and_then(|runtime| runtime.block_on(serve(Path::new(folder))));
    part::ended("store_node", ended)
}

async fn serve(folder: &Path) -> Result<(), CannotRun> {
    let data = data(folder);
    let store = Arc::new(open(&data)?);
    let clock = SystemClock::new();
    let start = store.open(clock.now()).await?;
    let session = start.session;
    put_endpoints(&store, session, 0..LANES).await?;
    let arrivals = OpenOptions::new().append(true).create(true).open(record::arrivals(folder))?;
    let transport = Loopback::new(Arc::clone(&store), ATTEMPT, Box::new(receiver(arrivals)));
    let mut dice = fastrand::Rng::with_seed(session.id);
    let dice = Box::new(move || Roll(dice.u64(..)));
    let (driver, handle) = Driver::new(Limits::default(), start, Arc::clone(&store), transport, clock.clone(), dice);
    let ledger = |number| OpenOptions::new().append(true).create(true).open(record::ledger(folder, number));
    let producers = Arc::new(Producers {
        store: Arc::clone(&store),
        session,
        handle,
        clock: clock.clone(),
        lanes: (0..LANES).map(|n| Arc::new(Target(n).endpoint().lane_settings())).collect(),
        next: AtomicU64::new(1),
        ledgers: [Mutex::new(ledger(DELIVERED)?), Mutex::new(ledger(BARE)?)],
    });
    if session.id == 1 {
        futures_util::future::try_join_all((0..FIRST_TENANTS).map(|_| producers.hand_in(BARE))).await?;
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(async { driver.run(CancellationToken::new()).await.map_err(CannotRun::from) });
    let (says, mut told) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        io::stdin().lines().map_while(Result::ok).for_each(|line| _ = says.send(line));
        std::process::exit(0);
    });
    say(READY)?;
    loop {
        tokio::select! {
            biased;
            Some(ended) = tasks.join_next() => return ended.map_err(|error| CannotRun(error.to_string()))?,
            Some(line) = told.recv() => match line.split_once(' ').unwrap_or((&line, "")) {
                ("load", _) => for producer in 0..PRODUCERS {
                    let producers = Arc::clone(&producers);
                    tasks.spawn(async move { producers.produce(producer).await });
                },
                ("rotate", _) => {
                    let (store, clock, keeper) = (Arc::clone(&store), clock.clone(), Keeper::new(&Source::Folder, &data));
                    tasks.spawn(async move { rotate(&store, session, &clock, keeper).await });
                }
                ("backup", to) => {
                    let (data, to, now) = (data.clone(), PathBuf::from(to), clock.now());
                    tasks.spawn(async move {
                        let copying = tokio::task::spawn_blocking(move || back_up(&data, &to, now, |_| true));
                        let made = copying.await.map_err(|error| CannotRun(error.to_string()))?;
                        made.map_err(|why| CannotRun(why.to_string()))?;
                        say(BACKED_UP)?;
                        std::future::pending().await
                    });
                }
                ("release", _) => {
                    let released = producers.handle.ask(Command::Resume(PauseScope::All, None)).await;
                    released.map_err(|why| CannotRun(why.to_string()))?;
                    say(RELEASED)?;
                }
                _ => return Err(CannotRun(format!("nobody knows what {line:?} means"))),
            },
        }
    }
}

fn say(line: &str) -> Result<(), CannotRun> {
    println!("{line}");
    Ok(io::stdout().flush()?)
}

/// One rotation after the other.
async fn rotate(store: &Sqlite, session: Session, clock: &SystemClock, keeper: Keeper) -> Result<(), CannotRun> {
    loop {
        let told = |now: &posthaste_store::Rotation| {
            let _ = say(&format!("step {} {}", now.older.len(), now.left));
        };
        rotate_now(store, session, clock, keeper.clone(), told).await.map_err(|why| CannotRun(why.to_string()))?;
        say(ROTATED)?;
    }
}

/// Writes down what arrives, and takes it.
fn receiver(mut arrivals: File) -> impl FnMut(&posthaste_engine::dispatch::Send, &Message) -> Verdict {
    move |send, message| {
        let token = message.body.first_chunk().map_or(0, |token| u64::from_be_bytes(*token));
        let record = Record { token, id: send.start.delivery.raw() };
        arrivals.write_all(&record.to_bytes()).expect("what has arrived can be written down");
        taken()
    }
}

fn body(token: u64) -> Vec<u8> {
    let mut body = token.to_be_bytes().to_vec();
    body.resize(BODY_BYTES, b'x');
    body
}

/// Hand in messages and write down what was acknowledged.
struct Producers {
    store: Arc<Sqlite>,
    session: Session,
    handle: Handle,
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

    /// Hands one message in, and writes it down once it is acknowledged.
    async fn hand_in(&self, ledger: usize) -> Result<(), CannotRun> {
        let token = self.session.id << 40 | self.next.fetch_add(1, Ordering::Relaxed);
        let accepted = if ledger == BARE { self.bare(token) } else { self.delivered(token) };
        let record = Record { token, id: accepted.message.id.raw() }.to_bytes();
        self.store.accept(self.session, vec![accepted]).await?;
        Ok(self.ledgers[ledger].lock().unwrap_or_else(PoisonError::into_inner).write_all(&record)?)
    }

    /// A message of a tenant that nobody has heard of, about somebody.
    fn bare(&self, token: u64) -> Accepted {
        let tenant = TenantId::from_raw(1 << 50 | token & 0xffff_ffff_ffff);
        let message = Message { subject: Some("somebody".to_owned()), ..self.message(token, tenant) };
        Accepted::new(message, Vec::new())
    }

    fn delivered(&self, token: u64) -> Accepted {
        let lane = Arc::clone(&self.lanes[usize::try_from(token % LANES).unwrap_or(0)]);
        let message = self.message(token, lane.tenant);
        let (id, now) = (message.id, message.at);
        let delivery = Delivery::queued(
            DeliveryId(id.0.plus(1)),
            id,
            Target::of(lane.lane).id(),
            lane.lane,
            Tier::Promotional,
            now,
        );
        let place = Place::for_new(Order::Fifo, self.handle.is_spilling(lane.lane, Tier::Promotional), now, now);
        Accepted::new(message, vec![NewDelivery::new(delivery, place, lane)])
    }

    fn message(&self, token: u64, tenant: TenantId) -> Message {
        let id = MessageId(Key::new(self.session.writer, 2 * (token & 0xff_ffff_ffff)));
        Message::new(id, tenant, self.clock.now(), body(token))
    }
}
