//! A random load on a real store, and a ledger of the store's answers.
//!
//! Invariant of the ledger: a call that was answered as done is *sure* and must be found; a call that was under way
//! when the store stopped is *in doubt*, and may be found done or not done, but not half done; a call that was refused
//! because the disk was full must not have had an effect.

mod chores;
mod ledger;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use posthaste_core::{
    Cause, Cut, CutScope, Delivery, DeliveryChange, DeliveryId, EndpointId, Key, LaneId, MessageId, RowIndex, Shard,
    State, TenantId, Tier, Timestamp,
};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Acceptance, Accepted, AttemptRecord, AuditStamp, Directory, Endpoint, FirstAnswer, Idempotency, KeyHash, Message,
    NewDelivery, Outbox, Pause, PauseScope, Session, Settled, Settlement, SigningSecret, StoreError, WebhookTarget,
};

use crate::crowd::Flaw;
use chores::{Chore, LoadChores};
use ledger::{LoadAnswer, LoadLedger, StoreFact};

pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
const TENANT: TenantId = TenantId::from_raw(9);

/// The state of a store, as a round of load found it; the worst comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StoreHealth {
    /// It accepted everything.
    Well,
    /// It refused something because the disk is full.
    Full,
    Stopped,
}

/// Makes calls to a store, drawn from a seed, and checks their answers.
pub(crate) struct StoreLoad {
    dice: fastrand::Rng,
    ledger: LoadLedger,
    chores: LoadChores,
    session: Option<Session>,
    next: u64,
}

enum Op {
    Accept(Vec<Accepted>),
    /// A message that was accepted before, once more under its idempotency key.
    Again(Accepted),
    Settle(Vec<Settlement>),
    Spill(Vec<DeliveryId>),
    Fact(StoreFact),
}

impl StoreLoad {
    pub(crate) fn new(seed: u64) -> Self {
        let dice = fastrand::Rng::with_seed(seed);
        Self { dice, ledger: LoadLedger::default(), chores: LoadChores::new(), session: None, next: 1 }
    }

    /// How many calls were answered as done.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.ledger.acknowledged + self.chores.done
    }

    /// Begins a session. Returns `false` if the store has stopped or is full.
    pub(crate) async fn begin(&mut self, store: &Sqlite) -> Result<bool, Flaw> {
        match store.open(NOW).await {
            Ok(start) => {
                self.session = Some(start.session);
                self.next = 1;
                self.ledger.arrived = false;
                self.ledger.check_start(&start)?;
                Ok(true)
            }
            Err(StoreError::Stopped | StoreError::Full) => Ok(false),
            Err(error) => Err(Flaw::Damaged(format!("a session could not begin: {error}"))),
        }
    }

    /// Compares the store's content with what it has acknowledged.
    pub(crate) async fn verify(&mut self, store: &Sqlite) -> Result<(), Flaw> {
        self.ledger.verify(store).await?;
        self.chores.verify(store, self.session.expect("a session has begun")).await
    }

    /// Makes a few calls at once.
    pub(crate) async fn round(&mut self, store: &Sqlite) -> Result<StoreHealth, Flaw> {
        let session = self.session.expect("a session has begun");
        let ops: Vec<Op> = (0..self.dice.usize(1..6)).filter_map(|_| self.op(session)).collect();
        let chore = self.chore(session).await;
        let chore_call = async {
            match &chore {
                Some(chore) => Some(chores::ask(store, session, chore).await),
                None => None,
            }
        };
        let (answers, answered) = tokio::join!(join_all(ops.into_iter().map(|op| ask(store, session, op))), chore_call);
        let mut found = StoreHealth::Well;
        for (op, answer) in answers {
            match answer {
                LoadAnswer::Full => found = found.max(StoreHealth::Full),
                LoadAnswer::Doubt => found = StoreHealth::Stopped,
                _ => {}
            }
            self.note(op, answer)?;
        }
        if let Some((chore, answered)) = chore.zip(answered) {
            self.ledger.arrived |= answered.as_ref().is_ok_and(|answer| chore.has_arrived(answer));
            found = found.max(self.chores.note(chore, answered).await?);
        }
        // In place of the dispatch loop: without a reader of arrivals, the store would stop accepting at their bound.
        if found == StoreHealth::Well && self.ledger.arrived {
            store.arrivals().await;
            self.ledger.arrived = false;
        }
        Ok(found)
    }

    /// A chore, every second time.
    async fn chore(&mut self, session: Session) -> Option<Chore> {
        let next = &mut self.next;
        let mut mint = |count| {
            let key = Key::new(session.writer, *next);
            *next += count;
            key
        };
        if self.dice.bool() { self.chores.draw(&mut self.dice, &mut mint).await } else { None }
    }

    fn op(&mut self, session: Session) -> Option<Op> {
        Some(match self.dice.u8(..10) {
            0..4 => Op::Accept((0..self.dice.usize(1..4)).map(|_| self.message(session)).collect()),
            4 => Op::Again(Accepted { message: self.message(session).message, ..self.ledger.keyed(&mut self.dice)? }),
            5..8 => Op::Settle(self.settlements(session)?),
            8 => Op::Spill(self.ledger.take_waiting(&mut self.dice, 3).iter().map(|delivery| delivery.id).collect()),
            _ => Op::Fact(self.fact()),
        })
    }

    fn mint(&mut self, session: Session, count: u64) -> Key {
        let key = Key::new(session.writer, self.next);
        self.next += count;
        key
    }

    fn message(&mut self, session: Session) -> Accepted {
        let count = self.dice.u64(..4);
        let id = MessageId(self.mint(session, 1 + count));
        // Mostly small; some have overflow pages of their own.
        let len = if self.dice.u8(..8) == 0 { self.dice.usize(..40_000) } else { self.dice.usize(..600) };
        let body: Vec<u8> = (0..len).map(|_| self.dice.u8(..)).collect();
        let message = Message {
            event_type: Some("invoice.paid".to_owned()),
            correlation_id: Some(id.to_string()),
            ..Message::new(id, TENANT, NOW, body)
        };
        let deliveries = (1..=count).map(|n| self.delivery(id, n)).collect();
        let idempotency = self.dice.bool().then(|| self.key());
        Accepted { idempotency, ..Accepted::new(message, deliveries) }
    }

    fn delivery(&mut self, message: MessageId, n: u64) -> NewDelivery {
        let lane = self.dice.u64(1..6);
        let place = [RowIndex::Ready, RowIndex::Ready, RowIndex::Spilled, RowIndex::Delayed][self.dice.usize(..4)];
        let id = DeliveryId(message.0.plus(n));
        let to = endpoint(lane);
        let delivery = Delivery::queued(id, message, to.id, to.lane, Tier::Promotional, NOW);
        NewDelivery::new(delivery, place, Arc::new(to.lane_settings()))
    }

    fn key(&mut self) -> Idempotency {
        let mut half = [0; 16];
        self.dice.fill(&mut half);
        let answer = FirstAnswer { status: 202, body: vec![self.dice.u8(..); 40].into() };
        Idempotency { tenant: TENANT, key: KeyHash(half), digest: [1; 32], answer, at: NOW }
    }

    fn settlements(&mut self, session: Session) -> Option<Vec<Settlement>> {
        let most = self.dice.usize(1..8);
        let before = self.ledger.take_waiting(&mut self.dice, most);
        let settlements: Vec<_> = before.iter().map(|before| self.settlement(session, before)).collect();
        (!settlements.is_empty()).then_some(settlements)
    }

    fn settlement(&mut self, session: Session, before: &Delivery) -> Settlement {
        let (state, cause) = match self.dice.u8(..6) {
            0 => (State::Dead { at: NOW, cause: Cause::Gone }, Cause::Gone),
            1 | 2 => (State::Retry { due: NOW, cause: Cause::ConnectTimeout }, Cause::ConnectTimeout),
            _ => (State::Delivered { at: NOW }, Cause::Ok),
        };
        let last_cause = (cause != Cause::Ok).then_some(cause);
        let delivery = Delivery { state, last_cause, attempts: before.attempts + 1, ..before.clone() };
        settlement(session, delivery, cause, Duration::from_micros(self.dice.u64(..1_000_000)))
    }

    fn fact(&mut self) -> StoreFact {
        let n = self.ledger.fresh_fact();
        match self.dice.u8(..3) {
            0 => StoreFact::Cut(LaneId::from_raw(n)),
            1 => StoreFact::Pause(LaneId::from_raw(n)),
            _ => StoreFact::Endpoint(EndpointId::from_raw(n)),
        }
    }

    fn note(&mut self, op: Op, answer: LoadAnswer) -> Result<(), Flaw> {
        match op {
            Op::Accept(messages) => messages.into_iter().for_each(|accepted| self.ledger.accepted(accepted, answer)),
            // No second message may exist, whichever the answer; `ask` has judged the answer itself.
            Op::Again(accepted) => _ = self.ledger.never.insert(accepted.message.id),
            Op::Settle(settlements) => {
                settlements.into_iter().for_each(|settlement| self.ledger.settled(settlement.record.delivery, answer));
            }
            Op::Spill(deliveries) => self.ledger.waiting.extend(&deliveries),
            Op::Fact(fact) => self.ledger.stated(fact, answer),
        }
        if let LoadAnswer::Wrong(what) = answer { Err(Flaw::Lost(what.to_owned())) } else { Ok(()) }
    }
}

async fn ask(store: &Sqlite, session: Session, op: Op) -> (Op, LoadAnswer) {
    let answered = match &op {
        Op::Accept(messages) => store.accept(session, messages.clone()).await.map(|fresh| {
            let all = fresh.iter().all(|acceptance| *acceptance == Acceptance::Fresh);
            if all { LoadAnswer::Done } else { LoadAnswer::Wrong("a new message was taken for an old one") }
        }),
        Op::Again(accepted) => store.accept(session, vec![accepted.clone()]).await.map(|answers| {
            let first = accepted.idempotency.as_ref().map(|key| Acceptance::Replayed(key.answer.clone()));
            match answers.first() {
                // The store's reader failed, so the first answer is unknown to it.
                Some(Acceptance::Unanswered) => LoadAnswer::Doubt,
                found if found == first.as_ref() => LoadAnswer::Done,
                _ => LoadAnswer::Wrong("an acknowledged idempotency key is no longer known"),
            }
        }),
        Op::Settle(settlements) => store.settle(session, settlements.clone()).await.map(|settled| {
            let all = settled.iter().all(|one| *one == Settled::Done);
            if all { LoadAnswer::Done } else { LoadAnswer::Wrong("a delivery is not as its last settle left it") }
        }),
        Op::Spill(deliveries) => store.spill(session, deliveries.clone()).await.map(|()| LoadAnswer::Done),
        Op::Fact(StoreFact::Cut(lane)) => {
            let scope = CutScope::Lane(*lane);
            let cut = Cut::new(scope, Key::from_raw(1), Cause::Cancelled, NOW);
            store.cut(session, cut, None).await.map(|_| LoadAnswer::Done)
        }
        Op::Fact(StoreFact::Pause(lane)) => {
            let pause = Pause::new(PauseScope::Lane(*lane), None);
            store.pause(session, pause, NOW).await.map(|()| LoadAnswer::Done)
        }
        Op::Fact(StoreFact::Endpoint(id)) => {
            store.put_endpoint(session, endpoint(id.0.raw()), None, AuditStamp::at(NOW)).await.map(|_| LoadAnswer::Done)
        }
    };
    let answer = answered.unwrap_or_else(|error| match error {
        StoreError::Full => LoadAnswer::Full,
        // `Database` does not mean that the call had no effect: a cut is in force even if its rows could not be
        // counted.
        StoreError::Stopped | StoreError::Database { .. } => LoadAnswer::Doubt,
        _ => LoadAnswer::Wrong("a valid call was refused"),
    });
    (op, answer)
}

/// The settlement of an attempt that left the delivery as it is here.
pub(crate) fn settlement(session: Session, delivery: Delivery, cause: Cause, took: Duration) -> Settlement {
    Settlement {
        excerpt: None,
        attempt: Some(AttemptRecord { number: delivery.attempts, at: NOW, took, cause, status: None }),
        record: DeliveryChange {
            attempts_before: delivery.attempts - 1,
            place: RowIndex::Delayed,
            shard: Shard::of(delivery.lane),
            pauses_lane: false,
            endpoint_change: None,
            delivery,
        },
        epoch: session.epoch,
    }
}

fn endpoint(n: u64) -> Endpoint {
    let secrets = vec![SigningSecret::lasting("whsec_a")];
    let target = WebhookTarget::signing(format!("https://example.com/{n}"), secrets);
    Endpoint { max_in_flight: 10, ..Endpoint::new(EndpointId::from_raw(n), LaneId::from_raw(n), TENANT, NOW, target) }
}
