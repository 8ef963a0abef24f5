//! Every decision Posthaste makes, and nothing else.
//!
//! This crate is pure: the current time and random numbers are arguments, so the same inputs give the same
//! result. It reads no clock, generates no random numbers, opens no file or socket, and knows neither SQL nor
//! HTTP types. The simulator can therefore run the production engine from a seed.
//!
//! Read [`delivery`] first ([`delivery::settle`] decides what follows an attempt), then [`scheduler`]
//! (`admit`, `next`, `settle`, `wake_at`, `explain`).

pub mod cause;
pub mod change_stamps;
pub mod classify;
pub mod cut;
pub mod delivery;
pub mod dice;
pub mod fanout;
pub mod flow;
pub mod health;
pub mod hold;
pub mod id;
pub mod id_map;
mod named;
pub mod off_peak;
pub mod pattern;
pub mod policy;
pub mod scheduler;
pub mod slice;
mod slots;
pub mod state;
pub mod tier;
pub mod time;

pub use cause::{Cause, Class};
pub use cut::{Cut, CutScope, EndpointChange};
pub use delivery::{Compact, Delivery, Expiry, Verdict, VerdictScope};
pub use dice::Roll;
pub use fanout::{Audience, Candidate, Fanout};
pub use hold::{Hold, Why};
pub use id::{DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, OriginId, Shard, TenantId, WriterId};
pub use id_map::{IdMap, IdSet};
pub use policy::Policy;
pub use scheduler::{DeliveryChange, IdRange, LaneSettings, RowIndex, Scheduler};
pub use state::{Phase, State};
pub use tier::Tier;
pub use time::Timestamp;
