//! Carries out jobs: large fan-outs and replays, a chunk at a time. Each chunk begins at the job's stored
//! cursor, so that a restart continues the job. Most of the writer thread's time is left to other work.
//!
//! Invariant: a chunk names the cursor that it was made from. Of two chunks made from the same cursor the
//! store takes one, so that each endpoint gets a message once and nothing is replayed twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Compact, Delivery, DeliveryId, EndpointId, Expiry, Fanout, JobId, MessageId, TenantId};
use posthaste_crypto::public_id::IdKind;
use posthaste_store::{
    Chunk, ChunkDelivery, DeliveryJob, Details, Directory, EndpointSelector, FanOut, JobCursor, JobKind, JobQuery,
    MatchedEndpoints, Message, Register, Replayable, Skip, Skips, Store, StoreError,
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::rest::{rest, wait};
use crate::{Clock, Engine, ParsedEndpoint, ParsedEndpointCache, field};

/// Endpoints read for one chunk of a fan-out: as many deliveries as one group commit takes.
const CHUNK: u32 = 500;
/// Bytes of payloads read for one chunk of a replay; the rest waits for the next chunk.
const CHUNK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Jobs read at a time; the next round continues after them, so that every job has its turn.
const PAGE: u32 = 64;
/// For each second that jobs take, the pause in seconds that is left to other work.
const YIELD: u32 = 4;
/// How often the store is polled for jobs that run again without a notice, such as those that were resumed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The wait of a job whose chunk failed; other jobs continue meanwhile.
const FAILED_AGAIN_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct JobRunner<S, C>(pub(crate) Arc<Engine<S, C>>);

#[derive(Debug, Default)]
struct Turns {
    next: BTreeMap<JobId, Instant>,
    /// The next round reads fan-outs after this one.
    fan_out: Option<JobId>,
    /// The next round reads replays after this one.
    replay: Option<JobId>,
}

impl<S: Store, C: Clock> JobRunner<S, C> {
    /// Runs until `stop`, or until the store has stopped. A chunk that has begun is finished.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut turns = Turns::default();
        while !stop.is_cancelled() {
            let look_within = match self.round(&mut turns, &stop).await {
                Ok(look_within) => look_within,
                Err(StoreError::Stopped | StoreError::Fenced { .. }) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot read jobs; retrying in a second");
                    LOOK_EVERY
                }
            };
            wait(timeout(look_within, self.0.new_job.notified()), &stop).await;
        }
    }

    /// Makes a chunk of each fan-out whose turn it is, then of one replay. Returns how long to wait before the next
    /// round. The deliveries of a fan-out were promised to a producer, so it never waits for more than one chunk of a
    /// replay.
    async fn round(&self, turns: &mut Turns, stop: &CancellationToken) -> Result<Duration, StoreError> {
        let now = Instant::now();
        turns.next.retain(|_, next| *next > now);
        let fan_outs = self.0.store.jobs(JobQuery::FanOuts, turns.fan_out, PAGE).await?;
        turns.fan_out = behind(&fan_outs);
        for job in &fan_outs {
            self.turn(job, turns, stop).await?;
        }
        let running = self.0.store.jobs(JobQuery::Running, turns.replay, PAGE).await?;
        turns.replay = behind(&running);
        for job in running.iter().filter(|job| !matches!(job.kind, JobKind::FanOut(_))) {
            if self.turn(job, turns, stop).await? {
                turns.replay = Some(job.id);
                break;
            }
        }
        if turns.fan_out.is_some() || turns.replay.is_some() {
            return Ok(Duration::ZERO);
        }
        let next = turns.next.values().min().map(|next| next.saturating_duration_since(Instant::now()));
        Ok(next.map_or(LOOK_EVERY, |next| next.min(LOOK_EVERY)))
    }

    /// Makes the next chunk of a job if its turn has come, and rests. Returns whether it had its turn. A job that fails
    /// does not stop the others.
    async fn turn(&self, job: &DeliveryJob, turns: &mut Turns, stop: &CancellationToken) -> Result<bool, StoreError> {
        let begun = Instant::now();
        if stop.is_cancelled() || turns.next.get(&job.id).is_some_and(|next| *next > begun) {
            return Ok(false);
        }
        let made = match &job.kind {
            JobKind::FanOut(fan_out) => self.fan_out(job, fan_out, stop).await,
            _ => self.replay(job, stop).await,
        };
        let yielded = begun.elapsed() * YIELD;
        let next = match made {
            Ok(made) => paced(made, job.per_second).max(yielded),
            Err(error @ (StoreError::Stopped | StoreError::Fenced { .. })) => return Err(error),
            Err(error) => {
                let id = |kind| self.0.public_id(kind, job.id.0, job.at);
                match &job.kind {
                    JobKind::FanOut(_) => tracing::warn!(
                        { field::MESSAGE } = id(IdKind::Message),
                        %error,
                        "fan-out of a message failed; retrying in ten seconds"
                    ),
                    _ => tracing::warn!(
                        { field::REPLAY } = id(IdKind::Replay),
                        %error,
                        "replay failed; retrying in ten seconds"
                    ),
                }
                FAILED_AGAIN_AFTER
            }
        };
        turns.next.insert(job.id, begun + next);
        rest(yielded.min(LOOK_EVERY), stop).await;
        Ok(true)
    }

    /// Makes the next chunk of a large fan-out, for the endpoints after its cursor that existed when the message was
    /// accepted and want it now.
    async fn fan_out(&self, job: &DeliveryJob, fan_out: &FanOut, stop: &CancellationToken) -> Result<u64, StoreError> {
        let (message, without) = self.payload(fan_out.message).await?;
        let MatchedEndpoints { endpoints: mut walked, next } = self.candidates(job, message.as_deref()).await?;
        // Keys grow: an endpoint that was made later has a higher key than the message.
        walked.retain(|endpoint| endpoint.id.0 < fan_out.message.0);
        let next = next.filter(|next| next.0 < fan_out.message.0);
        let last = next.is_none();
        let to = next.or_else(|| walked.last().map(|endpoint| endpoint.id));
        let to = to.map_or(job.cursor, |id| JobCursor::behind(id.raw()));
        // Without its message a delivery is only counted as skipped.
        let wants = |to: &Arc<ParsedEndpoint>| {
            let (event_type, details) =
                message.as_ref().map_or((None, None), |of| (of.event_type.as_deref(), of.details.as_deref()));
            to.endpoint.takes_messages() && wants(to, event_type, details)
        };
        let wanted = self.0.endpoint_cache.made_ready(job.tenant, walked).await?;
        let wanted: Vec<Arc<ParsedEndpoint>> = wanted.into_iter().filter(wants).collect();
        let deliveries = match message {
            Some(message) => self.deliveries(fan_out, &message, &wanted),
            None => Vec::new(),
        };
        let made = deliveries.len() as u64;
        let skipped = if deliveries.is_empty() { wanted.len() as u64 } else { 0 };
        let skipped = Skips::of(without, skipped);
        let chunk = Chunk { job: job.id, at: self.0.clock.now(), from: job.cursor, to, deliveries, skipped, last };
        self.spread(chunk, stop).await?;
        Ok(made)
    }

    /// The next endpoints after a job's cursor that a message may be for: those that its subjects and tags select, or
    /// all of the tenant's when the message names none or no longer exists.
    async fn candidates(&self, job: &DeliveryJob, message: Option<&Message>) -> Result<MatchedEndpoints, StoreError> {
        let after = (job.cursor != JobCursor::START).then(|| EndpointId::from_raw(job.cursor.number));
        let audience = message.and_then(|message| message.details.as_ref()).map(|details| &details.audience);
        if let Some(selector) = audience.and_then(|to| EndpointSelector::new(&to.subjects, &to.tags)) {
            return self.0.store.endpoints_matching(job.tenant, selector, after, CHUNK).await;
        }
        let endpoints = self.0.store.endpoints_after(job.tenant, after, CHUNK).await?;
        let next = endpoints.last().map(|last| last.id).filter(|_| endpoints.len() == CHUNK as usize);
        Ok(MatchedEndpoints { endpoints, next })
    }

    fn deliveries(
        &self,
        fan_out: &FanOut,
        message: &Arc<Message>,
        wanted: &[Arc<ParsedEndpoint>],
    ) -> Vec<ChunkDelivery> {
        let fanout = Fanout {
            message: message.id,
            tier: fan_out.tier,
            accepted_at: message.at,
            deliver_at: fan_out.deliver_at,
            ttl: fan_out.ttl,
            ack_within: None,
            has_compact: message.compact.is_some(),
        };
        let first = self.0.mint(wanted.len() as u64);
        let now = self.0.clock.now();
        let each = wanted.iter().zip(0..).map(|(to, n)| {
            let delivery = Delivery { id: DeliveryId(first.plus(n)), ..fanout.delivery(n, &to.candidate()) };
            let new = self.0.new_delivery(delivery, to, now);
            ChunkDelivery { new, message: Arc::clone(message), replays: None }
        });
        each.collect()
    }

    /// Makes the next chunk of a replay: as much of a page as its payloads have room for.
    async fn replay(&self, job: &DeliveryJob, stop: &CancellationToken) -> Result<u64, StoreError> {
        let limit = job.per_second.map_or(CHUNK, |pace| pace.clamp(1, CHUNK));
        let Some(page) = self.0.store.replay_page(job.id, limit).await? else { return Ok(0) };
        let mut chunk = Chunk {
            job: job.id,
            at: self.0.clock.now(),
            from: job.cursor,
            to: page.next,
            deliveries: Vec::new(),
            skipped: Skips::default(),
            last: page.last,
        };
        let mut carried = Carried::default();
        for item in page.items {
            match self.next_life(job, item.found, &mut carried).await? {
                Meant::For(life) => chunk.deliveries.push(*life),
                Meant::Skip(why) => chunk.skipped.add(why, 1),
                Meant::Not => {}
            }
            if carried.bytes > CHUNK_BYTES_MAX {
                (chunk.to, chunk.last) = (item.cursor, false);
                break;
            }
        }
        let made = chunk.deliveries.len() as u64;
        self.spread(chunk, stop).await?;
        Ok(made)
    }

    /// The delivery to make of a selected item: without attempts, and with the TTL that it had or would have had.
    async fn next_life(
        &self,
        job: &DeliveryJob,
        found: Replayable,
        carried: &mut Carried,
    ) -> Result<Meant<Box<ChunkDelivery>>, StoreError> {
        let to = match meant(&self.0.endpoint_cache, job.tenant, &job.kind, &found).await? {
            Meant::For(to) => to,
            Meant::Skip(why) => return Ok(Meant::Skip(why)),
            Meant::Not => return Ok(Meant::Not),
        };
        let of = match &found {
            Replayable::Ended(ended) => ended.message,
            Replayable::Missing(message) => message.id,
            Replayable::Not(why) => return Ok(Meant::Skip(*why)),
        };
        let message = match self.payload_once(job, of, carried).await? {
            Ok(message) => message,
            Err(without) => return Ok(Meant::Skip(without)),
        };
        let now = self.0.clock.now();
        let id = DeliveryId(self.0.mint(1));
        let compact = if message.compact.is_some() { Compact::Spare } else { Compact::None };
        let (delivery, replays) = match found {
            Replayable::Ended(ended) => {
                let ttl = ended.expiry.at().map(|at| at.since(ended.born));
                let ttl = if matches!(ended.expiry, Expiry::NowOrNever(_)) { Some(Duration::ZERO) } else { ttl };
                let life = Delivery::queued(id, of, to.endpoint.id, to.lane.lane, ended.tier, now);
                let expiry = Expiry::from_ttl(now, ttl);
                (Delivery { expiry, ack_within: ended.ack_within, compact, ..life }, Some(ended.id))
            }
            _ => {
                let details = message.details.as_deref();
                let fanout = Fanout {
                    message: of,
                    tier: message.tier,
                    accepted_at: now,
                    deliver_at: details.and_then(|details| details.deliver_at),
                    ttl: details.and_then(|details| details.ttl),
                    ack_within: None,
                    has_compact: message.compact.is_some(),
                };
                (Delivery { id, ..fanout.delivery(0, &to.candidate()) }, None)
            }
        };
        let new = self.0.new_delivery(delivery, &to, now);
        Ok(Meant::For(Box::new(ChunkDelivery { new, message, replays })))
    }

    /// A message, or `None` with the reason to skip its deliveries. A message that was altered in the file is
    /// quarantined, as is a row that Posthaste did not write.
    async fn payload(&self, id: MessageId) -> Result<(Option<Arc<Message>>, Skip), StoreError> {
        match self.0.store.message(id).await {
            Err(error @ StoreError::Altered { .. }) => {
                let at = self.0.store.accepted_at(vec![id]).await?.pop().flatten();
                let message = at.map(|at| self.0.public_id(IdKind::Message, id.0, at));
                tracing::error!({ field::MESSAGE } = message, %error, "stored message was altered; it is not sent");
                Ok((None, Skip::Quarantined))
            }
            found => Ok((found?, Skip::PayloadGone)),
        }
    }

    /// A message of the job's tenant, read once for a chunk, or the reason to skip it.
    async fn payload_once(
        &self,
        job: &DeliveryJob,
        id: MessageId,
        carried: &mut Carried,
    ) -> Result<Result<Arc<Message>, Skip>, StoreError> {
        if let Some(known) = carried.messages.get(&id) {
            return Ok(known.clone());
        }
        let (found, without) = self.payload(id).await?;
        let message = found.filter(|found| found.tenant == job.tenant).ok_or(without);
        carried.bytes += message.as_ref().map_or(0, |message| message.body.len());
        carried.messages.insert(id, message.clone());
        Ok(message)
    }

    async fn spread(&self, chunk: Chunk, stop: &CancellationToken) -> Result<(), StoreError> {
        // The call may wait for the loop to take arrivals, which it no longer does after a shutdown. The answer to a
        // chunk under way is not needed then: the next start continues at the stored cursor.
        tokio::select! {
            biased;
            // Stale: the job was paused or cancelled meanwhile, and the next round sees that.
            spread = self.0.store.spread(self.0.session, chunk) => spread.map(drop),
            () = stop.cancelled() => Ok(()),
        }
    }
}

#[derive(Default)]
struct Carried {
    messages: BTreeMap<MessageId, Result<Arc<Message>, Skip>>,
    bytes: usize,
}

/// What a replay does with a selected item: `T` is the item's recipient, or the delivery that is made for it.
pub(crate) enum Meant<T> {
    For(T),
    Skip(Skip),
    /// It is left out: the endpoint does not want the message.
    Not,
}

/// Finds the recipient of an item that a replay selected. A dead letter goes to endpoints of its own tenant only,
/// even if its row in the file was altered.
pub(crate) async fn meant<S: Directory + Register>(
    endpoint_cache: &ParsedEndpointCache<S>,
    tenant: TenantId,
    kind: &JobKind,
    found: &Replayable,
) -> Result<Meant<Arc<ParsedEndpoint>>, StoreError> {
    let endpoint = match (found, kind) {
        (Replayable::Not(why), _) => return Ok(Meant::Skip(*why)),
        (Replayable::Ended(ended), _) => ended.endpoint,
        (Replayable::Missing(_), JobKind::ReplayMissing(missing)) => missing.endpoint,
        (Replayable::Missing(_), _) => return Ok(Meant::Not),
    };
    let is_theirs = |to: &Arc<ParsedEndpoint>| to.endpoint.takes_messages() && to.endpoint.tenant == tenant;
    let Some(to) = endpoint_cache.load(endpoint).await?.filter(is_theirs) else {
        return Ok(Meant::Skip(Skip::EndpointGone));
    };
    match found {
        Replayable::Missing(of) if !wants(&to, of.event_type.as_deref(), of.details.as_deref()) => Ok(Meant::Not),
        _ => Ok(Meant::For(to)),
    }
}

/// Whether an endpoint wants an event type, and belongs to the audience in the details of its message.
fn wants(to: &ParsedEndpoint, event_type: Option<&str>, details: Option<&Details>) -> bool {
    let candidate = to.candidate();
    match details {
        Some(details) => details.audience.has(&candidate, event_type),
        None => candidate.wants(event_type),
    }
}

/// The cursor after a page of jobs, if there may be more.
fn behind(page: &[DeliveryJob]) -> Option<JobId> {
    page.last().map(|last| last.id).filter(|_| page.len() == PAGE as usize)
}

/// How long a job that made this many deliveries waits for its next turn.
fn paced(made: u64, per_second: Option<u32>) -> Duration {
    match per_second {
        Some(pace) => Duration::from_micros(made.saturating_mul(1_000_000) / u64::from(pace.max(1))),
        None => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests;
