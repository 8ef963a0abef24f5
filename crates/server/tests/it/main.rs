//! The HTTP API over real sockets, in this process, over the memory store and, where the disk matters, over SQLite.

mod audit;
mod batch;
mod dead_letters;
mod deliveries;
mod endpoints;
mod fixture;
mod keys;
mod load;
mod messages;
mod metrics;
mod openapi;
mod operator;
mod policies;
mod shape;
mod subjects;
mod switch;
mod tenants;
mod tls;
