//! Chooses the channel of each endpoint: the one module that knows every channel.

use posthaste_channels::Channel;
use posthaste_channels::CustomHeaders;
use posthaste_channels::webhook::WebhookChannel;
use posthaste_core::classify::Overrides;
use posthaste_crypto::signature::Secret;
use posthaste_store::{Endpoint, EndpointTarget, SigningSecret, WebhookTarget};

pub type ChannelRegistry = fn(&Endpoint) -> Box<dyn Channel>;

pub fn registered(endpoint: &Endpoint) -> Box<dyn Channel> {
    match &endpoint.target {
        EndpointTarget::Webhook(target) => Box::new(webhook(target)),
    }
}

/// The values were checked when they were stored; those that no longer pass are left out.
fn webhook(target: &WebhookTarget) -> WebhookChannel {
    let headers = target.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut overrides = Overrides::default();
    for (status, class) in &target.status_overrides {
        _ = overrides.add(status, class);
    }
    let secret = |kept: &SigningSecret| Secret::parse(&kept.text).ok().map(|secret| (secret, kept.until));
    WebhookChannel {
        secrets: target.secrets.iter().filter_map(secret).collect(),
        headers: CustomHeaders::parse(headers).unwrap_or_default(),
        overrides,
    }
}
