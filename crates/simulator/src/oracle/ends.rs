//! Deliveries that must not be sent any more: to names that do not exist (B3), to endpoints that are gone (B4), and
//! after a receipt (A3); and no attempt before the previous one is recorded (A2).

use std::collections::BTreeMap;

use super::{Facts, Violation, violation};
use crate::history::{Ms, SentRequest, What};

/// The most attempts in a row that may fail because the name does not exist.
const NAMELESS_MOST: usize = 5;

/// How long new messages to an endpoint that is gone are ended, because their producers may not know yet. Afterwards
/// the endpoint may have been created again. The engine's limit is ten minutes, by a clock that may run fast.
const GONE_FOR: Ms = 540_000;

impl<'a> Facts<'a> {
    pub(super) fn names_are_given_up(&self, found: &mut Vec<Violation>) {
        for (id, requests) in &self.by_delivery {
            // If a crash repeated an attempt, its last answer counts.
            let causes: BTreeMap<u16, &str> = requests.iter().map(|it| (it.attempt, it.cause)).collect();
            let mut in_a_row = 0;
            for cause in causes.values() {
                in_a_row = if *cause == "dns_not_found" { in_a_row + 1 } else { 0 };
                if in_a_row > NAMELESS_MOST {
                    let seen = format!("delivery {id} was tried {in_a_row} times in a row");
                    found.push(violation("a name that does not exist is given up", seen));
                    break;
                }
            }
        }
    }

    pub(super) fn gone_is_gone(&self, found: &mut Vec<Violation>) {
        for (lane, requests) in &self.by_lane {
            let gone = |it: &&SentRequest| it.answered_at.filter(|_| it.status == Some(410));
            for at in requests.iter().filter_map(gone) {
                let was_there = |id: u64| self.sent.get(&id).is_some_and(|(sent, _)| sent.called_at <= at);
                // The answer may be lost in a crash; then the attempt is made again.
                let until = self.crash_from(at).unwrap_or(Ms::MAX);
                let is_ended = |it: &&SentRequest| was_there(it.delivery) || it.left_at <= at + GONE_FOR;
                let later = requests.iter().filter(|it| it.left_at > at && it.left_at <= until).copied().find(is_ended);
                if let Some(later) = later {
                    let seen = format!("lane {lane}: delivery {} left {} ms after", later.delivery, later.left_at - at);
                    found.push(violation("nothing is sent to an endpoint that is gone", seen));
                    break;
                }
            }
        }
    }

    pub(super) fn receipts_end_it(&self, found: &mut Vec<Violation>) {
        for receipt in &self.history.asked {
            let What::Receipt(id) = receipt.what else { continue };
            let requests = self.requests(id);
            let overtook = |it: &&&SentRequest| {
                it.left_at < receipt.called_at && it.answered_at.is_some_and(|at| receipt.called_at < at)
            };
            let answered = receipt.answered_at.filter(|_| receipt.done);
            // A receipt that overtook the answer to its attempt counts without being answered, until the next crash.
            let overtaken = requests.iter().find(overtook).and_then(|it| it.answered_at);
            let lost = self.crash_from(receipt.called_at).unwrap_or(Ms::MAX);
            let again = |it: &&&SentRequest| {
                answered.is_some_and(|at| it.left_at > at)
                    || overtaken.is_some_and(|at| it.left_at > at && it.left_at <= lost)
            };
            if let Some(again) = requests.iter().find(again) {
                let seen = format!("delivery {id} left again at {}", again.left_at);
                found.push(violation("a receipt is final", seen));
            }
        }
    }

    pub(super) fn nothing_runs_ahead(&self, found: &mut Vec<Violation>) {
        for request in self.history.requests.iter().filter(|it| it.recorded + 1 < it.attempt) {
            let seen = format!(
                "delivery {}: attempt {} left, on record were {}",
                request.delivery, request.attempt, request.recorded
            );
            found.push(violation("an attempt is on record before the next", seen));
        }
    }

    fn crash_from(&self, at: Ms) -> Option<Ms> {
        self.history.crashes.iter().map(|crash| crash.at).find(|crash| *crash >= at)
    }
}
