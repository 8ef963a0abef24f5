//! The HTTP API in front of a running engine.
//!
//! [`run::run`] accepts connections, hands each request to [`api`], and ends everything in order.
//! A handler does three things: it parses at the edge, calls one verb of the engine, answers.
//! Wire types live with their routes in [`api`] and nowhere else; a refusal is a
//! [`problem::Problem`]. Read `api/messages.rs` first: a message's way begins there.

pub mod api;
pub mod duration;
mod object;
pub mod openapi;
pub mod problem;
mod request_id;
mod room;
pub mod run;
mod served;
mod value;
