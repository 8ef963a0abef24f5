//! Jobs over a real store, run by a process that is killed again and again.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::Path;
use std::task::Poll;

use posthaste_core::{Audience, Cause, Key, LaneId, RowIndex, TenantId, Tier, Timestamp};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Accepted, Archive, DeadLetterFilter, DeliveryRecord, Endpoint, JobState, Jobs, Missing, NewDelivery, NewReplay,
    Outbox, ReplayWhat, Settled, Watchable,
};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::SystemClock;
use crate::fixtures::{given_up, idle_engine, open_folder};

const TENANT: TenantId = TenantId::from_raw(3);

struct Process {
    store: Arc<Sqlite>,
    engine: Arc<Engine<Sqlite, SystemClock>>,
}

impl Process {
    async fn start(folder: &TempDir) -> Self {
        let store = open_folder(folder.path());
        Self { engine: idle_engine(Arc::clone(&store)).await, store }
    }

    fn jobs(&self) -> JobRunner<Sqlite, SystemClock> {
        JobRunner(Arc::clone(&self.engine))
    }

    /// Runs jobs for this many polls, or until this job is done.
    async fn work(&self, most_polls: usize, id: JobId) {
        let mut run = Box::pin(self.jobs().run(CancellationToken::new()));
        let mut polls = 0;
        let dies = poll_fn(|context| {
            polls += 1;
            if polls > most_polls {
                return Poll::Ready(());
            }
            run.as_mut().poll(context)
        });
        // In a task of its own, so that its reads do not count as polls.
        let store = Arc::clone(&self.store);
        let mut done = JoinSet::new();
        done.spawn(async move {
            while store.job(id).await.is_ok_and(|job| job.is_some_and(|job| job.state != JobState::Done)) {
                tokio::task::yield_now().await;
            }
        });
        tokio::select! {
            biased;
            () = dies => {}
            _ = done.join_next() => {}
        }
    }

    async fn die(self) {
        self.store.close().await;
    }

    async fn job(&self, id: JobId) -> DeliveryJob {
        self.store.job(id).await.expect("the store reads").expect("the job is there")
    }

    async fn put_endpoint(&self, tenant: TenantId, event_types: &[&str]) -> EndpointId {
        let event_types = event_types.iter().map(|text| (*text).to_owned()).collect();
        self.put_named(Endpoint { event_types, max_in_flight: 4, ..self.endpoint(tenant) }).await
    }

    fn endpoint(&self, tenant: TenantId) -> Endpoint {
        let id = EndpointId(self.engine.mint(2));
        Endpoint::new(id, lane_of(id), tenant, Timestamp::from_millis(0), "https://example.com/")
    }

    async fn put_named(&self, endpoint: Endpoint) -> EndpointId {
        let id = endpoint.id;
        let put = self.store.put_endpoint(self.engine.session, endpoint, None, self.engine.done_by(None)).await;
        _ = put.expect("an endpoint is put");
        id
    }

    fn message(&self) -> Message {
        let id = MessageId(self.engine.mint(1));
        Message {
            event_type: Some("a.b".to_owned()),
            correlation_id: Some(id.to_string()),
            ..Message::new(id, TENANT, self.engine.now(), "{}")
        }
    }

    fn message_for(&self, tags: &[&str]) -> Message {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let details = Details { audience: Audience { tags, ..Audience::default() }, ..Details::default() };
        Message { details: Some(Box::new(details)), ..self.message() }
    }

    async fn accept(&self, accepted: Accepted) {
        _ = self.store.accept(self.engine.session, vec![accepted]).await.expect("it is accepted");
    }

    /// Sends a message of this many bytes to all endpoints of a tenant, by a job.
    async fn fan_out(&self, tenant: TenantId, bytes: usize) -> JobId {
        self.fan_out_of(Message { tenant, body: vec![b'1'; bytes].into(), ..self.message() }).await
    }

    /// Accepts a message whose deliveries a job makes.
    async fn fan_out_of(&self, message: Message) -> JobId {
        let message = Arc::new(message);
        let fan_out = FanOut { message: message.id, tier: Tier::Engagement, deliver_at: None, ttl: None };
        self.accept(Accepted { fan_out: Some(fan_out), ..Accepted::new(Arc::clone(&message), Vec::new()) }).await;
        JobId(message.id.0)
    }

    async fn start_replay(&self, what: ReplayWhat, per_second: Option<u32>) -> JobId {
        let id = JobId(self.engine.mint(1));
        let replay = NewReplay { per_second, ..NewReplay::new(id, TENANT, self.engine.now(), what) };
        self.store.start_replay(self.engine.session, replay, None).await.expect("a replay begins");
        id
    }

    async fn accept_for(&self, endpoint: EndpointId, message: Message) -> Delivery {
        let lane = lane_of(endpoint);
        let id = DeliveryId(self.engine.mint(1));
        let delivery = Delivery::queued(id, message.id, endpoint, lane, Tier::Promotional, Timestamp::from_millis(0));
        let settings = posthaste_core::LaneSettings::new(lane, TENANT, Arc::default());
        let new = NewDelivery::new(delivery.clone(), RowIndex::Ready, Arc::new(settings));
        self.accept(Accepted::new(message, vec![new])).await;
        delivery
    }

    async fn every_delivery(&self, message: MessageId) -> Vec<DeliveryRecord> {
        let mut all: Vec<DeliveryRecord> = Vec::new();
        loop {
            let after = all.last().map(|shown| shown.delivery.id);
            let page = self.store.deliveries(message, after, self.engine.now(), 700).await.expect("the store reads");
            let full = page.len() == 700;
            all.extend(page);
            if !full {
                return all;
            }
        }
    }
}

/// Kills processes until a job has ended; returns the last process and the number of kills.
async fn until_done(folder: &TempDir, id: JobId) -> (Process, usize) {
    let mut deaths = 0;
    loop {
        let process = Process::start(folder).await;
        if process.job(id).await.state == JobState::Done {
            return (process, deaths);
        }
        process.work(4 + deaths * deaths, id).await;
        process.die().await;
        deaths += 1;
    }
}

#[tokio::test]
async fn large_fan_out_reaches_each_endpoint_once_across_crashes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let process = Process::start(&folder).await;
    let put = (0..2_300).map(|n| process.put_endpoint(TENANT, if n % 10 == 0 { &["c.*"] } else { &[] }));
    futures_util::future::join_all(put).await;
    let id = process.fan_out(TENANT, 2).await;
    let message = MessageId(id.0);
    process.put_endpoint(TENANT, &[]).await;
    process.die().await;

    let (process, deaths) = until_done(&folder, id).await;
    assert!(deaths >= 3, "it died {deaths} times only");
    let deliveries = process.every_delivery(message).await;
    let endpoints: BTreeSet<EndpointId> = deliveries.iter().map(|shown| shown.delivery.endpoint).collect();
    assert_eq!((deliveries.len(), endpoints.len()), (2_070, 2_070), "one for each that wants it and was there");
    assert!(endpoints.iter().all(|endpoint| endpoint.0 < message.0));
    assert!(deliveries.iter().all(|shown| shown.delivery.lane == lane_of(shown.delivery.endpoint)));
    assert_eq!(process.job(id).await.made, 2_070);
    process.die().await;
}

#[tokio::test]
async fn a_fan_out_by_tag_reaches_each_endpoint_with_the_tag_once_and_reads_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let process = Process::start(&folder).await;
    let put = (0..2_400).map(|n| {
        let tags = match n % 4 {
            0 => vec!["eu".to_owned(), "beta".to_owned()],
            1 => vec!["eu".to_owned()],
            _ => vec!["us".to_owned()],
        };
        let event_types = if n % 8 == 0 { vec!["c.*".to_owned()] } else { Vec::new() };
        process.put_named(Endpoint { tags, event_types, ..process.endpoint(TENANT) })
    });
    futures_util::future::join_all(put).await;
    let id = process.fan_out_of(process.message_for(&["eu", "beta"])).await;
    process.put_named(Endpoint { tags: vec!["eu".to_owned()], ..process.endpoint(TENANT) }).await;
    process.die().await;

    let (process, _) = until_done(&folder, id).await;
    let deliveries = process.every_delivery(MessageId(id.0)).await;
    let lanes: BTreeSet<LaneId> = deliveries.iter().map(|shown| shown.delivery.lane).collect();
    assert_eq!((deliveries.len(), lanes.len()), (900, 900), "of 1,200 with a tag 300 want other events");
    assert_eq!(process.job(id).await.made, 900);
    process.die().await;

    // Without a crash: a chunk reads only its own candidates, and two tags of one endpoint are two rows of the index.
    let process = Process::start(&folder).await;
    let id = process.fan_out_of(process.message_for(&["beta"])).await;
    process.work(usize::MAX, id).await;
    assert_eq!(process.job(id).await.made, 300);
    let rows = process.store.condition().recipient_rows;
    assert!(rows <= 1_300, "{rows} rows for 600 endpoints with the tag");
    process.die().await;
}

#[tokio::test]
async fn replay_delivers_each_dead_letter_once_across_crashes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let process = Process::start(&folder).await;
    process.put_endpoint(TENANT, &[]).await;
    let endpoint = EndpointId(Key::new(process.engine.session.writer, 1));
    let old = futures_util::future::join_all((0..1_200).map(|_| give_up(&process, endpoint))).await;
    let id = process.start_replay(ReplayWhat::Found(DeadLetterFilter::of(TENANT)), None).await;
    process.die().await;

    let (process, deaths) = until_done(&folder, id).await;
    assert!(deaths >= 3, "it died {deaths} times only");
    for delivery in old {
        let deliveries = process.every_delivery(delivery.message).await;
        let ids: Vec<DeliveryId> = deliveries.iter().map(|shown| shown.delivery.id).collect();
        let lives = process.store.lives(vec![delivery.id]).await.expect("the store reads");
        let next = lives[0].next.expect("it has a next life");
        assert_eq!(ids, [delivery.id, next]);
        assert_eq!(deliveries[1].delivery.attempts, 0);
    }
    let job = process.job(id).await;
    assert_eq!((job.made, job.skipped.total()), (1_200, 0));
    process.die().await;
}

#[tokio::test]
async fn replay_of_missing_messages_delivers_each_once_across_crashes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let process = Process::start(&folder).await;
    let accept = async |event_type: &str| {
        let message = Message { event_type: Some(event_type.to_owned()), ..process.message() };
        let id = message.id;
        process.accept(Accepted::new(message, Vec::new())).await;
        id
    };
    let wanted = futures_util::future::join_all((0..600).map(|_| accept("a.b"))).await;
    let others = futures_util::future::join_all((0..100).map(|_| accept("c.d"))).await;
    let endpoint = process.put_endpoint(TENANT, &["a.*"]).await;
    let id = process.start_replay(ReplayWhat::Missing(Missing { endpoint, since: None, until: None }), None).await;
    process.die().await;

    let (process, deaths) = until_done(&folder, id).await;
    assert!(deaths >= 3, "it died {deaths} times only");
    for message in wanted {
        let endpoints: Vec<EndpointId> =
            process.every_delivery(message).await.iter().map(|shown| shown.delivery.endpoint).collect();
        assert_eq!(endpoints, [endpoint]);
    }
    for message in others {
        assert!(process.every_delivery(message).await.is_empty());
    }
    let job = process.job(id).await;
    assert_eq!((job.made, job.skipped.total()), (600, 0));
    process.die().await;
}

#[tokio::test]
async fn replayed_delivery_has_the_tenants_own_message_and_endpoint() {
    const OTHERS: TenantId = TenantId::from_raw(4);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let process = Process::start(&folder).await;
    let own = process.put_endpoint(TENANT, &[]).await;
    let others = process.put_endpoint(OTHERS, &[]).await;
    let ended = give_up(&process, own).await;
    let id = process.start_replay(ReplayWhat::Found(DeadLetterFilter::of(TENANT)), None).await;
    let job = process.job(id).await;
    let jobs = process.jobs();
    let next_life = async |job: &DeliveryJob, endpoint: EndpointId| {
        let found = Replayable::Ended(Delivery { endpoint, ..ended.clone() });
        match jobs.next_life(job, found, &mut Carried::default()).await.expect("the store reads") {
            Meant::For(life) => Ok(life.new.delivery.endpoint),
            Meant::Skip(why) => Err(why),
            Meant::Not => panic!("an ended delivery has an endpoint"),
        }
    };
    assert_eq!(next_life(&job, own).await, Ok(own));
    assert_eq!(next_life(&job, others).await, Err(Skip::EndpointGone), "the endpoint is another tenant's");
    let theirs = DeliveryJob { tenant: OTHERS, ..job };
    assert_eq!(next_life(&theirs, others).await, Err(Skip::PayloadGone), "another tenant's message");
    assert_eq!(next_life(&theirs, own).await, Err(Skip::EndpointGone));
    process.die().await;
}

#[tokio::test]
async fn altered_message_is_skipped_and_later_jobs_continue() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("posthaste.db");
    let process = Process::start(&folder).await;
    process.put_endpoint(TENANT, &[]).await;
    process.die().await;
    let before = std::fs::read(&file).expect("the database");
    let process = Process::start(&folder).await;
    let altered = process.fan_out(TENANT, 512 * 1024).await;
    process.die().await;
    alter_what_is_new(&file, &before);

    let process = Process::start(&folder).await;
    let behind = process.fan_out(TENANT, 2).await;
    process.work(300, behind).await;
    let job = process.job(behind).await;
    assert_eq!((job.state, job.made, job.skipped.total()), (JobState::Done, 1, 0));
    let job = process.job(altered).await;
    assert_eq!((job.state, job.made, job.skipped), (JobState::Done, 0, Skips::of(Skip::Quarantined, 1)));
    process.die().await;
}

/// Changes a byte in the middle of the pages that were added to the file, which are mostly the last message's payload.
fn alter_what_is_new(file: &Path, before: &[u8]) {
    const PAGE_BYTES: usize = 4096;
    let mut now = std::fs::read(file).expect("the database");
    let is_new = |page: &usize| {
        let part = |bytes: &[u8]| bytes.get(page * PAGE_BYTES..(page + 1) * PAGE_BYTES).map(<[u8]>::to_vec);
        part(&now) != part(before)
    };
    let new: Vec<usize> = (0..now.len() / PAGE_BYTES).filter(is_new).collect();
    assert!(new.len() > 100, "the payload is in the file: {new:?}");
    now[new[new.len() / 2] * PAGE_BYTES + 1_000] ^= 1;
    std::fs::write(file, now).expect("the database is written");
}

#[tokio::test]
async fn fan_out_does_not_wait_for_replays_and_every_replay_has_its_turn() {
    const OTHERS: TenantId = TenantId::from_raw(4);
    const REPLAYS: usize = 70;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let process = Process::start(&folder).await;
    let endpoint = process.put_endpoint(TENANT, &[]).await;
    process.put_endpoint(OTHERS, &[]).await;
    let old = futures_util::future::join_all((0..3 * REPLAYS).map(|_| give_up(&process, endpoint))).await;
    let mut replays = Vec::new();
    for each in old.chunks(3) {
        let what = ReplayWhat::Listed(each.iter().map(|delivery| delivery.id).collect());
        // At this rate no replay ends within the test.
        replays.push(process.start_replay(what, Some(1)).await);
    }
    let (jobs, stop, mut turns) = (process.jobs(), CancellationToken::new(), Turns::default());
    for _ in 0..REPLAYS {
        jobs.round(&mut turns, &stop).await.expect("the store works");
    }
    for id in &replays {
        assert_eq!(process.job(*id).await.made, 1, "each has had its turn");
    }
    let fan_out = process.fan_out(OTHERS, 2).await;
    jobs.round(&mut turns, &stop).await.expect("the store works");
    assert_eq!(process.job(fan_out).await.state, JobState::Done);
    process.die().await;
}

#[tokio::test]
async fn chunk_does_not_wait_for_room_during_shutdown() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let process = Process::start(&folder).await;
    let endpoint = process.put_endpoint(TENANT, &[]).await;
    let id = process.fan_out(TENANT, 2).await;
    // As much as may be on its way to a loop that takes no arrivals.
    for _ in 0..4 {
        let message = Message { body: vec![b'1'; 4_095 * 1_024].into(), ..process.message() };
        process.accept_for(endpoint, message).await;
    }
    let (jobs, stop, job) = (process.jobs(), CancellationToken::new(), process.job(id).await);
    let JobKind::FanOut(fan_out) = &job.kind else { panic!("it is a fan-out") };
    stop.cancel();
    let made = jobs.fan_out(&job, fan_out, &stop);
    tokio::time::timeout(Duration::from_secs(30), made).await.expect("it ends").expect("nothing failed");
    assert_eq!(process.job(id).await, job, "the next start makes it");
    process.die().await;
}

#[test]
fn job_with_a_rate_waits_in_proportion_to_its_chunk() {
    assert_eq!(paced(50, Some(100)), Duration::from_millis(500));
    assert_eq!(paced(50, None), Duration::ZERO);
    assert_eq!(paced(3, Some(0)), Duration::from_secs(3), "a rate of zero counts as one");
}

fn lane_of(endpoint: EndpointId) -> LaneId {
    LaneId(endpoint.0.plus(1))
}

async fn give_up(process: &Process, endpoint: EndpointId) -> Delivery {
    let delivery = process.accept_for(endpoint, process.message()).await;
    let settlement = given_up(&process.engine, &delivery, Timestamp::from_millis(5), Cause::NotFound);
    let settled = process.store.settle(process.engine.session, vec![settlement]).await.expect("it settles");
    assert_eq!(settled, [Settled::Done]);
    delivery
}
