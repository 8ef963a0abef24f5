//! The proof `backup`: backups are made of a process under load, and restored as the data of another process.
//! Everything that was acknowledged before a backup began is in it and can be read, the database and its journal pass
//! their checks, nothing is sent until the restored copy is released, and everything pending arrives afterwards.
//!
//! A backup of a large store must hardly slow down a producer ([`measure`]).
//!
//! Backups that are incomplete or altered, and a wrong key, are refused. The controls are a database copied without its
//! log, in which messages must be missing, and a restored copy whose pause was removed, which must send.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use posthaste_core::{Key, MessageId, TenantId, Timestamp};
use posthaste_crypto::master::MasterKey;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::master_key::{self, FILE, MasterKeySource};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::sqlite::audit::{Trust, verify};
use posthaste_store::sqlite::backup::back_up;
use posthaste_store::sqlite::backup::restore::{Restored, restore};
use posthaste_store::{Accepted, Message, Outbox, Session, StoreError};
use rusqlite::Connection;
use tokio::time::Instant;

use crate::fixtures::{ChildProcess, block_on, copied, seeder};
use crate::proofs::keyed::{self, BACKED_UP, BARE, DELIVERED, READY, RELEASED};
use crate::proofs::store_kill9::record::{self, TokenRecord};
use crate::prove::{CannotRun, Context, Figure, Findings, Options};

/// How long a restored copy is observed: without a pause it would send within a few milliseconds.
const WATCHED: Duration = Duration::from_millis(400);
/// The longest wait for the pending deliveries of a released copy.
const ARRIVES_WITHIN: Duration = Duration::from_secs(20);

/// The least time of an accept alone to compare with, so that a fast disk does not make the bar too strict.
const ANY_DISK: Duration = Duration::from_millis(5);

pub fn run(options: &Options) -> Findings {
    let backups = if options.quick { 3 } else { 20 };
    let mut world = World::begin()?;
    let mut found = Found::default();
    for number in 0..backups {
        let made = world.back_up(number)?;
        world.examine(number, &made, &mut found)?;
    }
    let made = world.back_up(backups)?;
    let without_log = world.without_its_log()?;
    world.node.kill()?;
    let refused = world.refused(&made)?;
    let unpaused = world.unpaused(&made)?;
    let bytes = if options.quick { 64 << 20 } else { 1 << 30 };
    let took = measure(world.folder.path(), bytes)?;
    let times = took.beside.as_secs_f64() / took.alone.max(ANY_DISK).as_secs_f64();
    eprintln!("{took:?}, {found:?}, {without_log} missing without the log, {unpaused} sent without a pause");
    Ok(vec![
        Figure::at_least("backups", f64::from(backups), "backups", f64::from(backups)),
        Figure::at_least("acknowledged_before", found.before as f64, "messages", 100.0),
        Figure::at_most("missing_or_unreadable", found.missing as f64, "messages", 0.0),
        Figure::at_most("unsound", f64::from(found.unsound), "copies", 0.0),
        Figure::at_most("sent_before_release", found.sent_early as f64, "attempts", 0.0),
        Figure::at_least("pending_released", found.pending as f64, "deliveries", 1.0),
        Figure::at_most("not_delivered_after", found.left as f64, "deliveries", 0.0),
        Figure::at_most("ids_given_twice", f64::from(found.ids_again), "copies", 0.0),
        Figure::at_most("accept_p99_beside_a_backup", times, "times", 4.0).by_the_clock(options),
        Figure::at_least("bad_ones_refused", f64::from(refused), "attempts", f64::from(BAD)),
        Figure::at_least("control_without_log_missing", without_log as f64, "messages", 1.0),
        Figure::at_least("control_unpaused_sent", unpaused as f64, "attempts", 1.0),
    ])
}

/// The results of the restored copies.
#[derive(Debug, Default)]
struct Found {
    before: usize,
    missing: usize,
    unsound: u32,
    sent_early: u64,
    pending: u64,
    left: u64,
    ids_again: u32,
}

/// A backup, and the messages that were acknowledged before it began.
struct Made {
    path: PathBuf,
    before: Vec<TokenRecord>,
}

/// The process under load.
struct World {
    folder: tempfile::TempDir,
    node: ChildProcess,
}

impl World {
    fn begin() -> Result<Self, CannotRun> {
        let folder = tempfile::Builder::new().prefix("backup-").tempdir_in(seeder::shelf()?)?;
        fs::create_dir(folder.path().join("backups"))?;
        let mut node = start(folder.path())?;
        node.tell("load")?;
        Ok(Self { folder, node })
    }

    /// The messages acknowledged so far.
    fn acknowledged(&self) -> Result<Vec<TokenRecord>, CannotRun> {
        let mut all = record::read(&record::ledger(self.folder.path(), DELIVERED))?;
        all.extend(record::read(&record::ledger(self.folder.path(), BARE))?);
        Ok(all)
    }

    fn back_up(&mut self, number: u32) -> Result<Made, CannotRun> {
        thread::sleep(Duration::from_millis(200));
        let before = self.acknowledged()?;
        let path = self.folder.path().join(format!("backups/{number}"));
        self.node.tell(&format!("backup {}", path.display()))?;
        self.node.until(|line| line == BACKED_UP)?;
        Ok(Made { path, before })
    }

    /// Restores a backup into a new folder with its master key.
    fn restored(&self, made: &Made, name: &str) -> Result<(PathBuf, Restored), CannotRun> {
        let elsewhere = self.folder.path().join(name);
        let data = keyed::data(&elsewhere);
        fs::create_dir_all(&data)?;
        fs::copy(keyed::data(self.folder.path()).join(FILE), data.join(FILE))?;
        let restored = restored(&made.path, &data)?;
        Ok((elsewhere, restored))
    }

    /// Restores a backup, checks it before and after its release, and removes it.
    fn examine(&self, number: u32, made: &Made, found: &mut Found) -> Result<(), CannotRun> {
        let (elsewhere, restored) = self.restored(made, &format!("restored-{number}"))?;
        let data = keyed::data(&elsewhere);
        found.before += made.before.len();
        found.unsound += u32::from(!is_sound(&data)?);
        found.missing += unreadable(&data, &made.before)?;
        let waits: u64 = restored.would_send.iter().map(|one| one.pending).sum();
        let pending_before = pending(&data)?;
        found.pending += pending_before;
        found.unsound += u32::from(waits != pending_before);
        let mut node = start(&elsewhere)?;
        thread::sleep(WATCHED);
        found.sent_early += record::count(&record::arrivals(&elsewhere));
        node.tell("release")?;
        node.until(|line| line == RELEASED)?;
        let began = Instant::now();
        while pending(&data)? > 0 && began.elapsed() < ARRIVES_WITHIN {
            thread::sleep(Duration::from_millis(50));
        }
        found.left += pending(&data)?;
        // The released copy accepts new messages; their ids must differ from those of the original.
        node.tell("load")?;
        thread::sleep(Duration::from_millis(50));
        node.kill()?;
        let ours: BTreeSet<u64> = self.acknowledged()?.iter().map(|record| record.id).collect();
        let theirs = record::read(&record::ledger(&elsewhere, DELIVERED))?;
        found.ids_again += u32::from(theirs.is_empty() || theirs.iter().any(|record| ours.contains(&record.id)));
        Ok(fs::remove_dir_all(elsewhere)?)
    }

    /// How many messages are missing from a database that was copied without its log. Right after a checkpoint none is
    /// missing, so up to ten copies are made. A copy made during a checkpoint cannot be opened: all its messages count
    /// as missing.
    fn without_its_log(&self) -> Result<usize, CannotRun> {
        for _ in 0..10 {
            let missing = self.copied_without_its_log()?;
            if missing > 0 {
                return Ok(missing);
            }
            thread::sleep(Duration::from_millis(30));
        }
        Ok(0)
    }

    fn copied_without_its_log(&self) -> Result<usize, CannotRun> {
        let before = self.acknowledged()?;
        let data = keyed::data(self.folder.path());
        let copy = self.folder.path().join("without-log");
        fs::create_dir_all(&copy)?;
        for name in ["posthaste.db", FILE] {
            fs::copy(data.join(name), copy.join(name))?;
        }
        let missing = unreadable(&copy, &before)?;
        fs::remove_dir_all(copy)?;
        Ok(missing)
    }

    /// How many of the bad backups and keys are refused with the right reason.
    fn refused(&self, made: &Made) -> Result<u32, CannotRun> {
        let key = fs::read_to_string(keyed::data(self.folder.path()).join(FILE))?;
        let wrong = format!("{}\n", MasterKey::generate().reveal().expose());
        let cases: [(&str, &str, &str, Spoil); BAD as usize] = [
            ("another key", &wrong, "are sealed under master key", |_| Ok(())),
            ("cut short", &key, "it was cut short", |file| file.set_len(file.metadata()?.len() - 8_192)),
            ("altered", &key, "it was altered", |mut file| {
                let middle = file.metadata()?.len() / 2;
                file.seek(SeekFrom::Start(middle))?;
                file.write_all(b"altered")
            }),
        ];
        let mut refused = 0;
        for (name, key, reason, spoil) in cases {
            let copy = self.folder.path().join(name);
            copied(&made.path, &copy, |name| name.starts_with(FILE))?;
            spoil(fs::OpenOptions::new().write(true).open(copy.join("posthaste.db"))?)?;
            let data = copy.join("data");
            fs::create_dir(&data)?;
            fs::write(data.join(FILE), key)?;
            fs::set_permissions(data.join(FILE), std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
            match restored(&copy, &data) {
                Err(CannotRun(why)) if why.contains(reason) => refused += 1,
                Err(CannotRun(why)) => eprintln!("{name} was refused with {why:?}"),
                Ok(_) => eprintln!("{name} was restored"),
            }
        }
        Ok(refused)
    }

    /// The control: how many attempts a restored copy makes whose pause was removed.
    fn unpaused(&self, made: &Made) -> Result<u64, CannotRun> {
        let (elsewhere, _) = self.restored(made, "unpaused")?;
        let conn = Connection::open(keyed::data(&elsewhere).join("posthaste.db"));
        conn.and_then(|conn| conn.execute("DELETE FROM pause", [])).context("cannot remove the pause")?;
        let _node = start(&elsewhere)?;
        thread::sleep(WATCHED);
        Ok(record::count(&record::arrivals(&elsewhere)))
    }
}

/// How many bad backups and keys there are.
const BAD: u32 = 3;

/// A change that spoils a backup's database file.
type Spoil = fn(fs::File) -> std::io::Result<()>;

fn start(folder: &Path) -> Result<ChildProcess, CannotRun> {
    let mut node = ChildProcess::start("keyed-node", [folder])?;
    node.until(|line| line == READY)?;
    Ok(node)
}

fn restored(from: &Path, data: &Path) -> Result<Restored, CannotRun> {
    let ask = |needed: &[_]| master_key::load(&MasterKeySource::Folder, data, needed).map_err(|why| why.to_string());
    let now = SystemClock::new().now();
    block_on(async { Ok(restore(from, data, &[], now, ask, |_| {}).await?) })
}

/// Whether a copy passes SQLite's integrity check and the audit.
fn is_sound(data: &Path) -> Result<bool, CannotRun> {
    let checked = Connection::open(data.join("posthaste.db"))
        .and_then(|conn| conn.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)))
        .context("a restored copy cannot be read")?;
    let verified = verify(data, &Trust::without_checkpoints(SystemClock::new().now()), |_| {})?;
    verified.report.findings.iter().for_each(|finding| eprintln!("{finding}"));
    Ok(checked == "ok" && verified.report.is_clean())
}

fn unreadable(data: &Path, records: &[TokenRecord]) -> Result<usize, CannotRun> {
    block_on(async {
        let store = match keyed::open(data) {
            Err(StoreError::Folder { reason, .. }) => {
                eprintln!("a copy cannot be opened, so all its messages count as missing: {reason}");
                return Ok(records.len());
            }
            opened => opened?,
        };
        let unreadable = keyed::unreadable(&store, records).await;
        store.close().await;
        Ok(unreadable)
    })
}

fn pending(data: &Path) -> Result<u64, CannotRun> {
    let conn = Connection::open(data.join("posthaste.db"));
    let counted = conn.and_then(|conn| conn.query_row("SELECT count(*) FROM delivery", [], |row| row.get::<_, u32>(0)));
    counted.map(u64::from).context("pending deliveries cannot be counted")
}

const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
/// How often the two measurements take turns, so that other work of the machine affects both.
const ROUNDS: u32 = 3;
/// The size of the messages with which the store is filled: large, so that it is fast.
const FILL_BYTES: usize = 64 * 1024;
const FILL_MESSAGES: u64 = 32;
/// The size of the producer's messages.
const BODY_BYTES: usize = 600;
/// The least number of accepts without a backup in a turn.
const ACCEPTS: usize = 100;

/// The 99th percentile of the time of an accept, without a backup and during one.
#[derive(Clone, Copy, Debug)]
struct Beside {
    alone: Duration,
    beside: Duration,
}

/// Backs up a store of this size while a producer sends each message as soon as the last one is answered.
fn measure(folder: &Path, bytes: u64) -> Result<Beside, CannotRun> {
    block_on(async {
        let data = folder.join("large");
        let store = Sqlite::open_folder(&data, crate::master_key())?;
        let session = store.open(NOW).await?.session;
        let mut producer = Producer { store: &store, data, session, made: 0 };
        producer.fill(bytes).await?;
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            producer.beside_a_backup(&folder.join("large-copy"), &mut beside).await?;
            let until = beside.len().max(alone.len() + ACCEPTS);
            while alone.len() < until {
                alone.push(producer.send().await?);
            }
        }
        store.close().await;
        Ok(Beside { alone: p99(alone), beside: p99(beside) })
    })
}

struct Producer<'s> {
    store: &'s Sqlite,
    data: PathBuf,
    session: Session,
    made: u64,
}

impl Producer<'_> {
    fn message(&mut self, bytes: usize) -> Accepted {
        self.made += 1;
        let id = MessageId(Key::new(self.session.writer, self.made));
        Accepted::new(Message::new(id, TenantId::from_raw(1), NOW, vec![b'x'; bytes]), Vec::new())
    }

    async fn fill(&mut self, bytes: u64) -> Result<(), CannotRun> {
        for _ in 0..bytes / (FILL_MESSAGES * FILL_BYTES as u64) {
            let messages = (0..FILL_MESSAGES).map(|_| self.message(FILL_BYTES)).collect();
            _ = self.store.accept(self.session, messages).await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<Duration, CannotRun> {
        let message = self.message(BODY_BYTES);
        let began = Instant::now();
        _ = self.store.accept(self.session, vec![message]).await?;
        Ok(began.elapsed())
    }

    async fn beside_a_backup(&mut self, to: &Path, took: &mut Vec<Duration>) -> Result<(), CannotRun> {
        let (data, copy) = (self.data.clone(), to.to_owned());
        let mut backup = tokio::task::spawn_blocking(move || back_up(&data, &copy, NOW, |_| true));
        loop {
            tokio::select! {
                biased;
                made = &mut backup => {
                    let made = made?;
                    made.context("there is no backup to measure")?;
                    break;
                }
                one = self.send() => took.push(one?),
            }
        }
        Ok(fs::remove_dir_all(to)?)
    }
}

fn p99(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get(took.len() * 99 / 100).copied().unwrap_or_default()
}
