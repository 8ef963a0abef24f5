//! Carries out jobs: large fan-outs and replays, a chunk at a time. It begins where the store says that
//! a job is, so that a restart goes on; and it leaves most of the writer's time to everybody else.
//!
//! Invariant: a chunk names where its job's cursor stood. Of two chunks made from the same place the
//! store takes one, so that each endpoint gets a message once and nothing is replayed twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::{Compact, Delivery, Expiry};
use posthaste_core::fanout::Fanout;
use posthaste_core::id::{DeliveryId, EndpointId, JobId, MessageId, TenantId};
use posthaste_core::queue::Place;
use posthaste_core::time::Timestamp;
use posthaste_store::{
    Archive, Chunk, Directory, FanOut, Job, JobCursor, JobKind, JobQuery, Jobs, Message, NewDelivery, Register,
    Replayable, Session, Skip, Skips, Spread, StoreError,
};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::destination::{Destination, Destinations};
use crate::dispatch::driver::Handle;
use crate::mint::Mint;

/// Endpoints looked at for one chunk of a fan-out: a group commit's worth.
const CHUNK: u32 = 500;
/// Payloads read for one chunk of a replay; what does not fit waits for the next.
const CHUNK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Jobs that take turns; later ones wait until one of these is done.
const TURNS_MAX: u32 = 64;
/// For each second of the writer's time that jobs take, others have so many.
const YIELD: u32 = 4;
/// How often jobs are looked for that nobody told of: those that somebody resumed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What carries jobs out.
#[derive(Debug)]
pub(crate) struct JobRunner<S, C> {
    pub(crate) store: Arc<S>,
    pub(crate) session: Session,
    pub(crate) destinations: Arc<Destinations<S>>,
    pub(crate) handle: Handle,
    pub(crate) clock: C,
    pub(crate) mint: Mint,
    /// Told when there is a new job.
    pub(crate) wake: Arc<Notify>,
}

impl<S: Jobs + Directory + Register + Archive, C: Clock> JobRunner<S, C> {
    /// Runs until `stop`, or until the store has stopped. A chunk that has begun is finished.
    pub(crate) async fn run(self, stop: CancellationToken) {
        // When each paced job may go on.
        let mut turns: BTreeMap<JobId, Instant> = BTreeMap::new();
        while !stop.is_cancelled() {
            let wait = match self.round(&mut turns).await {
                Ok(wait) => wait,
                Err(StoreError::Stopped | StoreError::Fenced { .. }) => return,
                Err(error) => {
                    tracing::warn!(%error, "a job could not go on; trying again");
                    LOOK_EVERY
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// One chunk of every job whose turn it is; says how long to wait for the next round.
    async fn round(&self, turns: &mut BTreeMap<JobId, Instant>) -> Result<Duration, StoreError> {
        let running = self.store.jobs(JobQuery::Running, None, TURNS_MAX).await?;
        turns.retain(|id, _| running.iter().any(|job| job.id == *id));
        let mut wait = LOOK_EVERY;
        for job in running {
            let begun = Instant::now();
            if turns.get(&job.id).is_some_and(|turn| *turn > begun) {
                continue;
            }
            let made = match &job.kind {
                JobKind::FanOut(fan_out) => self.fan_out(&job, fan_out).await?,
                _ => self.replay(&job).await?,
            };
            let yielded = begun.elapsed() * YIELD;
            turns.insert(job.id, begun + paced(made, job.per_second).max(yielded));
            tokio::time::sleep(yielded.min(LOOK_EVERY)).await;
        }
        let now = Instant::now();
        if let Some(next) = turns.values().min() {
            wait = wait.min(next.saturating_duration_since(now));
        }
        Ok(wait)
    }

    /// The next chunk of a large fan-out: the endpoints behind its cursor that were there when it was
    /// accepted and want it now.
    async fn fan_out(&self, job: &Job, fan_out: &FanOut) -> Result<u64, StoreError> {
        let after = (job.cursor != JobCursor::START).then(|| EndpointId::from_raw(job.cursor.number));
        let mut walked = self.store.endpoints_after(job.tenant, after, CHUNK).await?;
        let full = walked.len() == CHUNK as usize;
        // Keys grow: what was made later has a higher one than the message.
        walked.retain(|endpoint| endpoint.id.0 < fan_out.message.0);
        let last = !full || walked.len() < CHUNK as usize;
        let to = walked.last().map_or(job.cursor, |endpoint| JobCursor::behind(endpoint.id.raw()));
        let message = self.store.message(fan_out.message).await?;
        let wants = |to: &Arc<Destination>| {
            let event_type = message.as_ref().and_then(|message| message.event_type.as_deref());
            let audience = message.as_ref().and_then(|message| message.details.as_ref()).map(|said| &said.audience);
            let candidate = to.candidate();
            let is_meant =
                audience.map_or_else(|| candidate.wants(event_type), |audience| audience.has(&candidate, event_type));
            to.takes_messages() && is_meant
        };
        let wanted = self.destinations.made_ready(job.tenant, walked).await?;
        let wanted: Vec<Arc<Destination>> = wanted.into_iter().filter(wants).collect();
        let deliveries = match message {
            Some(message) => self.deliveries(fan_out, &message, &wanted),
            None => Vec::new(),
        };
        let made = deliveries.len() as u64;
        let skipped = if deliveries.is_empty() { wanted.len() as u64 } else { 0 };
        let skipped = Skips::of(Skip::PayloadGone, skipped);
        self.spread(Chunk { job: job.id, at: self.clock.now(), from: job.cursor, to, deliveries, skipped, last })
            .await?;
        Ok(made)
    }

    fn deliveries(&self, fan_out: &FanOut, message: &Arc<Message>, wanted: &[Arc<Destination>]) -> Vec<Spread> {
        let fanout = Fanout {
            message: message.id,
            tier: fan_out.tier,
            accepted_at: message.at,
            deliver_at: fan_out.deliver_at,
            ttl: fan_out.ttl,
            ack_within: None,
            has_compact: message.compact.is_some(),
        };
        let first = self.mint.keys(wanted.len() as u64);
        let now = self.clock.now();
        let each = wanted.iter().zip(0..).map(|(to, n)| {
            let delivery = Delivery { id: DeliveryId(first.plus(n)), ..fanout.delivery(n, &to.candidate()) };
            let new = self.new_delivery(delivery, to, now, fanout.born());
            Spread { new, message: Arc::clone(message), replays: None }
        });
        each.collect()
    }

    fn new_delivery(&self, delivery: Delivery, to: &Destination, now: Timestamp, due: Timestamp) -> NewDelivery {
        let spilling = self.handle.is_spilling(to.lane.lane, delivery.tier);
        let place = Place::for_new(to.lane.order, spilling, now, due);
        NewDelivery { delivery, place, lane: Arc::clone(&to.lane), collapse: None }
    }

    /// The next chunk of a replay: as much of a page as there is room for its payloads.
    async fn replay(&self, job: &Job) -> Result<u64, StoreError> {
        let limit = job.per_second.map_or(CHUNK, |pace| pace.clamp(1, CHUNK));
        let Some(page) = self.store.replay_page(job.id, limit).await? else { return Ok(0) };
        let mut chunk = Chunk {
            job: job.id,
            at: self.clock.now(),
            from: job.cursor,
            to: page.next,
            deliveries: Vec::new(),
            skipped: Skips::default(),
            last: page.last,
        };
        let mut carried = Carried::default();
        for item in page.items {
            match self.next_life(job, item.found, &mut carried).await? {
                Next::Life(life) => chunk.deliveries.push(*life),
                Next::Skip(why) => chunk.skipped.add(why, 1),
                Next::NotMeant => {}
            }
            if carried.bytes > CHUNK_BYTES_MAX {
                (chunk.to, chunk.last) = (item.cursor, false);
                break;
            }
        }
        let made = chunk.deliveries.len() as u64;
        self.spread(chunk).await?;
        Ok(made)
    }

    /// The delivery to make of something that was selected: no attempts, and as long a life as it had, or would
    /// have had.
    async fn next_life(&self, job: &Job, found: Replayable, carried: &mut Carried) -> Result<Next, StoreError> {
        let to = match meant(&self.destinations, job.tenant, &job.kind, &found).await? {
            Meant::For(to) => to,
            Meant::Skip(why) => return Ok(Next::Skip(why)),
            Meant::Not => return Ok(Next::NotMeant),
        };
        let of = match &found {
            Replayable::Ended(ended) => ended.message,
            Replayable::Missing(message) => message.id,
            Replayable::Not(why) => return Ok(Next::Skip(*why)),
        };
        let Some(message) = self.carried(job, of, carried).await? else { return Ok(Next::Skip(Skip::PayloadGone)) };
        let now = self.clock.now();
        let id = DeliveryId(self.mint.keys(1));
        let compact = if message.compact.is_some() { Compact::Spare } else { Compact::None };
        let (delivery, replays) = match found {
            Replayable::Ended(ended) => {
                let ttl = ended.expiry.at().map(|at| at.since(ended.born));
                let ttl = if matches!(ended.expiry, Expiry::NowOrNever(_)) { Some(Duration::ZERO) } else { ttl };
                let life = Delivery::queued(id, of, ended.lane, ended.tier, now);
                let expiry = Expiry::from_ttl(now, ttl);
                (Delivery { expiry, ack_within: ended.ack_within, compact, ..life }, Some(ended.id))
            }
            _ => {
                let said = message.details.as_deref();
                let fanout = Fanout {
                    message: of,
                    tier: message.tier,
                    accepted_at: now,
                    deliver_at: said.and_then(|said| said.deliver_at),
                    ttl: said.and_then(|said| said.ttl),
                    ack_within: None,
                    has_compact: message.compact.is_some(),
                };
                (Delivery { id, ..fanout.delivery(0, &to.candidate()) }, None)
            }
        };
        let due = delivery.born;
        let new = self.new_delivery(delivery, &to, now, due);
        Ok(Next::Life(Box::new(Spread { new, message, replays })))
    }

    /// A message of the job's tenant, read once for a chunk.
    async fn carried(
        &self,
        job: &Job,
        id: MessageId,
        carried: &mut Carried,
    ) -> Result<Option<Arc<Message>>, StoreError> {
        if let Some(known) = carried.messages.get(&id) {
            return Ok(known.clone());
        }
        let message = self.store.message(id).await?.filter(|found| found.tenant == job.tenant);
        carried.bytes += message.as_ref().map_or(0, |message| message.body.len());
        carried.messages.insert(id, message.clone());
        Ok(message)
    }

    async fn spread(&self, chunk: Chunk) -> Result<(), StoreError> {
        // Stale: somebody paused or cancelled the job meanwhile, and the next round knows.
        self.store.spread(self.session, chunk).await.map(drop)
    }
}

/// What a chunk's deliveries carry.
#[derive(Default)]
struct Carried {
    messages: BTreeMap<MessageId, Option<Arc<Message>>>,
    bytes: usize,
}

/// What becomes of something that a replay selected.
enum Next {
    Life(Box<Spread>),
    Skip(Skip),
    /// It was never meant: the endpoint does not want it.
    NotMeant,
}

/// For whom something that a replay selected is.
pub(crate) enum Meant {
    For(Arc<Destination>),
    /// For somebody who cannot get it.
    Skip(Skip),
    /// For nobody: the endpoint does not want it.
    Not,
}

/// Finds whom it is for. The file may say what it likes of a dead letter: it goes to nobody but its tenant's
/// endpoints.
pub(crate) async fn meant<S: Directory + Register>(
    destinations: &Destinations<S>,
    tenant: TenantId,
    kind: &JobKind,
    found: &Replayable,
) -> Result<Meant, StoreError> {
    let endpoint = match (found, kind) {
        (Replayable::Not(why), _) => return Ok(Meant::Skip(*why)),
        (Replayable::Ended(ended), _) => ended.lane.endpoint(),
        (Replayable::Missing(_), JobKind::ReplayMissing(missing)) => missing.endpoint,
        (Replayable::Missing(_), _) => return Ok(Meant::Not),
    };
    let is_theirs = |to: &Arc<Destination>| to.takes_messages() && to.endpoint.tenant == tenant;
    let Some(to) = destinations.load(endpoint).await?.filter(is_theirs) else {
        return Ok(Meant::Skip(Skip::EndpointGone));
    };
    if let Replayable::Missing(message) = found {
        let event_type = message.event_type.as_deref();
        let candidate = to.candidate();
        let is_meant = match &message.details {
            Some(said) => said.audience.has(&candidate, event_type),
            None => candidate.wants(event_type),
        };
        if !is_meant {
            return Ok(Meant::Not);
        }
    }
    Ok(Meant::For(to))
}

/// How long a job that made so many waits for its next turn.
fn paced(made: u64, per_second: Option<u32>) -> Duration {
    match per_second {
        Some(pace) => Duration::from_micros(made.saturating_mul(1_000_000) / u64::from(pace.max(1))),
        None => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests;
