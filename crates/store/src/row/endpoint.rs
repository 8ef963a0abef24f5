//! Endpoints: the destinations of messages, with their settings, and their selection by subject and tag.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::flow::bucket::Rate;
use posthaste_core::scheduler::{OnDead, Order, Special};
use posthaste_core::{EndpointChange, EndpointId, LaneId, LaneSettings, OriginId, Policy, TenantId, Timestamp};

use super::FirstAnswer;

/// Size above which an endpoint is not cached. A certificate chain with its key is smaller; the API's limits are much
/// higher.
const LARGE_BYTES: usize = 16 * 1024;

/// Whether an endpoint takes messages. Pauses are not part of it: a pause holds the endpoint's lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointStatus {
    #[default]
    Active,
    /// Its receiver answered 410: it takes no messages until its owner enables it.
    Gone,
    /// Its deliveries are made, but wait until its owner enables it.
    Disabled(DisabledBy),
    /// Its owner deleted it. A tombstone remains, which maps its deliveries to the tenant.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisabledBy {
    /// The receiver, by a response that asked for it.
    Receiver,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningSecret {
    /// The secret as its owner sees it; its prefix names the signature scheme.
    pub text: String,
    /// When it stops being used; `None` for the current secret, which is used until it is rotated.
    pub until: Option<Timestamp>,
}

impl SigningSecret {
    /// A secret that is used until it is rotated.
    pub fn lasting(text: impl Into<String>) -> Self {
        Self { text: text.into(), until: None }
    }

    pub fn is_live(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// An act on an endpoint's secrets, as the audit trail records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretAct {
    Shown,
    /// A new secret replaced the current one.
    Rotated,
}

/// The rate limit that the owner of an endpoint set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointRate {
    /// Sends per 1,000 seconds.
    pub milli: u64,
    /// Maximum number of sends at once after an idle time.
    pub burst: u32,
}

/// TLS settings of an endpoint, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointTls {
    /// Certificate authorities to trust for this endpoint, in addition to the system's.
    pub ca: Option<String>,
    pub client_cert: Option<String>,
    pub client_key: Option<String>,
}

/// The address of an endpoint, with the settings of its channel.
#[derive(Clone, Debug, PartialEq)]
pub enum EndpointTarget {
    /// A server that takes signed POSTs.
    Webhook(WebhookTarget),
}

impl EndpointTarget {
    pub fn url(&self) -> &str {
        match self {
            Self::Webhook(webhook) => &webhook.url,
        }
    }

    /// The size of its headers and certificates, in bytes.
    fn extra_bytes(&self) -> usize {
        match self {
            Self::Webhook(WebhookTarget { headers, tls: EndpointTls { ca, client_cert, client_key }, .. }) => {
                let texts = [ca, client_cert, client_key].into_iter().flatten().map(String::len);
                texts.chain(headers.iter().map(|(name, value)| name.len() + value.len())).sum()
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookTarget {
    pub url: String,
    /// Additional request headers, as name and value.
    pub headers: Vec<(String, String)>,
    /// The signing secrets, newest first.
    pub secrets: Vec<SigningSecret>,
    pub tls: EndpointTls,
    /// How chosen response statuses are treated, such as (`404`, `retry`).
    pub status_overrides: Vec<(String, String)>,
}

impl WebhookTarget {
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
    /// A webhook at this URL without secrets.
    fn from(url: String) -> Self {
        WebhookTarget::signing(url, Vec::new()).into()
    }
}

impl From<&str> for EndpointTarget {
    fn from(url: &str) -> Self {
        url.to_owned().into()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    pub id: EndpointId,
    /// The lane of its deliveries; no other endpoint has it.
    pub lane: LaneId,
    pub tenant: TenantId,
    pub at: Timestamp,
    /// The number of changes since it was made. A writer submits the next version, which detects lost updates.
    pub version: u32,
    /// The owner's own id for it, unique within the tenant.
    pub uid: Option<String>,
    /// The person or account that the device or address belongs to. Erasing the subject erases the endpoint.
    pub subject: Option<String>,
    pub description: Option<String>,
    /// Tags by which messages can be addressed to it.
    pub tags: Vec<String>,
    /// The address, with the settings of its channel.
    pub target: EndpointTarget,
    /// The event types it wants; empty means all.
    pub event_types: Vec<String>,
    /// The name of its retry policy; `None` uses the tenant's.
    pub policy: Option<String>,
    /// How long its messages are worth sending, unless a message says otherwise.
    pub ttl: Option<Duration>,
    /// Timeout of an attempt, if its owner set one below the server's.
    pub timeout: Option<Duration>,
    pub rate: Option<EndpointRate>,
    /// The order in which its deliveries are sent.
    pub order: Order,
    /// What a strict lane does when a delivery ends as dead.
    pub on_dead: OnDead,
    /// Maximum number of attempts in flight.
    pub max_in_flight: u16,
    /// The time zone for off-peak windows; `None` uses the tenant's.
    pub time_zone: Option<String>,
    pub status: EndpointStatus,
}

impl Endpoint {
    /// An endpoint that takes every event, in FIFO order, with up to 64 attempts in flight.
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

    /// Whether it is too large to be cached in memory; if so, it is read from the store when needed.
    pub fn is_large(&self) -> bool {
        self.target.extra_bytes() > LARGE_BYTES
    }

    /// Whether deliveries are made for it, even if they must wait.
    pub fn takes_messages(&self) -> bool {
        matches!(self.status, EndpointStatus::Active | EndpointStatus::Disabled(_))
    }

    /// The settings of its lane, without the tenant's settings. An unknown policy name is treated as the default: a
    /// delivery must not get stuck because of a preset that only a newer version has.
    pub fn lane_settings(&self) -> LaneSettings {
        let policy = self.policy.as_deref().and_then(Policy::preset);
        self.lane_by(Arc::new(policy.unwrap_or_default()))
    }

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

    /// The record that remains after deletion, without anything its owner entered.
    pub(crate) fn tombstone(&self) -> Self {
        let bare = Self::new(self.id, self.lane, self.tenant, self.at, String::new());
        let Self { version, order, on_dead, max_in_flight, .. } = *self;
        Self { version, order, on_dead, max_in_flight, status: EndpointStatus::Deleted, ..bare }
    }
}

/// The origin of a URL: scheme, host and port, with the scheme's default port if the URL names none.
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

#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum EndpointPut {
    Done,
    /// The endpoint was changed or deleted since the caller read it: nothing was written.
    Stale,
    /// Another endpoint of the tenant has this uid: nothing was written.
    UidTaken,
    /// The same call was made before under the same idempotency key: nothing was written.
    Replayed(FirstAnswer),
    /// The idempotency key was used for another request: nothing was written.
    KeyReused,
}

/// Selects a tenant's endpoints: those that belong to one of the subjects, if any are named, and carry one of the tags,
/// if any are named. At least one subject or tag is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSelector {
    subjects: Vec<String>,
    tags: Vec<String>,
}

impl EndpointSelector {
    /// A selector for these subjects and tags; `None` if both are empty.
    pub fn new(subjects: &[String], tags: &[String]) -> Option<Self> {
        let named = !subjects.is_empty() || !tags.is_empty();
        named.then(|| Self { subjects: subjects.to_vec(), tags: tags.to_vec() })
    }

    pub fn for_subject(subject: impl Into<String>) -> Self {
        Self { subjects: vec![subject.into()], tags: Vec::new() }
    }

    /// The subjects to match. Empty means that endpoints match with any subject or none.
    pub fn subjects(&self) -> &[String] {
        &self.subjects
    }

    /// The tags to match. Empty means that endpoints match with any tags or none.
    pub fn tags(&self) -> &[String] {
        &self.tags
    }

    pub fn matches(&self, endpoint: &Endpoint) -> bool {
        let is_named = |subject: &String| self.subjects.contains(subject);
        (self.subjects.is_empty() || endpoint.subject.as_ref().is_some_and(is_named))
            && (self.tags.is_empty() || endpoint.tags.iter().any(|tag| self.tags.contains(tag)))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct MatchedEndpoints {
    /// The endpoints, by id. There may be fewer than `limit` although more follow: see `next`.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// The id after which the next page begins; `None` if this is the last page.
    pub next: Option<EndpointId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_includes_the_default_port() {
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
