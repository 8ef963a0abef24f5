//! Versions of recently changed lane settings and rules, so that older settings that arrive late are ignored.
//!
//! An accept brings along the lane settings it has read. They may be older than a change that has already arrived: the
//! accept reads its endpoints, the change comes, the idle lane is dropped from memory, and then the accept becomes
//! durable. A lane in memory knows its own version; this module keeps the versions of lanes that were dropped.

use std::collections::{BTreeMap, VecDeque};
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

/// The versions of the last minutes. Settings that were never changed are not kept: no others are older.
#[derive(Debug, Default)]
pub(super) struct SettingsVersions {
    versions: IdMap<LaneId, Version>,
    /// In the order in which they were noted, for their removal.
    order: VecDeque<(Timestamp, LaneId, Version)>,
    /// The number of changed rules, by tenant; `None` for all tenants.
    rules: BTreeMap<Option<TenantId>, u32>,
    /// In the order in which they were noted, for their removal.
    rules_order: VecDeque<(Timestamp, Option<TenantId>, u32)>,
}

impl SettingsVersions {
    /// Notes settings as the store has them.
    pub(super) fn tell(&mut self, now: Timestamp, settings: &LaneSettings) {
        while let Some((at, lane, version)) = self.order.front().copied() {
            if now.since(at) < ARRIVES_WITHIN {
                break;
            }
            self.order.pop_front();
            if self.versions.get(&lane) == Some(&version) {
                self.versions.remove(&lane);
            }
        }
        let known = self.versions.get(&settings.lane).copied().unwrap_or_default();
        if Version::of(settings).is_newer(known) {
            let newest = known.newest(Version::of(settings));
            self.versions.insert(settings.lane, newest);
            self.order.push_back((now, settings.lane, newest));
        }
    }

    /// Notes that the rules of a tenant (`None`: of all tenants) have changed; those with a smaller number are out of
    /// date.
    pub(super) fn tell_rules(&mut self, now: Timestamp, tenant: Option<TenantId>, number: u32) {
        while let Some((at, tenant, number)) = self.rules_order.front().copied() {
            if now.since(at) < ARRIVES_WITHIN {
                break;
            }
            self.rules_order.pop_front();
            if self.rules.get(&tenant) == Some(&number) {
                self.rules.remove(&tenant);
            }
        }
        let newest = self.rules.entry(tenant).or_default();
        *newest = number.max(*newest);
        self.rules_order.push_back((now, tenant, *newest));
    }

    /// Whether newer settings or newer rules are known.
    pub(super) fn are_older(&self, settings: &LaneSettings) -> bool {
        let rules = [None, Some(settings.tenant)].map(|tenant| self.rules.get(&tenant));
        rules.into_iter().flatten().any(|number| *number > settings.rules)
            || self.versions.get(&settings.lane).is_some_and(|known| known.is_newer(Version::of(settings)))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert!(self.versions.len() <= self.order.len());
        self.order.len()
    }
}
