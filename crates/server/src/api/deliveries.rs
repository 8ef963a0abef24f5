//! Deliveries: listed by every filter, and one: where it is, every attempt, why it waits, and the way to hurry it.

use std::sync::Arc;

use axum::extract::{Request, State};
use bytes::Bytes;
use http::{StatusCode, Uri};
use posthaste_core::Why;
use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, MessageId};
use posthaste_core::policy::told_nearest;
use posthaste_core::queue::Explained;
use posthaste_core::state::{Phase, State as Life};
use posthaste_core::time::Timestamp;
use posthaste_crypto::api_key::Scope;
use posthaste_crypto::public_id::Kind;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::{Sees, View};
use posthaste_store::{Attempt, HistoryFilter, HistoryOf, Lives, Store, StoreError};
use serde::Serialize;

use super::caller::{Caller, READ, REPLAY};
use super::list::{Asked, page};
use super::messages::content;
use super::{Answer, Api, Named, endpoints, json, no_body, switch};
use crate::problem::{Code, Problem};
use crate::{duration, value};

const FILTERS: [&str; 7] = ["state", "endpoint", "cause", "message", "tier", "since", "until"];

/// `GET /v1/deliveries/{id}`.
pub async fn show<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<READ>,
    Named(public_id): Named,
    uri: Uri,
) -> Answer {
    let wants_content = content(&uri)?;
    if wants_content {
        caller.may(Scope::Privacy)?;
    }
    let unknown = || Problem::no_such("delivery");
    let (key, accepted_at) = api.engine.opened(Kind::Delivery, &public_id).ok_or_else(unknown)?;
    let view = api.engine.delivery(caller.sees(), DeliveryId(key)).await?.ok_or_else(unknown)?;
    let excerpts = if wants_content { api.engine.excerpts(DeliveryId(key)).await? } else { Vec::new() };
    shown(&api, caller.sees(), accepted_at, &view, &excerpts).await
}

/// `GET /v1/deliveries`.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<READ>, uri: Uri) -> Answer {
    let asked = Asked::of(&uri, &FILTERS)?;
    let filter = filter(&api, caller.sees(), &asked).await?;
    let list = asked.list(&api, caller.sees(), &filter);
    let after = asked.behind(&api, list)?.map(DeliveryId);
    let (mut views, next) = api.engine.deliveries(filter, asked.order, after, asked.limit).await?;
    // Only the loop knows what is being sent.
    views.retain(|view| filter.phase.is_none_or(|asked| phase(view) == asked));
    let accepted = api.engine.accepted_at(views.iter().map(|view| view.shown.delivery.message).collect()).await?;
    let lives = api.engine.lives(views.iter().map(|view| view.shown.delivery.id).collect()).await?;
    let mut data = Vec::with_capacity(views.len());
    for ((view, accepted_at), lives) in views.iter().zip(accepted).zip(lives) {
        let delivery = &view.shown.delivery;
        let accepted_at = accepted_at.unwrap_or(delivery.born);
        let Some(endpoint) = api.engine.endpoint_once(caller.sees(), delivery.endpoint).await? else { continue };
        let id = |kind, key| api.engine.public_id(kind, key, accepted_at);
        let ids = Ids {
            id: id(Kind::Delivery, delivery.id.0),
            tenant: api.engine.tenant_public_id(endpoint.tenant).await?,
            message: id(Kind::Message, delivery.message.0),
            endpoint: Some(endpoints::public_id(&api, &endpoint)),
            linked: Linked::of(&api, accepted_at, lives),
        };
        data.push(Shown::of(ids, accepted_at, view, view.shown.attempts.len()));
    }
    Ok(page(&uri, data, next.map(|next| api.engine.cursor_behind(list, next.0))))
}

/// Which deliveries a list asks for.
async fn filter<S: Store, C: Clock>(api: &Api<S, C>, whose: Sees, asked: &Asked) -> Result<HistoryFilter, Problem> {
    let message = asked.filter("message").map(|id| api.engine.opened(Kind::Message, id).map(|(key, _)| MessageId(key)));
    let of = match (asked.filter("endpoint"), message) {
        (Some(_), Some(_)) => {
            let detail = "ask for the deliveries of a message or of an endpoint, not for both";
            return Err(Problem::new(Code::InvalidParameter, detail));
        }
        (Some(named), None) => HistoryOf::Endpoint(api.endpoint_once_named(whose, named).await?),
        (None, Some(message)) => {
            let message = message.ok_or_else(|| Problem::no_such("message"))?;
            if !api.engine.has_message(whose, message).await? {
                return Err(Problem::no_such("message"));
            }
            HistoryOf::Message(message)
        }
        (None, None) => match whose {
            Sees::All => HistoryOf::Everybody,
            Sees::Tenant(tenant) => HistoryOf::Tenant(tenant),
        },
    };
    Ok(HistoryFilter {
        phase: asked.filter("state").map(state).transpose()?,
        cause: asked.cause()?,
        tier: asked.tier()?,
        since: asked.time("since")?,
        until: asked.time("until")?,
        ..HistoryFilter::all(of)
    })
}

fn state(name: &str) -> Result<Phase, Problem> {
    Phase::ALL.iter().copied().find(|phase| phase.name() == name).ok_or_else(|| {
        let names = Phase::ALL.map(Phase::name);
        let detail = format!("state must be one of {}{}", names.join(", "), told_nearest(name, names));
        Problem::new(Code::InvalidParameter, detail)
    })
}

/// `POST /v1/deliveries/{id}/retry`: now, whatever the schedule says; the gates still hold.
pub async fn retry<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<REPLAY>,
    Named(public_id): Named,
    request: Request,
) -> Answer {
    no_body(request).await?;
    let whose = Sees::Tenant(caller.tenant_id()?);
    let unknown = || Problem::no_such("delivery");
    let (key, accepted_at) = api.engine.opened(Kind::Delivery, &public_id).ok_or_else(unknown)?;
    let view = api.engine.retry(whose, DeliveryId(key), caller.by()).await?.ok_or_else(unknown)?;
    if view.shown.delivery.state.is_terminal() {
        return Err(ended(view.shown.delivery.state));
    }
    shown(&api, whose, accepted_at, &view, &[]).await
}

/// What is told of one that has ended: replays take what was not delivered, unless somebody wanted that.
fn ended(state: Life) -> Problem {
    let name = state.phase().name();
    let then = match state {
        Life::Dead { .. } | Life::Expired { .. } => "POST /v1/replays gives it another life",
        _ => "a replay would pass over it; send its payload as a new message",
    };
    Problem::new(Code::DeliveryEnded, format!("the delivery is {name}, and that is an end; {then}"))
}

/// One delivery with everything that is known of it.
async fn shown<S: Store, C: Clock>(
    api: &Api<S, C>,
    whose: Sees,
    accepted_at: Timestamp,
    view: &View,
    excerpts: &[(u16, Bytes)],
) -> Answer {
    let whole = whole(api, whose, accepted_at, view, excerpts).await?;
    if whole.endpoint.is_none() {
        return Err(Problem::no_such("delivery"));
    }
    Ok(json(StatusCode::OK, &whole))
}

/// A delivery with its attempts.
pub(super) type Whole = Shown<Vec<ShownAttempt>>;

/// The same, also where its endpoint is gone.
pub(super) async fn whole<S: Store, C: Clock>(
    api: &Api<S, C>,
    whose: Sees,
    accepted_at: Timestamp,
    view: &View,
    excerpts: &[(u16, Bytes)],
) -> Result<Whole, StoreError> {
    let delivery = &view.shown.delivery;
    let endpoint = api.engine.endpoint_once(whose, delivery.endpoint).await?;
    let lives = api.engine.lives(vec![delivery.id]).await?;
    // A delivery's id carries the time of its message's accept, as the message's own does.
    let id = |kind, key| api.engine.public_id(kind, key, accepted_at);
    let ids = Ids {
        id: id(Kind::Delivery, delivery.id.0),
        tenant: match &endpoint {
            Some(known) => api.engine.tenant_public_id(known.tenant).await?,
            None => None,
        },
        message: id(Kind::Message, delivery.message.0),
        endpoint: endpoint.map(|known| endpoints::public_id(api, &known)),
        linked: Linked::of(api, accepted_at, lives.into_iter().next().unwrap_or_default()),
    };
    let attempt = |one: &Attempt| {
        // What a receiver answers is no more to be trusted to be text than to be anything else.
        let excerpt = excerpts.iter().find(|(number, _)| *number == one.number);
        let response = excerpt.map(|(_, excerpt)| String::from_utf8_lossy(excerpt).into_owned());
        ShownAttempt { response, ..ShownAttempt::of(one, delivery) }
    };
    let attempts = view.shown.attempts.iter().map(attempt).collect();
    let cause_detail = match delivery.state {
        Life::Dead { cause: Cause::PayloadTooLarge, .. } => api.engine.bytes_sent(delivery).await?.map(too_large),
        _ => None,
    };
    Ok(Shown { cause_detail, ..Shown::of(ids, accepted_at, view, attempts) })
}

/// A receiver that answers 413 does not say where its limit is; what it refused is above it.
fn too_large(bytes: usize) -> String {
    format!("its receiver refused {bytes} bytes: its limit is lower")
}

/// The ids of a delivery and of what it joins.
struct Ids {
    id: String,
    tenant: Option<String>,
    message: String,
    /// Nothing where it is gone.
    endpoint: Option<String>,
    linked: Linked,
}

/// What replays have to do with a delivery.
#[derive(Serialize)]
struct Linked {
    /// When it was made: with its message, or by a replay.
    created_at: String,
    /// Whose next life it is.
    replay_of: Option<String>,
    /// Its own next life.
    replayed_as: Option<String>,
    /// The replay that made it.
    replay: Option<String>,
}

impl Linked {
    fn of<S: Store, C: Clock>(api: &Api<S, C>, accepted_at: Timestamp, lives: Lives) -> Self {
        let Lives { before, next, made } = lives;
        // All lives are of one message, whose time their ids carry.
        let id = |life: DeliveryId| api.engine.public_id(Kind::Delivery, life.0, accepted_at);
        let asked = made.and_then(|made| made.asked.map(|asked| (made.job, asked)));
        Self {
            created_at: value::write_time(made.map_or(accepted_at, |made| made.at)),
            replay_of: before.map(id),
            replayed_as: next.map(id),
            replay: asked.map(|(job, asked)| api.engine.public_id(Kind::Replay, job.0, asked)),
        }
    }
}

/// A delivery: alone with its attempts, in a list with how many there were.
#[derive(Serialize)]
pub(super) struct Shown<A> {
    id: String,
    tenant: Option<String>,
    message: String,
    endpoint: Option<String>,
    tier: &'static str,
    state: &'static str,
    cause: Option<&'static str>,
    /// What the cause alone does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause_detail: Option<String>,
    accepted_at: String,
    #[serde(flatten)]
    linked: Linked,
    expires_at: Option<String>,
    sent_at: Option<String>,
    delivered_at: Option<String>,
    failed_at: Option<String>,
    attempts: A,
    waiting: Option<Waiting>,
}

#[derive(Serialize)]
pub(super) struct ShownAttempt {
    attempt: u16,
    at: String,
    duration: String,
    status: Option<u16>,
    cause: &'static str,
    /// How the receiver's answer begins, where it was no success and content is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    /// When the next one is due, while that is ahead.
    next_due: Option<String>,
}

/// Why a delivery waits, and until when.
#[derive(Serialize)]
pub(super) struct Waiting {
    why: &'static str,
    until: Option<String>,
    detail: String,
}

impl<A> Shown<A> {
    fn of(ids: Ids, accepted_at: Timestamp, view: &View, attempts: A) -> Self {
        let Ids { id, tenant, message, endpoint, linked } = ids;
        let delivery = &view.shown.delivery;
        let (delivered_at, failed_at) = match delivery.state {
            Life::Delivered { at } => (Some(at), None),
            Life::Dead { at, .. } | Life::Expired { at } | Life::Cancelled { at, .. } => (None, Some(at)),
            _ => (None, None),
        };
        let sent_at = view.shown.attempts.last().map(started);
        Self {
            id,
            tenant,
            message,
            endpoint,
            tier: delivery.tier.name(),
            state: phase(view).name(),
            cause: cause(view),
            cause_detail: None,
            accepted_at: value::write_time(accepted_at),
            linked,
            expires_at: delivery.expiry.at().map(value::write_time),
            sent_at: sent_at.map(value::write_time),
            delivered_at: delivered_at.map(value::write_time),
            failed_at: failed_at.map(value::write_time),
            attempts,
            waiting: waiting(view),
        }
    }
}

impl ShownAttempt {
    fn of(attempt: &Attempt, delivery: &Delivery) -> Self {
        let is_last = attempt.number == delivery.attempts;
        let due = match delivery.state {
            Life::Retry { due, .. } if is_last => Some(due),
            _ => None,
        };
        Self {
            attempt: attempt.number,
            at: value::write_time(started(attempt)),
            duration: duration::write(attempt.took),
            status: attempt.status,
            cause: attempt.cause.code(),
            response: None,
            next_due: due.map(value::write_time),
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
    view.shown.delivery.state.cause().map(Cause::code)
}

pub(super) fn waiting(view: &View) -> Option<Waiting> {
    let Some(Explained::Waits(hold)) = view.explained else { return None };
    let detail = view.paused.as_deref().map_or_else(|| detail(hold.why).to_owned(), switch::detail);
    Some(Waiting { why: hold.why.name(), until: hold.until.map(value::write_time), detail })
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
        Why::Paused => "it is paused; GET /v1/pause shows by whom",
        Why::EndpointDisabled => "its endpoint is disabled; enable it",
        Why::Credential => "its credential was refused; replace it",
        Why::Store => "our store does not answer",
    }
}
