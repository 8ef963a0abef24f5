//! In no second more requests leave than the destination's rate limit allows (F1).

use super::{Facts, Violation, violation};
use crate::history::Ms;

const SECOND: Ms = 1_000;

impl Facts<'_> {
    pub(super) fn rates_hold(&self, found: &mut Vec<Violation>) {
        for plan in &self.plan.lanes {
            let lane = plan.settings.lane.raw();
            let (Some((rate, burst)), Some(requests)) = (plan.rate, self.by_lane.get(&lane)) else { continue };
            let (rate, burst) = (rate as usize, burst as usize);
            let left: Vec<Ms> = requests.iter().map(|it| it.left_at).collect();
            for (place, from) in left.iter().enumerate() {
                let sent = left[place..].iter().take_while(|at| **at < from + SECOND).count();
                // A node does not know after its start what was sent before, and a clock that jumps forward adds at
                // most one burst.
                let crashes = self.history.crashes.iter();
                let forgot = crashes.filter(|crash| (*from..from + SECOND).contains(&crash.at)).count()
                    + usize::from(self.plan.clock_jumps);
                if sent * 100 > (rate + burst * (1 + forgot) - 1) * 101 {
                    let seen = format!("lane {lane}: {sent} left within a second, allowed are {rate}, {burst} at once");
                    found.push(violation("rate limits hold", seen));
                    break;
                }
            }
        }
    }
}
