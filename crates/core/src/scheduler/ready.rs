//! The ready deliveries of one queue, as a heap by rank. Most queues have one or none, which need no allocation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A delivery's position in its queue: the lowest is sent first.
pub(super) type Rank = Reverse<u64>;

#[derive(Debug, Default)]
pub(super) enum Ready {
    #[default]
    None,
    One(Rank),
    #[expect(clippy::box_collection, reason = "a lane has many of these, and nearly all hold one or none")]
    Many(Box<BinaryHeap<Rank>>),
}

impl Ready {
    pub(super) fn push(&mut self, rank: Rank) {
        match self {
            Self::None => *self = Self::One(rank),
            Self::One(other) => *self = Self::Many(Box::new(BinaryHeap::from([*other, rank]))),
            Self::Many(heap) => heap.push(rank),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Rank> {
        let first = match self {
            Self::None => None,
            Self::One(rank) => Some(*rank),
            Self::Many(heap) => heap.pop(),
        };
        if self.is_empty() || matches!(self, Self::One(_)) {
            *self = Self::None;
        }
        first
    }

    pub(super) fn peek(&self) -> Option<Rank> {
        match self {
            Self::None => None,
            Self::One(rank) => Some(*rank),
            Self::Many(heap) => heap.peek().copied(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(heap) => heap.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn contains(&self, rank: Rank) -> bool {
        match self {
            Self::None => false,
            Self::One(one) => *one == rank,
            Self::Many(heap) => heap.iter().any(|one| *one == rank),
        }
    }

    /// Takes all ranks, in no order.
    pub(super) fn take(&mut self) -> Vec<Rank> {
        match std::mem::take(self) {
            Self::None => Vec::new(),
            Self::One(rank) => vec![rank],
            Self::Many(heap) => heap.into_vec(),
        }
    }

    pub(super) fn extend(&mut self, ranks: impl IntoIterator<Item = Rank>) {
        ranks.into_iter().for_each(|rank| self.push(rank));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_are_popped_in_ascending_order(ranks in prop::collection::vec(0..50_u64, 0..9)) {
            let mut ready = Ready::default();
            ready.extend(ranks.iter().copied().map(Reverse));
            prop_assert_eq!(ready.len(), ranks.len());
            prop_assert_eq!(ready.peek(), ranks.iter().min().copied().map(Reverse));
            let mut sorted = ranks;
            sorted.sort_unstable();
            let popped: Vec<u64> = std::iter::from_fn(|| ready.pop()).map(|Reverse(rank)| rank).collect();
            prop_assert_eq!(popped, sorted);
            prop_assert!(matches!(ready, Ready::None));
        }
    }
}
