//! Writes the rows of accepted messages and their deliveries: one each, appended at the end of their table. A message
//! whose idempotency key is known gets no rows; a delivery with a collapse key ends the pending ones it supersedes.

use std::sync::Arc;

use posthaste_core::{Delivery, DeliveryId, LaneId, Timestamp};
use posthaste_crypto::row_mac::RowMac;
use rusqlite::{Connection, Statement};

use super::sealed::SealedMessage;
use super::{
    DELIVERY_COLUMNS, SealedAccept, UnwrittenKey, Vault, WriteOff, bind_delivery, delivery, delivery_columns, failed,
    idempotency, job, key, place_number, prepare, show, tier_number,
};
use crate::journal::{Entries, JournalEntry};
use crate::row::collapse::{CollapseKey, superseded};
use crate::{Acceptance, Accepted, Message, NewDelivery, StoreError};

const WAITING: &str =
    concat!("SELECT ", delivery_columns!("due_ms"), " FROM delivery WHERE lane = ?1 AND collapse = ?2 ORDER BY id");

/// The result of an accept: for each message whether it is new, and pairs of a new delivery and one that it
/// supersedes, in the order of the new deliveries.
#[derive(Default)]
pub(super) struct AcceptResult {
    pub(super) acceptances: Vec<Acceptance>,
    pub(super) superseded: Vec<(DeliveryId, DeliveryId)>,
}

pub(super) struct Accept<'c> {
    conn: &'c Connection,
    vault: Arc<Vault>,
    message: Statement<'c>,
    delivery: Statement<'c>,
}

impl<'c> Accept<'c> {
    pub(super) fn prepare(conn: &'c Connection, vault: Arc<Vault>) -> rusqlite::Result<Self> {
        Ok(Self {
            conn,
            vault,
            message: conn.prepare(
                "INSERT INTO message (id, tenant, at_ms, event_type, names, head, compact, body, tier)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?,
            delivery: conn.prepare(concat!(
                "INSERT INTO delivery (",
                delivery_columns!("due_ms"),
                ", place, collapse, mac) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ",
                "?17, ?18, ?19, ?20)"
            ))?,
        })
    }

    /// Writes the rows of the new ones among `messages`. For each message, `sealed` has the encrypted columns and
    /// `prepared` the journal entry.
    pub(super) fn run(
        &mut self,
        messages: &[Accepted],
        sealed: &SealedAccept,
        prepared: &Entries,
        journal: &mut Entries,
    ) -> Result<AcceptResult, StoreError> {
        let doing = failed("accept messages");
        let mut found = AcceptResult::default();
        self.put_keys(&sealed.keys).map_err(&doing)?;
        for (index, (accepted, sealed)) in messages.iter().zip(&sealed.messages).enumerate() {
            if let Some(before) = idempotency::known(self.conn, &self.vault, sealed.once.as_ref())? {
                found.acceptances.push(before.into());
                continue;
            }
            found.acceptances.push(Acceptance::Fresh);
            if self.vault.is_destroyed(accepted.message.tenant, sealed.key) {
                self.put_anew(accepted, journal)?;
            } else {
                journal.push_from(prepared, index);
                self.put_message(&accepted.message, sealed).map_err(&doing)?;
            }
            for (new, mac) in accepted.deliveries.iter().zip(&sealed.macs) {
                for old in self.put_delivery(new, mac, accepted.message.at)? {
                    journal.push(&JournalEntry::ended(&old, None));
                    found.superseded.push((new.delivery.id, old.id));
                }
            }
            if let Some(fan_out) = accepted.fan_out {
                job::put(self.conn, &fan_out.job(&accepted.message)).map_err(failed("begin a fan-out"))?;
            }
        }
        Ok(found)
    }

    pub(super) fn put_keys(&self, keys: &[UnwrittenKey]) -> rusqlite::Result<()> {
        for new in keys.iter().filter(|new| !self.vault.is_destroyed(new.tenant, new.id)) {
            self.vault.put(self.conn, new)?;
        }
        Ok(())
    }

    /// Puts a message whose key was destroyed after it was sealed: seals it again under a new key.
    fn put_anew(&mut self, accepted: &Accepted, journal: &mut Entries) -> Result<(), StoreError> {
        let (sealed, keys, entry) = self.vault.seal_anew(self.conn, accepted)?;
        let put = self.put_keys(&keys).and_then(|()| self.put_message(&accepted.message, &sealed));
        put.map_err(failed("accept messages"))?;
        journal.push(&entry);
        Ok(())
    }

    /// Puts the row of a message, and the idempotency key of its call.
    fn put_message(&mut self, message: &Message, sealed: &SealedMessage) -> rusqlite::Result<()> {
        idempotency::remember(self.conn, sealed.once.as_ref().map(|once| &once.sealed))?;
        let sql = &mut self.message;
        sql.raw_bind_parameter(1, key(message.id.0))?;
        sql.raw_bind_parameter(2, key(message.tenant.0))?;
        sql.raw_bind_parameter(3, message.at.as_millis())?;
        sql.raw_bind_parameter(4, sealed.event_type.as_deref())?;
        sql.raw_bind_parameter(5, sealed.names.as_deref())?;
        sql.raw_bind_parameter(6, &*sealed.head)?;
        sql.raw_bind_parameter(7, sealed.compact.as_deref())?;
        sql.raw_bind_parameter(8, &*sealed.body)?;
        sql.raw_bind_parameter(9, tier_number(message.tier))?;
        sql.raw_execute()?;
        Ok(())
    }

    /// Puts the row of a delivery that is made at `at`; returns the deliveries that it supersedes.
    pub(super) fn put_delivery(
        &mut self,
        new: &NewDelivery,
        mac: &RowMac,
        at: Timestamp,
    ) -> Result<Vec<Delivery>, StoreError> {
        let superseded = match new.collapse {
            Some(collapse) => supersede(self.conn, new.delivery.lane, collapse, at)?,
            None => Vec::new(),
        };
        let sql = &mut self.delivery;
        bind_delivery(sql, &new.delivery)
            .and_then(|()| sql.raw_bind_parameter(DELIVERY_COLUMNS + 1, place_number(new.place)))
            .and_then(|()| sql.raw_bind_parameter(DELIVERY_COLUMNS + 2, new.collapse.map(column)))
            .and_then(|()| sql.raw_bind_parameter(DELIVERY_COLUMNS + 3, &mac.0[..]))
            .and_then(|()| sql.raw_execute())
            .map_err(failed("accept messages"))?;
        Ok(superseded)
    }
}

/// Ends the pending deliveries of a lane with this key, and returns them; those that a cut covers are left to its
/// sweep. Rows without a key are not in the index and cost nothing more.
fn supersede(
    conn: &Connection,
    lane: LaneId,
    collapse: CollapseKey,
    at: Timestamp,
) -> Result<Vec<Delivery>, StoreError> {
    let doing = "end superseded deliveries";
    let params = (key(lane.0), column(collapse));
    let waiting = prepare(conn, doing, WAITING)?.read_all(params, delivery)?;
    let mut ended = Vec::new();
    if waiting.is_empty() {
        return Ok(ended);
    }
    let mut write_off = WriteOff::prepare(conn).map_err(failed(doing))?;
    for mut delivery in waiting {
        if show::cut_end(conn, &delivery)?.is_some() {
            continue;
        }
        delivery.state = superseded(&delivery, at);
        write_off.end(&delivery).map_err(failed(doing))?;
        ended.push(delivery);
    }
    Ok(ended)
}

/// The key as a column: all its 64 bits.
fn column(collapse: CollapseKey) -> i64 {
    collapse.0.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_deliveries_of_a_collapse_key_are_found_by_index() {
        let expected = "SEARCH delivery USING INDEX delivery_collapse (lane=? AND collapse=?)";
        assert_eq!(crate::sqlite::fixture::plan(WAITING), expected);
    }
}
