//! Compares the load that `billing` had with that of naive retries, simulated with as many messages and the same
//! outage.

use std::time::Duration;

use posthaste_prove::chart::Second;
use posthaste_prove::chart::{ChartNote, LoadChart, LoadSeries, grouped};
use posthaste_simulator::outage::naive;
use posthaste_simulator::outage::{Down, FRESH, OutageOutcome, OutageScenario, Sender};
use serde::Serialize;

use super::plan::DemoPlan;

/// The window of a peak, in seconds: a single second of the demo is too short for a real machine to keep time.
const PEAK_SECONDS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct OutageFigures {
    /// Requests while the receiver was down.
    pub(super) tries_into_outage: u64,
    /// The most requests a second after it, over ten seconds.
    pub(super) peak_10s_per_s: f64,
    /// Requests after it that the receiver refused.
    pub(super) turned_away: u64,
}

/// The load in this run beside that of naive retries.
#[derive(Serialize)]
pub(super) struct LoadComparison {
    pub(super) posthaste: OutageFigures,
    /// Simulated.
    pub(super) naive: OutageFigures,
    #[serde(skip)]
    pub(super) picture: LoadChart,
}

/// Compares the receiver's load with that of naive retries of as many messages.
pub(super) fn compare(plan: &DemoPlan, seen: Vec<Second>, messages: usize) -> LoadComparison {
    let load = (messages as f64 / plan.length.as_secs_f64() * 10.0).round() / 10.0;
    let simulated = simulate(plan, load.max(0.1)).seconds;
    let (posthaste, naive) = (figures(plan, &seen), figures(plan, &simulated));
    let series = |name: &str, figures: OutageFigures, seconds| LoadSeries {
        name: name.to_owned(),
        notes: notes(figures),
        seconds,
    };
    let subtitle = format!(
        "{load} messages a second for a receiver that takes {}, by its own count. The naive sender is simulated.",
        plan.capacity
    );
    let series = vec![
        series("Posthaste, in this run", posthaste, seen),
        series(&format!("naive retries, {}", naive::FIXED.does), naive, simulated),
    ];
    let picture = LoadChart::around(plan.outage.clone(), plan.length, plan.capacity, subtitle, series);
    LoadComparison { posthaste, naive, picture }
}

fn simulate(plan: &DemoPlan, load: f64) -> OutageOutcome {
    let scenario = OutageScenario {
        load,
        capacity: plan.capacity,
        warm_up: plan.outage.start,
        outage: plan.outage.end - plan.outage.start,
        down: Down::Refuses,
        watch: plan.length - plan.outage.end,
        horizon: FRESH,
        ..OutageScenario::default()
    };
    scenario.play(&Sender::bare(naive::FIXED.policy()))
}

fn figures(plan: &DemoPlan, seconds: &[Second]) -> OutageFigures {
    let (down, back, end) = (whole(plan.outage.start), whole(plan.outage.end), whole(plan.length));
    let during = seconds.get(down..back.min(seconds.len())).unwrap_or_default();
    let after = seconds.get(back..end.min(seconds.len())).unwrap_or_default();
    let tries = |seconds: &[Second]| seconds.iter().map(|second| u64::from(second.tries)).sum::<u64>();
    let most = after.windows(PEAK_SECONDS).map(tries).max().unwrap_or(0);
    OutageFigures {
        tries_into_outage: tries(during),
        peak_10s_per_s: most as f64 / PEAK_SECONDS as f64,
        turned_away: after.iter().map(|second| u64::from(second.failed)).sum(),
    }
}

fn notes(figures: OutageFigures) -> Vec<ChartNote> {
    vec![
        ChartNote { figure: grouped(figures.tries_into_outage), of: "tries into the outage" },
        ChartNote { figure: format!("{:.1}/s", figures.peak_10s_per_s), of: "at the peak after it" },
        ChartNote { figure: grouped(figures.turned_away), of: "turned away after it" },
    ]
}

fn whole(time: Duration) -> usize {
    usize::try_from(time.as_secs()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_cover_the_outage_and_the_time_after_it() {
        let plan = DemoPlan::new(15, 6_000).expect("a plan");
        let mut seconds = vec![Second { tries: 2, failed: 0 }; 900];
        seconds[130] = Second { tries: 7, failed: 7 };
        seconds[500] = Second { tries: 102, failed: 90 };
        let figures = figures(&plan, &seconds);
        assert_eq!((figures.tries_into_outage, figures.turned_away), (300 * 2 + 5, 90));
        assert!((figures.peak_10s_per_s - 12.0).abs() < 1e-9, "{figures:?}");
    }

    #[test]
    fn naive_retries_make_several_requests_for_each_message() {
        let plan = DemoPlan::new(15, 6_000).expect("a plan");
        let compared = compare(&plan, vec![Second::default(); 900], 2_400);
        let held = 2.7 * 300.0;
        let tries = compared.naive.tries_into_outage as f64;
        assert!((held * 2.0..held * 4.0).contains(&tries), "{tries} tries of {held} messages");
        assert!(compared.naive.peak_10s_per_s > plan.capacity, "{:?}", compared.naive);
        assert_eq!(compared.picture.outage, 120..420);
    }
}
