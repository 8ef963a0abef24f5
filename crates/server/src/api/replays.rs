//! Replays: jobs that send dead or expired deliveries again, named or found by a filter, or that send an endpoint the
//! messages it is missing.

use std::collections::BTreeMap;

use posthaste_core::{Cause, DeliveryId, EndpointId, JobId, TenantId, Tier, Timestamp};
use posthaste_engine::accept::IdempotencyRequest;
use posthaste_engine::replays::{AskedReplay, MadeReplay, Survey};
use posthaste_store::{
    BoundedCount, DeadLetterFilter, DeliveryJob, FirstAnswer, JobKind, JobState, Missing, ReplayWhat, Skips,
};
use schemars::json_schema;
use serde_json::value::RawValue;

use super::caller::{READ, REPLAY};
use super::idempotency::{first_answer, keyed_body, made};
use super::list::cause;
use super::prelude::*;
use crate::body_fields::FieldKind;
use crate::value::{self, TierChoice, TokenCount, Words};

/// The most deliveries that a replay can name; a filter finds more.
const LISTED_MAX: usize = 1_000;
const REASON_BYTES_MAX: usize = 1_000;

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::post(
        "/v1/replays",
        "Replays deliveries that are dead or have expired, or sends an endpoint the messages it never got",
    )
    .scope("replay")
    .body::<NewReplayBody>()
    .keyed()
    .bounded()
    .returns::<ReplayView>(202, "The replay is running.")
    .returns::<DryRunView>(200, "The counts of a dry run."),
    Operation::get("/v1/replays", "Lists replays")
        .scope("read")
        .list(&[])
        .returns::<ListPage<ReplayView>>(200, "A page of replays."),
    Operation::get("/v1/replays/{id}", "Shows a replay and its progress")
        .scope("read")
        .returns::<ReplayView>(200, "The replay."),
    Operation::post("/v1/replays/{id}/pause", "Pauses a replay")
        .scope("replay")
        .conflicts()
        .returns::<ReplayView>(200, "The replay creates no deliveries until it is resumed."),
    Operation::post("/v1/replays/{id}/resume", "Resumes a paused replay")
        .scope("replay")
        .conflicts()
        .bounded()
        .returns::<ReplayView>(200, "The replay continues where it stopped."),
    Operation::post("/v1/replays/{id}/cancel", "Cancels a replay")
        .scope("replay")
        .conflicts()
        .returns::<ReplayView>(200, "The replay creates no more deliveries; those it created stay."),
];

body! {
    struct NewReplayBody as "NewReplay" {
        /// What to replay; {} selects every dead letter.
        select: required Selection,
        /// true: only count what would be replayed.
        dry_run: optional bool,
        /// The most deliveries to create in a second.
        per_second: optional TokenCount,
        /// A note that is shown with the replay.
        reason: optional ReplayReason,
    }

    struct SelectionBody as "NewSelection" {
        /// These deliveries, at most 1,000; cannot be combined with a filter.
        deliveries: optional DeliveryIds,
        /// Messages that this endpoint, by id or uid, wants and has no delivery of; can be combined with since and
        /// until only.
        missing_for: optional String,
        /// Only deliveries to this endpoint, by id or uid.
        endpoint: optional String,
        /// Only deliveries with this cause; for expired ones, the cause of the last attempt.
        cause: optional CauseCode,
        /// Only deliveries of this event type.
        event_type: optional String,
        /// Only deliveries of this tier.
        tier: optional TierChoice,
        /// Only deliveries that ended, or with missing_for messages accepted, at or after this time.
        since: optional ApiTime,
        /// Only deliveries that ended, or with missing_for messages accepted, before this time.
        until: optional ApiTime,
        /// Only deliveries in these states; dead by default.
        state: optional EndStates,
    }
}

kinds! {
    ReplayReason: String = |raw| match String::parse(raw)? {
        long if long.len() > REASON_BYTES_MAX => Err(format!("is longer than {REASON_BYTES_MAX} bytes")),
        reason => Ok(reason),
    }, as String;
    CauseCode: Cause = |raw| cause(&String::parse(raw)?), as String;
    DeliveryIds: Vec<String> = |raw| match value::texts(raw)? {
        named if (1..=LISTED_MAX).contains(&named.len()) => Ok(named),
        _ => Err(format!("must name 1 to {LISTED_MAX} deliveries; leave it out to find them by a filter")),
    }, as Vec<String>;
    /// The terminal states that a replay selects.
    EndStates: Ends = ends, { "type": "array", "items": { "type": "string", "enum": ["dead", "expired"] } };
}

/// The required selection. `null` is taken as an empty one.
enum Selection {}

inline_schema!(Selection, as SelectionBody);

impl FieldKind for Selection {
    type Value = SelectionBody;

    fn read_field(object: &mut BodyObject<'_>, name: &'static str) -> Option<SelectionBody> {
        if !object.has(name) {
            object.complain(name, "is needed; {} selects every dead letter".to_owned());
        }
        let given = SelectionBody::read_field(object, name);
        given.or_else(|| BodyObject::read_optional(&[]).ok().map(|mut empty| SelectionBody::read(&mut empty)))
    }
}

/// `POST /v1/replays`. A dry run answers how many deliveries would be replayed and skipped.
pub async fn make<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<REPLAY>, request: Request) -> Answer {
    let tenant = caller.tenant_id()?;
    let (body, key) = keyed_body(tenant, request).await?;
    let (replay, dry_run) = parse(&api, tenant, &body).await?;
    if dry_run {
        let survey = api.engine.survey(&replay).await?;
        return Ok(json(StatusCode::OK, &DryRunView::of(&survey)));
    }
    let Some((key, digest)) = key else {
        let shown = ReplayView::of(&api, api.engine.replay(&replay, caller.by()).await?).await?;
        tracing::info!(replay = shown.id, "began a replay");
        return Ok(json(StatusCode::ACCEPTED, &shown));
    };
    Ok(made(api.engine.replay_once(&replay, IdempotencyRequest { key, digest, answer }, caller.by()).await?, |made| {
        tracing::info!(replay = made.public_id, "began a replay");
        answer(made)
    }))
}

/// The answer to a request with an idempotency key, and to a repeated one.
fn answer(made: &MadeReplay) -> FirstAnswer {
    first_answer(StatusCode::ACCEPTED, &ReplayView::at(made.job.at, made.clone()))
}

/// `GET /v1/replays`. An operator sees those of all tenants, unless it names one.
pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<READ>, uri: Uri) -> Answer {
    let query = ListQuery::of(&uri, &[])?;
    let list = query.list(&api, caller.sees(), &"replays");
    let after = query.behind(&api, list)?.map(JobId);
    let mut found = api.engine.replays(caller.sees(), query.order, after, query.limit + 1).await?;
    let next = query.cut(&mut found).map(|last| api.engine.cursor_behind(list, last.id.0));
    let mut data = Vec::with_capacity(found.len());
    for job in found {
        data.push(ReplayView::of(&api, job).await?);
    }
    Ok(page(&uri, data, next))
}

pub async fn show<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, READ>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let job = find(&api, caller.sees(), &name).await?;
    Ok(json(StatusCode::OK, &ReplayView::of(&api, job).await?))
}

async fn find<S: Store, C: Clock>(api: &Api<S, C>, visibility: Visibility, id: &str) -> Result<DeliveryJob> {
    let unknown = || Problem::no_such("replay");
    let (key, _) = api.engine.opened(IdKind::Replay, id).ok_or_else(unknown)?;
    let job = api.engine.job(visibility, JobId(key)).await?;
    job.filter(|job| !matches!(job.kind, JobKind::FanOut(_))).ok_or_else(unknown)
}

pub async fn pause<S: Store, C: Clock>(named: ByName<S, C, REPLAY>, _: EmptyBody) -> Answer {
    change(named, JobState::Paused).await
}

pub async fn resume<S: Store, C: Clock>(named: ByName<S, C, REPLAY>, _: EmptyBody) -> Answer {
    change(named, JobState::Running).await
}

/// `POST /v1/replays/{id}/cancel`: it creates no more deliveries; those it created stay.
pub async fn cancel<S: Store, C: Clock>(named: ByName<S, C, REPLAY>, _: EmptyBody) -> Answer {
    change(named, JobState::Cancelled).await
}

/// Changes a replay's state. A replay that is in the state already stays so; for one that has ended it fails.
async fn change<S: Store, C: Clock>(named: ByName<S, C, REPLAY>, next: JobState) -> Answer {
    let ByName { api, caller, name } = named;
    let visibility = Visibility::Tenant(caller.tenant_id()?);
    let before = find(&api, visibility, &name).await?;
    api.engine.change_job(visibility, before.id, next, caller.by()).await?;
    let job = find(&api, visibility, &name).await?;
    if job.state != next {
        let detail = format!("the replay is {} and has ended; begin another", job.state.word());
        return Err(Problem::new(Code::ReplayEnded, detail));
    }
    Ok(json(StatusCode::OK, &ReplayView::of(&api, job).await?))
}

words! { JobState { "running" Running, "paused" Paused, "done" Done, "cancelled" Cancelled } }

#[derive(Serialize, JsonSchema)]
struct DryRunView {
    dry_run: bool,
    /// How many are selected.
    total: CountView,
    /// How many would be replayed.
    replayed: u64,
    /// How many would be skipped.
    skipped: u64,
    /// How many would be skipped for each reason.
    skips: SkipsView,
}

impl DryRunView {
    fn of(survey: &Survey) -> Self {
        Self {
            dry_run: true,
            total: CountView::of(survey.total),
            replayed: survey.replayed,
            skipped: survey.skipped.total(),
            skips: SkipsView::of(survey.skipped),
        }
    }
}

/// How many were skipped, by reason.
#[derive(Serialize)]
struct SkipsView(BTreeMap<&'static str, u64>);

inline_schema!(SkipsView, {
    "type": "object",
    "properties": SKIPS.map(|(why, says)| {
        let count = json_schema!({ "type": ["integer", "null"], "minimum": 0, "description": says });
        (why.to_owned(), count)
    }).into_iter().collect::<BTreeMap<_, _>>(),
});

/// The reasons to skip a delivery.
const SKIPS: [(&str, &str); 9] = [
    ("payload_gone", "The payload is no longer stored."),
    ("endpoint_gone", "The endpoint is gone or deleted."),
    ("replayed_before", "The delivery was replayed before."),
    ("purged", "The dead letter was purged."),
    ("quarantined", "Quarantined; replayed only if the cause token_rejected is selected."),
    ("not_ended", "The delivery waits or is being sent."),
    ("delivered", "The delivery was delivered."),
    ("cancelled", "The delivery or its message was cancelled."),
    ("not_found", "The delivery is no longer stored."),
];

impl SkipsView {
    fn of(skips: Skips) -> Self {
        Self(skips.each().map(|(why, count)| (why.code(), count)).collect())
    }
}

/// What is left of a replay.
#[derive(Serialize, JsonSchema)]
struct ForecastView {
    /// How many are still to be looked at.
    left: CountView,
    /// When it will be done at per_second, or at its speed so far; null while it is paused.
    done_at: Option<ApiTime>,
}

#[derive(Serialize, JsonSchema)]
struct CountView {
    count: u64,
    /// true: exactly as many; false: at least as many.
    exact: bool,
}

impl CountView {
    fn of(count: BoundedCount) -> Self {
        match count {
            BoundedCount::Exactly(count) => Self { count, exact: true },
            BoundedCount::AtLeast(count) => Self { count, exact: false },
        }
    }
}

/// The selection of a replay, as its request had it.
#[derive(Default, Serialize, JsonSchema)]
struct SelectionView {
    /// The number of deliveries that the request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<u64>,
    /// The endpoint's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_for: Option<String>,
    /// The endpoint's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[schemars(with = "Option<EndStates>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'static str>,
    /// With missing_for, no earlier than the oldest message that is still stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<ApiTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<ApiTime>,
}

impl SelectionView {
    fn of(job: &DeliveryJob, endpoint: Option<String>) -> Self {
        let found = |filter: &DeadLetterFilter, state| Self {
            endpoint: endpoint.clone(),
            state: Some(state),
            cause: filter.cause.map(Cause::code),
            event_type: filter.event_type.clone(),
            tier: filter.tier.map(Tier::name),
            since: filter.since.map(ApiTime),
            until: filter.until.map(ApiTime),
            ..Self::default()
        };
        match &job.kind {
            JobKind::ReplayFound { filter, .. } => found(filter, vec!["dead"]),
            JobKind::ReplayEnded { filter, dead: true } => found(filter, vec!["dead", "expired"]),
            JobKind::ReplayEnded { filter, dead: false } => found(filter, vec!["expired"]),
            JobKind::ReplayMissing(missing) => Self {
                missing_for: endpoint,
                since: missing.since.map(ApiTime),
                until: missing.until.map(ApiTime),
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

#[derive(Serialize, JsonSchema)]
struct ReplayView {
    id: String,
    /// The id of the tenant that owns it; null once that is erased.
    tenant: Option<String>,
    state: ApiWord<JobState>,
    created_at: ApiTime,
    /// The selection that was requested.
    select: SelectionView,
    /// The note of the request.
    reason: Option<String>,
    /// How many the selection had when the replay was created.
    total: Option<CountView>,
    /// The number of deliveries created so far.
    replayed: u64,
    /// The number skipped so far.
    skipped: u64,
    /// The number skipped for each reason.
    skips: SkipsView,
    per_second: Option<u32>,
    /// null once the replay has ended.
    forecast: Option<ForecastView>,
}

impl ReplayView {
    async fn of<S: Store, C: Clock>(api: &Api<S, C>, job: DeliveryJob) -> Result<Self> {
        let public_id = api.engine.public_id(IdKind::Replay, job.id.0, job.at);
        let tenant = api.engine.tenant_public_id(job.tenant).await?;
        let endpoint = api.engine.endpoint_of(&job).await?;
        Ok(Self::at(api.engine.now(), MadeReplay { public_id, tenant, endpoint, job }))
    }

    fn at(now: Timestamp, MadeReplay { public_id: id, tenant, endpoint, job }: MadeReplay) -> Self {
        let goes_on = matches!(job.state, JobState::Running | JobState::Paused);
        let forecast = |left| ForecastView { left: CountView::of(left), done_at: job.done_at(now).map(ApiTime) };
        Self {
            id,
            tenant,
            state: ApiWord(job.state),
            created_at: ApiTime(job.at),
            select: SelectionView::of(&job, endpoint),
            total: job.total.map(CountView::of),
            replayed: job.made,
            skipped: job.skipped.total(),
            skips: SkipsView::of(job.skipped),
            per_second: job.per_second,
            forecast: job.left().filter(|_| goes_on).map(forecast),
            reason: job.reason,
        }
    }
}

/// Parses a request: the replay, and whether it is a dry run.
async fn parse<S: Store, C: Clock>(api: &Api<S, C>, tenant: TenantId, body: &[u8]) -> Result<(AskedReplay, bool)> {
    let mut fields = BodyObject::read(body)?;
    let NewReplayBody { select, dry_run, per_second, reason } = NewReplayBody::read(&mut fields);
    let what = match select {
        Some(select) => selected(api, tenant, &mut fields, select).await?,
        None => ReplayWhat::Found(DeadLetterFilter::of(tenant)),
    };
    fields.finish()?;
    Ok((AskedReplay { tenant, what, per_second, reason }, dry_run.unwrap_or(false)))
}

/// Checks the selection: named deliveries, the messages that an endpoint is missing, or a filter.
async fn selected<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: TenantId,
    fields: &mut BodyObject<'_>,
    select: SelectionBody,
) -> Result<ReplayWhat> {
    let listed = fields.check("select/deliveries", select.deliveries, |named| deliveries(api, &named));
    let missing_for = endpoint(api, tenant, fields, "select/missing_for", select.missing_for).await?;
    let filter = DeadLetterFilter {
        endpoint: endpoint(api, tenant, fields, "select/endpoint", select.endpoint).await?,
        cause: select.cause,
        event_type: select.event_type,
        tier: select.tier,
        since: select.since,
        until: select.until,
        ..DeadLetterFilter::of(tenant)
    };
    let ends = select.state;
    if let Some(listed) = listed {
        // Another tenant's deliveries are answered like unknown ones.
        let owned = api.engine.owned(tenant, &listed).await?;
        if let Some(index) = owned.iter().position(|owned| !owned) {
            fields.complain("select/deliveries", format!("entry {index} is not the id of a delivery"));
        }
        if filter != DeadLetterFilter::of(tenant) || missing_for.is_some() || ends.is_some() {
            let detail = "cannot be combined with a filter; name deliveries or filter them";
            fields.complain("select/deliveries", detail.to_owned());
        }
        return Ok(ReplayWhat::Listed(listed));
    }
    if let Some(endpoint) = missing_for {
        let DeadLetterFilter { since, until, .. } = filter;
        if (DeadLetterFilter { since, until, ..DeadLetterFilter::of(tenant) }) != filter || ends.is_some() {
            fields.complain("select/missing_for", "can be combined with since and until only".to_owned());
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
    fields: &mut BodyObject<'_>,
    name: &'static str,
    named: Option<String>,
) -> Result<Option<EndpointId>> {
    let Some(named) = named else { return Ok(None) };
    match api.endpoint_named(Visibility::Tenant(tenant), &named).await {
        Ok(endpoint) => Ok(Some(endpoint)),
        Err(problem) if problem.code() == Code::NotFound => {
            fields.complain(name, "is not the id or uid of an endpoint".to_owned());
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

fn deliveries<S: Store, C: Clock>(api: &Api<S, C>, named: &[String]) -> Result<Vec<DeliveryId>, String> {
    let id = |(index, text): (usize, &String)| {
        let opened = api.engine.opened(IdKind::Delivery, text).map(|(key, _)| DeliveryId(key));
        opened.ok_or_else(|| format!("entry {index} is not the id of a delivery"))
    };
    named.iter().enumerate().map(id).collect()
}
