//! Records the results of attempts: the end of a delivery moves its row to `outcome`, any other result changes the row
//! in place. Each change requires the number of attempts that the caller counts; a settle that is stale changes
//! nothing, and its attempt is still kept in the history.

use posthaste_core::DeliveryChange;
use posthaste_crypto::row_mac::RowMac;
use rusqlite::{Connection, Statement};

use super::{
    DELIVERY_COLUMNS, Files, bind_attempt, bind_delivery, delivery_columns, excerpt, key, pause, place_number,
};
use crate::journal::{Entries, JournalEntry, leaves_entry};
use crate::{AttemptRecord, PauseScope, Session, Settled, Settlement};

/// Writes the outcome of a delivery, and the attempt that ended it, if one did. An existing outcome is not changed: a
/// delivery that has ended and still has a pending row was put back by another program.
pub(super) const OUTCOME: &str = concat!(
    "INSERT INTO outcome (",
    delivery_columns!("ended_ms"),
    ", number, at_ms, took_us, attempt_cause, status) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ",
    "?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22) ON CONFLICT (id) DO NOTHING"
);

pub(super) struct Settle<'c> {
    conn: &'c Connection,
    remove: Statement<'c>,
    outcome: Statement<'c>,
    wait: Statement<'c>,
    attempt: Statement<'c>,
    files: Files<'c>,
}

impl<'c> Settle<'c> {
    pub(super) fn prepare(conn: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            conn,
            remove: conn.prepare("DELETE FROM delivery WHERE id = ?1 AND attempts = ?2")?,
            outcome: conn.prepare(OUTCOME)?,
            // Sets only columns that an attempt can change: naming lane or tier would rewrite their index too.
            wait: conn.prepare(
                "UPDATE delivery SET state = ?6, due_ms = ?7, cause = ?8, attempts = ?9, previous_wait_us = ?13,
                   limited_in_a_row = ?14, last_cause = ?15, compact = ?17, place = ?18, mac = ?20
                 WHERE id = ?1 AND attempts = ?19",
            )?,
            // A settle that is repeated because its answer was lost does not count as another attempt.
            attempt: conn.prepare(
                "INSERT INTO attempt (delivery, late, place, number, at_ms, took_us, cause, status)
                 SELECT ?1, ?2, (SELECT coalesce(max(place), 0) + 1 FROM attempt WHERE delivery = ?1 AND late = ?2),
                   ?3, ?4, ?5, ?6, ?7
                 WHERE NOT EXISTS (SELECT 1 FROM attempt WHERE delivery = ?1 AND number = ?3 AND at_ms = ?4
                                   AND took_us = ?5 AND cause = ?6 AND status IS ?7)
                   AND NOT EXISTS (SELECT 1 FROM outcome WHERE id = ?1 AND number = ?3 AND at_ms = ?4
                                   AND took_us = ?5 AND attempt_cause = ?6 AND status IS ?7)",
            )?,
            files: Files::prepare(conn)?,
        })
    }

    pub(super) fn run(
        &mut self,
        session: Session,
        settlements: &[Settlement],
        settled: &mut Vec<Settled>,
        (prepared, macs): (&Entries, &[Option<RowMac>]),
        journal: &mut Entries,
    ) -> rusqlite::Result<()> {
        settled.clear();
        let mut next = 0..;
        for (place, settlement) in settlements.iter().enumerate() {
            let is_current = settlement.epoch == session.epoch;
            let mac = macs.get(place).and_then(Option::as_ref);
            let done = is_current && self.change(&settlement.record, settlement.attempt.as_ref(), mac)?;
            if done {
                excerpt::keep(self.conn, settlement)?;
            }
            let entry = if leaves_entry(settlement) { next.next() } else { None };
            match entry {
                Some(index) if done => journal.push_from(prepared, index),
                _ if !done && self.keep_stale(settlement)? => {
                    JournalEntry::late(settlement).iter().for_each(|entry| journal.push(entry));
                }
                _ => {}
            }
            if done && settlement.record.pauses_lane {
                journal.push(&JournalEntry::paused_by_end(settlement));
            }
            settled.push(if done { Settled::Done } else { Settled::Stale });
        }
        Ok(())
    }

    /// Makes the change; `false` when the row is missing or counts other attempts than the caller.
    fn change(
        &mut self,
        record: &DeliveryChange,
        attempt: Option<&AttemptRecord>,
        mac: Option<&RowMac>,
    ) -> rusqlite::Result<bool> {
        let changed = match mac {
            Some(mac) => self.move_on(record, attempt, mac)?,
            None => self.end(record, attempt)?,
        };
        if changed && record.pauses_lane {
            pause::put_bare(self.conn, PauseScope::Lane(record.delivery.lane))?;
        }
        Ok(changed)
    }

    fn end(&mut self, record: &DeliveryChange, attempt: Option<&AttemptRecord>) -> rusqlite::Result<bool> {
        self.remove.raw_bind_parameter(1, key(record.delivery.id.0))?;
        self.remove.raw_bind_parameter(2, record.attempts_before)?;
        if self.remove.raw_execute()? == 0 {
            return Ok(false);
        }
        bind_delivery(&mut self.outcome, &record.delivery)?;
        bind_attempt(&mut self.outcome, DELIVERY_COLUMNS + 1, attempt)?;
        if self.outcome.raw_execute()? == 0 {
            return Ok(false);
        }
        self.files.file(&record.delivery)?;
        Ok(true)
    }

    fn move_on(
        &mut self,
        record: &DeliveryChange,
        attempt: Option<&AttemptRecord>,
        mac: &RowMac,
    ) -> rusqlite::Result<bool> {
        bind_delivery(&mut self.wait, &record.delivery)?;
        self.wait.raw_bind_parameter(DELIVERY_COLUMNS + 1, place_number(record.place))?;
        self.wait.raw_bind_parameter(DELIVERY_COLUMNS + 2, record.attempts_before)?;
        self.wait.raw_bind_parameter(DELIVERY_COLUMNS + 3, &mac.0[..])?;
        if self.wait.raw_execute()? == 0 {
            return Ok(false);
        }
        if let Some(attempt) = attempt {
            self.keep(record, attempt, false)?;
        }
        Ok(true)
    }

    /// Keeps the attempt of a stale settle; `false` when it has none, or the attempt is kept already.
    fn keep_stale(&mut self, settlement: &Settlement) -> rusqlite::Result<bool> {
        let Some(attempt) = &settlement.attempt else { return Ok(false) };
        let mut sql = self.conn.prepare_cached("SELECT 1 FROM delivery WHERE id = ?1")?;
        let pending = sql.exists([key(settlement.record.delivery.id.0)])?;
        self.keep(&settlement.record, attempt, !pending)
    }

    fn keep(&mut self, record: &DeliveryChange, attempt: &AttemptRecord, late: bool) -> rusqlite::Result<bool> {
        self.attempt.raw_bind_parameter(1, key(record.delivery.id.0))?;
        self.attempt.raw_bind_parameter(2, late)?;
        bind_attempt(&mut self.attempt, 3, Some(attempt))?;
        Ok(self.attempt.raw_execute()? > 0)
    }
}
