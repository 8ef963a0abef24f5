//! The history of a run, as an observer outside the node sees it: calls and their answers, requests on the wire, the
//! virtual clock. It uses plain numbers and texts and none of the engine's types, so that the oracle cannot depend on
//! the engine's decisions: messages, deliveries, lanes and subjects are given by their ids.

use std::collections::BTreeMap;

/// Virtual milliseconds.
pub type Ms = i64;

#[derive(Clone, Debug)]
pub struct SentMessage {
    pub called_at: Ms,
    pub acked_at: Option<Ms>,
    pub message: u64,
    pub deliveries: Vec<SentDelivery>,
    /// The earliest time of an attempt that the caller requested, by the node's clock.
    pub deliver_at: Option<Ms>,
    /// Whether its TTL is zero, which allows one attempt.
    pub now_or_never: bool,
    pub wants_receipt: bool,
    /// The index of its tier: 0 is the most urgent.
    pub tier: usize,
    /// The collapse key with which it was sent.
    pub collapse: Option<u64>,
    pub subject: Option<u64>,
}

/// A delivery of a sent message to one lane.
#[derive(Clone, Copy, Debug)]
pub struct SentDelivery {
    pub id: u64,
    pub lane: u64,
    /// The end of its TTL, by the node's clock, if it has one.
    pub expires_at: Option<Ms>,
}

/// A request that left for a receiver.
#[derive(Clone, Debug)]
pub struct SentRequest {
    pub left_at: Ms,
    /// The same time by the node's clock, from the request's header.
    pub stamped: Ms,
    pub delivery: u64,
    pub lane: u64,
    /// The attempt's number, from the request's header.
    pub attempt: u16,
    /// The highest attempt of the delivery's history at that moment, as the API shows it.
    pub recorded: u16,
    /// When the sender got the result.
    pub answered_at: Option<Ms>,
    /// The cause of the result, as the API shows it.
    pub cause: &'static str,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// A valid Retry-After in that answer, in milliseconds.
    pub retry_after: Option<Ms>,
    /// Whether the Retry-After applies to the whole lane, and not to this delivery alone.
    pub asks_lane: bool,
}

/// A call of the API other than a send, with its times.
#[derive(Clone, Debug)]
pub struct ApiCall {
    /// The action that was requested.
    pub what: What,
    pub called_at: Ms,
    pub answered_at: Option<Ms>,
    /// Whether the answer was that the action is done, and not that there was nothing to do.
    pub done: bool,
}

/// An action that a caller can request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Cancel(u64),
    /// End a lane's deliveries up to an id.
    EndLane(u64, u64),
    /// Pause a scope: its kind (0 everything, 1 a tenant, 2 a lane) and its id.
    Pause(u8, u64),
    /// Resume a scope, given as for a pause.
    Resume(u8, u64),
    /// Confirm a delivery with a receipt.
    Receipt(u64),
    /// Erase a subject, or with `None` the whole tenant.
    Erase(Option<u64>),
}

/// A pending delivery as the API showed it at some time.
#[derive(Clone, Debug)]
pub struct PendingSnapshot {
    /// The time by the virtual clock.
    pub at: Ms,
    /// The time by the node's clock.
    pub stamped: Ms,
    /// The number of the node's life that answered; a crash begins a new one.
    pub life: u32,
    pub delivery: u64,
    pub attempts: u16,
    /// The reason why it waits.
    pub why: &'static str,
    /// The end of the wait, by the node's clock, if it is known.
    pub until: Option<Ms>,
}

/// A delivery as the API showed it at the end of the run.
#[derive(Clone, Debug)]
pub struct Ending {
    pub delivery: u64,
    /// The name of its state; `missing` if the API does not know the delivery.
    pub state: &'static str,
    /// The code of its cause, if the state has one.
    pub cause: &'static str,
    pub attempts: u16,
    /// The numbers of the attempts in its history.
    pub numbers: Vec<u16>,
}

#[derive(Clone, Debug)]
pub struct Crash {
    /// The time by the virtual clock.
    pub at: Ms,
    /// The deliveries whose last request had left and whose outcome was not on disk.
    pub unsettled: Vec<u64>,
}

/// The complete history of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub sent: Vec<SentMessage>,
    /// Requests in the order they left.
    pub requests: Vec<SentRequest>,
    pub asked: Vec<ApiCall>,
    /// The number of messages in flight in an erasure's answer, by the time of its call.
    pub in_flight: BTreeMap<Ms, u64>,
    /// Views of waiting deliveries.
    pub looks: Vec<PendingSnapshot>,
    pub crashes: Vec<Crash>,
    /// All deliveries at the end of the run.
    pub endings: Vec<Ending>,
    /// State changes that the engine counted as refused.
    pub refused_moves: u64,
    /// When the run was stopped although deliveries had not ended, if it was.
    pub gave_up_at: Option<Ms>,
}
