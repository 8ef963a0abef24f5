//! After an erasure is answered nothing about its subject is sent, and the answer contains the number of messages in
//! flight, which may still arrive (L5). Deliveries about others are judged as usual.

use std::collections::BTreeSet;

use super::{Facts, Violation, violation};
use crate::history::{ApiCall, Ms, SentMessage, SentRequest, What};

impl<'a> Facts<'a> {
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
