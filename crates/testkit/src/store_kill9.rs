//! The proof `store-kill9`: a real process around the dispatch loop and SQLite is killed again and
//! again under producers that are processes of their own.
//!
//! Three parties keep books and none of them asks the store: each producer writes down what was
//! acknowledged (its *ledger*), the loopback receiver what arrived, and this proof compares the two.
//! Only at the very end the store itself is opened and asked where every delivery is.
//!
//! The control is the same process answering before the commit: it must be caught losing something.

mod check;
mod node;
mod producer;
pub(crate) mod record;

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::part::{self, Part};
use crate::prove::{CannotRun, Figure, Findings, Options};
use crate::seeder;
use check::Books;
use node::SLOTS;

const PRODUCERS: usize = 8;
/// A node that does not answer by then is not going to.
const PATIENCE: Duration = Duration::from_secs(30);
/// What has not come by then, with nothing else coming either, is not on its way: retries come sooner.
const STANDS_STILL: Duration = Duration::from_secs(10);
/// Every so many cycles the node is killed while it starts.
const IN_THE_START: u32 = 5;
/// Cycles until the control must have lost something.
const CONTROL_CYCLES: u32 = 10;

/// How much is done.
#[derive(Clone, Copy)]
struct Size {
    cycles: u32,
    acknowledged: u64,
}

const FULL: Size = Size { cycles: 60, acknowledged: 100_000 };
const QUICK: Size = Size { cycles: 20, acknowledged: 10_000 };

/// Plays one of the parts, as `store_node` was told to.
pub fn main(args: &[String]) -> ExitCode {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    part::end_with_input();
    let ended = match args.as_slice() {
        ["node", folder, promise] => match promise.parse() {
            Ok(promise) => node::run(Path::new(folder), promise),
            Err(error) => Err(error),
        },
        ["producer", folder, number] => match number.parse() {
            Ok(number) => producer::run(Path::new(folder), number),
            Err(error) => Err(CannotRun(format!("{number} is no producer: {error}"))),
        },
        _ => Err(CannotRun("this is one part of the proof store-kill9, which starts it".to_owned())),
    };
    part::ended("store_node", ended)
}

/// Runs the proof.
pub fn run(options: &Options) -> Findings {
    let size = if options.quick { QUICK } else { FULL };
    let mut dice = fastrand::Rng::with_seed(options.first.unwrap_or(9));
    let mut world = World::begin("committed")?;
    for cycle in 0..size.cycles {
        let enough = size.acknowledged * u64::from(cycle + 1) / u64::from(size.cycles);
        world.cycle(cycle, enough, &mut dice)?;
    }
    let lost = world.everything_arrives()?;
    let control = control(&mut dice)?;
    let World { kills, .. } = world;
    let (folder, books) = world.end()?;
    let astray = check::astray(&folder.path().join("data"), &books)?;
    let (acknowledged, arrived) = (books.acknowledged.len(), books.arrived.len());
    eprintln!("{kills} kills, {acknowledged} acknowledged, {arrived} arrived, {lost} lost, {astray} astray");
    Ok(vec![
        Figure::at_least("kills", f64::from(kills), "kills", f64::from(size.cycles)),
        Figure::at_least("acknowledged", count(acknowledged), "messages", size.acknowledged as f64),
        Figure::at_most("lost", count(lost), "messages", 0.0),
        Figure::at_most("rows_astray", count(astray), "rows", 0.0),
        // At most what was in flight at each kill arrives twice.
        Figure::at_most("duplicates", count(books.duplicates()), "arrivals", f64::from(kills * SLOTS)),
        Figure::at_least("control_lost", count(control), "messages", 1.0),
    ])
}

/// A node that promises too early loses something.
fn control(dice: &mut fastrand::Rng) -> Result<usize, CannotRun> {
    let mut world = World::begin("early")?;
    for cycle in 1..=CONTROL_CYCLES {
        world.cycle(cycle, u64::from(cycle) * 500, dice)?;
    }
    world.promise = "committed";
    world.everything_arrives()
}

/// A node, its producers, and the folder with everybody's books.
struct World {
    program: PathBuf,
    folder: tempfile::TempDir,
    promise: &'static str,
    node: Option<Part>,
    producers: Vec<Part>,
    kills: u32,
}

impl World {
    fn begin(promise: &'static str) -> Result<Self, CannotRun> {
        let program = std::env::current_exe()?.with_file_name("store_node");
        if !program.exists() {
            return Err(CannotRun(format!("{} is not built; use `cargo xtask prove`", program.display())));
        }
        let folder = tempfile::Builder::new().prefix("kill9-").tempdir_in(seeder::shelf()?)?;
        let mut world = Self { program, folder, promise, node: None, producers: Vec::new(), kills: 0 };
        for number in 0..PRODUCERS {
            world.producers.push(Part::start(&world.program, ["producer", world.path()?, &number.to_string()])?);
        }
        Ok(world)
    }

    fn path(&self) -> Result<&str, CannotRun> {
        self.folder.path().to_str().ok_or_else(|| CannotRun("the folder's name is not text".to_owned()))
    }

    /// Starts the node and kills it: in the middle of its start, or once so much is acknowledged in
    /// all and a moment has passed.
    fn cycle(&mut self, cycle: u32, enough: u64, dice: &mut fastrand::Rng) -> Result<(), CannotRun> {
        let mut node = Part::start(&self.program, ["node", self.path()?, self.promise])?;
        if cycle % IN_THE_START != 2 {
            is_ready(&mut node)?;
            self.waits_until("acknowledges nothing", |books| books.acknowledged() >= enough)?;
        }
        thread::sleep(Duration::from_micros(dice.u64(..40_000)));
        node.kill()?;
        self.kills += 1;
        Ok(())
    }

    /// Lets the node finish what was promised; gives how many of those never arrived.
    fn everything_arrives(&mut self) -> Result<usize, CannotRun> {
        // They end with their input, after what they are just writing down.
        for producer in &mut self.producers {
            producer.stop()?;
        }
        let mut node = Part::start(&self.program, ["node", self.path()?, self.promise])?;
        is_ready(&mut node)?;
        self.node = Some(node);
        let (mut last, mut moved) = (usize::MAX, Instant::now());
        loop {
            let lost = Books::read(self.folder.path())?.lost();
            if lost < last {
                (last, moved) = (lost, Instant::now());
            }
            if lost == 0 || moved.elapsed() > STANDS_STILL {
                return Ok(lost);
            }
            thread::sleep(Duration::from_millis(300));
        }
    }

    fn waits_until(&self, complaint: &str, enough: impl Fn(&Progress) -> bool) -> Result<(), CannotRun> {
        let began = Instant::now();
        while !enough(&Progress(self.folder.path())) {
            if began.elapsed() > PATIENCE {
                return Err(CannotRun(format!("the node {complaint}")));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Everybody's books, once nobody writes any more.
    fn end(mut self) -> Result<(tempfile::TempDir, Books), CannotRun> {
        if let Some(mut node) = self.node.take() {
            node.kill()?;
        }
        let books = Books::read(self.folder.path())?;
        Ok((self.folder, books))
    }
}

/// How far the producers are, by the length of their ledgers.
struct Progress<'a>(&'a Path);

impl Progress<'_> {
    fn acknowledged(&self) -> u64 {
        (0..PRODUCERS).map(|number| record::count(&record::ledger(self.0, number))).sum()
    }
}

/// Waits for a node's one word.
fn is_ready(node: &mut Part) -> Result<(), CannotRun> {
    let mut said = String::new();
    node.says()?.read_line(&mut said)?;
    if said.trim() == node::READY { Ok(()) } else { Err(CannotRun(format!("the node said {said:?} and ended"))) }
}

#[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
fn count(number: usize) -> f64 {
    number as f64
}
