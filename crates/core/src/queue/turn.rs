//! Whose turn it is: tiers by weight, then the lanes of a tier one after the other.
//!
//! Tiers are served by strides: each pick moves a tier on by a stride that is short for a heavy
//! tier, and the tier furthest behind is next. A tier that was empty starts where the others are:
//! it has saved nothing up. No tier with work waits for ever (G1).

use std::collections::VecDeque;

use crate::tier::Tier;

/// How often each tier is picked while all have work.
pub const WEIGHTS: [u64; 3] = [16, 4, 1];

/// Divisible by every weight, so that strides are exact.
const STRIDE: u64 = 16;

/// The lanes that may send, by tier.
#[derive(Debug, Default)]
pub(super) struct Turn {
    rings: [VecDeque<u32>; 3],
    /// How far each tier has come.
    passed: [u64; 3],
    /// Where the tier picked last stood: what an idle tier starts from.
    now_at: u64,
}

impl Turn {
    /// Puts a lane at the end of its tier's ring.
    pub(super) fn join(&mut self, tier: Tier, lane: u32) {
        let tier = tier.index();
        if self.rings[tier].is_empty() {
            self.passed[tier] = self.passed[tier].max(self.now_at);
        }
        self.rings[tier].push_back(lane);
    }

    /// The next lane and the tier it may send of.
    pub(super) fn take(&mut self) -> Option<(Tier, u32)> {
        let tier = Tier::ALL
            .into_iter()
            .filter(|tier| !self.rings[tier.index()].is_empty())
            .min_by_key(|tier| (self.passed[tier.index()], tier.index()))?;
        self.now_at = self.passed[tier.index()];
        let lane = self.rings[tier.index()].pop_front().expect("filtered for rings with lanes");
        Some((tier, lane))
    }

    /// Charges a tier for a send.
    pub(super) fn charge(&mut self, tier: Tier) {
        self.passed[tier.index()] += STRIDE / WEIGHTS[tier.index()];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(turn: &mut Turn, count: usize) -> [u32; 3] {
        let mut picked = [0; 3];
        for _ in 0..count {
            let (tier, lane) = turn.take().expect("every tier has a lane");
            turn.charge(tier);
            picked[tier.index()] += 1;
            turn.join(tier, lane);
        }
        picked
    }

    #[test]
    fn tiers_are_picked_by_weight() {
        let mut turn = Turn::default();
        for tier in Tier::ALL {
            turn.join(tier, 0);
        }
        assert_eq!(picks(&mut turn, 210), [160, 40, 10]);
    }

    #[test]
    fn an_idle_tier_saves_nothing_up() {
        let mut turn = Turn::default();
        turn.join(Tier::Transactional, 0);
        picks(&mut turn, 1_000);
        turn.join(Tier::Engagement, 1);
        let picked = picks(&mut turn, 17);
        assert_eq!((picked[0], picked[2]), (16, 1));
    }

    #[test]
    fn lanes_of_a_tier_take_turns() {
        let mut turn = Turn::default();
        for lane in 0..3 {
            turn.join(Tier::Promotional, lane);
        }
        let order: Vec<u32> = (0..6)
            .map(|_| {
                let (tier, lane) = turn.take().expect("three lanes wait");
                turn.join(tier, lane);
                lane
            })
            .collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }
}
