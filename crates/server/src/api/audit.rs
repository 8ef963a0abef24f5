//! The audit trail: the journal's entries about deliveries and operators, and signed checkpoints of it.
//! `posthaste audit verify` proves that no entry was changed. `audit/about.rs` describes single entries.

mod about;

use std::collections::BTreeMap;

use posthaste_core::{EndpointId, Key, TenantId, Timestamp};
use posthaste_engine::trail::TrailRange;
use posthaste_store::JournalRow;
use posthaste_store::journal::{EntryKind, JournalEntry};

use super::caller::OPERATE;
use super::prelude::*;
use super::{endpoints, tenants};
use about::{About, NamedObject, about};

/// The most journal rows that one request reads: a row is a commit, and can have hundreds of entries.
const ROWS_MAX: u32 = 500;
/// The most entries that one request reads.
const ENTRIES_MAX: u32 = 20_000;

const FILTERS: &[Parameter] = &[
    parameter::<ApiWord<EntryKind>>("kind", "only entries of this kind"),
    parameter::<String>("tenant", "only entries known to be about this tenant, by id or uid"),
    parameter::<String>("by", "only entries of requests with this API key, by id; also a revoked one"),
    parameter::<ApiTime>("since", "only entries recorded at or after this time"),
    parameter::<ApiTime>("until", "only entries recorded before this time"),
];

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/audit", "Lists the entries of the audit trail")
        .scope("operate")
        .list(FILTERS)
        .returns::<ListPage<AuditEntryView>>(200, "A page of entries."),
    Operation::get("/v1/audit/checkpoint", "Signs a checkpoint of the audit trail up to now")
        .scope("operate")
        .returns::<CheckpointView>(200, "The checkpoint."),
];

pub async fn list<S: Store, C: Clock>(State(api): ApiRef<S, C>, caller: Caller<OPERATE>, uri: Uri) -> Answer {
    let query = ListQuery::of(&uri, FILTERS)?;
    let filter = Filter::of(&api, &query).await?.within(caller.asks_for())?;
    let list = query.list(&api, Visibility::All, &filter);
    let after = query.place(&api, list)?;
    // Where the page begins: a row, and how many of its entries earlier pages have passed.
    let (from, passed) = after.map_or((None, 0), |(passed, row)| (Some(row), passed.as_millis()));
    let rows = api.engine.trail(filter.span, query.order, from, ROWS_MAX).await?;
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
            if data.len() == query.limit as usize {
                next = Some((row.number, at));
                break 'rows;
            }
            data.push(AuditEntryView::of(&api, row, &entry, about).await?);
        }
    }
    // More rows may follow: the next page reads the last row again and skips all of its entries.
    if next.is_none() && rows.len() == ROWS_MAX as usize {
        next = rows.last().map(|row| (row.number, i64::from(u32::MAX)));
    }
    let next = next.and_then(|(row, passed)| api.engine.cursor(list, Timestamp::from_millis(passed), row));
    Ok(page(&uri, data, next))
}

/// The filters of a request.
#[derive(Debug)]
struct Filter {
    kind: Option<EntryKind>,
    tenant: Option<TenantId>,
    by: Option<Key>,
    span: TrailRange,
}

/// The tenants of the endpoints met so far; `None` for an endpoint that is unknown.
type Owners = BTreeMap<EndpointId, Option<TenantId>>;

impl Filter {
    async fn of<S: Store, C: Clock>(api: &Api<S, C>, query: &ListQuery) -> Result<Self> {
        let refused = |detail: String| Problem::new(Code::InvalidParameter, detail);
        let kind = |named: &str| {
            let all = || EntryKind::ALL.map(EntryKind::name).join(", ");
            EntryKind::named(named).ok_or_else(|| refused(format!("kind {named:?} is not one of {}", all())))
        };
        let kind = query.filter("kind").map(kind).transpose()?;
        // A revoked key is a valid filter too.
        let key = |named: &str| api.engine.opened(IdKind::Key, named).map(|(key, _)| key);
        let by = |named: &str| key(named).ok_or_else(|| refused("by must be the id of an API key, key_…".to_owned()));
        let by = query.filter("by").map(by).transpose()?;
        let tenant = match query.filter("tenant") {
            // An erased tenant is a valid filter too.
            Some(named) => match api.engine.opened(IdKind::Tenant, named) {
                Some((key, _)) => Some(TenantId(key)),
                None => Some(tenants::found(api, named).await?.id),
            },
            None => None,
        };
        let span = TrailRange { since: query.time("since")?, until: query.time("until")? };
        Ok(Self { kind, tenant, by, span })
    }

    /// Limits the filter to the tenant of `Posthaste-Tenant`, if that is sent.
    fn within(self, visibility: Visibility) -> Result<Self> {
        match (self.tenant, visibility.tenant()) {
            (Some(filtered), Some(named)) if filtered != named => {
                let detail =
                    "the parameter tenant is not the tenant that Posthaste-Tenant names; leave one of them out";
                Err(Problem::new(Code::InvalidParameter, detail))
            }
            (filtered, named) => Ok(Self { tenant: filtered.or(named), ..self }),
        }
    }

    /// What an entry is about, if it matches the filter.
    async fn found<S: Store, C: Clock>(
        &self,
        api: &Api<S, C>,
        owners: &mut Owners,
        entry: &JournalEntry,
    ) -> Result<Option<About>> {
        let is_other = self.kind.is_some_and(|kind| kind != entry.kind());
        if is_other || self.by.is_some_and(|by| entry.by().is_none_or(|who| who.key != by)) {
            return Ok(None);
        }
        let mut about = about(entry);
        if let Some(lane) = about.lane {
            about.endpoint = api.engine.endpoint_of_lane(lane).await?.map(|endpoint| endpoint.id);
        }
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
        let is_included = match (self.tenant, about.tenant, about.message) {
            (None, ..) => true,
            (Some(wanted), None, Some(message)) => api.engine.has_message(Visibility::Tenant(wanted), message).await?,
            (Some(wanted), owner, _) => owner == Some(wanted),
        };
        Ok(is_included.then_some(about))
    }
}

/// `GET /v1/audit/checkpoint`: signs a checkpoint now. A copy kept elsewhere reveals any later change of what precedes
/// it.
pub async fn checkpoint<S: Store, C: Clock>(State(api): ApiRef<S, C>, _: Caller<OPERATE>, uri: Uri) -> Answer {
    no_parameters(&uri)?;
    let signed = api.engine.checkpoint().await?.ok_or_else(|| Problem::no_such("checkpoint"))?;
    let key = api.engine.checkpoint_key();
    let checkpoint = CheckpointView {
        row: signed.row,
        line: signed.line,
        public_key: key.to_string(),
        public_key_pem: key.to_pem(),
    };
    Ok(json(StatusCode::OK, &checkpoint))
}

#[derive(Serialize, JsonSchema)]
struct CheckpointView {
    /// The last journal row that the checkpoint covers; it covers all rows before it too.
    row: u64,
    /// The signed checkpoint; keep it on another machine for posthaste audit verify.
    line: String,
    /// The public key that verifies it.
    public_key: String,
    /// The public key as PEM.
    public_key_pem: String,
}

#[derive(Serialize, JsonSchema)]
struct AuditEntryView {
    /// The journal row that contains the entry; there is one row for each commit.
    row: u64,
    /// When it happened.
    at: ApiTime,
    /// The time of the journal row; never earlier than that of an earlier row.
    recorded_at: ApiTime,
    /// The kind of event.
    kind: ApiWord<EntryKind>,
    tenant: Option<String>,
    endpoint: Option<String>,
    /// null once the message is no longer stored.
    message: Option<String>,
    /// null once its message is no longer stored.
    delivery: Option<String>,
    /// The id of the API key, tenant, replay or origin that it is about; a policy's name while the policy exists.
    id: Option<String>,
    /// More about the event in a few words, such as made, changed or revoked.
    what: Option<String>,
    /// The id of the API key that caused it; null if the server did it by itself, or needs no keys.
    by: Option<String>,
}

impl AuditEntryView {
    async fn of<S: Store, C: Clock>(
        api: &Api<S, C>,
        row: &JournalRow,
        entry: &JournalEntry,
        about: About,
    ) -> Result<Self> {
        let About { tenant, endpoint, message, delivery, named, what, .. } = about;
        let accepted = match message {
            Some(message) => api.engine.accepted_at(vec![message]).await?.into_iter().next().flatten(),
            None => None,
        };
        // A deleted endpoint still has its id.
        let endpoint = match endpoint {
            Some(endpoint) => api.engine.endpoint_once(Visibility::All, endpoint).await?,
            None => None,
        };
        let id = |kind, key| accepted.map(|at| api.engine.public_id(kind, key, at));
        let named = match named {
            Some(NamedObject::Made(kind, key, at)) => Some(api.engine.public_id(kind, key, at)),
            Some(NamedObject::Policy(key)) => api.engine.policy_name(key).await?,
            Some(NamedObject::Gate(gate)) => Some(super::breakers::shared_id(gate)),
            None => None,
        };
        Ok(Self {
            row: row.number,
            at: ApiTime(entry.at()),
            recorded_at: ApiTime(row.at),
            kind: ApiWord(entry.kind()),
            tenant: api.tenant_public_id(tenant).await?,
            endpoint: endpoint.map(|known| endpoints::public_id(api, &known)),
            message: message.and_then(|message| id(IdKind::Message, message.0)),
            delivery: delivery.and_then(|delivery| id(IdKind::Delivery, delivery.0)),
            id: named,
            what,
            by: entry.by().map(|by| api.engine.public_id(IdKind::Key, by.key, by.made)),
        })
    }
}
