//! What was given up, and another life for it: dead letters and replays, as the API asks for them.

use posthaste_core::id::{DeliveryId, JobId, TenantId};
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::Kind;
use posthaste_store::{
    Begun, Count, DeadLetterCursor, DeadLetterFilter, DeadLetterPage, Job, JobQuery, JobState, ListOrder, NewReplay,
    ReplayWhat, Store, StoreError,
};

use crate::accept::Once;
use crate::clock::Clock;
use crate::engine::{Engine, Sees};
use crate::tenants::{Made, NotFiled};

/// A replay that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeReplay {
    /// The id the world knows it by.
    pub public_id: String,
    /// When.
    pub at: Timestamp,
    /// How many there were for it then.
    pub total: Count,
    /// Deliveries it may make in a second.
    pub per_second: Option<u32>,
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

    /// How many dead letters match, as far as it is worth counting.
    pub async fn count_dead_letters(&self, filter: DeadLetterFilter) -> Result<Count, StoreError> {
        self.store.count_dead_letters(filter).await
    }

    /// A tenant's replays, from behind one.
    pub async fn replays(
        &self,
        tenant: TenantId,
        order: ListOrder,
        after: Option<JobId>,
        limit: u32,
    ) -> Result<Vec<Job>, StoreError> {
        self.store.jobs(JobQuery::Replays(tenant, order), after, limit).await
    }

    /// Which of these deliveries a tenant has.
    pub async fn owned(&self, tenant: TenantId, ids: &[DeliveryId]) -> Result<Vec<bool>, StoreError> {
        let mut owned = Vec::with_capacity(ids.len());
        for id in ids {
            let shown = self.store.delivery(*id, self.clock.now()).await?;
            let endpoint = shown.map(|shown| shown.delivery.lane.endpoint());
            owned.push(match endpoint {
                Some(endpoint) => self.endpoint(Sees::Tenant(tenant), endpoint).await?.is_some(),
                None => false,
            });
        }
        Ok(owned)
    }

    /// Gives dead letters, or deliveries that are dead or expired, another life each; survives restarts.
    pub async fn replay(&self, tenant: TenantId, what: ReplayWhat, per_second: Option<u32>) -> Result<Job, StoreError> {
        let id = JobId(self.mint(1));
        let replay = NewReplay { id, tenant, at: self.clock.now(), what, per_second };
        let job = self.store.start_replay(self.session, replay).await?;
        self.tell_of_job();
        Ok(job)
    }

    /// The same under a key: whoever asks again is answered as before.
    pub async fn replay_once(
        &self,
        tenant: TenantId,
        what: ReplayWhat,
        per_second: Option<u32>,
        once: Once<MadeReplay>,
    ) -> Result<Made<MadeReplay>, NotFiled> {
        let (id, at) = (JobId(self.mint(1)), self.clock.now());
        // What the first caller is answered is kept with the key, before anybody has counted for the job.
        let total = match &what {
            ReplayWhat::Found(filter) => self.count_dead_letters(filter.clone()).await?,
            ReplayWhat::Listed(listed) => Count::Exactly(listed.len() as u64),
        };
        let made = MadeReplay { public_id: self.public_id(Kind::Replay, id.0, at), at, total, per_second };
        let once = self.known_by(tenant, once, &made, at);
        let replay = NewReplay { id, tenant, at, what, per_second };
        let begun = self.store.start_replay_once(self.session, replay, once).await?;
        self.tell_of_job();
        match begun {
            Begun::Now(_) => Ok(Made::Now(made)),
            Begun::Before(answer) => Ok(Made::Before(answer)),
            Begun::KeyReused => Err(NotFiled::KeyReused),
        }
    }

    /// A job of a tenant.
    pub async fn job(&self, whose: Sees, id: JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.store.job(id).await?.filter(|job| whose.sees(job.tenant)))
    }

    /// Pauses, resumes or cancels a tenant's job; `false` when there is none, or it has ended.
    pub async fn change_job(&self, whose: Sees, id: JobId, next: JobState) -> Result<bool, StoreError> {
        if self.job(whose, id).await?.is_none() {
            return Ok(false);
        }
        let changed = self.store.change_job(self.session, id, next).await?;
        self.tell_of_job();
        Ok(changed)
    }
}
