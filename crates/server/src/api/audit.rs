//! The audit trail: what happened to deliveries and what operators did, as the journal keeps it, and the signed word
//! on how it ends. `posthaste audit verify` proves that nothing in it was changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::{StatusCode, Uri};
use posthaste_core::cut::Scope;
use posthaste_core::id::{DeliveryId, EndpointId, LaneId, MessageId, TenantId};
use posthaste_core::queue::{BreakerOf, Reset};
use posthaste_core::state::State as Life;
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::Kind;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::Sees;
use posthaste_engine::trail::Span;
use posthaste_store::journal::{Entry, ErasedWhom};
use posthaste_store::{By, DocumentKind, EndpointStatus, JournalRow, OPERATOR, PauseScope, SecretAct, Store};
use serde::Serialize;

use super::caller::{Caller, OPERATE};
use super::list::{Asked, not_ours, page};
use super::{Answer, Api, json, no_parameters, tenants};
use crate::duration;
use crate::problem::{Code, Problem};
use crate::value;

/// Rows of the journal that one request looks at: a row is a commit, and may tell of hundreds of things.
const ROWS_MAX: u32 = 500;
/// And things that they tell of.
const ENTRIES_MAX: u32 = 20_000;

/// What is told of, by name.
const KINDS: [&str; 23] = [
    "opened",
    "accepted",
    "attempted",
    "late",
    "ended",
    "cut",
    "uncut",
    "paused",
    "resumed",
    "breaker_reset",
    "endpoint",
    "secret",
    "spread",
    "job",
    "purged",
    "retained",
    "agreed",
    "document",
    "erased",
    "erasure_done",
    "exported",
    "rotation_begun",
    "rotation_ended",
];

/// `GET /v1/audit`.
pub async fn list<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, caller: Caller<OPERATE>, uri: Uri) -> Answer {
    let asked = Asked::of(&uri, &["kind", "tenant", "since", "until"])?;
    let filter = Filter::of(&api, &asked).await?.within(caller.asks_for())?;
    let list = asked.list(&api, Sees::All, &filter);
    let open = |cursor: &String| api.engine.open_cursor(list, cursor).ok_or_else(not_ours);
    let after = asked.cursor.as_ref().map(open).transpose()?;
    // Where to go on: a row, and how many of its entries were passed already.
    let (from, passed) = after.map_or((None, 0), |(passed, row)| (Some(row), passed.as_millis()));
    let rows = api.engine.trail(filter.span, asked.order, from, ROWS_MAX).await?;
    let (mut data, mut next) = (Vec::new(), None);
    let (mut owners, mut looked) = (Owners::new(), 0);
    'rows: for (nth, row) in rows.iter().enumerate() {
        let skip = if nth == 0 { passed } else { 0 };
        for (at, entry) in (0_i64..).zip(row.entries()) {
            let entry = entry?;
            if at < skip {
                continue;
            }
            if looked == ENTRIES_MAX {
                next = Some((row.number, at));
                break 'rows;
            }
            looked += 1;
            let about = filter.found(&api, &mut owners, &entry).await?;
            let Some(about) = about else { continue };
            if data.len() == asked.limit as usize {
                next = Some((row.number, at));
                break 'rows;
            }
            data.push(Shown::of(&api, row, &entry, about).await?);
        }
    }
    // Rows are left to look at: the last one looked at is looked at again, and all of it passed.
    if next.is_none() && rows.len() == ROWS_MAX as usize {
        next = rows.last().map(|row| (row.number, i64::from(u32::MAX)));
    }
    let next = next.and_then(|(row, passed)| api.engine.cursor(list, Timestamp::from_millis(passed), row));
    Ok(page(&uri, data, next))
}

/// Which entries are asked for.
#[derive(Debug)]
struct Filter<'a> {
    kind: Option<&'a str>,
    tenant: Option<TenantId>,
    span: Span,
}

/// Whose the endpoints are that were met.
type Owners = BTreeMap<EndpointId, Option<TenantId>>;

impl<'a> Filter<'a> {
    async fn of<S: Store, C: Clock>(api: &Api<S, C>, asked: &'a Asked) -> Result<Self, Problem> {
        let kind = asked.filter("kind");
        if let Some(unknown) = kind.filter(|kind| !KINDS.contains(kind)) {
            let detail = format!("kind {unknown:?} is not one of {}", KINDS.join(", "));
            return Err(Problem::new(Code::InvalidParameter, detail));
        }
        let tenant = match asked.filter("tenant") {
            // One that was erased is still spoken of.
            Some(named) => match api.engine.opened(Kind::Tenant, named) {
                Some((key, _)) => Some(TenantId(key)),
                None => Some(tenants::found(api, named).await?.id),
            },
            None => None,
        };
        let span = Span { since: asked.time("since")?, until: asked.time("until")? };
        Ok(Self { kind, tenant, span })
    }

    /// The same of the tenant that the caller names, if it does.
    fn within(self, whose: Sees) -> Result<Self, Problem> {
        match (self.tenant, whose.tenant()) {
            (Some(asked), Some(named)) if asked != named => {
                let detail =
                    "the parameter tenant is not the tenant that Posthaste-Tenant names; leave one of them out";
                Err(Problem::new(Code::InvalidParameter, detail))
            }
            (asked, named) => Ok(Self { tenant: asked.or(named), ..self }),
        }
    }

    /// What an entry is about, if it is asked for.
    async fn found<S: Store, C: Clock>(
        &self,
        api: &Api<S, C>,
        owners: &mut Owners,
        entry: &Entry,
    ) -> Result<Option<About>, Problem> {
        if self.kind.is_some_and(|kind| kind != name(entry)) {
            return Ok(None);
        }
        let mut about = about(entry);
        if let (None, Some(endpoint)) = (about.tenant, about.endpoint) {
            about.tenant = match owners.get(&endpoint) {
                Some(known) => *known,
                None => {
                    let owner = api.engine.owner(endpoint).await?;
                    owners.insert(endpoint, owner);
                    owner
                }
            };
        }
        let is_asked_for = match (self.tenant, about.tenant, about.message) {
            (None, ..) => true,
            (Some(asked), None, Some(message)) => api.engine.has_message(Sees::Tenant(asked), message).await?,
            (Some(asked), owner, _) => owner == Some(asked),
        };
        Ok(is_asked_for.then_some(about))
    }
}

/// `GET /v1/audit/checkpoint`: signed now. Who keeps it elsewhere can tell later whether anything before it changed.
pub async fn checkpoint<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, _: Caller<OPERATE>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let signed = api.engine.checkpoint().await?.ok_or_else(|| Problem::no_such("checkpoint"))?;
    let key = api.engine.checkpoint_key();
    let checkpoint =
        Checkpoint { row: signed.row, line: signed.line, public_key: key.to_string(), public_key_pem: key.to_pem() };
    Ok(json(StatusCode::OK, &checkpoint))
}

#[derive(Serialize)]
struct Checkpoint {
    row: u64,
    line: String,
    public_key: String,
    public_key_pem: String,
}

#[derive(Default, Serialize)]
struct Shown {
    row: u64,
    at: String,
    recorded_at: String,
    kind: &'static str,
    tenant: Option<String>,
    endpoint: Option<String>,
    message: Option<String>,
    delivery: Option<String>,
    what: Option<String>,
    /// The key of whoever did it.
    by: Option<String>,
}

impl Shown {
    async fn of<S: Store, C: Clock>(
        api: &Api<S, C>,
        row: &JournalRow,
        entry: &Entry,
        about: About,
    ) -> Result<Self, Problem> {
        let About { tenant, endpoint, message, delivery, what, by } = about;
        let accepted = match message {
            Some(message) => api.engine.times_of(vec![message]).await?.into_iter().next().flatten(),
            None => None,
        };
        let id = |kind, key| accepted.map(|at| api.engine.public_id(kind, key, at));
        Ok(Self {
            row: row.number,
            at: value::write_time(entry.at().unwrap_or(row.at)),
            recorded_at: value::write_time(row.at),
            kind: name(entry),
            tenant: match tenant {
                Some(tenant) => api.engine.tenant_public_id(tenant).await?,
                None => None,
            },
            endpoint: match endpoint {
                Some(endpoint) => endpoint_id(api, endpoint).await?,
                None => None,
            },
            message: message.and_then(|message| id(Kind::Message, message.0)),
            delivery: delivery.and_then(|delivery| id(Kind::Delivery, delivery.0)),
            what,
            by: by.map(|by| api.engine.public_id(Kind::Key, by.key, by.made)),
        })
    }
}

async fn endpoint_id<S: Store, C: Clock>(api: &Api<S, C>, endpoint: EndpointId) -> Result<Option<String>, Problem> {
    let known = api.engine.endpoint(Sees::All, endpoint).await?;
    Ok(known.map(|known| api.engine.public_id(Kind::Endpoint, known.endpoint.id.0, known.endpoint.at)))
}

/// What an entry is about.
#[derive(Default)]
struct About {
    tenant: Option<TenantId>,
    endpoint: Option<EndpointId>,
    message: Option<MessageId>,
    delivery: Option<DeliveryId>,
    what: Option<String>,
    by: Option<By>,
}

fn about(entry: &Entry) -> About {
    let lane = |lane: &LaneId| Some(lane.endpoint());
    match entry {
        Entry::Accepted { message, tenant, deliveries, .. } => About {
            tenant: Some(*tenant),
            message: Some(*message),
            what: Some(format!("{} deliveries", deliveries.len())),
            ..About::default()
        },
        Entry::Attempted { lane: to, attempt, .. } | Entry::Late { lane: to, attempt, .. } => {
            About { endpoint: lane(to), what: Some(attempt.cause.code().to_owned()), ..About::default() }
        }
        Entry::Ended { delivery, message, lane: to, state, .. } => About {
            endpoint: lane(to),
            message: Some(*message),
            delivery: Some(*delivery),
            what: Some(end(state)),
            ..About::default()
        },
        Entry::Cut { scope, cause, .. } => About { what: Some(cause.code().to_owned()), ..cut(*scope) },
        Entry::Uncut { scope } => cut(*scope),
        Entry::Paused { scope, by, .. } | Entry::Resumed { scope, by } => {
            let about = match scope {
                PauseScope::All => About { what: Some("everything".to_owned()), ..About::default() },
                PauseScope::Tenant(tenant) => About { tenant: Some(*tenant), ..About::default() },
                PauseScope::Lane(to) => About { endpoint: lane(to), ..About::default() },
                PauseScope::Origin(origin) => {
                    About { what: Some(format!("origin_{:016x}", origin.raw())), ..About::default() }
                }
            };
            About { by: *by, ..about }
        }
        Entry::Reset { of, how, by } => About {
            endpoint: match of {
                BreakerOf::Lane(to) => lane(to),
                BreakerOf::Shared(_) => None,
            },
            what: Some(reset(*of, *how)),
            by: *by,
            ..About::default()
        },
        Entry::Endpoint { endpoint, tenant, status } => About {
            tenant: Some(*tenant),
            endpoint: Some(*endpoint),
            what: match status {
                EndpointStatus::Active => None,
                EndpointStatus::Gone => Some("gone".to_owned()),
                EndpointStatus::Disabled(_) => Some("disabled by its receiver".to_owned()),
                EndpointStatus::Deleted => Some("deleted".to_owned()),
            },
            ..About::default()
        },
        Entry::Secret { endpoint, tenant, act } => About {
            tenant: Some(*tenant),
            endpoint: Some(*endpoint),
            what: Some(match act {
                SecretAct::Shown => "shown".to_owned(),
                SecretAct::Rotated => "rotated".to_owned(),
            }),
            ..About::default()
        },
        Entry::Spread { tenant, deliveries, .. } => {
            About { tenant: Some(*tenant), what: Some(format!("{} deliveries", deliveries.len())), ..About::default() }
        }
        Entry::Job { tenant, .. } | Entry::Purged { tenant, .. } => About { tenant: Some(*tenant), ..About::default() },
        Entry::Erased { tenant, whom, by, .. } => {
            let what = match whom {
                ErasedWhom::Tenant => "the tenant",
                ErasedWhom::Subject(_) => "a subject",
            };
            About { tenant: Some(*tenant), what: Some(what.to_owned()), by: *by, ..About::default() }
        }
        Entry::Exported { tenant, by, .. } => {
            About { tenant: Some(*tenant), what: Some("a subject".to_owned()), by: *by, ..About::default() }
        }
        Entry::Retained { removed, tenant, .. } => {
            About { tenant: *tenant, what: Some(format!("{removed} rows")), ..About::default() }
        }
        Entry::Agreed { tenant, own, .. } => {
            let kept = |kept: Option<Duration>| kept.map_or("as everybody's".to_owned(), duration::write);
            let what = format!("payload kept {}, history {}", kept(own.payload), kept(own.history));
            About { tenant: Some(*tenant), what: Some(what), ..About::default() }
        }
        Entry::Document { kind, tenant, removed, .. } => {
            let kind = match kind {
                DocumentKind::Tenant => "a tenant",
                DocumentKind::ApiKey => "an API key",
                DocumentKind::Policy => "a policy",
            };
            let what = if *removed { format!("{kind}, removed") } else { kind.to_owned() };
            About { tenant: Some(*tenant).filter(|tenant| *tenant != OPERATOR), what: Some(what), ..About::default() }
        }
        Entry::ErasureDone { announced, .. } => {
            About { what: Some(format!("announced by row {announced}")), ..About::default() }
        }
        Entry::RotationBegun { to, .. } | Entry::RotationEnded { to, .. } => {
            About { what: Some(format!("to master key {to}")), ..About::default() }
        }
        _ => About::default(),
    }
}

/// What a cut ends.
fn cut(scope: Scope) -> About {
    match scope {
        Scope::Message(message) => About { message: Some(message), ..About::default() },
        Scope::Lane(lane) => About { endpoint: Some(lane.endpoint()), ..About::default() },
    }
}

/// Which breaker, where it is not an endpoint's, and how it was reset.
fn reset(of: BreakerOf, how: Reset) -> String {
    let how = match how {
        Reset::Probe => "a probe goes first",
        Reset::Force => "closed at once",
    };
    match of {
        BreakerOf::Lane(_) => how.to_owned(),
        BreakerOf::Shared(gate) => format!("{}: {how}", super::breakers::shared_id(gate)),
    }
}

fn end(state: &Life) -> String {
    let name = state.phase().name();
    match state {
        Life::Dead { cause, .. } | Life::Cancelled { cause, .. } => format!("{name}: {}", cause.code()),
        _ => name.to_owned(),
    }
}

fn name(entry: &Entry) -> &'static str {
    match entry {
        Entry::Opened { .. } => "opened",
        Entry::Accepted { .. } => "accepted",
        Entry::Attempted { .. } => "attempted",
        Entry::Late { .. } => "late",
        Entry::Ended { .. } => "ended",
        Entry::Cut { .. } => "cut",
        Entry::Uncut { .. } => "uncut",
        Entry::Paused { .. } => "paused",
        Entry::Resumed { .. } => "resumed",
        Entry::Reset { .. } => "breaker_reset",
        Entry::Endpoint { .. } => "endpoint",
        Entry::Secret { .. } => "secret",
        Entry::Spread { .. } => "spread",
        Entry::Job { .. } => "job",
        Entry::Purged { .. } => "purged",
        Entry::Retained { .. } => "retained",
        Entry::Agreed { .. } => "agreed",
        Entry::Document { .. } => "document",
        Entry::Erased { .. } => "erased",
        Entry::ErasureDone { .. } => "erasure_done",
        Entry::Exported { .. } => "exported",
        Entry::RotationBegun { .. } => "rotation_begun",
        Entry::RotationEnded { .. } => "rotation_ended",
    }
}
