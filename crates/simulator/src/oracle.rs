//! Judges the history of a run, promise by promise. It knows the promises but not the engine: it neither calls nor
//! repeats any of the engine's decisions. Breakers and fairness are judged in `breakers.rs` and `turns.rs`; deliveries
//! that must not be sent again in `ends.rs`.

mod breakers;
mod ends;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use posthaste_core::scheduler::Order;

use super::history::{Ending, History, Ms, PendingSnapshot, SentDelivery, SentMessage, SentRequest, What};
use super::plan::{LanePlan, RunPlan};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub promise: &'static str,
    /// The observation that breaks it.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.seen)
    }
}

/// The time within which an expired hold must end or change: longer than a stalled store takes for the few calls that
/// may be needed.
const HOLD_GRACE: Ms = 90_000;

/// The longest wait before the next attempt: five minutes for a receipt, plus two for the longest wait of a policy
/// with a window.
const WAIT_MOST: Ms = 420_000;

/// How far a clock that jumps may be off: a plan has at most three jumps of an hour.
const CLOCK_OFF_MOST: Ms = 3 * 3_600_000;

/// All broken promises of a run.
pub fn judge(plan: &RunPlan, history: &History) -> Vec<Violation> {
    let facts = Facts::new(plan, history);
    let mut found = Vec::new();
    facts.everything_ends(&mut found);
    facts.endings_have_a_reason(&mut found);
    facts.attempts_are_counted(&mut found);
    facts.duplicates_need_a_crash(&mut found);
    facts.ttl_is_kept(&mut found);
    facts.nothing_early(&mut found);
    facts.pauses_hold(&mut found);
    facts.cuts_hold(&mut found);
    facts.superseded_stay_unsent(&mut found);
    facts.erased_stay_unsent(&mut found);
    facts.retry_after_is_obeyed(&mut found);
    facts.strict_order_is_kept(&mut found);
    facts.holds_end(&mut found);
    facts.breakers_hold(&mut found);
    facts.rates_hold(&mut found);
    facts.no_tenant_starves(&mut found);
    facts.names_are_given_up(&mut found);
    facts.gone_is_gone(&mut found);
    facts.receipts_end_it(&mut found);
    facts.nothing_runs_ahead(&mut found);
    found
}

/// Counts how often a run exercised breakers, limits and so on: a run that does not exercise them proves nothing about
/// them.
pub fn exercised(plan: &RunPlan, history: &History) -> Exercised {
    let facts = Facts::new(plan, history);
    let (breakers_opened, drains) = facts.breakers_seen();
    let waited = |why: &str| history.looks.iter().filter(|look| look.why == why).count();
    let superseded = history.endings.iter().filter(|ending| ending.cause == "superseded").count();
    let erased = facts.acked().filter(|(id, ..)| facts.endings.get(id).is_some_and(|ending| is_erased(ending))).count();
    let (rate_limited, turns) = (waited("rate_limit"), waited("turn"));
    Exercised { breakers_opened, drains, rate_limited, turns, superseded, erased }
}

/// How often breakers, limits and so on were observed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exercised {
    /// Endpoints' breakers that certainly opened.
    pub breakers_opened: usize,
    /// Breakers that closed again with a backlog waiting.
    pub drains: usize,
    /// Views of a delivery that waited for a rate limit or the pace of a recovery.
    pub rate_limited: usize,
    /// Views of a delivery that waited for its turn.
    pub turns: usize,
    /// Deliveries that were superseded under a collapse key.
    pub superseded: usize,
    pub erased: usize,
}

/// Requests that repeated an attempt.
pub fn duplicates(history: &History) -> usize {
    let distinct: BTreeSet<(u64, u16)> = history.requests.iter().map(|it| (it.delivery, it.attempt)).collect();
    history.requests.len() - distinct.len()
}

struct Facts<'a> {
    plan: &'a RunPlan,
    history: &'a History,
    by_delivery: BTreeMap<u64, Vec<&'a SentRequest>>,
    by_lane: BTreeMap<u64, Vec<&'a SentRequest>>,
    sent: BTreeMap<u64, (&'a SentMessage, SentDelivery)>,
    endings: BTreeMap<u64, &'a Ending>,
}

impl<'a> Facts<'a> {
    fn new(plan: &'a RunPlan, history: &'a History) -> Self {
        let mut facts = Self {
            plan,
            history,
            by_delivery: BTreeMap::new(),
            by_lane: BTreeMap::new(),
            sent: BTreeMap::new(),
            endings: history.endings.iter().map(|ending| (ending.delivery, ending)).collect(),
        };
        for request in &history.requests {
            facts.by_delivery.entry(request.delivery).or_default().push(request);
            facts.by_lane.entry(request.lane).or_default().push(request);
        }
        for sent in &history.sent {
            for new in &sent.deliveries {
                facts.sent.insert(new.id, (sent, *new));
            }
        }
        facts
    }

    fn requests(&self, delivery: u64) -> &[&'a SentRequest] {
        self.by_delivery.get(&delivery).map_or(&[], Vec::as_slice)
    }

    /// Deliveries whose message was acknowledged: id, message, lane.
    fn acked(&self) -> impl Iterator<Item = (u64, &'a SentMessage, u64)> {
        let acked = self.sent.iter().filter(|(_, (sent, _))| sent.acked_at.is_some());
        acked.map(|(id, (sent, new))| (*id, *sent, new.lane))
    }

    fn everything_ends(&self, found: &mut Vec<Violation>) {
        for (id, sent, _) in self.acked() {
            let state = self.endings.get(&id).map_or("missing", |ending| ending.state);
            match state {
                "delivered" | "dead" | "expired" | "cancelled" => {}
                "missing" if self.may_be_erased(sent) => {}
                "missing" => found.push(violation("nothing accepted is lost", format!("delivery {id} is gone"))),
                _ => found.push(violation("everything ends", format!("delivery {id} is still {state}"))),
            }
        }
        if let Some(at) = self.history.gave_up_at {
            found.push(violation("everything ends", format!("the run had not come to rest at {at}")));
        }
        if self.history.refused_moves > 0 {
            let refused = format!("{} moves refused", self.history.refused_moves);
            found.push(violation("only moves of the table happen", refused));
        }
    }

    fn endings_have_a_reason(&self, found: &mut Vec<Violation>) {
        for (id, sent, lane) in self.acked() {
            let Some(ending) = self.endings.get(&id) else { continue };
            let requests = self.requests(id);
            let answered = |good: fn(u16) -> bool| requests.iter().any(|it| it.status.is_some_and(good));
            let requested = |what: &dyn Fn(What) -> bool| self.history.asked.iter().any(|asked| what(asked.what));
            let lane_plan = self.lane(lane);
            let spent = lane_plan.is_some_and(|plan| ending.attempts >= plan.max_attempts) || ending.attempts >= 5;
            let gone = self.by_lane.get(&lane).is_some_and(|all| all.iter().any(|it| it.status == Some(410)));
            let born = sent.deliver_at.unwrap_or(sent.called_at);
            let window = lane_plan.and_then(|plan| plan.window).map(|window| born + window);
            // The wait for a Retry-After is at most a tenth longer than requested.
            let too_late = |it: &SentRequest| {
                let until =
                    it.answered_at.unwrap_or(it.left_at) + it.retry_after.unwrap_or(0).min(86_400_000) / 10 * 11;
                let off = if self.plan.clock_jumps { CLOCK_OFF_MOST } else { 0 };
                window.is_some_and(|end| until + WAIT_MOST + off > end)
            };
            let out_of_window = requests.iter().any(|it| too_late(it));
            let refused = answered(|code| (300..500).contains(&code) && code != 408 && code != 429);
            let plausible = match ending.state {
                "delivered" => answered(|code| (200..300).contains(&code)),
                "expired" => self.sent.get(&id).is_some_and(|(_, new)| new.expires_at.is_some()),
                "cancelled" if ending.cause == "superseded" => self.may_be_superseded(sent, lane),
                "cancelled" if ending.cause == "erased" => self.may_be_erased(sent),
                "cancelled" => requested(&|what| match what {
                    What::Cancel(message) => message == sent.message,
                    What::EndLane(ended, _) => ended == lane,
                    _ => false,
                }),
                "dead" => refused || spent || gone || out_of_window,
                _ => true,
            };
            if !plausible {
                let seen = format!("delivery {id} is {} ({}) without a reason", ending.state, ending.cause);
                found.push(violation("every end has its reason", seen));
            }
        }
    }

    fn attempts_are_counted(&self, found: &mut Vec<Violation>) {
        let crashed: BTreeSet<u64> =
            self.history.crashes.iter().flat_map(|crash| crash.unsettled.iter().copied()).collect();
        for (id, sent, lane) in self.acked() {
            let Some(ending) = self.endings.get(&id) else { continue };
            // Erased deliveries have no history to count.
            if is_erased(ending) {
                continue;
            }
            let made: BTreeSet<u16> = self.requests(id).iter().map(|it| it.attempt).collect();
            let highest = made.last().copied().unwrap_or(0);
            let whole = made.len() == usize::from(highest);
            // An attempt that was in flight when its delivery was superseded is in the history but not counted.
            let superseded =
                (ending.cause == "superseded" || ending.state == "expired") && self.may_be_superseded(sent, lane);
            let counted =
                ending.attempts == highest || ((crashed.contains(&id) || superseded) && ending.attempts + 1 == highest);
            let mut numbers = ending.numbers.clone();
            numbers.dedup();
            let is_complete =
                numbers.len() == usize::from(ending.attempts) || (superseded && numbers.len() == usize::from(highest));
            let history_agrees = is_complete && numbers.is_sorted();
            if !whole || !counted || !history_agrees {
                let seen = format!(
                    "delivery {id} says {} attempts ({:?} in its history), the wire saw {made:?}",
                    ending.attempts, ending.numbers
                );
                found.push(violation("attempts are counted right", seen));
            }
            if self.lane(lane).is_some_and(|plan| highest > plan.max_attempts) {
                found.push(violation(
                    "attempts stay within the policy",
                    format!("delivery {id} was tried {highest} times"),
                ));
            }
        }
    }

    fn duplicates_need_a_crash(&self, found: &mut Vec<Violation>) {
        for (id, requests) in &self.by_delivery {
            let mut times: BTreeMap<u16, usize> = BTreeMap::new();
            for request in requests {
                *times.entry(request.attempt).or_default() += 1;
            }
            let repeated: usize = times.values().map(|count| count - 1).sum();
            let allowed = self.history.crashes.iter().filter(|crash| crash.unsettled.contains(id)).count();
            if repeated > allowed {
                let seen = format!("delivery {id}: {repeated} repeated, {allowed} were in flight at a crash");
                found.push(violation("duplicates ≤ in flight at a crash", seen));
            }
        }
    }

    fn ttl_is_kept(&self, found: &mut Vec<Violation>) {
        for request in &self.history.requests {
            let Some((sent, new)) = self.sent.get(&request.delivery) else { continue };
            let Some(expires_at) = new.expires_at else { continue };
            let last = if sent.now_or_never { expires_at + 5_000 } else { expires_at };
            if request.stamped >= last {
                let seen =
                    format!("delivery {} was sent {} ms after its TTL", request.delivery, request.stamped - last);
                found.push(violation("no attempt starts after the TTL", seen));
            }
            if sent.now_or_never && request.attempt > 1 {
                let seen = format!("delivery {} was retried", request.delivery);
                found.push(violation("now or never is one attempt", seen));
            }
        }
    }

    fn nothing_early(&self, found: &mut Vec<Violation>) {
        if self.plan.clock_jumps {
            return; // a delivery that was due may not be due any more after the clock was set back
        }
        for request in &self.history.requests {
            let deliver_at = self.sent.get(&request.delivery).and_then(|(sent, _)| sent.deliver_at);
            if deliver_at.is_some_and(|at| request.stamped < at) {
                found.push(violation("nothing is sent before deliver_at", format!("delivery {}", request.delivery)));
            }
        }
    }

    fn pauses_hold(&self, found: &mut Vec<Violation>) {
        for (index, pause) in self.history.asked.iter().enumerate() {
            let (What::Pause(kind, id), Some(from)) = (pause.what, pause.answered_at) else { continue };
            let resumes = self.history.asked[index..].iter();
            let until =
                resumes.filter(|asked| asked.what == What::Resume(kind, id)).map(|asked| asked.called_at).next();
            for request in &self.history.requests {
                let tenant = self.tenant(request.lane);
                let concerned = match kind {
                    0 => true,
                    1 => tenant == Some(id),
                    _ => request.lane == id,
                };
                if concerned && request.left_at > from && until.is_none_or(|until| request.left_at < until) {
                    let seen =
                        format!("delivery {} left at {}, paused since {from}", request.delivery, request.left_at);
                    found.push(violation("nothing is sent while paused", seen));
                }
            }
        }
    }

    fn cuts_hold(&self, found: &mut Vec<Violation>) {
        for asked in &self.history.asked {
            let Some(since) = asked.answered_at else { continue };
            let covered = |request: &SentRequest| match asked.what {
                What::Cancel(message) => {
                    self.sent.get(&request.delivery).is_some_and(|(sent, _)| sent.message == message)
                }
                What::EndLane(lane, upto) => request.lane == lane && request.delivery <= upto,
                _ => false,
            };
            for request in self.history.requests.iter().filter(|request| request.left_at > since && covered(request)) {
                let seen = format!("delivery {} left {} ms after", request.delivery, request.left_at - since);
                found.push(violation("nothing is sent after a cut was answered", seen));
            }
        }
    }

    fn retry_after_is_obeyed(&self, found: &mut Vec<Violation>) {
        if self.plan.clock_jumps {
            return; // waits are measured by a clock that jumps
        }
        for request in &self.history.requests {
            let (Some(wait), Some(at)) = (request.retry_after, request.answered_at) else { continue };
            let until = at + wait.min(86_400_000);
            let crashed = self.history.crashes.iter().map(|crash| crash.at).find(|crash| *crash >= at);
            // After a crash before the answer was on disk, the attempt is made again, and its answer replaces this one.
            let again = |it: &&&SentRequest| it.attempt == request.attempt && it.left_at > at;
            let was_lost = self.requests(request.delivery).iter().any(|it| again(&it));
            for later in self.by_lane.get(&request.lane).into_iter().flatten() {
                if later.left_at <= at || later.left_at >= until {
                    continue;
                }
                // The delivery's own wait is on disk; the lane's hold is lost in a crash.
                let own = later.delivery == request.delivery && later.attempt > request.attempt && !was_lost;
                let held = request.asks_lane && crashed.is_none_or(|crash| later.left_at < crash);
                if own || held {
                    let seen = format!(
                        "delivery {} left {} ms early for lane {}",
                        later.delivery,
                        until - later.left_at,
                        request.lane
                    );
                    found.push(violation("Retry-After is obeyed", seen));
                }
            }
        }
    }

    fn strict_order_is_kept(&self, found: &mut Vec<Violation>) {
        for lane in self.plan.lanes.iter().filter(|lane| lane.settings.order == Order::Strict) {
            let lane = lane.settings.lane.raw();
            let mine: Vec<(u64, &SentMessage)> =
                self.acked().filter(|(_, _, to)| *to == lane).map(|(id, sent, _)| (id, sent)).collect();
            for (first, sent) in &mine {
                let Some(last) = self.requests(*first).iter().map(|it| it.left_at).max() else { continue };
                for (second, later) in &mine {
                    let begins = self.requests(*second).iter().map(|it| it.left_at).min();
                    let after =
                        sent.acked_at.is_some_and(|acked| acked < later.called_at) && sent.message != later.message;
                    // With `deliver_at` a later message may be due earlier.
                    let both_now = sent.deliver_at.is_none() && later.deliver_at.is_none();
                    if after && both_now && begins.is_some_and(|begins| begins < last) {
                        let seen = format!("lane {lane}: delivery {second} left before {first} had ended");
                        found.push(violation("strict order is kept", seen));
                    }
                }
            }
        }
    }

    fn holds_end(&self, found: &mut Vec<Violation>) {
        let mut overdue: BTreeMap<u64, &PendingSnapshot> = BTreeMap::new();
        for look in &self.history.looks {
            if look.until.is_none_or(|until| look.stamped <= until) {
                overdue.remove(&look.delivery);
                continue;
            }
            let first = overdue.entry(look.delivery).or_insert(look);
            let same = (first.life, first.why, first.until, first.attempts)
                == (look.life, look.why, look.until, look.attempts);
            if !same {
                *first = look;
            } else if look.at > first.at + HOLD_GRACE {
                let seen =
                    format!("delivery {} waits for {} since {} ms longer", look.delivery, look.why, look.at - first.at);
                found.push(violation("every hold ends", seen));
            }
        }
    }

    /// In no second more requests leave than the destination's rate limit allows (F1).
    fn rates_hold(&self, found: &mut Vec<Violation>) {
        for plan in &self.plan.lanes {
            let lane = plan.settings.lane.raw();
            let (Some((rate, burst)), Some(requests)) = (plan.rate, self.by_lane.get(&lane)) else { continue };
            let (rate, burst) = (rate as usize, burst as usize);
            let left: Vec<Ms> = requests.iter().map(|it| it.left_at).collect();
            for (place, from) in left.iter().enumerate() {
                let sent = left[place..].iter().take_while(|at| **at < from + 1_000).count();
                // A node does not know after its start what was sent before, and a clock that jumps forward adds at
                // most one burst.
                let crashes = self.history.crashes.iter();
                let forgot = crashes.filter(|crash| (*from..from + 1_000).contains(&crash.at)).count()
                    + usize::from(self.plan.clock_jumps);
                if sent * 100 > (rate + burst * (1 + forgot) - 1) * 101 {
                    let seen = format!("lane {lane}: {sent} left within a second, allowed are {rate}, {burst} at once");
                    found.push(violation("rate limits hold", seen));
                    break;
                }
            }
        }
    }

    fn lane(&self, lane: u64) -> Option<&'a LanePlan> {
        self.plan.lanes.iter().find(|plan| plan.settings.lane.raw() == lane)
    }

    fn tenant(&self, lane: u64) -> Option<u64> {
        Some(self.lane(lane)?.settings.tenant.raw())
    }
}

/// Whether an acknowledged delivery was erased, if that is no violation.
fn is_erased(ending: &Ending) -> bool {
    ending.state == "missing" || ending.cause == "erased"
}

fn violation(promise: &'static str, seen: String) -> Violation {
    Violation { promise, seen }
}

#[cfg(test)]
mod tests;
