//! The audit trail, by the time of its rows.

use std::sync::Arc;
use std::time::Duration;

use posthaste_engine::trail::TrailRange;
use posthaste_store::{JournalRow, ListOrder, MemoryStore};

use crate::running::Running;

#[tokio::test(start_paused = true)]
async fn trail_of_a_span_has_exactly_the_rows_between_its_times() {
    let running = Running::start(&Arc::new(MemoryStore::default())).await;
    let tenant = running.tenant("acme").await;
    for round in 0..20 {
        running.send(tenant).await;
        // Several rows of one time, and gaps.
        tokio::time::advance(Duration::from_millis(if round % 3 == 0 { 0 } else { 1_000 })).await;
    }
    let rows = async |span, order, from, limit| running.engine.trail(span, order, from, limit).await.expect("rows");
    let numbers = |rows: &[JournalRow]| rows.iter().map(|row| row.number).collect::<Vec<_>>();
    let all = rows(TrailRange::default(), ListOrder::OldestFirst, None, 500).await;
    assert!(all.len() > 20);
    let millisecond = Duration::from_millis(1);
    for time in all.iter().flat_map(|row| [row.at - millisecond, row.at, row.at + millisecond]) {
        for span in [
            TrailRange { since: Some(time), until: None },
            TrailRange { since: None, until: Some(time) },
            TrailRange { since: Some(time), until: Some(time + Duration::from_secs(3)) },
        ] {
            let is_in = |row: &&JournalRow| {
                span.since.is_none_or(|since| row.at >= since) && span.until.is_none_or(|until| row.at < until)
            };
            let mut expected: Vec<u64> = all.iter().filter(is_in).map(|row| row.number).collect();
            assert_eq!(numbers(&rows(span, ListOrder::OldestFirst, None, 500).await), expected, "{span:?}");
            expected.reverse();
            assert_eq!(numbers(&rows(span, ListOrder::NewestFirst, None, 500).await), expected, "{span:?}");
            // Two at a time, each page from the row the one before ended with.
            let (mut seen, mut from): (Vec<u64>, _) = (Vec::new(), None);
            loop {
                let page = numbers(&rows(span, ListOrder::NewestFirst, from, 2).await);
                seen.extend(page.iter().filter(|row| Some(**row) != from));
                from = page.last().copied();
                if page.len() < 2 {
                    break;
                }
            }
            assert_eq!(seen, expected, "{span:?}");
        }
    }
    running.stop().await;
}
