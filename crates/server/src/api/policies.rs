//! Retry policies: the presets, the named policies of tenants and of the operator, and previews.
//!
//! The caller determines the owner: a tenant key, or an operator key with `Posthaste-Tenant`, names policies of that
//! tenant; an operator key alone names the operator's, which every tenant can use.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use posthaste_core::id::TenantId;
use posthaste_core::policy::{
    BadPolicy, BreakerSpec, JitterSpec, PRESETS, Policy, PolicySpec, Preview, TierSpec, TiersSpec,
};
use posthaste_core::tier::Tier;
use posthaste_engine::clock::Clock;
use posthaste_engine::policies::{NotPut, StoredPolicy};
use posthaste_store::{OPERATOR, Store};
use serde::Serialize;

use super::caller::{Caller, MANAGE, READ};
use super::{Answer, Api, Named, body, json, no_body, no_parameters, nothing};
use crate::object::Object;
use crate::problem::{Code, Complaint, Complaints, Problem};
use crate::{duration, value};

/// The owner of the policies that a request is about: its tenant, or the operator.
fn owner<const SCOPE: u8>(caller: &Caller<SCOPE>) -> TenantId {
    caller.tenant_id().unwrap_or(OPERATOR)
}

/// `GET /v1/policies`: every policy that an endpoint can name, the presets first.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let owner = owner(&caller);
    let mut stored = api.engine.policies(owner).await?;
    if owner != OPERATOR {
        let mut others = api.engine.policies(OPERATOR).await?;
        others.retain(|other| stored.iter().all(|own| own.name != other.name));
        stored.extend(others);
        stored.sort_by(|one, other| one.name.cmp(&other.name));
    }
    let presets = PRESETS.iter().filter_map(|name| Some(Shown::preset(name, &PolicySpec::preset(name)?)));
    let data = presets.chain(stored.iter().map(Shown::stored)).collect();
    Ok(json(StatusCode::OK, &List { data, next_cursor: None }))
}

/// `GET /v1/policies/{name}`: a preset, the tenant's policy, or else the operator's of that name.
pub async fn show<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ>,
    Named(name): Named,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    if let Some(spec) = PolicySpec::preset(&name) {
        return Ok(json(StatusCode::OK, &Shown::preset(&name, &spec)));
    }
    let owner = owner(&caller);
    let mut found = api.engine.policy(owner, &name).await?;
    if found.is_none() && owner != OPERATOR {
        found = api.engine.policy(OPERATOR, &name).await?;
    }
    let found = found.ok_or_else(no_such)?;
    Ok(json(StatusCode::OK, &Shown::stored(&found)))
}

/// `PUT /v1/policies/{name}`: creates or replaces it. Pending deliveries use it from their next attempt on.
pub async fn put<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<MANAGE>,
    Named(name): Named,
    request: Request,
) -> Answer {
    value::checked_name(&name).map_err(|detail| Problem::new(Code::InvalidParameter, format!("the name {detail}")))?;
    let body = body(request).await?;
    let mut fields = Object::read(&body)?;
    let spec = spec(&mut fields);
    fields.finish()?;
    let put = api.engine.put_policy(owner(&caller), &name, spec, caller.by()).await?;
    tracing::info!(policy = name, "put a policy");
    Ok(json(StatusCode::OK, &Shown::stored(&put)))
}

/// `DELETE /v1/policies/{name}`. Fails while an endpoint or a tenant uses the policy.
pub async fn delete<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<MANAGE>,
    Named(name): Named,
    request: Request,
) -> Answer {
    no_body(request).await?;
    if !api.engine.delete_policy(owner(&caller), &name, caller.by()).await? {
        return Err(no_such());
    }
    tracing::info!(policy = name, "deleted a policy");
    Ok(nothing())
}

fn no_such() -> Problem {
    Problem::new(Code::NotFound, "there is no policy of that name; GET /v1/policies lists them")
}

impl From<NotPut> for Problem {
    fn from(error: NotPut) -> Self {
        match error {
            NotPut::Preset(_) => Self::new(Code::PresetReadOnly, error.to_string()),
            NotPut::Bad(bad) => Self::with_complaints(Code::InvalidBody, complaints("", bad)),
            NotPut::TooMany => Self::new(Code::TooManyPolicies, error.to_string()),
            NotPut::InUse(_) => Self::new(Code::PolicyInUse, error.to_string()),
            NotPut::Stale => Self::new(Code::Conflict, error.to_string()),
            NotPut::Ended(ended) => Self::new(Code::ShuttingDown, ended.to_string()),
            NotPut::Store(error) => crate::problem::not_written(
                &error,
                "the change may have been made, which is known only after a restart; check GET /v1/policies, or \
                 repeat it",
            ),
        }
    }
}

/// The faults of a policy as complaints, with pointers below `within`.
fn complaints(within: &str, bad: Vec<BadPolicy>) -> Complaints {
    let at = |one: BadPolicy| Complaint {
        pointer: format!("{within}/{}", one.field.replace(['.', '['], "/").replace(']', "")),
        detail: one.reason,
    };
    bad.into_iter().map(at).collect()
}

/// `POST /v1/policies/preview`.
pub async fn preview<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ>,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let rules = api.engine.rules(owner(&caller)).await?;
    let mut fields = Object::read(&body)?;
    let is_name = |raw: &&serde_json::value::RawValue| raw.get().starts_with('"');
    let written = fields.need("policy", Ok);
    let mut inline =
        Object::read_optional(written.filter(|raw| !is_name(raw)).map_or(&[], |raw| raw.get().as_bytes()))?
            .within("/policy");
    let policy = match written {
        Some(raw) if is_name(&raw) => {
            let known = rules.policy(&value::text(raw).unwrap_or_default());
            known.map_err(|unknown| fields.complain("policy", unknown.to_string())).ok()
        }
        _ => None,
    };
    let spec = spec(&mut inline);
    fields.absorb(inline);
    let tier = fields.get("tier", value::tier).unwrap_or_default();
    let ttl = fields.get("ttl", value::ttl);
    fields.finish()?;
    let build =
        || Policy::build(&spec).map_err(|bad| Problem::with_complaints(Code::InvalidBody, complaints("/policy", bad)));
    let policy = policy.map_or_else(|| build().map(Arc::new), Ok)?;
    Ok(json(StatusCode::OK, &Previewed::of(&policy.preview(tier, ttl))))
}

fn spec(fields: &mut Object<'_>) -> PolicySpec {
    let mut jitter = fields.object("jitter");
    let jitter_spec = JitterSpec { kind: jitter.get("kind", value::text), share: jitter.get("share", value::number) };
    fields.absorb(jitter);
    let mut tiers = fields.object("tiers");
    let [transactional, promotional, engagement] = Tier::ALL.map(|tier| {
        let mut variant = tiers.object(tier.name());
        let spec =
            TierSpec { scale: variant.get("scale", value::number), first: variant.get("first", value::duration) };
        tiers.absorb(variant);
        spec
    });
    fields.absorb(tiers);
    let mut breaker = fields.object("breaker");
    let breaker_spec = BreakerSpec {
        failure_rate: breaker.get("failure_rate", value::number),
        min_volume: breaker.get("min_volume", value::whole),
        consecutive: breaker.get("consecutive", value::whole),
        open_for: breaker.get("open_for", value::duration),
    };
    fields.absorb(breaker);
    PolicySpec {
        strategy: fields.get("strategy", value::text),
        base: fields.get("base", value::duration),
        multiplier: fields.get("multiplier", value::number),
        cap: fields.get("cap", value::duration),
        step: fields.get("step", value::duration),
        delays: fields.get("delays", value::durations),
        jitter: jitter_spec,
        max_attempts: fields.get("max_attempts", value::whole),
        window: fields.get("window", value::duration),
        retry_after_max: fields.get("retry_after_max", value::duration),
        tiers: TiersSpec { transactional, promotional, engagement },
        breaker: breaker_spec,
    }
}

/// A policy's schedule in JSON, as the API answers it and `posthaste policy preview --json` prints it.
#[derive(Debug, Serialize)]
pub struct Previewed {
    waits: Vec<Wait>,
    largest_wait: String,
    survives: String,
    notes: Vec<String>,
    text: String,
}

#[derive(Debug, Serialize)]
struct Wait {
    retry: u16,
    after: String,
    earliest: String,
    latest: String,
    since_accept: String,
}

impl Previewed {
    /// Converts a preview.
    pub fn of(preview: &Preview) -> Self {
        let wait = |wait: &posthaste_core::policy::Wait| Wait {
            retry: wait.retry,
            after: duration::write(wait.after),
            earliest: duration::write(wait.earliest),
            latest: duration::write(wait.latest),
            since_accept: duration::write(wait.since_accept),
        };
        Self {
            waits: preview.waits.iter().map(wait).collect(),
            largest_wait: duration::write(preview.largest_wait),
            survives: duration::write(preview.survives),
            notes: preview.notes.clone(),
            text: preview.text.clone(),
        }
    }
}

#[derive(Serialize)]
struct List {
    data: Vec<Shown>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct Shown {
    name: String,
    preset: bool,
    owner: Option<&'static str>,
    created_at: Option<String>,
    strategy: Option<String>,
    base: Option<String>,
    multiplier: Option<f64>,
    cap: Option<String>,
    step: Option<String>,
    delays: Option<Vec<String>>,
    jitter: ShownJitter,
    max_attempts: Option<u64>,
    window: Option<String>,
    retry_after_max: Option<String>,
    tiers: ShownTiers,
    breaker: ShownBreaker,
}

#[derive(Serialize)]
struct ShownJitter {
    kind: Option<String>,
    share: Option<f64>,
}

#[derive(Serialize)]
struct ShownTiers {
    transactional: ShownTier,
    promotional: ShownTier,
    engagement: ShownTier,
}

#[derive(Serialize)]
struct ShownTier {
    scale: Option<f64>,
    first: Option<String>,
}

#[derive(Serialize)]
struct ShownBreaker {
    failure_rate: Option<f64>,
    min_volume: Option<u64>,
    consecutive: Option<u64>,
    open_for: Option<String>,
}

impl Shown {
    fn stored(policy: &StoredPolicy) -> Self {
        let owner = if policy.tenant == OPERATOR { "operator" } else { "tenant" };
        let created_at = Some(value::write_time(policy.at));
        Self { preset: false, owner: Some(owner), created_at, ..Self::preset(&policy.name, &policy.spec) }
    }

    fn preset(name: &str, spec: &PolicySpec) -> Self {
        let write = |duration: Option<Duration>| duration.map(duration::write);
        let tier = |tier: &TierSpec| ShownTier { scale: tier.scale, first: write(tier.first) };
        Self {
            name: name.to_owned(),
            preset: true,
            owner: None,
            created_at: None,
            strategy: spec.strategy.clone(),
            base: write(spec.base),
            multiplier: spec.multiplier,
            cap: write(spec.cap),
            step: write(spec.step),
            delays: spec.delays.as_ref().map(|delays| delays.iter().copied().map(duration::write).collect()),
            jitter: ShownJitter { kind: spec.jitter.kind.clone(), share: spec.jitter.share },
            max_attempts: spec.max_attempts,
            window: write(spec.window),
            retry_after_max: write(spec.retry_after_max),
            tiers: ShownTiers {
                transactional: tier(&spec.tiers.transactional),
                promotional: tier(&spec.tiers.promotional),
                engagement: tier(&spec.tiers.engagement),
            },
            breaker: ShownBreaker {
                failure_rate: spec.breaker.failure_rate,
                min_volume: spec.breaker.min_volume,
                consecutive: spec.breaker.consecutive,
                open_for: write(spec.breaker.open_for),
            },
        }
    }
}
