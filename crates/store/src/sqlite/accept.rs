//! Messages and their deliveries become rows: one each, appended at the end of their table. One whose
//! key is known becomes none; one with a collapse key ends the row whose place it takes.

use posthaste_core::delivery::Delivery;
use posthaste_core::id::DeliveryId;
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, Statement};

use super::column::{DELIVERY_COLUMNS, bind_delivery, delivery_columns, key, place_number};
use super::{collapse, failed, idempotency, job};
use crate::StoreError;
use crate::journal::{Entries, Entry};
use crate::row::{Acceptance, Accepted, Message, NewDelivery};

/// What an accept found: of each message whether it is new, and which delivery took whose place, in
/// the order of the deliveries.
#[derive(Default)]
pub(super) struct Found {
    pub(super) acceptances: Vec<Acceptance>,
    pub(super) superseded: Vec<(DeliveryId, DeliveryId)>,
}

/// The statements of an accept.
pub(super) struct Accept<'c> {
    conn: &'c Connection,
    message: Statement<'c>,
    delivery: Statement<'c>,
}

impl<'c> Accept<'c> {
    pub(super) fn prepare(conn: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            conn,
            message: conn.prepare(
                "INSERT INTO message (id, tenant, at_ms, event_type, correlation_id, subject, compact, body)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?,
            delivery: conn.prepare(concat!(
                "INSERT INTO delivery (",
                delivery_columns!("due_ms"),
                ", place, collapse) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ",
                "?18)"
            ))?,
        })
    }

    /// Makes rows of what is new among these, and says what it found. `prepared` has an entry of the
    /// journal for each.
    pub(super) fn run(
        &mut self,
        messages: &[Accepted],
        prepared: &Entries,
        journal: &mut Entries,
    ) -> Result<Found, StoreError> {
        let doing = failed("accept messages");
        let mut found = Found::default();
        for (index, accepted) in messages.iter().enumerate() {
            let acceptance = idempotency::once(self.conn, accepted.idempotency.as_ref()).map_err(&doing)?;
            let fresh = acceptance == Acceptance::Fresh;
            found.acceptances.push(acceptance);
            if !fresh {
                continue;
            }
            journal.push_from(prepared, index);
            self.put_message(&accepted.message).map_err(&doing)?;
            for new in &accepted.deliveries {
                for old in self.put_delivery(new, accepted.message.at)? {
                    journal.push(&Entry::ended(&old, None));
                    found.superseded.push((new.delivery.id, old.id));
                }
            }
            if let Some(fan_out) = accepted.fan_out {
                job::put(self.conn, &fan_out.job(&accepted.message)).map_err(failed("begin a fan-out"))?;
            }
        }
        Ok(found)
    }

    fn put_message(&mut self, message: &Message) -> rusqlite::Result<()> {
        let sql = &mut self.message;
        sql.raw_bind_parameter(1, key(message.id.0))?;
        sql.raw_bind_parameter(2, key(message.tenant.0))?;
        sql.raw_bind_parameter(3, message.at.as_millis())?;
        sql.raw_bind_parameter(4, message.event_type.as_deref())?;
        sql.raw_bind_parameter(5, message.correlation_id.as_str())?;
        sql.raw_bind_parameter(6, message.subject.as_deref())?;
        sql.raw_bind_parameter(7, message.compact.as_deref())?;
        sql.raw_bind_parameter(8, &*message.body)?;
        sql.raw_execute()?;
        Ok(())
    }

    /// The row of a delivery that is made at `at`; says whose place it took.
    pub(super) fn put_delivery(&mut self, new: &NewDelivery, at: Timestamp) -> Result<Vec<Delivery>, StoreError> {
        let superseded = match new.collapse {
            Some(collapse) => collapse::supersede(self.conn, new.delivery.lane, collapse, at)?,
            None => Vec::new(),
        };
        let sql = &mut self.delivery;
        bind_delivery(sql, &new.delivery)
            .and_then(|()| sql.raw_bind_parameter(DELIVERY_COLUMNS + 1, place_number(new.place)))
            .and_then(|()| sql.raw_bind_parameter(DELIVERY_COLUMNS + 2, new.collapse.map(collapse::column)))
            .and_then(|()| sql.raw_execute())
            .map_err(failed("accept messages"))?;
        Ok(superseded)
    }
}
