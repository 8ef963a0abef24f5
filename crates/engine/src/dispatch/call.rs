//! What the loop asks of the store, and what the store answers.

use std::sync::Arc;

use posthaste_core::cut::{Cut, Scope};
use posthaste_core::id::{DeliveryId, LaneId};
use posthaste_core::queue::{BreakerOf, LaneSettings, Reset, Shed, SoftBreaker};
use posthaste_core::time::Timestamp;
use posthaste_store::{
    By, Outbox, Page, Pause, PauseScope, Query, Session, Settled, Settlement, StoreError, Sweep, SweptRows,
};

use super::asked::Ticket;
use super::{Departure, PauseNumber};

/// One call, one transaction.
#[derive(Clone, Debug)]
pub enum Call {
    /// Record outcomes.
    Settle(Vec<Settlement>),
    /// Read rows, at most this many, at this time, as of this departure: the last one before the page was
    /// asked for.
    Page(Query, u32, Timestamp, Departure),
    /// Move rows behind the window.
    Spill(Vec<Shed>),
    /// Look up lanes.
    Lanes(Vec<LaneId>),
    /// Put a cut in force.
    Cut(Cut, Option<Ticket>),
    /// Write off what has ended, but for these, which are under way.
    Sweep(Sweep, Vec<DeliveryId>),
    /// Forget a cut.
    Uncut(Scope),
    /// Record a pause.
    Pause(Pause, Ticket),
    /// End a pause, and those before it, by somebody's word.
    Resume(PauseScope, PauseNumber, Option<By>, Ticket),
    /// Say in the journal that somebody reset a breaker.
    Reset(BreakerOf, Reset, Option<By>, Ticket),
    /// Remember the breakers that are not closed, in place of those remembered before.
    Remember(Vec<SoftBreaker>),
}

/// The answer to a [`Call`].
#[derive(Clone, Debug)]
pub enum Reply {
    /// For each settlement, in order.
    Settled(Vec<Settled>),
    /// The rows as of this departure, or later.
    Paged(Query, Departure, Page),
    /// They are behind the window.
    Spilled(Vec<Shed>),
    /// Those asked for, and those that exist.
    Lanes(Vec<LaneId>, Vec<Arc<LaneSettings>>),
    /// The cut is durable.
    Cut {
        /// Of what.
        scope: Scope,
        /// Who asked.
        ticket: Option<Ticket>,
        /// How many pending deliveries it ended.
        ended: u64,
        /// How many were in flight and may still arrive.
        in_flight: u64,
    },
    /// Some of it is written off.
    Swept(Sweep, SweptRows),
    /// The cut is forgotten.
    Uncut,
    /// The pause is durable.
    Paused(Ticket),
    /// The pause is over, and those before it.
    Resumed(PauseScope, PauseNumber, Ticket),
    /// The journal has it.
    Reset(Ticket),
    /// The breakers are remembered.
    Remembered,
    /// The store could not: the call is made again.
    Failed(Call),
}

/// Carries out a call.
pub async fn perform<S: Outbox>(store: &S, session: Session, call: Call) -> Result<Reply, StoreError> {
    Ok(match call {
        Call::Settle(batch) => Reply::Settled(store.settle(session, batch).await?),
        Call::Page(query, limit, now, as_of) => Reply::Paged(query, as_of, store.page(query, limit, now).await?),
        Call::Spill(sheds) => {
            store.spill(session, ids(&sheds)).await?;
            Reply::Spilled(sheds)
        }
        Call::Lanes(lanes) => {
            let found = store.lanes(lanes.clone()).await?;
            Reply::Lanes(lanes, found)
        }
        Call::Cut(cut, ticket) => {
            let (scope, in_flight) = (cut.scope, cut.spared.len() as u64);
            Reply::Cut { scope, ticket, in_flight, ended: store.cut(session, cut).await? }
        }
        Call::Sweep(sweep, under_way) => Reply::Swept(sweep, store.sweep(session, sweep, under_way).await?),
        Call::Uncut(scope) => {
            store.uncut(session, scope).await?;
            Reply::Uncut
        }
        Call::Pause(pause, ticket) => {
            store.pause(session, pause).await?;
            Reply::Paused(ticket)
        }
        Call::Resume(scope, pause, by, ticket) => {
            store.resume(session, scope, by).await?;
            Reply::Resumed(scope, pause, ticket)
        }
        Call::Reset(of, how, by, ticket) => {
            store.reset(session, of, how, by).await?;
            Reply::Reset(ticket)
        }
        Call::Remember(breakers) => {
            store.remember(session, breakers).await?;
            Reply::Remembered
        }
    })
}

fn ids(sheds: &[Shed]) -> Vec<DeliveryId> {
    sheds.iter().map(|shed| shed.delivery).collect()
}
