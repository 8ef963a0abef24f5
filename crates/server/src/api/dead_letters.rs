//! Dead letters: lists deliveries that were given up. `GET /v1/deliveries/{id}` shows one with all its attempts, and
//! `POST /v1/replays` sends it again.

use posthaste_core::Timestamp;
use posthaste_store::{DeadLetter, DeadLetterCursor, DeadLetterFilter};

use super::caller::READ;
use super::prelude::*;
use crate::value::TierChoice;

const FILTERS: &[Parameter] = &[
    parameter::<String>("endpoint", "only dead letters of this endpoint, by id or uid"),
    parameter::<String>("cause", "only dead letters with this cause"),
    parameter::<String>("event_type", "only dead letters of this event type"),
    parameter::<TierChoice>("tier", "only dead letters of this tier"),
    parameter::<ApiTime>("since", "only deliveries that died at or after this time"),
    parameter::<ApiTime>("until", "only deliveries that died before this time"),
];

pub(crate) const OPERATIONS: &[Operation] = &[Operation::get("/v1/dead-letters", "Lists dead letters")
    .scope("read")
    .list(FILTERS)
    .returns::<ListPage<DeadLetterView>>(200, "A page of dead letters.")];

/// `GET /v1/dead-letters`. An operator sees those of all tenants, unless it names one.
pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<READ>, uri: Uri) -> Answer {
    let query = ListQuery::of(&uri, FILTERS)?;
    let endpoint = match query.filter("endpoint") {
        Some(named) => Some(api.endpoint_once_named(caller.sees(), named).await?),
        None => None,
    };
    let filter = DeadLetterFilter {
        tenant: caller.sees().tenant(),
        endpoint,
        cause: query.cause()?,
        event_type: query.filter("event_type").map(str::to_owned),
        tier: query.tier()?,
        since: query.time("since")?,
        until: query.time("until")?,
    };
    let list = query.list(&api, caller.sees(), &filter);
    let after = query.place(&api, list)?.map(|(at, number)| DeadLetterCursor { at, number });
    let found = api.engine.dead_letters(filter, query.order, after, query.limit).await?;
    let mut data = Vec::with_capacity(found.letters.len());
    let accepted = api.engine.accepted_at(found.letters.iter().map(|letter| letter.message).collect()).await?;
    for (letter, accepted_at) in found.letters.iter().zip(accepted) {
        data.push(DeadLetterView::of(&api, letter, accepted_at.unwrap_or(letter.at)).await?);
    }
    let next = found.next.and_then(|next| api.engine.cursor(list, next.at, next.number));
    Ok(page(&uri, data, next))
}

#[derive(Serialize, JsonSchema)]
struct DeadLetterView {
    /// The id of the tenant that owns it; null once that is erased.
    tenant: Option<String>,
    /// The delivery that was given up.
    delivery: String,
    message: String,
    endpoint: Option<String>,
    event_type: Option<String>,
    tier: &'static str,
    cause: &'static str,
    attempts: u16,
    dead_at: ApiTime,
    /// Whether it was replayed.
    replayed: bool,
    /// The delivery that replays it.
    replayed_as: Option<String>,
}

impl DeadLetterView {
    async fn of<S: Store, C: Clock>(api: &Api<S, C>, letter: &DeadLetter, accepted_at: Timestamp) -> Result<Self> {
        let endpoint = api.engine.endpoint_once(Visibility::Tenant(letter.tenant), letter.endpoint).await?;
        let id = |kind, key| api.engine.public_id(kind, key, accepted_at);
        Ok(Self {
            tenant: api.engine.tenant_public_id(letter.tenant).await?,
            delivery: id(IdKind::Delivery, letter.delivery.0),
            message: id(IdKind::Message, letter.message.0),
            endpoint: endpoint.map(|known| api.engine.public_id(IdKind::Endpoint, known.id.0, known.at)),
            event_type: letter.event_type.clone(),
            tier: letter.tier.name(),
            cause: letter.cause.code(),
            attempts: letter.attempts,
            dead_at: ApiTime(letter.at),
            replayed: letter.replayed_as.is_some(),
            replayed_as: letter.replayed_as.map(|next| id(IdKind::Delivery, next.0)),
        })
    }
}
