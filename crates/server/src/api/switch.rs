//! The switch for 3 a.m.: hold everything, and let it go again.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;
use posthaste_core::time::Timestamp;
use posthaste_engine::clock::Clock;
use posthaste_store::{Pause, PauseScope, Store};
use serde::Serialize;

use super::caller::{Caller, OPERATE};
use super::{Answer, Api, body, json};
use crate::object::Object;
use crate::value;

const SCOPES: [(&str, Option<PauseScope>); 3] = [("all", Some(PauseScope::All)), ("tenant", None), ("origin", None)];

/// `POST /v1/pause`. Once it answers, nothing is sent.
pub async fn pause<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    _: Caller<OPERATE>,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let mut fields = Object::read(&body)?;
    let scope = scope(&mut fields);
    let until = until(&mut fields, api.engine.now());
    let reason = fields.get("reason", value::text);
    fields.not_built(&["id"]);
    fields.finish()?;
    api.engine.pause(Pause { scope, until }).await?;
    tracing::info!(reason = reason.as_deref().unwrap_or("none given"), "paused: nothing is sent");
    Ok(json(StatusCode::OK, &Switched { scope: "all", paused: true, until: until.map(value::write_time) }))
}

/// `POST /v1/resume`.
pub async fn resume<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    _: Caller<OPERATE>,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    let mut fields = Object::read(&body)?;
    let scope = scope(&mut fields);
    fields.get("reason", value::text);
    fields.not_built(&["id"]);
    fields.finish()?;
    api.engine.resume(scope).await?;
    tracing::info!("resumed");
    Ok(json(StatusCode::OK, &Switched { scope: "all", paused: false, until: None }))
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
    paused: bool,
    until: Option<String>,
}

fn scope(fields: &mut Object<'_>) -> PauseScope {
    let scope = fields
        .need("scope", |raw| value::one_of(raw, &SCOPES)?.ok_or_else(|| "this version knows \"all\" alone".to_owned()));
    scope.unwrap_or(PauseScope::All)
}
