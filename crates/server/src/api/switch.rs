//! The switch for 3 a.m.: hold everything, or a tenant's, and let it go again.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::Kind;
use posthaste_engine::clock::Clock;
use posthaste_store::{Pause, PauseScope, Store};
use serde::Serialize;

use super::caller::{Caller, OPERATE, find_tenant};
use super::{Answer, Api, body, json};
use crate::object::Object;
use crate::problem::Problem;
use crate::value;

/// What can be held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    Tenant,
    Origin,
}

const SCOPES: [(&str, Scope); 3] = [("all", Scope::All), ("tenant", Scope::Tenant), ("origin", Scope::Origin)];

/// `POST /v1/pause`. Once it answers, nothing is sent.
pub async fn pause<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    _: Caller<OPERATE>,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let mut fields = Object::read(&body)?;
    let until = until(&mut fields, api.engine.now());
    let reason = fields.get("reason", value::text);
    let (scope, id) = scope(&api, fields).await?;
    api.engine.pause(Pause { scope, until }).await?;
    tracing::info!(reason = reason.as_deref().unwrap_or("none given"), id, "paused: nothing of it is sent");
    Ok(json(StatusCode::OK, &Switched { scope: word(scope), id, paused: true, until: until.map(value::write_time) }))
}

/// `POST /v1/resume`.
pub async fn resume<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    _: Caller<OPERATE>,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let mut fields = Object::read(&body)?;
    fields.get("reason", value::text);
    let (scope, id) = scope(&api, fields).await?;
    api.engine.resume(scope).await?;
    tracing::info!(id, "resumed");
    Ok(json(StatusCode::OK, &Switched { scope: word(scope), id, paused: false, until: None }))
}

/// When a pause ends by itself.
pub(super) fn until(fields: &mut Object<'_>, now: Timestamp) -> Option<Timestamp> {
    fields.get("until", |raw| match value::time(raw)? {
        past if past <= now => Err("must be in the future; leave it out to pause until somebody ends it".to_owned()),
        until => Ok(until),
    })
}

#[derive(Serialize)]
struct Switched {
    scope: &'static str,
    /// The tenant's id, where it is about one.
    id: Option<String>,
    paused: bool,
    until: Option<String>,
}

/// What is spoken of, and the id the world knows it by; nothing else may be left in the body.
async fn scope<S: Store, C: Clock>(
    api: &Api<S, C>,
    mut fields: Object<'_>,
) -> Result<(PauseScope, Option<String>), Problem> {
    let scope = fields.need("scope", |raw| match value::one_of(raw, &SCOPES)? {
        Scope::Origin => Err("this version knows \"all\" and \"tenant\"".to_owned()),
        known => Ok(known),
    });
    let id = fields.get("id", value::text);
    let tenant = match (scope, &id) {
        (Some(Scope::Tenant), Some(named)) => find_tenant(api, named).await?,
        _ => None,
    };
    match (scope, &id, &tenant) {
        (Some(Scope::Tenant), None, _) => fields.complain("id", "is needed: which tenant, by id or uid".to_owned()),
        (Some(Scope::Tenant), Some(_), None) => fields.complain("id", "there is no such tenant".to_owned()),
        (Some(Scope::All), Some(_), _) => fields.complain("id", "goes with no scope \"all\"; leave it out".to_owned()),
        _ => {}
    }
    fields.finish()?;
    Ok(match tenant {
        Some(tenant) => {
            let id = api.engine.public_id(Kind::Tenant, tenant.id.0, tenant.at);
            (PauseScope::Tenant(tenant.id), Some(id))
        }
        None => (PauseScope::All, None),
    })
}

fn word(scope: PauseScope) -> &'static str {
    if matches!(scope, PauseScope::Tenant(_)) { "tenant" } else { "all" }
}
