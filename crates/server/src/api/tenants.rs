//! Tenants, for operators. A tenant key sees its own tenant, and can change its policy, time zone and off-peak window.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use posthaste_core::id::TenantId;
use posthaste_core::off_peak::{OffPeak, Offsets};
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::IdKind;
use posthaste_engine::accept::Once;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::Sees;
use posthaste_engine::rules::Rules;
use posthaste_engine::tenants::{Hours, Made, MadeTenant, NotFiled, Quota, Tenant, Terms, WEIGHTS};
use posthaste_engine::zone;
use posthaste_store::{ErasureTarget, FirstAnswer, OPERATOR, Retention, Store};
use serde::Serialize;
use serde_json::value::RawValue;

use super::caller::{Caller, MANAGE_OWN, OPERATE, READ_OWN, find_tenant};
use super::idempotency::{keyed_body, replayed};
use super::list::{Asked, page};
use super::{Answer, Api, Named, body, erasure, json, json_bytes, no_body, no_parameters};
use crate::duration;
use crate::object::Object;
use crate::problem::{Code, Problem};
use crate::value;

/// Planned fields of a tenant that this version does not support.
const NOT_BUILT: &[&str] = &["sla", "operational_endpoint"];

/// Fields that only an operator can change.
const AGREED: &[&str] = &["uid", "weight", "quota", "region", "retention"];

/// How often a change is tried that met a concurrent change of the same tenant.
const TRIES: u32 = 5;

/// The largest `per_second` and `burst`: what a token bucket can count.
const QUOTA_MAX: u64 = 1_000_000;
/// The largest limit of pending deliveries; more would limit nothing.
const PENDING_MAX: u64 = 1_000_000_000_000;

/// The retention that a tenant may have; the server's settings have the same bounds.
const KEPT: RangeInclusive<Duration> = Duration::from_secs(60 * 60)..=Duration::from_secs(3_650 * 24 * 60 * 60);

/// `POST /v1/tenants`.
pub async fn make<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<OPERATE>,
    request: Request,
) -> Answer {
    let (body, key) = keyed_body(OPERATOR, request).await?;
    let rules = api.engine.rules(OPERATOR).await?;
    let (uid, terms) = parse(&body, &rules, api.engine.retention(), None, Terms::default())?;
    let once = key.map(|(key, digest)| Once { key, digest, answer });
    Ok(match api.engine.make_tenant(uid, terms, once, caller.by()).await? {
        Made::Now(made) => json_bytes(StatusCode::CREATED, answer(&made).body),
        Made::Before(first) => replayed(first),
    })
}

fn answer(made: &MadeTenant) -> FirstAnswer {
    let shown = Shown::of(made.public_id.clone(), &made.tenant);
    let body = serde_json::to_vec(&shown).expect("our own answers always serialise");
    FirstAnswer { status: StatusCode::CREATED.as_u16(), body: body.into() }
}

/// `GET /v1/tenants`.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<OPERATE>, uri: Uri) -> Answer {
    let query = Asked::of(&uri, &["uid"])?;
    if let Sees::Tenant(named) = caller.asks_for() {
        let one = api.engine.tenant(named).await?;
        let one = one.filter(|one| query.filter("uid").is_none_or(|uid| one.uid.as_deref() == Some(uid)));
        return Ok(page(&uri, one.iter().map(|one| shown(&api, one)).collect(), None));
    }
    if let Some(uid) = query.filter("uid") {
        let found = api.engine.tenant_named(uid).await?;
        let shown = found.map(|tenant| shown(&api, &tenant));
        return Ok(page(&uri, shown.into_iter().collect(), None));
    }
    let list = query.list(&api, Sees::All, &"tenants");
    let after = query.behind(&api, list)?.map(TenantId);
    let mut found = api.engine.tenants(query.order, after, query.limit + 1).await?;
    let more = found.len() > query.limit as usize;
    found.truncate(query.limit as usize);
    let next = found.last().filter(|_| more).map(|last| api.engine.cursor_behind(list, last.id.0));
    Ok(page(&uri, found.iter().map(|tenant| shown(&api, tenant)).collect(), next))
}

/// `GET /v1/tenants/{t}`.
pub async fn show<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ_OWN>,
    Named(named): Named,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    let tenant = find_visible(&api, &caller, &named).await?;
    Ok(json(StatusCode::OK, &shown(&api, &tenant)))
}

/// `PATCH /v1/tenants/{t}`: a field that is left out keeps its value.
pub async fn change<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<MANAGE_OWN>,
    Named(named): Named,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let mut tries = 0;
    loop {
        let before = find_visible(&api, &caller, &named).await?;
        if !caller.is_operator() {
            only_its_own(&body)?;
        }
        let rules = api.engine.rules(before.id).await?;
        let (uid, terms) = parse(&body, &rules, api.engine.retention(), before.uid.clone(), before.terms.clone())?;
        let tenant = Tenant { uid, terms, ..(*before).clone() };
        tries += 1;
        match api.engine.change_tenant(&before, &tenant, caller.by()).await {
            Err(NotFiled::Stale) if tries < TRIES => {}
            changed => return changed.map(|()| json(StatusCode::OK, &shown(&api, &tenant))).map_err(Problem::from),
        }
    }
}

/// `DELETE /v1/tenants/{t}`: erases the tenant with all its data. After the answer its API keys are refused.
pub async fn erase<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<OPERATE>,
    Named(named): Named,
    request: Request,
) -> Answer {
    no_body(request).await?;
    let tenant = find_visible(&api, &caller, &named).await?;
    erasure::erase(&api, tenant.id, ErasureTarget::Tenant, caller.by()).await
}

/// Finds a tenant by its id or uid, if the request may be about it.
async fn find_visible<S: Store, C: Clock, const SCOPE: u8>(
    api: &Api<S, C>,
    caller: &Caller<SCOPE>,
    named: &str,
) -> Result<Arc<Tenant>, Problem> {
    let tenant = found(api, named).await?;
    if caller.asks_for().sees(tenant.id) { Ok(tenant) } else { Err(Problem::no_such("tenant")) }
}

/// Refuses a change of fields that only an operator can change.
fn only_its_own(body: &[u8]) -> Result<(), Problem> {
    let fields = Object::read_optional(body)?;
    match AGREED.iter().find(|name| fields.has(name)) {
        None => Ok(()),
        Some(name) => {
            let detail = format!(
                "only an operator key with the scope operate can change {name}; a tenant key can change policy, \
                 time_zone and off_peak"
            );
            Err(Problem::new(Code::ScopeMissing, detail))
        }
    }
}

/// Finds a tenant by its id or uid.
pub(super) async fn found<S: Store, C: Clock>(api: &Api<S, C>, named: &str) -> Result<Arc<Tenant>, Problem> {
    find_tenant(api, named).await?.ok_or_else(|| Problem::no_such("tenant"))
}

fn shown<S: Store, C: Clock>(api: &Api<S, C>, tenant: &Tenant) -> Shown {
    Shown::of(api.engine.public_id(IdKind::Tenant, tenant.id.0, tenant.at), tenant)
}

#[derive(Serialize)]
struct Shown {
    id: String,
    uid: Option<String>,
    weight: f64,
    quota: Option<ShownQuota>,
    policy: Option<String>,
    time_zone: Option<String>,
    off_peak: Option<ShownHours>,
    region: Option<String>,
    retention: Option<ShownRetention>,
    created_at: String,
}

#[derive(Serialize)]
struct ShownRetention {
    payload: Option<String>,
    history: Option<String>,
}

#[derive(Serialize)]
struct ShownQuota {
    per_second: Option<u32>,
    burst: Option<u32>,
    pending: Option<u64>,
}

#[derive(Serialize)]
struct ShownHours {
    from: String,
    to: String,
}

impl Shown {
    fn of(id: String, tenant: &Tenant) -> Self {
        let Terms { weight, quota, pending_max, policy, time_zone, off_peak, region, payload_kept, history_kept } =
            tenant.terms.clone();
        let quota = (quota.is_some() || pending_max.is_some()).then_some(ShownQuota {
            per_second: quota.map(|quota| quota.per_second),
            burst: quota.map(|quota| quota.burst),
            pending: pending_max,
        });
        let hours = |Hours { from, to }| ShownHours { from: write_minute(from), to: write_minute(to) };
        let off_peak = off_peak.map(hours);
        let retention = (payload_kept.is_some() || history_kept.is_some()).then(|| ShownRetention {
            payload: payload_kept.map(duration::write),
            history: history_kept.map(duration::write),
        });
        let created_at = value::write_time(tenant.at);
        Self { id, uid: tenant.uid.clone(), weight, quota, policy, time_zone, off_peak, region, retention, created_at }
    }
}

fn parse(
    body: &[u8],
    rules: &Rules,
    default_retention: Retention,
    uid: Option<String>,
    before: Terms,
) -> Result<(Option<String>, Terms), Problem> {
    let mut fields = Object::read_optional(body)?;
    let uid = fields.get("uid", value::uid).or(uid);
    let weight = fields.get("weight", |raw| match value::number(raw)? {
        weight if WEIGHTS.contains(&weight) => Ok(weight),
        _ => Err(format!("must be {} to {}", WEIGHTS.start(), WEIGHTS.end())),
    });
    let mut terms = before;
    terms.weight = weight.unwrap_or(terms.weight);
    let has = |name| fields.has(name);
    let [has_quota, has_policy, has_zone, has_off_peak, has_region, has_retention] =
        ["quota", "policy", "time_zone", "off_peak", "region", "retention"].map(has);
    let (quota, pending_max) = quota(&mut fields);
    if has_quota {
        (terms.quota, terms.pending_max) = (quota, pending_max);
    }
    let policy = fields.get("policy", |raw| {
        let name = value::text(raw)?;
        rules.policy(&name).map(|_| name).map_err(|unknown| unknown.to_string())
    });
    terms.policy = if has_policy { policy } else { terms.policy };
    let zone = fields.get("time_zone", time_zone);
    terms.time_zone = if has_zone { zone } else { terms.time_zone };
    let region = fields.get("region", value::name);
    terms.region = if has_region { region } else { terms.region };
    let off_peak = off_peak(&mut fields);
    terms.off_peak = if has_off_peak { off_peak } else { terms.off_peak };
    let (payload, history) = retention(&mut fields, default_retention);
    if has_retention {
        (terms.payload_kept, terms.history_kept) = (payload, history);
    }
    fields.not_built(NOT_BUILT);
    fields.finish()?;
    Ok((uid, terms))
}

/// Parses a quota: the rate of messages, and the most pending deliveries.
fn quota(fields: &mut Object<'_>) -> (Option<Quota>, Option<u64>) {
    let count = |raw: &RawValue| match value::whole(raw)? {
        count @ 1..=QUOTA_MAX => u32::try_from(count).map_err(|error| error.to_string()),
        _ => Err(format!("must be 1 to {QUOTA_MAX}")),
    };
    let mut given = fields.object("quota");
    let per_second = given.get("per_second", count);
    let burst = given.get("burst", count);
    let pending = given.get("pending", |raw| match value::whole(raw)? {
        count @ 1..=PENDING_MAX => Ok(count),
        _ => Err(format!("must be 1 to {PENDING_MAX}")),
    });
    if per_second.is_none() && burst.is_some() {
        given.complain("per_second", "is needed with burst".to_owned());
    }
    fields.absorb(given);
    (per_second.map(|per_second| Quota { per_second, burst: burst.unwrap_or(per_second) }), pending)
}

/// Parses how long payloads and delivery history are kept. A field that is left out is checked as the server's default.
fn retention(fields: &mut Object<'_>, default: Retention) -> (Option<Duration>, Option<Duration>) {
    let kept = |raw: &RawValue| match value::duration(raw)? {
        kept if KEPT.contains(&kept) => Ok(kept),
        _ => Err(format!("must be {} to {}", duration::write(*KEPT.start()), duration::write(*KEPT.end()))),
    };
    let mut given = fields.object("retention");
    let (payload, history) = (given.get("payload", kept), given.get("history", kept));
    let (payload_kept, history_kept) = (payload.unwrap_or(default.payload), history.unwrap_or(default.history));
    if (payload.is_some() || history.is_some()) && payload_kept > history_kept {
        let [payload_kept, history_kept] = [payload_kept, history_kept].map(duration::write);
        let field = if payload.is_some() { "payload" } else { "history" };
        given.complain(field, format!("payload ({payload_kept}) must not be longer than history ({history_kept})"));
    }
    if history.is_some_and(|history| history > default.journal) {
        let journal = duration::write(default.journal);
        given.complain("history", format!("must be at most {journal}, as long as the audit trail is kept"));
    }
    fields.absorb(given);
    (payload, history)
}

fn time_zone(raw: &RawValue) -> Result<String, String> {
    let name = value::text(raw)?;
    let now = Timestamp::default();
    zone::offsets(&name, now, now).map(|_| name).map_err(|unknown| unknown.to_string())
}

fn off_peak(fields: &mut Object<'_>) -> Option<Hours> {
    let is_said = fields.has("off_peak") && !fields.is_null("off_peak");
    let mut given = fields.object("off_peak");
    let hours = if is_said { given.need("from", minute).zip(given.need("to", minute)) } else { None };
    let hours = hours.map(|(from, to)| Hours { from, to });
    if let Some(Hours { from, to }) = hours
        && let Err(bad) = OffPeak::new(from, to, Arc::new(Offsets::fixed(0).expect("UTC is a clock")))
    {
        given.complain("to", bad.to_string());
    }
    fields.absorb(given);
    hours
}

/// Parses a time of day such as `20:00` into minutes since midnight.
fn minute(raw: &RawValue) -> Result<u16, String> {
    let written = value::text(raw)?;
    let number = |digits: &str, most: u16| {
        let is_two = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|number| is_two && *number <= most)
    };
    let read = written.split_once(':').and_then(|(hour, minute)| Some(number(hour, 23)? * 60 + number(minute, 59)?));
    read.ok_or_else(|| "must be a time of the day from \"00:00\" to \"23:59\"".to_owned())
}

/// Writes minutes since midnight as a time of day.
fn write_minute(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}
