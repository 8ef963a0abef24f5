//! Which settings the store has told of lately, by version, and which rules have changed. A lane that has nothing to
//! do is forgotten, and what an accept brings along may be older than a change that was told of before: it read its
//! endpoints, the change came, the lane was forgotten, and then it became durable.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::lane::LaneSettings;
use crate::id::{LaneId, TenantId};
use crate::id_map::IdMap;
use crate::time::Timestamp;

/// Far longer than an accept takes from reading its endpoints to the loop.
const ARRIVES_WITHIN: Duration = Duration::from_secs(300);

/// How new settings are: by what their owner changed, and by the rules they share with others.
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

/// Versions that were told of, for a while. What was never changed is not among them: nothing is older.
#[derive(Debug, Default)]
pub(super) struct Told {
    versions: IdMap<LaneId, Version>,
    /// In the order they were told of.
    order: VecDeque<(Timestamp, LaneId, Version)>,
    /// The number of the rules of a tenant, or of everybody, that have changed.
    rules: BTreeMap<Option<TenantId>, u32>,
    /// In the order they were told of.
    rules_order: VecDeque<(Timestamp, Option<TenantId>, u32)>,
}

impl Told {
    /// The store has these settings.
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
        let told = self.versions.get(&settings.lane).copied().unwrap_or_default();
        if Version::of(settings).is_newer(told) {
            let newest = told.newest(Version::of(settings));
            self.versions.insert(settings.lane, newest);
            self.order.push_back((now, settings.lane, newest));
        }
    }

    /// The rules of a tenant, or of everybody, have changed: those of a smaller number are no more.
    pub(super) fn tell_rules(&mut self, now: Timestamp, whose: Option<TenantId>, number: u32) {
        while let Some((at, whose, number)) = self.rules_order.front().copied() {
            if now.since(at) < ARRIVES_WITHIN {
                break;
            }
            self.rules_order.pop_front();
            if self.rules.get(&whose) == Some(&number) {
                self.rules.remove(&whose);
            }
        }
        let newest = self.rules.entry(whose).or_default();
        *newest = number.max(*newest);
        self.rules_order.push_back((now, whose, *newest));
    }

    /// Whether newer settings, or newer rules, were told of.
    pub(super) fn are_older(&self, settings: &LaneSettings) -> bool {
        let rules = [None, Some(settings.tenant)].map(|whose| self.rules.get(&whose));
        rules.into_iter().flatten().any(|number| *number > settings.rules)
            || self.versions.get(&settings.lane).is_some_and(|told| told.is_newer(Version::of(settings)))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert!(self.versions.len() <= self.order.len());
        self.order.len()
    }
}
