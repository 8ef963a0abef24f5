//! One delivery: where it is, every attempt, and why it waits.

use std::sync::Arc;

use axum::extract::State;
use http::{StatusCode, Uri};
use posthaste_core::Why;
use posthaste_core::id::DeliveryId;
use posthaste_core::queue::Explained;
use posthaste_core::state::{Phase, State as Life};
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::Kind;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::View;
use posthaste_store::{Attempt, Store};
use serde::Serialize;

use super::caller::{Caller, READ};
use super::{Answer, Api, Named, json, no_parameters};
use crate::problem::Problem;
use crate::{duration, value};

/// `GET /v1/deliveries/{id}`.
pub async fn show<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ>,
    Named(public_id): Named,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    let unknown = || Problem::no_such("delivery");
    let (key, accepted_at) = api.engine.opened(Kind::Delivery, &public_id).ok_or_else(unknown)?;
    let view = api.engine.delivery(caller.sees(), DeliveryId(key)).await?.ok_or_else(unknown)?;
    let endpoint = view.shown.delivery.lane.endpoint();
    let endpoint = api.engine.endpoint(caller.sees(), endpoint).await?.ok_or_else(unknown)?;
    let endpoint = api.engine.public_id(Kind::Endpoint, endpoint.endpoint.id.0, endpoint.endpoint.at);
    // A delivery's id carries the time of its message's accept, as the message's own does.
    let message = api.engine.public_id(Kind::Message, view.shown.delivery.message.0, accepted_at);
    let ids = Ids { id: public_id, message, endpoint };
    Ok(json(StatusCode::OK, &Shown::of(ids, accepted_at, &view)))
}

/// The ids of a delivery and of what it joins.
struct Ids {
    id: String,
    message: String,
    endpoint: String,
}

#[derive(Serialize)]
struct Shown {
    id: String,
    message: String,
    endpoint: String,
    tier: &'static str,
    state: &'static str,
    cause: Option<&'static str>,
    accepted_at: String,
    expires_at: Option<String>,
    sent_at: Option<String>,
    delivered_at: Option<String>,
    failed_at: Option<String>,
    attempts: Vec<ShownAttempt>,
    waiting: Option<Waiting>,
}

#[derive(Serialize)]
struct ShownAttempt {
    attempt: u16,
    at: String,
    duration: String,
    status: Option<u16>,
    cause: &'static str,
}

/// Why a delivery waits, and until when.
#[derive(Serialize)]
pub(super) struct Waiting {
    why: &'static str,
    until: Option<String>,
    detail: &'static str,
}

impl Shown {
    fn of(ids: Ids, accepted_at: Timestamp, view: &View) -> Self {
        let Ids { id, message, endpoint } = ids;
        let delivery = &view.shown.delivery;
        let (delivered_at, failed_at) = match delivery.state {
            Life::Delivered { at } => (Some(at), None),
            Life::Dead { at, .. } | Life::Expired { at } | Life::Cancelled { at, .. } => (None, Some(at)),
            _ => (None, None),
        };
        let sent_at = view.shown.attempts.last().map(started);
        Self {
            id,
            message,
            endpoint,
            tier: delivery.tier.name(),
            state: phase(view).name(),
            cause: cause(view),
            accepted_at: value::write_time(accepted_at),
            expires_at: delivery.expiry.at().map(value::write_time),
            sent_at: sent_at.map(value::write_time),
            delivered_at: delivered_at.map(value::write_time),
            failed_at: failed_at.map(value::write_time),
            attempts: view.shown.attempts.iter().map(ShownAttempt::of).collect(),
            waiting: waiting(view),
        }
    }
}

impl ShownAttempt {
    fn of(attempt: &Attempt) -> Self {
        Self {
            attempt: attempt.number,
            at: value::write_time(started(attempt)),
            duration: duration::write(attempt.took),
            status: attempt.status,
            cause: attempt.cause.code(),
        }
    }
}

/// History keeps when an attempt ended.
fn started(attempt: &Attempt) -> Timestamp {
    attempt.at - attempt.took
}

/// Only the owner's memory knows that something is being sent.
pub(super) fn phase(view: &View) -> Phase {
    match view.explained {
        Some(Explained::UnderWay) => Phase::Dispatching,
        _ => view.shown.delivery.state.phase(),
    }
}

/// What the last step of a delivery was for, where it was no success.
pub(super) fn cause(view: &View) -> Option<&'static str> {
    match view.shown.delivery.state {
        Life::Dead { cause, .. } | Life::Retry { cause, .. } | Life::Cancelled { cause, .. } => Some(cause.code()),
        _ => None,
    }
}

pub(super) fn waiting(view: &View) -> Option<Waiting> {
    let Some(Explained::Waits(hold)) = view.explained else { return None };
    Some(Waiting { why: hold.why.name(), until: hold.until.map(value::write_time), detail: detail(hold.why) })
}

fn detail(why: Why) -> &'static str {
    match why {
        Why::Scheduled => "its deliver_at has not come",
        Why::Backoff => "the last attempt failed; its policy says when to try again",
        Why::RetryAfter => "the receiver said when to come back",
        Why::RetryBudget => "the endpoint is failing, and retries are kept to a share of its fresh messages",
        Why::BreakerOpen => "the endpoint or its host failed too often; a probe will tell when it is well again",
        Why::RateLimit => "a rate limit, or the pace of a recovery; it goes in its turn",
        Why::Concurrency => "as many attempts as the endpoint can take, or the tenant may have, are under way",
        Why::OffPeak => "engagement messages wait for the off-peak window",
        Why::Order => "one before it in a strict order has not ended",
        Why::Turn => "others are before it",
        Why::Ack => "it was sent, and its receipt is awaited",
        Why::Paused => {
            "it is paused, by somebody or by a dead delivery of a strict order; POST /v1/endpoints/{id}/enable or /v1/resume ends that"
        }
        Why::EndpointDisabled => "its endpoint is disabled; enable it",
        Why::Credential => "its credential was refused; replace it",
        Why::Store => "our store does not answer",
    }
}
