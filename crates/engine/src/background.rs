//! The engine's background tasks beside its loop: detached tasks, jobs, retention, erasures, journal checkpoints and the
//! rotation of the master key.
//!
//! Invariant: they end with the loop, as soon as the steps that have begun are finished.

use std::sync::Arc;

use posthaste_store::Store;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::detached::DetachedRunner;
use crate::engine::Engine;
use crate::eraser::Eraser;
use crate::jobs::JobRunner;
use crate::rotation::Rotator;
use crate::signer::Signer;
use crate::tenants;
use crate::upkeep::Upkeep;

/// Everything that runs beside the loop.
pub(crate) struct BackgroundTasks<S, C> {
    detached: DetachedRunner,
    jobs: JobRunner<S, C>,
    upkeep: Upkeep<S, C>,
    eraser: Eraser<S, C>,
    signer: Signer<S, C>,
    rotator: Arc<Rotator>,
}

impl<S: Store, C: Clock> BackgroundTasks<S, C> {
    /// The background tasks of an engine, whose detached tasks this runner runs.
    pub(crate) fn of(engine: &Engine<S, C>, detached: DetachedRunner) -> Self {
        let (store, session) = (&engine.store, engine.session);
        let (handle, clock) = (&engine.handle, &engine.clock);
        Self {
            detached,
            jobs: JobRunner {
                store: Arc::clone(store),
                session,
                endpoint_cache: Arc::clone(&engine.endpoint_cache),
                handle: handle.clone(),
                clock: clock.clone(),
                mint: engine.mint.clone(),
                ids: Arc::clone(&engine.ids),
                wake: Arc::clone(&engine.new_job),
            },
            upkeep: Upkeep {
                store: Arc::clone(store),
                session,
                handle: handle.clone(),
                retention: engine.retention,
                clock: clock.clone(),
                override_sync: Arc::clone(&engine.override_sync),
            },
            eraser: Eraser {
                store: Arc::clone(store),
                session,
                handle: handle.clone(),
                clock: clock.clone(),
                wakes: Arc::clone(&engine.erasures),
            },
            signer: Signer { store: Arc::clone(store), session, clock: clock.clone() },
            rotator: Arc::clone(&engine.rotator),
        }
    }

    /// Runs until `stop`. Detached tasks are accepted until the loop has ended, since they need its answers.
    pub(crate) async fn run(self, stop: CancellationToken, loop_ended: CancellationToken) {
        let Upkeep { store, session, handle, clock, .. } = &self.upkeep;
        let (store, session, handle, clock) = (Arc::clone(store), *session, handle.clone(), clock.clone());
        let terms = async {
            if let Err(error) = tenants::tell_of_all(store.as_ref(), &handle).await {
                tracing::warn!(%error, "tenant settings unavailable, using defaults");
            }
        };
        tokio::join!(
            self.detached.run(loop_ended),
            terms,
            self.jobs.run(stop.clone()),
            self.upkeep.run(stop.clone()),
            self.eraser.run(stop.clone()),
            self.signer.run(stop.clone()),
            self.rotator.run(&store, session, &clock, stop.clone())
        );
        self.signer.finish().await;
    }
}
