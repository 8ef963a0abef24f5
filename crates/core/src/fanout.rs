//! From a message to its deliveries: who gets it, and with which lifetime.

use std::sync::Arc;
use std::time::Duration;

use crate::delivery::{Compact, Delivery, Expiry};
use crate::id::{DeliveryId, EndpointId, MessageId};
use crate::pattern::Pattern;
use crate::queue::LaneSettings;
use crate::tier::Tier;
use crate::time::Timestamp;

/// What of a message matters for its deliveries.
#[derive(Clone, Copy, Debug)]
pub struct Fanout {
    /// Its id; its deliveries' follow.
    pub message: MessageId,
    /// How urgent it is.
    pub tier: Tier,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Not before this.
    pub deliver_at: Option<Timestamp>,
    /// How long it is worth sending; an endpoint's own TTL stands in where it has none.
    pub ttl: Option<Duration>,
    /// How long to wait for a receipt; `None` when a 2xx is enough.
    pub ack_within: Option<Duration>,
    /// Whether a smaller payload came along.
    pub has_compact: bool,
}

/// Whom a message is for, where it is not for everybody who wants such events. What is left empty asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// Endpoints that belong to one of these.
    pub subjects: Vec<String>,
    /// Endpoints with one of these tags.
    pub tags: Vec<String>,
    /// Whether endpoints get it that want other events.
    pub all: bool,
    /// Whether its endpoints were named: it is for nobody else, now or later.
    pub named: bool,
}

impl Audience {
    /// Whether it has somebody, for an event.
    pub fn has(&self, candidate: &Candidate<'_>, event_type: Option<&str>) -> bool {
        let is_one = |subject: &str| self.subjects.iter().any(|wanted| wanted == subject);
        !self.named
            && (self.all || candidate.wants(event_type))
            && (self.subjects.is_empty() || candidate.subject.is_some_and(is_one))
            && (self.tags.is_empty() || candidate.tags.iter().any(|tag| self.tags.contains(tag)))
    }
}

/// Somebody who might get it.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// The endpoint it would go to.
    pub endpoint: EndpointId,
    /// The lane it would wait in.
    pub lane: &'a Arc<LaneSettings>,
    /// What the endpoint wants; nothing means everything.
    pub event_types: &'a [Pattern],
    /// Whose endpoint it is.
    pub subject: Option<&'a str>,
    /// What it is marked with.
    pub tags: &'a [String],
    /// The endpoint's own TTL.
    pub ttl: Option<Duration>,
}

impl Candidate<'_> {
    /// Whether the endpoint wants this event. One that names events gets none without a type.
    pub fn wants(&self, event_type: Option<&str>) -> bool {
        self.event_types.is_empty()
            || event_type.is_some_and(|event| self.event_types.iter().any(|pattern| pattern.matches(event)))
    }
}

impl Fanout {
    /// The later of accept and `deliver_at`: what lifetimes count from.
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
    use crate::id::{LaneId, TenantId};
    use crate::policy::Policy;

    /// Whether an audience has ann's endpoint, which is marked a and b and wants orders.
    fn check(subjects: &[&str], tags: &[&str], all: bool, event_type: Option<&str>) -> bool {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        has_ann(&Audience { subjects: owned(subjects), tags: owned(tags), all, named: false }, event_type)
    }

    fn has_ann(audience: &Audience, event_type: Option<&str>) -> bool {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let policy = Arc::new(Policy::preset("webhook").unwrap_or_default());
        let lane = Arc::new(LaneSettings::new(LaneId::from_raw(1), TenantId::from_raw(1), policy));
        let wants = [Pattern::parse("order.*").expect("a pattern")];
        let marks: Vec<String> = owned(&["a", "b"]);
        let endpoint = EndpointId::from_raw(2);
        let ann =
            Candidate { endpoint, lane: &lane, event_types: &wants, subject: Some("ann"), tags: &marks, ttl: None };
        audience.has(&ann, event_type)
    }

    #[test]
    fn an_audience_is_those_that_want_the_event_and_are_all_that_is_asked_for() {
        assert!(check(&[], &[], false, Some("order.paid")));
        assert!(!check(&[], &[], false, Some("invoice.paid")));
        assert!(!check(&[], &[], false, None));
        assert!(check(&["bob", "ann"], &[], false, Some("order.paid")));
        assert!(!check(&["bob"], &[], false, Some("order.paid")));
        assert!(check(&[], &["x", "b"], false, Some("order.paid")));
        assert!(!check(&["ann"], &["x"], false, Some("order.paid")), "each kind must be met");
        assert!(!check(&["ann"], &[], false, Some("invoice.paid")), "who it is for does not make it wanted");
        assert!(check(&[], &[], true, Some("invoice.paid")));
        assert!(check(&[], &[], true, None));
    }

    #[test]
    fn what_was_for_named_endpoints_is_for_nobody_else() {
        assert!(has_ann(&Audience::default(), Some("order.paid")));
        assert!(!has_ann(&Audience { named: true, ..Audience::default() }, Some("order.paid")));
    }
}
