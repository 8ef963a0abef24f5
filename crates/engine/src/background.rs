//! The engine's background tasks beside its loop: detached tasks, jobs, retention, erasures, journal checkpoints and the
//! rotation of the master key.

use std::sync::Arc;

use posthaste_store::Store;
use tokio_util::sync::CancellationToken;

use crate::detached::DetachedRunner;
use crate::erase::Eraser;
use crate::jobs::JobRunner;
use crate::signer::Signer;
use crate::upkeep::Upkeep;
use crate::{Clock, Engine, tenants};

/// Runs an engine's background tasks until `stop`; the steps that have begun are finished. Detached tasks are accepted
/// until the loop has ended, since they need its answers.
pub(crate) async fn run<S: Store, C: Clock>(
    engine: Arc<Engine<S, C>>,
    detached: DetachedRunner,
    stop: CancellationToken,
    loop_ended: CancellationToken,
) {
    let terms = async {
        if let Err(error) = tenants::tell_of_all(engine.store.as_ref(), &engine.handle).await {
            tracing::warn!(%error, "tenant settings unavailable, using defaults");
        }
    };
    let signer = Signer(Arc::clone(&engine));
    tokio::join!(
        detached.run(loop_ended),
        terms,
        JobRunner(Arc::clone(&engine)).run(stop.clone()),
        Upkeep(Arc::clone(&engine)).run(stop.clone()),
        Eraser(Arc::clone(&engine)).run(stop.clone()),
        signer.run(stop.clone()),
        engine.rotator.run(&engine.store, engine.session, &engine.clock, stop.clone())
    );
    signer.finish().await;
}
