//! The calls that the loop makes to the store, and their replies.

use std::sync::Arc;

use posthaste_core::scheduler::{BreakerOf, Evicted, Reset, SoftBreaker};
use posthaste_core::{Cut, CutScope, DeliveryId, EndpointId, LaneId, LaneSettings, Timestamp};
use posthaste_store::{
    ApiKeyRef, AuditStamp, Outbox, Pause, PauseScope, PendingPage, Query, Session, Settled, Settlement, StoreError,
    Sweep, SweptRows,
};

use super::commands::Ticket;
use super::{Departure, PauseNumber};

/// One call, one transaction.
#[derive(Clone, Debug)]
pub enum StoreCall {
    /// Record outcomes.
    Settle(Vec<Settlement>),
    /// Read at most this many rows, at this time. The departure is the last one before the page was
    /// requested.
    Page(Query, u32, Timestamp, Departure),
    Spill(Vec<Evicted>),
    Lanes(Vec<LaneId>),
    /// Make a cut durable, at the request of a caller with this key, and answer this ticket.
    Cut(Cut, Option<ApiKeyRef>, Option<Ticket>),
    /// Write outcomes for rows that have ended, except for these, which are under way.
    Sweep(Sweep, Vec<DeliveryId>),
    /// Delete a cut that has no rows left, at this time.
    Uncut(CutScope, Timestamp),
    /// Record a pause that began at this time.
    Pause(Pause, Timestamp, Ticket),
    /// End this pause of a scope and those before it, with its time and key for the journal.
    Resume(PauseScope, PauseNumber, AuditStamp, Ticket),
    /// Write to the journal that a caller reset a breaker.
    Reset(BreakerOf, Reset, AuditStamp, Ticket),
    /// Replace the stored breakers by these, which are not closed.
    Remember(Vec<SoftBreaker>),
}

/// The answer to a [`StoreCall`].
#[derive(Clone, Debug)]
pub enum StoreReply {
    /// One result for each settlement, in order.
    Settled(Vec<Settled>),
    /// The rows as of this departure, or later.
    Paged(Query, Departure, PendingPage),
    Spilled(Vec<Evicted>),
    /// The lanes asked for, and the settings of those that exist.
    Lanes(Vec<LaneId>, Vec<Arc<LaneSettings>>),
    Cut {
        scope: CutScope,
        endpoint: Option<EndpointId>,
        /// The command to answer, if a caller asked for the cut.
        ticket: Option<Ticket>,
        ended: u64,
        in_flight: u64,
    },
    /// The rows that one step of a sweep ended.
    Swept(Sweep, SweptRows),
    Uncut,
    Paused(Ticket),
    /// The pause is over, and those before it.
    Resumed(PauseScope, PauseNumber, Ticket),
    Reset(Ticket),
    Remembered,
    /// A read failed: the call is made again.
    Failed(StoreCall),
}

pub async fn perform<S: Outbox>(store: &S, session: Session, call: StoreCall) -> Result<StoreReply, StoreError> {
    Ok(match call {
        StoreCall::Settle(batch) => StoreReply::Settled(store.settle(session, batch).await?),
        StoreCall::Page(query, limit, now, as_of) => {
            StoreReply::Paged(query, as_of, store.page(query, limit, now).await?)
        }
        StoreCall::Spill(sheds) => {
            store.spill(session, sheds.iter().map(|shed| shed.delivery).collect()).await?;
            StoreReply::Spilled(sheds)
        }
        StoreCall::Lanes(lanes) => {
            let found = store.lanes(lanes.clone()).await?;
            StoreReply::Lanes(lanes, found)
        }
        StoreCall::Cut(cut, by, ticket) => {
            let (scope, in_flight) = (cut.scope, cut.spared.len() as u64);
            let endpoint = cut.endpoint.map(|(id, _)| id);
            StoreReply::Cut { scope, endpoint, ticket, in_flight, ended: store.cut(session, cut, by).await? }
        }
        StoreCall::Sweep(sweep, under_way) => StoreReply::Swept(sweep, store.sweep(session, sweep, under_way).await?),
        StoreCall::Uncut(scope, at) => {
            store.uncut(session, scope, at).await?;
            StoreReply::Uncut
        }
        StoreCall::Pause(pause, at, ticket) => {
            store.pause(session, pause, at).await?;
            StoreReply::Paused(ticket)
        }
        StoreCall::Resume(scope, pause, act, ticket) => {
            store.resume(session, scope, act).await?;
            StoreReply::Resumed(scope, pause, ticket)
        }
        StoreCall::Reset(of, how, act, ticket) => {
            store.reset(session, of, how, act).await?;
            StoreReply::Reset(ticket)
        }
        StoreCall::Remember(breakers) => {
            store.remember(session, breakers).await?;
            StoreReply::Remembered
        }
    })
}
