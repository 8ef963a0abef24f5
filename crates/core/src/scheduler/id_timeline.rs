//! The highest delivery id at points in the last 80 seconds, so that the age of a row can be estimated from its id, to
//! within some seconds.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{DeliveryId, Key, Timestamp};

const EVERY: Duration = Duration::from_secs(2);
const KEPT: usize = 40;

/// The highest delivery id, and its earlier values every two seconds.
#[derive(Debug, Default)]
pub(super) struct IdTimeline {
    highest: u64,
    past: VecDeque<(Timestamp, u64)>,
}

impl IdTimeline {
    pub(super) fn see(&mut self, now: Timestamp, id: DeliveryId) {
        if self.past.back().is_none_or(|(at, _)| now.since(*at) >= EVERY) {
            if self.past.len() == KEPT {
                self.past.pop_front();
            }
            self.past.push_back((now, self.highest));
        }
        self.highest = self.highest.max(id.raw());
    }

    /// One more than the highest id.
    pub(super) fn next(&self) -> DeliveryId {
        DeliveryId(Key::from_raw(self.highest).plus(1))
    }

    /// The first id that was seen at about `at`, or up to two seconds later; [`IdTimeline::next`] if that is not known.
    pub(super) fn since(&self, at: Timestamp) -> DeliveryId {
        let mark = self.past.iter().find(|(seen, _)| *seen >= at);
        mark.map_or_else(|| self.next(), |(_, highest)| DeliveryId(Key::from_raw(*highest).plus(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_id_since_a_time_is_exact_to_a_few_seconds() {
        let mut marks = IdTimeline::default();
        let at = |second: i64| Timestamp::from_millis(second * 1_000);
        for second in 0..200 {
            marks.see(at(second), DeliveryId::from_raw(second.cast_unsigned() * 10));
        }
        assert_eq!(marks.next(), DeliveryId::from_raw(1_991));
        let young = marks.since(at(155)).raw();
        assert!((1_541..=1_591).contains(&young), "{young}");
        assert_eq!(marks.since(at(500)), marks.next());
    }
}
