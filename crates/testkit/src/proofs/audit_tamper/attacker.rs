//! Attacks on a store's database file. The plain attacks edit rows. The consistent attacks rebuild everything after
//! the change (roots, hashes, links and tables), so that the file is consistent again; they cannot sign with the
//! store's key.
//!
//! The consistent attacks change rows that the old checkpoint covers. Rows after the last checkpoint that the verifier
//! kept can be rebuilt undetected; the audit's documentation says so.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{DeliveryId, TenantId, Timestamp};
use posthaste_crypto::checkpoint::{Checkpoint, claimed};
use posthaste_crypto::keyring::{KeyId, StoreKey};
use posthaste_store::journal::{Entries, ErasedTarget, Head, JournalEntry};
use posthaste_store::{JournalRow, Retention, RetentionOverride, RetentionPhase};
use rusqlite::{Connection, OptionalExtension, Row};

use super::world::FILE;
use crate::prove::{CannotRun, Context};

/// Each tenant has one endpoint; endpoints have the odd numbers.
const OUTCOMES_OF_TENANT: &str = "DELETE FROM outcome WHERE endpoint = 2 * ?1 - 1";

/// The attack that a verifier without an exported checkpoint cannot detect.
pub(super) const SIGNED_ANEW: &str = "made anew and signed with another key";

type Way = (&'static str, fn(&mut Attacker) -> Result<(), CannotRun>);

const WAYS: &[Way] = &[
    ("a row's time", Attacker::time_of_row),
    ("a row's entries", |it| it.byte_of_row("packed")),
    ("a row's root", |it| it.byte_of_row("root")),
    ("a row's link", |it| it.byte_of_row("before")),
    ("a row removed", Attacker::row_removed),
    ("some rows removed", Attacker::rows_removed),
    ("two rows swapped", Attacker::rows_swapped),
    ("a row moved to the end", Attacker::row_moved),
    ("a row written twice", Attacker::row_doubled),
    ("the end cut off", |it| it.cut("DELETE FROM journal WHERE number > ?1")),
    ("the beginning cut off", |it| it.cut("DELETE FROM journal WHERE number <= ?1")),
    ("an outcome edited", Attacker::outcome_edited),
    ("an outcome removed", |it| it.any("DELETE FROM outcome WHERE id = ?1", "SELECT id FROM outcome")),
    ("an outcome added", Attacker::outcome_added),
    ("an attempt edited", Attacker::attempt_edited),
    ("an attempt removed", |it| {
        it.any("DELETE FROM attempt WHERE delivery = ?1", "SELECT DISTINCT delivery FROM attempt")
    }),
    ("an attempt added", Attacker::attempt_added),
    ("a checkpoint edited", Attacker::checkpoint_edited),
    ("a checkpoint moved", |it| {
        it.any("UPDATE checkpoint SET row = row + 1000 WHERE row = ?1", "SELECT row FROM checkpoint")
    }),
    ("all checkpoints removed", |it| it.sql("DELETE FROM checkpoint")),
    ("the public key replaced", Attacker::key_replaced),
    ("the store's id replaced", |it| it.sql("UPDATE meta SET value = randomblob(16) WHERE key = 'store_id'")),
    ("made anew with another end of a delivery", Attacker::anew_changed),
    ("made anew without a row", Attacker::anew_removed),
    ("made anew with a row added", Attacker::anew_added),
    ("made anew in another order", Attacker::anew_swapped),
    ("made anew and cut off", Attacker::anew_cut),
    (SIGNED_ANEW, Attacker::anew_signed),
    ("the beginning cut off and announced", Attacker::beginning_announced),
    ("outcomes removed and announced", Attacker::outcomes_announced),
    ("outcomes removed as if a tenant was erased", Attacker::outcomes_erased),
    ("outcomes removed as if that was agreed", Attacker::outcomes_agreed),
];

/// Runs one attack, chosen by the seed, on the database file in a folder. Prints its description.
pub(crate) fn run(folder: &Path, checkpoint: &str, seed: &str) -> Result<(), CannotRun> {
    let seed: u64 = seed.parse()?;
    let conn = open_unchecked(folder)?;
    let (old, _) = claimed(checkpoint).context("this is no checkpoint")?;
    let rows = read_journal(&conn)?;
    let ways = u64::try_from(WAYS.len()).unwrap_or(1);
    let (what, way) = WAYS[usize::try_from(seed % ways).unwrap_or(0)];
    way(&mut Attacker { conn, rows, old, dice: fastrand::Rng::with_seed(seed) })?;
    println!("{what}");
    Ok(())
}

/// An attacker with the database file and an old checkpoint, but without the store's key.
struct Attacker {
    conn: Connection,
    rows: Vec<JournalRow>,
    old: Checkpoint,
    dice: fastrand::Rng,
}

impl Attacker {
    fn sql(&mut self, sql: &str) -> Result<(), CannotRun> {
        changed(self.conn.execute(sql, [])?)
    }

    /// Runs a statement with one id, chosen at random from those that the second statement selects.
    fn any(&mut self, sql: &str, ids: &str) -> Result<(), CannotRun> {
        let ids: Vec<i64> = self.conn.prepare(ids)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let id = ids[self.dice.usize(..ids.len())];
        changed(self.conn.execute(sql, [id])?)
    }

    /// The index of a random row.
    fn place(&mut self) -> usize {
        self.dice.usize(..self.rows.len())
    }

    /// The index of a random row that the old checkpoint covers.
    fn covered(&mut self) -> usize {
        let covered = usize::try_from(self.old.row).unwrap_or(usize::MAX).min(self.rows.len());
        self.dice.usize(..covered)
    }

    fn put_back(&self) -> Result<(), CannotRun> {
        replace_journal(&self.conn, &self.rows)
    }

    // --- plain ---

    fn time_of_row(&mut self) -> Result<(), CannotRun> {
        let (place, by) = (self.place(), self.dice.i64(1..100_000));
        let at = self.rows[place].at.as_millis();
        self.rows[place].at = Timestamp::from_millis(if self.dice.bool() { at + by } else { at - by });
        self.put_back()
    }

    fn byte_of_row(&mut self, column: &str) -> Result<(), CannotRun> {
        let number = number(self.place() + 1);
        let read = format!("SELECT {column} FROM journal WHERE number = ?1");
        let mut bytes: Vec<u8> = self.conn.query_row(&read, [number], |row| row.get(0))?;
        let at = self.dice.usize(..bytes.len());
        bytes[at] ^= self.dice.u8(1..);
        let write = format!("UPDATE journal SET {column} = ?2 WHERE number = ?1");
        changed(self.conn.execute(&write, (number, bytes))?)
    }

    fn row_removed(&mut self) -> Result<(), CannotRun> {
        let place = self.place();
        self.rows.remove(place);
        self.put_back()
    }

    fn rows_removed(&mut self) -> Result<(), CannotRun> {
        let (one, other) = (self.place(), self.place());
        self.rows.drain(one.min(other)..=one.max(other));
        self.put_back()
    }

    fn rows_swapped(&mut self) -> Result<(), CannotRun> {
        let one = self.place();
        let other = (one + self.dice.usize(1..self.rows.len())) % self.rows.len();
        let (first, second) = (self.rows[one].number, self.rows[other].number);
        self.rows.swap(one, other);
        self.rows[one].number = first;
        self.rows[other].number = second;
        self.put_back()
    }

    fn row_moved(&mut self) -> Result<(), CannotRun> {
        let place = self.dice.usize(..self.rows.len() - 1);
        let mut row = self.rows.remove(place);
        row.number = self.rows[self.rows.len() - 1].number + 1;
        self.rows.push(row);
        self.put_back()
    }

    fn row_doubled(&mut self) -> Result<(), CannotRun> {
        let place = self.place();
        let number = self.rows.len() as u64 + 1;
        self.rows.push(JournalRow { number, ..self.rows[place].clone() });
        self.put_back()
    }

    fn cut(&mut self, sql: &str) -> Result<(), CannotRun> {
        let number = number(self.dice.usize(1..self.rows.len()));
        changed(self.conn.execute(sql, [number])?)
    }

    fn outcome_edited(&mut self) -> Result<(), CannotRun> {
        const EDITS: &[&str] = &[
            "lane = lane + 1",
            "tier = (tier + 1) % 3",
            "state = 5, cause = NULL",
            "ended_ms = ended_ms - 1000",
            "attempts = attempts + 1",
            "back = back + 1",
            "number = NULL",
            "at_ms = at_ms + 1",
            "took_us = took_us + 1",
            "attempt_cause = attempt_cause + 1",
            "status = status + 1",
        ];
        let edit = EDITS[self.dice.usize(..EDITS.len())];
        self.any(&format!("UPDATE outcome SET {edit} WHERE id = ?1"), "SELECT id FROM outcome")
    }

    fn outcome_added(&mut self) -> Result<(), CannotRun> {
        self.conn.execute_batch(
            "CREATE TEMP TABLE another AS SELECT * FROM outcome ORDER BY random() LIMIT 1;
             UPDATE another SET id = (SELECT max(id) FROM outcome) + 2;
             INSERT INTO outcome SELECT * FROM another;",
        )?;
        Ok(())
    }

    fn attempt_edited(&mut self) -> Result<(), CannotRun> {
        const EDITS: &[&str] =
            &["number = number + 1", "at_ms = at_ms - 1000", "took_us = took_us + 1", "status = status + 1"];
        let edit = EDITS[self.dice.usize(..EDITS.len())];
        self.any(&format!("UPDATE attempt SET {edit} WHERE delivery = ?1"), "SELECT DISTINCT delivery FROM attempt")
    }

    fn attempt_added(&mut self) -> Result<(), CannotRun> {
        self.any(
            "INSERT INTO attempt SELECT delivery, late, place + 100, number, at_ms, took_us, cause, status
             FROM attempt WHERE delivery = ?1",
            "SELECT DISTINCT delivery FROM attempt",
        )
    }

    fn checkpoint_edited(&mut self) -> Result<(), CannotRun> {
        let rows: Vec<(i64, String)> = self
            .conn
            .prepare("SELECT row, line FROM checkpoint")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        let (row, line) = &rows[self.dice.usize(..rows.len())];
        let at = self.dice.usize(..line.len() - 2);
        let other = if &line[at..=at] == "0" { "1" } else { "0" };
        let line = [&line[..at], other, &line[at + 1..]].concat();
        changed(self.conn.execute("UPDATE checkpoint SET line = ?2 WHERE row = ?1", (row, line))?)
    }

    fn key_replaced(&mut self) -> Result<(), CannotRun> {
        let key = StoreKey::generate(KeyId(1)).checkpoints().public().to_string();
        changed(self.conn.execute("UPDATE meta SET value = ?1 WHERE key = 'public_key'", [key])?)
    }

    // --- consistent ---

    /// Replaces the journal by a consistent one, with or without removing the checkpoints that contradict it.
    fn put_anew(&mut self, entries: &JournalEntries) -> Result<(), CannotRun> {
        let rows = journal_of(entries);
        let first = rows.iter().zip(&self.rows).position(|(new, old)| new != old).unwrap_or(rows.len());
        replace_journal(&self.conn, &rows)?;
        if self.dice.bool() {
            self.conn.execute("DELETE FROM checkpoint WHERE row > ?1", [number(first)])?;
        }
        Ok(())
    }

    /// The index of a covered row, and of an entry in it, that records the end of a delivery.
    fn random_end(&mut self, entries: &JournalEntries) -> (usize, usize) {
        loop {
            let row = self.covered();
            let is_end = |entry: &JournalEntry| matches!(entry, JournalEntry::Ended { .. });
            if let Some(entry) = entries[row].iter().position(is_end) {
                return (row, entry);
            }
        }
    }

    fn anew_changed(&mut self) -> Result<(), CannotRun> {
        let mut entries = decode(&self.rows)?;
        let (row, entry) = self.random_end(&entries);
        if let JournalEntry::Ended { delivery, attempts, .. } = &mut entries[row][entry] {
            *attempts += 1;
            let id = delivery.raw().cast_signed();
            changed(self.conn.execute("UPDATE outcome SET attempts = attempts + 1 WHERE id = ?1", [id])?)?;
        }
        self.put_anew(&entries)
    }

    fn anew_removed(&mut self) -> Result<(), CannotRun> {
        let mut entries = decode(&self.rows)?;
        let (row, _) = self.random_end(&entries);
        let removed = entries.remove(row);
        self.remove_from_tables(&removed, &entries)?;
        self.put_anew(&entries)
    }

    fn anew_added(&mut self) -> Result<(), CannotRun> {
        let mut entries = decode(&self.rows)?;
        let row = self.covered();
        entries.insert(row, vec![JournalEntry::Opened { session: 99, at: Timestamp::default() }]);
        self.put_anew(&entries)
    }

    fn anew_swapped(&mut self) -> Result<(), CannotRun> {
        let mut entries = decode(&self.rows)?;
        loop {
            let (one, other) = (self.covered(), self.covered());
            if entries[one] != entries[other] {
                entries.swap(one, other);
                return self.put_anew(&entries);
            }
        }
    }

    fn anew_cut(&mut self) -> Result<(), CannotRun> {
        let mut entries = decode(&self.rows)?;
        let row = self.covered();
        let removed: Vec<JournalEntry> = entries.drain(row..).flatten().collect();
        self.remove_from_tables(&removed, &entries)?;
        self.put_anew(&entries)?;
        self.conn.execute("DELETE FROM checkpoint WHERE row > ?1", [number(row)])?;
        Ok(())
    }

    /// Leaves everything as the store would have left it, except that another key made the signatures.
    fn anew_signed(&mut self) -> Result<(), CannotRun> {
        self.anew_changed()?;
        let signer = StoreKey::generate(KeyId(1)).checkpoints();
        let public = signer.public().to_string();
        changed(self.conn.execute("UPDATE meta SET value = ?1 WHERE key = 'public_key'", [public])?)?;
        self.conn.execute("DELETE FROM checkpoint", [])?;
        for row in read_journal(&self.conn)?.iter().rev().step_by(4) {
            let line = signer.sign(&Checkpoint { row: row.number, chain: row.hash(), ..self.old });
            self.conn.execute("INSERT INTO checkpoint VALUES (?1, ?2)", (row.number.cast_signed(), line))?;
        }
        Ok(())
    }

    /// Removes rows and adds an entry that says retention removed them. No checkpoint covers that entry yet, and an
    /// audit does not require one.
    fn beginning_announced(&mut self) -> Result<(), CannotRun> {
        let upto = self.dice.usize(1..self.rows.len() - 1);
        let first_left = self.rows[upto].at;
        let (before, at) = self.times(RetentionPhase::Journal, first_left);
        let (gone, phase) = (upto as u64, RetentionPhase::Journal);
        self.announce(JournalEntry::Retained { phase, upto: gone, removed: gone, before, at, tenant: None })?;
        self.conn.execute("DELETE FROM checkpoint WHERE row <= ?1", [number(upto)])?;
        changed(self.conn.execute("DELETE FROM journal WHERE number <= ?1", [number(upto)])?)
    }

    fn outcomes_announced(&mut self) -> Result<(), CannotRun> {
        let removed = self.dice.i64(1..20);
        let last: Option<i64> = self
            .conn
            .query_row("SELECT max(ended_ms) FROM (SELECT ended_ms FROM outcome LIMIT ?1)", [removed], |row| row.get(0))
            .optional()?;
        let last = Timestamp::from_millis(last.unwrap_or_default());
        let (before, at) = self.times(RetentionPhase::History, last);
        let sql = "DELETE FROM outcome WHERE id IN (SELECT id FROM outcome LIMIT ?1)";
        changed(self.conn.execute(sql, [removed])?)?;
        let (phase, removed) = (RetentionPhase::History, removed.unsigned_abs());
        self.announce(JournalEntry::Retained { phase, upto: 0, removed, before, at, tenant: None })
    }

    /// Removes a tenant's outcomes and records an erasure of the tenant: in the table and the journal, or in the table
    /// alone.
    fn outcomes_erased(&mut self) -> Result<(), CannotRun> {
        let tenant = self.dice.i64(1..6);
        changed(self.conn.execute(OUTCOMES_OF_TENANT, [tenant])?)?;
        let last = &self.rows[self.rows.len() - 1];
        let (row, at) = (last.number + 1, last.at);
        self.conn.execute(
            "INSERT INTO erasure (tenant, kind, hidden, row, at_ms, phase, cursor, left_over, messages, deliveries, done_ms)
             VALUES (?1, 1, x'00', ?2, ?3, 10, 0, 0, 0, 0, ?3)",
            (tenant, row.cast_signed(), at.as_millis()),
        )?;
        if self.dice.bool() {
            let tenant = TenantId::from_raw(tenant.unsigned_abs());
            self.announce(JournalEntry::Erased { tenant, whom: ErasedTarget::Tenant, at, by: None })?;
        }
        Ok(())
    }

    /// Removes a tenant's outcomes and records that the tenant's own retention is one millisecond.
    fn outcomes_agreed(&mut self) -> Result<(), CannotRun> {
        let tenant = self.dice.i64(1..6);
        let removed = self.conn.execute(OUTCOMES_OF_TENANT, [tenant])?;
        changed(removed)?;
        let (at, tenant) = (self.rows[self.rows.len() - 1].at, TenantId::from_raw(tenant.unsigned_abs()));
        let kept = Duration::from_millis(1);
        let own = RetentionOverride { history: Some(kept), ..RetentionOverride::default() };
        let (phase, removed) = (RetentionPhase::History, removed as u64);
        let gone = JournalEntry::Retained { phase, upto: 0, removed, before: at - kept, at, tenant: Some(tenant) };
        let head = Head::behind(&self.rows[self.rows.len() - 1]);
        append_row(&self.conn, &next_row(&head, &[JournalEntry::Agreed { tenant, own, at }, gone]))
    }

    /// The times `before` and `at` of a false retention entry: either in the future, or with a retention that was too
    /// short.
    fn times(&mut self, phase: RetentionPhase, gone: Timestamp) -> (Timestamp, Timestamp) {
        let retention = Retention::default();
        let kept = if phase == RetentionPhase::Journal { retention.journal } else { retention.history };
        let last = self.rows[self.rows.len() - 1].at;
        if self.dice.bool() { (gone, gone + kept) } else { (gone.max(last), last) }
    }

    fn announce(&mut self, entry: JournalEntry) -> Result<(), CannotRun> {
        let head = Head::behind(&self.rows[self.rows.len() - 1]);
        append_row(&self.conn, &next_row(&head, &[entry]))
    }

    /// Removes from the tables the deliveries of entries that were removed, unless a remaining entry names them too.
    fn remove_from_tables(&mut self, removed: &[JournalEntry], left: &JournalEntries) -> Result<(), CannotRun> {
        let delivery_of = |entry: &JournalEntry| match entry {
            JournalEntry::Ended { delivery, .. }
            | JournalEntry::Attempted { delivery, .. }
            | JournalEntry::Late { delivery, .. } => Some(*delivery),
            _ => None,
        };
        let still: BTreeSet<DeliveryId> = left.iter().flatten().filter_map(delivery_of).collect();
        for entry in removed {
            let Some(delivery) = delivery_of(entry) else { continue };
            let id = delivery.raw().cast_signed();
            if matches!(entry, JournalEntry::Ended { .. }) {
                self.conn.execute("DELETE FROM outcome WHERE id = ?1", [id])?;
            }
            if !still.contains(&delivery) {
                self.conn.execute("DELETE FROM attempt WHERE delivery = ?1", [id])?;
            }
        }
        Ok(())
    }
}

/// A number as SQLite stores it.
fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Fails if a statement changed no row: an attack without an effect would prove nothing.
fn changed(rows: usize) -> Result<(), CannotRun> {
    if rows > 0 { Ok(()) } else { Err(CannotRun("the attack changed no row".to_owned())) }
}

/// Opens the database without check constraints and without syncs.
fn open_unchecked(folder: &Path) -> Result<Connection, CannotRun> {
    let conn = Connection::open(folder.join(FILE))?;
    conn.execute_batch("PRAGMA ignore_check_constraints = ON; PRAGMA synchronous = OFF;")?;
    Ok(conn)
}

/// The entries of each journal row, from the first row on.
type JournalEntries = Vec<Vec<JournalEntry>>;

/// Reads the whole journal.
fn read_journal(conn: &Connection) -> Result<Vec<JournalRow>, CannotRun> {
    let mut sql = conn.prepare("SELECT number, at_ms, packed, root, before FROM journal ORDER BY number")?;
    let rows = sql.query_map([], stored)?.collect::<Result<_, _>>()?;
    Ok(rows)
}

fn stored(row: &Row<'_>) -> rusqlite::Result<JournalRow> {
    Ok(JournalRow {
        number: row.get::<_, i64>(0)?.cast_unsigned(),
        at: Timestamp::from_millis(row.get(1)?),
        packed: Bytes::from(row.get::<_, Vec<u8>>(2)?),
        root: row.get(3)?,
        before: row.get(4)?,
    })
}

fn decode(rows: &[JournalRow]) -> Result<JournalEntries, CannotRun> {
    rows.iter().map(|row| Ok(row.entries().collect::<Result<_, _>>()?)).collect()
}

/// Rows with these entries, and with consistent roots, hashes and links.
fn journal_of(entries: &JournalEntries) -> Vec<JournalRow> {
    let mut head = Head::default();
    let mut rows = Vec::with_capacity(entries.len());
    for of_row in entries {
        let row = next_row(&head, of_row);
        head = Head::behind(&row);
        rows.push(row);
    }
    rows
}

/// The row with these entries that follows `head`.
fn next_row(head: &Head, entries: &[JournalEntry]) -> JournalRow {
    let mut packed = Entries::default();
    entries.iter().for_each(|entry| packed.push(entry));
    head.next(&packed)
}

/// Replaces the journal in the file by this one.
fn replace_journal(conn: &Connection, rows: &[JournalRow]) -> Result<(), CannotRun> {
    conn.execute_batch("BEGIN; DELETE FROM journal;")?;
    rows.iter().try_for_each(|row| append_row(conn, row))?;
    conn.execute_batch("COMMIT")?;
    Ok(())
}

fn append_row(conn: &Connection, row: &JournalRow) -> Result<(), CannotRun> {
    conn.execute(
        "INSERT INTO journal (number, at_ms, packed, root, before) VALUES (?1, ?2, ?3, ?4, ?5)",
        (row.number.cast_signed(), row.at.as_millis(), &*row.packed, row.root, row.before),
    )?;
    Ok(())
}
