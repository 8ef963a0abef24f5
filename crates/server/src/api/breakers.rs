//! Breakers: lists those that are not closed, and resets one. For operators alone: a breaker may hold endpoints of
//! several tenants.

use posthaste_core::flow::SharedGate;
use posthaste_core::flow::breaker::BreakerState;
use posthaste_core::scheduler::{BreakerOf, BreakerShown, Reset};
use posthaste_core::{LaneId, OriginId, TenantId};
use posthaste_store::EndpointStatus;

use super::caller::OPERATE;
use super::prelude::*;
use super::switch::Reason;

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/breakers", "Lists the breakers that are not closed")
        .scope("operate")
        .returns::<ListPage<BreakerView>>(
            200,
            "All breakers that are not closed; with Posthaste-Tenant, those that hold deliveries of that tenant.",
        ),
    Operation::post("/v1/breakers/{id}/reset", "Resets a breaker: it sends a probe next, or closes at once")
        .scope("operate")
        .optional_body::<ResetBody>()
        .returns::<ResetBreakerView>(200, "The breaker is reset."),
];

body! {
    struct ResetBody as "BreakerReset" {
        /// true: close it at once, without a probe.
        force: optional bool,
        /// A note; checked, but not stored.
        reason: optional Reason,
    }
}

/// `GET /v1/breakers`: those that are not closed, breakers of endpoints first. With `Posthaste-Tenant`, those of its
/// endpoints and those that its endpoints share.
pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<OPERATE>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let mut data = Vec::new();
    for breaker in api.engine.breakers().await? {
        let lanes = lanes(&api, breaker.of).await?;
        if !is_visible(caller.asks_for(), &lanes) {
            continue;
        }
        // A shared breaker belongs to no tenant.
        let owner = lanes.first().filter(|_| matches!(breaker.of, BreakerOf::Lane(_))).map(|(_, owner)| *owner);
        let (id, tenant) = (id(&api, breaker.of).await?, api.tenant_public_id(owner).await?);
        let origin = origin(&api, breaker.of, &lanes).await?;
        data.push(BreakerView { id, tenant, origin, ..BreakerView::of(&breaker) });
    }
    Ok(page(&uri, data, None))
}

/// The lanes that a breaker holds, with their tenants: its endpoint's, or of those that share it the ones with waiting
/// deliveries.
async fn lanes<S: Store, C: Clock>(api: &Api<S, C>, of: BreakerOf) -> Result<Vec<(LaneId, TenantId)>> {
    Ok(match of {
        BreakerOf::Lane(lane) => {
            let endpoint = api.engine.endpoint_of_lane(lane).await?;
            endpoint.into_iter().map(|endpoint| (lane, endpoint.tenant)).collect()
        }
        BreakerOf::Shared(gate) => api.engine.lanes_through(gate).await?,
    })
}

fn is_visible(visibility: Visibility, lanes: &[(LaneId, TenantId)]) -> bool {
    visibility == Visibility::All || lanes.iter().any(|(_, owner)| visibility.sees(*owner))
}

/// The scheme, host and port of a breaker of an endpoint or an origin.
async fn origin<S: Store, C: Clock>(
    api: &Api<S, C>,
    of: BreakerOf,
    lanes: &[(LaneId, TenantId)],
) -> Result<Option<String>> {
    let (BreakerOf::Lane(_) | BreakerOf::Shared(SharedGate::Origin(_)), Some((lane, _))) = (of, lanes.first()) else {
        return Ok(None);
    };
    let Some(endpoint) = api.engine.endpoint_of_lane(*lane).await? else { return Ok(None) };
    let known = api.engine.endpoint(Visibility::All, endpoint.id).await?;
    Ok(known.and_then(|known| Some(known.target.as_ref()?.origin().to_string())))
}

/// `POST /v1/breakers/{id}/reset`: the breaker sends a probe next; `{"force": true}` closes it at once.
pub async fn reset<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, OPERATE>, body: JsonBody) -> Answer {
    let ResetBody { force, reason: _checked } = BodyObject::parse(&body.0)?;
    let force = force.unwrap_or(false);
    let how = if force { Reset::Force } else { Reset::Probe };
    let visibility = caller.asks_for();
    let meant = meant(&api, caller.sees(), &name).await?;
    for BreakerShown { of, .. } in api.engine.breakers().await? {
        let id = id(&api, of).await?;
        if (id == name || Some(of) == meant)
            && is_visible(visibility, &lanes(&api, of).await?)
            && api.engine.reset_breaker(of, how, caller.by()).await?
        {
            tracing::info!(breaker = id, force, "reset a breaker");
            return Ok(json(StatusCode::OK, &ResetBreakerView { id, closed: force }));
        }
    }
    Err(Problem::no_such("open breaker"))
}

/// The breaker of an endpoint named by its id or uid; `None` for an id of any other breaker.
async fn meant<S: Store, C: Clock>(api: &Api<S, C>, visibility: Visibility, named: &str) -> Result<Option<BreakerOf>> {
    if ["origin_", "region_", "credential_", "lane_"].iter().any(|prefix| named.starts_with(prefix))
        || named == shared_id(SharedGate::Resolver)
    {
        return Ok(None);
    }
    match api.endpoint_meant(visibility, named).await {
        Ok(id) => Ok(api.engine.endpoint_once(visibility, id).await?.map(|endpoint| BreakerOf::Lane(endpoint.lane))),
        Err(problem) if problem.code() == Code::NotFound => Ok(None),
        Err(problem) => Err(problem),
    }
}

#[derive(Serialize, JsonSchema)]
struct ResetBreakerView {
    id: String,
    closed: bool,
}

/// The id of a breaker: its endpoint's id, or the id of the gate that lanes share.
async fn id<S: Store, C: Clock>(api: &Api<S, C>, of: BreakerOf) -> Result<String> {
    Ok(match of {
        BreakerOf::Lane(lane) => endpoint(api, lane).await?,
        BreakerOf::Shared(gate) => shared_id(gate),
    })
}

pub(super) fn shared_id(gate: SharedGate) -> String {
    match gate {
        SharedGate::Origin(origin) => origin_id(origin),
        SharedGate::Region(region) => format!("region_{:016x}", region.raw()),
        SharedGate::Credential(credential) => format!("credential_{:016x}", credential.raw()),
        SharedGate::Resolver => "resolver".to_owned(),
    }
}

/// The id of an origin, used where its host is not shown.
pub(super) fn origin_id(origin: OriginId) -> String {
    format!("origin_{:016x}", origin.raw())
}

async fn endpoint<S: Store, C: Clock>(api: &Api<S, C>, lane: LaneId) -> Result<String> {
    let known = api.engine.endpoint_of_lane(lane).await?.filter(|known| known.status != EndpointStatus::Deleted);
    let id = known.map(|known| api.engine.public_id(IdKind::Endpoint, known.id.0, known.at));
    Ok(id.unwrap_or_else(|| format!("lane_{:016x}", lane.raw())))
}

#[derive(Serialize, JsonSchema)]
struct BreakerView {
    /// An endpoint's id, or the number of a breaker that endpoints share.
    id: String,
    /// The id of the tenant that owns it; null once that is erased.
    tenant: Option<String>,
    /// What it watches.
    #[schemars(extend("enum" = ["endpoint", "origin", "region", "credential", "resolver"]))]
    of: &'static str,
    /// Of an endpoint or an origin: scheme, host and port; null while no waiting delivery is known.
    origin: Option<String>,
    /// open: nothing is sent; half_open: one probe at a time; closed: everything is sent.
    #[schemars(extend("enum" = ["closed", "open", "half_open"]))]
    state: &'static str,
    since: Option<ApiTime>,
    /// When the next probe is sent.
    until: Option<ApiTime>,
    /// Why it opened.
    why: Option<String>,
    /// The number of deliveries in memory that it holds.
    holds: usize,
}

impl BreakerView {
    fn of(breaker: &BreakerShown) -> Self {
        let (state, since, until) = match breaker.standing {
            BreakerState::Closed => ("closed", None, None),
            BreakerState::Open { until, since } => ("open", Some(since), until),
            BreakerState::HalfOpen { .. } => ("half_open", None, None),
        };
        Self {
            id: String::new(),
            tenant: None,
            origin: None,
            of: match breaker.of {
                BreakerOf::Lane(_) => "endpoint",
                BreakerOf::Shared(SharedGate::Origin(_)) => "origin",
                BreakerOf::Shared(SharedGate::Region(_)) => "region",
                BreakerOf::Shared(SharedGate::Credential(_)) => "credential",
                BreakerOf::Shared(SharedGate::Resolver) => "resolver",
            },
            state,
            since: since.map(ApiTime),
            until: until.map(ApiTime),
            why: breaker.opened.map(|opened| opened.to_string()),
            holds: breaker.holds,
        }
    }
}
