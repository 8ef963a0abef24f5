//! Measures the memory that listing, replaying, purging and sweeping take on a store with a backlog, in a separate
//! process that does nothing else.

use std::path::Path;
use std::sync::Arc;

use posthaste_core::scheduler::Order;
use posthaste_core::{Cause, Cut, CutScope, Delivery, DeliveryId, EndpointChange, IdRange, JobId, Key, RowIndex, Tier};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Archive, AuditStamp, BoundedCount, Chunk, ChunkDelivery, DeadLetterFilter, DeadLetters, HistoryFilter, JobCursor,
    Jobs, ListOrder, NewDelivery, NewReplay, Outbox, Query, ReplayPage, ReplayWhat, Session, Skips, Sweep,
};

use super::LANES;
use crate::fixtures::{ChildProcess, SeededTarget, YOUNG, end_with_input, rss, runtime};
use crate::master_key;
use crate::prove::{CannotRun, Context};

/// One lane in this many is ended; its dead letters may be replayed or purged.
const ONE_IN: u64 = 10;
/// Rows of a page, and deliveries of a chunk.
const ROWS: u32 = 500;
/// The process. Prints its peak memory above that of the idle store, in KiB.
pub(crate) fn measure(folder: &Path) -> Result<(), CannotRun> {
    end_with_input();
    println!("{}", runtime()?.block_on(grown(folder))?);
    Ok(())
}

/// Runs the process. Returns its peak memory above that of the idle store, in MiB.
pub(super) fn peak(folder: &Path) -> Result<f64, CannotRun> {
    let mut part = ChildProcess::start("streams", [folder])?;
    let (line, status) = (part.line()?, part.ends()?);
    let kib: u32 = line.trim().parse().context(format!("the process printed {line:?} and ended with {status}"))?;
    Ok(f64::from(kib) / 1024.0)
}

async fn grown(folder: &Path) -> Result<u64, CannotRun> {
    let store = Sqlite::open_folder(folder, master_key())?;
    let session = store.open(YOUNG).await?.session;
    let ended: Vec<SeededTarget> =
        (0..LANES).step_by(usize::try_from(ONE_IN).expect("a small number")).map(SeededTarget).collect();
    store.catch_up().await?;
    let me = std::process::id();
    let idle = rss::of(me)?;
    rss::forget_peak_of(me)?;
    let report = |what: &str| -> Result<(), CannotRun> {
        eprintln!("memory: {what}, {} MiB above the idle store so far", rss::peak_of(me)?.saturating_sub(idle) >> 10);
        Ok(())
    };
    let swept = sweep(&store, session, &ended).await?;
    report(&format!("{swept} swept"))?;
    let listed = list(&store, &ended).await?;
    report(&format!("{listed} listed"))?;
    let mut lives = 0;
    let mut purged = 0;
    for (n, target) in (1..).zip(&ended) {
        // The others keep their dead letters, for the lists that are timed next.
        match n % 4 {
            0 => lives += replay(&store, session, n, target).await?,
            1 => purged += purge(&store, session, target).await?,
            _ => {}
        }
    }
    report(&format!("{lives} replayed, {purged} purged"))?;
    let peak = rss::peak_of(me)?;
    store.close().await;
    Ok(peak.saturating_sub(idle))
}

/// Ends the endpoints of these lanes, and sweeps their rows. Returns how many rows were swept.
async fn sweep(store: &Sqlite, session: Session, ended: &[SeededTarget]) -> Result<usize, CannotRun> {
    let mut swept = 0;
    for target in ended {
        let scope = CutScope::Lane(target.lane());
        let endpoint = Some((target.id(), EndpointChange::Gone));
        let cut = Cut { scope, upto: Key::MAX, cause: Cause::EndpointGone, at: YOUNG, spared: Vec::new(), endpoint };
        store.cut(session, cut, None).await?;
        loop {
            let rows = store.sweep(session, Sweep::Cut(scope), Vec::new()).await?;
            swept += rows.ended.len();
            if rows.stopped_at.is_none() {
                break;
            }
        }
        store.uncut(session, scope, YOUNG).await?;
    }
    Ok(swept)
}

/// Reads lists from beginning to end, page by page. Returns how many rows they had.
async fn list(store: &Sqlite, ended: &[SeededTarget]) -> Result<usize, CannotRun> {
    let mut listed = 0;
    let filter = DeadLetterFilter::of(ended[0].tenant());
    let mut after = None;
    loop {
        let page = store.dead_letters(filter.clone(), ListOrder::NewestFirst, after, ROWS).await?;
        listed += page.letters.len();
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    for target in ended {
        let mut after = None;
        loop {
            let history = HistoryFilter::of(target.endpoint().id);
            let page = store.history(history, ListOrder::OldestFirst, after, ROWS, YOUNG).await?;
            listed += page.deliveries.len();
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        let lane = SeededTarget(target.0 + 1).lane();
        let query = Query::Spilled { lane, tier: Tier::Promotional, order: Order::Fifo, span: IdRange::ALL };
        listed += store.page(query, ROWS, YOUNG).await?.rows.len();
    }
    Ok(listed)
}

fn letters_to(target: &SeededTarget) -> DeadLetterFilter {
    DeadLetterFilter { endpoint: Some(target.endpoint().id), ..DeadLetterFilter::of(target.tenant()) }
}

/// Replays an endpoint's dead letters in chunks, as the engine's job does. Returns how many deliveries were made.
async fn replay(store: &Sqlite, session: Session, n: u64, of: &SeededTarget) -> Result<u64, CannotRun> {
    let id = JobId(Key::new(session.writer, n));
    let what = ReplayWhat::Found(letters_to(of));
    let mut job = store.start_replay(session, NewReplay::new(id, of.tenant(), YOUNG, what), None).await?;
    let mut made = 0;
    let mut first = 1_000_000 * n;
    loop {
        let Some(page) = store.replay_page(id, ROWS).await? else { return Ok(made) };
        let chunk = next_lives(store, session, job.cursor, id, page, &mut first).await?;
        let (cursor, last) = (chunk.to, chunk.last);
        let lives = chunk.deliveries.len() as u64;
        store.spread(session, chunk).await?;
        if lives > 0 {
            store.arrivals().await;
        }
        made += lives;
        if last {
            return Ok(made);
        }
        job.cursor = cursor;
    }
}

async fn next_lives(
    store: &Sqlite,
    session: Session,
    from: JobCursor,
    job: JobId,
    page: ReplayPage,
    first: &mut u64,
) -> Result<Chunk, CannotRun> {
    let mut deliveries = Vec::new();
    for old in page.items.iter().filter_map(|item| item.found.ended()) {
        let message = store.message(old.message).await?;
        let message = message.context("a dead letter without its message")?;
        *first += 1;
        let id = DeliveryId(Key::new(session.writer, *first));
        let delivery = Delivery::queued(id, old.message, old.endpoint, old.lane, old.tier, YOUNG);
        let lane = Arc::new(SeededTarget::of(old.lane).endpoint().lane_settings());
        let new = NewDelivery::new(delivery, RowIndex::Spilled, lane);
        deliveries.push(ChunkDelivery { new, message, replays: Some(old.id) });
    }
    Ok(Chunk { job, at: YOUNG, from, to: page.next, deliveries, skipped: Skips::default(), last: page.last })
}

/// Purges an endpoint's dead letters. Returns how many were removed.
async fn purge(store: &Sqlite, session: Session, of: &SeededTarget) -> Result<u64, CannotRun> {
    let counted = store.purge_dead_letters(session, of.tenant(), letters_to(of), AuditStamp::at(YOUNG)).await?;
    let mut removed = 0;
    loop {
        let swept = store.sweep_dead_letters(session).await?;
        removed += swept.removed;
        if !swept.more {
            break;
        }
    }
    // A small number is removed by the purge itself and not by the sweep.
    Ok(if let (0, BoundedCount::Exactly(count)) = (removed, counted) { count } else { removed })
}
