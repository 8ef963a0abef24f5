//! The proof `sealed`: an attacker who has the files but not the master key can read nothing that a user of the API
//! stored.
//!
//! Canaries are written into every field that a producer, an owner of endpoints or an operator chooses. The attacker
//! is a separate process ([`attacker`]), which gets the data folder's files under load and after a stop, a backup, and
//! the log of the process at level `trace`. It searches for each canary in several encodings. Then it moves sealed
//! values to other rows, fields and tenants, in the folder and in the backup, whose manifest it adapts; none of them
//! may open, in the folder or after a restore.
//!
//! The control is the same search over a folder in which one canary is stored in each encoding without being sealed.

pub mod attacker;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Audience, Cause, Delivery, DeliveryId, EndpointId, JobId, Key, LaneId, LaneSettings, MessageId, RowIndex, State,
    TenantId, Tier, Timestamp,
};
use posthaste_crypto::random;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::sqlite::backup::back_up;
use posthaste_store::sqlite::backup::restore::restore;
use posthaste_store::{
    Acceptance, Accepted, Archive, AttemptRecord, AuditStamp, DeadLetterFilter, DeadLetters, Details, Directory,
    Endpoint, EndpointTls, FirstAnswer, Idempotency, Jobs, KeyHash, ListOrder, Message, NewDelivery, NewReplay, Outbox,
    Pause, PauseScope, ReplayWhat, Session, Settlement, SigningSecret, WebhookTarget,
};

use crate::fixtures::{MemoryLog, block_on, copied, part, settlement};
use crate::master_key;
use crate::prove::{CannotRun, Context, Figure, Findings, Options};

/// The file of a data folder that has no data: the reserve. The master key is in no file, but in this process.
const NO_DATA: &[&str] = &["reserve"];
/// How many tenants share the store.
const TENANTS: u64 = 4;

const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

pub fn run(options: &Options) -> Findings {
    let messages = if options.quick { 64 } else { 1_024 };
    block_on(prove(messages))
}

async fn prove(messages: u64) -> Findings {
    let home = tempfile::tempdir()?;
    let data = home.path().join("data");
    let log = MemoryLog::default();
    // This process has no other subscriber.
    _ = tracing::subscriber::set_global_default(log.subscriber(tracing::Level::TRACE));
    tracing::info!("the proof begins");
    let mut plant = Plant::begin(&data).await?;
    plant.everything(messages).await?;
    let under_load = copied(&data, &home.path().join("under_load"), |name| NO_DATA.contains(&name))?;
    let backup = home.path().join("backup");
    let made = back_up(&data, &backup, NOW, |_| true);
    made.context("there is no backup to search")?;
    plant.store.close().await;
    let canaries = plant.canaries;
    fs::write(home.path().join("data/log"), log.text())?;
    let (hits, searched) = search(&[&under_load, &backup, &data], &canaries)?;
    let control = control(&home.path().join("control"), &canaries[0])?;
    let moved = copied(&data, &home.path().join("moved"), |name| NO_DATA.contains(&name))?;
    let (moves, opened) = moved_values(&moved).await?;
    let (moves_in_backup, opened_in_backup) = moved_in_backup(&backup, home.path()).await?;
    Ok(vec![
        Figure::at_least("canaries", canaries.len() as f64, "texts", messages as f64),
        Figure::at_least("searched", searched as f64 / 1e3, "kB", 100.0),
        Figure::at_least("logged", log.text().len() as f64, "bytes", 1.0),
        Figure::at_most("found_in_the_clear", hits as f64, "places", 0.0),
        Figure::at_least("negative_control_found", control as f64, "forms", attacker::FORMS.len() as f64),
        Figure::at_least("values_moved", moves as f64, "values", messages as f64 * 0.8),
        Figure::at_most("moved_values_opened", opened as f64, "values", 0.0),
        Figure::at_least("values_moved_in_backup", moves_in_backup as f64, "values", messages as f64 * 0.8),
        Figure::at_most("moved_in_backup_opened", opened_in_backup as f64, "values", 0.0),
    ])
}

/// Fills a store with canaries.
struct Plant {
    store: Sqlite,
    session: Session,
    next: u64,
    canaries: Vec<String>,
}

impl Plant {
    async fn begin(folder: &Path) -> Result<Self, CannotRun> {
        let store = Sqlite::open_folder(folder, master_key())?;
        let session = store.open(NOW).await?.session;
        Ok(Self { store, session, next: 0, canaries: Vec::new() })
    }

    /// A unique text, with characters that every escaping changes.
    fn canary(&mut self, field: &str) -> String {
        let text = format!("{field}-{:032x}-\"é/+%", u128::from_le_bytes(random::bytes()));
        self.canaries.push(text.clone());
        text
    }

    fn key(&mut self, count: u64) -> Key {
        let key = Key::new(self.session.writer, self.next + 1);
        self.next += count;
        key
    }

    async fn everything(&mut self, messages: u64) -> Result<(), CannotRun> {
        let mut endpoints = Vec::new();
        for tenant in 1..=TENANTS {
            endpoints.push(self.endpoint(TenantId::from_raw(tenant)).await?);
        }
        for number in 0..messages {
            let endpoint = &endpoints[usize::try_from(number % TENANTS).unwrap_or(0)];
            self.message(number, endpoint).await?;
        }
        for endpoint in &endpoints {
            self.ask_for_dead_letters(endpoint.tenant).await?;
            let reason = Some(self.canary("reason"));
            let pause = Pause { reason, ..Pause::new(PauseScope::Tenant(endpoint.tenant), None) };
            self.store.pause(self.session, pause, NOW).await?;
        }
        Ok(())
    }

    async fn endpoint(&mut self, tenant: TenantId) -> Result<Endpoint, CannotRun> {
        let id = self.key(2);
        let (id, lane) = (EndpointId(id), LaneId(id.plus(1)));
        let target = WebhookTarget {
            url: format!("https://example.com/{}", self.canary("url")),
            headers: vec![(self.canary("header"), self.canary("header"))],
            secrets: vec![
                SigningSecret::lasting(self.canary("secret")),
                SigningSecret { text: self.canary("secret"), until: Some(NOW) },
            ],
            tls: EndpointTls {
                ca: Some(self.canary("ca")),
                client_cert: Some(self.canary("certificate")),
                client_key: Some(self.canary("key")),
            },
            status_overrides: vec![(self.canary("status"), self.canary("class"))],
        };
        let mut endpoint = Endpoint::new(id, lane, tenant, NOW, target);
        endpoint.uid = Some(self.canary("uid"));
        endpoint.description = Some(self.canary("description"));
        endpoint.tags = vec![self.canary("tag")];
        endpoint.time_zone = Some(self.canary("zone"));
        // Half of the endpoints have a subject.
        endpoint.subject = tenant.raw().is_multiple_of(2).then(|| self.canary("subject"));
        endpoint.event_types = vec![self.canary("wants")];
        endpoint.policy = Some(self.canary("policy"));
        let once = self.call(tenant);
        _ = self.store.put_endpoint(self.session, endpoint.clone(), Some(once), AuditStamp::at(NOW)).await?;
        Ok(endpoint)
    }

    fn call(&mut self, tenant: TenantId) -> Idempotency {
        let answer = FirstAnswer { status: 202, body: self.canary("answer").into_bytes().into() };
        Idempotency { tenant, key: KeyHash(random::bytes()), digest: random::bytes(), answer, at: NOW }
    }

    /// The optional properties of a message beside its payload.
    fn details(&mut self) -> Details {
        Details {
            labels: vec![(self.canary("label"), self.canary("label"))],
            region: Some(self.canary("region")),
            cost_center: Some(self.canary("cost")),
            audience: Audience {
                subjects: vec![self.canary("audience")],
                tags: vec![self.canary("tag")],
                ..Audience::default()
            },
            ..Details::default()
        }
    }

    /// A message whose delivery is dead, so that its payload stays as long as the dead letter.
    async fn message(&mut self, number: u64, endpoint: &Endpoint) -> Result<(), CannotRun> {
        let id = MessageId(self.key(2));
        let mut message = Message::new(id, endpoint.tenant, NOW, self.canary("body"));
        message.event_type = Some(self.canary("event"));
        message.correlation_id = Some(self.canary("correlation"));
        message.subject = number.is_multiple_of(2).then(|| self.canary("subject"));
        message.compact = number.is_multiple_of(4).then(|| self.canary("compact").into_bytes().into());
        message.details = Some(Box::new(self.details()));
        let delivery =
            Delivery::queued(DeliveryId(id.0.plus(1)), id, endpoint.id, endpoint.lane, Tier::Promotional, NOW);
        let lane = Arc::new(LaneSettings::new(endpoint.lane, endpoint.tenant, Arc::default()));
        let new = NewDelivery::new(delivery.clone(), RowIndex::Ready, lane);
        let once = self.call(endpoint.tenant);
        let accepted = Accepted { idempotency: Some(once.clone()), ..Accepted::new(message, vec![new]) };
        let first = self.store.accept(self.session, vec![accepted.clone()]).await?;
        let again = self.store.accept(self.session, vec![accepted]).await?;
        if first != [Acceptance::Fresh] || again != [Acceptance::Replayed(once.answer)] {
            return Err(CannotRun("a message and its repetition were not answered as new and repeated".to_owned()));
        }
        self.store.arrivals().await;
        self.give_up(&delivery).await
    }

    async fn give_up(&mut self, delivery: &Delivery) -> Result<(), CannotRun> {
        let (took, cause) = (Duration::from_millis(7), Cause::Unavailable);
        let attempt = AttemptRecord { number: 1, at: NOW, took, cause, status: Some(503) };
        let settlement = settlement(self.session, delivery, State::Dead { at: NOW, cause }, attempt);
        let excerpt = Some(self.canary("excerpt").into());
        self.store.settle(self.session, vec![Settlement { excerpt, ..settlement }]).await?;
        Ok(())
    }

    /// Lists, replays and purges dead letters by an event type that is a canary.
    async fn ask_for_dead_letters(&mut self, tenant: TenantId) -> Result<(), CannotRun> {
        let all = DeadLetterFilter::of(tenant);
        let filter = DeadLetterFilter { event_type: Some(self.canary("filter")), ..all.clone() };
        self.store.dead_letters(filter.clone(), ListOrder::NewestFirst, None, 10).await?;
        let id = JobId(self.key(1));
        let what = ReplayWhat::Found(filter.clone());
        let reason = Some(self.canary("reason"));
        let replay = NewReplay { reason, ..NewReplay::new(id, tenant, NOW, what) };
        self.store.start_replay(self.session, replay, None).await?;
        self.store.purge_dead_letters(self.session, tenant, filter, AuditStamp::at(NOW)).await?;
        let page = self.store.dead_letters(all, ListOrder::NewestFirst, None, 1).await?;
        let letter = page.letters.first().and_then(|letter| letter.event_type.clone());
        match letter {
            Some(event_type) if self.canaries.contains(&event_type) => Ok(()),
            other => Err(CannotRun(format!("a dead letter came back with {other:?}"))),
        }
    }
}

/// Runs the attacker's search. Returns how many canaries it found and how many bytes it read.
fn search(folders: &[&Path], canaries: &[String]) -> Result<(u64, u64), CannotRun> {
    part::found_and_searched(&part::run("search-sealed", folders, &canaries.join("\n"))?)
}

/// The control: in how many encodings the search finds a canary that is not sealed.
fn control(folder: &Path, canary: &String) -> Result<u64, CannotRun> {
    fs::create_dir_all(folder)?;
    for (name, form) in attacker::FORMS {
        fs::write(folder.join(name), [b"....".as_slice(), &form(canary.as_bytes()), b"...."].concat())?;
    }
    search(&[folder], std::slice::from_ref(canary)).map(|(hits, _)| hits)
}

/// Has the attacker move sealed values in a data folder. Returns how many were moved and how many of them open.
async fn moved_values(folder: &Path) -> Result<(u64, u64), CannotRun> {
    let moved = moved(folder)?;
    Ok((moved.len() as u64, opened(folder, &moved).await?))
}

/// The same in a backup that is restored afterwards.
async fn moved_in_backup(backup: &Path, home: &Path) -> Result<(u64, u64), CannotRun> {
    let altered = copied(backup, &home.join("altered"), |name| NO_DATA.contains(&name))?;
    let moved = moved(&altered)?;
    let data = home.join("restored");
    let restored = restore(&altered, &data, &[], NOW, |_| Ok(master_key()), |_| {}).await;
    restored.context("a backup that matches its manifest is not restored")?;
    Ok((moved.len() as u64, opened(&data, &moved).await?))
}

/// Has the attacker move sealed values. Returns the kind and id of each row that it changed.
fn moved(folder: &Path) -> Result<Vec<(String, u64)>, CannotRun> {
    let text = part::run("move-sealed", [folder.join("posthaste.db")], "")?;
    let moved: Vec<(String, u64)> = text
        .lines()
        .filter_map(|line| line.split_once(' ').and_then(|(what, id)| Some((what.to_owned(), id.parse().ok()?))))
        .collect();
    if moved.is_empty() {
        return Err(CannotRun("the attacker moved nothing".to_owned()));
    }
    Ok(moved)
}

/// How many of the moved values the store can open.
async fn opened(folder: &Path, moved: &[(String, u64)]) -> Result<u64, CannotRun> {
    let store = Sqlite::open_folder(folder, master_key())?;
    let mut opened = 0;
    for (what, id) in moved {
        let opens = match what.as_str() {
            "endpoint" => store.endpoint(EndpointId::from_raw(*id)).await.is_ok_and(|found| found.is_some()),
            _ => store.message(MessageId::from_raw(*id)).await.is_ok_and(|found| found.is_some()),
        };
        if opens {
            eprintln!("a moved value opens: {what} {id}");
            opened += 1;
        }
    }
    store.close().await;
    Ok(opened)
}
