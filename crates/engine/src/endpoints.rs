//! Endpoints: made, changed, enabled and deleted, and the secrets they sign with.
//!
//! An endpoint's values are checked here, in one place for making and changing. A change names the version it is based
//! on: of two concurrent changes one is refused as stale, so that neither silently undoes the other.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_channels::{BadHeader, CustomHeaders};
use posthaste_core::classify::{BadOverride, Overrides};
use posthaste_core::policy::UnknownPolicy;
use posthaste_core::{Cause, EndpointChange, EndpointId, Key, LaneId, Tier, Timestamp, pattern};
use posthaste_crypto::public_id::IdKind;
use posthaste_crypto::signature::{BadSecret, Secret, SignatureScheme};
use posthaste_store::{
    ApiKeyRef, AuditStamp, Endpoint, EndpointPut, EndpointStatus, EndpointTarget, ListOrder, PauseScope, SigningSecret,
    Store, StoreError, WebhookTarget,
};

use crate::zone::{self, UnknownZone};
use crate::{
    AcceptOutcome, BadIdentity, Clock, Command, CommandReply, EndLane, EndpointRef, Engine, EngineStopped,
    IdempotencyRequest, LanePaused, Made, NewMessage, NotAccepted, NotDone, ParsedEndpoint, PromisedMessage, Refusal,
    Target, Visibility, endpoint_cache,
};

/// The most secrets that sign at a time: each costs a signature in every request.
const SECRETS_MAX: usize = 4;

const EXAMPLE: &[u8] = br#"{"type":"posthaste.test","data":{"text":"this endpoint works"}}"#;
const EXAMPLE_EVENT: &str = "posthaste.test";

#[derive(Clone, Debug, Default)]
pub struct NewSigning {
    /// The signature scheme; `None` for that of the imported secret, or `v1` without one.
    pub scheme: Option<SignatureScheme>,
    /// An imported secret; `None` to generate one.
    pub secret: Option<String>,
}

#[derive(Clone, Debug)]
pub struct MadeEndpoint {
    pub endpoint: Endpoint,
    pub public_id: String,
    pub tenant: Option<String>,
    pub policy: String,
}

#[derive(Debug, thiserror::Error)]
pub enum NotMade {
    #[error("url: {0}")]
    Target(#[from] Refusal),
    #[error("signing.secret: {0}")]
    Secret(#[from] BadSecret),
    #[error("event_types: {bad}")]
    EventType {
        /// The index in the list, from 0.
        index: usize,
        bad: pattern::BadEventPattern,
    },
    #[error("policy: {0}")]
    Policy(#[from] UnknownPolicy),
    #[error("headers: {bad}")]
    Header {
        /// The header's name as its owner wrote it; `None` if the complaint is about all of them together.
        name: Option<String>,
        bad: BadHeader,
    },
    #[error("status_overrides: {bad}")]
    Override { status: String, bad: BadOverride },
    #[error("tls: {0}")]
    Tls(#[from] BadIdentity),
    #[error("time_zone: {0}")]
    Zone(#[from] UnknownZone),
    #[error("uid: another endpoint has it; choose another one, or change that endpoint")]
    UidTaken,
    /// It was changed or deleted since it was read.
    #[error("another request changed the endpoint at the same time; read it again, and repeat your change")]
    Stale,
    /// The most secrets sign already, and none of them may stop before its time.
    #[error("{SECRETS_MAX} secrets sign already")]
    TooManySecrets {
        /// When the first of them stops.
        until: Timestamp,
        now: Timestamp,
    },
    /// It is gone, and its pending deliveries are still being ended.
    #[error("the deliveries that waited when this endpoint was gone are still being ended; enable it in a few minutes")]
    StillEnding,
    #[error("this key was used for another request within the last 24 hours; use a new one")]
    KeyReused,
    #[error(transparent)]
    Ended(#[from] EngineStopped),
    #[error("the endpoint could not be made durable")]
    Store(#[from] StoreError),
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Makes an endpoint; the result has the secret that it signs with.
    pub async fn make_endpoint(
        &self,
        new: Endpoint,
        signing: NewSigning,
        once: Option<IdempotencyRequest<MadeEndpoint>>,
        by: Option<ApiKeyRef>,
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
            ..new
        };
        let EndpointTarget::Webhook(webhook) = &mut endpoint.target;
        webhook.secrets = vec![SigningSecret::lasting(secret.reveal().as_str())];
        let endpoint = self.checked(endpoint).await?;
        let public_id = self.public_id(IdKind::Endpoint, endpoint.id.0, endpoint.at);
        let tenant = self.tenant_public_id(endpoint.tenant).await?;
        let policy = self.rules(endpoint.tenant).await?.policy_of(&endpoint).to_owned();
        let made = MadeEndpoint { public_id, tenant, policy, endpoint };
        let once = once.map(|once| self.known_by(made.endpoint.tenant, once, &made, made.endpoint.at));
        let act = AuditStamp { at: made.endpoint.at, by };
        match self.store.put_endpoint(self.session, made.endpoint.clone(), once, act).await? {
            EndpointPut::Done => Ok(Made::Now(made)),
            EndpointPut::Replayed(answer) => Ok(Made::Before(answer)),
            EndpointPut::KeyReused => Err(NotMade::KeyReused),
            EndpointPut::UidTaken => Err(NotMade::UidTaken),
            EndpointPut::Stale => Err(NotMade::Stale),
        }
    }

    /// Replaces an endpoint; its version must be the next after the one that was read.
    pub async fn change_endpoint(
        self: &Arc<Self>,
        changed: Endpoint,
        by: Option<ApiKeyRef>,
    ) -> Result<Endpoint, NotMade> {
        let changed = self.checked(changed).await?;
        self.run_detached(|engine| async move { engine.put_changed(changed, by).await }).await?
    }

    async fn put_changed(&self, endpoint: Endpoint, by: Option<ApiKeyRef>) -> Result<Endpoint, NotMade> {
        let put = self.store.put_endpoint(self.session, endpoint.clone(), None, self.done_by(by)).await?;
        self.changed(endpoint, put).await
    }

    /// Makes a new secret sign beside those in use. Each of these stops after the overlap, or at its own end if that
    /// comes first. When that would be too many secrets, the call is refused: none is stopped early.
    pub async fn rotate_secret(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        overlap: Duration,
        once: Option<IdempotencyRequest<Endpoint>>,
        by: Option<ApiKeyRef>,
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
        // A repeated request gets its first answer also when there is no room for another secret. For that the store is
        // called with a version that is not the next one: it looks the key up, and changes nothing.
        let version = if full.is_some() { endpoint.version } else { endpoint.version + 1 };
        let target = WebhookTarget { secrets, ..webhook.clone() }.into();
        let rotated = Endpoint { target, version, ..endpoint.clone() };
        let once = once.map(|once| self.known_by(endpoint.tenant, once, &rotated, now));
        let act = AuditStamp { at: now, by };
        let rotate = |engine: Arc<Self>| async move {
            match (engine.store.rotate_secret(engine.session, rotated.clone(), once, act).await?, full) {
                (EndpointPut::Replayed(answer), _) => Ok(Made::Before(answer)),
                (EndpointPut::KeyReused, _) => Err(NotMade::KeyReused),
                (_, Some(until)) => Err(NotMade::TooManySecrets { until, now }),
                (put, None) => engine.changed(rotated, put).await.map(Made::Now),
            }
        };
        self.run_detached(rotate).await?
    }

    async fn changed(&self, endpoint: Endpoint, put: EndpointPut) -> Result<Endpoint, NotMade> {
        match put {
            EndpointPut::UidTaken => Err(NotMade::UidTaken),
            EndpointPut::Stale | EndpointPut::Replayed(_) | EndpointPut::KeyReused => Err(NotMade::Stale),
            EndpointPut::Done => {
                self.endpoint_cache.forget(endpoint.id);
                self.handle.ask(Command::Lane(endpoint.lane)).await?;
                Ok(endpoint)
            }
        }
    }

    /// The secrets of an endpoint that sign, newest first. The journal notes that they were shown, and to which key.
    pub async fn secrets(&self, endpoint: &Endpoint, by: Option<ApiKeyRef>) -> Result<Vec<SigningSecret>, StoreError> {
        let now = self.clock.now();
        self.store.note_secret_shown(self.session, endpoint.id, endpoint.tenant, AuditStamp { at: now, by }).await?;
        let EndpointTarget::Webhook(webhook) = &endpoint.target;
        Ok(webhook.secrets.iter().filter(|secret| secret.is_live(now)).cloned().collect())
    }

    /// Ends a pause of an endpoint and enables it; one that was gone takes messages again.
    pub async fn enable_endpoint(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        by: Option<ApiKeyRef>,
    ) -> Result<Endpoint, NotMade> {
        let endpoint = endpoint.clone();
        self.run_detached(|engine| async move { engine.enabled(endpoint, by).await }).await?
    }

    async fn enabled(&self, endpoint: Endpoint, by: Option<ApiKeyRef>) -> Result<Endpoint, NotMade> {
        let lane = endpoint.lane;
        // An outcome that disables the endpoint may be in force and not yet durable: waits until it is.
        self.handle.ask(Command::Recorded(lane)).await?;
        let is_the_same = |now: &Endpoint| (now.version, &now.status) == (endpoint.version, &endpoint.status);
        if !self.store.endpoint(endpoint.id).await?.is_some_and(|now| is_the_same(&now)) {
            return Err(NotMade::Stale);
        }
        if endpoint.status == EndpointStatus::Gone
            && self.handle.ask(Command::IsEnding(lane)).await? == CommandReply::Done
        {
            return Err(NotMade::StillEnding);
        }
        let enabled = if endpoint.status == EndpointStatus::Active {
            // The loop may not have read the enabled endpoint yet.
            self.handle.ask(Command::Lane(lane)).await?;
            endpoint
        } else {
            let version = endpoint.version + 1;
            self.put_changed(Endpoint { status: EndpointStatus::Active, version, ..endpoint }, by).await?
        };
        self.handle.ask(Command::Resume(PauseScope::Lane(lane), by)).await?;
        Ok(enabled)
    }

    /// Deletes an endpoint and ends its pending deliveries. Returns how many were ended, and how many are in flight and
    /// may still arrive.
    pub async fn delete_endpoint(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        by: Option<ApiKeyRef>,
    ) -> Result<(u64, u64), NotDone> {
        let (id, lane) = (endpoint.id, endpoint.lane);
        self.run_detached(|engine| async move { engine.deleted(id, lane, by).await }).await?
    }

    async fn deleted(&self, id: EndpointId, lane: LaneId, by: Option<ApiKeyRef>) -> Result<(u64, u64), NotDone> {
        let endpoint = Some((id, EndpointChange::Deleted));
        let end = EndLane { lane, upto: Key::MAX, cause: Cause::EndpointDeleted, endpoint };
        let ended = self.end_lane(end, by).await?;
        self.endpoint_cache.forget(id);
        Ok(ended)
    }

    /// Ends everything that waits in a lane, and the lane's pause. Returns how many deliveries were ended, and how many
    /// are in flight.
    pub(crate) async fn end_lane(&self, end: EndLane, by: Option<ApiKeyRef>) -> Result<(u64, u64), EngineStopped> {
        let answer = self.handle.ask(Command::EndLane(end, by)).await?;
        if self.paused(vec![end.lane]).await?.iter().any(Option::is_some) {
            self.handle.ask(Command::Resume(PauseScope::Lane(end.lane), by)).await?;
        }
        let CommandReply::Ended { ended, in_flight } = answer else { return Ok((0, 0)) };
        Ok((ended, in_flight))
    }

    /// Sends a signed example message to an endpoint, also if it does not want this event type.
    pub async fn test_endpoint(
        &self,
        endpoint: &Endpoint,
        once: Option<IdempotencyRequest<PromisedMessage>>,
    ) -> Result<AcceptOutcome, NotAccepted> {
        let example = NewMessage {
            event_type: Some(EXAMPLE_EVENT.to_owned()),
            endpoints: vec![EndpointRef::Id(endpoint.id)],
            once,
            ..NewMessage::new(endpoint.tenant, Bytes::from_static(EXAMPLE), Tier::Transactional)
        };
        self.accept(example).await
    }

    /// The id of the endpoint that a caller names by its public id, or by its uid for a tenant's caller. Whether the
    /// caller may see it is not checked.
    pub async fn endpoint_named(&self, visibility: Visibility, named: &str) -> Result<Option<EndpointId>, StoreError> {
        match (self.opened(IdKind::Endpoint, named), visibility) {
            (Some((key, _)), _) => Ok(Some(EndpointId(key))),
            (None, Visibility::Tenant(tenant)) => self.store.endpoint_named(tenant, named.to_owned()).await,
            (None, Visibility::All) => Ok(None),
        }
    }

    /// An endpoint that the caller may see and that was not deleted.
    pub async fn endpoint(
        &self,
        visibility: Visibility,
        id: EndpointId,
    ) -> Result<Option<Arc<ParsedEndpoint>>, StoreError> {
        let known = self.endpoint_cache.load(id).await?.filter(|known| visibility.sees(known.endpoint.tenant));
        Ok(known.filter(|known| known.endpoint.status != EndpointStatus::Deleted))
    }

    /// An endpoint that the caller may see, also if it was deleted: its deliveries can still be read.
    pub async fn endpoint_once(
        &self,
        visibility: Visibility,
        id: EndpointId,
    ) -> Result<Option<Arc<Endpoint>>, StoreError> {
        Ok(self.store.endpoint(id).await?.filter(|endpoint| visibility.sees(endpoint.tenant)))
    }

    /// A page of the endpoints that the caller may see.
    pub async fn endpoints(
        &self,
        visibility: Visibility,
        order: ListOrder,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        self.store.list_endpoints(visibility.tenant(), order, after, limit).await
    }

    /// For each of these lanes, in order, whether it is paused or its endpoint disabled.
    pub async fn paused(&self, lanes: Vec<LaneId>) -> Result<Vec<Option<LanePaused>>, EngineStopped> {
        let CommandReply::Paused(holds) = self.handle.ask(Command::Paused(lanes)).await? else { return Ok(Vec::new()) };
        Ok(holds)
    }

    /// Checks an endpoint's values. Its URL gets its host in canonical form, so that endpoints of one origin are known
    /// to share it.
    async fn checked(&self, mut endpoint: Endpoint) -> Result<Endpoint, NotMade> {
        let EndpointTarget::Webhook(webhook) = &mut endpoint.target;
        let url = std::mem::take(&mut webhook.url);
        webhook.url = Target::parse(&url, &self.endpoint_cache.targets)?.rewritten(url);
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
            // Of two headers with the same name, the later one is reported.
            let name = webhook.headers.iter().map(|(name, _)| name).rfind(is_it).cloned();
            NotMade::Header { name, bad }
        })?;
        let mut overrides = Overrides::default();
        for (status, class) in &webhook.status_overrides {
            let added = overrides.add(status, class);
            added.map_err(|bad| NotMade::Override { status: status.clone(), bad })?;
        }
        endpoint_cache::identity(&endpoint.target)?;
        if let Some(name) = &endpoint.time_zone {
            let now = self.clock.now();
            zone::offsets(name, now, now)?;
        }
        Ok(endpoint)
    }
}
