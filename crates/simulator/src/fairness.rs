//! The proof `fairness`: every tenant and every tier gets its share of the slots, and no tenant delays another.
//!
//! A simulation in steps of a millisecond (`fairness/world.rs`) feeds the core's scheduler as it ships, with fewer
//! slots so that they are scarce (`fairness/scheduler.rs`). The service of each tenant and tier is counted from
//! outside: slot-time and weights (`fairness/shares.rs`), the effect of a noisy tenant on quiet ones
//! (`fairness/neighbours.rs`), the tiers (`fairness/tiers.rs`), and ten thousand small tenants beside a heavy one
//! (`fairness/crowd.rs`). As controls, schedulers that are unfair on purpose must miss the same bars.

mod crowd;
mod neighbours;
mod scheduler;
mod shares;
mod tiers;
mod world;

use std::time::Duration;

use posthaste_prove::{Figure, Findings, Options};

/// A quarter of the default, so that a few tenants contend for them.
const SLOTS: u32 = 256;

/// The figures of one part of the proof.
#[derive(Default)]
struct Part {
    figures: Vec<Figure>,
    /// Figures of schedulers that are unfair on purpose, with the same bars.
    controls: Vec<Figure>,
}

/// Runs all parts in parallel.
pub(crate) fn run(options: &Options) -> Findings {
    let parts = [shares::run, neighbours::run, tiers::run, crowd::run];
    let parts: Vec<Part> = std::thread::scope(|scope| {
        let running = parts.map(|part| scope.spawn(move || part(options)));
        running.into_iter().map(|part| part.join().expect("no part panics")).collect()
    });
    let (mut figures, mut controls) = (Vec::new(), Vec::new());
    for part in parts {
        figures.extend(part.figures);
        controls.extend(part.controls);
    }
    for control in &controls {
        eprintln!("control, an unfair scheduler: {control}");
    }
    let caught = controls.iter().filter(|control| !control.is_ok()).count();
    figures.push(Figure::at_least("negative_controls_caught", caught as f64, "bars", controls.len() as f64));
    Ok(figures)
}

/// Jain's index of fairness: 1 if all values are equal, 1/n if one of n has everything.
fn jain(values: impl Iterator<Item = u64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        let value = value as f64;
        (count, sum, squares) = (count + 1.0, sum + value, squares + value * value);
    }
    sum * sum / (count * squares)
}

/// The figure of Jain's index among the slot-times of these sources.
fn jain_of(name: &str, got: &[world::Got], bar: f64) -> Figure {
    Figure::at_least(&format!("{name}_jain"), jain(got.iter().map(|got| got.slot_ms)), "of 1", bar)
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A time as the value of a figure.
fn in_millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_one_for_equals_and_one_in_n_for_a_monopoly() {
        assert!((jain([7, 7, 7, 7].into_iter()) - 1.0).abs() < 1e-9);
        assert!((jain([9, 0, 0].into_iter()) - 1.0 / 3.0).abs() < 1e-9);
        assert!(jain([0, 0].into_iter()).is_nan(), "an index of nothing is undefined");
    }
}
