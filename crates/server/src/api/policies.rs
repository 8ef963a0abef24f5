//! Retry policies: the presets, the named policies of tenants and of the operator, and previews.
//!
//! The caller determines the owner: a tenant key, or an operator key with `Posthaste-Tenant`, names policies of that
//! tenant; an operator key alone names the operator's, which every tenant can use.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::policy::{BadPolicy, BreakerSpec, JitterSpec, PRESETS, PolicySpec, Preview, TierSpec, TiersSpec};
use posthaste_core::{Policy, TenantId};
use posthaste_engine::policies::{NotPut, StoredPolicy};
use posthaste_store::OPERATOR;

use super::caller::{MANAGE, READ};
use super::nothing;
use super::prelude::*;
use crate::body_fields::FieldKind;
use crate::problem::{Complaint, Complaints};
use crate::value::{self, ApiDuration, TierChoice, Ttl};

/// The owner of the policies that a request is about: its tenant, or the operator.
fn owner<const SCOPE: u8>(caller: &Caller<SCOPE>) -> TenantId {
    caller.tenant_id().unwrap_or(OPERATOR)
}

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/policies", "Lists retry policies").scope("read").returns::<ListPage<PolicyView>>(
        200,
        "All policies that an endpoint can name: the presets, then the tenant's and the operator's.",
    ),
    Operation::get("/v1/policies/{name}", "Shows a retry policy")
        .scope("read")
        .returns::<PolicyView>(200, "The policy of that name."),
    Operation::new("PUT", "/v1/policies/{name}", "Creates or replaces a retry policy")
        .scope("manage")
        .conflicts()
        .body::<PolicyBody>()
        .returns::<PolicyView>(200, "The policy. Pending deliveries use it from their next attempt on."),
    Operation::new("DELETE", "/v1/policies/{name}", "Deletes a retry policy that is not in use")
        .scope("manage")
        .conflicts()
        .no_answer(204, "The policy is deleted."),
    Operation::post("/v1/policies/preview", "Shows the retry schedule of a policy")
        .scope("read")
        .body::<PreviewBody>()
        .returns::<PreviewView>(200, "The schedule."),
];

body! {
    struct PolicyBody as "NewPolicy" {
        strategy: optional Strategy,
        /// The first wait.
        base: optional ApiDuration,
        /// For exponential: the factor from one wait to the next.
        multiplier: optional f64,
        /// The longest wait before jitter.
        cap: optional ApiDuration,
        /// For linear: the difference from one wait to the next.
        step: optional ApiDuration,
        /// For list: the waits in order.
        delays: optional Durations,
        jitter: optional JitterBody,
        /// The most attempts, the first one included.
        max_attempts: optional u64,
        /// How long after its first due time a delivery is tried; then it is dead.
        window: optional ApiDuration,
        /// The longest Retry-After that is obeyed.
        retry_after_max: optional ApiDuration,
        tiers: optional TiersBody,
        breaker: optional BreakerBody,
    }

    struct JitterBody as "NewJitter" {
        kind: optional JitterKind,
        /// For spread and add: the random part, as a share of the wait.
        share: optional f64,
    }

    struct TiersBody as "NewTiers" {
        transactional: optional TierBody,
        promotional: optional TierBody,
        engagement: optional TierBody,
    }

    struct TierBody as "NewTier" {
        /// A factor for every wait.
        scale: optional f64,
        /// The longest first wait.
        first: optional ApiDuration,
    }

    struct BreakerBody as "NewBreaker" {
        /// The share of failed attempts that opens the breaker.
        failure_rate: optional f64,
        /// The fewest attempts for which failure_rate counts.
        min_volume: optional u64,
        /// The number of failures in a row that opens the breaker.
        consecutive: optional u64,
        /// How long it stays open before the first probe.
        open_for: optional ApiDuration,
    }

    struct PreviewBody as "NewPreview" {
        /// The name of a policy, or a policy itself.
        policy: required PolicyChoice,
        tier: optional TierChoice,
        ttl: optional Ttl,
    }
}

kinds! {
    Strategy: String = String::parse, { "type": "string", "enum": ["fixed", "linear", "exponential", "list"] };
    JitterKind: String = String::parse, {
        "type": "string",
        "enum": ["none", "full", "equal", "decorrelated", "spread", "add"],
    };
    Durations: Vec<Duration> = value::durations, as Vec<ApiDuration>;
}

/// A policy by name, or written out.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
enum PolicyChoice {
    Named(String),
    Written(Box<PolicyBody>),
}

impl FieldKind for PolicyChoice {
    type Value = Self;

    fn read_field(object: &mut BodyObject<'_>, name: &'static str) -> Option<Self> {
        if object.is_text(name) {
            return String::read_field(object, name).map(Self::Named);
        }
        PolicyBody::read_field(object, name).map(|body| Self::Written(Box::new(body)))
    }
}

impl From<PolicyBody> for PolicySpec {
    fn from(body: PolicyBody) -> Self {
        let tier = |tier: Option<TierBody>| {
            tier.map(|TierBody { scale, first }| TierSpec { scale, first }).unwrap_or_default()
        };
        let tiers = |TiersBody { transactional, promotional, engagement }| TiersSpec {
            transactional: tier(transactional),
            promotional: tier(promotional),
            engagement: tier(engagement),
        };
        let breaker = |BreakerBody { failure_rate, min_volume, consecutive, open_for }| BreakerSpec {
            failure_rate,
            min_volume,
            consecutive,
            open_for,
        };
        Self {
            strategy: body.strategy,
            base: body.base,
            multiplier: body.multiplier,
            cap: body.cap,
            step: body.step,
            delays: body.delays,
            jitter: body.jitter.map(|JitterBody { kind, share }| JitterSpec { kind, share }).unwrap_or_default(),
            max_attempts: body.max_attempts,
            window: body.window,
            retry_after_max: body.retry_after_max,
            tiers: body.tiers.map(tiers).unwrap_or_default(),
            breaker: body.breaker.map(breaker).unwrap_or_default(),
        }
    }
}

/// `GET /v1/policies`: every policy that an endpoint can name, the presets first.
pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let owner = owner(&caller);
    let mut stored = api.engine.policies(owner).await?;
    if owner != OPERATOR {
        let mut others = api.engine.policies(OPERATOR).await?;
        others.retain(|other| stored.iter().all(|own| own.name != other.name));
        stored.extend(others);
        stored.sort_by(|one, other| one.name.cmp(&other.name));
    }
    let presets = PRESETS.iter().filter_map(|name| Some(PolicyView::preset(name, &PolicySpec::preset(name)?)));
    let data = presets.chain(stored.iter().map(PolicyView::stored)).collect();
    Ok(page(&uri, data, None))
}

/// `GET /v1/policies/{name}`: a preset, the tenant's policy, or else the operator's of that name.
pub async fn show<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    if let Some(spec) = PolicySpec::preset(&name) {
        return Ok(json(StatusCode::OK, &PolicyView::preset(&name, &spec)));
    }
    let owner = owner(&caller);
    let mut found = api.engine.policy(owner, &name).await?;
    if found.is_none() && owner != OPERATOR {
        found = api.engine.policy(OPERATOR, &name).await?;
    }
    let found = found.ok_or_else(no_such)?;
    Ok(json(StatusCode::OK, &PolicyView::stored(&found)))
}

/// `PUT /v1/policies/{name}`: creates or replaces it. Pending deliveries use it from their next attempt on.
pub async fn put<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, MANAGE>, request: Request) -> Answer {
    value::checked_name(&name).map_err(|detail| Problem::new(Code::InvalidParameter, format!("the name {detail}")))?;
    let body = body(request).await?;
    let mut fields = BodyObject::read(&body)?;
    let policy = PolicyBody::read(&mut fields);
    fields.finish()?;
    let put = api.engine.put_policy(owner(&caller), &name, policy.into(), caller.by()).await?;
    tracing::info!(policy = name, "put a policy");
    Ok(json(StatusCode::OK, &PolicyView::stored(&put)))
}

/// `DELETE /v1/policies/{name}`. Fails while an endpoint or a tenant uses the policy.
pub async fn delete<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, MANAGE>, _: EmptyBody) -> Answer {
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

pub async fn preview<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<READ>, body: JsonBody) -> Answer {
    let rules = api.engine.rules(owner(&caller)).await?;
    let mut fields = BodyObject::read(&body.0)?;
    let PreviewBody { policy, tier, ttl } = PreviewBody::read(&mut fields);
    let (name, written) = match policy {
        Some(PolicyChoice::Named(name)) => (Some(name), None),
        Some(PolicyChoice::Written(policy)) => (None, Some(PolicySpec::from(*policy))),
        None => (None, None),
    };
    let known = fields.check("policy", name, |name| rules.policy(&name).map_err(|unknown| unknown.to_string()));
    fields.finish()?;
    let policy = match known {
        Some(known) => known,
        None => Policy::build(&written.unwrap_or_default())
            .map(Arc::new)
            .map_err(|bad| Problem::with_complaints(Code::InvalidBody, complaints("/policy", bad)))?,
    };
    Ok(json(StatusCode::OK, &PreviewView::of(&policy.preview(tier.unwrap_or_default(), ttl))))
}

/// A policy's schedule in JSON, as the API answers it and `posthaste policy preview --json` prints it.
#[derive(Serialize, JsonSchema)]
pub struct PreviewView {
    waits: Vec<PreviewedWaitView>,
    largest_wait: ApiDuration,
    /// The longest outage of a receiver that the retries outlast.
    survives: ApiDuration,
    notes: Vec<String>,
    /// The schedule as text for people.
    text: String,
}

#[derive(Serialize, JsonSchema)]
struct PreviewedWaitView {
    /// The retry's number, from 1.
    retry: u16,
    /// The wait before jitter.
    after: ApiDuration,
    /// The shortest wait with jitter.
    earliest: ApiDuration,
    /// The longest wait with jitter.
    latest: ApiDuration,
    /// The sum of the waits before jitter up to this retry.
    since_accept: ApiDuration,
}

impl PreviewView {
    pub fn of(preview: &Preview) -> Self {
        let wait = |wait: &posthaste_core::policy::Wait| PreviewedWaitView {
            retry: wait.retry,
            after: ApiDuration(wait.after),
            earliest: ApiDuration(wait.earliest),
            latest: ApiDuration(wait.latest),
            since_accept: ApiDuration(wait.since_accept),
        };
        Self {
            waits: preview.waits.iter().map(wait).collect(),
            largest_wait: ApiDuration(preview.largest_wait),
            survives: ApiDuration(preview.survives),
            notes: preview.notes.clone(),
            text: preview.text.clone(),
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct PolicyView {
    name: String,
    /// Whether it is built in; a preset cannot be changed.
    preset: bool,
    /// Who defined it; null for a preset.
    #[schemars(extend("enum" = ["operator", "tenant", null]))]
    owner: Option<&'static str>,
    /// When it was first put; null for a preset.
    created_at: Option<ApiTime>,
    strategy: Option<String>,
    base: Option<ApiDuration>,
    multiplier: Option<f64>,
    cap: Option<ApiDuration>,
    step: Option<ApiDuration>,
    delays: Option<Vec<ApiDuration>>,
    jitter: JitterView,
    max_attempts: Option<u64>,
    window: Option<ApiDuration>,
    retry_after_max: Option<ApiDuration>,
    tiers: TiersView,
    breaker: PolicyBreakerView,
}

#[derive(Serialize, JsonSchema)]
struct JitterView {
    #[schemars(with = "Option<JitterKind>")]
    kind: Option<String>,
    /// For spread and add: the random part, as a share of the wait.
    share: Option<f64>,
}

#[derive(Serialize, JsonSchema)]
struct TiersView {
    transactional: TierView,
    promotional: TierView,
    engagement: TierView,
}

#[derive(Serialize, JsonSchema)]
struct TierView {
    /// A factor for every wait.
    scale: Option<f64>,
    /// The longest first wait.
    first: Option<ApiDuration>,
}

#[derive(Serialize, JsonSchema)]
struct PolicyBreakerView {
    /// The share of failed attempts that opens the breaker.
    failure_rate: Option<f64>,
    /// The fewest attempts for which failure_rate counts.
    min_volume: Option<u64>,
    /// The number of failures in a row that opens the breaker.
    consecutive: Option<u64>,
    /// How long it stays open before the first probe.
    open_for: Option<ApiDuration>,
}

impl PolicyView {
    fn stored(policy: &StoredPolicy) -> Self {
        let owner = if policy.tenant == OPERATOR { "operator" } else { "tenant" };
        let created_at = Some(ApiTime(policy.at));
        Self { preset: false, owner: Some(owner), created_at, ..Self::preset(&policy.name, &policy.spec) }
    }

    fn preset(name: &str, spec: &PolicySpec) -> Self {
        let tier = |tier: &TierSpec| TierView { scale: tier.scale, first: tier.first.map(ApiDuration) };
        Self {
            name: name.to_owned(),
            preset: true,
            owner: None,
            created_at: None,
            strategy: spec.strategy.clone(),
            base: spec.base.map(ApiDuration),
            multiplier: spec.multiplier,
            cap: spec.cap.map(ApiDuration),
            step: spec.step.map(ApiDuration),
            delays: spec.delays.as_ref().map(|delays| delays.iter().copied().map(ApiDuration).collect()),
            jitter: JitterView { kind: spec.jitter.kind.clone(), share: spec.jitter.share },
            max_attempts: spec.max_attempts,
            window: spec.window.map(ApiDuration),
            retry_after_max: spec.retry_after_max.map(ApiDuration),
            tiers: TiersView {
                transactional: tier(&spec.tiers.transactional),
                promotional: tier(&spec.tiers.promotional),
                engagement: tier(&spec.tiers.engagement),
            },
            breaker: PolicyBreakerView {
                failure_rate: spec.breaker.failure_rate,
                min_volume: spec.breaker.min_volume,
                consecutive: spec.breaker.consecutive,
                open_for: spec.breaker.open_for.map(ApiDuration),
            },
        }
    }
}
