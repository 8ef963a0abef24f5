//! The scenario of the proof: people with messages in every state, and a running engine that erases some of them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hyper::StatusCode;
use posthaste_core::{
    Audience, Cause, Delivery, DeliveryId, EndpointId, Key, LaneId, MessageId, RowIndex, State, TenantId, Tier,
    Timestamp,
};
use posthaste_crypto::public_id::IdKey;
use posthaste_crypto::signature::Secret;
use posthaste_crypto::{random, seal};
use posthaste_engine::accept::{EndpointRef, IdempotencyRequest, NewMessage, PromisedMessage};
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_engine::connector::{self, System};
use posthaste_engine::engine::{Engine, Settings};
use posthaste_engine::replays::AskedReplay;
use posthaste_engine::target::TargetRules;
use posthaste_engine::tenants::Made;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Accepted, Archive, AttemptRecord, AuditStamp, BoundedCount, DeadLetterFilter, DeadLetters, Details, Directory,
    Endpoint, ErasureTarget, Erasures, FirstAnswer, Message, NewDelivery, Outbox, Pause, PauseScope, ReplayWhat,
    Retention, RetentionPhase, RetentionStep, Session, Settlement, SigningSecret, StoreError, WebhookTarget,
};
use rusqlite::{Connection, OpenFlags};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::NO_DATA;
use crate::fixtures::{copied, settlement, wait};
use crate::master_key;
use crate::prove::{CannotRun, Context};
use crate::receivers::{Behaviour, Recorder};

/// The tenants of the people. The second tenant is erased as a whole.
const TENANTS: [TenantId; 2] = [TenantId::from_raw(1), TenantId::from_raw(2)];
/// The timeout of every wait; far longer than any of them takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many subjects are erased at once.
const AT_ONCE: usize = 8;

/// The length, as text, of the prefix that all sealed event types of a tenant share: version and key. They have no
/// nonce, so that equal event types have equal ciphertexts.
const ALIKE: usize = 24;

/// A subject: a person whom messages are about.
#[derive(Clone, Debug)]
pub(super) struct Person {
    tenant: TenantId,
    name: String,
    /// A text that is in everything stored about them.
    canary: String,
    pub(super) is_erased: bool,
    /// Their messages from before the first erasure.
    pub(super) first: Vec<MessageId>,
}

#[derive(Clone, Debug)]
pub(super) struct People(Vec<Person>);

impl People {
    /// `count` people to erase and `count` to keep in the first tenant, and some in the second tenant, which is erased.
    pub(super) fn new(count: usize) -> Self {
        let person = |n: usize| {
            let of_second = n >= 2 * count;
            let canary = format!("canary{:032x}", u128::from_le_bytes(random::bytes()));
            let tenant = TENANTS[usize::from(of_second)];
            let is_erased = of_second || n.is_multiple_of(2);
            Person { tenant, name: format!("person-{canary}"), canary, is_erased, first: Vec::new() }
        };
        Self((0..2 * count + count.div_ceil(4)).map(person).collect())
    }

    pub(super) fn all(&self) -> &[Person] {
        &self.0
    }

    pub(super) fn canaries(&self) -> Vec<Vec<u8>> {
        self.0.iter().filter(|person| person.is_erased).map(|person| person.canary.clone().into_bytes()).collect()
    }
}

/// The receivers of the endpoints: one that accepts, one that refuses with `404` and one that fails with `503`.
struct Receivers {
    well: Recorder,
    refuses: Recorder,
    fails: Recorder,
}

impl Receivers {
    async fn start(secret: &Secret) -> Result<Self, CannotRun> {
        let start = |behaviour| Recorder::start(behaviour, secret.clone(), SystemClock::new());
        Ok(Self {
            well: start(Behaviour::Healthy).await?,
            refuses: start(Behaviour::Quotes { status: StatusCode::NOT_FOUND }).await?,
            fails: start(Behaviour::Quotes { status: StatusCode::SERVICE_UNAVAILABLE }).await?,
        })
    }

    /// How many messages about a person arrived after a time.
    fn after(&self, person: &Person, at: Timestamp) -> u64 {
        let all = [&self.well, &self.refuses, &self.fails];
        let arrivals = all.iter().flat_map(|receiver| receiver.arrivals());
        let theirs = |body: &[u8]| {
            let canary = person.canary.as_bytes();
            body.windows(canary.len()).any(|window| window == canary)
        };
        arrivals.filter(|arrival| arrival.at > at && theirs(&arrival.body)).count() as u64
    }
}

/// A store that was filled and closed.
pub(super) struct ErasureWorld {
    pub(super) people: People,
    endpoints: [[EndpointId; 4]; 2],
    receivers: Receivers,
}

/// The erased people's data as the database file had it before.
pub(super) struct ErasedBefore {
    pub(super) values: Vec<Vec<u8>>,
    /// How many of them are receivers' answers.
    pub(super) quoted: usize,
}

pub(super) struct ErasureResult {
    pub(super) people: People,
    pub(super) subjects: usize,
    pub(super) sent_after: u64,
    pub(super) others_missing: u64,
    pub(super) took: Duration,
}

type Running = Engine<Sqlite, SystemClock>;

impl ErasureWorld {
    /// Fills a store: with old messages through the store's interface, and with new ones through an engine. `leaves`
    /// switches `secure_delete` off, for the control.
    pub(super) async fn fill(data: &Path, people: People, leaves: bool) -> Result<Self, CannotRun> {
        let secret = Secret::generate();
        let receivers = Receivers::start(&secret).await?;
        let store = Sqlite::open_folder(data, master_key())?;
        let session = store.open(SystemClock::new().now()).await?.session;
        if leaves {
            LEAVES.store(true, std::sync::atomic::Ordering::SeqCst);
            store.leave_what_is_deleted(session).await?;
        }
        let urls = [&receivers.well, &receivers.refuses, &receivers.fails, &receivers.well].map(Recorder::url);
        let mut endpoints = [[EndpointId::from_raw(0); 4]; 2];
        let mut next = 1;
        for (tenant, ids) in TENANTS.into_iter().zip(&mut endpoints) {
            for (url, id) in urls.iter().zip(ids) {
                *id = EndpointId(Key::new(session.writer, next));
                next += 2;
                let secrets = vec![SigningSecret::lasting(secret.reveal().as_str())];
                let target = WebhookTarget::signing(url, secrets);
                let endpoint = Endpoint::new(*id, lane_of(*id), tenant, SystemClock::new().now(), target);
                _ = store.put_endpoint(session, endpoint, None, AuditStamp::at(SystemClock::new().now())).await?;
            }
        }
        let mut world = Self { people, endpoints, receivers };
        world.long_ago(&store, session, next).await?;
        store.close().await;
        world.by_an_engine(data).await?;
        Ok(world)
    }

    /// Adds messages whose deliveries died ten days ago and which retention has moved to their dead letters.
    async fn long_ago(&mut self, store: &Sqlite, session: Session, mut next: u64) -> Result<(), CannotRun> {
        let now = SystemClock::new().now();
        let then = Timestamp::from_millis(now.as_millis() - 10 * 24 * 60 * 60 * 1_000);
        for person in &mut self.people.0 {
            let device = EndpointId(Key::new(session.writer, next));
            _ = store.put_endpoint(session, own_device(person, device, then), None, AuditStamp::at(then)).await?;
            let id = MessageId(Key::new(session.writer, next + 2));
            next += 4;
            let message = Message {
                event_type: Some(format!("kept.{}", person.canary)),
                subject: Some(person.name.clone()),
                correlation_id: Some(format!("order of {}", person.canary)),
                ..Message::new(id, person.tenant, then, body(person, 200))
            };
            let endpoint = self.endpoints[tenant_place(person)][1];
            let lane = lane_of(endpoint);
            let delivery = Delivery::queued(DeliveryId(id.0.plus(1)), id, endpoint, lane, Tier::Promotional, then);
            let settings = posthaste_core::LaneSettings::new(lane, person.tenant, Arc::default());
            let new = NewDelivery::new(delivery.clone(), RowIndex::Ready, Arc::new(settings));
            _ = store.accept(session, vec![Accepted::new(message, vec![new])]).await?;
            store.arrivals().await;
            let answer = body(person, 200);
            store.settle(session, vec![died(&delivery, session, then, answer)]).await?;
            person.first.push(id);
        }
        let mut step = RetentionStep::of(RetentionPhase::Messages);
        while step.phase == RetentionPhase::Messages {
            let retained = store.retain(session, Retention::default(), now, step, Vec::new()).await?;
            step = retained.next.context("retention ended early")?;
        }
        Ok(())
    }

    async fn by_an_engine(&mut self, data: &Path) -> Result<(), CannotRun> {
        let mut node = Node::start(data).await?;
        for (tenant, ids) in TENANTS.iter().zip(self.endpoints) {
            let held = Pause::new(PauseScope::Lane(lane_of(ids[3])), None);
            node.engine.pause(held).await.context(format!("{tenant:?}"))?;
        }
        let count = self.people.0.len();
        for kind in 0..5 {
            for (place, person) in self.people.0.iter_mut().enumerate() {
                let endpoint = self.endpoints[tenant_place(person)][kind.min(3)];
                // Some are longer than a page.
                let pad = if place % 5 == kind { 20_000 } else { 100 + place % 300 };
                person.first.push(accept(&node.engine, person, endpoint, pad).await?);
            }
        }
        let arrived = |receiver: &Recorder| receiver.arrivals().len();
        let first = async || Ok(arrived(&self.receivers.well) >= count && arrived(&self.receivers.fails) > 0);
        wait("the first arrivals", PATIENCE, first).await?;
        letters(&node.store, 2 * count).await?;
        // Every third person's dead letters are replayed, and die again.
        for tenant in TENANTS {
            let theirs = self.people.0.iter().filter(|person| person.tenant == tenant);
            let ids = theirs.step_by(3).map(|person| DeliveryId(person.first[2].0.plus(1))).collect();
            let replay = AskedReplay { tenant, what: ReplayWhat::Listed(ids), per_second: None, reason: None };
            node.engine.replay(&replay, None).await?;
        }
        wait("arrivals of the replay", PATIENCE, async || Ok(arrived(&self.receivers.refuses) > count)).await?;
        letters(&node.store, 2 * count + 1).await?;
        node.stop().await
    }

    /// Reads from the database file what is stored about the people to erase: ciphertexts, lookup hashes and wrapped
    /// keys.
    pub(super) fn record(&self, data: &Path) -> Result<ErasedBefore, CannotRun> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let conn = Connection::open_with_flags(data.join("posthaste.db"), flags)?;
        let mut values: Vec<Vec<u8>> = Vec::new();
        let mut keys = std::collections::BTreeSet::new();
        let sql = "SELECT head, body, CAST(event_type AS BLOB) FROM message WHERE id = ?1
                   UNION ALL SELECT head, body, CAST(event_type AS BLOB) FROM kept WHERE id = ?1";
        let mut message = conn.prepare(sql)?;
        for person in self.people.0.iter().filter(|person| person.is_erased) {
            for id in &person.first {
                let id = i64::try_from(id.raw()).unwrap_or(i64::MAX);
                let read = |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
                let mut row: [Vec<u8>; 3] = message.query_row([id], read)?;
                row[2].drain(..ALIKE);
                let key = seal::key_of(&row[0])?;
                keys.insert(key.0);
                values.extend(row);
            }
        }
        let column = |sql: &str| -> Result<Vec<(u32, Vec<u8>)>, CannotRun> {
            let mut sql = conn.prepare(sql)?;
            Ok(sql.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?)
        };
        let theirs = |sql: &str| -> Result<Vec<Vec<u8>>, CannotRun> {
            let mut found = Vec::new();
            for (_, sealed) in column(sql)? {
                let key = seal::key_of(&sealed)?;
                found.extend(keys.contains(&key.0).then_some(sealed));
            }
            Ok(found)
        };
        values.extend(theirs("SELECT 0, answer FROM idempotency UNION ALL SELECT 0, sealed FROM endpoint")?);
        values.extend(found_by(&conn, &keys)?);
        let excerpts = theirs("SELECT 0, sealed FROM excerpt")?;
        let quoted = excerpts.len();
        values.extend(excerpts);
        let wrapped = column("SELECT id, wrapped FROM data_key WHERE wrapped IS NOT NULL AND subject <> x''")?;
        values.extend(wrapped.into_iter().filter(|(id, _)| keys.contains(id)).map(|(_, wrapped)| wrapped));
        // The endpoints and the data keys of the tenant that is erased.
        let sealed = "SELECT 0, sealed FROM endpoint WHERE tenant = 2 UNION ALL
                      SELECT 0, w.wrapped FROM data_key AS k JOIN master_wrapped_0 AS w ON w.id = k.id WHERE k.tenant = 2";
        values.extend(column(sealed)?.into_iter().map(|(_, sealed)| sealed));
        Ok(ErasedBefore { values, quoted })
    }

    /// Erases the people while messages about others go on. Copies the files once all erasures are done, while the
    /// engine still runs.
    pub(super) async fn erase(self, data: &Path, running: &Path) -> Result<ErasureResult, CannotRun> {
        let mut node = Node::start(data).await?;
        let begun = Instant::now();
        let clock = SystemClock::new();
        let (stop, mut beside) = (CancellationToken::new(), JoinSet::new());
        beside.spawn(others(Arc::clone(&node.engine), self.others(), self.endpoints[0][0], stop.clone()));
        let erased: Vec<&Person> = self.people.0.iter().filter(|person| person.is_erased).collect();
        let subjects: Vec<&Person> = erased.iter().copied().filter(|person| person.tenant == TENANTS[0]).collect();
        let (mut answers, mut in_flight) = (Vec::new(), 0);
        for some in subjects.chunks(AT_ONCE) {
            let each = some.iter().map(|person| {
                let engine = Arc::clone(&node.engine);
                async move {
                    (*person, engine.erase(person.tenant, ErasureTarget::Subject(person.name.clone()), None).await)
                }
            });
            for (person, answer) in join_all(each).await {
                let answer = answer?;
                in_flight += answer.in_flight;
                answers.push((person, clock.now()));
            }
        }
        let answer = node.engine.erase(TENANTS[1], ErasureTarget::Tenant, None).await;
        in_flight += answer?.in_flight;
        let tenants = erased.iter().filter(|person| person.tenant == TENANTS[1]);
        answers.extend(tenants.map(|person| (*person, clock.now())));
        let until = Instant::now() + PATIENCE;
        while !node.store.unfinished_erasures(1).await?.is_empty() {
            if Instant::now() > until {
                return Err(CannotRun(format!(
                    "erasures are not done in time: {:?}",
                    node.store.unfinished_erasures(3).await?
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let took = begun.elapsed();
        copied(data, running, |name| NO_DATA.contains(&name))?;
        stop.cancel();
        let mut accepted = Vec::new();
        while let Some(more) = beside.join_next().await {
            accepted.extend(more??);
        }
        let sent: u64 = answers.iter().map(|(person, at)| self.receivers.after(person, *at)).sum();
        let mut others_missing = 0;
        let first = self.people.0.iter().filter(|person| !person.is_erased).flat_map(|person| &person.first);
        for id in first.chain(&accepted) {
            others_missing += u64::from(node.store.message(*id).await?.is_none());
        }
        node.stop().await?;
        let sent_after = sent.saturating_sub(in_flight);
        Ok(ErasureResult { subjects: subjects.len(), people: self.people, sent_after, others_missing, took })
    }

    fn others(&self) -> Vec<Person> {
        self.people.0.iter().filter(|person| !person.is_erased).cloned().collect()
    }
}

/// The lane of an endpoint; its id follows the endpoint's.
fn lane_of(endpoint: EndpointId) -> LaneId {
    LaneId(endpoint.0.plus(1))
}

/// The lookup values of endpoints that are sealed under one of these keys: keyed hashes of their subject and tags.
fn found_by(conn: &Connection, keys: &std::collections::BTreeSet<u32>) -> Result<Vec<Vec<u8>>, CannotRun> {
    let sql = "SELECT sealed, subject, tags FROM endpoint WHERE subject IS NOT NULL AND tags IS NOT NULL";
    let mut sql = conn.prepare(sql)?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, [row.get(1)?, row.get(2)?]));
    let rows: Vec<(Vec<u8>, [Vec<u8>; 2])> = sql.query_map([], read)?.collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    for (sealed, hashes) in rows {
        let key = seal::key_of(&sealed)?;
        if keys.contains(&key.0) {
            found.extend(hashes);
        }
    }
    Ok(found)
}

/// An endpoint with this person as its subject. It subscribes to an event type that no message here has.
fn own_device(person: &Person, id: EndpointId, at: Timestamp) -> Endpoint {
    Endpoint {
        uid: Some(format!("device of {}", person.canary)),
        subject: Some(person.name.clone()),
        tags: vec![format!("tag of {}", person.canary)],
        description: Some(format!("belongs to {}", person.canary)),
        event_types: vec!["nothing".to_owned()],
        ..Endpoint::new(id, lane_of(id), person.tenant, at, format!("https://example.com/{}", person.canary))
    }
}

/// Whether stores opened by this process leave deleted bytes in their files. Set by the control, which runs last.
static LEAVES: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// A running engine over a store.
struct Node {
    store: Arc<Sqlite>,
    engine: Arc<Running>,
    stop: CancellationToken,
    task: JoinSet<Result<(), StoreError>>,
}

impl Node {
    async fn start(data: &Path) -> Result<Self, CannotRun> {
        let store = Arc::new(Sqlite::open_folder(data, master_key())?);
        if LEAVES.load(std::sync::atomic::Ordering::SeqCst) {
            let session = store.open(SystemClock::new().now()).await?.session;
            store.leave_what_is_deleted(session).await?;
        }
        let loopback = "127.0.0.0/8".parse().expect("a network");
        let rules = TargetRules { allow_http: true, allow_networks: vec![loopback], ..TargetRules::default() };
        let settings = Settings {
            connector: connector::Settings { rules, ..connector::Settings::default() },
            ..Settings::new(IdKey::from_bytes(store.id_key()), store.lookups(), store.api_keys())
        };
        let stop = CancellationToken::new();
        let (engine, run) =
            Engine::start(Arc::clone(&store), SystemClock::new(), settings, Arc::new(System), stop.clone()).await?;
        let mut task = JoinSet::new();
        task.spawn(run);
        Ok(Self { store, engine, stop, task })
    }

    async fn stop(&mut self) -> Result<(), CannotRun> {
        self.stop.cancel();
        while let Some(ended) = self.task.join_next().await {
            ended??;
        }
        self.store.close().await;
        Ok(())
    }
}

/// Accepts messages about these people until it is cancelled. Returns their ids.
async fn others(
    engine: Arc<Running>,
    people: Vec<Person>,
    endpoint: EndpointId,
    stop: CancellationToken,
) -> Result<Vec<MessageId>, CannotRun> {
    let mut accepted = Vec::new();
    for person in people.iter().cycle() {
        if stop.is_cancelled() {
            break;
        }
        accepted.push(accept(&engine, person, endpoint, 300).await?);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(accepted)
}

async fn accept(engine: &Running, person: &Person, endpoint: EndpointId, pad: usize) -> Result<MessageId, CannotRun> {
    let key = format!("{:032x}", u128::from_le_bytes(random::bytes()));
    let new = NewMessage {
        tenant: person.tenant,
        event_type: Some(format!("about.{}", person.canary)),
        body: body(person, pad),
        correlation_id: Some(format!("order of {}", person.canary)),
        subject: Some(person.name.clone()),
        tier: Tier::Engagement,
        ttl: None,
        deliver_at: None,
        endpoints: vec![EndpointRef::Id(endpoint)],
        details: Details {
            labels: vec![("purpose".to_owned(), person.canary.clone())],
            region: Some(format!("near {}", person.canary)),
            cost_center: Some(format!("for {}", person.canary)),
            audience: Audience { subjects: vec![person.name.clone()], ..Audience::default() },
            ..Details::default()
        },
        compact: None,
        collapse_key: None,
        once: Some(IdempotencyRequest { key, digest: random::bytes(), answer }),
        pending_max: None,
    };
    match engine.accept(new).await? {
        Made::Now(promise) => Ok(promise.message),
        Made::Before(_) => Err(CannotRun("a new idempotency key was answered as a repeated one".to_owned())),
    }
}

fn answer(promise: &PromisedMessage) -> FirstAnswer {
    FirstAnswer { status: 202, body: Bytes::from(format!("{promise:?}")) }
}

fn body(person: &Person, pad: usize) -> Bytes {
    let noise: String = (0..pad).map(|_| char::from(b'a' + random::bytes::<1>()[0] % 26)).collect();
    Bytes::from(format!("{{\"about\":\"{}\",\"pad\":\"{noise}\"}}", person.canary))
}

fn tenant_place(person: &Person) -> usize {
    usize::from(person.tenant == TENANTS[1])
}

fn died(delivery: &Delivery, session: Session, at: Timestamp, answer: Bytes) -> Settlement {
    let (took, cause) = (Duration::from_millis(7), Cause::NotFound);
    let attempt = AttemptRecord { number: 1, at, took, cause, status: Some(404) };
    Settlement { excerpt: Some(answer), ..settlement(session, delivery, State::Dead { at, cause }, attempt) }
}

/// Waits until there are at least `count` dead letters.
async fn letters(store: &Sqlite, count: usize) -> Result<(), CannotRun> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut letters = 0;
        for tenant in TENANTS {
            let (BoundedCount::Exactly(some) | BoundedCount::AtLeast(some)) =
                store.count_dead_letters(DeadLetterFilter::of(tenant)).await?;
            letters += some;
        }
        if letters >= count as u64 {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(CannotRun(format!("{letters} dead letters instead of {count}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
