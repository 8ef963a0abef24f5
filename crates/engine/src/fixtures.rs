//! What several of this crate's own tests need beside the harness.

use std::path::Path;
use std::sync::Arc;

use posthaste_core::{Cause, Delivery, DeliveryChange, RowIndex, Shard, State, Timestamp};
use posthaste_store::sqlite::{Bounds, Sqlite};
use posthaste_store::{Settlement, Store};
use tokio_util::sync::CancellationToken;

use crate::harness::{NoResolver, settings};
use crate::{Engine, MasterKeySource, SystemClock, master_key};

/// An engine whose loop and background tasks do not run.
pub(crate) async fn idle_engine<S: Store>(store: Arc<S>) -> Arc<Engine<S, SystemClock>> {
    let (clock, resolver) = (SystemClock::new(), Arc::new(NoResolver));
    let started = Engine::start(store, clock, settings(), resolver, CancellationToken::new());
    started.await.expect("a session begins").0
}

/// The store in a folder, under the master key in the same folder.
pub(crate) fn open_folder(folder: &Path) -> Arc<Sqlite> {
    let ask = |needed: &[_]| master_key::load(&MasterKeySource::Folder, folder, needed).map_err(|why| why.to_string());
    Arc::new(Sqlite::open_asking(folder, Bounds::default(), ask).expect("the folder opens"))
}

/// The outcome of a waiting delivery that ends as dead at its first attempt, without the attempt's record.
pub(crate) fn given_up<S, C>(engine: &Engine<S, C>, waiting: &Delivery, at: Timestamp, cause: Cause) -> Settlement {
    let record = DeliveryChange {
        shard: Shard::of(waiting.lane),
        delivery: Delivery { attempts: 1, state: State::Dead { at, cause }, ..waiting.clone() },
        attempts_before: 0,
        place: RowIndex::Delayed,
        pauses_lane: false,
        endpoint_change: None,
    };
    Settlement { record, epoch: engine.session.epoch, attempt: None, excerpt: None }
}
