//! Messages: taking them in, showing where they are, and ending what was not sent. A message's way begins here:
//! [`send`] parses, `engine::accept` makes it durable, and only then is it promised with a `202`.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use posthaste_core::id::MessageId;
use posthaste_core::state::State as Life;
use posthaste_crypto::public_id::Kind;
use posthaste_engine::accept::{NewMessage, Once, Outcome, Promise};
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::{Sees, View};
use posthaste_store::{FirstAnswer, Message, Store};
use serde::Serialize;

use super::caller::{Caller, READ, REPLAY, SEND};
use super::deliveries::{self, Waiting};
use super::idempotency::{keyed_body, replayed};
use super::{Answer, Api, Named, json, json_bytes, new_message, no_body, no_parameters, tenants};
use crate::problem::Problem;
use crate::value;

/// `POST /v1/messages`.
pub async fn send<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<SEND>,
    request: Request,
) -> Answer {
    let tenant = caller.tenant()?;
    let (body, key) = keyed_body(tenant.id, request).await?;
    let once = key.map(|(key, digest)| Once { key, digest, answer });
    let new = NewMessage { once, ..new_message::read(&api, tenant.id, &body)? };
    api.engine.take_from_quota(tenant).map_err(|until| tenants::over_quota(until, api.engine.now()))?;
    Ok(match api.engine.accept(new).await? {
        Outcome::Promised(promise) => json_bytes(StatusCode::ACCEPTED, answer(&promise).body),
        Outcome::Replayed(first) => replayed(first),
    })
}

/// What a message that was accepted is answered.
pub(super) fn answer(promise: &Promise) -> FirstAnswer {
    let body = serde_json::to_vec(&Accepted::of(promise)).expect("our own answers always serialise");
    FirstAnswer { status: StatusCode::ACCEPTED.as_u16(), body: body.into() }
}

/// `GET /v1/messages/{id}`: where it is, and the id of each of its deliveries.
pub async fn show<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ>,
    Named(id): Named,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    let unknown = || Problem::no_such("message");
    let key = api.engine.opened(Kind::Message, &id).map(|(key, _)| MessageId(key)).ok_or_else(unknown)?;
    let (message, views) = api.engine.message(caller.sees(), key).await?.ok_or_else(unknown)?;
    let mut deliveries = Vec::with_capacity(views.len());
    for view in &views {
        deliveries.push(ShownDelivery::of(&api, caller.sees(), &message, view).await?);
    }
    let states = views.iter().map(|view| view.shown.delivery.state);
    Ok(json(
        StatusCode::OK,
        &Shown {
            id: &id,
            event_type: message.event_type.as_deref(),
            correlation_id: message.correlation_id.as_deref().unwrap_or(&id),
            accepted_at: value::write_time(message.at),
            state: sum(states),
            deliveries,
        },
    ))
}

/// `POST /v1/messages/{id}/cancel`.
pub async fn cancel<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<REPLAY>,
    Named(id): Named,
    request: Request,
) -> Answer {
    no_body(request).await?;
    let unknown = || Problem::no_such("message");
    let id = api.engine.opened(Kind::Message, &id).map(|(key, _)| MessageId(key)).ok_or_else(unknown)?;
    let (ended, in_flight) = api.engine.cancel(caller.sees(), id).await?.ok_or_else(unknown)?;
    Ok(json(StatusCode::OK, &Ended { ended, in_flight }))
}

#[derive(Serialize)]
struct Accepted<'a> {
    id: &'a str,
    correlation_id: &'a str,
    accepted_at: String,
    expires_at: Option<String>,
    deliveries: Option<usize>,
    notes: Vec<&'static str>,
}

impl<'a> Accepted<'a> {
    fn of(promise: &'a Promise) -> Self {
        let notes = match promise.deliveries {
            Some(0) => vec!["no endpoint wants this event: nothing will be sent"],
            Some(_) => Vec::new(),
            None => vec!["many endpoints want this event: its deliveries are made one after the other"],
        };
        Self {
            id: &promise.public_id,
            correlation_id: &promise.correlation_id,
            accepted_at: value::write_time(promise.accepted_at),
            expires_at: promise.expires_at.map(value::write_time),
            deliveries: promise.deliveries,
            notes,
        }
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    id: &'a str,
    event_type: Option<&'a str>,
    correlation_id: &'a str,
    accepted_at: String,
    state: &'static str,
    deliveries: Vec<ShownDelivery>,
}

/// A delivery in short; its own route shows every attempt.
#[derive(Serialize)]
struct ShownDelivery {
    id: String,
    endpoint: Option<String>,
    state: &'static str,
    cause: Option<&'static str>,
    attempts: u16,
    waiting: Option<Waiting>,
}

impl ShownDelivery {
    async fn of<S: Store, C: Clock>(
        api: &Api<S, C>,
        whose: Sees,
        message: &Message,
        view: &View,
    ) -> Result<Self, Problem> {
        let delivery = &view.shown.delivery;
        let endpoint = api.engine.endpoint(whose, delivery.lane.endpoint()).await?;
        let endpoint =
            endpoint.map(|known| api.engine.public_id(Kind::Endpoint, known.endpoint.id.0, known.endpoint.at));
        Ok(Self {
            id: api.engine.public_id(Kind::Delivery, delivery.id.0, message.at),
            endpoint,
            state: deliveries::phase(view).name(),
            cause: deliveries::cause(view),
            attempts: delivery.attempts,
            waiting: deliveries::waiting(view),
        })
    }
}

/// What the states of its deliveries make of a message. One for nobody has reached everybody.
fn sum(states: impl Iterator<Item = Life>) -> &'static str {
    let (mut all, mut delivered, mut expired, mut cancelled) = (0_usize, 0, 0, 0);
    for state in states {
        match state {
            Life::Delivered { .. } => delivered += 1,
            Life::Expired { .. } => expired += 1,
            Life::Cancelled { .. } => cancelled += 1,
            Life::Dead { .. } => {}
            _ => return "pending",
        }
        all += 1;
    }
    match all {
        _ if delivered == all => "delivered",
        _ if delivered > 0 => "partly",
        _ if expired == all => "expired",
        _ if cancelled == all => "cancelled",
        _ => "failed",
    }
}

#[derive(Serialize)]
struct Ended {
    ended: u64,
    in_flight: u64,
}

#[cfg(test)]
mod tests {
    use posthaste_core::cause::Cause;
    use posthaste_core::time::Timestamp;

    use super::*;

    #[test]
    fn a_message_is_what_its_deliveries_are_together() {
        let at = Timestamp::from_millis(0);
        let delivered = Life::Delivered { at };
        let dead = Life::Dead { at, cause: Cause::NotFound };
        let expired = Life::Expired { at };
        let cancelled = Life::Cancelled { at, cause: Cause::Cancelled };
        let cases: [(&[Life], &str); 9] = [
            (&[], "delivered"),
            (&[delivered, delivered], "delivered"),
            (&[delivered, Life::Queued { due: at }], "pending"),
            (&[dead, Life::Retry { due: at, cause: Cause::Unavailable }], "pending"),
            (&[delivered, dead], "partly"),
            (&[dead, expired], "failed"),
            (&[expired, cancelled], "failed"),
            (&[expired, expired], "expired"),
            (&[cancelled], "cancelled"),
        ];
        for (states, expected) in cases {
            assert_eq!(sum(states.iter().copied()), expected, "{states:?}");
        }
    }
}
