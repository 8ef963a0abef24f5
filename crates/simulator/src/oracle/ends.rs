//! Deliveries that must not be sent any more: to names that do not exist (B3), to endpoints that are gone (B4), and
//! after a receipt (A3); nor when a newer message with the same collapse key superseded a waiting one (A5, A6), or its
//! subject was erased (L5). An erasure's answer has the number of messages in flight, which may still arrive. And no
//! attempt leaves before the previous one is recorded (A2).

use std::collections::{BTreeMap, BTreeSet};

use super::{Facts, Violation, violation};
use crate::history::{ApiCall, Ms, SentMessage, SentRequest, What};

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

    pub(super) fn superseded_stay_unsent(&self, found: &mut Vec<Violation>) {
        for request in &self.history.requests {
            let sent = self.sent.get(&request.delivery).map(|(sent, _)| *sent);
            let Some(sent) = sent.filter(|sent| sent.collapse.is_some()) else { continue };
            let replaced = self.replacements(sent, request.lane).filter_map(|newer| newer.acked_at).min();
            if let Some(since) = replaced.filter(|since| request.left_at > *since) {
                let seen = format!("delivery {} left {} ms after", request.delivery, request.left_at - since);
                found.push(violation("nothing is sent after its replacement was acknowledged", seen));
            }
        }
    }

    /// Whether another message may have superseded this one's delivery to the lane.
    pub(super) fn may_be_superseded(&self, sent: &SentMessage, lane: u64) -> bool {
        self.under_its_key(sent, lane).any(|other| other.acked_at.is_none_or(|acked| acked >= sent.called_at))
    }

    /// Messages to the lane with the same key that were certainly sent later.
    fn replacements(&self, sent: &SentMessage, lane: u64) -> impl Iterator<Item = &'a SentMessage> {
        let acked = sent.acked_at.unwrap_or(Ms::MAX);
        self.under_its_key(sent, lane).filter(move |other| acked < other.called_at)
    }

    /// Every message to the lane with the same key; the message itself too if it names the lane twice.
    fn under_its_key(&self, sent: &SentMessage, lane: u64) -> impl Iterator<Item = &'a SentMessage> {
        let (collapse, message) = (sent.collapse, sent.message);
        self.history.sent.iter().filter(move |other| {
            let named = other.deliveries.iter().filter(|new| new.lane == lane).count();
            collapse.is_some() && other.collapse == collapse && named > usize::from(other.message == message)
        })
    }

    pub(super) fn erased_stay_unsent(&self, found: &mut Vec<Violation>) {
        for asked in &self.history.asked {
            let Some(since) = asked.answered_at.filter(|_| matches!(asked.what, What::Erase(_))) else { continue };
            for request in self.requests_about(asked).filter(|request| request.left_at > since) {
                let seen = format!("delivery {} left {} ms after", request.delivery, request.left_at - since);
                found.push(violation("nothing is sent about an erased subject", seen));
            }
            let born = self.history.crashes.iter().map(|crash| crash.at).filter(|crash| *crash <= since).max();
            let in_flight = |it: &&SentRequest| {
                Some(it.left_at) > born && it.left_at < since && it.answered_at.is_some_and(|answered| answered > since)
            };
            let messages = self.requests_about(asked).filter(in_flight).filter_map(|it| self.sent.get(&it.delivery));
            let messages: BTreeSet<u64> = messages.map(|(sent, _)| sent.message).collect();
            let reported = self.history.in_flight.get(&asked.called_at).copied().unwrap_or(0);
            if messages.len() as u64 > reported {
                let seen = format!("{} were in flight at {since}, {reported} were reported", messages.len());
                found.push(violation("an erasure reports what may still arrive", seen));
            }
        }
    }

    /// Requests for messages about an erasure's subject that were certainly stored when it was called.
    fn requests_about(&self, asked: &'a ApiCall) -> impl Iterator<Item = &'a SentRequest> {
        self.history.requests.iter().filter(move |request| {
            let sent = self.sent.get(&request.delivery).map(|(sent, _)| *sent);
            sent.is_some_and(|sent| is_of(asked, sent) && sent.acked_at.is_some_and(|acked| acked < asked.called_at))
        })
    }

    pub(super) fn may_be_erased(&self, sent: &SentMessage) -> bool {
        self.history.asked.iter().any(|asked| {
            let crash = self.history.crashes.iter().map(|crash| crash.at).find(|crash| *crash >= asked.called_at);
            // An erasure without an answer may have taken effect at any time until the next crash.
            let until = asked.answered_at.or(crash).unwrap_or(Ms::MAX);
            is_of(asked, sent) && sent.called_at <= until
        })
    }
}

fn is_of(asked: &ApiCall, sent: &SentMessage) -> bool {
    match asked.what {
        What::Erase(None) => true,
        What::Erase(subject) => sent.subject == subject,
        _ => false,
    }
}
