//! Replays: jobs that send dead or expired deliveries again, named or found by a filter, or that send an endpoint the
//! messages it is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use posthaste_core::cause::Cause;
use posthaste_core::id::{DeliveryId, EndpointId, JobId, TenantId};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::IdKind;
use posthaste_engine::accept::Once;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::Sees;
use posthaste_engine::replays::{AskedReplay, MadeReplay, Survey};
use posthaste_engine::tenants::Made;
use posthaste_store::{
    BoundedCount, DeadLetterFilter, DeliveryJob, FirstAnswer, JobKind, JobState, Missing, ReplayWhat, Skips, Store,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::caller::{Caller, READ, REPLAY};
use super::idempotency::{keyed_body, replayed};
use super::list::{Asked, cause, page};
use super::{Answer, Api, Named, json, json_bytes, no_body, no_parameters};
use crate::object::Object;
use crate::problem::{Code, Problem};
use crate::value;

/// The most deliveries that a replay can name; a filter finds more.
const LISTED_MAX: usize = 1_000;
const PER_SECOND_MAX: u64 = 1_000_000;
const REASON_BYTES_MAX: usize = 1_000;

/// `POST /v1/replays`. A dry run answers how many deliveries would be replayed and skipped.
pub async fn make<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<REPLAY>,
    request: Request,
) -> Answer {
    let tenant = caller.tenant_id()?;
    let (body, key) = keyed_body(tenant, request).await?;
    let Parsed { replay, dry_run } = parse(&api, tenant, &body).await?;
    if dry_run {
        let survey = api.engine.survey(&replay).await?;
        return Ok(json(StatusCode::OK, &DryRun::of(&survey)));
    }
    let Some((key, digest)) = key else {
        let shown = Shown::of(&api, &api.engine.replay(&replay, caller.by()).await?).await?;
        tracing::info!(replay = shown.id, "began a replay");
        return Ok(json(StatusCode::ACCEPTED, &shown));
    };
    match api.engine.replay_once(&replay, Once { key, digest, answer }, caller.by()).await? {
        Made::Now(made) => {
            tracing::info!(replay = made.public_id, "began a replay");
            Ok(json_bytes(StatusCode::ACCEPTED, answer(&made).body))
        }
        Made::Before(first) => Ok(replayed(first)),
    }
}

/// The answer to a request with an idempotency key, and to a repeated one.
fn answer(made: &MadeReplay) -> FirstAnswer {
    let ids = Ids { id: made.public_id.clone(), tenant: made.tenant.clone(), endpoint: made.endpoint.clone() };
    let shown = Shown::at(made.job.at, ids, &made.job);
    let body = serde_json::to_vec(&shown).expect("our own answers always serialise");
    FirstAnswer { status: StatusCode::ACCEPTED.as_u16(), body: body.into() }
}

/// `GET /v1/replays`. An operator sees those of all tenants, unless it names one.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<READ>, uri: Uri) -> Answer {
    let query = Asked::of(&uri, &[])?;
    let list = query.list(&api, caller.sees(), &"replays");
    let after = query.behind(&api, list)?.map(JobId);
    let mut found = api.engine.replays(caller.sees(), query.order, after, query.limit + 1).await?;
    let more = found.len() > query.limit as usize;
    found.truncate(query.limit as usize);
    let next = found.last().filter(|_| more).map(|last| api.engine.cursor_behind(list, last.id.0));
    let mut data = Vec::with_capacity(found.len());
    for job in &found {
        data.push(Shown::of(&api, job).await?);
    }
    Ok(page(&uri, data, next))
}

/// `GET /v1/replays/{id}`.
pub async fn show<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ>,
    Named(id): Named,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    let job = find(&api, caller.sees(), &id).await?;
    Ok(json(StatusCode::OK, &Shown::of(&api, &job).await?))
}

async fn find<S: Store, C: Clock>(api: &Api<S, C>, visibility: Sees, id: &str) -> Result<DeliveryJob, Problem> {
    let unknown = || Problem::no_such("replay");
    let (key, _) = api.engine.opened(IdKind::Replay, id).ok_or_else(unknown)?;
    let job = api.engine.job(visibility, JobId(key)).await?;
    job.filter(|job| !matches!(job.kind, JobKind::FanOut(_))).ok_or_else(unknown)
}

/// `POST /v1/replays/{id}/pause`.
pub async fn pause<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<REPLAY>,
    Named(id): Named,
    request: Request,
) -> Answer {
    change(&api, &caller, &id, request, JobState::Paused).await
}

/// `POST /v1/replays/{id}/resume`.
pub async fn resume<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<REPLAY>,
    Named(id): Named,
    request: Request,
) -> Answer {
    change(&api, &caller, &id, request, JobState::Running).await
}

/// `POST /v1/replays/{id}/cancel`: it creates no more deliveries; those it created stay.
pub async fn cancel<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<REPLAY>,
    Named(id): Named,
    request: Request,
) -> Answer {
    change(&api, &caller, &id, request, JobState::Cancelled).await
}

/// Changes a replay's state. A replay that is in the state already stays so; for one that has ended it fails.
async fn change<S: Store, C: Clock>(
    api: &Api<S, C>,
    caller: &Caller<REPLAY>,
    id: &str,
    request: Request,
    next: JobState,
) -> Answer {
    no_body(request).await?;
    let visibility = Sees::Tenant(caller.tenant_id()?);
    let before = find(api, visibility, id).await?;
    api.engine.change_job(visibility, before.id, next, caller.by()).await?;
    let job = find(api, visibility, id).await?;
    if job.state != next {
        let detail = format!("the replay is {} and has ended; begin another", name(job.state));
        return Err(Problem::new(Code::ReplayEnded, detail));
    }
    Ok(json(StatusCode::OK, &Shown::of(api, &job).await?))
}

fn name(state: JobState) -> &'static str {
    match state {
        JobState::Running => "running",
        JobState::Paused => "paused",
        JobState::Done => "done",
        JobState::Cancelled => "cancelled",
    }
}

#[derive(Serialize)]
struct DryRun {
    dry_run: bool,
    total: Total,
    /// The number of deliveries that would be created.
    replayed: u64,
    skipped: u64,
    skips: Skipped,
}

impl DryRun {
    fn of(survey: &Survey) -> Self {
        Self {
            dry_run: true,
            total: Total::of(survey.total),
            replayed: survey.replayed,
            skipped: survey.skipped.total(),
            skips: Skipped::of(survey.skipped),
        }
    }
}

/// How many were skipped, by reason.
#[derive(Serialize)]
struct Skipped(BTreeMap<&'static str, u64>);

impl Skipped {
    fn of(skips: Skips) -> Self {
        Self(skips.each().map(|(why, count)| (why.code(), count)).collect())
    }
}

/// What is left of a replay, and when it will be done at its limit or its speed so far.
#[derive(Serialize)]
struct Forecast {
    left: Total,
    done_at: Option<String>,
}

/// A count, and whether it is exact or a lower bound.
#[derive(Serialize)]
struct Total {
    count: u64,
    exact: bool,
}

impl Total {
    fn of(count: BoundedCount) -> Self {
        match count {
            BoundedCount::Exactly(count) => Self { count, exact: true },
            BoundedCount::AtLeast(count) => Self { count, exact: false },
        }
    }
}

/// The selection of a replay, as its request had it.
#[derive(Default, Serialize)]
struct Select {
    /// The number of deliveries that the request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

impl Select {
    fn of(job: &DeliveryJob, endpoint: Option<String>) -> Self {
        let found = |filter: &DeadLetterFilter, state| Self {
            endpoint: endpoint.clone(),
            state: Some(state),
            cause: filter.cause.map(Cause::code),
            event_type: filter.event_type.clone(),
            tier: filter.tier.map(Tier::name),
            since: filter.since.map(value::write_time),
            until: filter.until.map(value::write_time),
            ..Self::default()
        };
        match &job.kind {
            JobKind::ReplayFound { filter, .. } => found(filter, vec!["dead"]),
            JobKind::ReplayEnded { filter, dead: true } => found(filter, vec!["dead", "expired"]),
            JobKind::ReplayEnded { filter, dead: false } => found(filter, vec!["expired"]),
            JobKind::ReplayMissing(missing) => Self {
                missing_for: endpoint,
                since: missing.since.map(value::write_time),
                until: missing.until.map(value::write_time),
                ..Self::default()
            },
            JobKind::ReplayListed => {
                let count = job.total.map(|(BoundedCount::Exactly(count) | BoundedCount::AtLeast(count))| count);
                Self { deliveries: count, ..Self::default() }
            }
            JobKind::FanOut(_) => Self::default(),
        }
    }
}

/// The public ids of a replay, its tenant and its endpoint.
struct Ids {
    id: String,
    tenant: Option<String>,
    endpoint: Option<String>,
}

#[derive(Serialize)]
struct Shown {
    id: String,
    tenant: Option<String>,
    state: &'static str,
    created_at: String,
    select: Select,
    reason: Option<String>,
    total: Option<Total>,
    replayed: u64,
    skipped: u64,
    skips: Skipped,
    per_second: Option<u32>,
    /// While it runs or is paused, if its deliveries were counted.
    forecast: Option<Forecast>,
}

impl Shown {
    async fn of<S: Store, C: Clock>(api: &Api<S, C>, job: &DeliveryJob) -> Result<Self, Problem> {
        let id = api.engine.public_id(IdKind::Replay, job.id.0, job.at);
        let tenant = api.engine.tenant_public_id(job.tenant).await?;
        let endpoint = api.engine.endpoint_of(job).await?;
        Ok(Self::at(api.engine.now(), Ids { id, tenant, endpoint }, job))
    }

    fn at(now: Timestamp, ids: Ids, job: &DeliveryJob) -> Self {
        let Ids { id, tenant, endpoint } = ids;
        let goes_on = matches!(job.state, JobState::Running | JobState::Paused);
        let forecast = |left| Forecast { left: Total::of(left), done_at: job.done_at(now).map(value::write_time) };
        Self {
            id,
            tenant,
            state: name(job.state),
            created_at: value::write_time(job.at),
            select: Select::of(job, endpoint),
            reason: job.reason.clone(),
            total: job.total.map(Total::of),
            replayed: job.made,
            skipped: job.skipped.total(),
            skips: Skipped::of(job.skipped),
            per_second: job.per_second,
            forecast: job.left().filter(|_| goes_on).map(forecast),
        }
    }
}

struct Parsed {
    replay: AskedReplay,
    dry_run: bool,
}

async fn parse<S: Store, C: Clock>(api: &Api<S, C>, tenant: TenantId, body: &[u8]) -> Result<Parsed, Problem> {
    let mut fields = Object::read(body)?;
    if !fields.has("select") {
        fields.complain("select", "is needed; {} selects every dead letter".to_owned());
    }
    let mut select = fields.object("select");
    let what = selected(api, tenant, &mut select).await?;
    fields.absorb(select);
    let dry_run = fields.get("dry_run", value::truth).unwrap_or(false);
    let per_second = fields.get("per_second", |raw| match value::whole(raw)? {
        count @ 1..=PER_SECOND_MAX => u32::try_from(count).map_err(|error| error.to_string()),
        _ => Err(format!("must be 1 to {PER_SECOND_MAX}")),
    });
    let reason = fields.get("reason", |raw| {
        let reason = value::text(raw)?;
        if reason.len() <= REASON_BYTES_MAX {
            Ok(reason)
        } else {
            Err(format!("is longer than {REASON_BYTES_MAX} bytes"))
        }
    });
    fields.finish()?;
    Ok(Parsed { replay: AskedReplay { tenant, what, per_second, reason }, dry_run })
}

/// Reads the selection: named deliveries, the messages that an endpoint is missing, or a filter.
async fn selected<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: TenantId,
    select: &mut Object<'_>,
) -> Result<ReplayWhat, Problem> {
    let listed = select.get("deliveries", |raw| deliveries(api, raw));
    let missing_for = endpoint(api, tenant, select, "missing_for").await?;
    let mut filter = DeadLetterFilter::of(tenant);
    filter.endpoint = endpoint(api, tenant, select, "endpoint").await?;
    filter.cause = select.get("cause", |raw| cause(&value::text(raw)?));
    filter.event_type = select.get("event_type", value::text);
    filter.tier = select.get("tier", value::tier);
    filter.since = select.get("since", value::time);
    filter.until = select.get("until", value::time);
    let ends = select.get("state", ends);
    if let Some(listed) = listed {
        // Another tenant's deliveries are answered like unknown ones.
        let owned = api.engine.owned(tenant, &listed).await?;
        if let Some(index) = owned.iter().position(|owned| !owned) {
            select.complain("deliveries", format!("entry {index} is not the id of a delivery"));
        }
        if filter != DeadLetterFilter::of(tenant) || missing_for.is_some() || ends.is_some() {
            select
                .complain("deliveries", "cannot be combined with a filter; name deliveries or filter them".to_owned());
        }
        return Ok(ReplayWhat::Listed(listed));
    }
    if let Some(endpoint) = missing_for {
        let DeadLetterFilter { since, until, .. } = filter;
        if (DeadLetterFilter { since, until, ..DeadLetterFilter::of(tenant) }) != filter || ends.is_some() {
            select.complain("missing_for", "can be combined with since and until only".to_owned());
        }
        return Ok(ReplayWhat::Missing(Missing { endpoint, since, until }));
    }
    Ok(match ends {
        None | Some(Ends { dead: true, expired: false }) => ReplayWhat::Found(filter),
        Some(Ends { dead, .. }) => ReplayWhat::Ended { filter, dead },
    })
}

/// Finds an endpoint by its id or uid. Another tenant's is answered like an unknown one.
async fn endpoint<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: TenantId,
    select: &mut Object<'_>,
    field: &'static str,
) -> Result<Option<EndpointId>, Problem> {
    let Some(named) = select.get(field, value::text) else { return Ok(None) };
    match api.endpoint_named(Sees::Tenant(tenant), &named).await {
        Ok(endpoint) => Ok(Some(endpoint)),
        Err(problem) if problem.code() == Code::NotFound => {
            select.complain(field, "is not the id or uid of an endpoint".to_owned());
            Ok(None)
        }
        Err(problem) => Err(problem),
    }
}

/// The terminal states that a replay selects.
struct Ends {
    dead: bool,
    expired: bool,
}

fn ends(raw: &RawValue) -> Result<Ends, String> {
    let named = value::texts(raw)?;
    let ends = Ends { dead: named.iter().any(|end| end == "dead"), expired: named.iter().any(|end| end == "expired") };
    let known = named.iter().all(|end| end == "dead" || end == "expired");
    if known && !named.is_empty() { Ok(ends) } else { Err("must list dead, expired or both".to_owned()) }
}

fn deliveries<S: Store, C: Clock>(api: &Api<S, C>, raw: &RawValue) -> Result<Vec<DeliveryId>, String> {
    let written = value::texts(raw)?;
    if written.is_empty() || written.len() > LISTED_MAX {
        return Err(format!("must name 1 to {LISTED_MAX} deliveries; leave it out to find them by a filter"));
    }
    let id = |(index, text): (usize, &String)| {
        let opened = api.engine.opened(IdKind::Delivery, text).map(|(key, _)| DeliveryId(key));
        opened.ok_or_else(|| format!("entry {index} is not the id of a delivery"))
    };
    written.iter().enumerate().map(id).collect()
}
