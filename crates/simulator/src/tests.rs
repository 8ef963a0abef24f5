//! Tests of the simulator: it repeats a seed exactly, different seeds differ, and a few seeds have no violations on
//! either driver.

use super::*;

#[test]
fn same_seed_gives_the_same_run() {
    let (one, two) = (run(7), run(7));
    assert_eq!(one.trace, two.trace);
    assert_eq!((one.deliveries, one.requests, one.points), (two.deliveries, two.requests, two.points));
}

#[test]
fn different_seeds_give_different_runs() {
    let mut traces: Vec<u64> = (1..=5).map(|seed| run(seed).trace).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 5);
}

#[test]
fn few_seeds_break_no_promise_on_either_driver() {
    for seed in 1..=5 {
        let outcome = run(seed);
        assert_eq!(outcome.violations, [], "{}", repeat(seed));
        assert!(outcome.deliveries > 0 && outcome.requests > 0, "seed {seed} did nothing");
        assert_eq!(driven::run(seed).violations, [], "driven; {}", repeat(seed));
    }
}
