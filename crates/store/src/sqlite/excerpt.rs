//! How receivers' answers to attempts that failed begin: sealed as the message is that was sent, so that they end
//! with it.

use bytes::Bytes;
use posthaste_core::id::{DeliveryId, MessageId, TenantId};
use rusqlite::{Connection, OptionalExtension};

use super::column::{get, key, stored_key};
use super::failed;
use super::vault::Vault;
use crate::StoreError;
use crate::row::Settlement;

/// Seals what settlements say of answers. Nothing is kept of what nobody can open any more.
pub(super) fn seal(conn: &Connection, vault: &Vault, settlements: &mut [Settlement]) -> Result<(), StoreError> {
    for settlement in settlements {
        let Some(excerpt) = settlement.excerpt.take() else { continue };
        let Some(attempt) = settlement.attempt else { continue };
        let delivery = &settlement.record.delivery;
        let Some((tenant, head)) = head(conn, delivery.message)? else { continue };
        let place = (tenant, delivery.id, attempt.number);
        settlement.excerpt = vault.seal_excerpt(conn, place, &head, &excerpt)?.map(Bytes::from);
    }
    Ok(())
}

/// Whose a message is, and what is sealed with it.
fn head(conn: &Connection, message: MessageId) -> Result<Option<(TenantId, Vec<u8>)>, StoreError> {
    let found: Option<(i64, Vec<u8>)> = conn
        .prepare_cached(
            "SELECT tenant, head FROM message WHERE id = ?1 UNION ALL SELECT tenant, head FROM kept WHERE id = ?1",
        )
        .and_then(|mut sql| sql.query_row([key(message.0)], |row| Ok((row.get(0)?, row.get(1)?))).optional())
        .map_err(failed("read what a message is sealed with"))?;
    found.map(|(tenant, head)| Ok((TenantId(stored_key(tenant)?), head))).transpose()
}

/// Keeps what a settlement says of an answer, which is sealed. Its tenant is its message's.
pub(super) fn keep(conn: &Connection, settlement: &Settlement) -> rusqlite::Result<()> {
    let (Some(attempt), Some(excerpt)) = (settlement.attempt, &settlement.excerpt) else { return Ok(()) };
    let delivery = &settlement.record.delivery;
    conn.prepare_cached(
        "INSERT INTO excerpt (delivery, number, tenant, sealed)
         SELECT ?1, ?2, tenant, ?3 FROM message WHERE id = ?4
         UNION ALL SELECT ?1, ?2, tenant, ?3 FROM kept WHERE id = ?4 ON CONFLICT DO NOTHING",
    )?
    .execute((key(delivery.id.0), attempt.number, &excerpt[..], key(delivery.message.0)))
    .map(drop)
}

/// Those of a delivery, by number.
pub(super) fn of(conn: &Connection, vault: &Vault, id: DeliveryId) -> Result<Vec<(u16, Bytes)>, StoreError> {
    let doing = failed("read how answers began");
    let mut sql = conn
        .prepare_cached("SELECT number, tenant, sealed FROM excerpt WHERE delivery = ?1 ORDER BY number")
        .map_err(&doing)?;
    let mut rows = sql.query([key(id.0)]).map_err(&doing)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        let (number, tenant) = (get(row, 0)?, TenantId(stored_key(get(row, 1)?)?));
        let plain = vault.open_excerpt(conn, (tenant, id, number), &get::<Vec<u8>>(row, 2)?)?;
        found.extend(plain.map(|plain| (number, Bytes::from(plain))));
    }
    Ok(found)
}
