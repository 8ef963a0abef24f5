//! The MAC of a pending row: made in the task that schedules the delivery, before the request reaches the writer, and
//! checked when the row is read back to be sent (L2).
//!
//! It covers every column of the row except its place and its collapse key. The payload is bound to the row by the
//! message's id: it is sealed for that id and opens for no other.
//!
//! Invariant: a row that was not written with the store's key, or whose delivery has ended or moved on, is handed over
//! as [`Token::Rejected`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::{Cause, Delivery, Expiry, State, Timestamp};
use posthaste_crypto::row_mac::{Checked, Ends, REST_BYTES, RowMac, RowMacKey, Scheduled};
use rusqlite::Connection;

use super::{Shared, cause_number, compact_number, key, micros, prepare, split, tier_number};
use crate::{Settled, Settlement, StoreError, Token};

/// The default of the setting `retry_token_ttl`: a row that is overdue by no more is sent if its MAC is valid.
pub const RETRY_TOKEN_TTL: Duration = Duration::from_secs(300);

/// Counts of renewed rows and of quarantined deliveries since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Rows overdue by more than the TTL that passed a further check against the history. A row that is read again
    /// counts again.
    pub renewed: u64,
    /// Deliveries whose row was forged or altered: ended as dead, never sent.
    pub rejected: u64,
}

#[derive(Default)]
pub(super) struct TokenCounters {
    /// A row that is overdue by no more is sent if its MAC is valid.
    ttl: Duration,
    renewed: AtomicU64,
    rejected: AtomicU64,
    #[cfg(any(test, feature = "conformance"))]
    trusting: std::sync::atomic::AtomicBool,
}

impl TokenCounters {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, ..Self::default() }
    }

    pub(super) fn read(&self) -> Tokens {
        Tokens { renewed: self.renewed.load(Ordering::Relaxed), rejected: self.rejected.load(Ordering::Relaxed) }
    }

    /// Logs and counts the deliveries that settlements have quarantined.
    pub(super) fn tell(&self, suspects: &[usize], settled: &[Settled]) {
        for _ in suspects.iter().filter(|index| settled.get(**index) == Some(&Settled::Done)) {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            // The store has no public ids: the dead letters with this cause name the deliveries.
            tracing::error!(
                cause = Cause::TokenRejected.code(),
                "a delivery was forged or altered in the database file; it ends as a dead letter and is not sent"
            );
        }
    }

    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn trust(&self) {
        self.trusting.store(true, Ordering::Relaxed);
    }

    #[cfg(any(test, feature = "conformance"))]
    fn trusts(&self) -> bool {
        self.trusting.load(Ordering::Relaxed)
    }

    #[cfg(not(any(test, feature = "conformance")))]
    fn trusts(&self) -> bool {
        false
    }
}

/// The indexes of the settlements that quarantine a delivery.
pub(super) fn suspects(settlements: &[Settlement]) -> Vec<usize> {
    let is_suspect = |settlement: &Settlement| {
        matches!(settlement.record.delivery.state, State::Dead { cause: Cause::TokenRejected, .. })
    };
    settlements.iter().enumerate().filter(|(_, settlement)| is_suspect(settlement)).map(|(index, _)| index).collect()
}

/// The new MACs of the rows that settlements change; none where a delivery ends, and an empty list if all end.
pub(super) fn macs_of_settle(key: &RowMacKey, settlements: &[Settlement]) -> Vec<Option<RowMac>> {
    let waits = |settlement: &Settlement| !settlement.record.delivery.state.is_terminal();
    if !settlements.iter().any(waits) {
        return Vec::new();
    }
    let mac = |settlement: &Settlement| waits(settlement).then(|| make(key, &settlement.record.delivery));
    settlements.iter().map(mac).collect()
}

pub(super) fn make(key: &RowMacKey, delivery: &Delivery) -> RowMac {
    key.make(&scheduled(delivery))
}

/// The columns of a delivery's row that its MAC covers.
fn scheduled(delivery: &Delivery) -> Scheduled {
    let (state, due, cause) = split(&delivery.state);
    let numbers = [
        tier_number(delivery.tier),
        state,
        cause.map_or(0, |cause| cause_number(cause) + 1),
        delivery.last_cause.map_or(0, |cause| cause_number(cause) + 1),
        compact_number(delivery.compact),
        delivery.limited_in_a_row,
    ];
    let times =
        [delivery.born.as_millis(), delivery.previous_wait.map_or(-1, micros), delivery.ack_within.map_or(-1, micros)];
    let mut rest = [0; REST_BYTES];
    let (first, last) = rest.split_at_mut(numbers.len());
    first.copy_from_slice(&numbers);
    for (at, time) in last.chunks_exact_mut(8).zip(times) {
        at.copy_from_slice(&time.to_be_bytes());
    }
    Scheduled {
        delivery: delivery.id.raw(),
        message: delivery.message.raw(),
        endpoint: delivery.endpoint.raw(),
        lane: delivery.lane.raw(),
        attempts: delivery.attempts.into(),
        due_ms: due.unwrap_or(Timestamp::MAX).as_millis(),
        ends: match delivery.expiry {
            Expiry::Never => Ends::Never,
            Expiry::At(at) => Ends::At(at.as_millis()),
            Expiry::NowOrNever(at) => Ends::NowOrNever(at.as_millis()),
        },
        rest,
    }
}

/// Checks rows on their way to the dispatch loop.
pub(super) struct Check<'s> {
    pub(super) shared: &'s Shared,
    pub(super) now: Timestamp,
}

impl Check<'_> {
    /// Whether a row may be sent. `mac` is the column as it is in the file; it may have any length.
    pub(super) fn token(&self, conn: &Connection, delivery: &Delivery, mac: &[u8]) -> Result<Token, StoreError> {
        let count = &self.shared.tokens;
        if count.trusts() {
            return Ok(Token::Valid);
        }
        let Ok(mac) = mac.try_into().map(RowMac) else { return Ok(Token::Rejected) };
        let key = &self.shared.vault.row_macs;
        let checked = key.check(&scheduled(delivery), &mac, self.now.as_millis(), count.ttl);
        // An old row that was put back has a valid MAC, so the outcomes are checked too.
        if checked == Checked::Forged || has_ended(conn, delivery)? {
            return Ok(Token::Rejected);
        }
        if checked == Checked::Valid {
            return Ok(Token::Valid);
        }
        if has_moved_on(conn, delivery)? {
            return Ok(Token::Rejected);
        }
        count.renewed.fetch_add(1, Ordering::Relaxed);
        Ok(Token::Renewed)
    }
}

fn has_ended(conn: &Connection, delivery: &Delivery) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM outcome WHERE id = ?1";
    prepare(conn, "look for the end of a delivery", sql)?.exists([key(delivery.id.0)])
}

/// Whether the history has a later attempt than the row counts. It may have fewer attempts than the row, since
/// retention deletes the oldest.
fn has_moved_on(conn: &Connection, delivery: &Delivery) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM attempt WHERE delivery = ?1 AND late = 0 AND number > ?2";
    prepare(conn, "look for the attempts of a delivery", sql)?.exists((key(delivery.id.0), delivery.attempts))
}
