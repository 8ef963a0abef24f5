//! CPU time of a process by thread name, as Linux counts it. Proofs compare CPU time because wall-clock time also
//! depends on other work of the machine.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::prove::CannotRun;

/// The CPU time of a process's threads, summed by thread name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu(BTreeMap<String, Duration>);

impl Cpu {
    /// The CPU time of this process so far.
    ///
    /// # Errors
    /// If there is no `/proc`.
    pub fn now() -> Result<Self, CannotRun> {
        Self::read("/proc/self/task")
    }

    /// The CPU time of another process so far.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn for_process(pid: u32) -> Result<Self, CannotRun> {
        Self::read(&format!("/proc/{pid}/task"))
    }

    fn read(folder: &str) -> Result<Self, CannotRun> {
        let tasks = fs::read_dir(folder).map_err(|error| CannotRun(format!("cannot read {folder}: {error}")))?;
        let mut spent = BTreeMap::new();
        for task in tasks.flatten() {
            // The files of a thread that has just ended are gone.
            let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
            let Ok(stat) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let nanos = stat.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0);
            *spent.entry(name.trim().to_owned()).or_default() += Duration::from_nanos(nanos);
        }
        Ok(Self(spent))
    }

    /// The CPU time spent since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let spent = |(name, now): (&String, &Duration)| {
            let before = earlier.0.get(name).copied().unwrap_or_default();
            (name.clone(), now.saturating_sub(before))
        };
        Self(self.0.iter().map(spent).collect())
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        for (name, spent) in &other.0 {
            *self.0.entry(name.clone()).or_default() += *spent;
        }
        self
    }

    /// The CPU time of threads with this name.
    pub fn of(&self, name: &str) -> Duration {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// The CPU time of each thread name.
    pub fn by_name(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.0.iter().map(|(name, spent)| (name.as_str(), *spent))
    }

    /// The CPU time of all threads.
    pub fn all(&self) -> Duration {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_thread_is_found_under_its_name() {
        let before = Cpu::now().expect("Linux");
        let spent = std::thread::scope(|scope| {
            let busy = std::thread::Builder::new().name("busy-one".to_owned()).spawn_scoped(scope, || {
                let mut sum = 0_u64;
                while Cpu::now().expect("Linux").of("busy-one") < Duration::from_millis(5) {
                    sum = std::hint::black_box((0..100_000).fold(sum, u64::wrapping_add));
                }
                Cpu::now().expect("Linux").since(&before)
            });
            busy.expect("a thread").join().expect("it ends")
        });
        assert!(spent.of("busy-one") >= Duration::from_millis(5));
        assert!(spent.all() >= spent.of("busy-one"));
        assert_eq!(spent.of("no-such-thread"), Duration::ZERO);
    }
}
