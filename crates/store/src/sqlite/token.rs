//! What a pending row says of itself: its MAC is made where its delivery is scheduled, before the writer,
//! and checked where the row is read back to be sent (L2).
//!
//! It covers every column of the row but its place and its collapse key. What is sent is bound by the
//! message's id, for which the payload is sealed.
//!
//! Invariant: a row that nobody with the store's key has scheduled, or whose delivery has ended or moved
//! on, is handed over as [`Token::Rejected`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::delivery::{Delivery, Expiry};
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;
use posthaste_crypto::row_mac::{Checked, Ends, REST_BYTES, RowMac, RowMacKey, Scheduled};
use rusqlite::Connection;

use super::column::{cause_number, compact_number, key, micros, split, tier_number};
use super::{Shared, failed};
use crate::StoreError;
use crate::row::{Settled, Settlement, Token};

/// How long after it is due a row is sent for its MAC alone, where nothing else is set (`retry_token_ttl`).
pub const RETRY_TOKEN_TTL: Duration = Duration::from_secs(300);

/// Rows that were read late and found genuine, and deliveries that were quarantined, since the store was
/// opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Late, and verified once more against what is known of their delivery. A row that is read again counts
    /// again.
    pub renewed: u64,
    /// Forged or altered: ended as dead, never sent.
    pub rejected: u64,
}

#[derive(Debug, Default)]
pub(super) struct Count {
    /// How long after it is due a row is sent for its MAC alone.
    ttl: Duration,
    renewed: AtomicU64,
    rejected: AtomicU64,
    #[cfg(any(test, feature = "conformance"))]
    trusting: std::sync::atomic::AtomicBool,
}

impl Count {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, ..Self::default() }
    }

    pub(super) fn read(&self) -> Tokens {
        Tokens { renewed: self.renewed.load(Ordering::Relaxed), rejected: self.rejected.load(Ordering::Relaxed) }
    }

    /// Tells of what has been quarantined, and counts it.
    pub(super) fn tell(&self, suspects: &[Suspect], settled: &[Settled]) {
        for suspect in suspects.iter().filter(|suspect| settled.get(suspect.place) == Some(&Settled::Done)) {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                delivery = %suspect.delivery,
                endpoint = %suspect.endpoint,
                "a delivery was forged or altered in the database file: it is dead, and not sent"
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

/// A settlement that quarantines a delivery, by its place among others.
pub(super) struct Suspect {
    place: usize,
    delivery: DeliveryId,
    endpoint: EndpointId,
}

/// Those among settlements that quarantine.
pub(super) fn suspects(settlements: &[Settlement]) -> Vec<Suspect> {
    let is_suspect = |settlement: &Settlement| {
        matches!(settlement.record.delivery.state, State::Dead { cause: Cause::TokenRejected, .. })
    };
    let suspects = settlements.iter().enumerate().filter(|(_, settlement)| is_suspect(settlement));
    let suspect = |(place, settlement): (usize, &Settlement)| Suspect {
        place,
        delivery: settlement.record.delivery.id,
        endpoint: settlement.record.delivery.endpoint,
    };
    suspects.map(suspect).collect()
}

/// The MACs that settlements leave with rows that wait on; none where a row ends.
pub(super) fn of_settle(key: &RowMacKey, settlements: &[Settlement]) -> Vec<Option<RowMac>> {
    let waits = |settlement: &Settlement| !settlement.record.delivery.state.is_terminal();
    if !settlements.iter().any(waits) {
        return Vec::new();
    }
    let mac = |settlement: &Settlement| waits(settlement).then(|| make(key, &settlement.record.delivery));
    settlements.iter().map(mac).collect()
}

/// The MAC of a delivery's row.
pub(super) fn make(key: &RowMacKey, delivery: &Delivery) -> RowMac {
    key.make(&scheduled(delivery))
}

/// A delivery as its row has it.
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
    /// Whether a row may be sent; its MAC as it stands there, whatever that is.
    pub(super) fn token(&self, conn: &Connection, delivery: &Delivery, mac: &[u8]) -> Result<Token, StoreError> {
        let count = &self.shared.tokens;
        if count.trusts() {
            return Ok(Token::Valid);
        }
        let Ok(mac) = mac.try_into().map(RowMac) else { return Ok(Token::Rejected) };
        let key = self.shared.vault.row_macs();
        let checked = key.check(&scheduled(delivery), &mac, self.now.as_millis(), count.ttl);
        // A row that was put back is as genuine as it was then.
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
    conn.prepare_cached("SELECT 1 FROM outcome WHERE id = ?1")
        .and_then(|mut sql| sql.exists([key(delivery.id.0)]))
        .map_err(failed("look for the end of a delivery"))
}

/// Whether the history knows of more attempts than the row does. Of fewer it may know: retention lets go
/// of the oldest.
fn has_moved_on(conn: &Connection, delivery: &Delivery) -> Result<bool, StoreError> {
    conn.prepare_cached("SELECT 1 FROM attempt WHERE delivery = ?1 AND late = 0 AND number > ?2")
        .and_then(|mut sql| sql.exists((key(delivery.id.0), delivery.attempts)))
        .map_err(failed("look for the attempts of a delivery"))
}
