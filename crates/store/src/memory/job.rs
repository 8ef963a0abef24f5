//! Jobs in memory: chunks of deliveries, each with the cursor behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, JobId, MessageId, TenantId};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;

use super::Memory;
use crate::journal::Entry;
use crate::row::{
    Acceptance, Arrival, Begun, Chunk, Chunked, FanOut, Idempotency, Job, JobCursor, JobKind, JobQuery, JobState,
    ListOrder, Message, NewReplay, ReplayItem, ReplayPage, ReplayWhat, Row, Session, Shown, Token,
};
use crate::{DELIVERIES_MAX, StoreError};

#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: BTreeMap<JobId, Job>,
    listed: BTreeMap<JobId, Vec<DeliveryId>>,
    /// How many deliveries follow one another, by their message and the first of them.
    pub(super) chunks: BTreeMap<(MessageId, DeliveryId), u64>,
    /// Next lives by what they replay, and back.
    lives: BTreeMap<DeliveryId, DeliveryId>,
    before: BTreeMap<DeliveryId, DeliveryId>,
}

impl Jobs {
    pub(super) fn fan_out(&mut self, fan_out: FanOut, message: &Message) {
        let job = fan_out.job(message);
        self.jobs.insert(job.id, job);
    }

    /// A message that is cut gets no more deliveries.
    pub(super) fn end_fan_out(&mut self, message: MessageId) {
        if let Some(job) = self.jobs.get_mut(&JobId(message.0))
            && job.state.may_become(JobState::Cancelled)
        {
            job.state = JobState::Cancelled;
        }
    }

    /// Whether a message still gets deliveries.
    pub(super) fn is_fanning_out(&self, id: JobId) -> bool {
        let job = self.jobs.get(&id).filter(|job| matches!(job.kind, JobKind::FanOut(_)));
        job.is_some_and(|job| matches!(job.state, JobState::Running | JobState::Paused))
    }

    /// Forgets what a delivery's next life was.
    pub(super) fn forget_life(&mut self, old: DeliveryId) {
        if let Some(new) = self.lives.remove(&old) {
            self.before.remove(&new);
        }
    }

    /// Forgets what a delivery was the next life of.
    pub(super) fn forget_former_life(&mut self, new: DeliveryId) {
        if let Some(old) = self.before.remove(&new) {
            self.lives.remove(&old);
        }
    }

    /// Forgets jobs that ended and were asked for then or before.
    pub(super) fn let_go(&mut self, old: Timestamp) -> (usize, u64) {
        let has_ended = |job: &&Job| matches!(job.state, JobState::Done | JobState::Cancelled);
        let past: Vec<JobId> =
            self.jobs.values().filter(|job| job.at <= old).filter(has_ended).map(|job| job.id).collect();
        for id in &past {
            self.jobs.remove(id);
            self.listed.remove(id);
        }
        (past.len(), past.last().map_or(0, |id| id.raw()))
    }

    /// Forgets the job that makes a message's deliveries.
    pub(super) fn forget_fan_out(&mut self, message: MessageId) {
        self.jobs.remove(&JobId(message.0));
    }

    /// Forgets a tenant's jobs that were asked for then or before.
    pub(super) fn forget_tenant(&mut self, tenant: TenantId, upto: Timestamp) {
        let theirs = self.jobs.values().filter(|job| job.tenant == tenant && job.at <= upto);
        for id in theirs.map(|job| job.id).collect::<Vec<_>>() {
            self.jobs.remove(&id);
            self.listed.remove(&id);
        }
    }

    /// Notes that a delivery follows others of its message, or begins a range.
    fn list(&mut self, message: MessageId, id: DeliveryId) {
        let last = self.chunks.range_mut((message, DeliveryId::from_raw(0))..=(message, id)).next_back();
        match last {
            Some(((_, first), count)) if first.0.plus(*count) == id.0 => *count += 1,
            _ => _ = self.chunks.insert((message, id), 1),
        }
    }
}

impl Memory {
    /// See [`crate::Jobs::start_replay`].
    pub fn start_replay(&mut self, session: Session, replay: &NewReplay) -> Result<Job, StoreError> {
        self.guard(session)?;
        let job = match &replay.what {
            ReplayWhat::Found(filter) => {
                let filter = replay.filter(filter);
                let page = self.dead_letters(&filter, ListOrder::OldestFirst, None, u32::MAX);
                replay.of_found(filter, self.dead.last(), &page)
            }
            ReplayWhat::Listed(ids) => {
                let job = replay.of_listed(ids)?;
                self.jobs.listed.insert(job.id, ids.clone());
                job
            }
        };
        self.note([Entry::Job { job: job.id, tenant: job.tenant, state: job.state }]);
        self.jobs.jobs.insert(job.id, job.clone());
        Ok(job)
    }

    /// See [`crate::Jobs::start_replay_once`].
    pub fn start_replay_once(
        &mut self,
        session: Session,
        replay: &NewReplay,
        once: Idempotency,
    ) -> Result<Begun, StoreError> {
        self.guard(session)?;
        match self.once(Some(once), None) {
            Acceptance::Replayed(answer) => Ok(Begun::Before(answer)),
            Acceptance::KeyReused => Ok(Begun::KeyReused),
            Acceptance::Fresh => self.start_replay(session, replay).map(Begun::Now),
        }
    }

    /// See [`crate::Jobs::job`].
    pub fn job(&self, id: JobId) -> Option<Job> {
        self.jobs.jobs.get(&id).cloned()
    }

    /// See [`crate::Jobs::jobs`].
    pub fn jobs(&self, query: JobQuery, after: Option<JobId>, limit: u32) -> Vec<Job> {
        let asked = |job: &&Job| match query {
            JobQuery::Running => job.state == JobState::Running,
            JobQuery::Of(tenant) => job.tenant == tenant,
            JobQuery::Replays(tenant, _) => job.tenant == tenant && !matches!(job.kind, JobKind::FanOut(_)),
        };
        let newest_first = matches!(query, JobQuery::Replays(_, ListOrder::NewestFirst));
        let behind = |job: &&Job| match after {
            None => true,
            Some(after) if newest_first => job.id < after,
            Some(after) => job.id > after,
        };
        let found = self.jobs.jobs.values().filter(behind).filter(asked).cloned();
        if newest_first { found.rev().take(limit as usize).collect() } else { found.take(limit as usize).collect() }
    }

    /// See [`crate::Jobs::change_job`].
    pub fn change_job(&mut self, session: Session, id: JobId, next: JobState) -> Result<bool, StoreError> {
        self.guard(session)?;
        let Some(job) = self.jobs.jobs.get_mut(&id).filter(|job| job.state.may_become(next)) else { return Ok(false) };
        job.state = next;
        let tenant = job.tenant;
        self.note([Entry::Job { job: id, tenant, state: next }]);
        Ok(true)
    }

    /// See [`crate::Jobs::replay_page`].
    pub fn replay_page(&self, id: JobId, limit: u32) -> Option<ReplayPage> {
        let job = self.jobs.jobs.get(&id)?;
        let met = match &job.kind {
            JobKind::FanOut(_) => return None,
            JobKind::ReplayFound { filter, upto } => {
                let page = self.dead_letters(filter, ListOrder::OldestFirst, job.cursor.letter(), limit);
                job.meets_letters(*upto, &page)
            }
            JobKind::ReplayListed => {
                // A replay that is done has let go of its list.
                let all = self.jobs.listed.get(&id).map_or(&[][..], Vec::as_slice);
                let places = (1..).zip(all).skip_while(|(place, _)| *place <= job.cursor.number);
                let found = places.take(limit as usize).map(|(place, id)| (*id, JobCursor::behind(place)));
                job.meets_listed(found.collect(), limit)
            }
        };
        let ended = |id| self.replayable(id).filter(|ended| job.kind.replays(ended)).cloned();
        let item = |(id, cursor)| ReplayItem { ended: ended(id), cursor };
        Some(ReplayPage { items: met.found.into_iter().map(item).collect(), next: met.next, last: met.last })
    }

    /// What ended as dead or expired, was not replayed, and has its payload.
    fn replayable(&self, id: DeliveryId) -> Option<&Delivery> {
        let delivery = self.ended.get(&id)?;
        let takes = match delivery.state {
            State::Dead { .. } => self.dead.is_open(id),
            State::Expired { .. } => true,
            _ => false,
        };
        let is_new = !self.jobs.lives.contains_key(&id);
        (takes && is_new && self.messages.contains_key(&delivery.message)).then_some(delivery)
    }

    /// See [`crate::Jobs::spread`]; what arrives comes along.
    pub fn spread(&mut self, session: Session, chunk: Chunk) -> Result<(Chunked, Vec<Arrival>), StoreError> {
        self.guard(session)?;
        let Some(job) = self.jobs.jobs.get(&chunk.job).filter(|job| job.takes(&chunk)) else {
            return Ok((Chunked::Stale, Vec::new()));
        };
        let tenant = job.tenant;
        let mut arrivals = Vec::new();
        let mut skipped = chunk.skipped;
        for spread in chunk.deliveries {
            let delivery = &spread.new.delivery;
            let (id, message) = (delivery.id, delivery.message);
            if let Some(old) = spread.replays {
                let is_cut = self.cuts.contains_key(&posthaste_core::cut::Scope::Message(message));
                if is_cut || self.replayable(old).is_none() {
                    skipped += 1;
                    continue;
                }
                self.jobs.lives.insert(old, id);
                self.jobs.before.insert(id, old);
                self.dead.replayed(old, id);
            }
            self.jobs.list(message, id);
            self.lanes.entry(delivery.lane).or_insert_with(|| Arc::clone(&spread.new.lane));
            self.put(Row { delivery: delivery.clone(), place: spread.new.place, token: Token::Valid });
            arrivals.push(Arrival { new: spread.new, message: spread.message, superseded: Vec::new() });
        }
        let made = arrivals.len() as u64;
        let mut happened = Vec::new();
        if made > 0 {
            happened.push(Entry::spread(
                chunk.job,
                tenant,
                chunk.at,
                arrivals.iter().map(|arrival| &arrival.new.delivery),
            ));
        }
        if let Some(job) = self.jobs.jobs.get_mut(&chunk.job) {
            job.cursor = chunk.to;
            job.made += made;
            job.skipped += skipped;
            if chunk.last {
                job.state = JobState::Done;
                self.jobs.listed.remove(&chunk.job);
                happened.push(Entry::Job { job: job.id, tenant: job.tenant, state: job.state });
            }
        }
        self.note(happened);
        Ok((Chunked::Done(made), arrivals))
    }

    /// See [`crate::Jobs::replay_of`].
    pub fn replay_of(&self, id: DeliveryId) -> (Option<DeliveryId>, Option<DeliveryId>) {
        (self.jobs.before.get(&id).copied(), self.jobs.lives.get(&id).copied())
    }

    /// See [`crate::Archive::deliveries`].
    pub fn deliveries(&self, message: MessageId, after: Option<DeliveryId>, now: Timestamp, limit: u32) -> Vec<Shown> {
        let inline = (DeliveryId(message.0.plus(1)), DELIVERIES_MAX);
        let chunks = self.jobs.chunks.iter().filter(|((of, _), _)| *of == message);
        let chunks = chunks.map(|((_, first), count)| (*first, *count));
        std::iter::once(inline)
            .chain(chunks)
            .flat_map(|(first, count)| (0..count).map(move |n| DeliveryId(first.0.plus(n))))
            .collect::<BTreeSet<DeliveryId>>()
            .into_iter()
            .filter(|id| after.is_none_or(|after| *id > after))
            .filter_map(|id| self.delivery(id, now))
            .filter(|shown| shown.delivery.message == message)
            .take(limit as usize)
            .collect()
    }
}
