//! A newer message with the same collapse key supersedes a waiting one (A6), and a superseded delivery is never sent
//! (A5).

use super::{Facts, Violation, violation};
use crate::history::{Ms, SentMessage};

impl<'a> Facts<'a> {
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
}
