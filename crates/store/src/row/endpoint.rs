//! Endpoints: where messages go, and everything their owners say of them.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::cut::EndpointChange;
use posthaste_core::flow::bucket::Rate;
use posthaste_core::id::{EndpointId, LaneId, OriginId, TenantId};
use posthaste_core::policy::Policy;
use posthaste_core::queue::{LaneSettings, OnDead, Order, Special};
use posthaste_core::time::Timestamp;

use super::idempotency::{Before, FirstAnswer};

/// More than a chain of certificates with its key, and far less than an owner may give.
const LARGE_BYTES: usize = 16 * 1024;

/// Whether an endpoint takes messages. A pause is not here: it is a hold of its lane, like every other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointStatus {
    /// It does.
    #[default]
    Active,
    /// Its receiver answered 410: it gets none any more, until its owner enables it.
    Gone,
    /// Its deliveries are made and wait until somebody enables it.
    Disabled(DisabledBy),
    /// Its owner deleted it. What is left says whose its deliveries were.
    Deleted,
}

impl From<EndpointChange> for EndpointStatus {
    fn from(change: EndpointChange) -> Self {
        match change {
            EndpointChange::Gone => Self::Gone,
            EndpointChange::Disabled => Self::Disabled(DisabledBy::Receiver),
            EndpointChange::Deleted => Self::Deleted,
        }
    }
}

/// Who disabled an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisabledBy {
    /// Its receiver, by an answer that asked for it.
    Receiver,
}

/// What an endpoint signs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningSecret {
    /// The secret as its owner is shown it; its prefix says for which scheme it is.
    pub text: String,
    /// When it stops to sign; `None` for the one that is in use until somebody rotates it.
    pub until: Option<Timestamp>,
}

impl SigningSecret {
    /// One that signs until somebody rotates it.
    pub fn lasting(text: impl Into<String>) -> Self {
        Self { text: text.into(), until: None }
    }

    /// Whether it signs at this time.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// What somebody did with an endpoint's secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretAct {
    /// Looked at them.
    Shown,
    /// Made a new one take the place of the one in use.
    Rotated,
}

/// How fast an endpoint may be sent to, as its owner said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointRate {
    /// Thousandths a second.
    pub milli: u64,
    /// How many at once after a pause.
    pub burst: u32,
}

/// Whom an endpoint trusts and who it says we are, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointTls {
    /// Authorities it is trusted by beside the system's.
    pub ca: Option<String>,
    /// The certificate we show.
    pub client_cert: Option<String>,
    /// Its key.
    pub client_key: Option<String>,
}

/// Where an endpoint's messages go, and what its channel needs to send them there.
#[derive(Clone, Debug, PartialEq)]
pub enum EndpointTarget {
    /// A server that takes signed POSTs.
    Webhook(WebhookTarget),
}

impl EndpointTarget {
    /// The URL that requests go to.
    pub fn url(&self) -> &str {
        match self {
            Self::Webhook(webhook) => &webhook.url,
        }
    }

    /// How many bytes it has beyond its URL.
    fn extra_bytes(&self) -> usize {
        match self {
            Self::Webhook(WebhookTarget { headers, tls: EndpointTls { ca, client_cert, client_key }, .. }) => {
                let texts = [ca, client_cert, client_key].into_iter().flatten().map(String::len);
                texts.chain(headers.iter().map(|(name, value)| name.len() + value.len())).sum()
            }
        }
    }
}

/// What the owner of a webhook endpoint says of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookTarget {
    /// Where to.
    pub url: String,
    /// Headers that are sent along.
    pub headers: Vec<(String, String)>,
    /// What it signs with, newest first.
    pub secrets: Vec<SigningSecret>,
    /// Whom it trusts, and who we are to it.
    pub tls: EndpointTls,
    /// What chosen statuses mean, as (`404`, `retry`).
    pub status_overrides: Vec<(String, String)>,
}

impl WebhookTarget {
    /// One at this URL with these secrets.
    pub fn signing(url: impl Into<String>, secrets: Vec<SigningSecret>) -> Self {
        Self { url: url.into(), secrets, ..Self::default() }
    }
}

impl From<WebhookTarget> for EndpointTarget {
    fn from(webhook: WebhookTarget) -> Self {
        Self::Webhook(webhook)
    }
}

impl From<String> for EndpointTarget {
    /// A webhook at this URL that signs nothing yet.
    fn from(url: String) -> Self {
        WebhookTarget::signing(url, Vec::new()).into()
    }
}

impl From<&str> for EndpointTarget {
    fn from(url: &str) -> Self {
        url.to_owned().into()
    }
}

/// A place messages are delivered to.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Its id.
    pub id: EndpointId,
    /// The lane its deliveries wait in, which no other endpoint has.
    pub lane: LaneId,
    /// Whose.
    pub tenant: TenantId,
    /// When it was made.
    pub at: Timestamp,
    /// Counts its changes from 0: whoever changes it says which one this is.
    pub version: u32,
    /// What its owner calls it by. No two of a tenant have the same.
    pub uid: Option<String>,
    /// Whose device or address it is: it is erased with them.
    pub subject: Option<String>,
    /// A note of its owner's.
    pub description: Option<String>,
    /// What messages can be addressed to.
    pub tags: Vec<String>,
    /// Where to, by its channel.
    pub target: EndpointTarget,
    /// Which events it wants; none means all.
    pub event_types: Vec<String>,
    /// The name of its retry policy; its tenant's where it names none.
    pub policy: Option<String>,
    /// How long its messages are worth sending.
    pub ttl: Option<Duration>,
    /// How long an attempt may take, where its owner wants less than the server allows.
    pub timeout: Option<Duration>,
    /// How fast it may be sent to.
    pub rate: Option<EndpointRate>,
    /// In which order.
    pub order: Order,
    /// For strict lanes.
    pub on_dead: OnDead,
    /// How many attempts may be under way at once.
    pub max_in_flight: u16,
    /// Whose clock off-peak windows go by, where it is not the tenant's.
    pub time_zone: Option<String>,
    /// Whether it takes messages.
    pub status: EndpointStatus,
}

impl Endpoint {
    /// One that takes every event, first in, first out, 64 at once.
    pub fn new(
        id: EndpointId,
        lane: LaneId,
        tenant: TenantId,
        at: Timestamp,
        target: impl Into<EndpointTarget>,
    ) -> Self {
        Self {
            id,
            lane,
            tenant,
            at,
            version: 0,
            uid: None,
            subject: None,
            description: None,
            tags: Vec::new(),
            target: target.into(),
            event_types: Vec::new(),
            policy: None,
            ttl: None,
            timeout: None,
            rate: None,
            order: Order::Fifo,
            on_dead: OnDead::Skip,
            max_in_flight: 64,
            time_zone: None,
            status: EndpointStatus::Active,
        }
    }

    /// Whether it is too large to be kept in memory beside thousands of others: it is read when it is needed.
    pub fn is_large(&self) -> bool {
        self.target.extra_bytes() > LARGE_BYTES
    }

    /// Whether deliveries are made for it, though they may have to wait.
    pub fn takes_messages(&self) -> bool {
        matches!(self.status, EndpointStatus::Active | EndpointStatus::Disabled(_))
    }

    /// What the dispatch loop needs of it, as far as it says itself. An unknown policy name reads as the default: a
    /// delivery must not be stranded by a preset that a newer version has and this one has not.
    pub fn lane_settings(&self) -> LaneSettings {
        let policy = self.policy.as_deref().and_then(Policy::preset);
        self.lane_by(Arc::new(policy.unwrap_or_default()))
    }

    /// The same by this policy, whatever it names.
    pub fn lane_by(&self, policy: Arc<Policy>) -> LaneSettings {
        let settings = LaneSettings {
            version: self.version,
            disabled: matches!(self.status, EndpointStatus::Disabled(_)),
            order: self.order,
            on_dead: self.on_dead,
            max_in_flight: self.max_in_flight,
            origin: Some(origin(self.target.url())),
            ..LaneSettings::new(self.lane, self.tenant, policy)
        };
        match self.rate {
            None => settings,
            Some(EndpointRate { milli, burst }) => {
                settings.with(Special { rate: Some(Rate::milli(milli).with_burst(burst)), ..Special::default() })
            }
        }
    }

    /// What is left of one that was deleted: nothing that anybody chose.
    pub(crate) fn tombstone(&self) -> Self {
        let bare = Self::new(self.id, self.lane, self.tenant, self.at, String::new());
        let Self { version, order, on_dead, max_in_flight, .. } = *self;
        Self { version, order, on_dead, max_in_flight, status: EndpointStatus::Deleted, ..bare }
    }
}

/// A URL up to its path: scheme and host as they were written, and the port that is meant.
fn origin(url: &str) -> OriginId {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    let has_port = url[host..end].rsplit(']').next().is_some_and(|after| after.contains(':'));
    if has_port {
        return OriginId::of(&url[..end]);
    }
    let port = if url[..host].eq_ignore_ascii_case("http://") { 80 } else { 443 };
    OriginId::of(&format!("{}:{port}", &url[..end]))
}

/// What became of an endpoint that was to be made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum EndpointPut {
    /// It was.
    Done,
    /// It has changed since it was read, or is no more: nothing was written.
    Stale,
    /// Another one of its tenant has its uid: nothing was written.
    UidTaken,
    /// The call was made before, under the same key: nothing was written.
    Replayed(FirstAnswer),
    /// The call's key stands for another request: nothing was written.
    KeyReused,
}

impl From<Before> for EndpointPut {
    fn from(before: Before) -> Self {
        match before {
            Before::Same(answer) => Self::Replayed(answer),
            Before::Another => Self::KeyReused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_the_port_that_is_meant() {
        for (url, expected) in [
            ("https://Example.com/hook", "https://example.com:443"),
            ("https://example.com:443?a:b", "https://example.com:443"),
            ("HTTP://example.com", "http://example.com:80"),
            ("http://[::1]/a", "http://[::1]:80"),
            ("http://[::1]:8080/a", "http://[::1]:8080"),
        ] {
            assert_eq!(origin(url), OriginId::of(expected), "{url}");
        }
    }
}
