//! The engine's integration tests, in one binary.

mod connector;
mod network;
mod receiver;
mod ssrf;
mod tls;
