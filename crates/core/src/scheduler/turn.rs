//! Fair scheduling: picks a tier by weight, then the tenant of that tier that has used the least slot-time, then
//! that tenant's lanes in turn.
//!
//! Tiers are served by stride scheduling: each pick advances a tier by a stride that is shorter for a higher weight,
//! and the tier that has advanced least is next (G1). A delivery that has waited long advances its tier by less, so
//! that the tier is picked again sooner; its weight grows at most to about that of the next higher tier. The lowest
//! tier is picked first while it holds less than its share of the slots.
//!
//! Tenants are compared by slot-time, not by number of picks: a pick is charged with the expected duration of the
//! attempt and corrected when it ends, so slow receivers cost their own tenant (G3). In each tier the tenants wait in
//! two lines, one for quick destinations and one for slow ones, and the slow line is skipped while slow destinations
//! hold all the slots that they may use. Where both lines may send, the tenant with less slot-time is next, and of its
//! lanes the one that has waited longest.
//!
//! Invariant: a tier or tenant that was idle, limited or skipped continues from the current position of the others.
//! It saves up no credit, and none waits for ever.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::flow::bucket::{Bucket, Rate};
use crate::slots::Slots;
use crate::{Hold, IdMap, TenantId, Tier, Timestamp, Why};

/// The relative weights of the tiers while all have work.
pub const WEIGHTS: [u64; 3] = [16, 4, 1];

/// How far a pick advances a tier of weight 1.
const STRIDE: u64 = 1 << 20;

/// The lowest tier's share by weight, 1 in 21, is less than the promised 5 %, so its stride is a little shorter.
const LOWEST_STRIDE: u64 = STRIDE / 10 * 9;

/// The weight of a delivery doubles after waiting this long for its turn, and once more after twice as long. It does
/// not grow further: a transactional message must not wait behind an old campaign.
const AGEING: Duration = Duration::from_secs(30);
const AGEING_MOST: u32 = 2;

/// A tenant counts as active for this long after its last attempt; while several are, each is limited to its cap.
const PRESENT: Duration = Duration::from_secs(60);

/// The least cost of an attempt, for one that ends within the same millisecond.
const LEAST_COST: Duration = Duration::from_millis(1);

/// The weight for which slot-time is counted in microseconds.
const UNIT_WEIGHT: u64 = 1_000;

/// An operator's settings for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantSettings {
    pub tenant: TenantId,
    /// Its weight in thousandths: a tenant with 2,000 gets twice the slot-time of one with 1,000.
    pub weight_milli: u32,
    /// The rate limit over all its endpoints.
    pub rate: Option<Rate>,
}

impl TenantSettings {
    /// The default settings: weight 1, no rate limit.
    pub const fn new(tenant: TenantId) -> Self {
        Self { tenant, weight_milli: 1_000, rate: None }
    }
}

/// Whether attempts at a destination take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Speed {
    Quick,
    Slow,
}

impl Speed {
    const ALL: [Self; 2] = [Self::Quick, Self::Slow];

    const fn index(self) -> usize {
        self as usize
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// The most slots of one tenant while several are active.
    pub(super) cap: u32,
    /// Whether slow destinations may use another slot.
    pub(super) slow: bool,
    /// The lowest tier is picked first while it holds fewer slots than this.
    pub(super) lowest: u32,
}

/// The lanes that may send, by tier and tenant.
#[derive(Debug, Default)]
pub(super) struct Turns {
    tiers: [Ranks; 3],
    /// The position of the tier that was last picked by weight; an idle tier continues from here.
    now_at: u64,
    tenants: Slots<Tenant>,
    index: IdMap<TenantId, u32>,
    /// The tenants' settings; tenants without have the default.
    settings: IdMap<TenantId, TenantSettings>,
    /// Tenants out of tokens, and when each has one again.
    wakes: Vec<(Timestamp, TenantId)>,
    /// The tenant that was last checked for inactivity.
    looked_at: u32,
    /// How many lanes have joined, modulo 2³²: a logical clock for the order of waiting.
    joined: u32,
}

/// The tenants of one tier that may send, in two lines: those with quick destinations and those with slow ones. A line
/// that was skipped or empty continues from the position of the other one.
#[derive(Debug, Default)]
struct Ranks {
    /// The line of quick destinations and that of slow ones, by [`Speed::index`].
    lines: [TenantLine; 2],
    /// How far the slow line fell behind the quick one while it was skipped. It does not catch up.
    left_behind: u64,
    in_flight: u32,
    passed: u64,
}

#[derive(Debug, Default)]
struct TenantLine {
    /// Tenants by the slot-time they have used.
    order: BTreeSet<(u64, u32)>,
    /// The slot-time of the tenant that was picked last; an idle tenant continues from here.
    now_at: u64,
}

#[derive(Debug)]
struct Tenant {
    settings: TenantSettings,
    bucket: Option<Bucket>,
    in_flight: u32,
    last_sent: Timestamp,
    /// Why the whole tenant may not send: it is at its cap of slots, or out of tokens.
    blocked: Option<Why>,
    /// Its lanes by tier and speed.
    rings: [[Ring; 2]; 3],
}

impl Tenant {
    fn limit(&self) -> Option<(&Rate, &Bucket)> {
        self.settings.rate.as_ref().zip(self.bucket.as_ref())
    }
}

/// A tenant's part of one line.
#[derive(Debug, Default)]
struct Ring {
    /// The slot-time it has used, divided by its weight. Slots that slow destinations could not have used are not
    /// counted in the slow line: otherwise a tenant's own quick lanes could keep its slow ones waiting for ever.
    had: u64,
    /// Its lanes with work, in the order in which they joined.
    lanes: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    lane: u32,
    /// The value of [`Turns::joined`] when it joined.
    number: u32,
    since: Timestamp,
}

/// A lane whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakenTurn {
    pub(super) tier: Tier,
    pub(super) tenant: u32,
    pub(super) lane: u32,
    number: u32,
    /// Since when it has waited for its turn.
    pub(super) since: Timestamp,
    /// Whether a slow destination may use the slot.
    pub(super) open_to_slow: bool,
}

impl Turns {
    /// The tenant's index; the tenant is added if it is new.
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

    /// Puts a lane that was taken as a quick one into the slow line. It keeps the time it has waited.
    pub(super) fn join_slow(&mut self, taken: TakenTurn) {
        let TakenTurn { tier, tenant, lane, number, since, .. } = taken;
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
    pub(super) fn take(&mut self, room: Room, now: Timestamp) -> Option<TakenTurn> {
        self.remove_one_inactive_tenant(now);
        let cap = if self.index.len() > 1 { room.cap } else { u32::MAX };
        loop {
            let short = self.lowest_if_short(room);
            let tier = short.or_else(|| self.next_by_weight(room))?;
            let (place, index, line) = self.tiers[tier.index()].first(room).expect("a tenant of this tier waits");
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

    /// The lowest tier, if it has work and holds less than its share of the slots.
    fn lowest_if_short(&self, room: Room) -> Option<Tier> {
        let lowest = &self.tiers[Tier::Engagement.index()];
        (lowest.in_flight < room.lowest && lowest.first(room).is_some()).then_some(Tier::Engagement)
    }

    /// The tier that has advanced least; an idle time does not count.
    fn next_by_weight(&self, room: Room) -> Option<Tier> {
        let waits = |tier: &Tier| self.tiers[tier.index()].first(room).is_some();
        let place = |tier: &Tier| (self.tiers[tier.index()].passed.max(self.now_at), tier.index());
        Tier::ALL.into_iter().filter(waits).min_by_key(place)
    }

    /// Of a tenant's lanes that may send, the one that has waited longest.
    fn take_lane(&mut self, tier: Tier, index: u32, room: Room) -> TakenTurn {
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
        TakenTurn { tier, tenant: index, lane, number, since, open_to_slow: room.slow }
    }

    /// Whether a tenant is at its cap of slots or out of tokens. If so, it leaves all lines.
    fn is_kept_back(&mut self, index: u32, cap: u32, now: Timestamp) -> bool {
        let tenant = self.tenant_mut(index);
        let empty_until = tenant.limit().and_then(|(rate, bucket)| bucket.next_at(rate, now));
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
    pub(super) fn sent(&mut self, taken: TakenTurn, expected: Duration, now: Timestamp) {
        let tier = taken.tier.index();
        let stride = if tier + 1 == WEIGHTS.len() { LOWEST_STRIDE } else { STRIDE / WEIGHTS[tier] };
        let ages = now.since(taken.since).as_secs() / AGEING.as_secs();
        let ages = u32::try_from(ages).unwrap_or(AGEING_MOST).min(AGEING_MOST);
        let ranks = &mut self.tiers[tier];
        ranks.in_flight += 1;
        // A tier that was picked without regard to its weight is charged one stride from the current position at most.
        ranks.passed = ranks.passed.max(self.now_at + (stride >> ages));
        let tenant = self.tenant_mut(taken.tenant);
        tenant.in_flight += 1;
        tenant.last_sent = now;
        if let (Some(rate), Some(bucket)) = (&tenant.settings.rate, &mut tenant.bucket) {
            // `is_kept_back` was checked before: there is a token.
            let _ = bucket.take(rate, now);
        }
        self.charge(taken, cost(expected));
    }

    /// Corrects the charge of an attempt that has ended by its actual duration.
    pub(super) fn landed(&mut self, taken: TakenTurn, expected: Duration, took: Duration) {
        self.free_slot(taken);
        self.charge(taken, cost(took) - cost(expected));
        if self.tenant_mut(taken.tenant).blocked == Some(Why::Concurrency) {
            self.release(taken.tenant);
        }
    }

    /// Takes back the charge of an attempt that was started at `started` and not made.
    pub(super) fn put_back(&mut self, taken: TakenTurn, expected: Duration, started: Timestamp) {
        self.free_slot(taken);
        let entry = self.tenant_mut(taken.tenant);
        if let (Some(rate), Some(bucket)) = (&entry.settings.rate, &mut entry.bucket) {
            bucket.give_back(rate, started);
        }
        self.charge(taken, -cost(expected));
        self.release(taken.tenant);
    }

    fn free_slot(&mut self, taken: TakenTurn) {
        self.tiers[taken.tier.index()].in_flight -= 1;
        self.tenant_mut(taken.tenant).in_flight -= 1;
    }

    /// After the clock was set back: buckets continue from the new time.
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

    /// Lets a tenant that was out of tokens try again.
    pub(super) fn wake(&mut self, tenant: TenantId) {
        if let Some(index) = self.index.get(&tenant).copied()
            && self.tenant_mut(index).blocked == Some(Why::RateLimit)
        {
            self.release(index);
        }
    }

    /// Tenants that ran out of tokens since the last call, and when to call [`Turns::wake`] for each.
    pub(super) fn take_wakes(&mut self) -> Vec<(Timestamp, TenantId)> {
        std::mem::take(&mut self.wakes)
    }

    pub(super) fn tenants(&self) -> usize {
        self.index.len()
    }

    /// What blocks a whole tenant from sending.
    pub(super) fn holding(&self, tenant: TenantId, now: Timestamp) -> Option<Hold> {
        let tenant = self.tenants.get(*self.index.get(&tenant)?)?;
        let limit = tenant.limit().filter(|_| tenant.blocked == Some(Why::RateLimit));
        let until = limit.and_then(|(rate, bucket)| bucket.next_at(rate, now));
        tenant.blocked.map(|why| Hold { why, until })
    }

    // --- accounting ---

    fn tenant_mut(&mut self, index: u32) -> &mut Tenant {
        self.tenants.get_mut(index).expect("an indexed tenant is there")
    }

    fn charge(&mut self, taken: TakenTurn, micros: i64) {
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

    /// Moves a tenant that is not in a line up to the position of the others there.
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

    /// Calls `change` for every line in which the tenant has lanes, with the tenant's entry there.
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

    /// Checks one tenant, and removes it if it has been inactive for a while.
    fn remove_one_inactive_tenant(&mut self, now: Timestamp) {
        self.looked_at = (self.looked_at + 1) % self.tenants.bound().max(1);
        let Some(tenant) = self.tenants.get(self.looked_at) else { return };
        let waits = tenant.rings.iter().flatten().any(|ring| !ring.lanes.is_empty());
        let owes = tenant.limit().is_some_and(|(rate, bucket)| !bucket.is_full(rate, now));
        if tenant.in_flight > 0 || waits || owes || now.since(tenant.last_sent) < PRESENT {
            return;
        }
        self.index.remove(&tenant.settings.tenant);
        self.tenants.remove(self.looked_at);
    }
}

impl Ranks {
    /// The next tenant: the slot-time it has used, its index, and its line.
    fn first(&self, room: Room) -> Option<(u64, u32, Speed)> {
        let [quick, slow] = self.lines.each_ref().map(|line| line.order.first().copied());
        let quick = quick.map(|(had, tenant)| (had, tenant, Speed::Quick));
        let slow = slow.map(|(had, tenant)| (had.saturating_add(self.left_behind), tenant, Speed::Slow));
        quick.into_iter().chain(slow.filter(|_| room.slow)).min()
    }

    /// The slot-time from which an idle tenant continues. An empty line first moves up to the other one.
    fn floor(&mut self, speed: Speed) -> u64 {
        let [quick, slow] = &self.lines;
        let beside = match speed {
            Speed::Quick => slow.now_at.saturating_add(self.left_behind),
            Speed::Slow => quick.now_at.saturating_sub(self.left_behind),
        };
        let line = &mut self.lines[speed.index()];
        if line.order.is_empty() {
            line.now_at = line.now_at.max(beside);
        }
        line.now_at
    }

    /// Notes the pick of a tenant that has used this much. While the slow line is skipped, it saves up no credit.
    fn picked(&mut self, place: u64, speed: Speed, room: Room) {
        let slow = self.lines[Speed::Slow.index()].order.first().map(|(had, _)| place.saturating_sub(*had));
        if let Some(behind) = slow.filter(|_| !room.slow) {
            self.left_behind = self.left_behind.max(behind);
        }
        self.lines[speed.index()].now_at = match speed {
            Speed::Quick => place,
            Speed::Slow => place.saturating_sub(self.left_behind),
        };
    }
}

/// Whether one lane joined before another, where `joined` lanes have joined so far. The counter may wrap around.
fn is_before(one: &Waiting, other: &Waiting, joined: u32) -> bool {
    joined.wrapping_sub(one.number) > joined.wrapping_sub(other.number)
}

/// The cost of an attempt of this duration, in microseconds of slot-time.
fn cost(took: Duration) -> i64 {
    i64::try_from(took.max(LEAST_COST).as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
