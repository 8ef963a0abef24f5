//! Whose turn it is: a tier by weight, then the tenant of that tier that has had the least, then
//! that tenant's lanes one after the other.
//!
//! Tiers are served by strides: each pick moves a tier on by a stride that is short for a heavy
//! tier, and the tier furthest behind is next (G1). What has waited long for its turn moves its
//! tier on by less, so that it comes again sooner. Tenants are compared by slot-time, not by count:
//! a pick is charged with what an attempt there usually takes and put right when it has ended, so
//! slow receivers cost their own tenant (G3). Whoever was idle starts where the others are: nothing
//! is saved up, nobody waits for ever.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::flow::bucket::{Bucket, Rate};
use crate::hold::{Hold, Why};
use crate::id::TenantId;
use crate::id_map::IdMap;
use crate::tier::Tier;
use crate::time::Timestamp;

/// How often each tier is picked while all have work.
pub const WEIGHTS: [u64; 3] = [16, 4, 1];

/// What a pick of weight 1 moves a tier on by.
const STRIDE: u64 = 1 << 20;

/// 1 in 21 would be less than the lowest tier's share of 5 %, so it moves on by a little less.
const LOWEST_STRIDE: u64 = STRIDE / 10 * 9;

/// What waits this long for its turn weighs twice as much, and twice again after as long once more.
const AGEING: Duration = Duration::from_secs(30);
const AGEING_MOST: u32 = 6;

/// A tenant is there for this long after its last attempt, and keeps the others to their caps.
const PRESENT: Duration = Duration::from_secs(60);

/// The least an attempt costs: one that ends within the same millisecond is not for nothing.
const LEAST_COST: Duration = Duration::from_millis(1);

/// Slot-time is counted in microseconds for a tenant of this weight.
const UNIT_WEIGHT: u64 = 1_000;

/// What an operator has set for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantSettings {
    /// Which tenant.
    pub tenant: TenantId,
    /// Its share beside others, in thousandths: 2,000 gets twice the slot-time of 1,000.
    pub weight_milli: u32,
    /// How fast its messages may leave, over all its endpoints.
    pub rate: Option<Rate>,
}

impl TenantSettings {
    /// An equal among equals, without a limit.
    pub const fn new(tenant: TenantId) -> Self {
        Self { tenant, weight_milli: 1_000, rate: None }
    }
}

/// The lanes that may send, by tier and tenant.
#[derive(Debug, Default)]
pub(super) struct Turn {
    tiers: [Ranks; 3],
    /// Where the tier picked last stood: what an idle tier starts from.
    now_at: u64,
    tenants: Vec<Option<Tenant>>,
    free: Vec<u32>,
    index: IdMap<TenantId, u32>,
    /// What operators have set; everybody else is an equal among equals.
    settings: IdMap<TenantId, TenantSettings>,
    /// Tenants out of tokens, and when each has one again.
    wakes: Vec<(Timestamp, TenantId)>,
    /// Where the next look for tenants who have left begins.
    looked_at: usize,
}

/// The tenants of one tier that may send.
#[derive(Debug, Default)]
struct Ranks {
    /// By what they have had.
    order: BTreeSet<(u64, u32)>,
    /// How far the tier has come.
    passed: u64,
    /// What the tenant picked last has had: what an idle one starts from.
    now_at: u64,
}

#[derive(Debug)]
struct Tenant {
    settings: TenantSettings,
    bucket: Option<Bucket>,
    in_flight: u32,
    last_sent: Timestamp,
    /// Kept from sending as a whole: too many slots, or out of tokens.
    blocked: Option<Why>,
    shares: [Share; 3],
}

/// A tenant's part of one tier.
#[derive(Debug, Default)]
struct Share {
    /// Slot-time it has had, by its weight.
    had: u64,
    /// Its lanes with work, and since when each waits for its turn.
    lanes: VecDeque<(u32, Timestamp)>,
}

/// A lane whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) tier: Tier,
    pub(super) tenant: u32,
    pub(super) lane: u32,
    /// Since when it waited for this.
    pub(super) since: Timestamp,
}

impl Turn {
    /// The tenant's place, made if there is none.
    pub(super) fn tenant(&mut self, id: TenantId, now: Timestamp) -> u32 {
        if let Some(index) = self.index.get(&id) {
            return *index;
        }
        let settings = self.settings.get(&id).copied().unwrap_or(TenantSettings::new(id));
        let tenant = Tenant {
            bucket: settings.rate.map(|rate| Bucket::full(&rate, now)),
            settings,
            in_flight: 0,
            last_sent: now,
            blocked: None,
            shares: Default::default(),
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            u32::try_from(self.tenants.len() - 1).expect("the window bounds the number of tenants")
        });
        self.tenants[index as usize] = Some(tenant);
        self.index.insert(id, index);
        index
    }

    /// Takes over what an operator has set.
    pub(super) fn set(&mut self, settings: TenantSettings, now: Timestamp) {
        self.settings.insert(settings.tenant, settings);
        let Some(index) = self.index.get(&settings.tenant).copied() else { return };
        let tenant = self.tenant_mut(index);
        tenant.bucket = settings.rate.map(|rate| match tenant.bucket {
            Some(bucket) if tenant.settings.rate == settings.rate => bucket,
            _ => Bucket::full(&rate, now),
        });
        tenant.settings = settings;
        self.release(index);
    }

    /// Puts a lane at the end of its tenant's ring.
    pub(super) fn join(&mut self, tier: Tier, tenant: u32, lane: u32, now: Timestamp) {
        let ranks = &self.tiers[tier.index()];
        let floor = ranks.now_at;
        if ranks.order.is_empty() {
            let passed = ranks.passed.max(self.now_at);
            self.tiers[tier.index()].passed = passed;
        }
        let entry = self.tenant_mut(tenant);
        let blocked = entry.blocked.is_some();
        let share = &mut entry.shares[tier.index()];
        if share.lanes.is_empty() {
            share.had = share.had.max(floor);
        }
        share.lanes.push_back((lane, now));
        let had = share.had;
        if !blocked {
            self.tiers[tier.index()].order.insert((had, tenant));
        }
    }

    /// The next lane and the tier it may send of.
    ///
    /// `cap` is how many slots one tenant may hold beside others.
    pub(super) fn take(&mut self, cap: u32, now: Timestamp) -> Option<Taken> {
        self.forget_who_left(now);
        let cap = if self.index.len() > 1 { cap } else { u32::MAX };
        loop {
            let tier = Tier::ALL
                .into_iter()
                .filter(|tier| !self.tiers[tier.index()].order.is_empty())
                .min_by_key(|tier| (self.tiers[tier.index()].passed, tier.index()))?;
            let (had, index) = *self.tiers[tier.index()].order.first().expect("filtered for tiers with tenants");
            if self.is_kept_back(index, cap, now) {
                continue;
            }
            self.now_at = self.tiers[tier.index()].passed;
            self.tiers[tier.index()].now_at = had;
            let share = &mut self.tenant_mut(index).shares[tier.index()];
            let (lane, since) = share.lanes.pop_front().expect("a tenant in the order has a lane");
            if share.lanes.is_empty() {
                self.tiers[tier.index()].order.remove(&(had, index));
            }
            return Some(Taken { tier, tenant: index, lane, since });
        }
    }

    /// Whether a tenant has too many slots, or no token; it then stands in no order.
    fn is_kept_back(&mut self, index: u32, cap: u32, now: Timestamp) -> bool {
        let tenant = self.tenant_mut(index);
        let empty_until = match (&tenant.settings.rate, &tenant.bucket) {
            (Some(rate), Some(bucket)) => bucket.next_at(rate, now),
            _ => None,
        };
        let why = if tenant.in_flight >= cap {
            Why::Concurrency
        } else if let Some(at) = empty_until {
            let id = tenant.settings.tenant;
            self.wakes.push((at, id));
            Why::RateLimit
        } else {
            return false;
        };
        self.leave_order(index);
        self.tenant_mut(index).blocked = Some(why);
        true
    }

    /// Charges a send that is expected to take this long.
    pub(super) fn sent(&mut self, taken: Taken, expected: Duration, now: Timestamp) {
        let tier = taken.tier.index();
        let stride = if tier + 1 == WEIGHTS.len() { LOWEST_STRIDE } else { STRIDE / WEIGHTS[tier] };
        let ages = now.since(taken.since).as_secs() / AGEING.as_secs();
        let ages = u32::try_from(ages).unwrap_or(AGEING_MOST).min(AGEING_MOST);
        self.tiers[tier].passed += (stride >> ages).max(1);
        let tenant = self.tenant_mut(taken.tenant);
        tenant.in_flight += 1;
        tenant.last_sent = now;
        if let (Some(rate), Some(bucket)) = (&tenant.settings.rate, &mut tenant.bucket) {
            // Looked at when it was taken: a token is there.
            let _ = bucket.take(rate, now);
        }
        self.charge(taken.tier, taken.tenant, cost(expected));
    }

    /// An attempt has ended; what it was charged is put right.
    pub(super) fn landed(&mut self, tier: Tier, tenant: u32, expected: Duration, took: Duration) {
        let entry = self.tenant_mut(tenant);
        entry.in_flight = entry.in_flight.saturating_sub(1);
        self.charge(tier, tenant, cost(took) - cost(expected));
        if self.tenant_mut(tenant).blocked == Some(Why::Concurrency) {
            self.release(tenant);
        }
    }

    /// An attempt was not made after all.
    pub(super) fn put_back(&mut self, tier: Tier, tenant: u32, expected: Duration) {
        let entry = self.tenant_mut(tenant);
        if let (Some(rate), Some(bucket)) = (&entry.settings.rate, &mut entry.bucket) {
            bucket.give_back(rate);
        }
        entry.in_flight = entry.in_flight.saturating_sub(1);
        self.charge(tier, tenant, -cost(expected));
        self.release(tenant);
    }

    /// A tenant may have a token again.
    pub(super) fn wake(&mut self, tenant: TenantId) {
        if let Some(index) = self.index.get(&tenant).copied()
            && self.tenant_mut(index).blocked == Some(Why::RateLimit)
        {
            self.release(index);
        }
    }

    /// Tenants that ran out of tokens since the last call, and when each is to be woken.
    pub(super) fn take_wakes(&mut self) -> Vec<(Timestamp, TenantId)> {
        std::mem::take(&mut self.wakes)
    }

    /// What keeps a tenant as a whole from sending.
    pub(super) fn holding(&self, tenant: TenantId, now: Timestamp) -> Option<Hold> {
        let tenant = self.tenants.get(*self.index.get(&tenant)? as usize)?.as_ref()?;
        let until = match (&tenant.settings.rate, &tenant.bucket) {
            (Some(rate), Some(bucket)) if tenant.blocked == Some(Why::RateLimit) => bucket.next_at(rate, now),
            _ => None,
        };
        tenant.blocked.map(|why| Hold { why, until })
    }

    // --- the books ---

    fn tenant_mut(&mut self, index: u32) -> &mut Tenant {
        self.tenants[index as usize].as_mut().expect("an indexed tenant is there")
    }

    fn charge(&mut self, tier: Tier, index: u32, micros: i64) {
        let tenant = self.tenant_mut(index);
        let weight = u64::from(tenant.settings.weight_milli.max(1));
        let blocked = tenant.blocked.is_some();
        let share = &mut tenant.shares[tier.index()];
        let before = share.had;
        let cost = micros.unsigned_abs().saturating_mul(UNIT_WEIGHT) / weight;
        share.had = if micros >= 0 { before.saturating_add(cost) } else { before.saturating_sub(cost) };
        let had = share.had;
        if !share.lanes.is_empty() && !blocked {
            let order = &mut self.tiers[tier.index()].order;
            order.remove(&(before, index));
            order.insert((had, index));
        }
    }

    fn leave_order(&mut self, index: u32) {
        for tier in Tier::ALL {
            let had = self.tenant_mut(index).shares[tier.index()].had;
            self.tiers[tier.index()].order.remove(&(had, index));
        }
    }

    fn release(&mut self, index: u32) {
        self.tenant_mut(index).blocked = None;
        for tier in Tier::ALL {
            let share = &self.tenant_mut(index).shares[tier.index()];
            let (had, waits) = (share.had, !share.lanes.is_empty());
            if waits {
                let ranks = &mut self.tiers[tier.index()];
                if ranks.order.is_empty() {
                    ranks.passed = ranks.passed.max(self.now_at);
                }
                ranks.order.insert((had, index));
            }
        }
    }

    /// Looks at one tenant: whoever has had nothing to do for a while does not count any more.
    fn forget_who_left(&mut self, now: Timestamp) {
        if self.tenants.is_empty() {
            return;
        }
        self.looked_at = (self.looked_at + 1) % self.tenants.len();
        let Some(tenant) = &self.tenants[self.looked_at] else { return };
        let is_busy = tenant.in_flight > 0 || tenant.shares.iter().any(|share| !share.lanes.is_empty());
        let owes = match (&tenant.settings.rate, &tenant.bucket) {
            (Some(rate), Some(bucket)) => !bucket.is_full(rate, now),
            _ => false,
        };
        if is_busy || owes || now.since(tenant.last_sent) < PRESENT {
            return;
        }
        self.index.remove(&tenant.settings.tenant);
        self.tenants[self.looked_at] = None;
        self.free.push(u32::try_from(self.looked_at).expect("indexed by a u32"));
    }
}

/// What an attempt of this length costs, in microseconds of slot-time.
fn cost(took: Duration) -> i64 {
    i64::try_from(took.max(LEAST_COST).as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
