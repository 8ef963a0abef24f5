//! The tasks of measured processes, and their results.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::time::Duration;

use posthaste_core::{DeliveryId, Roll, Timestamp};
use serde::{Deserialize, Serialize};

use super::owner::{Owner, PENDING, fails};
use super::window::WindowContent;
use crate::prove::{CannotRun, Context};

/// A load to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// A task for a process of its own, which gets it as JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Run a load and print the CPU time of a delivery.
    Time { load: SpeedTask, warm_up: u64, deliveries: u64 },
    /// Run a load and print nothing: valgrind counts.
    Work { load: SpeedTask, warm_up: u64, deliveries: u64 },
    /// Fill a window and print the bytes of a delivery.
    Keep { kept: WindowContent },
}

/// Runs the task that is described as JSON, and prints the result.
pub(crate) fn run(json: &str) -> Result<(), CannotRun> {
    match serde_json::from_str(json).context(format!("{json} is not a task"))? {
        Task::Time { load, warm_up, deliveries } => {
            println!("{}", serde_json::to_string(&time(load, warm_up, deliveries)?)?);
        }
        Task::Work { load, warm_up, deliveries } => work(load, warm_up, deliveries),
        Task::Keep { kept } => println!("{}", kept.bytes_each()?),
    }
    Ok(())
}

/// The results of a timed run.
#[derive(Serialize, Deserialize)]
pub(super) struct Timed {
    /// CPU time of a delivery, in µs.
    pub(super) micros: f64,
    /// Lanes with a delivery that ended.
    pub(super) lanes_served: usize,
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

const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The baseline: a minimal scheduler with one heap of due times, without lanes, limits or states, and as many entries as
/// the scheduler's window in the other loads. A delivery is pushed when it arrives and popped when it is sent; a failed
/// one is pushed again.
struct Heap {
    due: BinaryHeap<Reverse<(Timestamp, DeliveryId)>>,
    arrived: u64,
}

impl Heap {
    fn new() -> Self {
        let mut heap = Self { due: BinaryHeap::new(), arrived: 0 };
        for _ in 0..PENDING {
            heap.arrive();
        }
        heap
    }

    fn run(&mut self, deliveries: u64) {
        for _ in 0..deliveries {
            self.arrive();
            while self.attempt_fails() {}
        }
    }

    fn arrive(&mut self) {
        self.arrived += 1;
        self.due.push(Reverse((self.now(), DeliveryId::from_raw(self.arrived))));
    }

    fn attempt_fails(&mut self) -> bool {
        let Reverse((_, id)) = self.due.pop().expect("there is always something pending");
        let failed = fails(Roll(self.arrived).fork(id.raw()));
        if failed {
            self.due.push(Reverse((self.now() + RETRY_AFTER, id)));
        }
        failed
    }

    /// A millisecond passes with every arrival.
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(0) + Duration::from_millis(self.arrived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_and_its_result_survive_a_round_trip_through_json() {
        let task = Task::Time { load: SpeedTask::Scan, warm_up: 3, deliveries: 7 };
        let work = Task::Work { load: SpeedTask::Scan, warm_up: 0, deliveries: 9 };
        for task in [task, work, Task::Keep { kept: WindowContent::Boxes }] {
            let json = serde_json::to_string(&task).expect("JSON");
            let read: Task = serde_json::from_str(&json).expect("a task");
            assert_eq!(format!("{read:?}"), format!("{task:?}"));
            assert!(serde_json::from_str::<Task>(&json.replace("Scan", "Nothing").replace("Boxes", "some")).is_err());
        }
        assert!(serde_json::from_str::<Task>(r#"{"Work":{"load":"Scan","warm_up":-1,"deliveries":9}}"#).is_err());
        let json = serde_json::to_string(&Timed { micros: 1.0625, lanes_served: 10_000 }).expect("JSON");
        let read: Timed = serde_json::from_str(&format!("{json}\n")).expect("a result");
        assert_eq!((read.micros, read.lanes_served), (1.0625, 10_000));
        assert!(serde_json::from_str::<Timed>("fast").is_err());
    }
}
