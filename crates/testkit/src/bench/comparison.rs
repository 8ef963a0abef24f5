//! Two builds of the server, compared by the CPU a delivery costs each of them. Pure: what was measured goes in, a
//! ratio and its spread come out.
//!
//! Both are measured in pairs, one right after the other, and only the ratio within a pair counts: what slows the machine
//! for longer than a pair slows both.

/// The CPU of a delivery, in µs, by two builds that were measured one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuPair {
    /// By the build that is compared with.
    pub before_us: f64,
    /// By the build in question.
    pub now_us: f64,
}

impl CpuPair {
    /// Above 1 where a delivery has become dearer.
    pub fn ratio(self) -> f64 {
        self.now_us / self.before_us
    }
}

/// Quartiles. Half of the values lie between `lower` and `upper`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quartiles {
    /// A quarter of the values is below it.
    pub lower: f64,
    /// Half of the values is below it.
    pub median: f64,
    /// Three quarters of the values are below it.
    pub upper: f64,
}

impl Quartiles {
    /// Interpolates between neighbours; of no values, or where one is not a number, none is a number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
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

/// The ratio over all scenarios: of each pair the geometric mean, so that none weighs more because its deliveries cost
/// more. Each scenario has its pairs in the order in which they were measured; pairs that one of them lacks are left out.
pub fn overall(scenarios: &[Vec<CpuPair>]) -> Quartiles {
    let pairs = scenarios.iter().map(Vec::len).min().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "a handful of scenarios")]
    let count = scenarios.len() as f64;
    let mean = |pair: usize| {
        let logarithms = scenarios.iter().filter_map(|pairs| pairs.get(pair)).map(|pair| pair.ratio().ln());
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
    fn quartiles_of_nothing_or_of_a_missing_figure_are_not_numbers() {
        assert!(Quartiles::of([]).median.is_nan());
        assert!(Quartiles::of([1.0, f64::NAN, 1.0]).median.is_nan());
    }

    #[test]
    fn one_disturbed_pair_does_not_move_the_median() {
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
        assert!(overall(&[]).median.is_nan());
    }
}
