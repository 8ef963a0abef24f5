//! The tables derived from the journal: written in slices by the follower, and read together with
//! the tail, the part of the journal that is not followed yet.
//!
//! Each count has the last row of the journal that it includes, so that a slice written twice counts once, and a reader
//! knows which rows to add. An index may have entries of rows after `followed`; a reader counts an entry it finds both
//! there and in the tail once.

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::{DeliveryId, EndpointId, LaneId, MessageId, TenantId, Tier};
use rusqlite::Connection;

use super::{Then, counted_number, get, journal, key, prepare, stored_counted, stored_key, tier_number};
use crate::derived::{Depth, Derived, DerivedFact, NameKind, Only};
use crate::journal::Hidden;
use crate::{
    CountedEvent, HISTORY_LOOKED_MAX, HourlyCount, LaneBacklog, ListOrder, NamedPage, PendingCounts, StoreError,
    UtcHour,
};

/// Some of the facts derived from a batch of rows of the journal.
pub(super) struct FactSlice {
    pub(super) facts: Vec<DerivedFact>,
    pub(super) to: u64,
    pub(super) is_last: bool,
}

/// How far the journal is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Followed {
    /// The last row that is followed completely.
    pub(super) followed: u64,
    /// The last row of a batch that is under way.
    pub(super) following: Option<u64>,
}

pub(super) fn followed(conn: &Connection) -> Result<Followed, StoreError> {
    let value = |name: &str| -> Result<u64, StoreError> {
        let sql = "SELECT value FROM meta WHERE key = ?1";
        Ok(prepare(conn, "read how far the journal is followed", sql)?.value::<i64>([name])?.cast_unsigned())
    };
    let (followed, following) = (value("followed")?, value("following")?);
    Ok(Followed { followed, following: (following > followed).then_some(following) })
}

/// The tenant of an endpoint; tenant 0 when the endpoint is not in the store. Cached in `owners`, unless the read
/// fails.
pub(super) fn owner(
    conn: &Connection,
    owners: &mut BTreeMap<EndpointId, TenantId>,
    endpoint: EndpointId,
) -> Result<TenantId, StoreError> {
    if let Some(known) = owners.get(&endpoint) {
        return Ok(*known);
    }
    let sql = "SELECT tenant FROM endpoint WHERE id = ?1";
    let found: Option<i64> = prepare(conn, "read the tenant of an endpoint", sql)?.find([key(endpoint.0)])?;
    let owner = TenantId::from_raw(found.and_then(|tenant| u64::try_from(tenant).ok()).unwrap_or(0));
    owners.insert(endpoint, owner);
    Ok(owner)
}

pub(super) fn write(conn: &Connection, slice: &FactSlice) -> rusqlite::Result<()> {
    let to = slice.to.cast_signed();
    let mut mark = conn.prepare_cached("UPDATE meta SET value = ?2 WHERE key = ?1")?;
    mark.execute(("following", to))?;
    let mut delivery = conn.prepare_cached("INSERT OR IGNORE INTO history (endpoint, delivery) VALUES (?1, ?2)")?;
    let mut name = conn.prepare_cached("INSERT OR IGNORE INTO name (kind, hidden, message) VALUES (?1, ?2, ?3)")?;
    let mut pending = conn.prepare_cached(
        "INSERT INTO queue_count (lane, tier, pending, upto) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO UPDATE SET pending = pending + excluded.pending, upto = excluded.upto
         WHERE upto < excluded.upto",
    )?;
    let mut tally = conn.prepare_cached(
        "INSERT INTO tally (tenant, hour, counted, count, upto) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO UPDATE SET count = count + excluded.count, upto = excluded.upto
         WHERE upto < excluded.upto",
    )?;
    let mut depth = conn.prepare_cached(
        "INSERT INTO depth (counted, pending, upto) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET pending = pending + excluded.pending, upto = excluded.upto
         WHERE upto < excluded.upto",
    )?;
    for fact in &slice.facts {
        match *fact {
            DerivedFact::Delivery(endpoint, id) => delivery.execute((key(endpoint.0), key(id.0)))?,
            DerivedFact::Named(kind, hidden, message) => name.execute((kind_number(kind), hidden.0, key(message.0)))?,
            DerivedFact::Pending(lane, tier, more) => pending.execute((key(lane.0), tier_number(tier), more, to))?,
            DerivedFact::Depth(counted, more) => depth.execute((depth_number(counted), more, to))?,
            DerivedFact::Tally(tenant, hour, counted, more) => {
                tally.execute((key(tenant.0), hour.0, counted_number(counted), more, to))?
            }
        };
    }
    if slice.is_last {
        mark.execute(("followed", to))?;
    }
    Ok(())
}

/// The facts derived from the rows that are not followed, restricted to `only`.
fn tail(conn: &Connection, only: Only) -> Result<Derived, StoreError> {
    let from = Followed { following: None, ..followed(conn)? };
    Ok(tail_in_parts(conn, &from, only)?.later)
}

/// The facts of the rows that are not followed. A table may have a count of a batch under way already.
struct Tail {
    batch: Derived,
    later: Derived,
}

impl Tail {
    /// What to add to a stored count that covers the journal up to `upto`.
    fn more(&self, from: &Followed, upto: u64, count: impl Fn(&Derived) -> Option<&i64>) -> i64 {
        let batch = if from.following == Some(upto) { None } else { count(&self.batch) };
        batch.copied().unwrap_or(0) + count(&self.later).copied().unwrap_or(0)
    }
}

/// Reads each row that is not followed once: there are up to tens of thousands of entries.
fn tail_in_parts(conn: &Connection, from: &Followed, only: Only) -> Result<Tail, StoreError> {
    let mut tail = Tail { batch: Derived::of(only), later: Derived::of(only) };
    let mut owners = BTreeMap::new();
    journal::each(conn, from.followed, |row| {
        let is_in_batch = from.following.is_some_and(|end| row.number <= end);
        let part = if is_in_batch { &mut tail.batch } else { &mut tail.later };
        for entry in row.entries() {
            part.add(&entry?, |endpoint| owner(conn, &mut owners, endpoint))?;
        }
        Ok(Then::GoOn)
    })?;
    Ok(tail)
}

/// The ids of an endpoint's deliveries in the tail of the journal, which the history may not have yet.
pub(super) fn unfollowed(conn: &Connection, endpoint: EndpointId) -> Result<BTreeSet<i64>, StoreError> {
    let derived = tail(conn, Only::Endpoint(endpoint))?;
    Ok(derived.deliveries.into_iter().map(|(_, id)| key(id.0)).collect())
}

/// The ids of an endpoint's deliveries after `after`: at least [`HISTORY_LOOKED_MAX`] and one more, if there are so
/// many.
pub(super) fn endpoint_deliveries(
    conn: &Connection,
    endpoint: EndpointId,
    order: ListOrder,
    after: Option<DeliveryId>,
) -> Result<Vec<DeliveryId>, StoreError> {
    let derived = tail(conn, Only::Endpoint(endpoint))?;
    let new = derived.deliveries.into_iter().map(|(_, id)| id.raw());
    let (is_beyond, sorted) = direction(order);
    let sql = format!(
        "SELECT delivery FROM history WHERE endpoint = ?1 AND delivery {is_beyond} ?2 ORDER BY delivery {sorted} LIMIT ?3"
    );
    let from = beyond(order, after.map(|id| key(id.0)));
    let known = column(conn, &sql, (key(endpoint.0), from, HISTORY_LOOKED_MAX + 1))?;
    Ok(merged(known, new, order, after.map(DeliveryId::raw)).into_iter().map(DeliveryId::from_raw).collect())
}

pub(super) fn named(
    conn: &Connection,
    (kind, hidden): (NameKind, Hidden),
    order: ListOrder,
    after: Option<MessageId>,
    limit: u32,
) -> Result<NamedPage, StoreError> {
    let derived = tail(conn, Only::Name(kind, hidden))?;
    let new = derived.names.into_iter().map(|name| name.2.raw());
    let (is_beyond, sorted) = direction(order);
    let sql = format!(
        "SELECT message FROM name WHERE kind = ?1 AND hidden = ?2 AND message {is_beyond} ?3
         ORDER BY message {sorted} LIMIT ?4"
    );
    let from = beyond(order, after.map(|id| key(id.0)));
    let known = column(conn, &sql, (kind_number(kind), hidden.0, from, limit + 1))?;
    let mut messages: Vec<MessageId> =
        merged(known, new, order, after.map(MessageId::raw)).into_iter().map(MessageId::from_raw).collect();
    let next =
        if messages.len() > limit as usize { messages.get((limit as usize).wrapping_sub(1)).copied() } else { None };
    messages.truncate(limit as usize);
    Ok(NamedPage { messages, next })
}

/// A tenant's tallies from `since` until before `until`.
pub(super) fn tallies(
    conn: &Connection,
    tenant: TenantId,
    since: UtcHour,
    until: UtcHour,
) -> Result<Vec<HourlyCount>, StoreError> {
    let from = followed(conn)?;
    let mut counts: BTreeMap<(UtcHour, CountedEvent), (i64, u64)> = BTreeMap::new();
    let sql = "SELECT hour, counted, count, upto FROM tally WHERE tenant = ?1 AND hour >= ?2 AND hour < ?3";
    let mut sql = prepare(conn, "read tallies", sql)?;
    let mut rows = sql.query((key(tenant.0), since.0, until.0))?;
    while let Some(row) = rows.next()? {
        let of = (UtcHour(get(row, 0)?), stored_counted(get(row, 1)?)?);
        counts.insert(of, (get(row, 2)?, get::<i64>(row, 3)?.cast_unsigned()));
    }
    let tail = tail_in_parts(conn, &from, Only::Tenant(tenant))?;
    for (_, hour, counted) in tail.batch.tallies.keys().chain(tail.later.tallies.keys()) {
        if *hour >= since && *hour < until {
            counts.entry((*hour, *counted)).or_default();
        }
    }
    for ((hour, counted), (count, upto)) in &mut counts {
        *count += tail.more(&from, *upto, |part| part.tallies.get(&(tenant, *hour, *counted)));
    }
    let tally = |((hour, counted), (count, _)): ((UtcHour, CountedEvent), (i64, u64))| HourlyCount {
        tenant,
        hour,
        counted,
        count: count.unsigned_abs(),
    };
    Ok(counts.into_iter().map(tally).collect())
}

/// The number of pending deliveries of a lane.
pub(super) fn waiting(conn: &Connection, lane: LaneId) -> Result<LaneBacklog, StoreError> {
    let from = followed(conn)?;
    let tail = tail_in_parts(conn, &from, Only::Lane(lane))?;
    let mut by_tier = [0; 3];
    for (tier, pending) in Tier::ALL.into_iter().zip(&mut by_tier) {
        let sql = "SELECT pending, upto FROM queue_count WHERE lane = ?1 AND tier = ?2";
        let mut sql = prepare(conn, "count the pending deliveries of a lane", sql)?;
        let (count, upto): (i64, i64) = sql.columns((key(lane.0), tier_number(tier)))?.unwrap_or_default();
        let more = tail.more(&from, upto.cast_unsigned(), |part| part.pending.get(&(lane, tier)));
        *pending = u64::try_from(count + more).unwrap_or(0);
    }
    Ok(LaneBacklog { lane, by_tier })
}

/// The number of pending deliveries of all lanes.
pub(super) fn pending(conn: &Connection) -> Result<PendingCounts, StoreError> {
    let from = followed(conn)?;
    let sql = "SELECT counted, pending, upto FROM depth";
    let counts = prepare(conn, "count pending deliveries", sql)?
        .read_all([], |row| Ok((stored_depth(get(row, 0)?)?, (get(row, 1)?, get::<i64>(row, 2)?.cast_unsigned()))))?;
    let counts: BTreeMap<Depth, (i64, u64)> = counts.into_iter().collect();
    let tail = tail_in_parts(conn, &from, Only::Depth)?;
    let count = |of: Depth| {
        let (count, upto) = counts.get(&of).copied().unwrap_or_default();
        u64::try_from(count + tail.more(&from, upto, |part| part.depth.get(&of))).unwrap_or(0)
    };
    Ok(PendingCounts { by_tier: Tier::ALL.map(|tier| count(Depth::Tier(tier))), untried: count(Depth::Untried) })
}

/// The bound at which a page of an index begins: `after`, or before the first entry in this order.
pub(super) fn beyond(order: ListOrder, after: Option<i64>) -> i64 {
    after.unwrap_or(match order {
        ListOrder::NewestFirst => i64::MAX,
        ListOrder::OldestFirst => -1,
    })
}

/// How SQL compares ids with the bound, and sorts them.
fn direction(order: ListOrder) -> (&'static str, &'static str) {
    match order {
        ListOrder::NewestFirst => ("<", "DESC"),
        ListOrder::OldestFirst => (">", "ASC"),
    }
}

fn column(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<u64>, StoreError> {
    prepare(conn, "read an index", sql)?.read_all(params, |row| Ok(stored_key(get(row, 0)?)?.raw()))
}

/// The ids of an index and those of the journal's tail, each once, in order.
fn merged(known: Vec<u64>, new: impl Iterator<Item = u64>, order: ListOrder, after: Option<u64>) -> Vec<u64> {
    let is_beyond = |id: &u64| match (order, after) {
        (_, None) => true,
        (ListOrder::NewestFirst, Some(after)) => *id < after,
        (ListOrder::OldestFirst, Some(after)) => *id > after,
    };
    let mut all: Vec<u64> = known.into_iter().chain(new.filter(is_beyond)).collect();
    all.sort_unstable();
    all.dedup();
    if order == ListOrder::NewestFirst {
        all.reverse();
    }
    all
}

pub(super) fn kind_number(kind: NameKind) -> u8 {
    match kind {
        NameKind::Subject => 0,
        NameKind::Correlation => 1,
    }
}

fn depth_number(depth: Depth) -> i64 {
    let place = Depth::ALL.iter().position(|each| *each == depth);
    place.and_then(|place| i64::try_from(place).ok()).expect("each is among all")
}

fn stored_depth(number: i64) -> Result<Depth, StoreError> {
    let depth = usize::try_from(number).ok().and_then(|number| Depth::ALL.get(number).copied());
    depth.ok_or_else(|| StoreError::Damaged { what: "a count of pending deliveries", found: number.to_string() })
}

#[cfg(test)]
mod tests {
    use posthaste_core::Timestamp;

    use super::journal::Journal;
    use super::*;
    use crate::journal::JournalEntry;
    use crate::sqlite::fixture::database;

    const ENDPOINT: EndpointId = EndpointId::from_raw(71);
    const LANE: LaneId = LaneId::from_raw(1);
    const TENANT: TenantId = TenantId::from_raw(9);
    const NAME: Hidden = Hidden([7; 16]);

    /// Reads a name, a lane's count and a tenant's tallies, all as of now.
    fn look(conn: &Connection) -> (Vec<MessageId>, u64, Vec<HourlyCount>) {
        let named = named(conn, (NameKind::Correlation, NAME), ListOrder::NewestFirst, None, 100).expect("it reads");
        let tallies = tallies(conn, TENANT, UtcHour(0), UtcHour(1)).expect("it reads");
        let lane = waiting(conn, LANE).expect("it reads").total();
        let all = PendingCounts { by_tier: [0, lane, 20], untried: lane + 20 };
        assert_eq!(pending(conn).expect("it reads"), all, "all lanes together");
        (named.messages, lane, tallies)
    }

    /// Twenty messages, each with a delivery in two lanes, one commit each.
    fn journalled(conn: &Connection) {
        let mut journal = Journal::prepare(conn).expect("the schema is there");
        for n in 0..20 {
            journal.entries.push(&JournalEntry::Accepted {
                message: MessageId::from_raw(10 * (n + 1)),
                tenant: TENANT,
                at: Timestamp::from_millis(5),
                digest: [0; 32],
                subject: None,
                correlation: Some(NAME),
                deliveries: vec![
                    (ENDPOINT, LANE, Tier::Promotional),
                    (EndpointId::from_raw(72), LaneId::from_raw(2), Tier::Engagement),
                ],
            });
            journal.write().expect("it is written");
            journal.committed();
        }
    }

    #[test]
    fn owner_of_an_endpoint_is_not_cached_when_the_read_fails() {
        let empty = Connection::open_in_memory().expect("memory is there");
        let mut owners = BTreeMap::new();
        owner(&empty, &mut owners, ENDPOINT).expect_err("there is no table");
        assert!(owners.is_empty(), "nothing is cached");
        assert_eq!(owner(&database(), &mut owners, ENDPOINT).expect("it reads"), TenantId::from_raw(0), "no tenant's");
    }

    #[test]
    fn reads_are_the_same_before_and_after_each_slice_and_when_a_batch_is_repeated() {
        let conn = database();
        journalled(&conn);
        let expected = look(&conn);
        assert_eq!((expected.0.len(), expected.1), (20, 20));
        // A batch that ends before the journal does, in slices of three.
        let to = 10;
        let mut derived = Derived::default();
        journal::each(&conn, 0, |row| {
            for entry in row.entries() {
                derived.add(&entry?, |_| Ok::<_, StoreError>(TENANT))?;
            }
            Ok(if row.number == to { Then::Stop } else { Then::GoOn })
        })
        .expect("it reads");
        let facts = derived.into_facts();
        let slices: Vec<&[DerivedFact]> = facts.chunks(3).collect();
        // A crash after each slice: the next start repeats the batch from its beginning.
        for made in 1..=slices.len() {
            for (at, facts) in slices.iter().enumerate().take(made) {
                let slice = FactSlice { facts: facts.to_vec(), to, is_last: at + 1 == slices.len() };
                write(&conn, &slice).expect("it is written");
                assert_eq!(look(&conn), expected, "slice {at} of {made}");
            }
        }
        assert_eq!(followed(&conn).expect("it reads").followed, to);
    }
}
