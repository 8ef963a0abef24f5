//! Dead letters: deliveries that were given up, found by every filter. One of them is shown with all its attempts by
//! `GET /v1/deliveries/{id}`, and given another life by `POST /v1/replays`.

use std::sync::Arc;

use axum::extract::State;
use http::Uri;
use posthaste_core::cause::Cause;
use posthaste_core::id::TenantId;
use posthaste_core::policy::nearest;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::Kind;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::Sees;
use posthaste_store::{DeadLetter, DeadLetterCursor, DeadLetterFilter, Store};
use serde::Serialize;

use super::caller::{Caller, READ};
use super::list::{Asked, not_ours, page};
use super::{Answer, Api};
use crate::problem::{Code, Problem};
use crate::value;

const FILTERS: [&str; 6] = ["endpoint", "cause", "event_type", "tier", "since", "until"];

/// `GET /v1/dead-letters`.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<READ>, uri: Uri) -> Answer {
    let asked = Asked::of(&uri, &FILTERS)?;
    let tenant = caller.tenant_id()?;
    let filter = filter(&api, tenant, &asked).await?;
    let list = api.engine.list_id(tenant, &format!("dead letters {filter:?} {:?}", asked.order));
    let open = |cursor: &String| api.engine.open_cursor(list, cursor).ok_or_else(not_ours);
    let after = asked.cursor.as_ref().map(open).transpose()?;
    let after = after.map(|(at, number)| DeadLetterCursor { at, number });
    let found = api.engine.dead_letters(filter, asked.order, after, asked.limit).await?;
    let mut data = Vec::with_capacity(found.letters.len());
    let accepted = api.engine.accepted_at(&found.letters).await?;
    for (letter, accepted_at) in found.letters.iter().zip(accepted) {
        data.push(Shown::of(&api, letter, accepted_at.unwrap_or(letter.at)).await?);
    }
    let next = found.next.and_then(|next| api.engine.cursor(list, next.at, next.number));
    Ok(page(&uri, data, next))
}

/// Which dead letters a list asks for.
async fn filter<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: TenantId,
    asked: &Asked,
) -> Result<DeadLetterFilter, Problem> {
    let bad = |name: &str, detail: String| Problem::new(Code::InvalidParameter, format!("{name} {detail}"));
    let mut filter = DeadLetterFilter::of(tenant);
    if let Some(id) = asked.filter("endpoint") {
        let known = match api.endpoint_id(id) {
            Some(id) => api.engine.endpoint(Sees::Tenant(tenant), id).await?,
            None => None,
        };
        filter.endpoint = Some(known.ok_or_else(|| Problem::no_such("endpoint"))?.endpoint.id);
    }
    let cause = asked.filter("cause").map(|code| cause(code).map_err(|detail| bad("cause", detail)));
    filter.cause = cause.transpose()?;
    filter.event_type = asked.filter("event_type").map(str::to_owned);
    let tier = asked.filter("tier").map(|name| {
        let names = Tier::ALL.map(Tier::name).join(", ");
        Tier::parse(name).ok_or_else(|| bad("tier", format!("must be 1, 2, 3 or one of {names}")))
    });
    filter.tier = tier.transpose()?;
    filter.since = time(asked, "since")?;
    filter.until = time(asked, "until")?;
    Ok(filter)
}

/// The cause of this code.
pub(super) fn cause(code: &str) -> Result<Cause, String> {
    let known = Cause::ALL.iter().find(|entry| entry.code == code).map(|entry| entry.cause);
    known.ok_or_else(|| match nearest(code, Cause::ALL.iter().map(|entry| entry.code)) {
        Some(nearest) => format!("is not one; the nearest is {nearest}"),
        None => "is not one; docs/causes.md lists them".to_owned(),
    })
}

fn time(asked: &Asked, name: &'static str) -> Result<Option<Timestamp>, Problem> {
    let parse = |text: &str| {
        let read = text.parse::<jiff::Timestamp>().ok().map(|at| Timestamp::from_millis(at.as_millisecond()));
        let detail = format!("{name} must be a time such as 2026-12-01T08:00:00Z");
        read.ok_or_else(|| Problem::new(Code::InvalidParameter, detail))
    };
    asked.filter(name).map(parse).transpose()
}

#[derive(Serialize)]
struct Shown {
    delivery: String,
    message: String,
    endpoint: Option<String>,
    event_type: Option<String>,
    tier: &'static str,
    cause: &'static str,
    attempts: u16,
    dead_at: String,
    replayed: bool,
}

impl Shown {
    async fn of<S: Store, C: Clock>(
        api: &Api<S, C>,
        letter: &DeadLetter,
        accepted_at: Timestamp,
    ) -> Result<Self, Problem> {
        let endpoint = api.engine.endpoint(Sees::Tenant(letter.tenant), letter.endpoint).await?;
        let id = |kind, key| api.engine.public_id(kind, key, accepted_at);
        Ok(Self {
            delivery: id(Kind::Delivery, letter.delivery.0),
            message: id(Kind::Message, letter.message.0),
            endpoint: endpoint
                .map(|known| api.engine.public_id(Kind::Endpoint, known.endpoint.id.0, known.endpoint.at)),
            event_type: letter.event_type.clone(),
            tier: letter.tier.name(),
            cause: letter.cause.code(),
            attempts: letter.attempts,
            dead_at: value::write_time(letter.at),
            replayed: letter.replayed_as.is_some(),
        })
    }
}
