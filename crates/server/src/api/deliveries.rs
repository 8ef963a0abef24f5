//! Deliveries: listed, shown with their attempts and why they wait, and retried at once.

use std::sync::Arc;

use axum::extract::{Request, State};
use bytes::Bytes;
use http::{StatusCode, Uri};
use posthaste_core::Why;
use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, MessageId};
use posthaste_core::policy::told_nearest;
use posthaste_core::scheduler::Explained;
use posthaste_core::state::{Phase, State as Life};
use posthaste_core::time::Timestamp;
use posthaste_crypto::api_key::ApiKeyScope;
use posthaste_crypto::public_id::IdKind;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::{DeliveryView, Sees};
use posthaste_store::{AttemptRecord, HistoryFilter, HistoryOf, Lives, Store, StoreError};
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
        caller.may(ApiKeyScope::Privacy)?;
    }
    let unknown = || Problem::no_such("delivery");
    let (key, accepted_at) = api.engine.opened(IdKind::Delivery, &public_id).ok_or_else(unknown)?;
    let view = api.engine.delivery(caller.sees(), DeliveryId(key)).await?.ok_or_else(unknown)?;
    let excerpts = if wants_content { api.engine.excerpts(DeliveryId(key)).await? } else { Vec::new() };
    shown(&api, caller.sees(), accepted_at, &view, &excerpts).await
}

/// `GET /v1/deliveries`.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<READ>, uri: Uri) -> Answer {
    let query = Asked::of(&uri, &FILTERS)?;
    let filter = filter(&api, caller.sees(), &query).await?;
    let list = query.list(&api, caller.sees(), &filter);
    let after = query.behind(&api, list)?.map(DeliveryId);
    let (mut views, next) = api.engine.deliveries(filter, query.order, after, query.limit).await?;
    // The store cannot filter by `dispatching`: only the dispatch loop knows what is being sent.
    views.retain(|view| filter.phase.is_none_or(|wanted| phase(view) == wanted));
    let accepted = api.engine.accepted_at(views.iter().map(|view| view.shown.delivery.message).collect()).await?;
    let lives = api.engine.lives(views.iter().map(|view| view.shown.delivery.id).collect()).await?;
    let mut data = Vec::with_capacity(views.len());
    for ((view, accepted_at), lives) in views.iter().zip(accepted).zip(lives) {
        let delivery = &view.shown.delivery;
        let accepted_at = accepted_at.unwrap_or(delivery.born);
        let Some(endpoint) = api.engine.endpoint_once(caller.sees(), delivery.endpoint).await? else { continue };
        let id = |kind, key| api.engine.public_id(kind, key, accepted_at);
        let ids = Ids {
            id: id(IdKind::Delivery, delivery.id.0),
            tenant: api.engine.tenant_public_id(endpoint.tenant).await?,
            message: id(IdKind::Message, delivery.message.0),
            endpoint: Some(endpoints::public_id(&api, &endpoint)),
            linked: Linked::of(&api, accepted_at, lives),
        };
        data.push(Shown::of(ids, accepted_at, view, view.shown.attempts.len()));
    }
    Ok(page(&uri, data, next.map(|next| api.engine.cursor_behind(list, next.0))))
}

/// The filter of a list.
async fn filter<S: Store, C: Clock>(
    api: &Api<S, C>,
    visibility: Sees,
    query: &Asked,
) -> Result<HistoryFilter, Problem> {
    let message =
        query.filter("message").map(|id| api.engine.opened(IdKind::Message, id).map(|(key, _)| MessageId(key)));
    let of = match (query.filter("endpoint"), message) {
        (Some(_), Some(_)) => {
            let detail = "filter by message or by endpoint, not by both";
            return Err(Problem::new(Code::InvalidParameter, detail));
        }
        (Some(named), None) => HistoryOf::Endpoint(api.endpoint_once_named(visibility, named).await?),
        (None, Some(message)) => {
            let message = message.ok_or_else(|| Problem::no_such("message"))?;
            if !api.engine.has_message(visibility, message).await? {
                return Err(Problem::no_such("message"));
            }
            HistoryOf::Message(message)
        }
        (None, None) => match visibility {
            Sees::All => HistoryOf::AllTenants,
            Sees::Tenant(tenant) => HistoryOf::Tenant(tenant),
        },
    };
    Ok(HistoryFilter {
        phase: query.filter("state").map(state).transpose()?,
        cause: query.cause()?,
        tier: query.tier()?,
        since: query.time("since")?,
        until: query.time("until")?,
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

/// `POST /v1/deliveries/{id}/retry`: makes a waiting delivery due now. Gates such as pauses and breakers still hold it.
pub async fn retry<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<REPLAY>,
    Named(public_id): Named,
    request: Request,
) -> Answer {
    no_body(request).await?;
    let visibility = Sees::Tenant(caller.tenant_id()?);
    let unknown = || Problem::no_such("delivery");
    let (key, accepted_at) = api.engine.opened(IdKind::Delivery, &public_id).ok_or_else(unknown)?;
    let view = api.engine.retry(visibility, DeliveryId(key), caller.by()).await?.ok_or_else(unknown)?;
    if view.shown.delivery.state.is_terminal() {
        return Err(ended(view.shown.delivery.state));
    }
    shown(&api, visibility, accepted_at, &view, &[]).await
}

/// The refusal to retry a delivery that has ended. Replays take dead and expired ones only.
fn ended(state: Life) -> Problem {
    let name = state.phase().name();
    let remedy = match state {
        Life::Dead { .. } | Life::Expired { .. } => "POST /v1/replays sends it again as a new delivery",
        _ => "a replay would skip it; send its payload as a new message",
    };
    Problem::new(Code::DeliveryEnded, format!("the delivery is {name} and has ended; {remedy}"))
}

/// The answer that shows a delivery with its attempts. One whose endpoint is unknown is answered as not found.
async fn shown<S: Store, C: Clock>(
    api: &Api<S, C>,
    visibility: Sees,
    accepted_at: Timestamp,
    view: &DeliveryView,
    excerpts: &[(u16, Bytes)],
) -> Answer {
    let whole = whole(api, visibility, accepted_at, view, excerpts).await?;
    if whole.endpoint.is_none() {
        return Err(Problem::no_such("delivery"));
    }
    Ok(json(StatusCode::OK, &whole))
}

/// A delivery with its attempts.
pub(super) type Whole = Shown<Vec<ShownAttempt>>;

/// A delivery with its attempts. Its endpoint is `None` if it no longer exists.
pub(super) async fn whole<S: Store, C: Clock>(
    api: &Api<S, C>,
    visibility: Sees,
    accepted_at: Timestamp,
    view: &DeliveryView,
    excerpts: &[(u16, Bytes)],
) -> Result<Whole, StoreError> {
    let delivery = &view.shown.delivery;
    let endpoint = api.engine.endpoint_once(visibility, delivery.endpoint).await?;
    let lives = api.engine.lives(vec![delivery.id]).await?;
    // A delivery's id carries the time of its message's accept, as the message's own does.
    let id = |kind, key| api.engine.public_id(kind, key, accepted_at);
    let ids = Ids {
        id: id(IdKind::Delivery, delivery.id.0),
        tenant: match &endpoint {
            Some(known) => api.engine.tenant_public_id(known.tenant).await?,
            None => None,
        },
        message: id(IdKind::Message, delivery.message.0),
        endpoint: endpoint.map(|known| endpoints::public_id(api, &known)),
        linked: Linked::of(api, accepted_at, lives.into_iter().next().unwrap_or_default()),
    };
    let attempt = |one: &AttemptRecord| {
        // A receiver's answer need not be UTF-8.
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

/// The detail of a 413: the receiver's limit is below the number of bytes sent; the answer does not give it.
fn too_large(bytes: usize) -> String {
    format!("its receiver refused {bytes} bytes: its limit is lower")
}

/// The ids that are shown with a delivery.
struct Ids {
    id: String,
    tenant: Option<String>,
    message: String,
    /// `None` if it no longer exists.
    endpoint: Option<String>,
    linked: Linked,
}

/// A delivery's links to replays.
#[derive(Serialize)]
struct Linked {
    /// When it was created: with its message, or by a replay.
    created_at: String,
    /// The ended delivery that this one replays.
    replay_of: Option<String>,
    /// The delivery that replays this one.
    replayed_as: Option<String>,
    /// The replay that created it.
    replay: Option<String>,
}

impl Linked {
    fn of<S: Store, C: Clock>(api: &Api<S, C>, accepted_at: Timestamp, lives: Lives) -> Self {
        let Lives { before, next, made } = lives;
        // All of them belong to one message, and their ids carry its time.
        let id = |life: DeliveryId| api.engine.public_id(IdKind::Delivery, life.0, accepted_at);
        let replay = made.and_then(|made| made.asked.map(|at| (made.job, at)));
        Self {
            created_at: value::write_time(made.map_or(accepted_at, |made| made.at)),
            replay_of: before.map(id),
            replayed_as: next.map(id),
            replay: replay.map(|(job, at)| api.engine.public_id(IdKind::Replay, job.0, at)),
        }
    }
}

/// A delivery. `attempts` are the attempts themselves, or in a list their number.
#[derive(Serialize)]
pub(super) struct Shown<A> {
    id: String,
    tenant: Option<String>,
    message: String,
    endpoint: Option<String>,
    tier: &'static str,
    state: &'static str,
    cause: Option<&'static str>,
    /// More about the cause than its code; see [`too_large`].
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
    /// The beginning of the receiver's answer to a failed attempt, if the request has `content=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    /// When the next attempt is due; only with the last attempt of a delivery in the state `retry`.
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
    fn of(ids: Ids, accepted_at: Timestamp, view: &DeliveryView, attempts: A) -> Self {
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
    fn of(attempt: &AttemptRecord, delivery: &Delivery) -> Self {
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

/// When an attempt began; the history stores when it ended.
fn started(attempt: &AttemptRecord) -> Timestamp {
    attempt.at - attempt.took
}

/// The phase of a delivery. Only the dispatch loop knows that one is being sent.
pub(super) fn phase(view: &DeliveryView) -> Phase {
    match view.explained {
        Some(Explained::UnderWay) => Phase::Dispatching,
        _ => view.shown.delivery.state.phase(),
    }
}

/// Why the last attempt failed, or why the delivery ended without success.
pub(super) fn cause(view: &DeliveryView) -> Option<&'static str> {
    view.shown.delivery.state.cause().map(Cause::code)
}

pub(super) fn waiting(view: &DeliveryView) -> Option<Waiting> {
    let Some(Explained::Waits(hold)) = view.explained else { return None };
    let detail = view.paused.as_deref().map_or_else(|| detail(hold.why).to_owned(), switch::detail);
    Some(Waiting { why: hold.why.name(), until: hold.until.map(value::write_time), detail })
}

fn detail(why: Why) -> &'static str {
    match why {
        Why::Scheduled => "its deliver_at has not come",
        Why::Backoff => "the last attempt failed; the retry policy sets the time of the next",
        Why::RetryAfter => "the receiver sent a Retry-After",
        Why::RetryBudget => "the endpoint is failing, and retries are limited to a share of its new messages",
        Why::BreakerOpen => "the endpoint or its host failed too often; a probe will show when it has recovered",
        Why::RateLimit => "a rate limit, or the limited rate after a recovery",
        Why::Concurrency => "the endpoint or the tenant has the most attempts under way that it may have",
        Why::OffPeak => "engagement messages wait for the off-peak window",
        Why::Order => "an earlier delivery in a strict order has not ended",
        Why::Turn => "other deliveries are before it",
        Why::Ack => "it was sent, and its receipt is awaited",
        Why::Paused => "it is paused; GET /v1/pause shows the pauses",
        Why::EndpointDisabled => "its endpoint is disabled; enable it",
        Why::Credential => "its credential was refused; replace it",
        Why::Store => "the store does not answer",
    }
}
