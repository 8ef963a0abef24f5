//! What was given up, and another life for it: dead letters and replays, as the API asks for them.

use posthaste_core::id::{DeliveryId, JobId, TenantId};
use posthaste_crypto::public_id::Kind;
use posthaste_store::{
    Begun, By, Count, DeadLetterCursor, DeadLetterFilter, DeadLetterPage, Job, JobCursor, JobKind, JobQuery, JobState,
    ListOrder, Lives, NewReplay, ReplayWhat, Skips, Store, StoreError,
};

use crate::accept::Once;
use crate::clock::Clock;
use crate::engine::{Engine, Sees};
use crate::jobs::{Meant, meant};
use crate::tenants::Made;

/// Looked at for a count, in pages of this many: whoever waits for it waits for tens of milliseconds.
const COUNTED_PAGE: u32 = 500;
/// What is selected beyond this is not counted.
const COUNTED_MAX: u64 = 10_000;
/// Pages that one count reads: a page may be empty.
const COUNTED_PAGES_MAX: u32 = 50;

/// Replays of one tenant that go on at once; each takes its turn among everybody's.
pub const RUNNING_MAX: u32 = 16;

/// Why a replay was not begun, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum NotReplayed {
    /// As many of its tenant's go on as may.
    #[error("{RUNNING_MAX} replays go on already; wait for one of them, or pause or cancel one")]
    TooMany,
    /// Its key stands for another request.
    #[error("this key was used for another request within the last 24 hours; use a new one")]
    KeyReused,
    /// The store could not take it.
    #[error("the replay could not be made durable")]
    Store(#[source] StoreError),
}

impl From<StoreError> for NotReplayed {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::TooMany { what: "replays", .. } => Self::TooMany,
            error => Self::Store(error),
        }
    }
}

/// A replay to begin.
#[derive(Clone, Debug)]
pub struct AskedReplay {
    /// Whose.
    pub tenant: TenantId,
    /// What to replay.
    pub what: ReplayWhat,
    /// Deliveries it may make in a second.
    pub per_second: Option<u32>,
    /// Why.
    pub reason: Option<String>,
}

/// A replay that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeReplay {
    /// The id the world knows it by.
    pub public_id: String,
    /// Whose, as the world knows them.
    pub tenant: Option<String>,
    /// The endpoint it speaks of, as the world knows it.
    pub endpoint: Option<String>,
    /// Its job, before it has done anything.
    pub job: Job,
}

/// What a replay would do, were it begun now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// How many are selected.
    pub total: Count,
    /// How many of them would have another life.
    pub replayed: u64,
    /// What would be passed over.
    pub skipped: Skips,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Dead letters that match, by the time of their end.
    pub async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<DeadLetterPage, StoreError> {
        self.store.dead_letters(filter, order, after, limit).await
    }

    /// The replays somebody sees, from behind one.
    pub async fn replays(
        &self,
        whose: Sees,
        order: ListOrder,
        after: Option<JobId>,
        limit: u32,
    ) -> Result<Vec<Job>, StoreError> {
        let query = match whose {
            Sees::All => JobQuery::EveryReplay(order),
            Sees::Tenant(tenant) => JobQuery::Replays(tenant, order),
        };
        self.store.jobs(query, after, limit).await
    }

    /// How these deliveries are linked to others by replays, one answer for each.
    pub async fn lives(&self, ids: Vec<DeliveryId>) -> Result<Vec<Lives>, StoreError> {
        self.store.lives(ids).await
    }

    /// Which of these deliveries a tenant has.
    pub async fn owned(&self, tenant: TenantId, ids: &[DeliveryId]) -> Result<Vec<bool>, StoreError> {
        let mut owned = Vec::with_capacity(ids.len());
        for id in ids {
            let shown = self.store.delivery(*id, self.clock.now()).await?;
            let endpoint = shown.map(|shown| shown.delivery.endpoint);
            owned.push(match endpoint {
                Some(endpoint) => self.endpoint(Sees::Tenant(tenant), endpoint).await?.is_some(),
                None => false,
            });
        }
        Ok(owned)
    }

    /// As the store is asked for it. How an endpoint's deliveries ended is forgotten in time: a message from before
    /// that is not missing, nobody knows whether it arrived.
    async fn new_replay(&self, asked: &AskedReplay) -> Result<NewReplay, StoreError> {
        let at = self.clock.now();
        let mut what = asked.what.clone();
        if let ReplayWhat::Missing(missing) = &mut what {
            let agreed = self.tenant(asked.tenant).await?.and_then(|tenant| tenant.terms.history_kept);
            let known = at - agreed.unwrap_or(self.retention.history);
            missing.since = Some(missing.since.map_or(known, |since| since.max(known)));
        }
        let AskedReplay { tenant, per_second, reason, .. } = asked.clone();
        let running_max = Some(RUNNING_MAX);
        Ok(NewReplay { per_second, reason, running_max, ..NewReplay::new(JobId(self.mint(1)), tenant, at, what) })
    }

    /// What a replay would do, as far as it is worth looking.
    pub async fn survey(&self, asked: &AskedReplay) -> Result<Survey, StoreError> {
        let replay = self.new_replay(asked).await?;
        let kind = replay.begun()?.kind;
        let mut survey = Survey { total: Count::Exactly(0), replayed: 0, skipped: Skips::default() };
        let mut from = JobCursor::START;
        for _ in 0..COUNTED_PAGES_MAX {
            let page = self.store.would_replay(replay.clone(), from, COUNTED_PAGE).await?;
            for item in &page.items {
                match meant(&self.destinations, asked.tenant, &kind, &item.found).await? {
                    Meant::For(_) => survey.replayed += 1,
                    Meant::Skip(why) => survey.skipped.add(why, 1),
                    Meant::Not => {}
                }
            }
            let count = survey.replayed + survey.skipped.total();
            survey.total = if page.last { Count::Exactly(count) } else { Count::AtLeast(count) };
            if page.last || count >= COUNTED_MAX {
                break;
            }
            from = page.next;
        }
        Ok(survey)
    }

    /// Whether one more replay of a tenant that was paused may go on. Two that are asked for at once may both: the bound
    /// is there for the turns of others, to which one more or less is nothing.
    async fn one_more(&self, tenant: TenantId) -> Result<(), NotReplayed> {
        let running = self.store.jobs(JobQuery::ReplaysOf(tenant), None, RUNNING_MAX).await?;
        if running.len() < RUNNING_MAX as usize { Ok(()) } else { Err(NotReplayed::TooMany) }
    }

    /// Gives what is selected another life each, or the first one; survives restarts.
    pub async fn replay(&self, asked: &AskedReplay, by: Option<By>) -> Result<Job, NotReplayed> {
        // Dead letters and a list are counted by whoever begins.
        let total = match asked.what {
            ReplayWhat::Found(_) | ReplayWhat::Listed(_) => None,
            ReplayWhat::Ended { .. } | ReplayWhat::Missing(_) => Some(self.survey(asked).await?.total),
        };
        let replay = NewReplay { total, ..self.new_replay(asked).await? };
        let job = self.store.start_replay(self.session, replay, by).await?;
        self.tell_of_job();
        Ok(job)
    }

    /// The same under a key: whoever asks again is answered as before.
    pub async fn replay_once(
        &self,
        asked: &AskedReplay,
        once: Once<MadeReplay>,
        by: Option<By>,
    ) -> Result<Made<MadeReplay>, NotReplayed> {
        // What the first caller is answered is kept with the key, before anybody has counted for the job.
        let total = Some(self.survey(asked).await?.total);
        let replay = NewReplay { total, ..self.new_replay(asked).await? };
        let job = replay.begun()?;
        let made = MadeReplay {
            public_id: self.public_id(Kind::Replay, replay.id.0, replay.at),
            tenant: self.tenant_public_id(asked.tenant).await?,
            endpoint: self.endpoint_of(&job).await?,
            job,
        };
        let once = self.known_by(asked.tenant, once, &made, replay.at);
        let begun = self.store.start_replay_once(self.session, replay, once, by).await?;
        self.tell_of_job();
        match begun {
            Begun::Now(_) => Ok(Made::Now(made)),
            Begun::Before(answer) => Ok(Made::Before(answer)),
            Begun::KeyReused => Err(NotReplayed::KeyReused),
        }
    }

    /// The endpoint that a replay speaks of, as the world knows it; nothing where it is about several.
    pub async fn endpoint_of(&self, job: &Job) -> Result<Option<String>, StoreError> {
        let id = match &job.kind {
            JobKind::ReplayFound { filter, .. } | JobKind::ReplayEnded { filter, .. } => filter.endpoint,
            JobKind::ReplayMissing(missing) => Some(missing.endpoint),
            JobKind::ReplayListed | JobKind::FanOut(_) => None,
        };
        let known = match id {
            Some(id) => self.endpoint_once(Sees::Tenant(job.tenant), id).await?,
            None => None,
        };
        Ok(known.map(|known| self.public_id(Kind::Endpoint, known.id.0, known.at)))
    }

    /// A job of a tenant.
    pub async fn job(&self, whose: Sees, id: JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.store.job(id).await?.filter(|job| whose.sees(job.tenant)))
    }

    /// Pauses, resumes or cancels a tenant's job; `false` when there is none, or it has ended.
    pub async fn change_job(
        &self,
        whose: Sees,
        id: JobId,
        next: JobState,
        by: Option<By>,
    ) -> Result<bool, NotReplayed> {
        let Some(job) = self.job(whose, id).await? else { return Ok(false) };
        if job.state == JobState::Paused && next == JobState::Running {
            self.one_more(job.tenant).await?;
        }
        let changed = self.store.change_job(self.session, id, next, self.done_by(by)).await?;
        self.tell_of_job();
        Ok(changed)
    }
}
