//! Tenants, for operators. A tenant key sees its own tenant, and can change its policy, time zone and off-peak window.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::off_peak::{OffPeak, Offsets};
use posthaste_core::{TenantId, Timestamp};
use posthaste_engine::accept::IdempotencyRequest;
use posthaste_engine::rules::Rules;
use posthaste_engine::tenants::{Hours, MadeTenant, NotFiled, Quota, Tenant, TenantTerms, WEIGHTS};
use posthaste_engine::zone;
use posthaste_store::{ErasureTarget, FirstAnswer, OPERATOR, Retention};
use serde_json::value::RawValue;

use super::caller::{MANAGE_OWN, OPERATE, READ_OWN, find_tenant};
use super::erasure;
use super::erasure::ErasedView;
use super::idempotency::{first_answer, keyed_body, made};
use super::prelude::*;
use crate::body_fields::ParseValue;
use crate::duration;
use crate::value::{ApiDuration, Bounded, ChosenName, TokenCount, Uid};

/// Planned fields of a tenant that this version does not support.
const NOT_BUILT: &[&str] = &["sla", "operational_endpoint"];

/// Fields that only an operator can change.
const AGREED: &[&str] = &["uid", "weight", "quota", "region", "retention"];

/// How often a change is tried that met a concurrent change of the same tenant.
const TRIES: u32 = 5;

/// The retention that a tenant may have; the server's settings have the same bounds.
const KEPT: RangeInclusive<Duration> = Duration::from_secs(60 * 60)..=Duration::from_secs(3_650 * 24 * 60 * 60);

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/tenants", "Creates a tenant")
        .scope("operate")
        .optional_body::<TenantBody>()
        .keyed()
        .returns::<TenantView>(201, "The tenant."),
    Operation::get("/v1/tenants", "Lists tenants")
        .scope("operate")
        .list(&[UID])
        .returns::<ListPage<TenantView>>(200, "A page of tenants."),
    Operation::get("/v1/tenants/{t}", "Shows a tenant")
        .scope("operate")
        .or_own("read")
        .returns::<TenantView>(200, "The tenant."),
    Operation::new(
        "PATCH",
        "/v1/tenants/{t}",
        "Changes a tenant; fields that are left out keep their value. A tenant key can change policy, time_zone and \
         off_peak",
    )
    .or_own("manage")
    .conflicts()
    .scope("operate")
    .optional_body::<TenantBody>()
    .returns::<TenantView>(200, "The changed tenant."),
    Operation::new("DELETE", "/v1/tenants/{t}", "Erases a tenant with all its data")
        .scope("operate")
        .returns::<ErasedView>(200, "The tenant's data can no longer be read."),
];

const UID: Parameter = parameter::<String>("uid", "only the tenant with this uid");

pub async fn make<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<OPERATE>, request: Request) -> Answer {
    let (body, key) = keyed_body(OPERATOR, request).await?;
    let rules = api.engine.rules(OPERATOR).await?;
    let (uid, terms) = parse(&body, &rules, api.engine.retention(), None, TenantTerms::default())?;
    let once = key.map(|(key, digest)| IdempotencyRequest { key, digest, answer });
    Ok(made(api.engine.make_tenant(uid, terms, once, caller.by()).await?, answer))
}

fn answer(made: &MadeTenant) -> FirstAnswer {
    first_answer(StatusCode::CREATED, &TenantView::of(made.public_id.clone(), &made.tenant))
}

pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<OPERATE>, uri: Uri) -> Answer {
    let query = ListQuery::of(&uri, &[UID])?;
    if let Visibility::Tenant(named) = caller.asks_for() {
        let one = api.engine.tenant(named).await?;
        let one = one.filter(|one| query.filter("uid").is_none_or(|uid| one.uid.as_deref() == Some(uid)));
        return Ok(page(&uri, one.iter().map(|one| shown(&api, one)).collect(), None));
    }
    if let Some(uid) = query.filter("uid") {
        let found = api.engine.tenant_named(uid).await?;
        let shown = found.map(|tenant| shown(&api, &tenant));
        return Ok(page(&uri, shown.into_iter().collect(), None));
    }
    let list = query.list(&api, Visibility::All, &"tenants");
    let after = query.behind(&api, list)?.map(TenantId);
    let mut found = api.engine.tenants(query.order, after, query.limit + 1).await?;
    let next = query.cut(&mut found).map(|last| api.engine.cursor_behind(list, last.id.0));
    Ok(page(&uri, found.iter().map(|tenant| shown(&api, tenant)).collect(), next))
}

pub async fn show<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, READ_OWN>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let tenant = find_visible(&api, &caller, &name).await?;
    Ok(json(StatusCode::OK, &shown(&api, &tenant)))
}

pub async fn change<S: Store, C: Clock>(
    ByName { api, caller, name }: ByName<S, C, MANAGE_OWN>,
    body: JsonBody,
) -> Answer {
    let mut tries = 0;
    loop {
        let before = find_visible(&api, &caller, &name).await?;
        if !caller.is_operator() {
            only_its_own(&body.0)?;
        }
        let rules = api.engine.rules(before.id).await?;
        let (uid, terms) = parse(&body.0, &rules, api.engine.retention(), before.uid.clone(), before.terms.clone())?;
        let tenant = Tenant { uid, terms, ..(*before).clone() };
        tries += 1;
        match api.engine.change_tenant(&before, &tenant, caller.by()).await {
            Err(NotFiled::Stale) if tries < TRIES => {}
            changed => return changed.map(|()| json(StatusCode::OK, &shown(&api, &tenant))).map_err(Problem::from),
        }
    }
}

/// `DELETE /v1/tenants/{t}`: erases the tenant with all its data. After the answer its API keys are refused.
pub async fn erase<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, OPERATE>, _: EmptyBody) -> Answer {
    let tenant = find_visible(&api, &caller, &name).await?;
    erasure::erase(&api, tenant.id, ErasureTarget::Tenant, caller.by()).await
}

/// Finds a tenant by its id or uid, if the request may be about it.
async fn find_visible<S: Store, C: Clock, const SCOPE: u8>(
    api: &Api<S, C>,
    caller: &Caller<SCOPE>,
    named: &str,
) -> Result<Arc<Tenant>> {
    let tenant = found(api, named).await?;
    if caller.asks_for().sees(tenant.id) { Ok(tenant) } else { Err(Problem::no_such("tenant")) }
}

fn only_its_own(body: &[u8]) -> Result<()> {
    let fields = BodyObject::read_optional(body)?;
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

pub(super) async fn found<S: Store, C: Clock>(api: &Api<S, C>, named: &str) -> Result<Arc<Tenant>> {
    find_tenant(api, named).await?.ok_or_else(|| Problem::no_such("tenant"))
}

fn shown<S: Store, C: Clock>(api: &Api<S, C>, tenant: &Tenant) -> TenantView {
    TenantView::of(api.engine.public_id(IdKind::Tenant, tenant.id.0, tenant.at), tenant)
}

#[derive(Serialize, JsonSchema)]
struct TenantView {
    id: String,
    uid: Option<String>,
    weight: f64,
    quota: Option<QuotaView>,
    policy: Option<String>,
    time_zone: Option<String>,
    off_peak: Option<OffPeakView>,
    region: Option<String>,
    /// null: the server's settings apply.
    retention: Option<RetentionView>,
    created_at: ApiTime,
}

#[derive(Serialize, JsonSchema)]
struct RetentionView {
    payload: Option<ApiDuration>,
    history: Option<ApiDuration>,
}

#[derive(Serialize, JsonSchema)]
struct QuotaView {
    per_second: Option<u32>,
    burst: Option<u32>,
    pending: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct OffPeakView {
    /// A time of day, such as 20:00.
    from: String,
    /// A time of day; earlier than `from` means on the next day.
    to: String,
}

impl TenantView {
    fn of(id: String, tenant: &Tenant) -> Self {
        let TenantTerms { weight, quota, pending_max, policy, time_zone, off_peak, region, payload_kept, history_kept } =
            tenant.terms.clone();
        let quota = (quota.is_some() || pending_max.is_some()).then_some(QuotaView {
            per_second: quota.map(|quota| quota.per_second),
            burst: quota.map(|quota| quota.burst),
            pending: pending_max,
        });
        let hours = |Hours { from, to }| OffPeakView { from: write_minute(from), to: write_minute(to) };
        let off_peak = off_peak.map(hours);
        let retention = (payload_kept.is_some() || history_kept.is_some())
            .then(|| RetentionView { payload: payload_kept.map(ApiDuration), history: history_kept.map(ApiDuration) });
        let created_at = ApiTime(tenant.at);
        Self { id, uid: tenant.uid.clone(), weight, quota, policy, time_zone, off_peak, region, retention, created_at }
    }
}

kinds! {
    Weight: f64 = |raw| match f64::parse(raw)? {
        weight if WEIGHTS.contains(&weight) => Ok(weight),
        _ => Err(format!("must be {} to {}", WEIGHTS.start(), WEIGHTS.end())),
    }, as f64;
    /// How long data is kept.
    KeptFor: Duration = |raw| match ApiDuration::parse(raw)? {
        kept if KEPT.contains(&kept) => Ok(kept),
        _ => Err(format!("must be {} to {}", duration::write(*KEPT.start()), duration::write(*KEPT.end()))),
    }, as ApiDuration;
    TimeZone: String = |raw| {
        let name = String::parse(raw)?;
        let now = Timestamp::default();
        zone::offsets(&name, now, now).map(|_| name).map_err(|unknown| unknown.to_string())
    }, as String;
    /// A time of day such as `20:00`, in minutes since midnight.
    Minute: u16 = minute, as String;
}

body! {
    struct TenantBody as "NewTenant" {
        /// Your name for it, accepted in place of its id.
        uid: optional Uid,
        /// Its share of sending capacity relative to other tenants: 2 gets twice that of 1.
        weight: optional Weight,
        /// Limits on the messages it sends.
        quota: change QuotaBody,
        /// The retry policy of its endpoints that name none; webhook by default.
        policy: change String,
        /// The time zone of its off-peak window, such as Europe/Berlin; UTC by default.
        time_zone: change TimeZone,
        /// When engagement messages may be sent; at any time by default.
        off_peak: change OffPeakBody,
        /// Where its data belongs; stored and shown, without effect.
        region: change ChosenName,
        /// How long its messages and deliveries are kept; the server's settings by default.
        retention: change RetentionBody,
    }

    struct QuotaBody as "NewQuota" {
        /// The average number of messages accepted in a second.
        per_second: optional TokenCount,
        /// The most messages accepted at once; per_second by default.
        burst: optional TokenCount,
        /// The most pending deliveries; messages are refused while there are as many.
        pending: optional Bounded<u64, 1, 1_000_000_000_000>,
    }

    struct OffPeakBody as "NewOffPeak" {
        /// A time of day, such as 20:00.
        from: required Minute,
        /// A time of day; earlier than `from` means on the next day.
        to: required Minute,
    }

    struct RetentionBody as "NewRetention" {
        /// How long a message and its payload are kept after accept; 1h to 3650d, no longer than history.
        payload: optional KeptFor,
        /// How long an ended delivery is kept with its attempts and its dead letter; a delivery that is pending for as
        /// long is given up. 1h to 3650d, no longer than the audit trail is kept.
        history: optional KeptFor,
    }
}

fn parse(
    body: &[u8],
    rules: &Rules,
    default_retention: Retention,
    uid: Option<String>,
    mut terms: TenantTerms,
) -> Result<(Option<String>, TenantTerms)> {
    let mut fields = BodyObject::read_optional(body)?;
    let body = TenantBody::read(&mut fields);
    terms.weight = body.weight.unwrap_or(terms.weight);
    if let Some(quota) = body.quota {
        (terms.quota, terms.pending_max) = quota.map_or((None, None), |quota| check_quota(&mut fields, &quota));
    }
    if let Some(policy) = body.policy {
        let known = |name: String| rules.policy(&name).map(|_| name).map_err(|unknown| unknown.to_string());
        terms.policy = fields.check("policy", policy, known);
    }
    if let Some(off_peak) = body.off_peak {
        terms.off_peak = off_peak.and_then(|window| check_off_peak(&mut fields, &window));
    }
    if let Some(retention) = body.retention {
        (terms.payload_kept, terms.history_kept) =
            retention.map_or((None, None), |retention| check_retention(&mut fields, retention, default_retention));
    }
    terms.time_zone = body.time_zone.unwrap_or(terms.time_zone);
    terms.region = body.region.unwrap_or(terms.region);
    fields.not_built(NOT_BUILT);
    fields.finish()?;
    Ok((body.uid.or(uid), terms))
}

fn check_quota(fields: &mut BodyObject<'_>, quota: &QuotaBody) -> (Option<Quota>, Option<u64>) {
    if quota.per_second.is_none() && quota.burst.is_some() {
        fields.complain("quota/per_second", "is needed with burst".to_owned());
    }
    let rate = quota.per_second.map(|per_second| Quota { per_second, burst: quota.burst.unwrap_or(per_second) });
    (rate, quota.pending)
}

/// How long payloads and delivery history are kept. A field that is left out is checked as the server's default.
fn check_retention(
    fields: &mut BodyObject<'_>,
    RetentionBody { payload, history }: RetentionBody,
    default: Retention,
) -> (Option<Duration>, Option<Duration>) {
    let (payload_kept, history_kept) = (payload.unwrap_or(default.payload), history.unwrap_or(default.history));
    if (payload.is_some() || history.is_some()) && payload_kept > history_kept {
        let [payload_kept, history_kept] = [payload_kept, history_kept].map(duration::write);
        let field = if payload.is_some() { "retention/payload" } else { "retention/history" };
        fields.complain(field, format!("payload ({payload_kept}) must not be longer than history ({history_kept})"));
    }
    if history.is_some_and(|history| history > default.journal) {
        let journal = duration::write(default.journal);
        fields.complain("retention/history", format!("must be at most {journal}, as long as the audit trail is kept"));
    }
    (payload, history)
}

fn check_off_peak(fields: &mut BodyObject<'_>, window: &OffPeakBody) -> Option<Hours> {
    let (from, to) = window.from.zip(window.to)?;
    if let Err(bad) = OffPeak::new(from, to, Arc::new(Offsets::fixed(0).expect("UTC is a clock"))) {
        fields.complain("off_peak/to", bad.to_string());
    }
    Some(Hours { from, to })
}

/// Parses a time of day such as `20:00` into minutes since midnight.
fn minute(raw: &RawValue) -> Result<u16, String> {
    let written = String::parse(raw)?;
    let number = |digits: &str, most: u16| {
        let is_two = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|number| is_two && *number <= most)
    };
    let read = written.split_once(':').and_then(|(hour, minute)| Some(number(hour, 23)? * 60 + number(minute, 59)?));
    read.ok_or_else(|| "must be a time of the day from \"00:00\" to \"23:59\"".to_owned())
}

fn write_minute(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}
