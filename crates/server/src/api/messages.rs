//! Messages: accepted, listed, shown and cancelled.
//!
//! [`send`] is where a message enters: it parses the request, `engine::accept` stores it durably, and only then it
//! answers `202`. The fields are parsed in `new_message`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use posthaste_core::{Audience, Expiry, JobId, LaneId, MessageId, Phase, State as Life};
use posthaste_crypto::api_key::ApiKeyScope;
use posthaste_engine::accept::{IdempotencyRequest, NewMessage, PromisedMessage};
use posthaste_engine::engine::ExplainedDelivery;
use posthaste_store::{DeliveryJob, FirstAnswer, JobState, ListedMessage, Message, MessageFilter, Name, StoreError};
use serde_json::value::RawValue;

use super::caller::{READ, REPLAY, SEND};
use super::deliveries::{self, WaitingView};
use super::idempotency::{first_answer, keyed_body, made};
use super::new_message::NewMessageBody;
use super::prelude::*;
use super::{new_message, parameters, quota};
use crate::value::{ApiDuration, ChosenName, TierChoice};

/// The path that accepts messages.
pub(super) const PATH: &str = "/v1/messages";

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::post(PATH, "Sends a message")
        .scope("send")
        .body::<NewMessageBody>()
        .keyed()
        .limited()
        .returns::<AcceptedView<'_>>(202, "The message is stored durably and will be delivered."),
    Operation::get(PATH, "Lists messages")
        .scope("read")
        .list(FILTERS)
        .returns::<ListPage<ListedMessageView>>(200, "A page of messages."),
    Operation::get("/v1/messages/{id}", "Shows a message and the state of its deliveries")
        .scope("read")
        .query(&[parameter::<bool>(CONTENT, "true: include the payload; the key then needs the scope privacy too")])
        .returns::<MessageView>(200, "The message."),
    Operation::post("/v1/messages/{id}/cancel", "Cancels the deliveries of a message that are not sent yet")
        .scope("replay")
        .returns::<CancellationView>(200, "The message is cancelled."),
];

pub async fn send<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<SEND>, request: Request) -> Answer {
    let tenant = caller.tenant()?;
    let (body, key) = keyed_body(tenant.id, request).await?;
    let once = key.map(|(key, digest)| IdempotencyRequest { key, digest, answer });
    let mut fields = BodyObject::read(&body)?;
    let new = NewMessageBody::read(&mut fields);
    let new = NewMessage { once, ..new_message::parse(&api, tenant, new, fields)? };
    drop(body);
    let allowance = quota::take(&api, tenant)?;
    let mut response = made(api.engine.accept(new).await?, answer);
    quota::tell(&mut response, allowance);
    Ok(response)
}

pub(super) fn answer(promise: &PromisedMessage) -> FirstAnswer {
    first_answer(StatusCode::ACCEPTED, &AcceptedView::of(promise))
}

const FILTERS: &[Parameter] = &[
    parameter::<String>("event_type", "only messages of this event type"),
    parameter::<TierChoice>("tier", "only messages of this tier"),
    parameter::<String>("subject", "only messages about this subject"),
    parameter::<String>("correlation_id", "only messages with this correlation id"),
    parameter::<ApiTime>("since", "only messages accepted at or after this time"),
    parameter::<ApiTime>("until", "only messages accepted before this time"),
];

/// The parameter by which the answer includes what is confidential, if the key has the scope for it.
pub(super) const CONTENT: &str = "content";

pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<READ>, uri: Uri) -> Answer {
    let query = ListQuery::of(&uri, FILTERS)?;
    let name = match (query.filter("subject"), query.filter("correlation_id")) {
        (Some(_), Some(_)) => {
            let detail = "ask for a subject or a correlation_id, not for both";
            return Err(Problem::new(Code::InvalidParameter, detail));
        }
        (Some(subject), None) => Some(Name::Subject(subject.to_owned())),
        (None, Some(correlation)) => Some(Name::Correlation(correlation.to_owned())),
        (None, None) => None,
    };
    // Subjects and correlation ids belong to a tenant, so filtering by one needs a tenant.
    let tenant = if name.is_some() { Some(caller.tenant_id()?) } else { caller.sees().tenant() };
    // A message without a correlation id shows its own id as one, so a list filtered by that id must find it.
    let own = match &name {
        Some(Name::Correlation(id)) => api.engine.opened(IdKind::Message, id).map(|(key, _)| MessageId(key)),
        _ => None,
    };
    let filter = MessageFilter {
        tenant,
        name,
        event_type: query.filter("event_type").map(str::to_owned),
        tier: query.tier()?,
        since: query.time("since")?,
        until: query.time("until")?,
    };
    let list = query.list(&api, caller.sees(), &filter);
    let after = query.behind(&api, list)?.map(MessageId);
    let found = api.engine.messages(filter, query.order, after, query.limit).await?;
    let mut data = Vec::with_capacity(found.messages.len());
    for message in &found.messages {
        data.push(ListedMessageView::of(&api, message).await?);
    }
    if let Some(own) = own.filter(|_| after.is_none())
        && let Some((message, _)) = api.engine.message(caller.sees(), own).await?
        && message.correlation_id.is_none()
    {
        data.push(ListedMessageView::of(&api, &ListedMessage::of(&message)).await?);
    }
    Ok(page(&uri, data, found.next.map(|next| api.engine.cursor_behind(list, next.0))))
}

pub async fn show<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, READ>, uri: Uri) -> Answer {
    let wants_content = wants_content(&uri, &caller)?;
    let unknown = || Problem::no_such("message");
    let key = api.engine.opened(IdKind::Message, &name).map(|(key, _)| MessageId(key)).ok_or_else(unknown)?;
    let (message, views) = api.engine.message(caller.sees(), key).await?.ok_or_else(unknown)?;
    let job = api.engine.job(caller.sees(), JobId(key.0)).await?;
    // A replayed delivery comes after the one it replays. The last of each lane counts for the message's state; the
    // number of lanes is the number of deliveries without replays.
    let life = |view: &ExplainedDelivery| (view.shown.delivery.lane, view.shown.delivery.state);
    let lives: BTreeMap<LaneId, Life> = views.iter().map(life).collect();
    let fanout = FanoutView::of(job.as_ref(), lives.len());
    let mut deliveries = Vec::with_capacity(views.len());
    for view in &views {
        deliveries.push(MessageDeliveryView::of(&api, caller.sees(), &message, view).await?);
    }
    let state = if fanout.state.0 == JobState::Running { "pending" } else { sum(lives.into_values()) };
    let content = if wants_content { ContentView::of(&message) } else { ContentView::default() };
    let listed = ListedMessageView::of(&api, &ListedMessage::of(&message)).await?;
    let to = message.details.as_ref().and_then(|details| AddresseesView::of(&details.audience, &deliveries));
    Ok(json(StatusCode::OK, &MessageView { listed, to, state, deliveries, fanout, content }))
}

/// Parses the parameter `content`: whether the answer includes what is confidential, which needs another scope too.
pub(super) fn wants_content<const SCOPE: u8>(uri: &Uri, caller: &Caller<SCOPE>) -> Result<bool> {
    match parameters(uri, &[CONTENT])?.first().map(|(_, given)| given.as_str()) {
        None | Some("false") => Ok(false),
        Some("true") => caller.may(ApiKeyScope::Privacy).map(|()| true),
        Some(_) => Err(Problem::new(Code::InvalidParameter, "content must be true or false")),
    }
}

pub async fn cancel<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, REPLAY>, _: EmptyBody) -> Answer {
    let tenant = caller.tenant_id()?;
    let unknown = || Problem::no_such("message");
    let id = api.engine.opened(IdKind::Message, &name).map(|(key, _)| MessageId(key)).ok_or_else(unknown)?;
    let (ended, in_flight) =
        api.engine.cancel(Visibility::Tenant(tenant), id, caller.by()).await?.ok_or_else(unknown)?;
    Ok(json(StatusCode::OK, &CancellationView { ended, in_flight }))
}

#[derive(Serialize, JsonSchema)]
pub(super) struct AcceptedView<'a> {
    /// The message's id.
    id: &'a str,
    correlation_id: &'a str,
    /// When it was stored durably.
    accepted_at: ApiTime,
    /// When its ttl ends; null without one.
    expires_at: Option<ApiTime>,
    /// The number of endpoints it goes to; null while they are still being looked up.
    deliveries: Option<usize>,
    /// Warnings, such as that no endpoint wants the event type.
    notes: Vec<Cow<'static, str>>,
}

impl<'a> AcceptedView<'a> {
    fn of(promise: &'a PromisedMessage) -> Self {
        Self {
            id: &promise.public_id,
            correlation_id: &promise.correlation_id,
            accepted_at: ApiTime(promise.accepted_at),
            expires_at: promise.expires_at.map(ApiTime),
            deliveries: promise.deliveries,
            notes: notes(promise),
        }
    }
}

/// Warnings for the producer of a message; mostly there are none.
fn notes(promise: &PromisedMessage) -> Vec<Cow<'static, str>> {
    let mut notes = Vec::new();
    match promise.deliveries {
        Some(0) => notes.push("no endpoint wants this event: nothing will be sent".into()),
        Some(_) => {}
        None => notes.push("many endpoints want this event: its deliveries are created one after the other".into()),
    }
    if let (Some(all), outlasted @ 1..) = (promise.deliveries, promise.outlasted) {
        let note = format!(
            "the retry policy of {outlasted} of its {all} endpoints outlasts the TTL: a delivery that has not arrived \
             by then expires before all its attempts are made"
        );
        notes.push(note.into());
    }
    if promise.was_due {
        notes.push("deliver_at is in the past: it is sent at once".into());
    }
    notes
}

/// A message without its deliveries.
#[derive(Serialize, JsonSchema)]
struct ListedMessageView {
    id: String,
    /// The id of the tenant that owns it; null once that is erased.
    tenant: Option<String>,
    event_type: Option<String>,
    correlation_id: String,
    /// The person or thing whose data it is.
    subject: Option<String>,
    tier: &'static str,
    labels: BTreeMap<String, String>,
    region: Option<String>,
    cost_center: Option<String>,
    accepted_at: ApiTime,
    /// The earliest time to send it.
    deliver_at: Option<ApiTime>,
    /// How long it is tried.
    ttl: Option<ApiDuration>,
    /// When its own ttl ends. A ttl of an endpoint is shown with its deliveries.
    expires_at: Option<ApiTime>,
}

impl ListedMessageView {
    async fn of<S: Store, C: Clock>(api: &Api<S, C>, message: &ListedMessage) -> Result<Self, StoreError> {
        let id = api.engine.public_id(IdKind::Message, message.id.0, message.at);
        let details = message.details.as_deref().cloned().unwrap_or_default();
        let born = details.deliver_at.map_or(message.at, |at| at.max(message.at));
        Ok(Self {
            deliver_at: details.deliver_at.map(ApiTime),
            ttl: details.ttl.map(ApiDuration),
            expires_at: Expiry::from_ttl(born, details.ttl).at().map(ApiTime),
            tenant: api.engine.tenant_public_id(message.tenant).await?,
            event_type: message.event_type.clone(),
            correlation_id: message.correlation_id.clone().unwrap_or_else(|| id.clone()),
            subject: message.subject.clone(),
            tier: message.tier.name(),
            labels: details.labels.into_iter().collect(),
            region: details.region,
            cost_center: details.cost_center,
            accepted_at: ApiTime(message.at),
            id,
        })
    }
}

#[derive(Serialize, JsonSchema)]
struct MessageView {
    #[serde(flatten)]
    listed: ListedMessageView,
    /// The endpoints that the producer addressed; null if it gave no `to`.
    to: Option<AddresseesView>,
    /// Sums up the last delivery to each endpoint.
    #[schemars(extend("enum" = STATES))]
    state: &'static str,
    /// The first 1,000; GET /v1/deliveries?message= lists all.
    deliveries: Vec<MessageDeliveryView>,
    /// The progress of creating its deliveries.
    fanout: FanoutView,
    #[serde(flatten)]
    content: ContentView,
}

/// The states of a message.
const STATES: [&str; 6] = ["pending", "delivered", "partly", "failed", "expired", "cancelled"];

/// The endpoints that a producer addressed.
#[derive(Serialize, JsonSchema)]
struct AddresseesView {
    /// The endpoints named, as far as deliveries to them are still stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<Vec<String>>,
    subjects: Vec<String>,
    #[schemars(with = "Vec<ChosenName>")]
    tags: Vec<String>,
    /// Every endpoint, regardless of its event_types.
    all: bool,
}

impl AddresseesView {
    fn of(audience: &Audience, deliveries: &[MessageDeliveryView]) -> Option<Self> {
        let Audience { subjects, tags, all, named } = audience.clone();
        let endpoints = named.then(|| {
            let mut named: Vec<String> = deliveries.iter().filter_map(|delivery| delivery.endpoint.clone()).collect();
            named.sort_unstable();
            named.dedup();
            named
        });
        (*audience != Audience::default()).then_some(Self { endpoints, subjects, tags, all })
    }
}

/// A message in an export; its deliveries are lines of their own.
#[derive(Serialize, JsonSchema)]
pub(super) struct HeldMessageView {
    #[serde(flatten)]
    listed: ListedMessageView,
    #[schemars(required)]
    payload: Option<Box<RawValue>>,
    /// The smaller payload, if the message has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    compact: Option<Box<RawValue>>,
}

impl HeldMessageView {
    pub(super) async fn of<S: Store, C: Clock>(api: &Api<S, C>, message: &Message) -> Result<Self, StoreError> {
        let ContentView { payload, compact } = ContentView::of(message);
        Ok(Self { listed: ListedMessageView::of(api, &ListedMessage::of(message)).await?, payload, compact })
    }
}

/// The payloads of a message; empty unless the request asks for them.
#[derive(Default, Serialize, JsonSchema)]
struct ContentView {
    /// Only with content=true.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// Only with content=true.
    #[serde(skip_serializing_if = "Option::is_none")]
    compact: Option<Box<RawValue>>,
}

impl ContentView {
    fn of(message: &Message) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let raw = |bytes: &[u8]| text(bytes).and_then(|text| RawValue::from_string(text).ok());
        Self { payload: raw(&message.body), compact: message.compact.as_deref().and_then(raw) }
    }
}

/// The progress of creating a message's deliveries.
#[derive(Serialize, JsonSchema)]
struct FanoutView {
    /// Deliveries created, replays not counted.
    done: u64,
    /// Deliveries to create; null while that is not known.
    total: Option<u64>,
    state: ApiWord<JobState>,
}

impl FanoutView {
    /// The progress of the job; without a job all deliveries were created with the message.
    fn of(job: Option<&DeliveryJob>, deliveries: usize) -> Self {
        let Some(job) = job else {
            return Self { done: deliveries as u64, total: Some(deliveries as u64), state: ApiWord(JobState::Done) };
        };
        Self { done: job.made, total: (job.state == JobState::Done).then_some(job.made), state: ApiWord(job.state) }
    }
}

/// A delivery without its attempts, which its own route shows.
#[derive(Serialize, JsonSchema)]
struct MessageDeliveryView {
    id: String,
    endpoint: Option<String>,
    state: ApiWord<Phase>,
    /// Why the last attempt failed, or why it ended without success.
    cause: Option<&'static str>,
    /// The number of attempts made.
    attempts: u16,
    /// Why it waits; null if it does not.
    waiting: Option<WaitingView>,
}

impl MessageDeliveryView {
    async fn of<S: Store, C: Clock>(
        api: &Api<S, C>,
        visibility: Visibility,
        message: &Message,
        view: &ExplainedDelivery,
    ) -> Result<Self> {
        let delivery = &view.shown.delivery;
        let endpoint = api.engine.endpoint_once(visibility, delivery.endpoint).await?;
        let endpoint = endpoint.map(|known| api.engine.public_id(IdKind::Endpoint, known.id.0, known.at));
        Ok(Self {
            id: api.engine.public_id(IdKind::Delivery, delivery.id.0, message.at),
            endpoint,
            state: ApiWord(deliveries::phase(view)),
            cause: deliveries::cause(view),
            attempts: delivery.attempts,
            waiting: deliveries::waiting(view),
        })
    }
}

/// The state of a message from the states of its deliveries. A message without deliveries is delivered.
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

#[derive(Serialize, JsonSchema)]
struct CancellationView {
    /// The number of deliveries ended; they are never sent.
    ended: u64,
    /// The number of deliveries being sent; they may still arrive.
    in_flight: u64,
}

#[cfg(test)]
mod tests {
    use posthaste_core::{Cause, Timestamp};

    use super::*;

    #[test]
    fn a_message_s_state_sums_up_its_deliveries() {
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
