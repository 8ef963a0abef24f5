//! Turns a message into its deliveries: which endpoints get it, and with which lifetime.

use std::sync::Arc;
use std::time::Duration;

use crate::pattern::Pattern;
use crate::{Compact, Delivery, DeliveryId, EndpointId, Expiry, LaneSettings, MessageId, Tier, Timestamp};

/// The properties of a message that its deliveries take over.
#[derive(Clone, Copy, Debug)]
pub struct Fanout {
    /// The message's id; the ids of its deliveries follow it.
    pub message: MessageId,
    pub tier: Tier,
    pub accepted_at: Timestamp,
    /// The earliest time of the first attempt, where the producer set one.
    pub deliver_at: Option<Timestamp>,
    /// The message's TTL; where it has none, the endpoint's own applies.
    pub ttl: Option<Duration>,
    /// How long to wait for a receipt; `None` when a 2xx is enough.
    pub ack_within: Option<Duration>,
    /// Whether the producer also sent a smaller payload.
    pub has_compact: bool,
}

/// Which endpoints a message is for, beyond their event types. An empty list restricts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// Only endpoints that belong to one of these subjects.
    pub subjects: Vec<String>,
    /// Only endpoints with one of these tags.
    pub tags: Vec<String>,
    /// Also endpoints that did not subscribe to the event type.
    pub all: bool,
    /// The request named its endpoints: no other endpoint ever matches.
    pub named: bool,
}

impl Audience {
    pub fn has(&self, candidate: &Candidate<'_>, event_type: Option<&str>) -> bool {
        let is_one = |subject: &str| self.subjects.iter().any(|wanted| wanted == subject);
        !self.named
            && (self.all || candidate.wants(event_type))
            && (self.subjects.is_empty() || candidate.subject.is_some_and(is_one))
            && (self.tags.is_empty() || candidate.tags.iter().any(|tag| self.tags.contains(tag)))
    }
}

/// An endpoint that may get the message.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    pub endpoint: EndpointId,
    /// The lane in which the delivery would wait.
    pub lane: &'a Arc<LaneSettings>,
    /// The event types the endpoint subscribes to; empty means all.
    pub event_types: &'a [Pattern],
    pub subject: Option<&'a str>,
    pub tags: &'a [String],
    /// The endpoint's own TTL.
    pub ttl: Option<Duration>,
}

impl Candidate<'_> {
    /// Whether the endpoint subscribes to this event. An endpoint that names event types gets no message without one.
    pub fn wants(&self, event_type: Option<&str>) -> bool {
        self.event_types.is_empty()
            || event_type.is_some_and(|event| self.event_types.iter().any(|pattern| pattern.matches(event)))
    }
}

impl Fanout {
    /// The later of accept and `deliver_at`: windows and TTLs count from it.
    pub fn born(&self) -> Timestamp {
        self.deliver_at.map_or(self.accepted_at, |at| at.max(self.accepted_at))
    }

    /// The `index`th delivery of the message, to this candidate.
    pub fn delivery(&self, index: u64, to: &Candidate<'_>) -> Delivery {
        let born = self.born();
        let id = DeliveryId(self.message.0.plus(1 + index));
        Delivery {
            expiry: Expiry::from_ttl(born, self.ttl.or(to.ttl)),
            ack_within: self.ack_within,
            compact: if self.has_compact { Compact::Spare } else { Compact::None },
            ..Delivery::queued(id, self.message, to.endpoint, to.lane.lane, self.tier, born)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LaneId, Policy, TenantId};

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// Whether an audience includes the endpoint of ann, with the tags a and b and the event types `order.*`.
    fn check(subjects: &[&str], tags: &[&str], all: bool, event_type: Option<&str>) -> bool {
        has_ann(&Audience { subjects: owned(subjects), tags: owned(tags), all, named: false }, event_type)
    }

    fn has_ann(audience: &Audience, event_type: Option<&str>) -> bool {
        let policy = Arc::new(Policy::default());
        let lane = Arc::new(LaneSettings::new(LaneId::from_raw(1), TenantId::from_raw(1), policy));
        let wants = [Pattern::parse("order.*").expect("a pattern")];
        let (endpoint, subject, tags) = (EndpointId::from_raw(2), Some("ann"), owned(&["a", "b"]));
        let ann = Candidate { endpoint, lane: &lane, event_types: &wants, subject, tags: &tags, ttl: None };
        audience.has(&ann, event_type)
    }

    #[test]
    fn an_audience_requires_event_type_subject_and_tag_to_match() {
        assert!(check(&[], &[], false, Some("order.paid")));
        assert!(!check(&[], &[], false, Some("invoice.paid")));
        assert!(!check(&[], &[], false, None));
        assert!(check(&["bob", "ann"], &[], false, Some("order.paid")));
        assert!(!check(&["bob"], &[], false, Some("order.paid")));
        assert!(check(&[], &["x", "b"], false, Some("order.paid")));
        assert!(!check(&["ann"], &["x"], false, Some("order.paid")), "each kind must be met");
        assert!(!check(&["ann"], &[], false, Some("invoice.paid")), "a subject is no subscription");
        assert!(check(&[], &[], true, Some("invoice.paid")));
        assert!(check(&[], &[], true, None));
        let named = Audience { named: true, ..Audience::default() };
        assert!(!has_ann(&named, Some("order.paid")), "a message for named endpoints matches no candidate");
    }
}
