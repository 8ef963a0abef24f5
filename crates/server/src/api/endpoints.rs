//! Endpoints: where messages go.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use posthaste_core::id::{EndpointId, LaneId};
use posthaste_core::policy::DEFAULT_PRESET;
use posthaste_core::queue::{OnDead, Order};
use posthaste_crypto::public_id::Kind;
use posthaste_engine::accept::Once;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::{MadeEndpoint, NewEndpoint, Sees};
use posthaste_engine::tenants::{Made, Tenant};
use posthaste_store::{Endpoint, EndpointStatus, FirstAnswer, ListOrder, Pause, PauseScope, Store};
use serde::Serialize;

use super::caller::{Caller, MANAGE, READ};
use super::idempotency::{keyed_body, replayed};
use super::list::{Asked, page};
use super::{Answer, Api, Named, body, json, json_bytes, no_parameters, switch};
use crate::object::Object;
use crate::problem::Problem;
use crate::{duration, value};

/// As many attempts at once where the owner does not say.
const MAX_IN_FLIGHT: u16 = 20;
const MAX_IN_FLIGHT_MAX: u64 = 1_000;
const EVENT_TYPES_MAX: usize = 100;

const ORDERS: [(&str, Order); 3] =
    [("fifo", Order::Fifo), ("newest_first", Order::NewestFirst), ("strict", Order::Strict)];
const ON_DEAD: [(&str, OnDead); 2] = [("skip", OnDead::Skip), ("hold", OnDead::Hold)];

/// Fields of an endpoint that are documented and not built.
const NOT_BUILT: &[&str] = &[
    "uid",
    "subject",
    "tags",
    "description",
    "headers",
    "timeout",
    "rate",
    "time_zone",
    "tls",
    "status_overrides",
    "subscription",
    "device_token",
    "topic",
    "environment",
    "registration_token",
    "credential",
];

/// `POST /v1/endpoints`. The secret it signs with is shown here and nowhere else.
pub async fn make<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<MANAGE>,
    request: Request,
) -> Answer {
    let tenant = caller.tenant()?;
    let (body, key) = keyed_body(tenant.id, request).await?;
    let new = parse(tenant, &body)?;
    let once = key.map(|(key, digest)| Once { key, digest, answer });
    Ok(match api.engine.make_endpoint(new, once).await? {
        Made::Now(made) => json_bytes(StatusCode::CREATED, answer(&made).body),
        Made::Before(first) => replayed(first),
    })
}

fn answer(made: &MadeEndpoint) -> FirstAnswer {
    let secret = made.endpoint.secrets.first().map(|secret| secret.text.as_str()).unwrap_or_default();
    let mut shown = Shown::of(made.public_id.clone(), &made.endpoint);
    shown.signing = Some(Signing { scheme: "v1", secret });
    let body = serde_json::to_vec(&shown).expect("our own answers always serialise");
    FirstAnswer { status: StatusCode::CREATED.as_u16(), body: body.into() }
}

/// `GET /v1/endpoints/{id}`.
pub async fn show<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ>,
    Named(id): Named,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    let unknown = || Problem::no_such("endpoint");
    let id = api.endpoint_id(&id).ok_or_else(unknown)?;
    let known = api.engine.endpoint(caller.sees(), id).await?.ok_or_else(unknown)?;
    Ok(json(StatusCode::OK, &shown(&api, &known.endpoint)))
}

/// `POST /v1/endpoints/{id}/pause`. Once it answers, nothing is sent there; what comes waits.
pub async fn pause<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<MANAGE>,
    Named(id): Named,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let mut fields = Object::read_optional(&body)?;
    let until = switch::until(&mut fields, api.engine.now());
    let reason = fields.get("reason", value::text);
    fields.finish()?;
    let scope = lane(&api, caller.sees(), &id).await?;
    api.engine.pause(Pause { scope, until }).await?;
    tracing::info!(endpoint = id, reason = reason.as_deref().unwrap_or("none given"), "paused an endpoint");
    Ok(json(StatusCode::OK, &Switched { id, paused: true, until: until.map(value::write_time) }))
}

/// `POST /v1/endpoints/{id}/enable`: ends its pause, whether somebody made it or a dead delivery
/// of a strict order.
pub async fn enable<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<MANAGE>,
    Named(id): Named,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let mut fields = Object::read_optional(&body)?;
    fields.get("reason", value::text);
    fields.finish()?;
    let scope = lane(&api, caller.sees(), &id).await?;
    api.engine.resume(scope).await?;
    tracing::info!(endpoint = id, "enabled an endpoint");
    Ok(json(StatusCode::OK, &Switched { id, paused: false, until: None }))
}

/// An endpoint's own queue.
async fn lane<S: Store, C: Clock>(api: &Api<S, C>, whose: Sees, id: &str) -> Result<PauseScope, Problem> {
    let unknown = || Problem::no_such("endpoint");
    let id = api.endpoint_id(id).ok_or_else(unknown)?;
    let known = api.engine.endpoint(whose, id).await?.ok_or_else(unknown)?;
    Ok(PauseScope::Lane(LaneId(known.endpoint.id.0)))
}

#[derive(Serialize)]
struct Switched {
    id: String,
    paused: bool,
    until: Option<String>,
}

/// `GET /v1/endpoints`.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<READ>, uri: Uri) -> Answer {
    let asked = Asked::of(&uri, &[])?;
    // An endpoint's id is a good cursor: sealed, of this tenant, and it stays valid.
    let after = asked.after(&api, Kind::Endpoint)?.map(EndpointId);
    let mut all = api.engine.endpoints(caller.tenant_id()?).await?;
    all.sort_unstable_by_key(|endpoint| endpoint.id);
    if asked.order == ListOrder::NewestFirst {
        all.reverse();
    }
    let begin = match after {
        Some(after) => all.iter().position(|endpoint| endpoint.id == after).map_or(all.len(), |at| at + 1),
        None => 0,
    };
    let data: Vec<Shown<'_>> = all.iter().skip(begin).take(asked.limit as usize).map(|one| shown(&api, one)).collect();
    let more = begin + data.len() < all.len();
    let next = data.last().filter(|_| more).map(|last| last.id.clone());
    Ok(page(&uri, data, next))
}

fn shown<'a, S: Store, C: Clock>(api: &Api<S, C>, endpoint: &'a Endpoint) -> Shown<'a> {
    Shown::of(api.engine.public_id(Kind::Endpoint, endpoint.id.0, endpoint.at), endpoint)
}

#[derive(Serialize)]
struct Shown<'a> {
    id: String,
    channel: &'static str,
    url: &'a str,
    event_types: &'a [String],
    policy: &'a str,
    ttl: Option<String>,
    max_in_flight: u16,
    order: &'static str,
    on_dead: &'static str,
    status: &'static str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    signing: Option<Signing<'a>>,
}

#[derive(Serialize)]
struct Signing<'a> {
    scheme: &'static str,
    secret: &'a str,
}

impl<'a> Shown<'a> {
    fn of(id: String, endpoint: &'a Endpoint) -> Self {
        Self {
            id,
            channel: "webhook",
            url: &endpoint.url,
            event_types: &endpoint.event_types,
            policy: &endpoint.policy,
            ttl: endpoint.ttl.map(duration::write),
            max_in_flight: endpoint.max_in_flight,
            order: word(&ORDERS, endpoint.order),
            on_dead: word(&ON_DEAD, endpoint.on_dead),
            status: match endpoint.status {
                EndpointStatus::Active => "active",
                EndpointStatus::Gone => "gone",
                EndpointStatus::Disabled(_) => "disabled",
                EndpointStatus::Deleted => "deleted",
            },
            created_at: value::write_time(endpoint.at),
            signing: None,
        }
    }
}

fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], meaning: T) -> &'static str {
    words.iter().find(|(_, known)| *known == meaning).map_or("", |(word, _)| *word)
}

fn parse(tenant: &Tenant, body: &[u8]) -> Result<NewEndpoint, Problem> {
    let mut fields = Object::read(body)?;
    fields.get("channel", |raw| match value::text(raw)?.as_str() {
        "webhook" => Ok(()),
        _ => Err("this version knows \"webhook\" alone".to_owned()),
    });
    let url = fields.need("url", value::text);
    let event_types = fields.get("event_types", |raw| match value::texts(raw)? {
        many if many.len() > EVENT_TYPES_MAX => Err(format!("must be at most {EVENT_TYPES_MAX} patterns")),
        some => Ok(some),
    });
    let policy = fields.get("policy", value::text);
    let policy = policy.or_else(|| tenant.terms.policy.clone()).unwrap_or_else(|| DEFAULT_PRESET.to_owned());
    let ttl = fields.get("ttl", value::ttl);
    let order = fields.get("order", |raw| value::one_of(raw, &ORDERS)).unwrap_or_default();
    let on_dead = fields.get("on_dead", |raw| value::one_of(raw, &ON_DEAD)).unwrap_or_default();
    if on_dead == OnDead::Hold && order != Order::Strict {
        fields.complain("on_dead", "\"hold\" needs \"order\": \"strict\"; no other order waits for a head".to_owned());
    }
    let max_in_flight = fields.get("max_in_flight", |raw| match value::whole(raw)? {
        count @ 1..=MAX_IN_FLIGHT_MAX => u16::try_from(count).map_err(|error| error.to_string()),
        _ => Err(format!("must be 1 to {MAX_IN_FLIGHT_MAX}")),
    });
    let mut signing = fields.object("signing");
    signing.get("scheme", |raw| match value::text(raw)?.as_str() {
        "v1" => Ok(()),
        _ => Err("this version knows \"v1\" alone".to_owned()),
    });
    let secret = signing.get("secret", value::text);
    fields.absorb(signing);
    fields.not_built(NOT_BUILT);
    fields.finish()?;
    Ok(NewEndpoint {
        tenant: tenant.id,
        url: url.unwrap_or_default(),
        secret,
        event_types: event_types.unwrap_or_default(),
        policy,
        ttl,
        order,
        on_dead,
        max_in_flight: max_in_flight.unwrap_or(MAX_IN_FLIGHT),
    })
}
