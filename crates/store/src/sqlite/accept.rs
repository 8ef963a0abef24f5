//! Messages and their deliveries become rows: one each, appended at the end of their table. One whose
//! key is known becomes none.

use rusqlite::{Connection, Statement};

use super::column::{DELIVERY_COLUMNS, bind_delivery, delivery_columns, key, place_number};
use super::idempotency;
use crate::row::{Acceptance, Accepted};

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
                ", place) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)"
            ))?,
        })
    }

    pub(super) fn run(&mut self, messages: &[Accepted], acceptances: &mut Vec<Acceptance>) -> rusqlite::Result<()> {
        acceptances.clear();
        for accepted in messages {
            let acceptance = idempotency::once(self.conn, accepted.idempotency.as_ref())?;
            let fresh = acceptance == Acceptance::Fresh;
            acceptances.push(acceptance);
            if !fresh {
                continue;
            }
            let message = &accepted.message;
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
            for new in &accepted.deliveries {
                let sql = &mut self.delivery;
                bind_delivery(sql, &new.delivery)?;
                sql.raw_bind_parameter(DELIVERY_COLUMNS + 1, place_number(new.place))?;
                sql.raw_execute()?;
            }
        }
        Ok(())
    }
}
