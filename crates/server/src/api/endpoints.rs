//! Endpoints: created, shown, changed, paused, tested and deleted. `endpoint_fields` parses and shows their fields.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::scheduler::OnDead;
use posthaste_core::{EndpointId, LaneId};
use posthaste_engine::accept::{IdempotencyRequest, NotAccepted};
use posthaste_engine::dispatch::LanePaused;
use posthaste_engine::endpoints::{MadeEndpoint, NewSigning, NotMade};
use posthaste_engine::tenants::Made;
use posthaste_store::{
    DeadLetterFilter, Endpoint, EndpointTarget, FirstAnswer, ListOrder, Pause, PauseScope, SigningSecret, StoreError,
};

use super::caller::{MANAGE, READ, SECRETS};
use super::endpoint_fields::{
    self, EndpointChangesBody, EndpointFacts, EndpointView, MAX_IN_FLIGHT, NewEndpointBody, STATUSES, Sight,
    SigningBody, SigningView,
};
use super::idempotency::{first, first_answer, keyed_body, made, replayed};
use super::messages;
use super::messages::AcceptedView;
use super::prelude::*;
use super::switch::{Reason, check_until};
use crate::value::ApiDuration;

/// The default overlap: older secrets keep signing for a day, in which the receiver can be given the new one.
const OVERLAP: Duration = Duration::from_secs(24 * 60 * 60);
const OVERLAP_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How often a change is tried that met a concurrent change of the same endpoint.
const TRIES: u32 = 5;

/// The most endpoints read for one page: a filter may reject most of them.
const LOOKED_MAX: usize = 20_000;
/// How many endpoints a filtered list reads from the store at once.
const READ_AT_ONCE: u32 = 500;

const FILTERS: &[Parameter] = &[
    parameter::<String>("uid", "only the endpoint with this uid"),
    parameter::<String>("subject", "only endpoints that belong to this subject"),
    parameter::<String>("tags", "only endpoints with this tag"),
    parameter::<String>("status", "only endpoints with this status: active, paused, disabled or gone"),
];

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/endpoints", "Creates an endpoint")
        .scope("manage")
        .body::<NewEndpointBody>()
        .keyed()
        .returns::<EndpointView<'_>>(201, "The endpoint, with the secret that signs its requests."),
    Operation::get("/v1/endpoints", "Lists endpoints")
        .scope("read")
        .list(FILTERS)
        .returns::<ListPage<EndpointView<'_>>>(200, "A page of endpoints."),
    Operation::get("/v1/endpoints/{id}", "Shows an endpoint")
        .scope("read")
        .returns::<EndpointView<'_>>(200, "The endpoint."),
    Operation::post("/v1/endpoints/{id}/pause", "Pauses an endpoint: its deliveries wait")
        .scope("manage")
        .optional_body::<PauseEndpointBody>()
        .returns::<EndpointPauseChangeView>(200, "The endpoint is paused."),
    Operation::post("/v1/endpoints/{id}/enable", "Enables an endpoint that is paused, disabled or gone")
        .scope("manage")
        .conflicts()
        .optional_body::<EnableBody>()
        .returns::<EndpointPauseChangeView>(200, "The endpoint is active."),
    Operation::new("PATCH", "/v1/endpoints/{id}", "Changes an endpoint; fields that are left out keep their value")
        .scope("manage")
        .conflicts()
        .body::<EndpointChangesBody>()
        .returns::<EndpointView<'_>>(200, "The changed endpoint."),
    Operation::new("DELETE", "/v1/endpoints/{id}", "Deletes an endpoint and ends its pending deliveries")
        .scope("manage")
        .returns::<DeletedEndpointView>(200, "The endpoint is deleted."),
    Operation::get("/v1/endpoints/{id}/secret", "Shows the secret or public key of an endpoint's signatures")
        .scope("secrets")
        .returns::<SecretsView<'_>>(200, "The keys that the receiver verifies signatures with."),
    Operation::post("/v1/endpoints/{id}/secret/rotate", "Rotates an endpoint's secret: a new one signs too")
        .scope("secrets")
        .optional_body::<RotationBody>()
        .keyed()
        .returns::<SecretsView<'_>>(200, "The new secret, and the older ones that still sign."),
    Operation::post("/v1/endpoints/{id}/test", "Sends an example message to an endpoint")
        .scope("manage")
        .optional_body::<NoFields>()
        .keyed()
        .returns::<AcceptedView<'_>>(202, "The example message is accepted."),
];

body! {
    struct PauseEndpointBody as "EndpointPause" {
        /// When the pause ends by itself; never by default.
        until: optional ApiTime,
        /// A note that is shown with the endpoint while it is paused.
        reason: optional Reason,
    }

    struct EnableBody as "EnableEndpoint" {
        /// A note; checked, but not stored.
        reason: optional Reason,
    }

    struct RotationBody as "SecretRotation" {
        /// How long older secrets keep signing; 24h by default.
        overlap: optional Overlap,
    }
}

kinds! {
    Overlap: Duration = |raw| match ApiDuration::parse(raw)? {
        long if long > OVERLAP_MAX => Err(format!("must be at most {}", crate::duration::write(OVERLAP_MAX))),
        overlap => Ok(overlap),
    }, as ApiDuration;
}

/// An object without fields.
#[derive(JsonSchema)]
#[schemars(inline)]
struct NoFields {}

/// `POST /v1/endpoints`. The answer shows the signing secret; afterwards only `GET …/secret` does.
pub async fn make<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<MANAGE>, request: Request) -> Answer {
    let tenant = caller.tenant()?;
    let (body, key) = keyed_body(tenant.id, request).await?;
    let mut fields = BodyObject::read(&body)?;
    let NewEndpointBody { url, settings, signing } = NewEndpointBody::read(&mut fields);
    let url = url.unwrap_or_default();
    let mut endpoint = Endpoint::new(EndpointId::from_raw(0), LaneId::from_raw(0), tenant.id, api.engine.now(), url);
    endpoint.max_in_flight = MAX_IN_FLIGHT;
    endpoint_fields::apply(&mut fields, settings, &mut endpoint);
    let signing =
        signing.map_or_else(NewSigning::default, |SigningBody { scheme, secret }| NewSigning { scheme, secret });
    fields.finish()?;
    let once = key.map(|(key, digest)| IdempotencyRequest { key, digest, answer });
    Ok(made(api.engine.make_endpoint(endpoint, signing, once, caller.by()).await?, answer))
}

fn answer(made: &MadeEndpoint) -> FirstAnswer {
    let (id, tenant, policy) = (made.public_id.clone(), made.tenant.clone(), made.policy.clone());
    let known = EndpointFacts { id, tenant, policy, paused: None, dead_head: None };
    let shown = EndpointView::of(known, &made.endpoint, Sight::Whole);
    let EndpointTarget::Webhook(webhook) = &made.endpoint.target;
    first_answer(StatusCode::CREATED, &shown.revealed(&webhook.secrets))
}

pub async fn show<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let endpoint = find(&api, caller.sees(), &name).await?;
    shown(&api, caller.sight(), &endpoint).await
}

/// `PATCH /v1/endpoints/{id}`: a field that is left out keeps its value, `null` sets it back to the default.
pub async fn change<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, MANAGE>, body: JsonBody) -> Answer {
    caller.tenant()?;
    let mut tries = 0;
    loop {
        let before = find(&api, caller.sees(), &name).await?;
        let mut endpoint = Endpoint { version: before.version + 1, ..(*before).clone() };
        let mut fields = BodyObject::read(&body.0)?;
        if fields.is_null("url") {
            fields.complain("url", "must not be null: every endpoint has a URL; leave it out to keep it".to_owned());
        }
        let EndpointChangesBody { url, settings } = EndpointChangesBody::read(&mut fields);
        if let Some(url) = url {
            let EndpointTarget::Webhook(webhook) = &mut endpoint.target;
            webhook.url = url;
        }
        endpoint_fields::apply(&mut fields, settings, &mut endpoint);
        if fields.has("signing") {
            fields.get("signing", |_| Ok(()));
            let detail = "cannot be changed; POST …/secret/rotate makes a new secret of the same scheme, and another \
                          scheme needs another endpoint";
            fields.complain("signing", detail.to_owned());
        }
        fields.finish()?;
        tries += 1;
        match api.engine.change_endpoint(endpoint, caller.by()).await {
            Err(NotMade::Stale) if tries < TRIES => {}
            changed => return shown(&api, caller.sight(), &changed?).await,
        }
    }
}

/// `DELETE /v1/endpoints/{id}`. After the answer nothing is sent there, except attempts in flight; its uid is free.
pub async fn delete<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, MANAGE>, _: EmptyBody) -> Answer {
    caller.tenant()?;
    let endpoint = find(&api, caller.sees(), &name).await?;
    let (ended, in_flight) = api.engine.delete_endpoint(&endpoint, caller.by()).await?;
    let id = public_id(&api, &endpoint);
    tracing::info!(endpoint = id, ended, in_flight, "deleted an endpoint");
    Ok(json(StatusCode::OK, &DeletedEndpointView { id, ended, in_flight }))
}

#[derive(Serialize, JsonSchema)]
struct DeletedEndpointView {
    id: String,
    /// The number of deliveries ended; they are never sent.
    ended: u64,
    /// The number of deliveries being sent; they may still arrive.
    in_flight: u64,
}

/// `POST /v1/endpoints/{id}/pause`. After the answer nothing is sent there; new deliveries wait.
pub async fn pause<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, MANAGE>, body: JsonBody) -> Answer {
    let mut fields = BodyObject::read_optional(&body.0)?;
    let PauseEndpointBody { until, reason } = PauseEndpointBody::read(&mut fields);
    let until = check_until(&mut fields, until, api.engine.now());
    fields.finish()?;
    caller.tenant()?;
    let endpoint = find(&api, caller.sees(), &name).await?;
    let scope = PauseScope::Lane(endpoint.lane);
    api.engine.pause(Pause { reason: reason.clone(), by: caller.by(), ..Pause::new(scope, until) }).await?;
    let id = public_id(&api, &endpoint);
    tracing::info!(endpoint = id, "paused an endpoint");
    Ok(json(StatusCode::OK, &EndpointPauseChangeView { id, paused: true, until: until.map(ApiTime), reason }))
}

/// `POST /v1/endpoints/{id}/enable`: ends a pause, also one that a dead delivery of a strict order began, and makes a
/// disabled or gone endpoint active. Waiting deliveries are sent in their order.
pub async fn enable<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, MANAGE>, body: JsonBody) -> Answer {
    let EnableBody { reason: _checked } = BodyObject::parse(&body.0)?;
    caller.tenant()?;
    let mut tries = 0;
    loop {
        let endpoint = find(&api, caller.sees(), &name).await?;
        tries += 1;
        match api.engine.enable_endpoint(&endpoint, caller.by()).await {
            Err(NotMade::Stale) if tries < TRIES => {}
            enabled => {
                let id = public_id(&api, &enabled?);
                tracing::info!(endpoint = id, "enabled an endpoint");
                return Ok(json(
                    StatusCode::OK,
                    &EndpointPauseChangeView { id, paused: false, until: None, reason: None },
                ));
            }
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct EndpointPauseChangeView {
    id: String,
    paused: bool,
    until: Option<ApiTime>,
    /// The reason given when it was paused.
    reason: Option<String>,
}

/// `POST /v1/endpoints/{id}/test`: sends a real, signed example message.
pub async fn test<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, MANAGE>, request: Request) -> Answer {
    let tenant = caller.tenant()?;
    let (body, key) = keyed_body(tenant.id, request).await?;
    BodyObject::read_optional(&body)?.finish()?;
    let endpoint = find(&api, Visibility::Tenant(tenant.id), &name).await?;
    let once = key.map(|(key, digest)| IdempotencyRequest { key, digest, answer: messages::answer });
    match api.engine.test_endpoint(&endpoint, once).await {
        Ok(outcome) => Ok(made(outcome, messages::answer)),
        Err(NotAccepted::NoSuchEndpoints(_)) => {
            let id = public_id(&api, &endpoint);
            let detail = format!("the endpoint is gone; if its receiver is back: POST /v1/endpoints/{id}/enable");
            Err(Problem::new(Code::EndpointGone, detail))
        }
        Err(error) => Err(error.into()),
    }
}

/// `GET /v1/endpoints/{id}/secret`: the keys that its receiver verifies with. The audit trail records the request.
pub async fn secret<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, SECRETS>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let endpoint = find(&api, caller.sees(), &name).await?;
    let secrets = api.engine.secrets(&endpoint, caller.by()).await?;
    tracing::info!(endpoint = public_id(&api, &endpoint), "showed an endpoint's secrets");
    Ok(json(StatusCode::OK, &SecretsView::of(&secrets)))
}

/// `POST /v1/endpoints/{id}/secret/rotate`: a new secret signs, beside the older ones until the overlap is over.
pub async fn rotate<S: Store, C: Clock>(
    ByName { api, caller, name }: ByName<S, C, SECRETS>,
    request: Request,
) -> Answer {
    let tenant = caller.tenant_id()?;
    let (body, key) = keyed_body(tenant, request).await?;
    let RotationBody { overlap } = BodyObject::parse(&body)?;
    let once = key.map(|(key, digest)| IdempotencyRequest { key, digest, answer: rotated });
    let mut tries = 0;
    loop {
        let endpoint = find(&api, Visibility::Tenant(tenant), &name).await?;
        tries += 1;
        match api.engine.rotate_secret(&endpoint, overlap.unwrap_or(OVERLAP), once.clone(), caller.by()).await {
            Err(NotMade::Stale) if tries < TRIES => {}
            Ok(Made::Before(first)) => return Ok(replayed(first)),
            Ok(Made::Now(endpoint)) => {
                tracing::info!(endpoint = public_id(&api, &endpoint), "rotated an endpoint's secret");
                return Ok(first(rotated(&endpoint)));
            }
            Err(refused) => return Err(refused.into()),
        }
    }
}

/// The answer to a rotation, and to a repeated request with the same idempotency key.
fn rotated(endpoint: &Endpoint) -> FirstAnswer {
    let EndpointTarget::Webhook(webhook) = &endpoint.target;
    first_answer(StatusCode::OK, &SecretsView::of(&webhook.secrets))
}

/// The secrets that sign, newest first.
#[derive(Serialize, JsonSchema)]
struct SecretsView<'a> {
    #[serde(flatten)]
    #[schemars(required)]
    newest: Option<SigningView<'a>>,
    /// Older secrets that still sign beside the newest, newest first.
    previous: Vec<PreviousSecretView<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct PreviousSecretView<'a> {
    #[serde(flatten)]
    signing: SigningView<'a>,
    /// When it stops signing.
    until: Option<ApiTime>,
}

impl<'a> SecretsView<'a> {
    fn of(secrets: &'a [SigningSecret]) -> Self {
        let previous = |secret: &'a SigningSecret| PreviousSecretView {
            signing: SigningView::revealed(secret),
            until: secret.until.map(ApiTime),
        };
        Self {
            newest: secrets.first().map(SigningView::revealed),
            previous: secrets.iter().skip(1).map(previous).collect(),
        }
    }
}

/// `GET /v1/endpoints`. An operator sees those of all tenants, unless it names one.
pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<READ>, uri: Uri) -> Answer {
    let query = ListQuery::of(&uri, FILTERS)?;
    let filters = ["uid", "subject", "tags", "status"].map(|name| query.filter(name));
    let list = query.list(&api, caller.sees(), &filters);
    let mut after = query.behind(&api, list)?.map(EndpointId);
    if let Some(status) = filters[3]
        && !STATUSES.contains(&status)
    {
        let detail = "status must be active, paused, disabled or gone";
        return Err(Problem::new(Code::InvalidParameter, detail));
    }
    let (limit, mut looked) = (query.limit as usize, 0);
    let (mut data, mut more) = (Vec::new(), true);
    // One more than fits shows whether there is a next page.
    while more && data.len() <= limit && looked < LOOKED_MAX {
        let read = if filters.iter().any(Option::is_some) { READ_AT_ONCE } else { query.limit + 1 };
        let part = api.engine.endpoints(caller.sees(), query.order, after, read).await?;
        more = part.len() == read as usize;
        looked += part.len();
        let holds = api.engine.paused(part.iter().map(|one| one.lane).collect()).await;
        let holds = holds.map_err(|ended| Problem::new(Code::ShuttingDown, ended.to_string()))?;
        for (endpoint, hold) in part.into_iter().zip(holds) {
            after = Some(endpoint.id);
            if data.len() <= limit && matches(&endpoint, endpoint_fields::status(&endpoint, hold.as_ref()), &filters) {
                data.push((endpoint, hold));
            }
        }
    }
    let is_cut = data.len() > limit;
    data.truncate(limit);
    // After the last one shown, or after the last one read if the filter rejected the rest.
    let last = if is_cut { data.last().map(|(last, _)| last.id) } else { after.filter(|_| more) };
    let mut shown = Vec::with_capacity(data.len());
    for (endpoint, hold) in &data {
        shown.push(EndpointView::of(known(&api, endpoint, hold.clone()).await?, endpoint, caller.sight()));
    }
    Ok(page(&uri, shown, last.map(|last| api.engine.cursor_behind(list, last.0))))
}

fn matches(endpoint: &Endpoint, status: &str, [uid, subject, tag, wanted]: &[Option<&str>; 4]) -> bool {
    uid.is_none_or(|uid| endpoint.uid.as_deref() == Some(uid))
        && subject.is_none_or(|subject| endpoint.subject.as_deref() == Some(subject))
        && tag.is_none_or(|tag| endpoint.tags.iter().any(|own| own == tag))
        && wanted.is_none_or(|wanted| status == wanted)
}

async fn find<S: Store, C: Clock>(api: &Api<S, C>, visibility: Visibility, named: &str) -> Result<Arc<Endpoint>> {
    let unknown = || Problem::no_such("endpoint");
    let id = api.endpoint_meant(visibility, named).await?;
    let known = api.engine.endpoint(visibility, id).await?.ok_or_else(unknown)?;
    Ok(Arc::clone(&known.endpoint))
}

/// Looks up what the API shows of an endpoint beside its stored fields.
pub(super) async fn known<S: Store, C: Clock>(
    api: &Api<S, C>,
    endpoint: &Endpoint,
    paused: Option<LanePaused>,
) -> Result<EndpointFacts, StoreError> {
    let tenant = api.engine.tenant_public_id(endpoint.tenant).await?;
    let policy = api.engine.rules(endpoint.tenant).await?.policy_of(endpoint).to_owned();
    let may_have_died = endpoint.on_dead == OnDead::Hold && paused.as_ref().is_some_and(is_unexplained);
    let dead_head = if may_have_died { dead_head(api, endpoint).await? } else { None };
    Ok(EndpointFacts { id: public_id(api, endpoint), tenant, policy, paused, dead_head })
}

/// Whether a pause has no API key, reason or end: a dead delivery may have begun it.
fn is_unexplained(paused: &LanePaused) -> bool {
    paused.said.as_ref().is_none_or(|pause| pause.by.is_none() && pause.reason.is_none() && pause.until.is_none())
}

async fn dead_head<S: Store, C: Clock>(api: &Api<S, C>, endpoint: &Endpoint) -> Result<Option<String>, StoreError> {
    let filter = DeadLetterFilter { endpoint: Some(endpoint.id), ..DeadLetterFilter::of(endpoint.tenant) };
    let last = api.engine.dead_letters(filter, ListOrder::NewestFirst, None, 1).await?.letters.pop();
    let Some(last) = last else { return Ok(None) };
    let accepted_at = api.engine.accepted_at(vec![last.message]).await?.pop().flatten();
    Ok(Some(api.engine.public_id(IdKind::Delivery, last.delivery.0, accepted_at.unwrap_or(last.at))))
}

pub(super) fn public_id<S: Store, C: Clock>(api: &Api<S, C>, endpoint: &Endpoint) -> String {
    api.engine.public_id(IdKind::Endpoint, endpoint.id.0, endpoint.at)
}

async fn shown<S: Store, C: Clock>(api: &Api<S, C>, sight: Sight, endpoint: &Endpoint) -> Answer {
    let holds = api.engine.paused(vec![endpoint.lane]).await;
    let holds = holds.map_err(|ended| Problem::new(Code::ShuttingDown, ended.to_string()))?;
    let hold = holds.into_iter().next().flatten();
    Ok(json(StatusCode::OK, &EndpointView::of(known(api, endpoint, hold).await?, endpoint, sight)))
}
