//! Versions of recently changed lane settings and rules, so that older settings that arrive late are ignored.
//!
//! An accept brings along the lane settings it has read. They may be older than a change that has already arrived: the
//! accept reads its endpoints, the change comes, the idle lane is dropped from memory, and then the accept becomes
//! durable. A lane in memory knows its own version; this module keeps the versions of lanes that were dropped.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

use super::lane::LaneSettings;
use crate::id::{LaneId, TenantId};
use crate::id_map::IdMap;
use crate::time::Timestamp;

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
