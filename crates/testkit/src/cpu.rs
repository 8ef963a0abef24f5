//! CPU time as Linux counts it, by the names of a process's threads: what a proof compares, since
//! the clock on the wall also counts whatever else the machine does.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::prove::CannotRun;

/// What each of a process's threads has spent, added up by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu(BTreeMap<String, Duration>);

impl Cpu {
    /// Of this process, as of now.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub fn now() -> Result<Self, CannotRun> {
        Self::of_threads_in("/proc/self/task")
    }

    /// Of another process, as of now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of_process(pid: u32) -> Result<Self, CannotRun> {
        Self::of_threads_in(&format!("/proc/{pid}/task"))
    }

    fn of_threads_in(folder: &str) -> Result<Self, CannotRun> {
        let tasks = fs::read_dir(folder).map_err(|error| CannotRun(format!("no {folder}: {error}")))?;
        let mut spent = BTreeMap::new();
        for task in tasks.flatten() {
            // A thread that has just ended has no files any more.
            let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
            let Ok(stat) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let nanos = stat.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0);
            *spent.entry(name.trim().to_owned()).or_default() += Duration::from_nanos(nanos);
        }
        Ok(Self(spent))
    }

    /// What was spent since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let spent = |(name, now): (&String, &Duration)| {
            let before = earlier.0.get(name).copied().unwrap_or_default();
            (name.clone(), now.saturating_sub(before))
        };
        Self(self.0.iter().map(spent).collect())
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        for (name, spent) in &other.0 {
            *self.0.entry(name.clone()).or_default() += *spent;
        }
        self
    }

    /// By threads of this name.
    pub fn of(&self, name: &str) -> Duration {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// By each name.
    pub fn by_name(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.0.iter().map(|(name, spent)| (name.as_str(), *spent))
    }

    /// By all threads.
    pub fn all(&self) -> Duration {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_spends_is_found_under_its_name() {
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
        assert_eq!(spent.of("nobody"), Duration::ZERO);
    }
}
