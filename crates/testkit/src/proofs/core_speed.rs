//! The proof `core-speed`: the core scheduler's cost of a delivery, in instructions and in memory, and that it hardly
//! grows with a million more rows in the store.
//!
//! Everything is measured in fresh processes (`task.rs`), so that no measurement depends on
//! the heap or the caches of another. CPU time, as the operating system counts it, is printed and has no bar: the same
//! build takes from 1.4 to 4.2 µs per delivery on machines whose caches are shared. Instructions are counted by
//! valgrind, as the difference of two runs that differ only in the deliveries measured. Memory is what a process with
//! one full window of the default size has written to, including the allocator's overhead and half-empty tables.
//!
//! If valgrind is missing, the figures that need it are left out with a message; with `CI=true` the proof cannot be run
//! then. The load is in `owner.rs`.

mod owner;
mod rows;
pub(super) mod task;
mod window;

use std::process::Command;
use std::thread;

use crate::fixtures::{part, statistics};
use crate::prove::{CannotRun, Context, Figure, Findings, Options};
use owner::LANES;
use task::{SpeedTask, Task, Timed};
use window::WindowContent;

/// The figure of commit c29efb6 (6,505) plus 8 %.
const INSTRUCTIONS_BAR: f64 = 7_000.0;
const BEHIND_BAR: f64 = 1.25;
const DELIVERY_BYTES_BAR: f64 = 200.0;
const LANE_BYTES_BAR: f64 = 256.0;

const RUNS: usize = 5;
/// Deliveries before the timed ones, so that every lane was served and retries are under way.
const WARM_UP: u64 = 50_000;
/// Deliveries before the counted ones. Fewer, because valgrind is some fifty times slower: enough to fill the window.
const WARM_UP_COUNTED: u64 = 10_000;
/// If the CPU time grows by this factor, the instructions exceed [`BEHIND_BAR`] too, and counting them would take long.
const HOPELESS: f64 = 5.0;
/// Deliveries of the negative control, which reads every lane and is slow.
const CONTROL_DELIVERIES: u64 = 512;

pub fn run(options: &Options) -> Findings {
    let size = if options.quick { Size::QUICK } else { Size::FULL };
    let counts_too = valgrind_answers()?;
    let speed = Speed::measure(size)?;
    let memory = Memory::measure()?;
    let counts = if counts_too { Some(Counts::measure(size, &speed)?) } else { None };

    let mut figures = vec![Figure::at_least("lanes_served", speed.lanes_served, "lanes", LANES as f64)];
    let mut controls = vec![Figure::at_most("boxes beyond the bar", memory.control, "bytes", LANE_BYTES_BAR)];
    if let Some(counts) = counts {
        figures.push(instructions_figure(counts.front));
        figures.push(behind_figure(counts.behind / counts.front));
        controls.push(instructions_figure(counts.scan));
        controls.push(behind_figure(counts.scan / counts.front));
    }
    figures.push(Figure::at_most("bytes_a_delivery", memory.a_delivery, "bytes", DELIVERY_BYTES_BAR));
    figures.push(Figure::at_most("bytes_an_idle_lane", memory.a_lane, "bytes", LANE_BYTES_BAR));
    let caught = controls.iter().filter(|control| !control.is_ok()).count();
    figures.push(Figure::at_least("negative_controls_caught", caught as f64, "controls", controls.len() as f64));
    Ok(figures)
}

fn instructions_figure(a_delivery: f64) -> Figure {
    Figure::at_most("instructions_a_delivery", a_delivery, "instructions", INSTRUCTIONS_BAR)
}

fn behind_figure(ratio: f64) -> Figure {
    Figure::at_most("instructions_with_a_million_behind", ratio, "×", BEHIND_BAR)
}

#[derive(Clone, Copy)]
struct Size {
    /// Deliveries of a timed run.
    timed: u64,
    /// Deliveries of a counted run.
    counted: u64,
}

impl Size {
    const QUICK: Self = Self { timed: 200_000, counted: 20_000 };
    const FULL: Self = Self { timed: 1_000_000, counted: 100_000 };
}

/// The results of the timed runs.
struct Speed {
    /// The CPU time of a delivery with a million rows in the store, as a multiple of that without.
    behind_over_front: f64,
    /// The number of lanes served, the lower of both loads: a scheduler that skips lanes would only seem fast.
    lanes_served: f64,
}

impl Speed {
    fn measure(size: Size) -> Result<Self, CannotRun> {
        let (mut front, mut heap) = (Vec::new(), Vec::new());
        let mut lanes_served = LANES;
        for _ in 0..RUNS {
            let of_front = timed(SpeedTask::Front, size.timed)?;
            lanes_served = lanes_served.min(of_front.lanes_served);
            front.push(of_front.micros);
            heap.push(timed(SpeedTask::Heap, size.timed)?.micros);
        }
        let front_micros = median("admit, next, settle, recorded", &mut front);
        median("a plain heap of due times", &mut heap);
        let behind = timed(SpeedTask::Behind, size.timed)?;
        lanes_served = lanes_served.min(behind.lanes_served);
        eprintln!(
            "cpu: with a million behind {:.3} µs a delivery, {} of {LANES} lanes served",
            behind.micros, behind.lanes_served
        );
        Ok(Self { behind_over_front: behind.micros / front_micros, lanes_served: lanes_served as f64 })
    }
}

fn median(what: &str, micros: &mut [f64]) -> f64 {
    let median = statistics::median(micros);
    let all: Vec<String> = micros.iter().map(|micros| format!("{micros:.3}")).collect();
    eprintln!("cpu: {what}: {median:.3} µs a delivery, the median of {}", all.join(" "));
    median
}

/// The results of the counted runs: instructions per delivery.
struct Counts {
    front: f64,
    behind: f64,
    /// The negative control, which reads every lane before every pick.
    scan: f64,
}

impl Counts {
    fn measure(size: Size, speed: &Speed) -> Result<Self, CannotRun> {
        let front = counted(SpeedTask::Front, size.counted)?;
        let heap = counted(SpeedTask::Heap, size.counted)?;
        eprintln!("instructions: {front:.0} a delivery, {heap:.0} with a plain heap of due times");
        let behind = if speed.behind_over_front > HOPELESS {
            eprintln!("instructions: not counted with a million behind, because the CPU time is far above the bar");
            front * speed.behind_over_front
        } else {
            let behind = counted(SpeedTask::Behind, size.counted)?;
            eprintln!("instructions: {behind:.0} a delivery with a million behind");
            behind
        };
        Ok(Self { front, behind, scan: counted(SpeedTask::Scan, CONTROL_DELIVERIES)? })
    }
}

/// The memory of a full window, in bytes.
struct Memory {
    a_delivery: f64,
    a_lane: f64,
    control: f64,
}

impl Memory {
    /// Measures all kinds of windows. The share of a delivery is the larger of a ready and a waiting one; the share of
    /// a lane is the difference between deliveries in lanes of their own and the same deliveries in one lane.
    fn measure() -> Result<Self, CannotRun> {
        let ready = bytes(WindowContent::ReadyInOneLane)?;
        let waiting = bytes(WindowContent::WaitingInOneLane)?;
        let ready_lane = bytes(WindowContent::ReadyInOwnLanes)? - ready;
        let waiting_lane = bytes(WindowContent::WaitingInOwnLanes)? - waiting;
        eprintln!("memory: a delivery that is ready {ready:.0} bytes, one that waits for its due time {waiting:.0}");
        eprintln!("memory: a lane with a ready one {ready_lane:.0} bytes more, with a waiting one {waiting_lane:.0}");
        let control = bytes(WindowContent::Boxes)?;
        Ok(Self { a_delivery: ready.max(waiting), a_lane: ready_lane.max(waiting_lane), control })
    }
}

/// The command that runs a task in a process of its own.
fn command(task: &Task) -> Result<Command, CannotRun> {
    let mut command = part::command("core-speed")?;
    command.arg(serde_json::to_string(task)?);
    Ok(command)
}

fn timed(load: SpeedTask, deliveries: u64) -> Result<Timed, CannotRun> {
    let task = Task::Time { load, warm_up: WARM_UP, deliveries };
    let line = output_of(&mut command(&task)?)?.out;
    serde_json::from_str(&line).context(format!("{task:?} printed {line:?} and not its time"))
}

fn bytes(kept: WindowContent) -> Result<f64, CannotRun> {
    let task = Task::Keep { kept };
    let line = output_of(&mut command(&task)?)?.out;
    line.trim().parse().map_err(|_| CannotRun(format!("{task:?} printed {line:?} and not a number of bytes")))
}

/// Instructions per delivery: the difference to a run that ends after the warm-up.
fn counted(load: SpeedTask, deliveries: u64) -> Result<f64, CannotRun> {
    let count = |deliveries| instructions(&Task::Work { load, warm_up: WARM_UP_COUNTED, deliveries });
    let (with, without) = thread::scope(|scope| {
        let without = scope.spawn(|| count(0));
        (count(deliveries), without.join().expect("a failed count is a result, not a panic"))
    });
    Ok((with? - without?) / deliveries as f64)
}

fn instructions(task: &Task) -> Result<f64, CannotRun> {
    let measured = command(task)?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    valgrind.arg(measured.get_program()).args(measured.get_args());
    let report = output_of(&mut valgrind)?.err;
    instructions_in(&report).context(format!("valgrind counted no instructions: {report}"))
}

/// The output of a process that succeeded.
struct TextOutput {
    out: String,
    err: String,
}

fn output_of(command: &mut Command) -> Result<TextOutput, CannotRun> {
    let output = command.output().context(format!("cannot start {command:?}"))?;
    let text = TextOutput {
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    if output.status.success() { Ok(text) } else { Err(CannotRun(format!("{command:?} failed: {}", text.err))) }
}

/// The count in a line such as `==123== I   refs:      183,725,432`. The number of blanks depends on valgrind's
/// version.
fn instructions_in(report: &str) -> Option<f64> {
    let count = report.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, "I", "refs:", count] = words.as_slice() { Some(*count) } else { None }
    });
    count?.replace(',', "").parse().ok()
}

/// Whether valgrind is installed. An error in CI if it is not.
fn valgrind_answers() -> Result<bool, CannotRun> {
    if Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(true);
    }
    let missing = "valgrind, which counts instructions, is not installed";
    if std::env::var_os("CI").is_some_and(|value| value == "true") {
        return Err(CannotRun(missing.to_owned()));
    }
    eprintln!("SKIPPED: {missing}; only memory is measured");
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_count_is_read_from_reports_of_old_and_new_versions() {
        let old = "==4910== Events    : Ir\n==4910== \n==4910== I   refs:      183,725,432\n";
        let new = "==77== I refs:        1,002\n";
        assert_eq!(instructions_in(old), Some(183_725_432.0));
        assert_eq!(instructions_in(new), Some(1_002.0));
        assert_eq!(instructions_in("==77== Command: core_speed\n"), None);
    }
}
