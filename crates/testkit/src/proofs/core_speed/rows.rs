//! A store made of counters only: it computes rows instead of keeping them. Reading a page costs next to nothing, so
//! that the measurement is of the scheduler.
//!
//! Arrivals come in rounds, in each of which every lane gets one row. A row is identified by its lane and round, from
//! which its tier and its id follow. Ids grow in order of arrival.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use posthaste_core::{Delivery, DeliveryId, EndpointId, LaneId, MessageId, Tier, Timestamp};

/// The rows of every lane.
pub(super) struct Rows {
    lanes: Vec<LaneRows>,
    arrived: u64,
    /// When each round began.
    born: Vec<Timestamp>,
    /// Rows that were written before earlier rows of their queue.
    ahead: BTreeSet<DeliveryId>,
}

/// The rows of one lane that may still be read.
#[derive(Clone, Default)]
struct LaneRows {
    /// The first round of each tier whose row was not written.
    first: [u32; 3],
    /// How many rounds have brought it a row.
    rounds: u32,
}

impl Rows {
    pub(super) fn of(lanes: usize) -> Self {
        Self { lanes: vec![LaneRows::default(); lanes], arrived: 0, born: Vec::new(), ahead: BTreeSet::new() }
    }

    /// Adds a row. Lanes come in a scattered order, each once per round.
    pub(super) fn arrive(&mut self, now: Timestamp) -> Delivery {
        let place = usize::try_from(self.arrived).expect("a run is short") % self.lanes.len();
        self.arrived += 1;
        if place == 0 {
            self.born.push(now);
        }
        let lane = place * SCATTER % self.lanes.len();
        let round = self.lanes[lane].rounds;
        self.lanes[lane].rounds += 1;
        self.delivery(lane, round)
    }

    /// The rows of a queue in order. A page is as many of them as the caller takes.
    pub(super) fn queue(&self, lane: LaneId, tier: Tier) -> impl Iterator<Item = Delivery> {
        let lane = index(lane);
        let LaneRows { first, rounds } = self.lanes[lane];
        rounds_of(lane, tier, first[tier.index()])
            .take_while(move |round| *round < rounds)
            .filter(move |round| self.ahead.is_empty() || !self.ahead.contains(&self.id(lane, *round)))
            .map(move |round| self.delivery(lane, round))
    }

    /// Records that an attempt's outcome was written: the row has ended, or waits for its due time and is no longer in
    /// its queue.
    pub(super) fn written(&mut self, delivery: &Delivery) {
        let (lane, tier) = (index(delivery.lane), delivery.tier);
        let mut rounds = rounds_of(lane, tier, self.lanes[lane].first[tier.index()]);
        let first = rounds.next().expect("rounds never end");
        match delivery.id.cmp(&self.id(lane, first)) {
            Ordering::Greater => {
                self.ahead.insert(delivery.id);
            }
            Ordering::Equal => {
                let mut next = rounds.next().expect("rounds never end");
                while !self.ahead.is_empty() && self.ahead.remove(&self.id(lane, next)) {
                    next = rounds.next().expect("rounds never end");
                }
                self.lanes[lane].first[tier.index()] = next;
            }
            // The row had left its queue with an earlier attempt.
            Ordering::Less => {}
        }
    }

    fn delivery(&self, lane: usize, round: u32) -> Delivery {
        let id = self.id(lane, round);
        let born = self.born[round as usize];
        let (message, endpoint) = (MessageId::from_raw(id.raw()), EndpointId(lane_id(lane).0));
        Delivery::queued(id, message, endpoint, lane_id(lane), tier_of(lane, round), born)
    }

    fn id(&self, lane: usize, round: u32) -> DeliveryId {
        DeliveryId::from_raw(u64::from(round) * self.lanes.len() as u64 + lane as u64 + 1)
    }
}

/// A prime that divides no number of lanes here, so that the scattered order reaches every lane once.
const SCATTER: usize = 7_919;

/// The tier of a row: 1:8:1 in every ten rounds of a lane, and in every ten lanes of a round.
pub(super) fn tier_of(lane: usize, round: u32) -> Tier {
    match tenth(lane, round) {
        0 => Tier::Transactional,
        9 => Tier::Engagement,
        _ => Tier::Promotional,
    }
}

fn tenth(lane: usize, round: u32) -> u32 {
    (u32::try_from(lane % 10).expect("one digit") + round) % 10
}

/// The rounds that bring a lane a row of this tier, from `first` on, computed without trying the others.
fn rounds_of(lane: usize, tier: Tier, first: u32) -> impl Iterator<Item = u32> {
    let at_least = move |round: u32| {
        let ahead = match (tier, tenth(lane, round)) {
            (Tier::Transactional, tenth) => (10 - tenth) % 10,
            (Tier::Engagement, tenth) => 9 - tenth,
            (Tier::Promotional, 0) => 1,
            (Tier::Promotional, 9) => 2,
            (Tier::Promotional, _) => 0,
        };
        round + ahead
    };
    std::iter::successors(Some(at_least(first)), move |round| Some(at_least(round + 1)))
}

pub(super) fn lane_id(lane: usize) -> LaneId {
    LaneId::from_raw(lane as u64 + 1)
}

pub(super) fn index(lane: LaneId) -> usize {
    usize::try_from(lane.raw()).expect("lanes are few") - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(0);

    fn ids(rows: &Rows, lane: usize, tier: Tier) -> Vec<u64> {
        rows.queue(lane_id(lane), tier).map(|row| row.id.raw()).collect()
    }

    #[test]
    fn round_brings_every_lane_one_row() {
        let mut rows = Rows::of(100);
        let mut lanes: Vec<u64> = (0..100).map(|_| rows.arrive(NOW).lane.raw()).collect();
        lanes.sort_unstable();
        assert_eq!(lanes, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn queue_has_the_rows_of_its_tier_that_were_not_written() {
        let mut rows = Rows::of(10);
        for _ in 0..100 {
            rows.arrive(NOW);
        }
        assert_eq!(ids(&rows, 2, Tier::Promotional), [3, 13, 23, 33, 43, 53, 63, 93]);
        assert_eq!(ids(&rows, 2, Tier::Engagement), [73]);
        assert_eq!(ids(&rows, 2, Tier::Transactional), [83]);
        for (round, left) in [(1, vec![3, 23, 33, 43, 53, 63, 93]), (0, vec![23, 33, 43, 53, 63, 93])] {
            let row = rows.delivery(2, round);
            rows.written(&row);
            assert_eq!(ids(&rows, 2, Tier::Promotional), left);
        }
        assert!(rows.ahead.is_empty(), "no row is ahead of the first any more");
    }

    #[test]
    fn computed_rounds_of_a_tier_match_a_search() {
        for (lane, first, tier) in [(0, 0), (3, 5), (9, 1), (7, 2)]
            .into_iter()
            .flat_map(|(lane, first)| Tier::ALL.map(|tier| (lane, first, tier)))
        {
            let brought = (first..).filter(|round| tier_of(lane, *round) == tier).take(20);
            assert!(rounds_of(lane, tier, first).take(20).eq(brought), "lane {lane}, {tier:?} from {first}");
        }
    }
}
