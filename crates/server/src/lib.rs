//! The HTTP API in front of a running engine.
//!
//! [`run::run`] accepts connections, hands each request to [`api`], and shuts everything down in order.
//! A handler does three things: it parses the request, calls one method of the engine, and answers.
//! Wire types are defined with their routes in [`api`] and nowhere else; a refusal is a
//! [`problem::Problem`]. Read `api/messages.rs` first: it accepts messages.

#[macro_use]
mod value;
#[macro_use]
mod body_fields;
pub mod api;
pub mod duration;
mod object;
pub mod openapi;
pub mod problem;
mod request_id;
mod room;
pub mod run;
mod served;
