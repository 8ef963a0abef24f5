//! The lanes in memory, and the versions of their settings.
//!
//! An accept brings along the lane settings it has read. They may be older than a change that has already arrived: the
//! accept reads its endpoints, the change comes, the idle lane is dropped from memory, and then the accept becomes
//! durable. A lane in memory knows its own version; [`SettingsVersions`] keeps the versions of lanes that were dropped.
//!
//! Invariant: older settings never replace newer ones.

use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use super::Scheduler;
use super::lane::{Lane, LaneSettings};
use crate::flow::SharedGate;
use crate::slots::Slots;
use crate::{IdMap, LaneId, TenantId, Timestamp};

/// The lanes in memory, each under an index that is valid while the lane is there.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub(super) slots: Slots<Lane>,
    index: IdMap<LaneId, u32>,
    pub(super) versions: SettingsVersions,
    /// Lanes whose own breaker is not closed.
    troubled: BTreeSet<LaneId>,
    /// How often the breaker of a lane opened.
    pub(super) trips: u64,
}

impl Lanes {
    pub(super) fn find(&self, id: LaneId) -> Option<u32> {
        self.index.get(&id).copied()
    }

    pub(super) fn of(&self, id: LaneId) -> Option<&Lane> {
        self.find(id).map(|index| &self[index])
    }

    /// The index of a lane, which is added if it is not there.
    pub(super) fn ensure(&mut self, id: LaneId) -> u32 {
        if let Some(index) = self.index.get(&id) {
            return *index;
        }
        let index = self.slots.insert(Lane::new(id));
        self.index.insert(id, index);
        index
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Some(lane) = self.slots.remove(index) {
            self.index.remove(&lane.id);
            self.troubled.remove(&lane.id);
        }
    }

    /// The ids of these lanes, sorted, since the order of a map must not influence a simulation.
    fn ids(&self, matches: impl Fn(&Lane) -> bool) -> Vec<LaneId> {
        let mut ids: Vec<LaneId> = self.slots.iter().filter(|lane| matches(lane)).map(|lane| lane.id).collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn troubled(&self) -> impl Iterator<Item = &Lane> {
        self.troubled.iter().filter_map(|lane| self.of(*lane))
    }

    pub(super) fn breaker_opened(&mut self, lane: LaneId, first: bool) {
        self.troubled.insert(lane);
        self.trips += u64::from(first);
    }

    pub(super) fn breaker_closed(&mut self, lane: LaneId) {
        self.troubled.remove(&lane);
    }
}

impl Index<u32> for Lanes {
    type Output = Lane;

    fn index(&self, index: u32) -> &Lane {
        self.slots.get(index).expect("an indexed lane is there")
    }
}

impl IndexMut<u32> for Lanes {
    fn index_mut(&mut self, index: u32) -> &mut Lane {
        self.slots.get_mut(index).expect("an indexed lane is there")
    }
}

/// How long a version is kept: far longer than an accept takes from reading its endpoints to its arrival.
const ARRIVES_WITHIN: Duration = Duration::from_secs(300);

/// The version of a lane's settings: changes by the owner, and changes of the rules that several lanes share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Version {
    own: u32,
    rules: u32,
}

impl Version {
    fn of(settings: &LaneSettings) -> Self {
        Self { own: settings.version, rules: settings.rules }
    }

    /// Whether the other settings were made before a change that these include. Settings that are newer in one respect
    /// and older in the other count as older too: every change makes the lane's settings be read again, so newer ones
    /// follow.
    fn is_newer(self, other: Self) -> bool {
        self.own > other.own || self.rules > other.rules
    }

    fn newest(self, other: Self) -> Self {
        Self { own: self.own.max(other.own), rules: self.rules.max(other.rules) }
    }
}

/// The newest versions that were noted in the last minutes.
#[derive(Debug)]
struct Recent<K, V> {
    newest: IdMap<K, V>,
    /// In the order in which they were noted, for their removal.
    order: VecDeque<(Timestamp, K, V)>,
}

impl<K: Copy + Eq + Hash, V: Copy + Eq> Recent<K, V> {
    fn remove_old(&mut self, now: Timestamp) {
        while let Some((_, key, version)) = self.order.pop_front_if(|(at, ..)| now.since(*at) >= ARRIVES_WITHIN) {
            if self.newest.get(&key) == Some(&version) {
                self.newest.remove(&key);
            }
        }
    }

    fn note(&mut self, now: Timestamp, key: K, version: V) {
        self.newest.insert(key, version);
        self.order.push_back((now, key, version));
    }
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { newest: IdMap::default(), order: VecDeque::new() }
    }
}

/// The versions of the last minutes. Settings that were never changed are not kept: no others are older.
#[derive(Debug, Default)]
pub(super) struct SettingsVersions {
    lanes: Recent<LaneId, Version>,
    /// The number of changed rules, by tenant; `None` for all tenants.
    rules: Recent<Option<TenantId>, u32>,
}

impl SettingsVersions {
    /// Notes settings as the store has them.
    pub(super) fn tell(&mut self, now: Timestamp, settings: &LaneSettings) {
        self.lanes.remove_old(now);
        let known = self.lanes.newest.get(&settings.lane).copied().unwrap_or_default();
        if Version::of(settings).is_newer(known) {
            self.lanes.note(now, settings.lane, known.newest(Version::of(settings)));
        }
    }

    /// Notes that the rules of a tenant (`None`: of all tenants) have changed; those with a smaller number are out of
    /// date.
    pub(super) fn tell_rules(&mut self, now: Timestamp, tenant: Option<TenantId>, number: u32) {
        self.rules.remove_old(now);
        let known = self.rules.newest.get(&tenant).copied().unwrap_or_default();
        self.rules.note(now, tenant, number.max(known));
    }

    /// Whether newer settings or newer rules are known.
    pub(super) fn are_older(&self, settings: &LaneSettings) -> bool {
        let rules = [None, Some(settings.tenant)].map(|tenant| self.rules.newest.get(&tenant));
        rules.into_iter().flatten().any(|number| *number > settings.rules)
            || self.lanes.newest.get(&settings.lane).is_some_and(|known| known.is_newer(Version::of(settings)))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert!(self.lanes.newest.len() <= self.lanes.order.len());
        self.lanes.order.len()
    }
}

impl Scheduler {
    /// Sets a lane's settings as the store has them now, and notes their version.
    pub fn tell_lane(&mut self, now: Timestamp, settings: &Arc<LaneSettings>) {
        self.lanes.versions.tell(now, settings);
        self.set_lane(now, settings);
    }

    /// Notes that the rules of a tenant's lanes (`None`: of all lanes) have changed. Settings made from rules with a
    /// smaller number are ignored from now on.
    pub fn tell_rules(&mut self, now: Timestamp, tenant: Option<TenantId>, number: u32) {
        self.lanes.versions.tell_rules(now, tenant, number);
    }

    /// Sets a lane's settings, new or changed, unless newer ones are known.
    pub fn set_lane(&mut self, now: Timestamp, settings: &Arc<LaneSettings>) {
        if self.lanes.versions.are_older(settings) {
            return;
        }
        let index = self.lanes.ensure(settings.lane);
        let lane = &mut self.lanes[index];
        // The settings that an accept brings along may be older than the lane's.
        let is_known = |known: &Arc<LaneSettings>| {
            Arc::ptr_eq(known, settings) || Version::of(known).is_newer(Version::of(settings))
        };
        if lane.settings.as_ref().is_some_and(is_known) {
            return;
        }
        let before = lane.spilling();
        lane.take_over(settings);
        self.tell_spilling(index, before);
        self.enqueue_tiers(index, now);
    }

    pub fn knows_lane(&self, lane: LaneId) -> bool {
        self.lanes.of(lane).is_some_and(|lane| lane.settings.is_some())
    }

    /// The lanes in memory of a tenant (`None`: of all tenants), and those whose tenant is not known yet.
    pub fn lanes_of(&self, tenant: Option<TenantId>) -> Vec<LaneId> {
        let matches = |lane: &Lane| {
            let owner = lane.settings.as_ref().map(|settings| settings.tenant);
            tenant.is_none() || owner.is_none() || owner == tenant
        };
        self.lanes.ids(matches)
    }

    pub fn lacks_settings(&self, lane: LaneId) -> bool {
        self.lanes.of(lane).is_some_and(|lane| lane.settings.is_none())
    }

    pub fn forget_idle_lane(&mut self, lane: LaneId, now: Timestamp) {
        if let Some(index) = self.lanes.find(lane) {
            self.drop_if_idle(index, now);
        }
    }

    /// The lanes in memory that share a gate, each with its tenant.
    pub fn lanes_through(&self, gate: SharedGate) -> Vec<(LaneId, TenantId)> {
        let through = |lane: &Lane| lane.settings.as_ref().is_some_and(|known| known.shared().contains(&Some(gate)));
        let lanes = self.lanes.ids(through).into_iter();
        lanes.filter_map(|lane| Some((lane, self.lanes.of(lane)?.settings.as_ref()?.tenant))).collect()
    }
}
