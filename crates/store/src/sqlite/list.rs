//! Lists of messages and deliveries. A filter without an index is applied while a table is walked in its own order, a
//! bounded part at a time: a page says where the next one continues.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use posthaste_core::{DeliveryId, MessageId, TenantId, Timestamp};
use rusqlite::{Connection, Row};

use super::{
    DELIVERY_COLUMNS, Vault, delivery, delivery_columns, derived, get, key, prepare, show, stored_key, stored_tier,
};
use crate::{
    HISTORY_LOOKED_MAX, HistoryFilter, HistoryOf, HistoryPage, LISTED_LOOKED_MAX, ListOrder, ListedMessage,
    MessageFilter, MessagePage, StoreError,
};

/// How long one request may read: reader threads are few, and other reads wait.
const LOOK_WITHIN: Duration = Duration::from_millis(50);
/// The cost, in rows, of finding the state of a pending delivery: cuts and erasures are looked up.
const STATE_LOOKS: u32 = 10;
/// The cost, in rows, of reading a delivery with its attempts, or of opening a message.
pub(super) const WHOLE_LOOKS: u32 = 20;

macro_rules! newest_and_oldest {
    ($newest:ident, $oldest:ident, $($select:expr, $from:literal);+) => {
        const $newest: &str =
            concat!(newest_and_oldest!(@join " WHERE id < ?1", $($select, $from);+), " ORDER BY id DESC LIMIT ?2");
        const $oldest: &str =
            concat!(newest_and_oldest!(@join " WHERE id > ?1", $($select, $from);+), " ORDER BY id LIMIT ?2");
    };
    (@join $where:literal, $first:expr, $one:literal; $second:expr, $other:literal) => {
        concat!("SELECT ", $first, " FROM ", $one, $where, " UNION ALL SELECT ", $second, " FROM ", $other, $where)
    };
}

newest_and_oldest!(
    NEWEST_DELIVERIES,
    OLDEST_DELIVERIES,
    concat!(delivery_columns!("due_ms"), ", 1"), "delivery";
    concat!(delivery_columns!("ended_ms"), ", 0"), "outcome"
);
newest_and_oldest!(
    NEWEST_MESSAGES,
    OLDEST_MESSAGES,
    "id, tenant, at_ms, tier, event_type, head", "message";
    "id, tenant, at_ms, tier, event_type, head", "kept"
);
const ONE_MESSAGE: &str = "SELECT id, tenant, at_ms, tier, event_type, head FROM message WHERE id = ?1
     UNION ALL SELECT id, tenant, at_ms, tier, event_type, head FROM kept WHERE id = ?1";

/// A page of matching deliveries, ordered by id.
pub(super) fn history(
    conn: &Connection,
    filter: &HistoryFilter,
    order: ListOrder,
    after: Option<DeliveryId>,
    limit: u32,
    now: Timestamp,
) -> Result<HistoryPage, StoreError> {
    let ids = match filter.of {
        HistoryOf::Endpoint(endpoint) => derived::endpoint_deliveries(conn, endpoint, order, after)?,
        HistoryOf::Message(message) => show::ids_of_message(conn, message, order, after, HISTORY_LOOKED_MAX + 1)?,
        HistoryOf::Tenant(_) | HistoryOf::AllTenants => return walk(conn, filter, order, after, limit, now),
    };
    let mut page = HistoryPage::default();
    for (looked, id) in ids.into_iter().enumerate() {
        if looked == HISTORY_LOOKED_MAX as usize || page.deliveries.len() == limit as usize {
            return Ok(page);
        }
        page.next = Some(id);
        page.deliveries.extend(show::read(conn, id, now)?.filter(|shown| filter.matches(shown)));
    }
    page.next = None;
    Ok(page)
}

/// Walks all deliveries, for filters that span many endpoints.
fn walk(
    conn: &Connection,
    filter: &HistoryFilter,
    order: ListOrder,
    after: Option<DeliveryId>,
    limit: u32,
    now: Timestamp,
) -> Result<HistoryPage, StoreError> {
    let sql = if order == ListOrder::NewestFirst { NEWEST_DELIVERIES } else { OLDEST_DELIVERIES };
    let mut sql = prepare(conn, "list deliveries", sql)?;
    let from = derived::beyond(order, after.map(|id| key(id.0)));
    let mut rows = sql.query((from, LISTED_LOOKED_MAX + 1))?;
    let (mut page, mut owners, mut budget) = (HistoryPage::default(), BTreeMap::new(), ReadBudget::new());
    while let Some(row) = rows.next()? {
        if budget.is_spent() || page.deliveries.len() == limit as usize {
            return Ok(page);
        }
        budget.looks += 1;
        let found = delivery(row)?;
        page.next = Some(found.id);
        let is_owned = match filter.of {
            HistoryOf::Tenant(tenant) => derived::owner(conn, &mut owners, found.endpoint)? == tenant,
            _ => true,
        };
        if !is_owned || !filter.may_match(&found) {
            continue;
        }
        // Only the state of a pending delivery must be computed: an outcome's row has it.
        let is_pending = get::<bool>(row, DELIVERY_COLUMNS)?;
        if is_pending {
            budget.looks += STATE_LOOKS;
        } else if filter.phase.is_some_and(|phase| found.state.phase() != phase) {
            continue;
        }
        budget.looks += WHOLE_LOOKS;
        page.deliveries.extend(show::read(conn, found.id, now)?.filter(|shown| filter.matches(shown)));
    }
    page.next = None;
    Ok(page)
}

/// A page of matching messages, ordered by id.
pub(super) fn messages(
    conn: &Connection,
    vault: &Vault,
    filter: &MessageFilter,
    order: ListOrder,
    after: Option<MessageId>,
    limit: u32,
) -> Result<MessagePage, StoreError> {
    let event_type = EventType::asked(conn, vault, filter.event_type.as_deref());
    let mut look = Look { conn, vault, filter, event_type, budget: ReadBudget::new() };
    if let (Some(tenant), Some(name)) = (filter.tenant, &filter.name) {
        let Some(hidden) = vault.hide(conn, tenant, name)? else { return Ok(MessagePage::default()) };
        let named = derived::named(conn, hidden, order, after, limit)?;
        let mut page = MessagePage { messages: Vec::new(), next: named.next };
        for id in named.messages {
            page.messages.extend(look.one(id)?);
        }
        return Ok(page);
    }
    let sql = if order == ListOrder::NewestFirst { NEWEST_MESSAGES } else { OLDEST_MESSAGES };
    let mut sql = prepare(conn, "list messages", sql)?;
    let from = derived::beyond(order, after.map(|id| key(id.0)));
    let mut rows = sql.query((from, LISTED_LOOKED_MAX + 1))?;
    let mut page = MessagePage::default();
    while let Some(row) = rows.next()? {
        if look.budget.is_spent() || page.messages.len() == limit as usize {
            return Ok(page);
        }
        page.next = Some(MessageId(stored_key(get(row, 0)?)?));
        page.messages.extend(look.at(row)?);
    }
    page.next = None;
    Ok(page)
}

/// Reads messages for a list, with its filter and budget.
struct Look<'a> {
    conn: &'a Connection,
    vault: &'a Vault,
    filter: &'a MessageFilter,
    event_type: EventType<'a>,
    budget: ReadBudget,
}

/// Bounds one request, by rows and by time.
pub(super) struct ReadBudget {
    pub(super) looks: u32,
    began: Instant,
}

impl ReadBudget {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a read takes is measured; only the length of its page depends on it"
    )]
    pub(super) fn new() -> Self {
        Self { looks: 0, began: Instant::now() }
    }

    /// Whether the request must end its page. The time counts only after some rows, so that each page makes progress
    /// also on a slow machine.
    pub(super) fn is_spent(&self) -> bool {
        let took_long = || self.looks > LISTED_LOOKED_MAX / 100 && self.began.elapsed() > LOOK_WITHIN;
        self.looks >= LISTED_LOOKED_MAX || took_long()
    }
}

impl Look<'_> {
    /// One message by id, if it exists and matches.
    fn one(&mut self, id: MessageId) -> Result<Option<ListedMessage>, StoreError> {
        Ok(prepare(self.conn, "list messages", ONE_MESSAGE)?.read([key(id.0)], |row| self.at(row))?.flatten())
    }

    /// The message in a row, if it matches and can be opened.
    fn at(&mut self, row: &Row<'_>) -> Result<Option<ListedMessage>, StoreError> {
        self.budget.looks += 1;
        let tenant = TenantId(stored_key(get(row, 1)?)?);
        let (at, tier) = (Timestamp::from_millis(get(row, 2)?), stored_tier(get(row, 3)?)?);
        let event_type: Option<String> = get(row, 4)?;
        if !self.filter.matches(tenant, tier, at) || !self.event_type.is(tenant, event_type.as_deref())? {
            return Ok(None);
        }
        self.budget.looks += WHOLE_LOOKS;
        let id = MessageId(stored_key(get(row, 0)?)?);
        self.vault.open_listed(self.conn, (tenant, id), &get::<Vec<u8>>(row, 5)?)
    }
}

/// A filter by event type, if there is one, sealed for each tenant as its rows have it.
pub(super) struct EventType<'a> {
    conn: &'a Connection,
    vault: &'a Vault,
    wanted: Option<&'a str>,
    sealed: BTreeMap<TenantId, Option<String>>,
}

impl<'a> EventType<'a> {
    pub(super) fn asked(conn: &'a Connection, vault: &'a Vault, wanted: Option<&'a str>) -> Self {
        Self { conn, vault, wanted, sealed: BTreeMap::new() }
    }

    pub(super) fn is(&mut self, tenant: TenantId, stored: Option<&str>) -> Result<bool, StoreError> {
        let Some(wanted) = self.wanted else { return Ok(true) };
        let Some(stored) = stored else { return Ok(false) };
        if !self.sealed.contains_key(&tenant) {
            self.sealed.insert(tenant, self.vault.seal_event_type(self.conn, tenant, wanted)?);
        }
        Ok(self.sealed.get(&tenant).is_some_and(|sealed| sealed.as_deref() == Some(stored)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::fixture::plan;

    #[test]
    fn lists_walk_the_primary_keys_without_sorting() {
        for sql in [NEWEST_DELIVERIES, OLDEST_DELIVERIES, NEWEST_MESSAGES, OLDEST_MESSAGES] {
            let plan = plan(sql);
            assert!(plan.contains("MERGE (UNION ALL)"), "{plan}");
            assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN"), "{plan}");
        }
    }
}
