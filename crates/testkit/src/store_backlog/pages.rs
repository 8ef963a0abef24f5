//! Every way to read a page, timed with the backlog behind it.

use std::path::Path;
use std::time::Duration;

use posthaste_core::id::{DeliveryId, MessageId};
use posthaste_core::queue::{Order, Span};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, Outbox, Query};
use tokio::time::Instant;

use crate::master_key;
use crate::prove::CannotRun;
use crate::seeder::Target;

/// Each is read so often; the median counts, since the machine does other things as well.
const TIMES: usize = 5;
const ROWS: u32 = 500;

/// The slowest page there is.
pub(super) async fn slowest(folder: &Path) -> Result<Duration, CannotRun> {
    let store = Sqlite::open_folder(folder, master_key())?;
    let start = store.open().await?;
    let mut slowest = Duration::ZERO;
    let mut queries = vec![
        ("delayed", Query::Delayed { after: None, until: Timestamp::MAX }),
        ("one", Query::One(DeliveryId::from_raw(1 << 40 | 5))),
    ];
    for (name, order) in [("oldest", Order::Fifo), ("newest", Order::NewestFirst), ("strict", Order::Strict)] {
        let lane = Target(3).lane();
        queries.push((name, Query::Spilled { lane, tier: Tier::Promotional, order, span: Span::ALL }));
    }
    for (name, query) in queries {
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let began = Instant::now();
            store.page(query, ROWS, Timestamp::MAX).await?;
            times.push(began.elapsed());
        }
        slowest = slowest.max(told(name, &mut times));
    }
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let began = Instant::now();
        store.deliveries(MessageId::from_raw(1 << 40 | 4), None, Timestamp::MAX, ROWS).await?;
        times.push(began.elapsed());
    }
    slowest = slowest.max(told("of a message", &mut times));
    // What a crash left is looked for from the lowest row to the highest: every step is a page.
    let (mut after, mut times) = (None, Vec::new());
    loop {
        let began = Instant::now();
        let page = store.page(Query::Left { after, before: start.session.writer }, ROWS, Timestamp::MAX).await?;
        times.push(began.elapsed());
        after = page.looked.or(after);
        if !page.more {
            break;
        }
    }
    eprintln!("looking for what a crash left took {} pages", times.len());
    slowest = slowest.max(told("left", &mut times));
    store.close().await;
    Ok(slowest)
}

/// The median, once it is on the screen.
fn told(name: &str, times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    eprintln!(
        "page {name}: {:.2} ms, at most {:.2}",
        millis(median),
        millis(times.last().copied().unwrap_or_default())
    );
    median
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
