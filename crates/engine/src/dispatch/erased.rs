//! Subjects and tenants that were erased a moment ago: none of their payloads is kept in memory. At the time of its
//! attempt a message is read from the store instead, which has new messages and no erased ones.

use std::time::Duration;

use posthaste_core::{MessageId, TenantId, Timestamp};
use posthaste_store::Message;

use super::Dispatch;

/// Far longer than an arrival takes from its commit to the loop, so that a message erased on the way is not sent.
const ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// Recent erasures: when, and of which tenant or subject of it.
#[derive(Debug, Default)]
pub(super) struct RecentErasures(Vec<(Timestamp, TenantId, Option<String>)>);

impl RecentErasures {
    pub(super) fn covers(&self, now: Timestamp, message: &Message) -> bool {
        let mut lately = self.0.iter().filter(|(at, ..)| now.since(*at) < ARRIVES_WITHIN);
        lately.any(|(_, tenant, subject)| is_theirs(message, *tenant, subject.as_deref()))
    }

    fn add(&mut self, now: Timestamp, tenant: TenantId, subject: Option<String>) {
        self.0.retain(|(at, ..)| now.since(*at) < ARRIVES_WITHIN);
        self.0.push((now, tenant, subject));
    }
}

fn is_theirs(message: &Message, tenant: TenantId, subject: Option<&str>) -> bool {
    message.tenant == tenant && (subject.is_none() || message.subject.as_deref() == subject)
}

impl Dispatch {
    /// Drops the payloads of an erased tenant or subject from memory. Returns the messages in flight, also those of
    /// others.
    pub(super) fn drop_erased(&mut self, now: Timestamp, tenant: TenantId, subject: Option<String>) -> Vec<MessageId> {
        let mut dropped = 0;
        self.inline_payloads.retain(|_, message| {
            let is_theirs = is_theirs(message, tenant, subject.as_deref());
            dropped += if is_theirs { message.body.len() } else { 0 };
            !is_theirs
        });
        self.inline_bytes -= dropped;
        self.erased.add(now, tenant, subject);
        self.scheduler.messages_in_flight()
    }
}
