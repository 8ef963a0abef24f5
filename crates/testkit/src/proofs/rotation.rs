//! The proof `rotation`: the master key is rotated again and again in a process under load, which is killed at every
//! step of a rotation. Nothing that was acknowledged is lost or unreadable, and after the end of a rotation the files
//! contain nothing that an old master key has wrapped.
//!
//! The attacker is a separate process ([`attacker`]). It has the files as a kill leaves them, all former master keys,
//! and every wrapped key that was ever seen in the files. The control is the same database with one tenant's key as
//! the rotation would leave it if it skipped that key.

pub mod attacker;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use posthaste_crypto::master::{MasterKey, MasterKeyId};
use posthaste_engine::master_key::FILE;
use rusqlite::Connection;

use crate::fixtures::{ChildProcess, block_on, copied, hex, missing_in_the_end, part, seeder};
use crate::proofs::keyed::{self, BARE, DELIVERED, READY, ROTATED};
use crate::proofs::store_kill9::record;
use crate::prove::{CannotRun, Context, Figure, Findings, Options};

/// If nothing has arrived for this long, the messages that are missing are lost: retries come sooner.
const STANDS_STILL: Duration = Duration::from_secs(10);

pub fn run(options: &Options) -> Findings {
    let kills = if options.quick { 24 } else { 240 };
    let mut dice = fastrand::Rng::with_seed(options.first.unwrap_or(12));
    let mut world = World::begin()?;
    for cycle in 0..kills {
        world.cycle(When::ALL[cycle % When::ALL.len()], &mut dice)?;
    }
    world.rotates_once_more()?;
    let left = attack(&world.data(), &world)?;
    let control = control(&world)?;
    let lost = world.everything_arrives()?;
    let unreadable = world.unreadable()?;
    let World { rotations, keys, wrapped, .. } = &world;
    eprintln!("{kills} kills, {rotations} rotations, {} keys, {} wrapped forms seen", keys.len(), wrapped.len());
    Ok(vec![
        Figure::at_least("kills", kills as f64, "kills", kills as f64),
        Figure::at_least("rotations", f64::from(*rotations), "rotations", kills as f64 / 6.0),
        Figure::at_least("wrapped_seen", wrapped.len() as f64, "keys", 1_000.0),
        Figure::at_least("acknowledged", world.acknowledged()? as f64, "messages", kills as f64),
        Figure::at_most("lost", lost as f64, "messages", 0.0),
        Figure::at_most("unreadable", unreadable as f64, "messages", 0.0),
        Figure::at_least("searched", left.searched as f64 / 1e6, "MB", 1.0),
        Figure::at_most("left_by_an_old_key", (left.begun + left.pieces) as f64, "places", 0.0),
        Figure::at_most("opened_by_an_old_key", left.opened as f64, "keys", 0.0),
        Figure::at_least("control_opened", control.opened as f64, "keys", 1.0),
    ])
}

/// The point at which the process is killed.
#[derive(Clone, Copy)]
enum When {
    InTheStart,
    /// After the rotation was requested, while the new key is made.
    Asked,
    /// After this many steps of the rotation.
    Steps(usize),
    /// When everything is wrapped with the new key, while the old table and the log are cleared.
    NothingLeft,
    /// When the rotation has ended, and the old key is removed.
    Rotated,
}

impl When {
    const ALL: [Self; 6] =
        [Self::Asked, Self::Steps(2), Self::NothingLeft, Self::Rotated, Self::Steps(4), Self::InTheStart];
}

/// The process under test, and all keys that were seen.
struct World {
    folder: tempfile::TempDir,
    /// Every master key so far.
    keys: BTreeMap<MasterKeyId, String>,
    /// Every wrapped key so far, with the id of its data key.
    wrapped: BTreeMap<Vec<u8>, i64>,
    rotations: u32,
}

impl World {
    fn begin() -> Result<Self, CannotRun> {
        let folder = tempfile::Builder::new().prefix("rotation-").tempdir_in(seeder::shelf()?)?;
        Ok(Self { folder, keys: BTreeMap::new(), wrapped: BTreeMap::new(), rotations: 0 })
    }

    fn data(&self) -> PathBuf {
        keyed::data(self.folder.path())
    }

    fn start(&self) -> Result<ChildProcess, CannotRun> {
        ChildProcess::start("keyed-node", [self.folder.path()])
    }

    fn cycle(&mut self, when: When, dice: &mut fastrand::Rng) -> Result<(), CannotRun> {
        let mut node = self.start()?;
        let mut delay = Duration::from_micros(dice.u64(..4_000));
        match when {
            When::InTheStart => delay *= 10,
            _ => {
                node.until(|line| line == READY)?;
                node.tell("load")?;
                // Lets the producers start first.
                thread::sleep(Duration::from_millis(dice.u64(20..60)));
                node.tell("rotate")?;
                match when {
                    When::InTheStart | When::Asked => {}
                    When::Steps(count) => {
                        let mut seen = 0;
                        node.until(|line| {
                            seen += usize::from(line.starts_with("step"));
                            seen == count
                        })?;
                    }
                    When::NothingLeft => node.until(|line| line == "step 1 0")?,
                    When::Rotated => node.until(|line| line == ROTATED)?,
                }
            }
        }
        thread::sleep(delay);
        node.kill()?;
        // Rotations that ended before the kill.
        self.rotations +=
            node.says()?.lines().map_while(Result::ok).map(|line| u32::from(line == ROTATED)).sum::<u32>();
        self.rotations += u32::from(matches!(when, When::Rotated));
        self.note()
    }

    /// Starts the process once more, and kills it when a rotation has ended.
    fn rotates_once_more(&mut self) -> Result<(), CannotRun> {
        let mut node = self.start()?;
        node.until(|line| line == READY)?;
        node.tell("load")?;
        node.tell("rotate")?;
        node.until(|line| line == ROTATED)?;
        node.kill()?;
        self.rotations += 1;
        self.note()
    }

    /// Records the master keys and wrapped keys in the files.
    fn note(&mut self) -> Result<(), CannotRun> {
        let text = fs::read_to_string(self.data().join(FILE)).unwrap_or_default();
        for line in text.lines() {
            let key = MasterKey::parse(line).context("the file holds no key")?;
            self.keys.insert(key.id(), line.to_owned());
        }
        let copy = self.folder.path().join("seen");
        copied(&self.data(), &copy, |name| name.starts_with(FILE))?;
        let seen = Connection::open(copy.join("posthaste.db")).and_then(|conn| {
            let mut sql = conn.prepare(
                "SELECT wrapped, id FROM master_wrapped_0 UNION ALL SELECT wrapped, id FROM master_wrapped_1",
            )?;
            sql.query_map([], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()
        });
        // A process killed during its first start may not have made the tables yet.
        self.wrapped.extend(seen.unwrap_or_default());
        Ok(fs::remove_dir_all(copy)?)
    }

    /// The master keys that are in the key file now.
    fn current(&self) -> Result<BTreeSet<MasterKeyId>, CannotRun> {
        let text = fs::read_to_string(self.data().join(FILE))?;
        Ok(text.lines().filter_map(|line| MasterKey::parse(line).ok()).map(|key| key.id()).collect())
    }

    fn ledger(&self, of: usize) -> Result<Vec<record::TokenRecord>, CannotRun> {
        Ok(record::read(&record::ledger(self.folder.path(), of))?)
    }

    fn acknowledged(&self) -> Result<usize, CannotRun> {
        Ok(self.ledger(DELIVERED)?.len() + self.ledger(BARE)?.len())
    }

    /// Starts the process and lets it deliver everything acknowledged. Returns how many messages never arrived.
    fn everything_arrives(&self) -> Result<usize, CannotRun> {
        let mut node = self.start()?;
        node.until(|line| line == READY)?;
        let wanted: BTreeSet<u64> = self.ledger(DELIVERED)?.iter().map(|record| record.token).collect();
        missing_in_the_end(STANDS_STILL, || {
            let arrived = record::read(&record::arrivals(self.folder.path()))?;
            let arrived: BTreeSet<u64> = arrived.iter().map(|record| record.token).collect();
            Ok(wanted.difference(&arrived).count())
        })
    }

    /// How many of the acknowledged messages cannot be read with the body that was handed in.
    fn unreadable(&self) -> Result<usize, CannotRun> {
        block_on(async {
            let store = keyed::open(&self.data())?;
            let mut records = self.ledger(DELIVERED)?;
            records.extend(self.ledger(BARE)?);
            let unreadable = keyed::unreadable(&store, &records).await;
            store.close().await;
            Ok(unreadable)
        })
    }
}

/// Runs the attacker on a folder. It gets all master keys but those that are in use.
fn attack(folder: &Path, world: &World) -> Result<attacker::WrappedFound, CannotRun> {
    let current = world.current()?;
    let is_old = |id: &MasterKeyId| !current.contains(id);
    let mut text = String::new();
    for (_, key) in world.keys.iter().filter(|(id, _)| is_old(id)) {
        text += &format!("key {key}\n");
    }
    for wrapped in world.wrapped.keys() {
        if attacker::wrapped_by(wrapped).is_some_and(|by| is_old(&by)) {
            text += &format!("wrapped {}\n", hex(wrapped));
        }
    }
    attacker::WrappedFound::parse(&part::run("unwrap", [folder], &text)?)
}

/// The control: runs the attacker on a copy in which one tenant's key is still wrapped by a former master key.
fn control(world: &World) -> Result<attacker::WrappedFound, CannotRun> {
    let copy = world.folder.path().join("control");
    copied(&world.data(), &copy, |name| name.starts_with(FILE))?;
    let current = world.current()?;
    let mut old = world
        .wrapped
        .iter()
        .filter(|(wrapped, _)| attacker::wrapped_by(wrapped).is_some_and(|by| !current.contains(&by)));
    let (wrapped, id) = old.next_back().context("no key was ever rotated")?;
    let conn = Connection::open(copy.join("posthaste.db"));
    conn.and_then(|conn| conn.execute("INSERT OR REPLACE INTO master_wrapped_0 VALUES (?1, ?2)", (id, wrapped)))
        .context("cannot restore an old wrapped key")?;
    attack(&copy, world)
}
