//! The report of `ci`: the time of each step, the time and budget of each group of steps, the failures, and the
//! totals in the last line.
//!
//! A step over its budget is shown and does not fail: its duration depends on the load of the machine.

use std::fmt;
use std::iter::Sum;
use std::time::Duration;

pub(super) struct CiReport {
    pub(super) steps: Vec<Step>,
    /// On a build machine a skipped step counts as failed; on a laptop it does not count.
    pub(super) skipped_counts_as_failed: bool,
}

pub(super) struct Step {
    pub(super) name: String,
    pub(super) group: Group,
    pub(super) took: Duration,
    /// The tests that the step reported; zero for a step that is not a test run.
    pub(super) tests: TestCounts,
    pub(super) result: StepResult,
}

pub(super) enum StepResult {
    Passed,
    /// The command to repeat the step, or the error.
    Failed(String),
    /// What was missing.
    Skipped(String),
}

impl Step {
    /// A step that took no time and reported no tests.
    pub(super) fn untested(name: &str, group: Group, result: StepResult) -> Self {
        Self { name: name.to_owned(), group, took: Duration::ZERO, tests: TestCounts::default(), result }
    }
}

impl CiReport {
    pub(super) fn failed(&self) -> u32 {
        self.steps.iter().map(|step| self.count(step).failed).sum()
    }

    /// The tests of a step; a step that reported none counts as one.
    fn count(&self, step: &Step) -> TestCounts {
        let TestCounts { passed, failed } = step.tests;
        match step.result {
            StepResult::Passed => TestCounts { passed: passed.max(1), failed },
            StepResult::Failed(_) => TestCounts { passed, failed: failed.max(1) },
            StepResult::Skipped(_) => TestCounts { passed: 0, failed: u32::from(self.skipped_counts_as_failed) },
        }
    }
}

impl fmt::Display for CiReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.steps.iter().map(|step| step.name.len()).max().unwrap_or(0).max("simulation".len());
        writeln!(f, "{:width$}  seconds", "step")?;
        for step in &self.steps {
            writeln!(f, "{:width$}  {:7.1}", step.name, step.took.as_secs_f64())?;
        }
        writeln!(f, "\n{:width$}  seconds  budget", "group")?;
        for (group, name, minutes) in Group::ALL {
            let took: Duration = self.steps.iter().filter(|step| step.group == group).map(|step| step.took).sum();
            let (took, budget) = (took.as_secs_f64(), 60 * minutes);
            let over = if took > budget as f64 { "over" } else { "ok" };
            writeln!(f, "{name:width$}  {took:7.1}  {budget:6}  {over}")?;
        }
        writeln!(f)?;
        for step in &self.steps {
            match &step.result {
                StepResult::Passed => {}
                result => writeln!(f, "{}: {result}", step.name)?,
            }
        }
        let total: TestCounts = self.steps.iter().map(|step| self.count(step)).sum();
        write!(f, "{} passed, {} failed", total.passed, total.failed)?;
        let skipped = self.steps.iter().filter(|step| matches!(step.result, StepResult::Skipped(_))).count();
        if skipped > 0 && !self.skipped_counts_as_failed { write!(f, ", {skipped} skipped") } else { Ok(()) }
    }
}

impl fmt::Display for StepResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => write!(f, "passed"),
            Self::Failed(how) => write!(f, "FAILED: {how}"),
            Self::Skipped(why) => write!(f, "SKIPPED: {why}"),
        }
    }
}

/// Steps that share a time budget: 20 minutes in all, on two cores without earlier builds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Group {
    Checks,
    Build,
    Unit,
    Simulation,
    Sockets,
}

impl Group {
    /// All groups, with their names and their budgets in minutes.
    const ALL: [(Self, &str, u64); 5] = [
        (Self::Checks, "checks", 1),
        (Self::Build, "build", 8),
        (Self::Unit, "unit", 2),
        // Half of it is the build of a copy with bugs planted in it.
        (Self::Simulation, "simulation", 5),
        (Self::Sockets, "sockets", 4),
    ];
}

/// How many tests a program reported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TestCounts {
    pub(super) passed: u32,
    pub(super) failed: u32,
}

impl TestCounts {
    /// Parses the summary line of nextest or of a test binary; every other line gives zero.
    pub(super) fn read(line: &str) -> Self {
        let counts = if line.trim_start().starts_with("Summary [") {
            line.split_once("run:").map(|(_, counts)| counts)
        } else {
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")).map(|(_, counts)| counts)
        };
        let mut tests = Self::default();
        for part in counts.unwrap_or_default().split([',', ';']) {
            let mut words = part.split_whitespace();
            let count = words.next().and_then(|count| count.parse().ok()).unwrap_or(0);
            match words.next() {
                Some("passed") => tests.passed += count,
                Some("failed" | "timed" | "exec") => tests.failed += count,
                _ => {}
            }
        }
        tests
    }
}

impl Sum for TestCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, other| Self {
            passed: sum.passed + other.passed,
            failed: sum.failed + other.failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_both_test_runners_are_counted() {
        let cases = [
            ("     Summary [   0.011s] 3 tests run: 3 passed, 0 skipped", 3, 0),
            ("     Summary [   9.011s] 6 tests run: 3 passed (1 slow), 2 failed, 1 timed out, 0 skipped", 3, 3),
            ("     Summary [   0.2s] 2/5 tests run: 1 passed, 1 exec failed, 0 skipped", 1, 1),
            ("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s", 7, 0),
            ("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured", 1, 2),
            ("        PASS [   0.005s] 9 passed or so", 0, 0),
        ];
        for (line, passed, failed) in cases {
            assert_eq!(TestCounts::read(line), TestCounts { passed, failed }, "{line}");
        }
    }

    fn step(name: &str, result: StepResult) -> Step {
        Step::untested(name, Group::Checks, result)
    }

    fn lenient(steps: Vec<Step>) -> CiReport {
        CiReport { steps, skipped_counts_as_failed: false }
    }

    fn last_line(report: &CiReport) -> String {
        report.to_string().lines().last().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_skipped_step_fails_a_build_machine_and_not_a_laptop() {
        let steps =
            || vec![step("format", StepResult::Passed), step("openapi", StepResult::Skipped("no tool".to_owned()))];
        let (strict, lenient) = (CiReport { steps: steps(), skipped_counts_as_failed: true }, lenient(steps()));
        assert_eq!((strict.failed(), last_line(&strict)), (1, "1 passed, 1 failed".to_owned()));
        assert_eq!((lenient.failed(), last_line(&lenient)), (0, "1 passed, 0 failed, 1 skipped".to_owned()));
    }

    #[test]
    fn a_test_run_that_failed_without_a_summary_counts_as_one_failure() {
        let broken = lenient(vec![step("tests", StepResult::Failed("cargo test".to_owned()))]);
        assert_eq!((broken.failed(), last_line(&broken)), (1, "0 passed, 1 failed".to_owned()));
    }

    #[test]
    fn a_group_over_its_budget_is_marked() {
        // The budget of unit tests is two minutes.
        let slow = Step { group: Group::Unit, took: Duration::from_secs(121), ..step("tests", StepResult::Passed) };
        let text = lenient(vec![slow]).to_string();
        let marked: Vec<_> = text.lines().filter(|line| line.ends_with("over")).collect();
        assert_eq!(marked.len(), 1, "{text}");
        assert!(marked[0].starts_with("unit"));
    }
}
