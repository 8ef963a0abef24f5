//! Dead letters, and replays that deliver them and other ended or missing deliveries again, for the API.

use posthaste_core::{DeliveryId, JobId, TenantId};
use posthaste_crypto::public_id::IdKind;
use posthaste_store::{
    ApiKeyRef, Begun, BoundedCount, DeadLetterCursor, DeadLetterFilter, DeadLetterPage, DeliveryJob, JobCursor,
    JobKind, JobQuery, JobState, ListOrder, Lives, NewReplay, ReplayWhat, Skips, Store, StoreError,
};

use crate::jobs::{Meant, meant};
use crate::{Clock, Engine, IdempotencyRequest, Made, Visibility};

/// Items in one page of a count. A whole count takes tens of milliseconds, which its caller waits for.
const COUNTED_PAGE: u32 = 500;
/// A count stops at this many items.
const COUNTED_MAX: u64 = 10_000;
/// The most pages that one count reads, since a page may be empty.
const COUNTED_PAGES_MAX: u32 = 50;

/// The most replays of one tenant that run at a time. They share the job runner with those of other tenants.
pub const RUNNING_MAX: u32 = 16;

/// Why a replay was not begun or resumed.
#[derive(Debug, thiserror::Error)]
pub enum NotReplayed {
    #[error("{RUNNING_MAX} replays are running already; wait until one has ended, or pause or cancel one")]
    TooMany,
    #[error("this key was used for another request within the last 24 hours; use a new one")]
    KeyReused,
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

#[derive(Clone, Debug)]
pub struct AskedReplay {
    pub tenant: TenantId,
    pub what: ReplayWhat,
    /// The most deliveries made in a second; `None` for no limit.
    pub per_second: Option<u32>,
    /// The caller's note of why it is done.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeReplay {
    pub public_id: String,
    pub tenant: Option<String>,
    /// The public id of its endpoint, if the selection is of one endpoint.
    pub endpoint: Option<String>,
    /// Its job, before it has done anything.
    pub job: DeliveryJob,
}

/// What a replay would do if it began now. The counts may stop early; see [`Survey::total`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// How many items are selected, exactly or at least.
    pub total: BoundedCount,
    /// For how many of those counted a delivery would be made.
    pub replayed: u64,
    /// How many of those counted would be skipped, by reason.
    pub skipped: Skips,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// A page of the dead letters that match, by the time of their end.
    pub async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<DeadLetterPage, StoreError> {
        self.store.dead_letters(filter, order, after, limit).await
    }

    /// A page of the replays that the caller may see, after this one.
    pub async fn replays(
        &self,
        visibility: Visibility,
        order: ListOrder,
        after: Option<JobId>,
        limit: u32,
    ) -> Result<Vec<DeliveryJob>, StoreError> {
        let query = match visibility {
            Visibility::All => JobQuery::EveryReplay(order),
            Visibility::Tenant(tenant) => JobQuery::Replays(tenant, order),
        };
        self.store.jobs(query, after, limit).await
    }

    /// For each of these deliveries, in order, how replays link it to others.
    pub async fn lives(&self, ids: Vec<DeliveryId>) -> Result<Vec<Lives>, StoreError> {
        self.store.lives(ids).await
    }

    /// For each of these deliveries, in order, whether it is the tenant's.
    pub async fn owned(&self, tenant: TenantId, ids: &[DeliveryId]) -> Result<Vec<bool>, StoreError> {
        let mut owned = Vec::with_capacity(ids.len());
        for id in ids {
            let shown = self.store.delivery(*id, self.clock.now()).await?;
            let endpoint = shown.map(|shown| shown.delivery.endpoint);
            owned.push(match endpoint {
                Some(endpoint) => self.endpoint(Visibility::Tenant(tenant), endpoint).await?.is_some(),
                None => false,
            });
        }
        Ok(owned)
    }

    /// The replay as the store takes it. Outcomes are deleted after their retention time, so a message that is older
    /// than that does not count as missing: whether it arrived is not known.
    async fn new_replay(&self, request: &AskedReplay) -> Result<NewReplay, StoreError> {
        let at = self.clock.now();
        let mut what = request.what.clone();
        if let ReplayWhat::Missing(missing) = &mut what {
            let own = self.tenant(request.tenant).await?.and_then(|tenant| tenant.terms.history_kept);
            let known_since = at - own.unwrap_or(self.retention.history);
            missing.since = Some(missing.since.map_or(known_since, |since| since.max(known_since)));
        }
        let AskedReplay { tenant, per_second, reason, .. } = request.clone();
        let running_max = Some(RUNNING_MAX);
        Ok(NewReplay { per_second, reason, running_max, ..NewReplay::new(JobId(self.mint(1)), tenant, at, what) })
    }

    /// What a replay would do, counting up to 10,000 items.
    pub async fn survey(&self, request: &AskedReplay) -> Result<Survey, StoreError> {
        let replay = self.new_replay(request).await?;
        let kind = replay.begun()?.kind;
        let mut survey = Survey { total: BoundedCount::Exactly(0), replayed: 0, skipped: Skips::default() };
        let mut from = JobCursor::START;
        for _ in 0..COUNTED_PAGES_MAX {
            let page = self.store.would_replay(replay.clone(), from, COUNTED_PAGE).await?;
            for item in &page.items {
                match meant(&self.endpoint_cache, request.tenant, &kind, &item.found).await? {
                    Meant::For(_) => survey.replayed += 1,
                    Meant::Skip(why) => survey.skipped.add(why, 1),
                    Meant::Not => {}
                }
            }
            let count = survey.replayed + survey.skipped.total();
            survey.total = if page.last { BoundedCount::Exactly(count) } else { BoundedCount::AtLeast(count) };
            if page.last || count >= COUNTED_MAX {
                break;
            }
            from = page.next;
        }
        Ok(survey)
    }

    /// Begins a job that makes a delivery for each selected item; it survives restarts.
    pub async fn replay(&self, request: &AskedReplay, by: Option<ApiKeyRef>) -> Result<DeliveryJob, NotReplayed> {
        // The store counts dead letters and listed deliveries itself when it begins the job.
        let total = match request.what {
            ReplayWhat::Found(_) | ReplayWhat::Listed(_) => None,
            ReplayWhat::Ended { .. } | ReplayWhat::Missing(_) => Some(self.survey(request).await?.total),
        };
        let replay = NewReplay { total, ..self.new_replay(request).await? };
        let job = self.store.start_replay(self.session, replay, by).await?;
        self.new_job.notify_one();
        Ok(job)
    }

    /// Begins a replay under an idempotency key: a repeated request gets the first answer again.
    pub async fn replay_once(
        &self,
        request: &AskedReplay,
        once: IdempotencyRequest<MadeReplay>,
        by: Option<ApiKeyRef>,
    ) -> Result<Made<MadeReplay>, NotReplayed> {
        // The answer is stored with the key, before the store could count for the job: so it is counted here.
        let total = Some(self.survey(request).await?.total);
        let replay = NewReplay { total, ..self.new_replay(request).await? };
        let job = replay.begun()?;
        let made = MadeReplay {
            public_id: self.public_id(IdKind::Replay, replay.id.0, replay.at),
            tenant: self.tenant_public_id(request.tenant).await?,
            endpoint: self.endpoint_of(&job).await?,
            job,
        };
        let once = self.known_by(request.tenant, once, &made, replay.at);
        let begun = self.store.start_replay_once(self.session, replay, once, by).await?;
        self.new_job.notify_one();
        match begun {
            Begun::Now(_) => Ok(Made::Now(made)),
            Begun::Before(answer) => Ok(Made::Before(answer)),
            Begun::KeyReused => Err(NotReplayed::KeyReused),
        }
    }

    /// The public id of a replay's endpoint; `None` if its selection is not of one endpoint.
    pub async fn endpoint_of(&self, job: &DeliveryJob) -> Result<Option<String>, StoreError> {
        let id = match &job.kind {
            JobKind::ReplayFound { filter, .. } | JobKind::ReplayEnded { filter, .. } => filter.endpoint,
            JobKind::ReplayMissing(missing) => Some(missing.endpoint),
            JobKind::ReplayListed | JobKind::FanOut(_) => None,
        };
        let known = match id {
            Some(id) => self.endpoint_once(Visibility::Tenant(job.tenant), id).await?,
            None => None,
        };
        Ok(known.map(|known| self.public_id(IdKind::Endpoint, known.id.0, known.at)))
    }

    pub async fn job(&self, visibility: Visibility, id: JobId) -> Result<Option<DeliveryJob>, StoreError> {
        Ok(self.store.job(id).await?.filter(|job| visibility.sees(job.tenant)))
    }

    /// Pauses, resumes or cancels a job that the caller may see; `false` when there is none, or it has ended.
    pub async fn change_job(
        &self,
        visibility: Visibility,
        id: JobId,
        next: JobState,
        by: Option<ApiKeyRef>,
    ) -> Result<bool, NotReplayed> {
        let Some(job) = self.job(visibility, id).await? else { return Ok(false) };
        if job.state == JobState::Paused && next == JobState::Running {
            // Two resumed at the same time may exceed the bound by one, which is harmless: it only limits how long
            // others wait for their turn.
            let running = self.store.jobs(JobQuery::ReplaysOf(job.tenant), None, RUNNING_MAX).await?;
            if running.len() >= RUNNING_MAX as usize {
                return Err(NotReplayed::TooMany);
            }
        }
        let changed = self.store.change_job(self.session, id, next, self.done_by(by)).await?;
        self.new_job.notify_one();
        Ok(changed)
    }
}
