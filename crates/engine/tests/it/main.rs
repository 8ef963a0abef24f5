//! The engine's integration tests, in one binary.

mod audience;
mod connector;
mod harness;
mod http2;
mod multiplexer;
mod network;
mod policies;
mod receiver;
mod running;
mod ssrf;
mod tenants;
mod tls;
mod toy_channel;
mod trail;
