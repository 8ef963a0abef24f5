//! The load beyond accepting and settling: fan-outs and replays in chunks, collapse keys, cuts and their sweeps,
//! purges, retention. A memory store serves as the model: it gets the same calls, one at a time, and every read must
//! return the same from both.
//!
//! Invariant: the model has exactly what was acknowledged. A call in doubt is found done or not done. Retention, which
//! is many transactions, may be found done in part, and running it again completes it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Cause, Cut, CutScope, Delivery, DeliveryId, JobId, Key, LaneId, MessageId, RowIndex, State, TenantId, Tier,
    Timestamp,
};
use posthaste_store::journal::{Head, JournalEntry};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Accepted, Archive, AuditStamp, Chunk, ChunkDelivery, CollapseKey, DeadLetterFilter, DeadLetters, DeliveryJob,
    FanOut, JobCursor, JobKind, JobQuery, Jobs, ListOrder, MemoryStore, Message, NewDelivery, NewReplay, Outbox,
    ReplayWhat, Replayable, Retention, RetentionStep, Session, Skips, Store, StoreError, Sweep,
};

use super::{NOW, StoreHealth, endpoint, settlement};
use crate::crowd::{Flaw, chain};

/// A tenant of its own, so that purges and lists here do not touch deliveries in the ledger.
const TENANT: TenantId = TenantId::from_raw(10);
/// Lanes that the rest of the load does not use.
const LANES: std::ops::Range<u64> = 20..24;
/// A time before the retention of payloads.
const OLD: Timestamp = Timestamp::from_millis(NOW.as_millis() - 10 * 24 * 60 * 60 * 1_000);
/// A page limit that no life reaches.
const MANY: u32 = 10_000;

/// A call to make to both stores.
#[derive(Clone, Debug)]
pub(super) enum Chore {
    Accept(Accepted),
    Spread(Chunk),
    Settle(Delivery),
    Replay(NewReplay),
    Cut(Cut),
    Sweep(Sweep),
    Purge,
    Retain,
}

impl Chore {
    /// Whether the answer means that deliveries have arrived.
    pub(super) fn has_arrived(&self, answer: &str) -> bool {
        match self {
            Self::Accept(accepted) => !accepted.deliveries.is_empty(),
            Self::Spread(_) => answer.starts_with("Done") && answer != "Done(0)",
            _ => false,
        }
    }
}

/// The state of all chores of one life.
pub(super) struct LoadChores {
    model: MemoryStore,
    messages: Vec<MessageId>,
    cuts: Vec<CutScope>,
    doubt: Option<Chore>,
    /// How many chores were answered as done.
    pub(super) done: u64,
}

impl LoadChores {
    pub(super) fn new() -> Self {
        Self { model: MemoryStore::default(), messages: Vec::new(), cuts: Vec::new(), doubt: None, done: 0 }
    }

    /// Draws a chore that is possible now. `mint` reserves a number of keys and returns the first.
    pub(super) async fn draw(&self, dice: &mut fastrand::Rng, mint: &mut impl FnMut(u64) -> Key) -> Option<Chore> {
        if self.doubt.is_some() {
            return None;
        }
        match dice.u8(..16) {
            0..4 => Some(Chore::Accept(message(dice, mint))),
            4..7 => self.spread(dice, mint).await.map(Chore::Spread),
            7..10 => self.settle(dice).await.map(Chore::Settle),
            10 => self.replay(dice, mint).await.map(Chore::Replay),
            11 => self.next_lives(dice, mint).await.map(Chore::Spread),
            12 => {
                let lane = CutScope::Lane(LaneId::from_raw(dice.u64(LANES)));
                let message = dice.choice(&self.messages).map(|message| CutScope::Message(*message));
                let scope = message.filter(|_| dice.bool()).unwrap_or(lane);
                let upto = mint(1);
                Some(Chore::Cut(Cut::new(scope, upto, Cause::Cancelled, NOW)))
            }
            13 => {
                let scope = dice.choice(&self.cuts).copied().filter(|_| dice.bool());
                let roll = Sweep::Roll { after: None, now: NOW + Duration::from_millis(1) };
                Some(Chore::Sweep(scope.map_or(roll, Sweep::Cut)))
            }
            14 => Some(Chore::Purge),
            _ => Some(Chore::Retain),
        }
    }

    /// The next chunk of a fan-out under way.
    async fn spread(&self, dice: &mut fastrand::Rng, mint: &mut impl FnMut(u64) -> Key) -> Option<Chunk> {
        let (job, fan_out) = self.running().await.into_iter().find_map(|job| match job.kind {
            JobKind::FanOut(fan_out) => Some((job, fan_out)),
            _ => None,
        })?;
        let message = self.model.message(fan_out.message).await.ok()??;
        let count = dice.u64(1..6);
        let first = mint(count);
        let each = (0..count).map(|n| ChunkDelivery {
            new: new_delivery(dice, DeliveryId(first.plus(n)), &message, None),
            message: Arc::clone(&message),
            replays: None,
        });
        let (from, to) = (job.cursor, JobCursor::behind(job.made + count));
        let deliveries = each.collect();
        Some(Chunk { job: job.id, at: NOW, from, to, deliveries, skipped: Skips::default(), last: dice.u8(..8) == 0 })
    }

    /// The next chunk of a replay under way.
    async fn next_lives(&self, dice: &mut fastrand::Rng, mint: &mut impl FnMut(u64) -> Key) -> Option<Chunk> {
        let job = self.running().await.into_iter().find(|job| job.kind == JobKind::ReplayListed)?;
        let page = self.model.replay_page(job.id, 2).await.ok()??;
        let mut deliveries = Vec::new();
        for old in page.items.iter().filter_map(|item| item.found.ended()) {
            let message = self.model.message(old.message).await.ok()??;
            let delivery = Delivery {
                endpoint: old.endpoint,
                lane: old.lane,
                ..new_delivery(dice, DeliveryId(mint(1)), &message, None).delivery
            };
            let lane = Arc::new(endpoint(old.lane.0.raw()).lane_settings());
            let new = NewDelivery { delivery, place: RowIndex::Ready, lane, collapse: None };
            deliveries.push(ChunkDelivery { new, message, replays: Some(old.id) });
        }
        let mut skipped = Skips::default();
        for item in &page.items {
            if let Replayable::Not(why) = item.found {
                skipped.add(why, 1);
            }
        }
        Some(Chunk { job: job.id, at: NOW, from: job.cursor, to: page.next, deliveries, skipped, last: page.last })
    }

    async fn running(&self) -> Vec<DeliveryJob> {
        self.model.jobs(JobQuery::Running, None, MANY).await.unwrap_or_default()
    }

    /// Ends a pending delivery of a random message.
    async fn settle(&self, dice: &mut fastrand::Rng) -> Option<Delivery> {
        let message = *dice.choice(&self.messages)?;
        let deliveries = self.model.deliveries(message, None, NOW, MANY).await.ok()?;
        let pending = deliveries.into_iter().find(|view| !view.delivery.state.is_terminal())?;
        let (state, cause) = match dice.u8(..3) {
            0 => (State::Delivered { at: NOW }, None),
            _ => (State::Dead { at: NOW, cause: Cause::Gone }, Some(Cause::Gone)),
        };
        let attempts = pending.delivery.attempts + 1;
        Some(Delivery { state, attempts, last_cause: cause, ..pending.delivery })
    }

    async fn replay(&self, dice: &mut fastrand::Rng, mint: &mut impl FnMut(u64) -> Key) -> Option<NewReplay> {
        let filter = DeadLetterFilter::of(TENANT);
        let page = self.model.dead_letters(filter, ListOrder::NewestFirst, None, 5).await.ok()?;
        let listed: Vec<_> = page.letters.iter().map(|letter| letter.delivery).filter(|_| dice.bool()).collect();
        let what = ReplayWhat::Listed(listed);
        Some(NewReplay::new(JobId(mint(1)), TENANT, NOW, what))
    }

    /// Applies a finished chore to the model. An answer that differs from the model's is a flaw.
    pub(super) async fn note(
        &mut self,
        chore: Chore,
        answered: Result<String, StoreError>,
    ) -> Result<StoreHealth, Flaw> {
        match answered {
            Ok(answer) => {
                self.done += 1;
                let expected = self.apply(&chore).await;
                if expected == answer {
                    return Ok(StoreHealth::Well);
                }
                Err(Flaw::Lost(format!("{chore:?} was answered with {answer} instead of {expected}")))
            }
            Err(StoreError::Full) => {
                self.doubt = matches!(chore, Chore::Retain).then_some(chore);
                Ok(StoreHealth::Full)
            }
            Err(StoreError::Stopped | StoreError::Database { .. }) => {
                self.doubt = Some(chore);
                Ok(StoreHealth::Stopped)
            }
            Err(error) => Err(Flaw::Lost(format!("{chore:?} was refused: {error}"))),
        }
    }

    /// Makes the call to the model.
    async fn apply(&mut self, chore: &Chore) -> String {
        match chore {
            Chore::Accept(accepted) => self.messages.push(accepted.message.id),
            Chore::Cut(cut) => self.cuts.push(cut.scope),
            _ => {}
        }
        let session = self.model.open(NOW).await.expect("memory is there").session;
        ask(&self.model, session, chore).await.unwrap_or_else(|error| format!("{error}"))
    }

    /// Compares everything, and brings the model in line with how the chore in doubt is found.
    pub(super) async fn verify(&mut self, store: &Sqlite, session: Session) -> Result<(), Flaw> {
        let unread = |error: StoreError| Flaw::Damaged(format!("the store cannot be read: {}", chain(&error)));
        if let Some(Chore::Retain) = self.doubt {
            ask(store, session, &Chore::Retain).await.map_err(unread)?;
        }
        let mut messages = self.messages.clone();
        if let Some(Chore::Accept(accepted)) = &self.doubt {
            messages.push(accepted.message.id);
        }
        let found = look(store, &messages).await.map_err(unread)?;
        let mut expected = look(&self.model, &messages).await.expect("memory can be read");
        if let Some(chore) = self.doubt.take()
            && (found != expected || matches!(chore, Chore::Retain))
        {
            self.apply(&chore).await;
            expected = look(&self.model, &messages).await.expect("memory can be read");
        }
        let differ = |(found, expected): &(&String, &String)| found != expected;
        match found.iter().zip(&expected).find(differ) {
            Some((found, expected)) => Err(Flaw::Lost(format!("found {found}\n  instead of {expected}"))),
            None if found.len() != expected.len() => {
                Err(Flaw::Lost("the store and its model list different numbers of things".to_owned()))
            }
            None => ended_once(store).await,
        }
    }
}

/// Checks that no delivery has ended twice, and that the journal has no gap.
async fn ended_once(store: &Sqlite) -> Result<(), Flaw> {
    let unread = |error: StoreError| Flaw::Damaged(format!("the journal cannot be read: {}", chain(&error)));
    let rows = store.journal(0, MANY).await.map_err(unread)?;
    let mut ended = BTreeSet::new();
    // The journal need not begin with its first row: retention may have removed rows of sessions in which nothing else
    // happened, which carry no time.
    let mut head = None;
    for row in &rows {
        if head.is_some_and(|head: Head| !head.is_followed_by(row)) || !row.is_sound().map_err(unread)? {
            return Err(Flaw::Lost(format!("row {} of the journal does not follow", row.number)));
        }
        head = Some(Head::behind(row));
        for entry in row.entries() {
            if let JournalEntry::Ended { delivery, .. } = entry.map_err(unread)?
                && !ended.insert(delivery)
            {
                return Err(Flaw::Lost(format!("delivery {delivery} has ended twice")));
            }
        }
    }
    Ok(())
}

fn message(dice: &mut fastrand::Rng, mint: &mut impl FnMut(u64) -> Key) -> Accepted {
    let id = MessageId(mint(3));
    let kind = dice.u8(..3);
    let at = if kind == 0 { OLD } else { NOW };
    let message = Arc::new(Message {
        correlation_id: Some(id.to_string()),
        ..Message::new(id, TENANT, at, vec![b'c'; dice.usize(..2_000)])
    });
    let fan_out = FanOut { message: id, tier: Tier::Promotional, deliver_at: None, ttl: None };
    let (fan_out, count) = if kind == 1 { (Some(fan_out), 0) } else { (None, dice.u64(1..3)) };
    let mut each = |n| {
        let collapse = (kind == 2).then(|| CollapseKey(dice.u64(1..4)));
        new_delivery(dice, DeliveryId(id.0.plus(n)), &message, collapse)
    };
    let deliveries = (1..=count).map(&mut each).collect();
    Accepted { message: Arc::clone(&message), deliveries, idempotency: None, fan_out }
}

fn new_delivery(
    dice: &mut fastrand::Rng,
    id: DeliveryId,
    message: &Message,
    collapse: Option<CollapseKey>,
) -> NewDelivery {
    let lane = dice.u64(LANES);
    let to = endpoint(lane);
    let place = [RowIndex::Ready, RowIndex::Spilled, RowIndex::Delayed][dice.usize(..3)];
    let delivery = Delivery::queued(id, message.id, to.id, to.lane, Tier::Promotional, message.at);
    NewDelivery { delivery, place, lane: Arc::new(to.lane_settings()), collapse }
}

/// Makes the call to a store. Returns the answer as text, for comparison.
pub(super) async fn ask<S: Store>(store: &S, session: Session, chore: &Chore) -> Result<String, StoreError> {
    let mut answer = String::new();
    let written = match chore {
        Chore::Accept(accepted) => write!(answer, "{:?}", store.accept(session, vec![accepted.clone()]).await?),
        Chore::Spread(chunk) => write!(answer, "{:?}", store.spread(session, chunk.clone()).await?),
        Chore::Settle(delivery) => {
            let cause = delivery.last_cause.unwrap_or(Cause::Ok);
            let settlement = settlement(session, delivery.clone(), cause, Duration::from_millis(5));
            write!(answer, "{:?}", store.settle(session, vec![settlement]).await?)
        }
        Chore::Replay(replay) => write!(answer, "{:?}", store.start_replay(session, replay.clone(), None).await?),
        Chore::Cut(cut) => write!(answer, "{} ended", store.cut(session, cut.clone(), None).await?),
        Chore::Sweep(sweep) => write!(answer, "{:?}", store.sweep(session, *sweep, Vec::new()).await?),
        Chore::Purge => {
            let count =
                store.purge_dead_letters(session, TENANT, DeadLetterFilter::of(TENANT), AuditStamp::at(NOW)).await?;
            write!(answer, "{count:?}")
        }
        Chore::Retain => {
            let mut next = Some(RetentionStep::START);
            while let Some(step) = next {
                next = store.retain(session, Retention::default(), NOW, step, Vec::new()).await?.next;
            }
            write!(answer, "retained")
        }
    };
    written.expect("writing to a string does not fail");
    Ok(answer)
}

/// Everything that can be read of the chores, one line each.
async fn look<S: Store>(store: &S, messages: &[MessageId]) -> Result<Vec<String>, StoreError> {
    let mut lines = Vec::new();
    for id in messages {
        let is_there = store.message(*id).await?.is_some();
        lines.push(format!("message {id} {is_there}"));
        for view in store.deliveries(*id, None, NOW, MANY).await? {
            let lives = store.lives(vec![view.delivery.id]).await?;
            lines.push(format!("{view:?} {lives:?}"));
        }
    }
    let filter = DeadLetterFilter::of(TENANT);
    for letter in store.dead_letters(filter, ListOrder::OldestFirst, None, MANY).await?.letters {
        // Without their numbers, which are shared with the tenant of the ledger.
        lines.push(format!("letter {} {:?} {:?}", letter.delivery, letter.cause, letter.replayed_as));
    }
    for query in [JobQuery::FanOuts, JobQuery::Replays(TENANT, ListOrder::OldestFirst)] {
        lines.extend(store.jobs(query, None, MANY).await?.iter().map(|job| format!("{job:?}")));
    }
    Ok(lines)
}
