//! Receivers behind real sockets, and what they record.

pub mod counter;
pub mod receiver;
