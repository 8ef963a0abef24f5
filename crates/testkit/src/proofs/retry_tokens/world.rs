//! The scenario of the proof: a store that is filled and closed, attacked, and then run by the production driver.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::scheduler::Limits;
use posthaste_core::{DeliveryId, Expiry, RowIndex, State, Timestamp};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_store::Outbox;
use posthaste_store::sqlite::Sqlite;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Size;
use crate::fixtures::{ChildProcess, Loopback, MemoryLog, MessageMint, lock, put_endpoints, seeder, taken};
use crate::master_key;
use crate::prove::CannotRun;

pub(super) const LANES: u64 = 20;
const ATTEMPT: Duration = Duration::from_millis(1);
/// If nothing has happened for this long, nothing more will.
const STANDS_STILL: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The attacks of [`super::forger`], and the share of `Size::each` that each is made on: numerator, denominator.
const DEEDS: [(&str, u64, u64); 8] = [
    ("forged", 1, 1),
    ("endpoint", 1, 4),
    ("lane", 1, 4),
    ("message", 1, 2),
    ("due", 1, 3),
    ("attempts", 1, 3),
    ("expiry", 1, 3),
    ("payload", 1, 1),
];

/// The deliveries that one attack is made on.
struct Victims {
    deed: &'static str,
    ids: Vec<DeliveryId>,
}

/// A store in a folder, closed.
pub(super) struct Filled {
    pub(super) folder: tempfile::TempDir,
    pub(super) now: Timestamp,
    victims: Vec<Victims>,
    late: Vec<DeliveryId>,
}

impl Filled {
    pub(super) async fn new(size: Size) -> Result<Self, CannotRun> {
        let folder = tempfile::Builder::new().prefix("tokens-").tempdir_in(seeder::shelf()?)?;
        let now = SystemClock::new().now();
        let store = Sqlite::open_folder(folder.path(), master_key())?;
        let session = store.open(now).await?.session;
        put_endpoints(&store, session, 0..LANES).await?;
        let mint = MessageMint::new(session, 0..LANES, RowIndex::Ready);
        // Deliveries before the first victims, because some attacks use a neighbouring row.
        let mut late = Self::fill(&store, session, &mint, 2, |_, _| {}).await?;
        let mut victims = Vec::new();
        for (deed, share, of) in DEEDS {
            // Even, so that neighbours come in pairs.
            let count = (size.each * share).div_ceil(of).next_multiple_of(2);
            let ids = Self::fill(&store, session, &mint, count, |place, delivery| match deed {
                "due" => {
                    delivery.state = State::Queued { due: now + DAY };
                    *place = RowIndex::Delayed;
                }
                "expiry" => delivery.expiry = Expiry::At(now + DAY),
                _ => {}
            });
            victims.push(Victims { deed, ids: ids.await? });
        }
        late.extend(Self::fill(&store, session, &mint, size.late / 2, |_, _| {}).await?);
        late.extend(Self::fill(&store, session, &mint, size.late / 2, |place, _| *place = RowIndex::Spilled).await?);
        store.close().await;
        Ok(Self { folder, now, victims, late })
    }

    async fn fill(
        store: &Sqlite,
        session: posthaste_store::Session,
        mint: &MessageMint,
        count: u64,
        change: impl Fn(&mut RowIndex, &mut posthaste_core::Delivery),
    ) -> Result<Vec<DeliveryId>, CannotRun> {
        let mut ids = Vec::new();
        for _ in 0..count {
            let mut accepted = mint.message();
            for new in &mut accepted.deliveries {
                change(&mut new.place, &mut new.delivery);
                ids.push(new.delivery.id);
            }
            store.accept(session, vec![accepted]).await?;
            // Drops the arrivals: the store accepts only while its queue of arrivals has room.
            store.arrivals().await;
        }
        Ok(ids)
    }

    /// Runs all attacks. Returns the deliveries that were altered or forged.
    pub(super) fn vandalise(&self) -> Result<Vec<DeliveryId>, CannotRun> {
        let file = self.folder.path().join("posthaste.db").display().to_string();
        for Victims { deed, ids } in &self.victims {
            let (Some(first), Some(last)) = (ids.first(), ids.last()) else { continue };
            let args = [file.clone(), (*deed).to_owned(), first.raw().to_string(), last.raw().to_string()];
            let mut forger = ChildProcess::start("forge", &args)?;
            let line = forger.line()?;
            let changed = line.trim();
            if !forger.ends()?.success() || changed != ids.len().to_string() {
                return Err(CannotRun(format!("the attack {deed} changed {changed:?} rows instead of {}", ids.len())));
            }
        }
        let altered = self.victims.iter().filter(|victims| victims.deed != "forged").flat_map(|victims| &victims.ids);
        Ok(altered.copied().chain(self.forged()).collect())
    }

    /// The rows that the attacker added.
    pub(super) fn forged(&self) -> Vec<DeliveryId> {
        let copied = self.victims.iter().filter(|victims| victims.deed == "forged").flat_map(|victims| &victims.ids);
        copied.map(|id| DeliveryId(id.0.plus(1))).collect()
    }

    /// The deliveries whose rows and payloads are unchanged. All of them are due.
    pub(super) fn untouched(&self) -> Vec<DeliveryId> {
        let copied = self.victims.iter().filter(|victims| victims.deed == "forged").flat_map(|victims| &victims.ids);
        self.late.iter().chain(copied).copied().collect()
    }
}

/// The results of running the driver.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) arrived: BTreeSet<DeliveryId>,
    pub(super) rejected: u64,
    pub(super) renewed: u64,
    /// Lines at error level.
    pub(super) errors: u64,
}

impl Run {
    /// Runs the production driver over a store until `enough` holds and nothing more happens.
    pub(super) async fn over(
        filled: &Filled,
        trusting: bool,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<Self, CannotRun> {
        let store = Arc::new(Sqlite::open_folder(filled.folder.path(), master_key())?);
        if trusting {
            store.trust_every_row();
        }
        let start = store.open(SystemClock::new().now()).await?;
        let arrived = Arc::new(Mutex::new(BTreeSet::new()));
        let seen = Arc::clone(&arrived);
        let receive = move |send: &posthaste_engine::dispatch::SendAttempt, _: &posthaste_store::Message| {
            lock(&seen).insert(send.start.delivery);
            taken()
        };
        let transport = Loopback::new(Arc::clone(&store), ATTEMPT, Box::new(receive));
        let (driver, _handle) = transport.drive(Limits::default(), start, SystemClock::new(), 1);
        let log = MemoryLog::default();
        let listening = tracing::subscriber::set_default(log.subscriber(tracing::Level::ERROR));
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(driver.run(stop.clone()));
        let results = || {
            let arrived = lock(&arrived).clone();
            let tokens = store.tokens();
            let errors = log.events() as u64;
            Self { arrived, rejected: tokens.rejected, renewed: tokens.renewed, errors }
        };
        let (mut last, mut moved) = ((0, 0), Instant::now());
        let untouched = filled.untouched();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let run = results();
            let now = (run.arrived.len(), run.rejected);
            if now != last {
                (last, moved) = (now, Instant::now());
            }
            let all = enough(&run) && untouched.iter().all(|id| run.arrived.contains(id));
            // Half a second more, for deliveries that are sent by mistake.
            let settles = if all { Duration::from_millis(500) } else { STANDS_STILL };
            if moved.elapsed() > settles {
                break;
            }
        }
        stop.cancel();
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        drop(listening);
        let run = results();
        store.close().await;
        Ok(run)
    }
}
