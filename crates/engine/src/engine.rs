//! The engine: a store, the dispatch loop over it, and the methods that an API or an embedding program
//! calls. [`Engine::start`] returns the engine and a future that runs the loop; its caller awaits that future.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_core::flow::SharedGate;
use posthaste_core::policy::PolicyDefaults;
use posthaste_core::scheduler::{BreakerOf, BreakerShown, Explained, Limits, Reset};
use posthaste_core::{
    Compact, Delivery, DeliveryId, Hold, Key, LaneId, MessageId, OriginId, Roll, TenantId, Timestamp, Why,
};
use posthaste_crypto::LookupKey;
use posthaste_crypto::api_key::ApiKeyHasher;
use posthaste_crypto::public_id::{IdKey, IdKind};
use posthaste_store::{
    ApiKeyRef, AuditStamp, DeliveryRecord, Message, Pause, PauseScope, Retention, Rotation, Session, Store, StoreError,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::detached::DetachedTasks;
use crate::dispatch::driver::Driver;
use crate::erase::ErasureWakes;
use crate::pending::PendingBounds;
use crate::rotation::{NotRotated, Rotator};
use crate::sender::AttemptSender;
use crate::tenants::Tenants;
use crate::upkeep::OverrideSync;
use crate::watch::Watch;
use crate::{
    ChannelRegistry, Clock, Command, CommandReply, Connector, DispatchHandle, EngineStopped, Keeper, Origin,
    ParsedEndpointCache, Resolve, Roots, background, channels, connector,
};

const _: () = assert!(crate::accept::FANOUT_MAX as u64 <= posthaste_store::DELIVERIES_MAX);

/// The most deliveries returned with their message.
const DELIVERIES_SHOWN_MAX: u32 = 1_000;

/// The settings, keys and sources that an engine is started with.
#[derive(Debug)]
pub struct Settings {
    /// The bounds of the window.
    pub limits: Limits,
    pub connector: connector::Settings,
    /// The certificate authorities that receivers' certificates are checked against.
    pub roots: Roots,
    pub ids: IdKey,
    /// The key for hashing names that are only looked up.
    pub lookup: LookupKey,
    pub api_keys: ApiKeyHasher,
    pub seed: u64,
    pub master_key: Option<Keeper>,
    pub retention: Retention,
    pub defaults: PolicyDefaults,
    pub channels: ChannelRegistry,
}

impl Settings {
    /// These keys and the defaults: no certificate authority is trusted, and the seed is 1.
    pub fn new(ids: IdKey, lookup: LookupKey, api_keys: ApiKeyHasher) -> Self {
        Self {
            limits: Limits::default(),
            connector: connector::Settings::default(),
            roots: Roots::none(),
            ids,
            lookup,
            api_keys,
            seed: 1,
            master_key: None,
            retention: Retention::default(),
            defaults: PolicyDefaults::default(),
            channels: channels::registered,
        }
    }
}

#[derive(Debug)]
pub struct Engine<S, C> {
    pub(crate) store: Arc<S>,
    pub(crate) session: Session,
    pub(crate) endpoint_cache: Arc<ParsedEndpointCache<S>>,
    pub(crate) handle: DispatchHandle,
    pub(crate) clock: C,
    pub(crate) lookup: LookupKey,
    pub(crate) tenants: Tenants,
    pub(crate) pending: PendingBounds,
    pub(crate) access: Access,
    pub(crate) ids: Arc<IdKey>,
    /// The next number in the keys of this session.
    next_seq: AtomicU64,
    pub(crate) detached: DetachedTasks,
    pub(crate) new_job: Notify,
    pub(crate) erasures: ErasureWakes,
    pub(crate) rotator: Rotator,
    pub(crate) connector: Arc<Connector>,
    pub(crate) watch: Watch,
    /// How long things are kept for tenants without times of their own.
    pub(crate) retention: Retention,
    pub(crate) override_sync: OverrideSync,
}

#[derive(Debug, thiserror::Error)]
pub enum NotDone {
    #[error(transparent)]
    Ended(#[from] EngineStopped),
    #[error("the store could not be read")]
    Store(#[from] StoreError),
}

/// Which tenants' objects a caller may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// All tenants': the caller is an operator.
    All,
    /// This tenant's alone.
    Tenant(TenantId),
}

impl Visibility {
    /// Whether the caller may see this tenant's objects.
    pub fn sees(self, tenant: TenantId) -> bool {
        self == Self::All || self == Self::Tenant(tenant)
    }

    /// The only tenant that the caller may see; `None` when it may see all.
    pub const fn tenant(self) -> Option<TenantId> {
        match self {
            Self::All => None,
            Self::Tenant(tenant) => Some(tenant),
        }
    }
}

#[derive(Clone, Debug)]
pub struct ExplainedDelivery {
    pub shown: DeliveryRecord,
    /// Why it waits; `None` once it has ended.
    pub explained: Option<Explained>,
    pub paused: Option<Arc<Pause>>,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Opens a session on the store and makes the loop over it. The loop runs while the returned
    /// future is awaited. After `stop`, attempts in flight end and are recorded before the future ends.
    pub async fn start(
        store: Arc<S>,
        clock: C,
        settings: Settings,
        resolver: Arc<dyn Resolve>,
        stop: CancellationToken,
    ) -> Result<(Arc<Self>, impl Future<Output = Result<(), StoreError>> + Send), StoreError> {
        let start = store.open(clock.now()).await?;
        let session = start.session;
        let (ids, lookup) = (Arc::new(settings.ids), settings.lookup);
        let mut endpoint_cache =
            ParsedEndpointCache::new(Arc::clone(&store), settings.connector.rules.clone(), clock.now());
        endpoint_cache.channels = settings.channels;
        let origin = settings.defaults.origin();
        endpoint_cache.rules.defaults = Arc::new(settings.defaults);
        let endpoint_cache = Arc::new(endpoint_cache);
        let attempt_timeout = settings.connector.attempt_timeout;
        let (connector, results) = Connector::new(settings.connector, resolver, settings.roots);
        let connector = Arc::new(connector);
        let sender = AttemptSender::new(
            Arc::clone(&store),
            Arc::clone(&endpoint_cache),
            (Arc::clone(&connector), results),
            Arc::clone(&ids),
            clock.clone(),
            attempt_timeout,
        );
        let mut dice = fastrand::Rng::with_seed(settings.seed);
        let dice = Box::new(move || Roll(dice.u64(..)));
        let limits = Limits { origin, ..settings.limits };
        let (mut driver, handle) = Driver::new(limits, start, Arc::clone(&store), sender, clock.clone(), dice);
        let rules = Arc::clone(&endpoint_cache);
        driver.lane_rules = Some(Box::new(move |found| {
            let rules = Arc::clone(&rules);
            Box::pin(async move { rules.with_rules(found).await })
        }));
        let (detached, runner) = DetachedTasks::new();
        let engine = Self {
            store,
            session,
            endpoint_cache,
            handle,
            clock,
            lookup,
            tenants: Tenants::default(),
            pending: PendingBounds::default(),
            access: Access::new(settings.api_keys),
            ids,
            next_seq: AtomicU64::new(1),
            detached,
            new_job: Notify::new(),
            erasures: ErasureWakes::default(),
            rotator: Rotator::new(settings.master_key),
            connector: Arc::clone(&connector),
            watch: Watch::default(),
            retention: settings.retention,
            override_sync: OverrideSync::default(),
        };
        let engine = Arc::new(engine);
        let (stop_background, loop_ended) = (stop.child_token(), CancellationToken::new());
        let background = background::run(Arc::clone(&engine), runner, stop_background.clone(), loop_ended.clone());
        let run = async move {
            // The background tasks end with the loop, also when an error ends it.
            let dispatch = async {
                let ended = driver.run(stop).await;
                stop_background.cancel();
                loop_ended.cancel();
                ended
            };
            let (ended, ()) = tokio::join!(dispatch, background);
            connector.close().await;
            ended
        };
        Ok((engine, run))
    }

    /// Mints `count` consecutive keys and returns the first.
    pub(crate) fn mint(&self, count: u64) -> Key {
        Key::new(self.session.writer, self.next_seq.fetch_add(count, Ordering::Relaxed))
    }

    /// The public id of a key, such as `msg_…`.
    pub fn public_id(&self, kind: IdKind, key: Key, at: Timestamp) -> String {
        public_id(&self.ids, kind, key, at)
    }

    /// The key behind a public id and when it was minted; `None` if the id is forged or of another kind.
    pub fn opened(&self, kind: IdKind, public_id: &str) -> Option<(Key, Timestamp)> {
        let opened = self.ids.open(public_id).filter(|opened| opened.kind == kind)?;
        let minted = Timestamp::from_millis(i64::try_from(opened.time_ms).ok()?);
        Some((Key::new(posthaste_core::WriterId::new(opened.writer)?, opened.seq), minted))
    }

    pub fn retention(&self) -> Retention {
        self.retention
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The time and the API key of a change, for the journal.
    pub(crate) fn done_by(&self, by: Option<ApiKeyRef>) -> AuditStamp {
        AuditStamp { at: self.clock.now(), by }
    }

    /// A delivery with its state, its attempts and the reason why it waits.
    pub async fn delivery(&self, visibility: Visibility, id: DeliveryId) -> Result<Option<ExplainedDelivery>, NotDone> {
        let Some(shown) = self.store.delivery(id, self.clock.now()).await? else { return Ok(None) };
        // The store keeps endpoints that were deleted, so this finds their deliveries too.
        let endpoint = self.store.endpoint(shown.delivery.endpoint).await?;
        if !endpoint.is_some_and(|endpoint| visibility.sees(endpoint.tenant)) {
            return Ok(None);
        }
        Ok(Some(self.view(shown).await?))
    }

    /// A message and its first 1,000 deliveries, by id.
    pub async fn message(
        &self,
        visibility: Visibility,
        id: MessageId,
    ) -> Result<Option<(Arc<Message>, Vec<ExplainedDelivery>)>, NotDone> {
        let Some(message) = self.store.message(id).await?.filter(|message| visibility.sees(message.tenant)) else {
            return Ok(None);
        };
        let mut views = Vec::new();
        for shown in self.store.deliveries(id, None, self.clock.now(), DELIVERIES_SHOWN_MAX).await? {
            views.push(self.view(shown).await?);
        }
        Ok(Some((message, views)))
    }

    /// Whether a message exists and the caller may see it.
    pub async fn has_message(&self, visibility: Visibility, id: MessageId) -> Result<bool, StoreError> {
        Ok(self.store.message(id).await?.is_some_and(|message| visibility.sees(message.tenant)))
    }

    /// The size of the payload that a delivery sends, or of the compact payload that it sends instead; `None` once the
    /// message is deleted.
    pub async fn bytes_sent(&self, delivery: &Delivery) -> Result<Option<usize>, StoreError> {
        let bytes = |message: Arc<Message>| match (&message.compact, delivery.compact) {
            (Some(compact), Compact::InUse) => compact.len(),
            _ => message.body.len(),
        };
        Ok(self.store.message(delivery.message).await?.map(bytes))
    }

    /// Adds to a stored delivery why it waits, which only the loop knows.
    pub(crate) async fn view(&self, shown: DeliveryRecord) -> Result<ExplainedDelivery, EngineStopped> {
        let Delivery { id, lane, state, .. } = shown.delivery;
        let (explained, paused) = if state.is_terminal() {
            (None, None)
        } else {
            match self.handle.ask(Command::Explain(id, lane, state)).await? {
                CommandReply::Explained(explained, paused) => (Some(with_retry_after(explained, &shown)), paused),
                _ => (None, None),
            }
        };
        Ok(ExplainedDelivery { shown, explained, paused })
    }

    /// Sends a delivery now, before its due time, at a caller's request; gates may still hold it. `None` when there is
    /// no such delivery. A delivery that has ended is returned unchanged.
    pub async fn retry(
        self: &Arc<Self>,
        visibility: Visibility,
        id: DeliveryId,
        by: Option<ApiKeyRef>,
    ) -> Result<Option<ExplainedDelivery>, NotDone> {
        let Some(view) = self.delivery(visibility, id).await? else { return Ok(None) };
        if view.shown.delivery.state.is_terminal() {
            return Ok(Some(view));
        }
        let delivery = view.shown.delivery;
        self.run_detached(|engine| async move { engine.retry_now(&delivery, by).await }).await??;
        self.delivery(visibility, id).await
    }

    async fn retry_now(&self, delivery: &Delivery, by: Option<ApiKeyRef>) -> Result<(), NotDone> {
        self.store.note_retry_now(self.session, delivery, self.done_by(by)).await?;
        match self.handle.ask(Command::Hurry(delivery.id)).await? {
            CommandReply::Nothing => Err(StoreError::Busy.into()),
            _ => Ok(()),
        }
    }

    /// Ends every delivery of a message that is not in flight, at a caller's request. Returns how many were ended and
    /// how many are in flight and may still arrive; `None` when the caller sees no such message.
    pub async fn cancel(
        &self,
        visibility: Visibility,
        id: MessageId,
        by: Option<ApiKeyRef>,
    ) -> Result<Option<(u64, u64)>, NotDone> {
        let message = self.store.message(id).await?;
        if message.is_none_or(|message| !visibility.sees(message.tenant)) {
            return Ok(None);
        }
        match self.handle.ask(Command::Cancel(id, by)).await? {
            CommandReply::Ended { ended, in_flight } => Ok(Some((ended, in_flight))),
            _ => Ok(Some((0, 0))),
        }
    }

    /// Pauses a scope. Once this returns, nothing of it is sent.
    pub async fn pause(&self, pause: Pause) -> Result<(), NotDone> {
        self.handle.ask(Command::Pause(pause)).await?;
        Ok(())
    }

    /// Ends a pause at a caller's request; `false` when nothing was paused.
    pub async fn resume(&self, scope: PauseScope, by: Option<ApiKeyRef>) -> Result<bool, NotDone> {
        Ok(self.handle.ask(Command::Resume(scope, by)).await? == CommandReply::Done)
    }

    /// The pauses in force, the widest scopes first: skips `passed` of them and returns at most `most`.
    pub async fn pauses(&self, passed: usize, most: usize) -> Result<Vec<Arc<Pause>>, NotDone> {
        let CommandReply::Pauses(pauses) = self.handle.ask(Command::Pauses(passed, most)).await? else {
            return Ok(Vec::new());
        };
        Ok(pauses)
    }

    /// Parses an origin, or takes the origin of a URL: its text and its id. Target rules are not applied: an operator
    /// must be able to pause an origin that a rule has forbidden since.
    pub fn origin(&self, named: &str) -> Option<(String, OriginId)> {
        let written = Origin::parse(named)?.to_string();
        let id = OriginId::of(&written);
        Some((written, id))
    }

    /// Every breaker that is not closed, lanes first.
    pub async fn breakers(&self) -> Result<Vec<BreakerShown>, NotDone> {
        let CommandReply::Breakers(breakers) = self.handle.ask(Command::Breakers).await? else { return Ok(Vec::new()) };
        Ok(breakers)
    }

    /// The lanes in memory that go through a gate, each with its tenant.
    pub async fn lanes_through(&self, gate: SharedGate) -> Result<Vec<(LaneId, TenantId)>, NotDone> {
        let CommandReply::LanesThrough(lanes) = self.handle.ask(Command::LanesThrough(gate)).await? else {
            return Ok(Vec::new());
        };
        Ok(lanes)
    }

    /// Resets a breaker at a caller's request; `false` when it is closed.
    pub async fn reset_breaker(&self, of: BreakerOf, how: Reset, by: Option<ApiKeyRef>) -> Result<bool, NotDone> {
        Ok(self.handle.ask(Command::Reset(of, how, by)).await? == CommandReply::Done)
    }

    /// Begins to rotate the master key at an operator's request; sealed data stays readable all the time. When a
    /// rotation is under way, returns its progress and starts none.
    pub async fn rotate_master_key(&self, by: Option<ApiKeyRef>) -> Result<Rotation, NotRotated> {
        self.rotator.ask(self.store.as_ref(), by).await
    }

    /// The master keys that are needed, and the progress of a rotation.
    pub async fn rotation(&self) -> Result<Rotation, StoreError> {
        self.store.rotation().await
    }
}

/// The public id of a key, such as `msg_…`. `at` is when its object was made; for a delivery, when its message was.
pub(crate) fn public_id(ids: &IdKey, kind: IdKind, key: Key, at: Timestamp) -> String {
    ids.mint(kind, key.writer().number(), key.seq(), u64::try_from(at.as_millis()).unwrap_or(0))
}

/// Reports `RetryAfter` in place of `Backoff` if the receiver asked for this delivery's wait. The loop knows of such
/// a request only for whole lanes.
fn with_retry_after(explained: Explained, shown: &DeliveryRecord) -> Explained {
    match explained {
        Explained::Waits(Hold { why: Why::Backoff, until })
            if shown.attempts.last().is_some_and(|last| shown.delivery.waits_as_asked(last.at)) =>
        {
            Explained::Waits(Hold { why: Why::RetryAfter, until })
        }
        explained => explained,
    }
}
