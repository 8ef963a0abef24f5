//! The running engine without an HTTP server, usable as a library.
//!
//! [`Engine`] has the methods. [`accept`] makes messages durable; [`dispatch`] is the loop that
//! decides what happens next, a state machine with a thin driver; [`sender`] makes its attempts
//! through [`connector`], which opens all outgoing connections.

#[cfg(test)]
extern crate self as posthaste_engine;

pub mod accept;
pub mod access;
mod background;
pub mod channels;
pub mod clock;
pub mod connector;
mod detached;
pub mod dispatch;
pub mod endpoint_cache;
pub mod endpoints;
pub mod engine;
pub mod erase;
pub mod export;
pub mod field;
mod jobs;
pub mod lists;
pub mod master_key;
pub mod metrics;
pub mod operator_key;
mod pending;
pub mod policies;
pub mod replays;
mod rest;
pub mod rotation;
pub mod rules;
pub mod sender;
mod signer;
pub mod target;
pub mod tenants;
pub mod trail;
mod upkeep;
pub mod watch;
pub mod zone;

pub use accept::{AcceptOutcome, EndpointRef, IdempotencyRequest, NewMessage, NotAccepted, PromisedMessage};
pub use access::NewKey;
pub use channels::ChannelRegistry;
pub use clock::{Clock, SystemClock};
pub use connector::{
    BadIdentity, ConnectionFault, Connector, ConnectorJob, Dial, Done, Identity, IdentityPem, NoAnswer,
    ReceivedResponse, Resolve, Roots, System, Tcp,
};
pub use dispatch::driver::{DispatchHandle, EngineStopped};
pub use dispatch::{Command, CommandReply, EndLane, LanePaused};
pub use endpoint_cache::{ParsedEndpoint, ParsedEndpointCache};
pub use endpoints::{NewSigning, NotMade};
pub use engine::{Engine, ExplainedDelivery, NotDone, Visibility};
pub use master_key::MasterKeySource;
pub use master_key::keeper::Keeper;
pub use policies::{NotPut, StoredPolicy};
pub use rules::Rules;
pub use target::{Host, Origin, Refusal, Target, TargetRules, UrlScheme};
pub use tenants::{Hours, Made, NotFiled, Tenant, TenantTerms};

#[cfg(test)]
mod fixtures;
#[cfg(test)]
#[path = "../tests/it/harness.rs"]
mod harness;
