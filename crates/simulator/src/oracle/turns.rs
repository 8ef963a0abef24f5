//! No tenant starves (G3): a tenant with little slot-time is served while others are.
//!
//! Slot-time is what tenants share, so a tenant whose receivers were slow waits until the others have had as much; the
//! check is about tenants that have had less. More urgent deliveries may go first: of five tenants with deliveries in
//! the lowest tier, each gets one turn in a hundred while the tiers above are busy.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Facts, Violation, violation};
use crate::history::{Ms, PendingSnapshot, SentRequest};
use crate::plan::Happening;

/// How many requests of other tenants, no more urgent, may leave while a tenant only waits for its turn.
const OTHERS_FIRST: usize = 30;

/// The most slot-time that a request of another tenant counts for: a longer one is due to its receiver.
const SLOT_TIME_MOST: Ms = 1_000;

/// Each other tenant may have as much slot-time as the waiting one, and all together this much more: slot-time of
/// attempts under way is charged only when they end.
const SLACK: Ms = 5_000;

impl Facts<'_> {
    pub(super) fn no_tenant_starves(&self, found: &mut Vec<Violation>) {
        if self.plan.clock_jumps {
            return; // after the clock was set back, deliveries may be no longer due, and may delay those behind them
        }
        let slow: Vec<(Ms, Ms)> =
            self.plan.happenings.iter().filter_map(|(at, what)| store_is_slow(*at, what)).collect();
        let mut since: BTreeMap<u64, &PendingSnapshot> = BTreeMap::new();
        for look in &self.history.looks {
            let first = *since.entry(look.delivery).or_insert(look);
            let waits = look.why == "turn" && (look.why, look.life) == (first.why, first.life);
            let store_waits = slow.iter().any(|(from, until)| first.at < *until && *from < look.at);
            if !waits || store_waits || self.is_served(first, look) {
                since.insert(look.delivery, look);
            } else if let Some(seen) = self.passed_over(first, look) {
                found.push(violation("no tenant starves", seen));
                return;
            }
        }
    }

    /// Whether the delivery's tenant had an attempt under way between two views.
    fn is_served(&self, first: &PendingSnapshot, last: &PendingSnapshot) -> bool {
        let mut mine = self.until(last).iter().filter(|it| self.is_mine(last, it));
        mine.any(|it| it.answered_at.is_some_and(|at| at >= first.at) || it.left_at > first.at)
    }

    /// A description of the slot-time that others had between two views, if it was too much.
    fn passed_over(&self, first: &PendingSnapshot, last: &PendingSnapshot) -> Option<String> {
        let took = |it: &SentRequest| it.answered_at.unwrap_or(last.at).min(last.at) - it.left_at;
        let began = self.history.crashes.iter().map(|crash| crash.at).take_while(|at| *at < last.at).last();
        let own: Ms = self
            .until(last)
            .iter()
            .filter(|it| self.is_mine(last, it) && began.is_none_or(|began| it.left_at > began))
            .map(took)
            .sum();
        let tier = |id: u64| self.sent.get(&id).map(|(sent, _)| sent.tier);
        let may_go_first = |it: &SentRequest| tier(it.delivery) < tier(last.delivery);
        let others = self.until(last).iter().filter(|it| it.left_at > first.at && !may_go_first(it));
        let had: Vec<Ms> = others.map(|it| took(it).min(SLOT_TIME_MOST)).collect();
        let tenants = self.plan.lanes.iter().map(|lane| lane.settings.tenant.raw()).max().unwrap_or(0).cast_signed();
        let is_too_much = had.len() >= OTHERS_FIRST && had.iter().sum::<Ms>() > own * tenants + SLACK;
        is_too_much.then(|| {
            let waited = last.at - first.at;
            format!(
                "delivery {} waited {waited} ms for its turn while {} others left; they had {} ms of slot-time, its tenant {own} ms",
                last.delivery,
                had.len(),
                had.iter().sum::<Ms>()
            )
        })
    }

    /// The requests that had left at the time of a view.
    fn until(&self, look: &PendingSnapshot) -> &[SentRequest] {
        let requests = &self.history.requests;
        &requests[..requests.partition_point(|it| it.left_at <= look.at)]
    }

    fn is_mine(&self, look: &PendingSnapshot, request: &SentRequest) -> bool {
        let lane = self.sent.get(&look.delivery).map(|(_, new)| new.lane);
        lane.is_some_and(|lane| self.tenant(lane) == self.tenant(request.lane))
    }
}

/// The time during which deliveries outside the window may wait for the store instead of their turn.
fn store_is_slow(at: Ms, what: &Happening) -> Option<(Ms, Ms)> {
    let ms = |length: Duration| Ms::try_from(length.as_millis()).unwrap_or(Ms::MAX);
    match what {
        Happening::Stall(each, length) => Some((at, at + ms(*length) + 2 * ms(*each))),
        Happening::Fail(length) => Some((at, at + ms(*length) + 2_000)),
        _ => None,
    }
}
