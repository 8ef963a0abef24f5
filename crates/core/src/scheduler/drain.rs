//! Draining a backlog (E2): deliveries that waited when a breaker closed are kept apart from those that come
//! after, so that fresh messages do not queue behind them.
//!
//! A draining lane has several parts, each in the lane's own order. *Fresh* deliveries were born after the breaker
//! closed; they stay in the lane's own queue. The others are divided by how long they had waited, and those that had
//! waited least are sent first: it is not known when the receiver recovered, and a delivery that waited only shortly
//! was probably born after that. Where both wait, four of five sends are fresh. A fresh delivery that has just arrived
//! first gives way to deliveries that had waited less than a minute.

use std::collections::VecDeque;
use std::time::Duration;

use super::lane::Overflow;
use super::ready::{Rank, Ready};
use crate::{DeliveryId, Key, Tier, Timestamp};

/// Bounds of the parts: deliveries that had waited less than a bound when the breaker closed are sent before those that
/// had waited longer. The last bound is the longest hold of a breaker while messages wait: older deliveries were
/// probably born while the receiver was down.
pub(super) const STEPS: [Duration; 3] = [Duration::from_secs(6), Duration::from_secs(36), Duration::from_secs(60)];

/// How long a fresh delivery gives way.
const GIVES_WAY: Duration = Duration::from_millis(4_200);

/// How many fresh deliveries are sent in a row while others wait.
const FRESH_IN_A_ROW: u8 = 4;

/// How many parts are kept apart: one for each step, and one for older deliveries.
const APART: usize = STEPS.len() + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainPart {
    Fresh,
    /// Deliveries that had waited less than this step; the last part has those that had waited longer.
    Waited(u8),
}

impl DrainPart {
    /// All parts, in the order in which they are paged in.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Fresh).chain((0..APART).map(Self::waited))
    }

    fn waited(step: usize) -> Self {
        Self::Waited(u8::try_from(step).expect("a handful of steps"))
    }
}

/// A half-open range of delivery ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first id, included.
    pub from: DeliveryId,
    /// The end, excluded.
    pub below: DeliveryId,
}

impl IdRange {
    pub const ALL: Self = Self { from: DeliveryId::from_raw(0), below: DeliveryId::from_raw(u64::MAX >> 1) };

    pub fn contains(&self, id: DeliveryId) -> bool {
        self.from <= id && id < self.below
    }
}

/// The deliveries that waited when a breaker closed.
#[derive(Debug)]
pub(super) struct Drain {
    begun: Timestamp,
    /// The first id of the fresh part, then of each step: they descend.
    from: [DeliveryId; APART],
    /// By part and tier.
    ready: [[Ready; 3]; APART],
    overflow: [[Overflow; 3]; APART],
    fresh_in_a_row: u8,
}

impl Drain {
    /// Begins a drain; `since` returns the first id from about a time or later.
    pub(super) fn new(begun: Timestamp, fresh_from: DeliveryId, since: impl Fn(Timestamp) -> DeliveryId) -> Self {
        let mut from = [fresh_from; APART];
        for (step, waited) in STEPS.into_iter().enumerate() {
            from[step + 1] = since(begun - waited).min(from[step]);
        }
        Self { begun, from, ready: Default::default(), overflow: Default::default(), fresh_in_a_row: 0 }
    }

    pub(super) fn part(&self, born: Timestamp) -> DrainPart {
        if born >= self.begun {
            return DrainPart::Fresh;
        }
        let waited = self.begun.since(born);
        DrainPart::waited(STEPS.iter().position(|step| waited < *step).unwrap_or(STEPS.len()))
    }

    /// The part to which a row in the store belongs.
    pub(super) fn part_of_row(&self, id: DeliveryId) -> DrainPart {
        match self.from.iter().position(|from| id >= *from) {
            Some(0) => DrainPart::Fresh,
            Some(after) => DrainPart::waited(after - 1),
            None => DrainPart::waited(STEPS.len()),
        }
    }

    pub(super) fn span(&self, part: DrainPart) -> IdRange {
        match part {
            DrainPart::Fresh => IdRange { from: self.from[0], ..IdRange::ALL },
            DrainPart::Waited(step) => {
                let step = usize::from(step);
                let from = self.from.get(step + 1).copied().unwrap_or(IdRange::ALL.from);
                IdRange { from, below: self.from[step] }
            }
        }
    }

    pub(super) fn push(&mut self, step: u8, tier: Tier, rank: Rank) {
        self.ready[usize::from(step)][tier.index()].push(rank);
    }

    /// The next delivery of the parts kept apart; `None` if it is the turn of a fresh one. `fresh` is how long the
    /// first fresh delivery has waited.
    pub(super) fn pop(&mut self, tier: Tier, fresh: Option<Duration>) -> Option<Rank> {
        let young_waits = self.ready[..STEPS.len()].iter().any(|part| !part[tier.index()].is_empty());
        let gives_way = fresh.is_some_and(|waited| young_waits && waited < GIVES_WAY);
        if fresh.is_some() && !gives_way && (self.fresh_in_a_row < FRESH_IN_A_ROW || !self.has_ready(tier)) {
            self.fresh_in_a_row = self.fresh_in_a_row.saturating_add(1).min(FRESH_IN_A_ROW);
            return None;
        }
        self.fresh_in_a_row = 0;
        self.ready.iter_mut().find_map(|part| part[tier.index()].pop())
    }

    pub(super) fn has_ready(&self, tier: Tier) -> bool {
        self.ready.iter().any(|part| !part[tier.index()].is_empty())
    }

    pub(super) fn ready_count(&self, step: u8, tier: Tier) -> usize {
        self.ready[usize::from(step)][tier.index()].len()
    }

    pub(super) fn take_ready(&mut self, tier: Tier) -> impl Iterator<Item = Rank> {
        self.ready.iter_mut().flat_map(move |part| part[tier.index()].take())
    }

    pub(super) fn overflow(&mut self, step: u8, tier: usize) -> &mut Overflow {
        &mut self.overflow[usize::from(step)][tier]
    }

    /// Marks every part that can have rows behind the window as to be searched.
    pub(super) fn look_behind(&mut self) {
        for step in 0..APART {
            let span = self.span(DrainPart::waited(step));
            if span.from < span.below {
                self.overflow[step] = [Overflow::UNKNOWN; 3];
            }
        }
    }

    pub(super) fn has_more(&self) -> bool {
        self.overflow.iter().flatten().any(|queue| queue.more)
    }

    pub(super) fn pages_under_way(&self) -> u8 {
        self.overflow.iter().flatten().map(|queue| u8::from(queue.paging)).sum()
    }

    /// Whether no delivery is kept apart any more.
    pub(super) fn is_empty(&self) -> bool {
        self.overflow.iter().flatten().all(|queue| !queue.is_spilling())
            && self.ready.iter().flatten().all(Ready::is_empty)
    }
}

const EVERY: Duration = Duration::from_secs(2);
const KEPT: usize = 40;

/// The highest delivery id, and its earlier values every two seconds over the last 80, so that the age of a row can be
/// estimated from its id, to within some seconds.
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
