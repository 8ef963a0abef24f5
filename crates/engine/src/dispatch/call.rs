//! What the loop asks of the store, and what the store answers.

use std::sync::Arc;

use posthaste_core::cut::{Cut, Scope};
use posthaste_core::id::{DeliveryId, EndpointId, LaneId};
use posthaste_core::queue::{BreakerOf, LaneSettings, Reset, Shed, SoftBreaker};
use posthaste_core::time::Timestamp;
use posthaste_store::{
    Act, By, Outbox, Page, Pause, PauseScope, Query, Session, Settled, Settlement, StoreError, Sweep, SweptRows,
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
    /// Put a cut in force, by somebody's word where somebody said so.
    Cut(Cut, Option<By>, Option<Ticket>),
    /// Write off what has ended, but for these, which are under way.
    Sweep(Sweep, Vec<DeliveryId>),
    /// Forget a cut, at this time.
    Uncut(Scope, Timestamp),
    /// Record a pause that began at this time.
    Pause(Pause, Timestamp, Ticket),
    /// End a pause, and those before it, by somebody's word.
    Resume(PauseScope, PauseNumber, Act, Ticket),
    /// Say in the journal that somebody reset a breaker.
    Reset(BreakerOf, Reset, Act, Ticket),
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
        /// The endpoint that ended with it.
        endpoint: Option<EndpointId>,
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
        Call::Cut(cut, by, ticket) => {
            let (scope, in_flight) = (cut.scope, cut.spared.len() as u64);
            let endpoint = cut.endpoint.map(|(id, _)| id);
            Reply::Cut { scope, endpoint, ticket, in_flight, ended: store.cut(session, cut, by).await? }
        }
        Call::Sweep(sweep, under_way) => Reply::Swept(sweep, store.sweep(session, sweep, under_way).await?),
        Call::Uncut(scope, at) => {
            store.uncut(session, scope, at).await?;
            Reply::Uncut
        }
        Call::Pause(pause, at, ticket) => {
            store.pause(session, pause, at).await?;
            Reply::Paused(ticket)
        }
        Call::Resume(scope, pause, act, ticket) => {
            store.resume(session, scope, act).await?;
            Reply::Resumed(scope, pause, ticket)
        }
        Call::Reset(of, how, act, ticket) => {
            store.reset(session, of, how, act).await?;
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
