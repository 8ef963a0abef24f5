//! Compares two builds of the server by the CPU time of a delivery. Pure: measurements go in, a ratio and its spread
//! come out.
//!
//! The builds are measured in pairs, one right after the other, and only the ratio within a pair counts, so that a
//! slowdown of the machine that is longer than a pair affects both.

use serde::Serialize;

/// The CPU time of a delivery in two builds that were measured one after the other, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct CpuPair {
    /// In the older build.
    #[serde(rename = "before_cpu_us")]
    pub(super) before_us: f64,
    /// In the build under test.
    #[serde(rename = "now_cpu_us")]
    pub(super) now_us: f64,
}

impl CpuPair {
    /// New by old; above 1 if a delivery costs more now.
    pub(super) fn ratio(self) -> f64 {
        self.now_us / self.before_us
    }
}

/// The quartiles of a list of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Quartiles {
    #[serde(rename = "lower_quartile")]
    pub(super) lower: f64,
    pub(super) median: f64,
    #[serde(rename = "upper_quartile")]
    pub(super) upper: f64,
}

impl Quartiles {
    /// Computes the quartiles, interpolating between neighbours. They are NaN for an empty list, or if a value is NaN.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        if values.iter().any(|value| value.is_nan()) {
            values.clear();
        }
        let at = |quarter| quantile(&values, quarter);
        Self { lower: at(1), median: at(2), upper: at(3) }
    }
}

fn quantile(sorted: &[f64], quarter: usize) -> f64 {
    let quarters = sorted.len().saturating_sub(1) * quarter;
    match (sorted.get(quarters / 4), sorted.get(quarters.div_ceil(4))) {
        (Some(low), Some(high)) => low + (high - low) * [0.0, 0.25, 0.5, 0.75][quarters % 4],
        _ => f64::NAN,
    }
}

/// The ratio over all scenarios: for each pair the geometric mean, so that no scenario weighs more because its
/// deliveries cost more. Scenarios have their pairs in the order in which they were measured; pairs that one of them
/// lacks are left out.
pub(super) fn overall<P: AsRef<[CpuPair]>>(scenarios: &[P]) -> Quartiles {
    let pairs = scenarios.iter().map(|pairs| pairs.as_ref().len()).min().unwrap_or_default();
    let count = scenarios.len() as f64;
    let mean = |pair: usize| {
        let logarithms = scenarios.iter().filter_map(|pairs| pairs.as_ref().get(pair)).map(|pair| pair.ratio().ln());
        (logarithms.sum::<f64>() / count).exp()
    };
    Quartiles::of((0..pairs).map(mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ratios: &[f64]) -> Vec<CpuPair> {
        ratios.iter().map(|ratio| CpuPair { before_us: 40.0, now_us: 40.0 * ratio }).collect()
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value} instead of {expected}");
    }

    #[test]
    fn quartiles_of_nine_values_are_the_third_fifth_and_seventh() {
        let shuffled = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0];
        assert_eq!(Quartiles::of(shuffled), Quartiles { lower: 3.0, median: 5.0, upper: 7.0 });
    }

    #[test]
    fn quartiles_between_two_values_are_interpolated() {
        assert_eq!(Quartiles::of([1.0, 2.0]), Quartiles { lower: 1.25, median: 1.5, upper: 1.75 });
        assert_eq!(Quartiles::of([3.0]), Quartiles { lower: 3.0, median: 3.0, upper: 3.0 });
    }

    #[test]
    fn quartiles_of_no_values_or_of_nan_are_nan() {
        assert!(Quartiles::of([]).median.is_nan());
        assert!(Quartiles::of([1.0, f64::NAN, 1.0]).median.is_nan());
    }

    #[test]
    fn median_ignores_a_single_disturbed_pair() {
        let measured = pairs(&[1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(Quartiles::of(measured.into_iter().map(CpuPair::ratio)).median, 1.0);
    }

    #[test]
    fn scenarios_weigh_the_same_in_the_overall_ratio() {
        let (twice, half) = (pairs(&[2.0; 9]), pairs(&[0.5; 9]));
        assert_near(overall(&[twice, half]).median, 1.0);
        assert_near(overall(&[pairs(&[1.05; 9]), pairs(&[1.05; 9]), pairs(&[1.05; 9])]).median, 1.05);
    }

    #[test]
    fn pairs_that_a_scenario_lacks_are_left_out_of_the_overall_ratio() {
        assert_near(overall(&[pairs(&[1.2; 9]), pairs(&[1.2; 3])]).median, 1.2);
        assert!(overall(&[pairs(&[1.0; 9]), Vec::new()]).median.is_nan());
        assert!(overall::<Vec<CpuPair>>(&[]).median.is_nan());
    }
}
