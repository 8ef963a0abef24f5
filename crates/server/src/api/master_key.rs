//! Rotates the master key while the server runs.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use posthaste_engine::clock::Clock;
use posthaste_engine::rotation::NotRotated;
use posthaste_store::{Rotation, Store};
use serde::Serialize;

use super::caller::{Caller, OPERATE};
use super::{Answer, Api, json, no_body, no_parameters};
use crate::problem::{Code, Problem};

/// `GET /v1/master-key/rotation`: the progress of the rotation.
pub async fn show<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, _: Caller<OPERATE>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    Ok(json(StatusCode::OK, &Shown::of(&api.engine.rotation().await?)))
}

/// `POST /v1/master-key/rotation`: begins a rotation, or shows the one under way.
pub async fn begin<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<OPERATE>,
    request: Request,
) -> Answer {
    no_body(request).await?;
    let rotation = api.engine.rotate_master_key(caller.by()).await.map_err(refused)?;
    tracing::info!(to = %rotation.offered.unwrap_or(rotation.newest), "began to rotate the master key");
    Ok(json(StatusCode::ACCEPTED, &Shown::of(&rotation)))
}

fn refused(error: NotRotated) -> Problem {
    match error {
        NotRotated::Store(error) => error.into(),
        NotRotated::NoKeeper => Problem::new(Code::NoNewerKey, error.to_string()),
        NotRotated::NoNewerKey(error) => Problem::new(Code::NoNewerKey, error.to_string()),
    }
}

/// The progress of a rotation. Keys are shown by their fingerprints.
#[derive(Serialize)]
struct Shown {
    under_way: bool,
    newest: String,
    older: Vec<String>,
    offered: Option<String>,
    rewrapped: u64,
    left: u64,
}

impl Shown {
    fn of(rotation: &Rotation) -> Self {
        Self {
            under_way: rotation.is_under_way(),
            newest: rotation.newest.to_string(),
            older: rotation.older.iter().map(ToString::to_string).collect(),
            offered: rotation.offered.map(|offered| offered.to_string()),
            rewrapped: rotation.rewrapped,
            left: rotation.left,
        }
    }
}
