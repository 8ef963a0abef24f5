//! Replays: dead letters are given another life, one, some, or all that match.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use posthaste_core::id::{DeliveryId, JobId, TenantId};
use posthaste_crypto::public_id::Kind;
use posthaste_engine::accept::Once;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::Sees;
use posthaste_engine::replays::MadeReplay;
use posthaste_engine::tenants::Made;
use posthaste_store::{Count, DeadLetterFilter, FirstAnswer, Job, JobKind, JobState, ReplayWhat, Store};
use serde::Serialize;
use serde_json::value::RawValue;

use super::caller::{Caller, READ, REPLAY};
use super::idempotency::{keyed_body, replayed};
use super::list::{Asked, cause, page};
use super::{Answer, Api, Named, json, json_bytes, no_parameters};
use crate::object::Object;
use crate::problem::{Code, Problem};
use crate::value;

/// Deliveries that one replay names; more are found by a filter.
const LISTED_MAX: usize = 1_000;
const PER_SECOND_MAX: u64 = 1_000_000;

/// `POST /v1/replays`. A dry run answers how many there are.
pub async fn make<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<REPLAY>,
    request: Request,
) -> Answer {
    let tenant = caller.tenant_id()?;
    let (body, key) = keyed_body(tenant, request).await?;
    let asked = parse(&api, tenant, &body).await?;
    if asked.dry_run {
        let count = match &asked.what {
            ReplayWhat::Found(filter) => api.engine.count_dead_letters(filter.clone()).await?,
            ReplayWhat::Listed(listed) => Count::Exactly(listed.len() as u64),
        };
        return Ok(json(StatusCode::OK, &DryRun { dry_run: true, total: Total::of(count) }));
    }
    let reason = asked.reason.as_deref().unwrap_or("none given");
    let Some((key, digest)) = key else {
        let shown = Shown::of(&api, &api.engine.replay(tenant, asked.what, asked.per_second).await?);
        tracing::info!(replay = shown.id, reason, "began a replay");
        return Ok(json(StatusCode::ACCEPTED, &shown));
    };
    let once = Once { key, digest, answer };
    match api.engine.replay_once(tenant, asked.what, asked.per_second, once).await? {
        Made::Now(made) => {
            tracing::info!(replay = made.public_id, reason, "began a replay");
            Ok(json_bytes(StatusCode::ACCEPTED, answer(&made).body))
        }
        Made::Before(first) => Ok(replayed(first)),
    }
}

/// What is answered under a key, now and again.
fn answer(made: &MadeReplay) -> FirstAnswer {
    let shown = Shown {
        id: made.public_id.clone(),
        state: "running",
        created_at: value::write_time(made.at),
        total: Some(Total::of(made.total)),
        replayed: 0,
        skipped: 0,
        per_second: made.per_second,
    };
    let body = serde_json::to_vec(&shown).expect("our own answers always serialise");
    FirstAnswer { status: StatusCode::ACCEPTED.as_u16(), body: body.into() }
}

/// `GET /v1/replays`.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<READ>, uri: Uri) -> Answer {
    let asked = Asked::of(&uri, &[])?;
    let tenant = caller.tenant_id()?;
    let list = asked.list(&api, Sees::Tenant(tenant), &"replays");
    let after = asked.behind(&api, list)?.map(JobId);
    let mut found = api.engine.replays(tenant, asked.order, after, asked.limit + 1).await?;
    let more = found.len() > asked.limit as usize;
    found.truncate(asked.limit as usize);
    let next = found.last().filter(|_| more).map(|last| api.engine.cursor_behind(list, last.id.0));
    Ok(page(&uri, found.iter().map(|job| Shown::of(&api, job)).collect(), next))
}

/// `GET /v1/replays/{id}`.
pub async fn show<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ>,
    Named(id): Named,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    let unknown = || Problem::no_such("replay");
    let (key, _) = api.engine.opened(Kind::Replay, &id).ok_or_else(unknown)?;
    let job = api.engine.job(caller.sees(), JobId(key)).await?;
    let job = job.filter(|job| !matches!(job.kind, JobKind::FanOut(_))).ok_or_else(unknown)?;
    Ok(json(StatusCode::OK, &Shown::of(&api, &job)))
}

#[derive(Serialize)]
struct DryRun {
    dry_run: bool,
    total: Total,
}

/// How many, and whether there may be more.
#[derive(Serialize)]
struct Total {
    count: u64,
    exact: bool,
}

impl Total {
    fn of(count: Count) -> Self {
        match count {
            Count::Exactly(count) => Self { count, exact: true },
            Count::AtLeast(count) => Self { count, exact: false },
        }
    }
}

#[derive(Serialize)]
struct Shown {
    id: String,
    state: &'static str,
    created_at: String,
    total: Option<Total>,
    replayed: u64,
    skipped: u64,
    per_second: Option<u32>,
}

impl Shown {
    fn of<S: Store, C: Clock>(api: &Api<S, C>, job: &Job) -> Self {
        Self {
            id: api.engine.public_id(Kind::Replay, job.id.0, job.at),
            state: match job.state {
                JobState::Running => "running",
                JobState::Paused => "paused",
                JobState::Done => "done",
                JobState::Cancelled => "cancelled",
            },
            created_at: value::write_time(job.at),
            total: job.total.map(Total::of),
            replayed: job.made,
            skipped: job.skipped,
            per_second: job.per_second,
        }
    }
}

struct Parsed {
    what: ReplayWhat,
    dry_run: bool,
    per_second: Option<u32>,
    reason: Option<String>,
}

async fn parse<S: Store, C: Clock>(api: &Api<S, C>, tenant: TenantId, body: &[u8]) -> Result<Parsed, Problem> {
    let mut fields = Object::read(body)?;
    if !fields.has("select") {
        fields.complain("select", "is needed; {} selects every dead letter".to_owned());
    }
    let mut select = fields.object("select");
    let listed = select.get("deliveries", |raw| deliveries(api, raw));
    let mut filter = DeadLetterFilter::of(tenant);
    if let Some(named) = select.get("endpoint", value::text) {
        match api.endpoint_named(Sees::Tenant(tenant), &named).await {
            Ok(endpoint) => filter.endpoint = Some(endpoint),
            // Another's is not to be told from one that never was.
            Err(problem) if problem.code() == Code::NotFound => {
                select.complain("endpoint", "is not the id or uid of an endpoint".to_owned());
            }
            Err(problem) => return Err(problem),
        }
    }
    filter.cause = select.get("cause", |raw| cause(&value::text(raw)?));
    filter.event_type = select.get("event_type", value::text);
    filter.tier = select.get("tier", value::tier);
    filter.since = select.get("since", value::time);
    filter.until = select.get("until", value::time);
    select.get("state", |raw| match value::texts(raw)?.as_slice() {
        [only] if only == "dead" => Ok(()),
        _ => Err("this version finds [\"dead\"] alone; name expired ones in select.deliveries".to_owned()),
    });
    // Another's are not to be told from those that never were.
    if let Some(listed) = &listed {
        let owned = api.engine.owned(tenant, listed).await?;
        if let Some(index) = owned.iter().position(|owned| !owned) {
            select.complain("deliveries", format!("entry {index} is not the id of a delivery"));
        }
    }
    if listed.is_some() && filter != DeadLetterFilter::of(tenant) {
        select.complain("deliveries", "goes with no filter; name deliveries, or say how to find them".to_owned());
    }
    select.not_built(&["missing_for"]);
    fields.absorb(select);
    let dry_run = fields.get("dry_run", value::truth).unwrap_or(false);
    let per_second = fields.get("per_second", |raw| match value::whole(raw)? {
        count @ 1..=PER_SECOND_MAX => u32::try_from(count).map_err(|error| error.to_string()),
        _ => Err(format!("must be 1 to {PER_SECOND_MAX}")),
    });
    let reason = fields.get("reason", value::text);
    fields.finish()?;
    let what = listed.map_or(ReplayWhat::Found(filter), ReplayWhat::Listed);
    Ok(Parsed { what, dry_run, per_second, reason })
}

fn deliveries<S: Store, C: Clock>(api: &Api<S, C>, raw: &RawValue) -> Result<Vec<DeliveryId>, String> {
    let written = value::texts(raw)?;
    if written.is_empty() || written.len() > LISTED_MAX {
        return Err(format!("must name 1 to {LISTED_MAX} deliveries; leave it out to find them by a filter"));
    }
    let id = |(index, text): (usize, &String)| {
        let opened = api.engine.opened(Kind::Delivery, text).map(|(key, _)| DeliveryId(key));
        opened.ok_or_else(|| format!("entry {index} is not the id of a delivery"))
    };
    written.iter().enumerate().map(id).collect()
}
