//! The negative control: a sender without any protection of the receiver. It retries each message every second until
//! the receiver accepts it.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Plan;
use crate::fixtures::caller::call;

const AGAIN: Duration = Duration::from_secs(1);

/// Sends messages at the plan's rate, and waits until all have arrived.
pub(super) async fn send(plan: &Plan, to: SocketAddr, began: Instant) {
    let mut next = began;
    let mut messages = JoinSet::new();
    while next < began + plan.length() {
        tokio::time::sleep_until(next).await;
        messages.spawn(deliver(to));
        next += plan.pause();
    }
    while messages.join_next().await.is_some() {}
}

async fn deliver(to: SocketAddr) {
    while !call(to, Method::POST, "/hook", "{}").await.is_ok_and(|answer| answer.status == StatusCode::OK) {
        tokio::time::sleep(AGAIN).await;
    }
}
