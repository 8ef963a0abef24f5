//! Whoever has the file and not the key: writes rows as the store would, as well as anybody can.
//!
//! It knows the tables, which are no secret, and nothing else: no key, and no function of the store.

use std::path::Path;
use std::process::ExitCode;

use rusqlite::Connection;

use crate::part;
use crate::prove::CannotRun;

/// What it does to the deliveries `?1` to `?2`. Those of the store under attack have odd ids, and each
/// carries the message before it.
const DEEDS: &[(&str, &str)] = &[
    // A second row for the same message: with a MAC of its own making, or with another row's.
    (
        "forged",
        "INSERT INTO delivery
         SELECT id + 1, back + 1, endpoint, lane, tier, state, due_ms, cause, attempts, born_ms, expiry, expires_ms,
           previous_wait_us, limited_in_a_row, last_cause, ack_within_us, compact, place, collapse,
           CASE id / 2 % 2 WHEN 0 THEN randomblob(16) ELSE mac END
         FROM delivery WHERE id BETWEEN ?1 AND ?2",
    ),
    // To another endpoint, whose number is odd.
    (
        "endpoint",
        "UPDATE delivery SET endpoint = CASE endpoint WHEN 1 THEN 3 ELSE endpoint - 2 END WHERE id BETWEEN ?1 AND ?2",
    ),
    // In another lane, whose number is even.
    ("lane", "UPDATE delivery SET lane = CASE lane WHEN 2 THEN 4 ELSE lane - 2 END WHERE id BETWEEN ?1 AND ?2"),
    // Somebody else's message, with the MAC that was made for its own delivery's sake.
    (
        "message",
        "UPDATE delivery SET back = back + 2,
           mac = coalesce((SELECT mac FROM delivery AS other WHERE other.id = delivery.id - 2), mac)
         WHERE id BETWEEN ?1 AND ?2",
    ),
    // Today instead of tomorrow.
    ("due", "UPDATE delivery SET due_ms = born_ms WHERE id BETWEEN ?1 AND ?2"),
    // As if it had been tried already.
    ("attempts", "UPDATE delivery SET attempts = 2, state = 1, cause = 5 WHERE id BETWEEN ?1 AND ?2"),
    // A year longer than its sender wanted.
    ("expiry", "UPDATE delivery SET expires_ms = expires_ms + 31536000000 WHERE id BETWEEN ?1 AND ?2"),
    // Each payload in the place of its neighbour's.
    (
        "payload",
        "UPDATE message SET body = (SELECT body FROM before WHERE before.id = CASE message.id / 2 % 2
           WHEN 0 THEN message.id + 2 ELSE message.id - 2 END)
         WHERE id BETWEEN ?1 - 1 AND ?2 - 1",
    ),
];

/// Does one deed, as it was told to.
pub fn main(args: &[String]) -> ExitCode {
    part::end_with_input();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args.as_slice() {
        [file, deed, first, last] => vandalise(Path::new(file), deed, first, last),
        _ => Err(CannotRun("this is one part of the proof retry-tokens, which starts it".to_owned())),
    };
    part::ended("forger", ended)
}

fn vandalise(file: &Path, deed: &str, first: &str, last: &str) -> Result<(), CannotRun> {
    let sql = DEEDS.iter().find(|(name, _)| *name == deed).map(|(_, sql)| *sql);
    let sql = sql.ok_or_else(|| CannotRun(format!("nobody does {deed}")))?;
    let number = |text: &str| text.parse::<i64>().map_err(|error| CannotRun(format!("{text}: {error}")));
    let (first, last) = (number(first)?, number(last)?);
    let changed = write(file, sql, first, last).map_err(|error| CannotRun(format!("cannot do {deed}: {error}")))?;
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
