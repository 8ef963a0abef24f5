//! Rotates the master key while the server runs.

use posthaste_engine::rotation::NotRotated;
use posthaste_store::Rotation;

use super::caller::OPERATE;
use super::prelude::*;

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/master-key/rotation", "Shows the progress of the master key's rotation")
        .scope("operate")
        .returns::<MasterKeyRotationView>(200, "The progress."),
    Operation::post("/v1/master-key/rotation", "Starts a rotation of the master key")
        .scope("operate")
        .conflicts()
        .returns::<MasterKeyRotationView>(202, "The rotation is under way."),
];

pub async fn show<S: Store, C: Clock>(State(api): ApiRef<S, C>, _: Caller<OPERATE>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    Ok(json(StatusCode::OK, &MasterKeyRotationView::of(&api.engine.rotation().await?)))
}

/// `POST /v1/master-key/rotation`: begins a rotation, or shows the one under way.
pub async fn begin<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<OPERATE>, _: EmptyBody) -> Answer {
    let rotation = api.engine.rotate_master_key(caller.by()).await.map_err(refused)?;
    tracing::info!(to = %rotation.offered.unwrap_or(rotation.newest), "began to rotate the master key");
    Ok(json(StatusCode::ACCEPTED, &MasterKeyRotationView::of(&rotation)))
}

fn refused(error: NotRotated) -> Problem {
    match error {
        NotRotated::Store(error) => error.into(),
        NotRotated::NoKeeper => Problem::new(Code::NoNewerKey, error.to_string()),
        NotRotated::NoNewerKey(error) => Problem::new(Code::NoNewerKey, error.to_string()),
    }
}

/// The progress of a rotation. Keys are shown by their fingerprints.
#[derive(Serialize, JsonSchema)]
struct MasterKeyRotationView {
    under_way: bool,
    /// The fingerprint of the master key that new keys are wrapped under.
    newest: String,
    /// The fingerprints of master keys that are still needed: keep them.
    older: Vec<String>,
    /// The fingerprint of a newer master key that is not used yet.
    offered: Option<String>,
    /// The number of keys rewrapped by this rotation, or by the last one.
    rewrapped: u64,
    /// The number of keys still to be rewrapped.
    left: u64,
}

impl MasterKeyRotationView {
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
