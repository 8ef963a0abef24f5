//! Which settings the store has told of lately, by version. A lane that has nothing to do is forgotten, and what an
//! accept brings along may be older than a change that was told of before: it read its endpoints, the change came,
//! the lane was forgotten, and then it became durable.

use std::collections::VecDeque;
use std::time::Duration;

use super::lane::LaneSettings;
use crate::id::LaneId;
use crate::id_map::IdMap;
use crate::time::Timestamp;

/// Far longer than an accept takes from reading its endpoints to the loop.
const ARRIVES_WITHIN: Duration = Duration::from_secs(300);

/// Versions that were told of, for a while. What was never changed is not among them: nothing is older.
#[derive(Debug, Default)]
pub(super) struct Told {
    versions: IdMap<LaneId, u32>,
    /// In the order they were told of.
    order: VecDeque<(Timestamp, LaneId, u32)>,
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
        let told = self.versions.get(&settings.lane).copied().unwrap_or(0);
        if settings.version > told {
            self.versions.insert(settings.lane, settings.version);
            self.order.push_back((now, settings.lane, settings.version));
        }
    }

    /// Whether newer settings were told of.
    pub(super) fn are_older(&self, settings: &LaneSettings) -> bool {
        self.versions.get(&settings.lane).is_some_and(|told| *told > settings.version)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert!(self.versions.len() <= self.order.len());
        self.order.len()
    }
}
