//! Methods of the engine whose callers disconnect at every possible point, over a real store.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::policy::PolicySpec;
use posthaste_core::scheduler::Explained;
use posthaste_core::{DeliveryId, Tier, Why};
use posthaste_crypto::keyring::{KeyId, StoreKey};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Directory, DisabledBy, Endpoint, EndpointStatus, ErasureTarget, Pause, PauseScope};

use super::*;
use crate::access::MadeKey;
use crate::engine::Settings;
use crate::fixtures::open_folder;
use crate::harness::{NoResolver, Running, made, new_endpoint, settings};
use crate::{NewKey, NewMessage, NewSigning, SystemClock, Tenant, TenantTerms, Visibility};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

type DiskEngine = Engine<Sqlite, SystemClock>;

async fn start(store: &Arc<Sqlite>, keys: &StoreKey) -> Running<Sqlite> {
    Running::over(store, Settings { api_keys: keys.api_keys(), ..settings() }, Arc::new(NoResolver)).await
}

/// One object of each kind that an engine keeps in memory.
struct Things {
    tenant: Tenant,
    key: MadeKey,
    endpoint: Endpoint,
    /// A delivery that waits for the endpoint, which is disabled and paused.
    delivery: DeliveryId,
}

impl Things {
    /// Makes the objects, and loads them into memory.
    async fn make(running: &Running<Sqlite>) -> Self {
        let engine = &running.engine;
        let terms = TenantTerms::default();
        let tenant = made(engine.make_tenant(None, terms, None, None).await.expect("a tenant")).tenant;
        let new = NewKey { tenant: Some(tenant.id), scopes: None, expires: None, description: None };
        let key = made(engine.make_key(new, None, None).await.expect("a key"));
        engine.put_policy(tenant.id, "own", attempts(3), None).await.expect("a policy");
        let new = new_endpoint(running, tenant.id, "https://example.com/");
        let new = engine.make_endpoint(new, NewSigning::default(), None, None).await.expect("an endpoint");
        let status = EndpointStatus::Disabled(DisabledBy::Receiver);
        let disabled = Endpoint { status, version: 1, ..made(new).endpoint };
        let endpoint = engine.change_endpoint(disabled, None).await.expect("it is disabled");
        engine.pause(Pause::new(PauseScope::Lane(endpoint.lane), None)).await.expect("it is paused");
        let message = NewMessage::new(tenant.id, Bytes::from_static(b"{}"), Tier::Transactional);
        // The first delivery's key follows the message's.
        let delivery = made(engine.accept(message).await.expect("it is accepted")).message.0.plus(1);
        let things = Self { tenant, key, endpoint, delivery: DeliveryId(delivery) };
        things.reported_by(engine).await;
        things
    }

    /// The state of the objects as an engine reports it.
    async fn reported_by(&self, engine: &Arc<DiskEngine>) -> Vec<String> {
        let admitted = engine.admit(self.key.key.reveal()).await.is_ok();
        let tenant = engine.tenant(self.tenant.id).await.expect("the store reads");
        let policy = engine.rules(self.tenant.id).await.expect("the store reads").policy("own");
        let last_seen = match engine.endpoint_cache.last_seen(self.endpoint.id) {
            Some(seen) => Some(seen),
            None => engine.endpoint_cache.load(self.endpoint.id).await.expect("the store reads"),
        };
        let paused = engine.paused(vec![self.endpoint.lane]).await.expect("the loop runs");
        vec![
            format!("its key admits: {admitted}"),
            format!("the tenant: {:?}", tenant.map(|tenant| tenant.terms.clone())),
            format!("its policy: {policy:?}"),
            format!("its endpoint: {:?}", last_seen.map(|seen| (seen.endpoint.version, seen.endpoint.status))),
            format!("paused: {:?}", paused.into_iter().flatten().map(|paused| paused.hold.why).collect::<Vec<Why>>()),
        ]
    }

    /// Waits until the eraser has ended their pause.
    async fn are_no_longer_paused(&self, engine: &Arc<DiskEngine>) {
        let paused = async {
            while engine.paused(vec![self.endpoint.lane]).await.expect("the loop runs").iter().any(Option::is_some) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), paused).await.expect("the erasure ends the pause");
    }

    /// Waits until the loop no longer holds the endpoint.
    async fn until_not_held(&self, engine: &Arc<DiskEngine>) {
        let held = async {
            loop {
                let view = engine.delivery(Visibility::All, self.delivery).await.expect("the store reads");
                match view.and_then(|view| view.explained) {
                    Some(Explained::Waits(hold)) if hold.why == Why::EndpointDisabled => {}
                    _ => return,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), held).await.expect("the delivery is no longer held");
    }
}

fn attempts(most: u64) -> PolicySpec {
    PolicySpec { max_attempts: Some(most), ..PolicySpec::preset("webhook").expect("a preset") }
}

/// Every method that writes to the store and then changes memory.
#[derive(Clone, Copy, Debug)]
enum Verb {
    RevokeKey,
    ChangeTenant,
    PutPolicy,
    DeletePolicy,
    ChangeEndpoint,
    RotateSecret,
    EnableEndpoint,
    DeleteEndpoint,
    EraseTenant,
}

const VERBS: [Verb; 9] = {
    use Verb::*;
    [
        RevokeKey,
        ChangeTenant,
        PutPolicy,
        DeletePolicy,
        ChangeEndpoint,
        RotateSecret,
        EnableEndpoint,
        DeleteEndpoint,
        EraseTenant,
    ]
};

async fn call(verb: Verb, engine: &Arc<DiskEngine>, Things { tenant, key, endpoint, .. }: &Things) {
    match verb {
        Verb::RevokeKey => {
            engine.revoke_key(Some(tenant.id), key.known.id, None).await.map(drop).expect("it is revoked");
        }
        Verb::ChangeTenant => {
            let terms = TenantTerms { weight: 3.0, payload_kept: Some(2 * DAY), ..TenantTerms::default() };
            let changed = Tenant { terms, ..tenant.clone() };
            engine.change_tenant(tenant, &changed, None).await.expect("it is changed");
        }
        Verb::PutPolicy => engine.put_policy(tenant.id, "own", attempts(5), None).await.map(drop).expect("it is put"),
        Verb::DeletePolicy => engine.delete_policy(tenant.id, "own", None).await.map(drop).expect("it is deleted"),
        Verb::ChangeEndpoint => {
            let changed = Endpoint { version: 2, max_in_flight: 3, ..endpoint.clone() };
            engine.change_endpoint(changed, None).await.map(drop).expect("it is changed");
        }
        Verb::RotateSecret => engine.rotate_secret(endpoint, DAY, None, None).await.map(drop).expect("it is rotated"),
        Verb::EnableEndpoint => engine.enable_endpoint(endpoint, None).await.map(drop).expect("it is enabled"),
        Verb::DeleteEndpoint => engine.delete_endpoint(endpoint, None).await.map(drop).expect("it is deleted"),
        Verb::EraseTenant => {
            engine.erase(tenant.id, ErasureTarget::Tenant, None).await.map(drop).expect("it is erased");
        }
    }
}

/// Polls a call this many times, and drops it at the next poll. Returns whether it was answered.
async fn drop_after(most_polls: usize, verb: impl Future<Output = ()>) -> bool {
    let (mut verb, mut polls) = (pin!(verb), 0);
    poll_fn(|context| {
        polls += 1;
        if polls > most_polls {
            return Poll::Ready(false);
        }
        verb.as_mut().poll(context).map(|()| true)
    })
    .await
}

#[tokio::test]
async fn dropped_caller_leaves_memory_and_store_consistent() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (store, keys) = (open_folder(folder.path()), StoreKey::generate(KeyId(1)));
    for verb in VERBS {
        let mut polls = 0;
        loop {
            polls += 1 + polls / 8;
            let running = start(&store, &keys).await;
            let engine = &running.engine;
            let things = Things::make(&running).await;
            while !engine.override_sync.is_sent.load(Ordering::Acquire) {
                tokio::task::yield_now().await;
            }
            let is_answered = drop_after(polls, call(verb, engine, &things)).await;
            engine.detached.all_ended().await;
            let kept = engine.tenant(things.tenant.id).await.expect("the store reads");
            if kept.is_none() {
                things.are_no_longer_paused(engine).await;
            }
            let reported = things.reported_by(engine).await;
            if kept.is_some_and(|tenant| tenant.terms.payload_kept.is_some()) {
                let is_stored = engine.override_sync.is_sent.load(Ordering::Acquire);
                assert!(!is_stored, "{verb:?}, {polls} polls: the next run passes the retention times to the store");
            }
            let now = store.endpoint(things.endpoint.id).await.expect("the store reads");
            if now.is_some_and(|endpoint| endpoint.status == EndpointStatus::Active) {
                things.until_not_held(engine).await;
            }
            running.stop().await;
            let fresh = start(&store, &keys).await;
            assert_eq!(reported, things.reported_by(&fresh.engine).await, "{verb:?}, dropped after {polls} polls");
            fresh.stop().await;
            if is_answered {
                break;
            }
        }
    }
    store.close().await;
}

#[tokio::test]
async fn detached_tasks_end_before_the_engine_and_none_begins_after_it() {
    let (tasks, runner) = DetachedTasks::new();
    let (tasks, stop) = (Arc::new(tasks), CancellationToken::new());
    let (finish, finished) = oneshot::channel();
    let handed = drop_after(1, {
        let tasks = Arc::clone(&tasks);
        async move {
            let task = async move { finished.await.expect("the test lets it finish") };
            _ = tasks.carry_out(task).await;
        }
    });
    assert!(!tokio::time::timeout(Duration::ZERO, handed).await.unwrap_or(false), "the task has not finished");
    stop.cancel();
    let mut run = pin!(runner.run(stop));
    let is_pending = poll_fn(|context| Poll::Ready(run.as_mut().poll(context).is_pending())).await;
    assert!(is_pending, "it waits for the task");
    assert_eq!(tasks.carry_out(async {}).await, Err(EngineStopped));
    finish.send(()).expect("the task waits for it");
    run.await;
}
