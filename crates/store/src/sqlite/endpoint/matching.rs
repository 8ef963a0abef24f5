//! Finds endpoints by subject and by tag: reads ranges of two indexes, and merges them by id.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::vec;

use posthaste_core::{EndpointId, TenantId};
use posthaste_crypto::LookupKey;
use rusqlite::{Connection, StatementStatus};

use crate::sqlite::sealed::endpoint::{NameHash, hide_subject, hide_tag};
use crate::sqlite::{Shared, failed, key, stored_key};
use crate::{Endpoint, EndpointSelector, StoreError};

const BY_SUBJECT: Lookup = Lookup {
    first: "SELECT id FROM endpoint WHERE subject = ?1 ORDER BY id LIMIT ?2",
    behind: "SELECT id FROM endpoint WHERE subject = ?1 AND id > ?3 ORDER BY id LIMIT ?2",
};
const BY_TAG: Lookup = Lookup {
    first: "SELECT endpoint FROM endpoint_tag WHERE tag = ?1 ORDER BY endpoint LIMIT ?2",
    behind: "SELECT endpoint FROM endpoint_tag WHERE tag = ?1 AND endpoint > ?3 ORDER BY endpoint LIMIT ?2",
};

/// The queries that read the ids of one subject or tag.
#[derive(Clone, Copy)]
struct Lookup {
    /// Reads from the beginning. If the index is missing, SQLite counts the rows it scans instead.
    first: &'static str,
    behind: &'static str,
}

/// The hashes by which candidates are looked up: subjects if the selector has any, since fewer endpoints have them,
/// otherwise tags.
pub(super) struct LookupHashes {
    lookup: Lookup,
    hashes: Vec<NameHash>,
}

impl LookupHashes {
    pub(super) fn of(lookups: &LookupKey, tenant: TenantId, selector: &EndpointSelector) -> Self {
        let (lookup, mut hashes): (_, Vec<NameHash>) = match selector.subjects() {
            [] => (BY_TAG, selector.tags().iter().map(|tag| hide_tag(lookups, tenant, tag)).collect()),
            some => (BY_SUBJECT, some.iter().map(|subject| hide_subject(lookups, tenant, subject)).collect()),
        };
        hashes.sort_unstable();
        hashes.dedup();
        Self { lookup, hashes }
    }
}

/// A page of endpoints that may match a selector.
pub(super) struct Candidates {
    /// The endpoints that were in memory.
    pub(super) known: Vec<Arc<Endpoint>>,
    /// The endpoints that were read, without those whose key is destroyed.
    pub(super) read: Vec<Endpoint>,
    /// The next page begins after this id; `None` on the last page.
    pub(super) next: Option<EndpointId>,
    /// How many rows of indexes and of endpoints were read.
    pub(super) rows: usize,
}

/// Reads a page of at most `limit` candidates after `after`.
pub(super) fn read(
    conn: &Connection,
    shared: &Shared,
    keys: &LookupHashes,
    after: Option<EndpointId>,
    limit: usize,
) -> Result<Candidates, StoreError> {
    let mut rows = 0;
    let range = |hash: &NameHash, after: Option<i64>, limit: usize| {
        let (ids, looked_at) = range(conn, keys.lookup, hash, after, limit)?;
        rows += looked_at;
        Ok(ids)
    };
    let ids = merged(&keys.hashes, after.map(|id| key(id.0)), limit + 1, range)?;
    let mut ids = ids.into_iter().map(|id| stored_key(id).map(EndpointId)).collect::<Result<Vec<_>, _>>()?;
    let mut next = None;
    if ids.len() > limit {
        ids.truncate(limit);
        next = ids.last().copied().or(after);
    }
    let (known, missing) = shared.cache.some(&ids);
    rows += missing.len();
    let read = super::read(conn, &shared.vault, super::BY_ID, missing.iter().map(|id| id.0))?;
    Ok(Candidates { known, read, next, rows })
}

/// At most `limit` ids of one range after `after`, and how many rows were read to find them.
fn range(
    conn: &Connection,
    lookup: Lookup,
    hash: &NameHash,
    after: Option<i64>,
    limit: usize,
) -> Result<(Vec<i64>, usize), StoreError> {
    let doing = failed("find endpoints by subject or tag");
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut sql = conn.prepare_cached(if after.is_some() { lookup.behind } else { lookup.first }).map_err(&doing)?;
    let found = match after {
        Some(after) => sql.query_map((hash, limit, after), |row| row.get(0)).and_then(Iterator::collect),
        None => sql.query_map((hash, limit), |row| row.get(0)).and_then(Iterator::collect),
    };
    let ids: Vec<i64> = found.map_err(&doing)?;
    let scanned = usize::try_from(sql.reset_status(StatementStatus::FullscanStep)).unwrap_or(0);
    let looked_at = ids.len() + scanned;
    Ok((ids, looked_at))
}

/// The first ids after `after` over all ranges: each once, in order, at most `limit`. `read` returns the next ids of
/// one range, after an id and at most so many. Reads about `2 * limit` ids in all, and each id once more for each
/// further range that it is in.
fn merged<K>(
    ranges: &[K],
    after: Option<i64>,
    limit: usize,
    mut read: impl FnMut(&K, Option<i64>, usize) -> Result<Vec<i64>, StoreError>,
) -> Result<Vec<i64>, StoreError> {
    let part = (2 * limit / ranges.len().max(1)).clamp(2, limit.max(2));
    let mut heads = BinaryHeap::with_capacity(ranges.len());
    // The rest of each range's last part, and whether another part may follow.
    let mut parts: Vec<(vec::IntoIter<i64>, bool)> = Vec::with_capacity(ranges.len());
    for (place, range) in ranges.iter().enumerate() {
        let ids = read(range, after, part)?;
        let is_full = ids.len() == part;
        let mut ids = ids.into_iter();
        heads.extend(ids.next().map(|id| Reverse((id, place))));
        parts.push((ids, is_full));
    }
    let mut found = Vec::new();
    while let Some(Reverse((id, place))) = heads.pop() {
        if found.last() != Some(&id) {
            found.push(id);
            if found.len() == limit {
                break;
            }
        }
        let (ids, is_full) = &mut parts[place];
        let mut next = ids.next();
        if next.is_none() && *is_full {
            let more = read(&ranges[place], Some(id), part)?;
            *is_full = more.len() == part;
            *ids = more.into_iter();
            next = ids.next();
        }
        heads.extend(next.map(|id| Reverse((id, place))));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::fixture::plan;

    #[test]
    fn subjects_and_tags_are_found_by_their_indexes() {
        for (sql, expected) in [
            (BY_SUBJECT.first, "SEARCH endpoint USING COVERING INDEX endpoint_subject (subject=?)"),
            (BY_SUBJECT.behind, "SEARCH endpoint USING COVERING INDEX endpoint_subject (subject=? AND rowid>?)"),
            (BY_TAG.first, "SEARCH endpoint_tag USING PRIMARY KEY (tag=?)"),
            (BY_TAG.behind, "SEARCH endpoint_tag USING PRIMARY KEY (tag=? AND endpoint>?)"),
        ] {
            assert_eq!(plan(sql), expected);
        }
    }

    /// The merged ids of these ranges, and how many ids were read for them.
    fn check(ranges: &[Vec<i64>], after: Option<i64>, limit: usize) -> (Vec<i64>, usize) {
        let mut rows = 0;
        let found = merged(ranges, after, limit, |range, after, limit| {
            let ids: Vec<i64> = range.iter().copied().filter(|id| Some(*id) > after).take(limit).collect();
            rows += ids.len();
            Ok(ids)
        });
        (found.expect("no range fails"), rows)
    }

    #[test]
    fn merged_ranges_give_each_id_once_and_in_order() {
        let ranges = [vec![1, 4, 9, 12], vec![2, 4, 12], vec![], vec![3, 4, 5, 6, 7, 8]];
        assert_eq!(check(&ranges, None, 100).0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 12]);
        assert_eq!(check(&ranges, Some(4), 3).0, [5, 6, 7]);
        assert_eq!(check(&ranges, Some(12), 3).0, Vec::<i64>::new());
        assert_eq!(check(&[], None, 3).0, Vec::<i64>::new());
    }

    #[test]
    fn merging_long_ranges_reads_at_most_four_times_the_limit() {
        let ranges: Vec<Vec<i64>> = (0..100).map(|start| (0..10_000).map(|n| n * 100 + start).collect()).collect();
        let (found, rows) = check(&ranges, None, 1_000);
        assert_eq!(found, (0..1_000).collect::<Vec<_>>());
        assert!(rows <= 4_000, "{rows}");
        let (found, rows) = check(&ranges[..1], None, 1_000);
        assert_eq!((found.len(), rows), (1_000, 1_000));
    }
}
