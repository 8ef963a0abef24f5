//! Endpoints: made, changed, enabled and deleted, and the secrets they sign with.
//!
//! What an owner says is checked here, once for making and changing. A change says which version it is of: of two
//! at the same time one is told that it came late, and nothing is undone unseen.

use posthaste_core::cut::EndpointChange;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_channels::custom_headers::{BadHeader, CustomHeaders};
use posthaste_core::cause::Cause;
use posthaste_core::classify::{BadOverride, Overrides};
use posthaste_core::id::{EndpointId, Key, LaneId};
use posthaste_core::pattern;
use posthaste_core::policy::UnknownPolicy;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::Kind;
use posthaste_crypto::signature::{BadSecret, Scheme, Secret};
use posthaste_store::{
    Act, By, Endpoint, EndpointPut, EndpointStatus, EndpointTarget, ListOrder, PauseScope, SigningSecret, Store,
    StoreError, WebhookTarget,
};

use crate::accept::{Named, NewMessage, NotAccepted, Once, Outcome, Promise};
use crate::clock::Clock;
use crate::connector::BadIdentity;
use crate::destination::{self, Destination};
use crate::dispatch::driver::Ended;
use crate::dispatch::{Answer, Command, EndLane, LanePaused};
use crate::engine::{Engine, NotDone, Sees};
use crate::target::{Refusal, Target};
use crate::tenants::Made;
use crate::zone::{self, UnknownZone};

/// Secrets that sign side by side: each costs a signature in every request.
const SECRETS_MAX: usize = 4;

/// What an example message carries.
const EXAMPLE: &[u8] = br#"{"type":"posthaste.test","data":{"text":"this endpoint works"}}"#;
/// What it is about.
const EXAMPLE_EVENT: &str = "posthaste.test";

/// How a new endpoint signs.
#[derive(Clone, Debug, Default)]
pub struct NewSigning {
    /// By which scheme; that of the secret where there is one, else `v1`.
    pub scheme: Option<Scheme>,
    /// An imported secret; one is made otherwise.
    pub secret: Option<String>,
}

/// An endpoint that was made.
#[derive(Clone, Debug)]
pub struct MadeEndpoint {
    /// The endpoint, with the secret it signs with.
    pub endpoint: Endpoint,
    /// The id the world knows it by.
    pub public_id: String,
    /// And whose it is.
    pub tenant: Option<String>,
    /// The name of the policy it goes by.
    pub policy: String,
}

/// Why an endpoint was not made or changed.
#[derive(Debug, thiserror::Error)]
pub enum NotMade {
    /// Its URL is not one we may send to.
    #[error("url: {0}")]
    Target(#[from] Refusal),
    /// Its secret is not one.
    #[error("signing.secret: {0}")]
    Secret(#[from] BadSecret),
    /// One of its event types is not a pattern.
    #[error("event_types: {bad}")]
    EventType {
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        bad: pattern::BadPattern,
    },
    /// There is no such policy.
    #[error("policy: {0}")]
    Policy(#[from] UnknownPolicy),
    /// One of its headers cannot be sent.
    #[error("headers: {bad}")]
    Header {
        /// Which, as its owner writes it, where it is one alone.
        name: Option<String>,
        /// What is wrong with it.
        bad: BadHeader,
    },
    /// One of its words on statuses says nothing.
    #[error("status_overrides: {bad}")]
    Override {
        /// Of which status.
        status: String,
        /// What is wrong with it.
        bad: BadOverride,
    },
    /// Its certificates or its key cannot be used.
    #[error("tls: {0}")]
    Tls(#[from] BadIdentity),
    /// There is no such time zone.
    #[error("time_zone: {0}")]
    Zone(#[from] UnknownZone),
    /// Another endpoint of its tenant has its uid.
    #[error("uid: another endpoint has it; choose another one, or change that endpoint")]
    UidTaken,
    /// It has changed since it was read, or is no more.
    #[error("the endpoint was changed by somebody else at the same time; look at it, and ask again")]
    Stale,
    /// As many secrets sign as may, and each was promised to.
    #[error("{SECRETS_MAX} secrets sign already")]
    TooManySecrets {
        /// When the first of them stops.
        until: Timestamp,
        /// When that was found.
        now: Timestamp,
    },
    /// It is gone, and what waited for it is still being ended.
    #[error("what waited for this endpoint when it was gone is still being ended; enable it again in some minutes")]
    StillEnding,
    /// Its key stands for another request.
    #[error("this key was used for another request within the last 24 hours; use a new one")]
    KeyReused,
    /// The engine is going down.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The store could not take it.
    #[error("the endpoint could not be made durable")]
    Store(#[from] StoreError),
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Makes an endpoint of what its owner wishes; the secret it signs with is in the answer.
    pub async fn make_endpoint(
        &self,
        wished: Endpoint,
        signing: NewSigning,
        once: Option<Once<MadeEndpoint>>,
        by: Option<By>,
    ) -> Result<Made<MadeEndpoint>, NotMade> {
        let secret = match &signing.secret {
            Some(imported) => Secret::parse(imported)?,
            None => Secret::generate_for(signing.scheme.unwrap_or_default()),
        };
        if signing.scheme.is_some_and(|scheme| scheme != secret.scheme()) {
            return Err(BadSecret::OtherScheme(secret.scheme()).into());
        }
        let id = self.mint(2);
        let mut endpoint = Endpoint {
            id: EndpointId(id),
            lane: LaneId(id.plus(1)),
            at: self.clock.now(),
            version: 0,
            status: EndpointStatus::Active,
            ..wished
        };
        let EndpointTarget::Webhook(webhook) = &mut endpoint.target;
        webhook.secrets = vec![SigningSecret::lasting(secret.reveal().as_str())];
        let endpoint = self.checked(endpoint).await?;
        let public_id = self.public_id(Kind::Endpoint, endpoint.id.0, endpoint.at);
        let tenant = self.tenant_public_id(endpoint.tenant).await?;
        let policy = self.rules(endpoint.tenant).await?.policy_of(&endpoint).to_owned();
        let made = MadeEndpoint { public_id, tenant, policy, endpoint };
        let once = once.map(|once| self.known_by(made.endpoint.tenant, once, &made, made.endpoint.at));
        let act = Act { at: made.endpoint.at, by };
        match self.store.put_endpoint(self.session, made.endpoint.clone(), once, act).await? {
            EndpointPut::Done => Ok(Made::Now(made)),
            EndpointPut::Replayed(answer) => Ok(Made::Before(answer)),
            EndpointPut::KeyReused => Err(NotMade::KeyReused),
            EndpointPut::UidTaken => Err(NotMade::UidTaken),
            EndpointPut::Stale => Err(NotMade::Stale),
        }
    }

    /// Changes an endpoint to what its owner wishes: this is the version behind the one that was read.
    pub async fn change_endpoint(self: &Arc<Self>, wished: Endpoint, by: Option<By>) -> Result<Endpoint, NotMade> {
        let wished = self.checked(wished).await?;
        self.act(|engine| async move { engine.put_changed(wished, by).await }).await?
    }

    async fn put_changed(&self, endpoint: Endpoint, by: Option<By>) -> Result<Endpoint, NotMade> {
        let put = self.store.put_endpoint(self.session, endpoint.clone(), None, self.done_by(by)).await?;
        self.changed(endpoint, put).await
    }

    /// Makes a new secret sign beside those in use, which stop after the overlap, each at its own time at the latest.
    /// None stops before it was said to.
    pub async fn rotate_secret(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        overlap: Duration,
        once: Option<Once<Endpoint>>,
        by: Option<By>,
    ) -> Result<Made<Endpoint>, NotMade> {
        let now = self.clock.now();
        let EndpointTarget::Webhook(webhook) = &endpoint.target;
        let newest = webhook.secrets.first().and_then(|secret| Secret::parse(&secret.text).ok());
        let new = Secret::generate_for(newest.map(|secret| secret.scheme()).unwrap_or_default());
        let ends = |secret: &SigningSecret| {
            let until = secret.until.map_or(now + overlap, |until| until.min(now + overlap));
            SigningSecret { until: Some(until), ..secret.clone() }
        };
        let old: Vec<SigningSecret> = webhook.secrets.iter().map(ends).filter(|secret| secret.is_live(now)).collect();
        let first_end = old.iter().filter_map(|secret| secret.until).min();
        let full = first_end.filter(|_| old.len() >= SECRETS_MAX);
        if let (Some(until), None) = (full, &once) {
            return Err(NotMade::TooManySecrets { until, now });
        }
        let secrets = std::iter::once(SigningSecret::lasting(new.reveal().as_str())).chain(old).collect();
        // Whoever has asked before is answered as then. Where there is no room, a version that is not the next one
        // has the store say so, and change nothing.
        let version = if full.is_some() { endpoint.version } else { endpoint.version + 1 };
        let target = WebhookTarget { secrets, ..webhook.clone() }.into();
        let rotated = Endpoint { target, version, ..endpoint.clone() };
        let once = once.map(|once| self.known_by(endpoint.tenant, once, &rotated, now));
        let act = Act { at: now, by };
        let rotate = |engine: Arc<Self>| async move {
            match (engine.store.rotate_secret(engine.session, rotated.clone(), once, act).await?, full) {
                (EndpointPut::Replayed(answer), _) => Ok(Made::Before(answer)),
                (EndpointPut::KeyReused, _) => Err(NotMade::KeyReused),
                (_, Some(until)) => Err(NotMade::TooManySecrets { until, now }),
                (put, None) => engine.changed(rotated, put).await.map(Made::Now),
            }
        };
        self.act(rotate).await?
    }

    async fn changed(&self, endpoint: Endpoint, put: EndpointPut) -> Result<Endpoint, NotMade> {
        match put {
            EndpointPut::UidTaken => Err(NotMade::UidTaken),
            EndpointPut::Stale | EndpointPut::Replayed(_) | EndpointPut::KeyReused => Err(NotMade::Stale),
            EndpointPut::Done => {
                self.destinations.forget(endpoint.id);
                self.handle.ask(Command::Lane(endpoint.lane)).await?;
                Ok(endpoint)
            }
        }
    }

    /// Notes that somebody looks at the secrets of an endpoint, and gives those that sign, newest first.
    pub async fn secrets(&self, endpoint: &Endpoint, by: Option<By>) -> Result<Vec<SigningSecret>, StoreError> {
        let now = self.clock.now();
        self.store.note_secret_shown(self.session, endpoint.id, endpoint.tenant, Act { at: now, by }).await?;
        let EndpointTarget::Webhook(webhook) = &endpoint.target;
        Ok(webhook.secrets.iter().filter(|secret| secret.is_live(now)).cloned().collect())
    }

    /// Ends a pause of an endpoint, and whatever disabled it; one that is gone takes messages again.
    pub async fn enable_endpoint(self: &Arc<Self>, endpoint: &Endpoint, by: Option<By>) -> Result<Endpoint, NotMade> {
        let endpoint = endpoint.clone();
        self.act(|engine| async move { engine.enabled(endpoint, by).await }).await?
    }

    async fn enabled(&self, endpoint: Endpoint, by: Option<By>) -> Result<Endpoint, NotMade> {
        let lane = endpoint.lane;
        // An answer that disables it may be on its way to the disk, and is in force already: this comes behind it.
        self.handle.ask(Command::Recorded(lane)).await?;
        let is_the_same = |now: &Endpoint| (now.version, &now.status) == (endpoint.version, &endpoint.status);
        if !self.store.endpoint(endpoint.id).await?.is_some_and(|now| is_the_same(&now)) {
            return Err(NotMade::Stale);
        }
        if endpoint.status == EndpointStatus::Gone && self.handle.ask(Command::IsEnding(lane)).await? == Answer::Done {
            return Err(NotMade::StillEnding);
        }
        let enabled = if endpoint.status == EndpointStatus::Active {
            // What the loop reads again is what was enabled, also where it did not hear of it before.
            self.handle.ask(Command::Lane(lane)).await?;
            endpoint
        } else {
            let version = endpoint.version + 1;
            self.put_changed(Endpoint { status: EndpointStatus::Active, version, ..endpoint }, by).await?
        };
        self.handle.ask(Command::Resume(PauseScope::Lane(lane), by)).await?;
        Ok(enabled)
    }

    /// Deletes an endpoint, and ends what waits for it: how many were ended, and how many may still arrive.
    pub async fn delete_endpoint(self: &Arc<Self>, endpoint: &Endpoint, by: Option<By>) -> Result<(u64, u64), NotDone> {
        let (id, lane) = (endpoint.id, endpoint.lane);
        self.act(|engine| async move { engine.deleted(id, lane, by).await }).await?
    }

    async fn deleted(&self, id: EndpointId, lane: LaneId, by: Option<By>) -> Result<(u64, u64), NotDone> {
        let endpoint = Some((id, EndpointChange::Deleted));
        let end = EndLane { lane, upto: Key::MAX, cause: Cause::EndpointDeleted, endpoint };
        let answer = self.handle.ask(Command::EndLane(end, by)).await?;
        self.destinations.forget(id);
        if self.paused(vec![lane]).await?.iter().any(Option::is_some) {
            self.handle.ask(Command::Resume(PauseScope::Lane(lane), by)).await?;
        }
        match answer {
            Answer::Ended { ended, in_flight } => Ok((ended, in_flight)),
            _ => Ok((0, 0)),
        }
    }

    /// Sends a real, signed example message to an endpoint, whatever events it wants.
    pub async fn test_endpoint(
        &self,
        endpoint: &Endpoint,
        once: Option<Once<Promise>>,
    ) -> Result<Outcome, NotAccepted> {
        let example = NewMessage {
            event_type: Some(EXAMPLE_EVENT.to_owned()),
            endpoints: vec![Named::Id(endpoint.id)],
            once,
            ..NewMessage::new(endpoint.tenant, Bytes::from_static(EXAMPLE), Tier::Transactional)
        };
        self.accept(example).await
    }

    /// Which endpoint somebody means: one that they may see, by its id, or by its uid among a tenant's.
    pub async fn endpoint_named(&self, whose: Sees, named: &str) -> Result<Option<EndpointId>, StoreError> {
        match (self.opened(Kind::Endpoint, named), whose) {
            (Some((key, _)), _) => Ok(Some(EndpointId(key))),
            (None, Sees::Tenant(tenant)) => self.store.endpoint_named(tenant, named.to_owned()).await,
            (None, Sees::All) => Ok(None),
        }
    }

    /// An endpoint that somebody may see.
    pub async fn endpoint(&self, whose: Sees, id: EndpointId) -> Result<Option<Arc<Destination>>, StoreError> {
        let known = self.destinations.load(id).await?.filter(|known| whose.sees(known.endpoint.tenant));
        Ok(known.filter(|known| known.endpoint.status != EndpointStatus::Deleted))
    }

    /// The same, also if it was deleted since: what became of its deliveries can still be asked for.
    pub async fn endpoint_once(&self, whose: Sees, id: EndpointId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        Ok(self.store.endpoint(id).await?.filter(|endpoint| whose.sees(endpoint.tenant)))
    }

    /// A part of the endpoints of a tenant, or of everybody.
    pub async fn endpoints(
        &self,
        whose: Sees,
        order: ListOrder,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        self.store.list_endpoints(whose.tenant(), order, after, limit).await
    }

    /// What holds each of these lanes by somebody's word.
    pub async fn paused(&self, lanes: Vec<LaneId>) -> Result<Vec<Option<LanePaused>>, Ended> {
        match self.handle.ask(Command::Paused(lanes)).await? {
            Answer::Paused(holds) => Ok(holds),
            _ => Ok(Vec::new()),
        }
    }

    /// An endpoint of which everything can be done that its owner wishes. Its host is written the one way it has, so
    /// that everybody at one origin is known to be.
    async fn checked(&self, mut endpoint: Endpoint) -> Result<Endpoint, NotMade> {
        let EndpointTarget::Webhook(webhook) = &mut endpoint.target;
        let url = std::mem::take(&mut webhook.url);
        webhook.url = Target::parse(&url, self.destinations.targets())?.rewritten(url);
        for (index, text) in endpoint.event_types.iter().enumerate() {
            pattern::Pattern::parse(text).map_err(|bad| NotMade::EventType { index, bad })?;
        }
        if let Some(named) = &endpoint.policy {
            self.rules(endpoint.tenant).await?.policy(named)?;
        }
        let EndpointTarget::Webhook(webhook) = &endpoint.target;
        let headers = webhook.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        CustomHeaders::parse(headers).map_err(|bad| {
            let is_it = |name: &&String| bad.name().is_some_and(|known| known.eq_ignore_ascii_case(name));
            // Of two that are the same one, the later is one too many.
            let name = webhook.headers.iter().map(|(name, _)| name).rfind(is_it).cloned();
            NotMade::Header { name, bad }
        })?;
        let mut overrides = Overrides::default();
        for (status, class) in &webhook.status_overrides {
            let added = overrides.add(status, class);
            added.map_err(|bad| NotMade::Override { status: status.clone(), bad })?;
        }
        destination::identity(&endpoint.target)?;
        if let Some(name) = &endpoint.time_zone {
            let now = self.clock.now();
            zone::offsets(name, now, now)?;
        }
        Ok(endpoint)
    }
}
