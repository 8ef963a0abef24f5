//! What a destination can take, and what it is asked to: token buckets, breakers, concurrency, the
//! retry budget and the pace of a recovery. Each is a small value with its own arithmetic; the
//! queue holds them beside its lanes and asks them before every send.

pub mod breaker;
pub mod bucket;
pub mod budget;
pub mod concurrency;
pub mod pace;
