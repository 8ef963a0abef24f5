//! Jobs in memory: each chunk's deliveries and the cursor after it are applied together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Missed;
use std::sync::Arc;

use posthaste_core::{CutScope, Delivery, DeliveryId, EndpointId, JobId, MessageId, TenantId, Timestamp};

use super::{MemoryState, MemoryStore};
use crate::journal::JournalEntry;
use crate::{
    ApiKeyRef, ArrivedDelivery, AuditStamp, Begun, Chunk, ChunkDelivery, Chunked, DeliveryJob, FanOut, Idempotency,
    JobCursor, JobKind, JobQuery, JobState, Jobs, ListOrder, ListedMessage, Lives, MadeBy, Message, Missing, NewReplay,
    PendingRow, ReplayCandidate, ReplayItem, ReplayPage, ReplayWhat, Replayable, Session, Skip, StoreError, Token,
};

#[derive(Debug, Default)]
pub(super) struct JobTables {
    jobs: BTreeMap<JobId, DeliveryJob>,
    listed: BTreeMap<JobId, Vec<DeliveryId>>,
    /// Ranges of consecutive delivery ids: the length, by message and first delivery.
    pub(super) chunks: BTreeMap<(MessageId, DeliveryId), u64>,
    /// From a replayed delivery to the one that replays it.
    lives: BTreeMap<DeliveryId, DeliveryId>,
    before: BTreeMap<DeliveryId, (DeliveryId, MadeByJob)>,
    pub(super) missed: BTreeMap<(MessageId, EndpointId), (DeliveryId, MadeByJob)>,
}

pub(super) type MadeByJob = (JobId, Timestamp);

/// A page of items, by id, after a cursor.
fn page_behind(cursor: JobCursor, found: impl Iterator<Item = (Replayable, u64)>, limit: u32) -> ReplayPage {
    let behind = found.filter(|(_, id)| *id > cursor.number);
    let mut items: Vec<ReplayItem> = behind
        .map(|(found, id)| ReplayItem { found, cursor: JobCursor::behind(id) })
        .take(limit as usize + 1)
        .collect();
    let last = items.len() <= limit as usize;
    items.truncate(limit as usize);
    let next = items.last().map_or(cursor, |item| item.cursor);
    ReplayPage { items, next, last }
}

impl JobTables {
    pub(super) fn fan_out(&mut self, fan_out: FanOut, message: &Message) {
        let job = fan_out.job(message);
        self.jobs.insert(job.id, job);
    }

    pub(super) fn end_fan_out(&mut self, message: MessageId) {
        if let Some(job) = self.jobs.get_mut(&JobId(message.0))
            && job.state.may_become(JobState::Cancelled)
        {
            job.state = JobState::Cancelled;
        }
    }

    /// Whether a fan-out still makes deliveries.
    pub(super) fn is_fanning_out(&self, id: JobId) -> bool {
        let job = self.jobs.get(&id).filter(|job| matches!(job.kind, JobKind::FanOut(_)));
        job.is_some_and(|job| matches!(job.state, JobState::Running | JobState::Paused))
    }

    /// Removes the link from a delivery to the one that replays it.
    pub(super) fn forget_life(&mut self, old: DeliveryId) {
        if let Some(new) = self.lives.remove(&old) {
            self.before.remove(&new);
        }
    }

    /// Removes the link from a delivery to the one it replays.
    pub(super) fn forget_former_life(&mut self, new: DeliveryId) {
        if let Some((old, _)) = self.before.remove(&new) {
            self.lives.remove(&old);
        }
    }

    /// Deletes ended jobs that were asked for no later than their tenant's retention limit. Returns how many, and the
    /// highest id.
    pub(super) fn delete_expired(&mut self, old: impl Fn(TenantId) -> Timestamp) -> (usize, u64) {
        let has_ended = |job: &&DeliveryJob| matches!(job.state, JobState::Done | JobState::Cancelled);
        let past: Vec<JobId> =
            self.jobs.values().filter(|job| job.at <= old(job.tenant)).filter(has_ended).map(|job| job.id).collect();
        for id in &past {
            self.jobs.remove(id);
            self.listed.remove(id);
        }
        (past.len(), past.last().map_or(0, |id| id.raw()))
    }

    /// Removes the job that makes a message's deliveries.
    pub(super) fn forget_fan_out(&mut self, message: MessageId) {
        self.jobs.remove(&JobId(message.0));
    }

    /// Removes a tenant's jobs that were asked for at `upto` or earlier.
    pub(super) fn evict_tenant(&mut self, tenant: TenantId, upto: Timestamp) {
        let theirs = self.jobs.values().filter(|job| job.tenant == tenant && job.at <= upto);
        for id in theirs.map(|job| job.id).collect::<Vec<_>>() {
            self.jobs.remove(&id);
            self.listed.remove(&id);
        }
    }

    /// Adds a delivery to the last range of its message, or begins a new range.
    fn list(&mut self, message: MessageId, id: DeliveryId) {
        let last = self.chunks.range_mut((message, DeliveryId::from_raw(0))..=(message, id)).next_back();
        match last {
            Some(((_, first), count)) if first.0.plus(*count) == id.0 => *count += 1,
            _ => _ = self.chunks.insert((message, id), 1),
        }
    }
}

impl Jobs for MemoryStore {
    async fn start_replay(
        &self,
        session: Session,
        replay: NewReplay,
        by: Option<ApiKeyRef>,
    ) -> Result<DeliveryJob, StoreError> {
        self.lock().start_replay(session, &replay, by)
    }

    async fn start_replay_once(
        &self,
        session: Session,
        replay: NewReplay,
        once: Idempotency,
        by: Option<ApiKeyRef>,
    ) -> Result<Begun, StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        if let Some(before) = memory.known(Some(&once)) {
            return Ok(before.into());
        }
        memory.has_room(&replay)?;
        memory.remember_call(Some(once), None);
        memory.start_replay(session, &replay, by).map(|job| Begun::Now(Box::new(job)))
    }

    async fn job(&self, id: JobId) -> Result<Option<DeliveryJob>, StoreError> {
        Ok(self.lock().jobs.jobs.get(&id).cloned())
    }

    async fn jobs(&self, query: JobQuery, after: Option<JobId>, limit: u32) -> Result<Vec<DeliveryJob>, StoreError> {
        Ok(self.lock().jobs(query, after, limit))
    }

    async fn change_job(
        &self,
        session: Session,
        id: JobId,
        next: JobState,
        act: AuditStamp,
    ) -> Result<bool, StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        let Some(job) = memory.jobs.jobs.get_mut(&id).filter(|job| job.state.may_become(next)) else {
            return Ok(false);
        };
        job.state = next;
        let entry = JournalEntry::job(job, next, act);
        memory.note([entry]);
        Ok(true)
    }

    async fn replay_page(&self, id: JobId, limit: u32) -> Result<Option<ReplayPage>, StoreError> {
        let memory = self.lock();
        // A replay that is done no longer has its list.
        let listed = memory.jobs.listed.get(&id).map_or(&[][..], Vec::as_slice);
        Ok(memory.jobs.jobs.get(&id).and_then(|job| memory.page_of(job, listed, limit)))
    }

    async fn would_replay(&self, replay: NewReplay, from: JobCursor, limit: u32) -> Result<ReplayPage, StoreError> {
        let memory = self.lock();
        let job = DeliveryJob { cursor: from, ..replay.job(memory.dead.last())? };
        let listed = if let ReplayWhat::Listed(ids) = &replay.what { ids.as_slice() } else { &[] };
        memory.page_of(&job, listed, limit).ok_or(StoreError::Stopped)
    }

    async fn spread(&self, session: Session, chunk: Chunk) -> Result<Chunked, StoreError> {
        let mut memory = self.lock();
        let (chunked, arrivals) = memory.spread(session, chunk)?;
        self.arrive(arrivals);
        Ok(chunked)
    }

    async fn lives(&self, ids: Vec<DeliveryId>) -> Result<Vec<Lives>, StoreError> {
        let memory = self.lock();
        Ok(ids.into_iter().map(|id| memory.lives(id)).collect())
    }
}

impl MemoryState {
    pub fn start_replay(
        &mut self,
        session: Session,
        replay: &NewReplay,
        by: Option<ApiKeyRef>,
    ) -> Result<DeliveryJob, StoreError> {
        self.guard(session)?;
        self.has_room(replay)?;
        let mut job = replay.job(self.dead.last())?;
        match &replay.what {
            ReplayWhat::Found(filter) => {
                let filter = replay.filter(filter);
                let page = self.dead_letters(&filter, ListOrder::OldestFirst, None, u32::MAX);
                job.total = Some(NewReplay::counted(&page));
            }
            ReplayWhat::Listed(ids) => _ = self.jobs.listed.insert(job.id, ids.clone()),
            ReplayWhat::Ended { .. } | ReplayWhat::Missing(_) => {}
        }
        self.note([JournalEntry::job(&job, job.state, AuditStamp { at: job.at, by })]);
        self.jobs.jobs.insert(job.id, job.clone());
        Ok(job)
    }

    fn has_room(&self, replay: &NewReplay) -> Result<(), StoreError> {
        replay.has_room(self.jobs(JobQuery::ReplaysOf(replay.tenant), None, u32::MAX).len())
    }

    pub fn jobs(&self, query: JobQuery, after: Option<JobId>, limit: u32) -> Vec<DeliveryJob> {
        let matches_query = |job: &&DeliveryJob| match query {
            JobQuery::Running => job.state == JobState::Running,
            JobQuery::FanOuts => job.state == JobState::Running && matches!(job.kind, JobKind::FanOut(_)),
            JobQuery::ReplaysOf(tenant) => {
                let is_theirs = job.state == JobState::Running && job.tenant == tenant;
                is_theirs && !matches!(job.kind, JobKind::FanOut(_))
            }
            JobQuery::Replays(tenant, _) => job.tenant == tenant && !matches!(job.kind, JobKind::FanOut(_)),
            JobQuery::EveryReplay(_) => !matches!(job.kind, JobKind::FanOut(_)),
        };
        let order = match query {
            JobQuery::Replays(_, order) | JobQuery::EveryReplay(order) => order,
            JobQuery::Running | JobQuery::FanOuts | JobQuery::ReplaysOf(_) => ListOrder::OldestFirst,
        };
        let behind = |job: &&DeliveryJob| order.is_behind(job.id, after);
        let found = self.jobs.jobs.values().filter(behind).filter(matches_query).cloned();
        match order {
            ListOrder::NewestFirst => found.rev().take(limit as usize).collect(),
            ListOrder::OldestFirst => found.take(limit as usize).collect(),
        }
    }

    fn page_of(&self, job: &DeliveryJob, listed: &[DeliveryId], limit: u32) -> Option<ReplayPage> {
        let met = match &job.kind {
            JobKind::FanOut(_) => return None,
            JobKind::ReplayEnded { filter, dead } => {
                let found = self.ended.values().filter(|ended| {
                    job.meets_ended(filter, *dead, ended) && self.is_of(ended, job.tenant, filter.event_type.as_deref())
                });
                let found = found.map(|ended| (self.replayable(&job.kind, ended.id), ended.id.raw()));
                let is_selected = |found: &(Replayable, u64)| {
                    !matches!(found.0, Replayable::Not(Skip::ReplayedBefore | Skip::Purged))
                };
                return Some(page_behind(job.cursor, found.filter(is_selected), limit));
            }
            JobKind::ReplayMissing(missing) => {
                let found = self.messages.values().filter(|message| self.is_missing(job, *missing, message));
                let found =
                    found.map(|message| (Replayable::Missing(Box::new(ListedMessage::of(message))), message.id.raw()));
                return Some(page_behind(job.cursor, found, limit));
            }
            JobKind::ReplayFound { filter, upto } => {
                let page = self.dead_letters(filter, ListOrder::OldestFirst, job.cursor.letter(), limit);
                job.meets_letters(*upto, &page)
            }
            JobKind::ReplayListed => {
                let places = (1..).zip(listed).skip_while(|(place, _)| *place <= job.cursor.number);
                let found = places.take(limit as usize).map(|(place, id)| (*id, JobCursor::behind(place)));
                job.meets_listed(found.collect(), limit)
            }
        };
        let item = |(id, cursor)| ReplayItem { found: self.replayable(&job.kind, id), cursor };
        Some(ReplayPage { items: met.found.into_iter().map(item).collect(), next: met.next, last: met.last })
    }

    /// Whether an ended delivery belongs to the tenant and has the event type, if one is given.
    fn is_of(&self, ended: &Delivery, tenant: TenantId, event_type: Option<&str>) -> bool {
        let is_theirs = self.endpoints.get(&ended.endpoint).is_some_and(|endpoint| endpoint.tenant == tenant);
        let message = self.messages.get(&ended.message);
        let has = |wanted| message.is_some_and(|message| message.event_type.as_deref() == Some(wanted));
        is_theirs && event_type.is_none_or(has)
    }

    fn is_missing(&self, job: &DeliveryJob, missing: Missing, message: &Message) -> bool {
        let endpoint = missing.endpoint;
        let fans_out = self.jobs.jobs.get(&JobId(message.id.0));
        let fans_out = fans_out.is_some_and(|job| matches!(job.state, JobState::Running | JobState::Paused));
        let is_its = |delivery: &Delivery| delivery.message == message.id && delivery.endpoint == endpoint;
        message.tenant == job.tenant
            && message.id.0 < job.id.0
            && missing.has_time(message.at)
            && !fans_out
            && !self.jobs.missed.contains_key(&(message.id, endpoint))
            && !self.cuts.contains_key(&CutScope::Message(message.id))
            && !self.pending.values().any(|row| is_its(&row.delivery))
            && !self.ended.values().any(is_its)
    }

    /// What a replay can make of a delivery.
    fn replayable(&self, kind: &JobKind, id: DeliveryId) -> Replayable {
        let ended = self.ended.get(&id).cloned();
        kind.judge(ReplayCandidate {
            is_pending: self.pending.contains_key(&id),
            was_replayed: self.jobs.lives.contains_key(&id),
            is_filed: self.dead.is_filed(id),
            has_payload: ended.as_ref().is_some_and(|ended| self.messages.contains_key(&ended.message)),
            ended,
        })
    }

    /// Links a new delivery to the one it replays or to the message its endpoint was missing. If the delivery cannot be
    /// made any more, returns the reason.
    fn link(&mut self, kind: &JobKind, spread: &ChunkDelivery, made: MadeByJob) -> Option<Skip> {
        let (new, message) = (spread.new.delivery.id, spread.new.delivery.message);
        if matches!(kind, JobKind::FanOut(_)) {
            return None;
        }
        if self.cuts.contains_key(&CutScope::Message(message)) {
            return Some(Skip::Cancelled);
        }
        let Some(old) = spread.replays else {
            if !self.messages.contains_key(&message) {
                return Some(Skip::PayloadGone);
            }
            return match self.jobs.missed.entry((message, spread.new.delivery.endpoint)) {
                Missed::Occupied(_) => Some(Skip::ReplayedBefore),
                Missed::Vacant(missed) => {
                    missed.insert((new, made));
                    None
                }
            };
        };
        if let Replayable::Not(why) = self.replayable(kind, old) {
            return Some(why);
        }
        self.jobs.lives.insert(old, new);
        self.jobs.before.insert(new, (old, made));
        self.dead.replayed(old, new);
        None
    }

    /// See [`crate::Jobs::spread`]. Also returns the arrivals.
    pub fn spread(&mut self, session: Session, chunk: Chunk) -> Result<(Chunked, Vec<ArrivedDelivery>), StoreError> {
        self.guard(session)?;
        let Some(job) = self.jobs.jobs.get(&chunk.job).filter(|job| job.takes(&chunk)) else {
            return Ok((Chunked::Stale, Vec::new()));
        };
        let (tenant, kind) = (job.tenant, job.kind.clone());
        let mut arrivals = Vec::new();
        let mut skipped = chunk.skipped;
        for spread in chunk.deliveries {
            if let Some(why) = self.link(&kind, &spread, (chunk.job, chunk.at)) {
                skipped.add(why, 1);
                continue;
            }
            let delivery = &spread.new.delivery;
            let (id, message) = (delivery.id, delivery.message);
            self.jobs.list(message, id);
            self.lanes.entry(delivery.lane).or_insert_with(|| Arc::clone(&spread.new.lane));
            self.put(PendingRow { delivery: delivery.clone(), place: spread.new.place, token: Token::Valid });
            arrivals.push(ArrivedDelivery { new: spread.new, message: spread.message, superseded: Vec::new() });
        }
        let made = arrivals.len() as u64;
        let mut happened = Vec::new();
        if made > 0 {
            happened.push(JournalEntry::spread(
                chunk.job,
                tenant,
                chunk.at,
                arrivals.iter().map(|arrival| &arrival.new.delivery),
            ));
        }
        if let Some(job) = self.jobs.jobs.get_mut(&chunk.job) {
            job.cursor = chunk.to;
            job.made += made;
            job.skipped.add_all(skipped);
            if chunk.last {
                job.state = JobState::Done;
                self.jobs.listed.remove(&chunk.job);
                happened.push(JournalEntry::job(job, job.state, AuditStamp::at(chunk.at)));
            }
        }
        self.note(happened);
        Ok((Chunked::Done(made), arrivals))
    }

    pub fn lives(&self, id: DeliveryId) -> Lives {
        let former = self.jobs.before.get(&id).map(|(old, made)| (Some(*old), *made));
        let delivery = self.ended.get(&id).or_else(|| self.pending.get(&id).map(|row| &row.delivery));
        let missed = delivery.and_then(|delivery| self.jobs.missed.get(&(delivery.message, delivery.endpoint)));
        let caught_up = missed.filter(|(new, _)| *new == id).map(|(_, made)| (None, *made));
        let known = former.or(caught_up);
        let made = |(job, at)| MadeBy { job, asked: self.jobs.jobs.get(&job).map(|job| job.at), at };
        Lives {
            before: known.and_then(|(before, _)| before),
            next: self.jobs.lives.get(&id).copied(),
            made: known.map(|(_, by)| made(by)),
        }
    }
}
