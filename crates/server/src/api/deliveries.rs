//! Deliveries: listed, shown with their attempts and why they wait, and retried at once.

use bytes::Bytes;
use posthaste_core::policy::told_nearest;
use posthaste_core::scheduler::Explained;
use posthaste_core::{Cause, Delivery, DeliveryId, MessageId, Phase, State as Life, TenantId, Timestamp, Why};
use posthaste_engine::engine::ExplainedDelivery;
use posthaste_store::{AttemptRecord, HistoryFilter, HistoryOf, Lives, StoreError};

use super::caller::{READ, REPLAY};
use super::messages::{CONTENT, wants_content};
use super::prelude::*;
use super::{endpoints, switch};
use crate::value::{ApiDuration, TierChoice};

const FILTERS: &[Parameter] = &[
    parameter::<ApiWord<Phase>>("state", "only deliveries in this state"),
    parameter::<String>("endpoint", "only deliveries to this endpoint, by id or uid"),
    parameter::<String>("cause", "only deliveries that ended, or were last tried, with this cause"),
    parameter::<String>("message", "only deliveries of this message"),
    parameter::<TierChoice>("tier", "only deliveries of this tier"),
    parameter::<ApiTime>("since", "only deliveries first due at or after this time"),
    parameter::<ApiTime>("until", "only deliveries first due before this time"),
];

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/deliveries", "Lists deliveries")
        .scope("read")
        .list(FILTERS)
        .returns::<ListPage<ListedDeliveryView>>(200, "A page of deliveries."),
    Operation::get("/v1/deliveries/{id}", "Shows a delivery with all its attempts, and why it waits")
        .scope("read")
        .query(&[parameter::<bool>(
            CONTENT,
            "true: include the receiver's answers; the key then needs the scope privacy too",
        )])
        .returns::<DeliveryView>(200, "The delivery."),
    Operation::post("/v1/deliveries/{id}/retry", "Sends a waiting delivery now instead of at its due time")
        .scope("replay")
        .conflicts()
        .returns::<DeliveryView>(200, "The delivery. Pauses, breakers and rate limits still apply to it."),
];

pub async fn show<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, READ>, uri: Uri) -> Answer {
    let wants_content = wants_content(&uri, &caller)?;
    let unknown = || Problem::no_such("delivery");
    let (key, accepted_at) = api.engine.opened(IdKind::Delivery, &name).ok_or_else(unknown)?;
    let view = api.engine.delivery(caller.sees(), DeliveryId(key)).await?.ok_or_else(unknown)?;
    let excerpts = if wants_content { api.engine.excerpts(DeliveryId(key)).await? } else { Vec::new() };
    shown(&api, caller.sees(), accepted_at, &view, &excerpts).await
}

pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<READ>, uri: Uri) -> Answer {
    let query = ListQuery::of(&uri, FILTERS)?;
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
        let links = DeliveryLinks::of(&api, accepted_at, lives);
        data.push(ListedDeliveryView {
            endpoint: endpoints::public_id(&api, &endpoint),
            attempts: view.shown.attempts.len(),
            delivery: DeliveryFields::of(&api, Some(endpoint.tenant), accepted_at, links, view).await?,
        });
    }
    Ok(page(&uri, data, next.map(|next| api.engine.cursor_behind(list, next.0))))
}

async fn filter<S: Store, C: Clock>(
    api: &Api<S, C>,
    visibility: Visibility,
    query: &ListQuery,
) -> Result<HistoryFilter> {
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
            Visibility::All => HistoryOf::AllTenants,
            Visibility::Tenant(tenant) => HistoryOf::Tenant(tenant),
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

fn state(name: &str) -> Result<Phase> {
    Phase::ALL.iter().copied().find(|phase| phase.name() == name).ok_or_else(|| {
        let names = Phase::ALL.map(Phase::name);
        let detail = format!("state must be one of {}{}", names.join(", "), told_nearest(name, names));
        Problem::new(Code::InvalidParameter, detail)
    })
}

/// `POST /v1/deliveries/{id}/retry`: makes a waiting delivery due now. Gates such as pauses and breakers still hold it.
pub async fn retry<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, REPLAY>, _: EmptyBody) -> Answer {
    let visibility = Visibility::Tenant(caller.tenant_id()?);
    let unknown = || Problem::no_such("delivery");
    let (key, accepted_at) = api.engine.opened(IdKind::Delivery, &name).ok_or_else(unknown)?;
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
    visibility: Visibility,
    accepted_at: Timestamp,
    view: &ExplainedDelivery,
    excerpts: &[(u16, Bytes)],
) -> Answer {
    let whole = whole(api, visibility, accepted_at, view, excerpts).await?;
    if whole.endpoint.is_none() {
        return Err(Problem::no_such("delivery"));
    }
    Ok(json(StatusCode::OK, &whole))
}

/// A delivery with its attempts. Its endpoint is `None` if it no longer exists.
pub(super) async fn whole<S: Store, C: Clock>(
    api: &Api<S, C>,
    visibility: Visibility,
    accepted_at: Timestamp,
    view: &ExplainedDelivery,
    excerpts: &[(u16, Bytes)],
) -> Result<DeliveryView, StoreError> {
    let delivery = &view.shown.delivery;
    let endpoint = api.engine.endpoint_once(visibility, delivery.endpoint).await?;
    let lives = api.engine.lives(vec![delivery.id]).await?.into_iter().next().unwrap_or_default();
    let links = DeliveryLinks::of(api, accepted_at, lives);
    let tenant = endpoint.as_ref().map(|known| known.tenant);
    let attempt = |one: &AttemptRecord| {
        // A receiver's answer need not be UTF-8.
        let excerpt = excerpts.iter().find(|(number, _)| *number == one.number);
        let response = excerpt.map(|(_, excerpt)| String::from_utf8_lossy(excerpt).into_owned());
        AttemptView { response, ..AttemptView::of(one, delivery) }
    };
    let endpoint = endpoint.map(|known| endpoints::public_id(api, &known));
    let attempts = view.shown.attempts.iter().map(attempt).collect();
    let cause_detail = match delivery.state {
        // The receiver's limit is below the number of bytes sent; the answer does not give it.
        Life::Dead { cause: Cause::PayloadTooLarge, .. } => api.engine.bytes_sent(delivery).await?,
        _ => None,
    };
    let cause_detail = cause_detail.map(|bytes| format!("its receiver refused {bytes} bytes: its limit is lower"));
    let fields = DeliveryFields::of(api, tenant, accepted_at, links, view).await?;
    let delivery = DeliveryFields { cause_detail, ..fields };
    Ok(DeliveryView { delivery, endpoint, attempts })
}

/// When a delivery was created, and its links to replays.
#[derive(Serialize, JsonSchema)]
struct DeliveryLinks {
    /// When it was created: with its message, or by a replay.
    created_at: ApiTime,
    /// The ended delivery that this one replays.
    replay_of: Option<String>,
    /// The delivery that replays this one.
    replayed_as: Option<String>,
    /// The replay that created it.
    replay: Option<String>,
}

impl DeliveryLinks {
    fn of<S: Store, C: Clock>(api: &Api<S, C>, accepted_at: Timestamp, lives: Lives) -> Self {
        let Lives { before, next, made } = lives;
        // All of them belong to one message, and their ids carry its time.
        let id = |life: DeliveryId| api.engine.public_id(IdKind::Delivery, life.0, accepted_at);
        let replay = made.and_then(|made| made.asked.map(|at| (made.job, at)));
        Self {
            created_at: ApiTime(made.map_or(accepted_at, |made| made.at)),
            replay_of: before.map(id),
            replayed_as: next.map(id),
            replay: replay.map(|(job, at)| api.engine.public_id(IdKind::Replay, job.0, at)),
        }
    }
}

/// The fields of a delivery in a list and by itself.
#[derive(Serialize, JsonSchema)]
struct DeliveryFields {
    id: String,
    /// The id of the tenant that owns it; null once that is erased.
    tenant: Option<String>,
    message: String,
    tier: &'static str,
    state: ApiWord<Phase>,
    /// Why the last attempt failed, or why it ended without success.
    cause: Option<&'static str>,
    /// Only in the view of one delivery that ended with a 413: how many bytes exceeded the receiver's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause_detail: Option<String>,
    /// When its message was accepted.
    accepted_at: ApiTime,
    #[serde(flatten)]
    links: DeliveryLinks,
    /// When its ttl ends; null without one.
    expires_at: Option<ApiTime>,
    /// When its last attempt began.
    sent_at: Option<ApiTime>,
    delivered_at: Option<ApiTime>,
    /// When it ended without success.
    failed_at: Option<ApiTime>,
    /// Why it waits; null if it does not.
    waiting: Option<WaitingView>,
}

#[derive(Serialize, JsonSchema)]
struct ListedDeliveryView {
    #[serde(flatten)]
    delivery: DeliveryFields,
    endpoint: String,
    /// The number of attempts made.
    attempts: usize,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DeliveryView {
    #[serde(flatten)]
    delivery: DeliveryFields,
    /// null only in an export, if the endpoint no longer exists.
    endpoint: Option<String>,
    attempts: Vec<AttemptView>,
}

#[derive(Serialize, JsonSchema)]
struct AttemptView {
    /// The attempt's number, from 1.
    attempt: u16,
    /// When it began.
    at: ApiTime,
    duration: ApiDuration,
    /// The HTTP status of the receiver's answer; null without an answer.
    status: Option<u16>,
    /// How it ended; docs/causes.md lists the causes.
    cause: &'static str,
    /// Of a failed attempt, with content=true: the first 1,024 bytes of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    /// When the next attempt is due, if that time has not come yet.
    next_due: Option<ApiTime>,
}

/// Why a delivery waits, and until when.
#[derive(Serialize, JsonSchema)]
pub(super) struct WaitingView {
    /// The reason.
    why: ApiWord<Why>,
    /// When the wait ends; null if that is not known.
    until: Option<ApiTime>,
    /// The reason in words.
    detail: String,
}

impl DeliveryFields {
    async fn of<S: Store, C: Clock>(
        api: &Api<S, C>,
        tenant: Option<TenantId>,
        accepted_at: Timestamp,
        links: DeliveryLinks,
        view: &ExplainedDelivery,
    ) -> Result<Self, StoreError> {
        let delivery = &view.shown.delivery;
        let (delivered_at, failed_at) = match delivery.state {
            Life::Delivered { at } => (Some(at), None),
            Life::Dead { at, .. } | Life::Expired { at } | Life::Cancelled { at, .. } => (None, Some(at)),
            _ => (None, None),
        };
        // A delivery's id carries the time of its message's accept, as the message's own does.
        let id = |kind, key| api.engine.public_id(kind, key, accepted_at);
        let sent_at = view.shown.attempts.last().map(started);
        Ok(Self {
            id: id(IdKind::Delivery, delivery.id.0),
            tenant: api.tenant_public_id(tenant).await?,
            message: id(IdKind::Message, delivery.message.0),
            tier: delivery.tier.name(),
            state: ApiWord(phase(view)),
            cause: cause(view),
            cause_detail: None,
            accepted_at: ApiTime(accepted_at),
            links,
            expires_at: delivery.expiry.at().map(ApiTime),
            sent_at: sent_at.map(ApiTime),
            delivered_at: delivered_at.map(ApiTime),
            failed_at: failed_at.map(ApiTime),
            waiting: waiting(view),
        })
    }
}

impl AttemptView {
    fn of(attempt: &AttemptRecord, delivery: &Delivery) -> Self {
        let is_last = attempt.number == delivery.attempts;
        let due = match delivery.state {
            Life::Retry { due, .. } if is_last => Some(due),
            _ => None,
        };
        Self {
            attempt: attempt.number,
            at: ApiTime(started(attempt)),
            duration: ApiDuration(attempt.took),
            status: attempt.status,
            cause: attempt.cause.code(),
            response: None,
            next_due: due.map(ApiTime),
        }
    }
}

/// When an attempt began; the history stores when it ended.
fn started(attempt: &AttemptRecord) -> Timestamp {
    attempt.at - attempt.took
}

/// The phase of a delivery. Only the dispatch loop knows that one is being sent.
pub(super) fn phase(view: &ExplainedDelivery) -> Phase {
    match view.explained {
        Some(Explained::UnderWay) => Phase::Dispatching,
        _ => view.shown.delivery.state.phase(),
    }
}

/// Why the last attempt failed, or why the delivery ended without success.
pub(super) fn cause(view: &ExplainedDelivery) -> Option<&'static str> {
    view.shown.delivery.state.cause().map(Cause::code)
}

pub(super) fn waiting(view: &ExplainedDelivery) -> Option<WaitingView> {
    let Some(Explained::Waits(hold)) = view.explained else { return None };
    let detail = view.paused.as_deref().map_or_else(|| detail(hold.why).to_owned(), switch::detail);
    Some(WaitingView { why: ApiWord(hold.why), until: hold.until.map(ApiTime), detail })
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
