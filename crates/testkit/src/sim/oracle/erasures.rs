//! Who was erased is sent nothing more, and the answer says how much may still arrive (L5). Everybody else's
//! deliveries end as ever.

use std::collections::BTreeSet;

use super::{Facts, Violation, violation};
use crate::sim::history::{Asked, Ms, Request, Sent, What};

impl<'a> Facts<'a> {
    pub(super) fn erased_stay_unsent(&self, found: &mut Vec<Violation>) {
        for asked in &self.history.asked {
            let Some(since) = asked.answered_at.filter(|_| matches!(asked.what, What::Erase(_))) else { continue };
            for request in self.of_erased(asked).filter(|request| request.left_at > since) {
                let seen = format!("delivery {} left {} ms after", request.delivery, request.left_at - since);
                found.push(violation("nothing is sent of who was erased", seen));
            }
            let born = self.history.crashes.iter().map(|crash| crash.at).filter(|crash| *crash <= since).max();
            let in_flight = |it: &&Request| {
                Some(it.left_at) > born && it.left_at < since && it.answered_at.is_some_and(|answered| answered > since)
            };
            let messages = self.of_erased(asked).filter(in_flight).filter_map(|it| self.sent.get(&it.delivery));
            let messages: BTreeSet<u64> = messages.map(|(sent, _)| sent.message).collect();
            let said = self.history.in_flight.get(&asked.called_at).copied().unwrap_or(0);
            if messages.len() as u64 > said {
                let seen = format!("{} were in flight at {since}, {said} were told of", messages.len());
                found.push(violation("an erasure says what may still arrive", seen));
            }
        }
    }

    /// Requests for what was certainly there when an erasure was asked for.
    fn of_erased(&self, asked: &'a Asked) -> impl Iterator<Item = &'a Request> {
        self.history.requests.iter().filter(move |request| {
            let sent = self.sent.get(&request.delivery).map(|(sent, _)| *sent);
            sent.is_some_and(|sent| is_of(asked, sent) && sent.acked_at.is_some_and(|acked| acked < asked.called_at))
        })
    }

    /// Whether a message may have been erased.
    pub(super) fn may_be_erased(&self, sent: &Sent) -> bool {
        self.history.asked.iter().any(|asked| {
            let crash = self.history.crashes.iter().map(|crash| crash.at).find(|crash| *crash >= asked.called_at);
            // Without an answer it may have been made at any time until the node died.
            let until = asked.answered_at.or(crash).unwrap_or(Ms::MAX);
            is_of(asked, sent) && sent.called_at <= until
        })
    }
}

fn is_of(asked: &Asked, sent: &Sent) -> bool {
    match asked.what {
        What::Erase(None) => true,
        What::Erase(subject) => sent.subject == subject,
        _ => false,
    }
}
