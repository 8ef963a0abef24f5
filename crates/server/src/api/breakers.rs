//! Breakers: which are not closed, why, and until when. For operators alone: one may hold several tenants' endpoints.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use posthaste_core::flow::SharedGate;
use posthaste_core::flow::breaker::Standing;
use posthaste_core::id::LaneId;
use posthaste_core::queue::{BreakerOf, BreakerShown, Reset};
use posthaste_crypto::public_id::Kind;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::Sees;
use posthaste_store::Store;
use serde::Serialize;

use super::caller::{Caller, OPERATE};
use super::{Answer, Api, Named, body, json, no_parameters, switch};
use crate::object::Object;
use crate::problem::Problem;
use crate::value;

/// `GET /v1/breakers`: those that are not closed, endpoints' first.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, _: Caller<OPERATE>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let mut data = Vec::new();
    for breaker in api.engine.breakers().await? {
        let (id, tenant) = (id(&api, breaker.of).await?, tenant(&api, breaker.of).await?);
        data.push(Shown { id, tenant, ..Shown::of(&breaker) });
    }
    Ok(super::list::page(&uri, data, None))
}

/// `POST /v1/breakers/{id}/reset`: a probe goes first; `{"force": true}` closes it at once.
pub async fn reset<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<OPERATE>,
    Named(named): Named,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let mut fields = Object::read_optional(&body)?;
    let force = fields.get("force", value::truth).unwrap_or(false);
    switch::reason(&mut fields);
    fields.finish()?;
    let how = if force { Reset::Force } else { Reset::Probe };
    for breaker in api.engine.breakers().await? {
        if id(&api, breaker.of).await? == named && api.engine.reset_breaker(breaker.of, how, caller.by()).await? {
            tracing::info!(breaker = named, force, "reset a breaker");
            return Ok(json(StatusCode::OK, &Done { id: named, closed: force }));
        }
    }
    Err(Problem::no_such("open breaker"))
}

#[derive(Serialize)]
struct Done {
    id: String,
    closed: bool,
}

/// What a breaker is called: its endpoint's id, or what lanes share and a number.
async fn id<S: Store, C: Clock>(api: &Api<S, C>, of: BreakerOf) -> Result<String, Problem> {
    Ok(match of {
        BreakerOf::Lane(lane) => endpoint(api, lane).await?,
        BreakerOf::Shared(gate) => shared_id(gate),
    })
}

/// What the breaker of a gate is called that lanes share.
pub(super) fn shared_id(gate: SharedGate) -> String {
    match gate {
        SharedGate::Origin(origin) => format!("origin_{:016x}", origin.raw()),
        SharedGate::Region(region) => format!("region_{:016x}", region.raw()),
        SharedGate::Credential(credential) => format!("credential_{:016x}", credential.raw()),
        SharedGate::Resolver => "resolver".to_owned(),
    }
}

async fn endpoint<S: Store, C: Clock>(api: &Api<S, C>, lane: LaneId) -> Result<String, Problem> {
    let known = api.engine.endpoint(Sees::All, lane.endpoint()).await?;
    let id = known.map(|known| api.engine.public_id(Kind::Endpoint, known.endpoint.id.0, known.endpoint.at));
    Ok(id.unwrap_or_else(|| format!("lane_{:016x}", lane.raw())))
}

/// Whose it is; nobody's alone where lanes share it.
async fn tenant<S: Store, C: Clock>(api: &Api<S, C>, of: BreakerOf) -> Result<Option<String>, Problem> {
    let owner = match of {
        BreakerOf::Lane(lane) => api.engine.owner(lane.endpoint()).await?,
        BreakerOf::Shared(_) => None,
    };
    match owner {
        Some(owner) => Ok(api.engine.tenant_public_id(owner).await?),
        None => Ok(None),
    }
}

#[derive(Serialize)]
struct Shown {
    id: String,
    tenant: Option<String>,
    of: &'static str,
    state: &'static str,
    since: Option<String>,
    until: Option<String>,
    why: Option<String>,
    holds: usize,
}

impl Shown {
    fn of(breaker: &BreakerShown) -> Self {
        let (state, since, until) = match breaker.standing {
            Standing::Closed => ("closed", None, None),
            Standing::Open { until, since } => ("open", Some(since), until),
            Standing::HalfOpen { .. } => ("half_open", None, None),
        };
        Self {
            id: String::new(),
            tenant: None,
            of: match breaker.of {
                BreakerOf::Lane(_) => "endpoint",
                BreakerOf::Shared(SharedGate::Origin(_)) => "origin",
                BreakerOf::Shared(SharedGate::Region(_)) => "region",
                BreakerOf::Shared(SharedGate::Credential(_)) => "credential",
                BreakerOf::Shared(SharedGate::Resolver) => "resolver",
            },
            state,
            since: since.map(value::write_time),
            until: until.map(value::write_time),
            why: breaker.opened.map(|opened| opened.to_string()),
            holds: breaker.holds,
        }
    }
}
