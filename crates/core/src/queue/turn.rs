//! Whose turn it is: a tier by weight, then the tenant of that tier that has had the least, then
//! that tenant's lanes one after the other.
//!
//! Tiers are served by strides: each pick moves a tier on by a stride that is short for a heavy
//! tier, and the tier furthest behind is next (G1). What has waited long for its turn moves its
//! tier on by less, so that it comes again sooner, though never as if it were two tiers higher. The lowest tier is first while it holds less than its share of the slots.
//!
//! Tenants are compared by slot-time, not by count: a pick is charged with what an attempt there
//! usually takes and put right when it has ended, so slow receivers cost their own tenant (G3). In
//! each tier they stand in two lines, one for quick destinations and one for slow ones, and the slow
//! line is passed over while slow destinations hold all they may. Where both lines may send, the
//! tenant that has had less is next, and of its lanes the one that has waited longest.
//!
//! Whoever was idle, kept back or passed over goes on from where the others are: nothing is saved
//! up, nobody waits for ever. The lines of a tier are in `turn/ranks.rs`.

mod ranks;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::flow::bucket::{Bucket, Rate};
use crate::hold::{Hold, Why};
use crate::id::TenantId;
use crate::id_map::IdMap;
use crate::slots::Slots;
use crate::tier::Tier;
use crate::time::Timestamp;
use ranks::Ranks;
pub(super) use ranks::{Room, Speed};

/// How often each tier is picked while all have work.
pub const WEIGHTS: [u64; 3] = [16, 4, 1];

/// What a pick of weight 1 moves a tier on by.
const STRIDE: u64 = 1 << 20;

/// 1 in 21 would be less than the lowest tier's share of 5 %, so it moves on by a little less.
const LOWEST_STRIDE: u64 = STRIDE / 10 * 9;

/// What waits this long for its turn weighs twice as much, and twice again after as long once more.
/// Then it weighs about what is fresh of the tier above does, and no more: a transactional message
/// must not wait behind a campaign, however old that is.
const AGEING: Duration = Duration::from_secs(30);
const AGEING_MOST: u32 = 2;

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
    /// Where the tier picked last by weight stood: what an idle tier starts from.
    now_at: u64,
    tenants: Slots<Tenant>,
    index: IdMap<TenantId, u32>,
    /// What operators have set; everybody else is an equal among equals.
    settings: IdMap<TenantId, TenantSettings>,
    /// Tenants out of tokens, and when each has one again.
    wakes: Vec<(Timestamp, TenantId)>,
    /// Where the next look for tenants who have left begins.
    looked_at: u32,
    /// How many lanes have joined: a clock that cannot be set back.
    joined: u32,
}

#[derive(Debug)]
struct Tenant {
    settings: TenantSettings,
    bucket: Option<Bucket>,
    in_flight: u32,
    last_sent: Timestamp,
    /// Kept from sending as a whole: too many slots, or out of tokens.
    blocked: Option<Why>,
    /// Its lanes by tier and speed.
    rings: [[Ring; 2]; 3],
}

/// A tenant's part of one line.
#[derive(Debug, Default)]
struct Ring {
    /// Slot-time it has had, by its weight. Slots that slow ones could not have had do not count
    /// among the slow: else a tenant's own quick lanes could keep its slow ones waiting for ever.
    had: u64,
    /// Its lanes with work; who joined first is first.
    lanes: VecDeque<Waiting>,
}

/// A lane that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    lane: u32,
    /// As how many-th it joined.
    number: u32,
    since: Timestamp,
}

/// A lane whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) tier: Tier,
    pub(super) tenant: u32,
    pub(super) lane: u32,
    number: u32,
    /// Since when it waited for this.
    pub(super) since: Timestamp,
    /// Whether a slow destination may have the slot.
    pub(super) open_to_slow: bool,
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
            rings: Default::default(),
        };
        let index = self.tenants.insert(tenant);
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
    pub(super) fn join(&mut self, tier: Tier, tenant: u32, lane: u32, speed: Speed, now: Timestamp) {
        self.joined = self.joined.wrapping_add(1);
        self.stand(tier, tenant, speed, Waiting { lane, number: self.joined, since: now });
    }

    /// Puts a lane among the slow that was taken as a quick one; it has waited as long as before.
    pub(super) fn join_slow(&mut self, taken: Taken) {
        let Taken { tier, tenant, lane, number, since, .. } = taken;
        self.stand(tier, tenant, Speed::Slow, Waiting { lane, number, since });
    }

    fn stand(&mut self, tier: Tier, tenant: u32, speed: Speed, waiting: Waiting) {
        self.keep_no_credit(tier, tenant);
        let joined = self.joined;
        let entry = self.tenant_mut(tenant);
        let blocked = entry.blocked.is_some();
        let ring = &mut entry.rings[tier.index()][speed.index()];
        let at = ring.lanes.partition_point(|other| is_before(other, &waiting, joined));
        ring.lanes.insert(at, waiting);
        let had = ring.had;
        if !blocked {
            self.tiers[tier.index()].lines[speed.index()].order.insert((had, tenant));
        }
    }

    /// The next lane and the tier it may send of.
    pub(super) fn take(&mut self, room: Room, now: Timestamp) -> Option<Taken> {
        self.forget_who_left(now);
        let cap = if self.index.len() > 1 { room.cap } else { u32::MAX };
        loop {
            let short = self.lowest_if_short(room);
            let tier = short.or_else(|| self.next_by_weight(room))?;
            let (place, index, line) = self.tiers[tier.index()].first(room).expect("somebody of this tier waits");
            if self.is_kept_back(index, cap, now) {
                continue;
            }
            let ranks = &mut self.tiers[tier.index()];
            ranks.picked(place, line, room);
            if short.is_none() {
                self.now_at = self.now_at.max(ranks.passed);
            }
            return Some(self.take_lane(tier, index, room));
        }
    }

    /// The lowest tier, if it could use more slots and holds less than its share.
    fn lowest_if_short(&self, room: Room) -> Option<Tier> {
        let lowest = &self.tiers[Tier::Engagement.index()];
        (lowest.in_flight < room.lowest && lowest.first(room).is_some()).then_some(Tier::Engagement)
    }

    /// The tier furthest behind; one that was idle is not further behind than the others.
    fn next_by_weight(&self, room: Room) -> Option<Tier> {
        let waits = |tier: &Tier| self.tiers[tier.index()].first(room).is_some();
        let place = |tier: &Tier| (self.tiers[tier.index()].passed.max(self.now_at), tier.index());
        Tier::ALL.into_iter().filter(waits).min_by_key(place)
    }

    /// Of a tenant's lanes that may send, the one that has waited longest.
    fn take_lane(&mut self, tier: Tier, index: u32, room: Room) -> Taken {
        let joined = self.joined;
        let rings = &mut self.tenant_mut(index).rings[tier.index()];
        let [quick, slow] = rings.each_ref().map(|ring| ring.lanes.front());
        let speed = match (quick, slow.filter(|_| room.slow)) {
            (Some(quick), Some(slow)) if is_before(quick, slow, joined) => Speed::Quick,
            (_, Some(_)) => Speed::Slow,
            _ => Speed::Quick,
        };
        let ring = &mut rings[speed.index()];
        let Waiting { lane, number, since } = ring.lanes.pop_front().expect("a tenant in a line has a lane");
        if ring.lanes.is_empty() {
            let had = ring.had;
            self.tiers[tier.index()].lines[speed.index()].order.remove(&(had, index));
        }
        Taken { tier, tenant: index, lane, number, since, open_to_slow: room.slow }
    }

    /// Whether a tenant has too many slots, or no token; it then stands in no line.
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
        self.leave_lines(index);
        self.tenant_mut(index).blocked = Some(why);
        true
    }

    /// Charges a send that is expected to take this long.
    pub(super) fn sent(&mut self, taken: Taken, expected: Duration, now: Timestamp) {
        let tier = taken.tier.index();
        let stride = if tier + 1 == WEIGHTS.len() { LOWEST_STRIDE } else { STRIDE / WEIGHTS[tier] };
        let ages = now.since(taken.since).as_secs() / AGEING.as_secs();
        let ages = u32::try_from(ages).unwrap_or(AGEING_MOST).min(AGEING_MOST);
        let ranks = &mut self.tiers[tier];
        ranks.in_flight += 1;
        // One that was first whatever its weight owes a turn for it, and not more.
        ranks.passed = ranks.passed.max(self.now_at + (stride >> ages));
        let tenant = self.tenant_mut(taken.tenant);
        tenant.in_flight += 1;
        tenant.last_sent = now;
        if let (Some(rate), Some(bucket)) = (&tenant.settings.rate, &mut tenant.bucket) {
            // Looked at when it was taken: a token is there.
            let _ = bucket.take(rate, now);
        }
        self.charge(taken, cost(expected));
    }

    /// An attempt has ended; what it was charged is put right.
    pub(super) fn landed(&mut self, taken: Taken, expected: Duration, took: Duration) {
        self.free_slot(taken);
        self.charge(taken, cost(took) - cost(expected));
        if self.tenant_mut(taken.tenant).blocked == Some(Why::Concurrency) {
            self.release(taken.tenant);
        }
    }

    /// An attempt was not made after all that was started then.
    pub(super) fn put_back(&mut self, taken: Taken, expected: Duration, started: Timestamp) {
        self.free_slot(taken);
        let entry = self.tenant_mut(taken.tenant);
        if let (Some(rate), Some(bucket)) = (&entry.settings.rate, &mut entry.bucket) {
            bucket.give_back(rate, started);
        }
        self.charge(taken, -cost(expected));
        self.release(taken.tenant);
    }

    fn free_slot(&mut self, taken: Taken) {
        self.tiers[taken.tier.index()].in_flight -= 1;
        self.tenant_mut(taken.tenant).in_flight -= 1;
    }

    /// The clock was set back: what time has earned counts from now on.
    pub(super) fn catch_up(&mut self, now: Timestamp) {
        for index in 0..self.tenants.bound() {
            let Some(tenant) = self.tenants.get_mut(index) else { continue };
            if let (Some(rate), Some(bucket)) = (&tenant.settings.rate, &mut tenant.bucket) {
                bucket.catch_up(rate, now);
            }
            if tenant.blocked == Some(Why::RateLimit) {
                self.release(index);
            }
        }
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

    /// How many tenants have something to send, or had a moment ago.
    pub(super) fn tenants(&self) -> usize {
        self.index.len()
    }

    /// What keeps a tenant as a whole from sending.
    pub(super) fn holding(&self, tenant: TenantId, now: Timestamp) -> Option<Hold> {
        let tenant = self.tenants.get(*self.index.get(&tenant)?)?;
        let until = match (&tenant.settings.rate, &tenant.bucket) {
            (Some(rate), Some(bucket)) if tenant.blocked == Some(Why::RateLimit) => bucket.next_at(rate, now),
            _ => None,
        };
        tenant.blocked.map(|why| Hold { why, until })
    }

    // --- the books ---

    fn tenant_mut(&mut self, index: u32) -> &mut Tenant {
        self.tenants.get_mut(index).expect("an indexed tenant is there")
    }

    fn charge(&mut self, taken: Taken, micros: i64) {
        let (tier, index) = (taken.tier.index(), taken.tenant);
        let tenant = self.tenants.get_mut(index).expect("an indexed tenant is there");
        let weight = u64::from(tenant.settings.weight_milli.max(1));
        let cost = micros.unsigned_abs().saturating_mul(UNIT_WEIGHT) / weight;
        for speed in Speed::ALL.into_iter().filter(|speed| *speed == Speed::Quick || taken.open_to_slow) {
            let ring = &mut tenant.rings[tier][speed.index()];
            let before = ring.had;
            ring.had = if micros >= 0 { before.saturating_add(cost) } else { before.saturating_sub(cost) };
            if !ring.lanes.is_empty() && tenant.blocked.is_none() {
                let order = &mut self.tiers[tier].lines[speed.index()].order;
                order.remove(&(before, index));
                order.insert((ring.had, index));
            }
        }
    }

    /// Where a tenant stands in no line, it goes on from where the others are.
    fn keep_no_credit(&mut self, tier: Tier, index: u32) {
        let ranks = &mut self.tiers[tier.index()];
        let tenant = self.tenants.get_mut(index).expect("an indexed tenant is there");
        for speed in Speed::ALL {
            let ring = &mut tenant.rings[tier.index()][speed.index()];
            if ring.lanes.is_empty() || tenant.blocked.is_some() {
                ring.had = ring.had.max(ranks.floor(speed));
            }
        }
    }

    fn leave_lines(&mut self, index: u32) {
        self.each_place(index, |order, place| {
            order.remove(&place);
        });
    }

    fn release(&mut self, index: u32) {
        if self.tenant_mut(index).blocked.is_none() {
            return;
        }
        for tier in Tier::ALL {
            self.keep_no_credit(tier, index);
        }
        self.tenant_mut(index).blocked = None;
        self.each_place(index, |order, place| {
            order.insert(place);
        });
    }

    /// Every place in a line that a tenant's lanes give it.
    fn each_place(&mut self, index: u32, change: impl Fn(&mut BTreeSet<(u64, u32)>, (u64, u32))) {
        let tenant = self.tenants.get(index).expect("an indexed tenant is there");
        for (ranks, rings) in self.tiers.iter_mut().zip(&tenant.rings) {
            for (line, ring) in ranks.lines.iter_mut().zip(rings) {
                if !ring.lanes.is_empty() {
                    change(&mut line.order, (ring.had, index));
                }
            }
        }
    }

    /// Looks at one tenant: whoever has had nothing to do for a while does not count any more.
    fn forget_who_left(&mut self, now: Timestamp) {
        self.looked_at = (self.looked_at + 1) % self.tenants.bound().max(1);
        let Some(tenant) = self.tenants.get(self.looked_at) else { return };
        let waits = tenant.rings.iter().flatten().any(|ring| !ring.lanes.is_empty());
        let owes = match (&tenant.settings.rate, &tenant.bucket) {
            (Some(rate), Some(bucket)) => !bucket.is_full(rate, now),
            _ => false,
        };
        if tenant.in_flight > 0 || waits || owes || now.since(tenant.last_sent) < PRESENT {
            return;
        }
        self.index.remove(&tenant.settings.tenant);
        self.tenants.remove(self.looked_at);
    }
}

/// Whether one joined before another, as seen when so many have joined. The count starts again from
/// 0 some day.
fn is_before(one: &Waiting, other: &Waiting, joined: u32) -> bool {
    joined.wrapping_sub(one.number) > joined.wrapping_sub(other.number)
}

/// What an attempt of this length costs, in microseconds of slot-time.
fn cost(took: Duration) -> i64 {
    i64::try_from(took.max(LEAST_COST).as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
