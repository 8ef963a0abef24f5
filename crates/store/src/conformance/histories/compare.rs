//! Compares everything a caller can read from both stores: pages, lists, counts, the journal.

use std::collections::BTreeMap;

use posthaste_core::scheduler::Order;
use posthaste_core::{IdRange, LaneId, TenantId, Tier, WriterId};

use super::super::fixture::{all_pages, endpoint_id};
use super::both::{Both, ask};
use super::step::{FILTERS, LANES, at, dead_letters, selectors};
use crate::journal::{Head, JournalEntry};
use crate::{
    Archive, CountedEvent, DeadLetters, DeliveryRecord, Directory, HistoryFilter, JobQuery, Jobs, ListOrder, Outbox,
    Query, Store, UtcHour,
};

impl Both {
    /// Compares everything a caller can read.
    pub(super) async fn compare(&mut self) {
        self.compare_arrivals().await;
        for delivery in &self.deliveries {
            for now in [0, 25, 60] {
                ask!(self, delivery(delivery.id, at(now)));
            }
            self.compare_pages(Query::One(delivery.id)).await;
        }
        for message in &self.messages {
            ask!(self, message(*message));
        }
        self.compare_dead_letters().await;
        self.compare_jobs().await;
        let middle = self.pick(self.deliveries.len() / 2).map(|row| row.id);
        for after in [None, middle] {
            for before in [0, 1] {
                let before = WriterId::new(self.session.writer.number() + before).expect("a small number");
                self.compare_pages(Query::Left { after, before }).await;
            }
            for ms in [0, 7, 19] {
                let after = after.map(|id| (at(ms), id));
                self.compare_pages(Query::Delayed { after, until: at(10) }).await;
            }
        }
        for lane in (0..LANES).map(LaneId::from_raw) {
            for tier in Tier::ALL {
                for order in [Order::Fifo, Order::NewestFirst, Order::Strict] {
                    let middle = middle.unwrap_or(IdRange::ALL.from);
                    for span in [
                        IdRange::ALL,
                        IdRange { from: middle, ..IdRange::ALL },
                        IdRange { below: middle, ..IdRange::ALL },
                    ] {
                        self.compare_pages(Query::Spilled { lane, tier, order, span }).await;
                    }
                }
            }
            self.compare_derived(lane).await;
            ask!(self, endpoint(endpoint_id(lane.raw())));
            ask!(self, endpoint_of_lane(lane));
            ask!(self, lanes(vec![lane]));
        }
        ask!(self, endpoints(TenantId::from_raw(1)));
        for selector in selectors() {
            for limit in [1, 100] {
                let (tenant, mut after) = (TenantId::from_raw(1), None);
                while let next @ Some(_) = ask!(self, endpoints_matching(tenant, selector.clone(), after, limit)).next {
                    after = next;
                }
            }
        }
        assert_eq!(happened(self.sqlite()).await, happened(&self.memory).await);
    }

    async fn compare_pages(&self, query: Query) {
        for limit in [1, 3, 1_000] {
            let expected = self.memory.page(query, limit, at(0)).await.expect("memory reads");
            let found = self.sqlite().page(query, limit, at(0)).await.expect("it reads");
            assert_eq!(found, expected, "{query:?} limit {limit}");
        }
    }

    async fn compare_jobs(&self) {
        for id in &self.jobs {
            ask!(self, job(*id));
        }
        let every = JobQuery::EveryReplay(ListOrder::NewestFirst);
        let tenant = TenantId::from_raw(1);
        let running = [JobQuery::Running, JobQuery::FanOuts, JobQuery::ReplaysOf(tenant)];
        for query in running.into_iter().chain([JobQuery::Replays(tenant, ListOrder::OldestFirst), every]) {
            ask!(self, jobs(query, None, 100));
        }
        for delivery in &self.deliveries {
            ask!(self, lives(vec![delivery.id]));
        }
        for message in &self.messages {
            let mut after = None;
            while let [_, last] = &ask!(self, deliveries(*message, after, at(0), 2))[..] {
                after = Some(last.delivery.id);
            }
        }
    }

    async fn compare_dead_letters(&self) {
        for filter in (0..FILTERS).map(dead_letters) {
            for order in [ListOrder::NewestFirst, ListOrder::OldestFirst] {
                let mut after = None;
                while let next @ Some(_) = ask!(self, dead_letters(filter.clone(), order, after, 2)).next {
                    after = next;
                }
            }
        }
    }

    async fn compare_derived(&self, lane: LaneId) {
        for (order, limit) in [(ListOrder::NewestFirst, 3), (ListOrder::OldestFirst, 100)] {
            let expected = history(&self.memory, lane, order, limit).await;
            assert_eq!(history(self.sqlite(), lane, order, limit).await, expected);
        }
        ask!(self, waiting(lane));
        ask!(self, pending());
        assert_eq!(tallies(self.sqlite()).await, tallies(&self.memory).await);
    }

    pub(super) async fn compare_arrivals(&mut self) {
        if self.arrivals_due == 0 {
            return;
        }
        let of = |arrivals: Vec<crate::ArrivedDelivery>| {
            arrivals
                .into_iter()
                .map(|arrival| (arrival.new.delivery, arrival.new.place, arrival.message, arrival.superseded))
                .collect::<Vec<_>>()
        };
        let (expected, found) = (of(self.memory.arrivals().await), of(self.sqlite().arrivals().await));
        assert_eq!(found, expected);
        assert_eq!(found.len(), self.arrivals_due);
        self.arrivals_due = 0;
    }
}

/// All counters by hour, summed over tenants: a count's tenant depends on when the endpoint was made, and in a history
/// that may be long after deliveries were sent to it.
async fn tallies(store: &impl Store) -> BTreeMap<(UtcHour, CountedEvent), u64> {
    let mut all = BTreeMap::new();
    let (since, until) = (UtcHour::of(at(0)), UtcHour(UtcHour::of(at(0)).0 + 48));
    for tenant in [0, 1].map(TenantId::from_raw) {
        for tally in store.tallies(tenant, since, until).await.expect("it reads") {
            *all.entry((tally.hour, tally.counted)).or_default() += tally.count;
        }
    }
    all
}

/// The whole history of a lane's endpoint, page by page.
async fn history(store: &impl Store, lane: LaneId, order: ListOrder, limit: u32) -> Vec<DeliveryRecord> {
    let page = async |from| {
        let filter = HistoryFilter::of(endpoint_id(lane.raw()));
        let page = store.history(filter, order, from, limit, at(5)).await.expect("it reads");
        (page.deliveries, page.next)
    };
    all_pages(page).await
}

/// The entries of the journal; checks that its rows are linked. Fingerprints are blanked, because each store hashes
/// with another key.
async fn happened(store: &impl Store) -> Vec<Vec<JournalEntry>> {
    let mut head = Some(Head::default());
    let mut calls = Vec::new();
    for row in store.journal(0, u32::MAX).await.expect("it reads") {
        // If retention deleted the beginning, the link of the first remaining row cannot be checked.
        head = head.filter(|_| row.number == 1 || !calls.is_empty());
        assert!(head.is_none_or(|head| head.is_followed_by(&row)), "{row:?}");
        assert!(row.is_sound().expect("a complete row"), "{row:?}");
        head = Some(Head::behind(&row));
        let mut entries: Vec<JournalEntry> = row.entries().collect::<Result<_, _>>().expect("a complete row");
        for entry in &mut entries {
            if let JournalEntry::Accepted { digest, subject, correlation, .. } = entry {
                (*digest, *subject, *correlation) = ([0; 32], None, None);
            }
        }
        calls.push(entries);
    }
    calls
}
