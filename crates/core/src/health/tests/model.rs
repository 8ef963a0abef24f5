//! Invariants for any history: a `EndpointHealth` decides as a slow model does, and no clock makes it panic.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Happens {
    Try(Verdict),
    End(Cause),
    Look(u64),
    Probe(Verdict),
    Trip,
    Enable,
}

fn any_verdict() -> impl Strategy<Value = Verdict> {
    prop::sample::select(vec![OK, DOWN, DOWN, DOWN, BAD_REQUEST, Verdict::of(Cause::NotStarted)])
}

fn any_event() -> impl Strategy<Value = Happens> {
    prop_oneof![
        8 => any_verdict().prop_map(Happens::Try),
        3 => prop::sample::select(vec![Cause::NotFound, Cause::BadRequest, Cause::Unavailable]).prop_map(Happens::End),
        8 => (0_u64..12).prop_map(Happens::Look),
        2 => any_verdict().prop_map(Happens::Probe),
        1 => Just(Happens::Trip),
        1 => Just(Happens::Enable),
    ]
}

/// The same decisions, made slowly from a full record of events.
#[derive(Default)]
struct Model {
    tries: Vec<(Timestamp, bool)>,
    ends: Vec<Timestamp>,
    warned: bool,
    recovered: bool,
    disabled: bool,
}

impl Model {
    fn tried(&mut self, now: Timestamp, verdict: &Verdict) {
        if matches!(verdict.class, Class::Ours) {
            return;
        }
        let success = verdict.class == Class::Delivered;
        if success && self.warned && !self.disabled {
            (self.warned, self.recovered) = (false, true);
        }
        self.tries.push((now, success));
    }

    fn look(&mut self, now: Timestamp, waiting: u64) -> Option<HealthStep> {
        if self.recovered {
            self.recovered = false;
            return Some(HealthStep::Recovered);
        }
        if self.disabled {
            return None;
        }
        let failed = self.tries.iter().rev().take_while(|(_, success)| !success);
        let since = failed.last()?.0;
        let longer_than = |hours: i64| now.as_millis() - since.as_millis() >= hours * 3_600_000;
        if !self.warned {
            self.warned = longer_than(1);
            return self.warned.then_some(HealthStep::Warn);
        }
        let hour = |at: Timestamp| at.as_millis() / 3_600_000;
        let lost = self.ends.iter().filter(|at| hour(now) - hour(**at) <= 24).count() as u64;
        let tried = self.tries.last()?.0.as_millis() > now.as_millis() - 24 * 3_600_000;
        let reason = match (longer_than(24), longer_than(5 * 24)) {
            (_, true) => Reason::FiveDays,
            (true, _) if lost + waiting >= 10 => Reason::DayOfHarm,
            _ => return None,
        };
        self.disabled = tried;
        tried.then_some(HealthStep::Disable(reason))
    }

    fn enable(&mut self) {
        *self = Self::default();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn every_history_leads_to_the_steps_of_a_slow_model(
        history in prop::collection::vec((0_u64..8 * 3_600, any_event()), 1..120),
    ) {
        let (mut health, mut model, mut now) = (EndpointHealth::default(), Model::default(), START);
        for (passed, happens) in history {
            now = now + Duration::from_secs(passed);
            match happens {
                Happens::Try(verdict) => {
                    health.attempted(now, &verdict, SECOND);
                    model.tried(now, &verdict);
                }
                Happens::End(cause) => {
                    health.ended(now, cause);
                    if cause != Cause::BadRequest {
                        model.ends.push(now);
                    }
                }
                Happens::Look(waiting) => {
                    prop_assert_eq!(health.look(now, waiting, MIDDLE), model.look(now, waiting));
                }
                Happens::Probe(verdict) if model.disabled => {
                    let step = health.probed(now, MIDDLE, &verdict);
                    prop_assert_eq!(step, (verdict == OK).then_some(HealthStep::Enable));
                    if verdict == OK {
                        model.enable();
                    }
                    model.tried(now, &verdict);
                }
                Happens::Probe(verdict) => prop_assert_eq!(health.probed(now, MIDDLE, &verdict), None),
                Happens::Trip => health.tripped(now),
                Happens::Enable => {
                    health.enabled();
                    model.enable();
                }
            }
            prop_assert_eq!(health.probe_at().is_some(), model.disabled);
        }
    }

    #[test]
    fn no_clock_causes_a_panic_or_a_score_out_of_bounds(
        history in prop::collection::vec((any::<i64>(), any::<u64>(), any_event()), 1..60),
    ) {
        let mut health = EndpointHealth::default();
        for (at, random, happens) in history {
            let (now, roll) = (Timestamp::from_millis(at), Roll(random));
            match happens {
                Happens::Try(verdict) => health.attempted(now, &verdict, Duration::from_micros(random)),
                Happens::End(cause) => health.ended(now, cause),
                Happens::Look(waiting) => drop(health.look(now, waiting, roll)),
                Happens::Probe(verdict) => drop(health.probed(now, roll, &verdict)),
                Happens::Trip => health.tripped(now),
                Happens::Enable => health.enabled(),
            }
            let score = health.score(now);
            prop_assert!(score.points <= 100);
            prop_assert!(score.success_share_milli.is_none_or(|milli| milli <= 1_000));
            prop_assert!(score.latency_p50 <= score.latency_p99);
            prop_assert!(health.probe_at().is_none() || score.points == 0);
        }
    }
}
