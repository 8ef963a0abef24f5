//! What a person outside could have seen: calls and their answers, requests on the wire, the
//! virtual clock. Plain numbers and texts; no type of the engine's decisions.

use std::collections::BTreeMap;

/// Virtual milliseconds.
pub type Ms = i64;

/// A message somebody sent us.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When the call was made.
    pub called_at: Ms,
    /// When it was acknowledged, if it was.
    pub acked_at: Option<Ms>,
    /// The message's id.
    pub message: u64,
    /// Its deliveries.
    pub deliveries: Vec<SentDelivery>,
    /// Asked for by the caller, by the node's clock.
    pub deliver_at: Option<Ms>,
    /// Whether one attempt is all it gets.
    pub now_or_never: bool,
    /// Whether a receipt is required.
    pub wants_receipt: bool,
    /// How urgent: 0 is the most.
    pub tier: usize,
    /// The collapse key it was sent with.
    pub collapse: Option<u64>,
    /// Whom it is about.
    pub subject: Option<u64>,
}

/// One message to one lane.
#[derive(Clone, Copy, Debug)]
pub struct SentDelivery {
    /// Its id.
    pub id: u64,
    /// Where to.
    pub lane: u64,
    /// As the answer said, by the node's clock.
    pub expires_at: Option<Ms>,
}

/// A request that left for a receiver.
#[derive(Clone, Debug)]
pub struct Request {
    /// When it left.
    pub left_at: Ms,
    /// The node's own idea of that time, as the request's header says.
    pub stamped: Ms,
    /// Which delivery.
    pub delivery: u64,
    /// Where to.
    pub lane: u64,
    /// The attempt's number, as the request's header says.
    pub attempt: u16,
    /// The highest attempt of the delivery's history at that moment, as the API shows it.
    pub recorded: u16,
    /// When the sender learnt what came of it.
    pub answered_at: Option<Ms>,
    /// The code of what came of it, as the API shows it.
    pub cause: &'static str,
    /// The status it got, if it got one.
    pub status: Option<u16>,
    /// A valid Retry-After in that answer, in milliseconds.
    pub retry_after: Option<Ms>,
    /// Whether that was asked of the whole lane, and not of this delivery alone.
    pub asks_lane: bool,
}

/// Something that was asked for and when it was in force.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What.
    pub what: What,
    /// When the call was made.
    pub called_at: Ms,
    /// When it was answered, if it was.
    pub answered_at: Option<Ms>,
    /// Whether the answer said that it is done, not that there was nothing to do.
    pub done: bool,
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Cancel a message.
    Cancel(u64),
    /// End a lane, up to an id.
    EndLane(u64, u64),
    /// Pause: 0 everything, 1 a tenant, 2 a lane.
    Pause(u8, u64),
    /// Resume.
    Resume(u8, u64),
    /// A receipt for a delivery.
    Receipt(u64),
    /// Erase a subject, or everybody.
    Erase(Option<u64>),
}

/// What the API said of a delivery at some time.
#[derive(Clone, Debug)]
pub struct Look {
    /// When, by the virtual clock and by the node's.
    pub at: Ms,
    /// By the node's clock.
    pub stamped: Ms,
    /// Which life of the node answered.
    pub life: u32,
    /// Which delivery.
    pub delivery: u64,
    /// Its state's name.
    pub state: &'static str,
    /// Attempts made.
    pub attempts: u16,
    /// Why it waits.
    pub why: &'static str,
    /// Until when, by the node's clock.
    pub until: Option<Ms>,
}

/// How the API showed a delivery at the end.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Which.
    pub delivery: u64,
    /// Its state's name; `missing` when the API does not know it.
    pub state: &'static str,
    /// Its cause's code, where the state has one.
    pub cause: &'static str,
    /// Attempts made.
    pub attempts: u16,
    /// The numbers of the attempts in its history.
    pub numbers: Vec<u16>,
}

/// A crash.
#[derive(Clone, Debug)]
pub struct Crash {
    /// When.
    pub at: Ms,
    /// Requests that had left and whose outcome was not on disk.
    pub unsettled: Vec<u64>,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Messages.
    pub sent: Vec<Sent>,
    /// Requests in the order they left.
    pub requests: Vec<Request>,
    /// Calls.
    pub asked: Vec<Asked>,
    /// How many messages an erasure's answer said were in flight, by when it was asked for.
    pub in_flight: BTreeMap<Ms, u64>,
    /// Looks at waiting deliveries.
    pub looks: Vec<Look>,
    /// Crashes.
    pub crashes: Vec<Crash>,
    /// How everything ended.
    pub endings: Vec<Ending>,
    /// Moves the engine itself says it refused.
    pub refused_moves: u64,
    /// When the run was given up on, if it was.
    pub gave_up_at: Option<Ms>,
}
