//! The attacker of the proof `retry-tokens`, who has the database file but not the key, and writes rows as the store would.
//!
//! It knows the schema, which is public. It uses no key, and no function of the store.

use std::path::Path;

use rusqlite::Connection;

use crate::fixtures::part;
use crate::prove::{CannotRun, Context};

/// The attacks, as SQL on the deliveries `?1` to `?2`. Deliveries of the attacked store have odd ids; the id of a
/// delivery's message is one lower.
const DEEDS: &[(&str, &str)] = &[
    // A second row for the same message, with a random MAC or with that of the copied row.
    (
        "forged",
        "INSERT INTO delivery
         SELECT id + 1, back + 1, endpoint, lane, tier, state, due_ms, cause, attempts, born_ms, expiry, expires_ms,
           previous_wait_us, limited_in_a_row, last_cause, ack_within_us, compact, place, collapse,
           CASE id / 2 % 2 WHEN 0 THEN randomblob(16) ELSE mac END
         FROM delivery WHERE id BETWEEN ?1 AND ?2",
    ),
    // Another endpoint. Endpoints have odd numbers.
    (
        "endpoint",
        "UPDATE delivery SET endpoint = CASE endpoint WHEN 1 THEN 3 ELSE endpoint - 2 END WHERE id BETWEEN ?1 AND ?2",
    ),
    // Another lane. Lanes have even numbers.
    ("lane", "UPDATE delivery SET lane = CASE lane WHEN 2 THEN 4 ELSE lane - 2 END WHERE id BETWEEN ?1 AND ?2"),
    // The message of another delivery, with that delivery's MAC.
    (
        "message",
        "UPDATE delivery SET back = back + 2,
           mac = coalesce((SELECT mac FROM delivery AS other WHERE other.id = delivery.id - 2), mac)
         WHERE id BETWEEN ?1 AND ?2",
    ),
    // Due now instead of tomorrow.
    ("due", "UPDATE delivery SET due_ms = born_ms WHERE id BETWEEN ?1 AND ?2"),
    // As if it had been attempted twice.
    ("attempts", "UPDATE delivery SET attempts = 2, state = 1, cause = 5 WHERE id BETWEEN ?1 AND ?2"),
    // A TTL that is a year longer.
    ("expiry", "UPDATE delivery SET expires_ms = expires_ms + 31536000000 WHERE id BETWEEN ?1 AND ?2"),
    // Payloads of neighbouring messages swapped.
    (
        "payload",
        "UPDATE message SET body = (SELECT body FROM before WHERE before.id = CASE message.id / 2 % 2
           WHEN 0 THEN message.id + 2 ELSE message.id - 2 END)
         WHERE id BETWEEN ?1 - 1 AND ?2 - 1",
    ),
];

/// Runs one attack on this database file, on the rows from the first to the last id.
pub(crate) fn vandalise(file: &Path, deed: &str, first: &str, last: &str) -> Result<(), CannotRun> {
    part::end_with_input();
    let sql = DEEDS.iter().find(|(name, _)| *name == deed).map(|(_, sql)| *sql);
    let sql = sql.context(format!("unknown attack {deed}"))?;
    let number = |text: &str| text.parse::<i64>().context(text);
    let (first, last) = (number(first)?, number(last)?);
    let changed = write(file, sql, first, last).context(format!("the attack {deed} failed"))?;
    println!("{changed}");
    Ok(())
}

fn write(file: &Path, sql: &str, first: i64, last: i64) -> rusqlite::Result<usize> {
    let conn = Connection::open(file)?;
    conn.execute(
        "CREATE TEMP TABLE before AS SELECT id, body FROM message WHERE id BETWEEN ?1 - 3 AND ?2 + 3",
        (first, last),
    )?;
    conn.execute("CREATE UNIQUE INDEX temp.before_id ON before (id)", ())?;
    conn.execute(sql, (first, last))
}
