//! The tasks of measured processes, and their results.

use std::fs;
use std::time::Duration;

use super::heap::Heap;
use super::owner::Owner;
use super::window::WindowContent;
use crate::prove::{CannotRun, Context};

/// A load to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpeedTask {
    /// The scheduler with all deliveries in its window.
    Front,
    /// The scheduler with a million rows in the store.
    Behind,
    /// The negative control: the scheduler with a read of every lane before every pick.
    Scan,
    /// The baseline: a plain heap of due times.
    Heap,
}

/// A task for a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Run a load and print the CPU time of a delivery.
    Time { load: SpeedTask, warm_up: u64, deliveries: u64 },
    /// Run a load and print nothing: valgrind counts.
    Work { load: SpeedTask, warm_up: u64, deliveries: u64 },
    /// Fill a window and print the bytes of a delivery.
    Keep { kept: WindowContent },
}

const LOADS: [(&str, SpeedTask); 4] =
    [("front", SpeedTask::Front), ("behind", SpeedTask::Behind), ("scan", SpeedTask::Scan), ("heap", SpeedTask::Heap)];

impl Task {
    /// The task as a command line.
    pub(super) fn args(&self) -> Vec<String> {
        let load_args = |verb: &str, load: SpeedTask, warm_up: u64, deliveries: u64| {
            let name = name_of(&LOADS, load);
            vec![verb.to_owned(), name.to_owned(), warm_up.to_string(), deliveries.to_string()]
        };
        match *self {
            Self::Time { load, warm_up, deliveries } => load_args("time", load, warm_up, deliveries),
            Self::Work { load, warm_up, deliveries } => load_args("work", load, warm_up, deliveries),
            Self::Keep { kept } => vec!["keep".to_owned(), name_of(&WindowContent::NAMES, kept).to_owned()],
        }
    }

    /// The task of a command line.
    fn read(args: &[&str]) -> Option<Self> {
        let number = |text: &str| text.parse().ok();
        match *args {
            ["time", load, warm_up, deliveries] => Some(Self::Time {
                load: named(&LOADS, load)?,
                warm_up: number(warm_up)?,
                deliveries: number(deliveries)?,
            }),
            ["work", load, warm_up, deliveries] => Some(Self::Work {
                load: named(&LOADS, load)?,
                warm_up: number(warm_up)?,
                deliveries: number(deliveries)?,
            }),
            ["keep", kept] => Some(Self::Keep { kept: named(&WindowContent::NAMES, kept)? }),
            _ => None,
        }
    }

    fn run(self) -> Result<String, CannotRun> {
        match self {
            Self::Time { load, warm_up, deliveries } => Ok(time(load, warm_up, deliveries)?.written()),
            Self::Work { load, warm_up, deliveries } => {
                work(load, warm_up, deliveries);
                Ok(String::new())
            }
            Self::Keep { kept } => Ok(kept.bytes_each()?.to_string()),
        }
    }
}

fn name_of<T: Copy + PartialEq>(names: &[(&'static str, T)], thing: T) -> &'static str {
    names.iter().find(|(_, named)| *named == thing).map(|(name, _)| *name).expect("everything has a name")
}

fn named<T: Copy>(names: &[(&str, T)], name: &str) -> Option<T> {
    names.iter().find(|(known, _)| *known == name).map(|(_, thing)| *thing)
}

/// Runs the task of these words, and prints the result.
pub(crate) fn run(words: &[&str]) -> Result<(), CannotRun> {
    let task = Task::read(words).context(format!("{words:?} is not a task"))?;
    println!("{}", task.run()?);
    Ok(())
}

/// The results of a timed run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timed {
    /// CPU time of a delivery, in µs.
    pub(super) micros: f64,
    /// Lanes with a delivery that ended.
    pub(super) lanes_served: usize,
}

impl Timed {
    fn written(self) -> String {
        format!("{} {}", self.micros, self.lanes_served)
    }

    pub(super) fn read(line: &str) -> Option<Self> {
        let (micros, lanes_served) = line.trim().split_once(' ')?;
        Some(Self { micros: micros.parse().ok()?, lanes_served: lanes_served.parse().ok()? })
    }
}

/// The longest time of a run. A slower load is judged by the deliveries that it made until then.
const CPU_MAX: Duration = Duration::from_secs(2);
/// Deliveries between two readings of the clock, each of which costs some microseconds.
const STEP: u64 = 2_000;

fn time(load: SpeedTask, warm_up: u64, deliveries: u64) -> Result<Timed, CannotRun> {
    let mut running = Running::start(load);
    running.run_timed(warm_up)?;
    running.is_warm(load);
    let (took, done) = running.run_timed(deliveries)?;
    Ok(Timed { micros: took.as_secs_f64() * 1e6 / done as f64, lanes_served: running.lanes_served() })
}

fn work(load: SpeedTask, warm_up: u64, deliveries: u64) {
    let mut running = Running::start(load);
    running.run(warm_up);
    running.is_warm(load);
    running.run(deliveries);
}

enum Running {
    Queue(Box<Owner>),
    Heap(Heap),
}

impl Running {
    fn start(load: SpeedTask) -> Self {
        match load {
            SpeedTask::Front | SpeedTask::Scan => Self::Queue(Box::new(Owner::with_nothing_behind())),
            SpeedTask::Behind => Self::Queue(Box::new(Owner::with_rows_behind())),
            SpeedTask::Heap => Self::Heap(Heap::new()),
        }
    }

    /// Called before the measurement: switches on the extra work of [`SpeedTask::Scan`].
    fn is_warm(&mut self, load: SpeedTask) {
        if let (Self::Queue(owner), SpeedTask::Scan) = (self, load) {
            owner.look_at_every_lane();
        }
    }

    fn run(&mut self, deliveries: u64) {
        match self {
            Self::Queue(owner) => owner.run(deliveries),
            Self::Heap(heap) => heap.run(deliveries),
        }
    }

    /// Runs until the deliveries are made or the time is up. Returns the CPU time, and how many were made.
    fn run_timed(&mut self, deliveries: u64) -> Result<(Duration, u64), CannotRun> {
        let began = cpu_time()?;
        let mut done = 0;
        loop {
            let step = STEP.min(deliveries - done);
            self.run(step);
            done += step;
            let took = cpu_time()?.saturating_sub(began);
            if done >= deliveries || took > CPU_MAX {
                return Ok((took, done));
            }
        }
    }

    /// The lanes served; 0 for a heap, which has none.
    fn lanes_served(&self) -> usize {
        match self {
            Self::Queue(owner) => owner.lanes_served(),
            Self::Heap(_) => 0,
        }
    }
}

/// The CPU time of this thread, as Linux reports it.
fn cpu_time() -> Result<Duration, CannotRun> {
    // The kernel updates its count when the thread yields.
    std::thread::yield_now();
    let text = fs::read_to_string("/proc/thread-self/schedstat").context("schedstat cannot be read")?;
    let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
    nanos.map(Duration::from_nanos).context(format!("schedstat begins with no number: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_is_read_as_it_was_written() {
        let loads = LOADS.map(|(_, load)| load);
        let times = loads.map(|load| Task::Time { load, warm_up: 3, deliveries: 7 });
        let works = loads.map(|load| Task::Work { load, warm_up: 0, deliveries: 9 });
        let keeps = WindowContent::NAMES.map(|(_, kept)| Task::Keep { kept });
        for task in times.into_iter().chain(works).chain(keeps) {
            let args = task.args();
            let words: Vec<&str> = args.iter().map(String::as_str).collect();
            assert_eq!(Task::read(&words), Some(task), "{words:?}");
        }
        assert_eq!(Task::read(&["time", "nothing", "1", "1"]), None);
        assert_eq!(Task::read(&["time", "front", "1", "some"]), None);
    }

    #[test]
    fn timed_result_is_read_as_it_was_written() {
        let timed = Timed { micros: 1.0625, lanes_served: 10_000 };
        assert_eq!(Timed::read(&format!("{}\n", timed.written())), Some(timed));
        assert_eq!(Timed::read("fast"), None);
    }
}
