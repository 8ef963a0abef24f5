//! Pauses all deliveries, or those of one tenant or to one origin; lists pauses; and ends them.

use posthaste_core::Timestamp;
use posthaste_store::{EndpointStatus, ListOrder, Pause, PauseScope};

use super::caller::{OPERATE, find_tenant};
use super::list::{CURSOR, LIMIT};
use super::prelude::*;

/// The scope of a pause, as a request names it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    Tenant,
    Origin,
}

words! { Scope { "all" All, "tenant" Tenant, "origin" Origin } }

/// The most pauses that a request of one tenant's list reads.
const LOOKED_MAX: usize = 5_000;

/// The longest reason: it is stored, and shown with every delivery that the pause holds.
const REASON_CHARS_MAX: usize = 500;

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/pause", "Lists pauses, the widest scope first")
        .scope("operate")
        .query(&[LIMIT, CURSOR])
        .returns::<ListPage<PauseView>>(200, "A page of pauses."),
    Operation::post(
        "/v1/pause",
        "Pauses all deliveries, or those of one tenant or to one origin: after the answer none of them is sent",
    )
    .scope("operate")
    .body::<PauseBody>()
    .returns::<PauseChangeView>(200, "The pause is in force."),
    Operation::post("/v1/resume", "Ends a pause; 409 if there is no such pause")
        .scope("operate")
        .conflicts()
        .body::<ResumeBody>()
        .returns::<PauseChangeView>(200, "The pause has ended."),
];

body! {
    struct TargetBody as "PauseTarget" {
        /// What to pause or resume.
        scope: required ApiWord<Scope>,
        /// For scope tenant: the tenant's id or uid; for scope origin: scheme, host and port, such as
        /// https://example.com.
        id: optional String,
    }

    struct PauseBody as "NewPause" {
        target: all TargetBody,
        /// When the pause ends by itself; never by default.
        until: optional ApiTime,
        /// A note that is shown with waiting deliveries; one line of at most 500 characters.
        reason: optional Reason,
    }

    struct ResumeBody as "Resume" {
        target: all TargetBody,
        /// A note; checked, but not stored.
        reason: optional Reason,
    }
}

kinds! {
    /// An operator's reason for a change.
    pub(super) Reason: String = |raw| {
        let text = String::parse(raw)?;
        let fits = text.chars().count() <= REASON_CHARS_MAX && !text.contains(char::is_control);
        if fits { Ok(text) } else { Err(format!("must be one line of at most {REASON_CHARS_MAX} characters")) }
    }, as String;
}

/// `POST /v1/pause`. After the answer nothing within the scope is sent.
pub async fn pause<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<OPERATE>, body: JsonBody) -> Answer {
    let mut fields = BodyObject::read(&body.0)?;
    let PauseBody { target, until, reason } = PauseBody::read(&mut fields);
    let until = check_until(&mut fields, until, api.engine.now());
    let target = find_target(&api, caller.asks_for(), target, fields).await?;
    let origin = target.id.clone().filter(|_| matches!(target.scope, PauseScope::Origin(_)));
    let pause = Pause { origin, reason, by: caller.by(), ..Pause::new(target.scope, until) };
    api.engine.pause(pause.clone()).await?;
    let Pause { scope, until, reason, .. } = pause;
    let (until, audit_id) = (until.map(ApiTime), audit_id(scope));
    tracing::info!(scope = word(scope), id = audit_id.as_ref().or(target.id.as_ref()), "paused deliveries");
    Ok(json(
        StatusCode::OK,
        &PauseChangeView { scope: word(scope), id: target.id, audit_id, paused: true, until, reason },
    ))
}

pub async fn resume<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<OPERATE>, body: JsonBody) -> Answer {
    let mut fields = BodyObject::read(&body.0)?;
    let ResumeBody { target, reason: _checked } = ResumeBody::read(&mut fields);
    let PauseTarget { scope, id } = find_target(&api, caller.asks_for(), target, fields).await?;
    let scope_word = word(scope);
    if !api.engine.resume(scope, caller.by()).await? {
        let what = id.as_deref().map_or("everything".to_owned(), |id| format!("the {scope_word} {id}"));
        let detail = format!("{what} is not paused; GET /v1/pause shows what is");
        return Err(Problem::new(Code::NotPaused, detail));
    }
    let audit_id = audit_id(scope);
    tracing::info!(scope = scope_word, id = audit_id.as_ref().or(id.as_ref()), "resumed deliveries");
    Ok(json(
        StatusCode::OK,
        &PauseChangeView { scope: scope_word, id, audit_id, paused: false, until: None, reason: None },
    ))
}

/// `GET /v1/pause`: the pauses, the widest scope first. With `Posthaste-Tenant`, without those of other tenants.
pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<OPERATE>, uri: Uri) -> Answer {
    let query = ListQuery::of(&uri, &[])?;
    if query.order == ListOrder::OldestFirst {
        return Err(Problem::new(Code::InvalidParameter, "pauses come the widest first; leave order out"));
    }
    let visibility = caller.asks_for();
    let list = api.engine.list_id(visibility, "pauses");
    let mut passed = query.place(&api, list)?.map_or(0, |(_, passed)| passed);
    let limit = query.limit as usize;
    let from = usize::try_from(passed).unwrap_or(usize::MAX);
    // One more than a page reads: it shows whether there is a next page.
    let most = if visibility == Visibility::All { limit } else { LOOKED_MAX };
    let pauses = api.engine.pauses(from, most + 1).await?;
    let (mut data, mut more) = (Vec::new(), pauses.len() > most);
    for pause in pauses.iter().take(most) {
        if data.len() == limit {
            more = true;
            break;
        }
        passed += 1;
        if is_visible(&api, visibility, pause.scope).await? {
            data.push(PauseView::of(&api, pause).await?);
        }
    }
    let next = more.then(|| api.engine.cursor(list, Timestamp::default(), passed)).flatten();
    Ok(page(&uri, data, next))
}

/// Whether a pause can hold deliveries of the tenants in `visibility`.
async fn is_visible<S: Store, C: Clock>(api: &Api<S, C>, visibility: Visibility, scope: PauseScope) -> Result<bool> {
    Ok(match scope {
        PauseScope::All | PauseScope::Origin(_) => true,
        PauseScope::Tenant(tenant) => visibility.sees(tenant),
        PauseScope::Lane(lane) => {
            let endpoint = api.engine.endpoint_of_lane(lane).await?;
            visibility == Visibility::All || endpoint.is_some_and(|endpoint| visibility.sees(endpoint.tenant))
        }
    })
}

pub(super) fn check_until(fields: &mut BodyObject<'_>, until: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    fields.check("until", until, |until| match until {
        past if past <= now => Err("must be in the future; leave it out to pause until you end it".to_owned()),
        until => Ok(until),
    })
}

/// Describes a pause and how to end it, for the deliveries that it holds.
pub(super) fn detail(pause: &Pause) -> String {
    let (what, ended_by) = match &pause.scope {
        PauseScope::All => ("everything is paused", "POST /v1/resume with the scope all ends the pause"),
        PauseScope::Tenant(_) => ("its tenant is paused", "POST /v1/resume with the scope tenant ends the pause"),
        PauseScope::Origin(_) => ("its origin is paused", "POST /v1/resume with the scope origin ends the pause"),
        PauseScope::Lane(_) => (
            "its endpoint is paused, by request or by a dead delivery of a strict order",
            "POST /v1/endpoints/{id}/enable ends the pause",
        ),
    };
    match &pause.reason {
        Some(reason) => format!("{what} ({reason}); {ended_by}"),
        None => format!("{what}; {ended_by}"),
    }
}

#[derive(Serialize, JsonSchema)]
struct PauseChangeView {
    scope: &'static str,
    /// The tenant's id, or the origin.
    id: Option<String>,
    /// The origin's id in the audit trail and in the list of breakers.
    audit_id: Option<String>,
    paused: bool,
    /// When the pause ends by itself; null if it does not.
    until: Option<ApiTime>,
    /// The reason given when it was paused.
    reason: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct PauseView {
    /// What is paused.
    #[schemars(extend("enum" = ["all", "tenant", "origin", "endpoint"]))]
    scope: &'static str,
    /// The tenant's or endpoint's id, or the origin.
    id: Option<String>,
    /// The origin's id in the audit trail and in the list of breakers.
    audit_id: Option<String>,
    /// When the pause ends by itself; null if it does not.
    until: Option<ApiTime>,
    /// The reason given when it was paused.
    reason: Option<String>,
    /// The id of the API key it was paused with.
    by: Option<String>,
}

impl PauseView {
    async fn of<S: Store, C: Clock>(api: &Api<S, C>, pause: &Pause) -> Result<Self> {
        let id = match pause.scope {
            PauseScope::All => None,
            PauseScope::Tenant(tenant) => api.engine.tenant_public_id(tenant).await?,
            PauseScope::Origin(_) => pause.origin.clone(),
            PauseScope::Lane(lane) => {
                let known = api.engine.endpoint_of_lane(lane).await?;
                let known = known.filter(|known| known.status != EndpointStatus::Deleted);
                known.map(|known| api.engine.public_id(IdKind::Endpoint, known.id.0, known.at))
            }
        };
        Ok(Self {
            scope: word(pause.scope),
            id,
            audit_id: audit_id(pause.scope),
            until: pause.until.map(ApiTime),
            reason: pause.reason.clone(),
            by: pause.by.map(|by| api.engine.public_id(IdKind::Key, by.key, by.made)),
        })
    }
}

/// The id of an origin in the audit trail and the log, which is that of its breaker. Neither has hosts.
fn audit_id(scope: PauseScope) -> Option<String> {
    match scope {
        PauseScope::Origin(origin) => Some(super::breakers::origin_id(origin)),
        PauseScope::All | PauseScope::Tenant(_) | PauseScope::Lane(_) => None,
    }
}

/// The scope that a request names, with the public id of a tenant or the normal form of an origin.
struct PauseTarget {
    scope: PauseScope,
    id: Option<String>,
}

/// Finds what a body names, of which `fields` are read. A request with `Posthaste-Tenant` can name only
/// that tenant.
async fn find_target<S: Store, C: Clock>(
    api: &Api<S, C>,
    visibility: Visibility,
    TargetBody { scope, id }: TargetBody,
    mut fields: BodyObject<'_>,
) -> Result<PauseTarget> {
    let mut tenant = None;
    let mut origin = None;
    match (scope, &id) {
        (Some(Scope::Tenant), None) => fields.complain("id", "is needed: the tenant's id or uid".to_owned()),
        (Some(Scope::Tenant), Some(named)) => {
            tenant = find_tenant(api, named).await?;
            match &tenant {
                None => fields.complain("id", "there is no such tenant".to_owned()),
                Some(tenant) if !visibility.sees(tenant.id) => {
                    fields
                        .complain("id", "is not the tenant that Posthaste-Tenant names; name it there too".to_owned());
                }
                Some(_) => {}
            }
        }
        (Some(Scope::Origin), named) => {
            origin = named.as_deref().and_then(|named| api.engine.origin(named));
            if origin.is_none() {
                fields.complain("id", "must be an origin such as https://example.com:443, without a path".to_owned());
            }
        }
        (Some(Scope::All), Some(_)) => {
            fields.complain("id", "cannot be combined with the scope \"all\"; leave it out".to_owned());
        }
        (Some(Scope::All) | None, _) => {}
    }
    if visibility != Visibility::All && matches!(scope, Some(Scope::All | Scope::Origin)) {
        let detail = "concerns all tenants, but Posthaste-Tenant names one; leave that header out, or send \
                      {\"scope\": \"tenant\", \"id\": …}";
        fields.complain("scope", detail.to_owned());
    }
    fields.finish()?;
    Ok(match (tenant, origin) {
        (Some(tenant), _) => {
            let id = api.engine.public_id(IdKind::Tenant, tenant.id.0, tenant.at);
            PauseTarget { scope: PauseScope::Tenant(tenant.id), id: Some(id) }
        }
        (None, Some((id, origin))) => PauseTarget { scope: PauseScope::Origin(origin), id: Some(id) },
        (None, None) => PauseTarget { scope: PauseScope::All, id: None },
    })
}

fn word(scope: PauseScope) -> &'static str {
    match scope {
        PauseScope::All => "all",
        PauseScope::Tenant(_) => "tenant",
        PauseScope::Origin(_) => "origin",
        PauseScope::Lane(_) => "endpoint",
    }
}
