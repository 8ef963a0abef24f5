//! Excerpts: the first bytes of receivers' answers to failed attempts, sealed under the key of the message, so that
//! erasing the message's data erases them too.

use bytes::Bytes;
use posthaste_core::{DeliveryId, MessageId, TenantId};
use rusqlite::Connection;

use super::{Vault, get, key, prepare, stored_key};
use crate::{Settlement, StoreError};

/// An excerpt of a settlement, not sealed yet.
pub(super) struct Said {
    /// The index of the settlement.
    at: usize,
    message: MessageId,
    delivery: DeliveryId,
    number: u16,
    excerpt: Bytes,
}

pub(super) fn take(settlements: &mut [Settlement]) -> Vec<Said> {
    let excerpts = settlements.iter_mut().enumerate().filter_map(|(at, settlement)| {
        let excerpt = settlement.excerpt.take()?;
        let delivery = &settlement.record.delivery;
        Some(Said { at, message: delivery.message, delivery: delivery.id, number: settlement.attempt?.number, excerpt })
    });
    excerpts.collect()
}

/// Seals excerpts; returns each with the index of its settlement. Leaves out those of messages whose key is destroyed.
pub(super) fn seal(conn: &Connection, vault: &Vault, excerpts: &[Said]) -> Result<Vec<(usize, Bytes)>, StoreError> {
    let mut sealed = Vec::with_capacity(excerpts.len());
    for Said { at, message, delivery, number, excerpt } in excerpts {
        let Some((tenant, head)) = head(conn, *message)? else { continue };
        let excerpt = vault.seal_excerpt(conn, (tenant, *delivery, *number), &head, excerpt)?;
        sealed.extend(excerpt.map(|excerpt| (*at, Bytes::from(excerpt))));
    }
    Ok(sealed)
}

/// The tenant and the sealed head of a message.
pub(super) const HEAD: &str =
    "SELECT tenant, head FROM message WHERE id = ?1 UNION ALL SELECT tenant, head FROM kept WHERE id = ?1";

/// The tenant and the sealed head of a message, which names the key that it is sealed under.
fn head(conn: &Connection, message: MessageId) -> Result<Option<(TenantId, Vec<u8>)>, StoreError> {
    let found: Option<(i64, _)> =
        prepare(conn, "read the sealed head of a message", HEAD)?.columns([key(message.0)])?;
    found.map(|(tenant, head)| Ok((TenantId(stored_key(tenant)?), head))).transpose()
}

/// Writes the sealed excerpt of a settlement, if it has one, with the tenant of its message.
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

/// The excerpts of a delivery's attempts, by number of the attempt.
pub(super) fn of(conn: &Connection, vault: &Vault, id: DeliveryId) -> Result<Vec<(u16, Bytes)>, StoreError> {
    let sql = "SELECT number, tenant, sealed FROM excerpt WHERE delivery = ?1 ORDER BY number";
    prepare(conn, "read excerpts of answers", sql)?.read_some([key(id.0)], usize::MAX, |row| {
        let (number, tenant) = (get(row, 0)?, TenantId(stored_key(get(row, 1)?)?));
        let plain = vault.open_excerpt(conn, (tenant, id, number), &get::<Vec<u8>>(row, 2)?)?;
        Ok(plain.map(|plain| (number, Bytes::from(plain))))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use posthaste_core::{
        Cause, Delivery, DeliveryChange, EndpointId, Key, LaneId, LaneSettings, Policy, RowIndex, Shard, State, Tier,
        Timestamp,
    };

    use super::*;
    use crate::sqlite::fixture::fresh;
    use crate::{Accepted, AttemptRecord, Message, NewDelivery, Outbox, Session, Settled};

    const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

    fn message(session: Session, n: u64) -> Accepted {
        let id = MessageId(Key::new(session.writer, 1 + n * 2));
        let (tenant, lane) = (TenantId::from_raw(9), LaneId::from_raw(5));
        let delivery =
            Delivery::queued(DeliveryId(id.0.plus(1)), id, EndpointId::from_raw(4), lane, Tier::Promotional, NOW);
        let lane = Arc::new(LaneSettings::new(lane, tenant, Arc::new(Policy::default())));
        let message = Message { subject: Some(n.to_string()), ..Message::new(id, tenant, NOW, "a body") };
        Accepted::new(message, vec![NewDelivery::new(delivery, RowIndex::Ready, lane)])
    }

    fn refused(session: Session, accepted: &Accepted) -> Settlement {
        let before = &accepted.deliveries[0].delivery;
        let state = State::Dead { at: NOW, cause: Cause::BadRequest };
        Settlement {
            record: DeliveryChange {
                attempts_before: 0,
                place: RowIndex::Delayed,
                shard: Shard::of(before.lane),
                pauses_lane: false,
                endpoint_change: None,
                delivery: Delivery { state, attempts: 1, ..before.clone() },
            },
            epoch: session.epoch,
            excerpt: Some(Bytes::from_static(b"go away")),
            attempt: Some(AttemptRecord {
                number: 1,
                at: NOW,
                took: Duration::ZERO,
                cause: Cause::BadRequest,
                status: Some(400),
            }),
        }
    }

    #[tokio::test]
    async fn outcomes_are_recorded_also_when_their_excerpts_cannot_be_sealed() {
        let (folder, store, session) = fresh().await;
        let accepted: Vec<Accepted> = (0..3).map(|n| message(session, n)).collect();
        _ = store.accept(session, accepted.clone()).await.expect("it accepts");
        let beside = Connection::open(folder.path().join("posthaste.db")).expect("the file opens");
        let spoil = "UPDATE message SET head = x'00' WHERE id = ?1";
        assert_eq!(beside.execute(spoil, [key(accepted[1].message.id.0)]).expect("it is there"), 1);

        let settlements = accepted.iter().map(|accepted| refused(session, accepted)).collect();
        let settled = store.settle(session, settlements).await.expect("it settles");
        assert_eq!(settled, [Settled::Done; 3]);
        let again = message(session, 3);
        _ = store.accept(session, vec![again.clone()]).await.expect("it accepts");
        _ = store.settle(session, vec![refused(session, &again)]).await.expect("it settles");
        let found = of(&beside, &store.shared.vault, again.deliveries[0].delivery.id).expect("it reads");
        assert_eq!(found, [(1, Bytes::from_static(b"go away"))], "later excerpts are kept");
        store.close().await;
    }
}
