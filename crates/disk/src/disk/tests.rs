//! Tests of a real store on a simulated disk that is full or fails.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Cause, Delivery, DeliveryId, EndpointId, Key, LaneId, LaneSettings, MessageId, Policy, RowIndex, State, TenantId,
    Tier,
};
use posthaste_store::sqlite::{Bounds, Sqlite};
use posthaste_store::{
    Accepted, AuditStamp, Document, DocumentKind, Filed, Message, NewDelivery, Outbox, Register, Session, Settled,
    Settlement, StoreError,
};
use posthaste_testkit::master_key;
use tempfile::TempDir;

use super::FaultyDisk;
use crate::load::{NOW, settlement};

const RESERVE: u64 = 1 << 20;

/// The log is not restarted in these tests: reusing its space would make room on a full disk.
fn bounds(reserve_bytes: u64) -> Bounds {
    Bounds { reserve_bytes, again_after: Duration::from_millis(2), ..Bounds::default() }
}

/// A fresh store on a disk of its own.
async fn opened(seed: u64, reserve_bytes: u64) -> (TempDir, FaultyDisk, Sqlite, Session) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = FaultyDisk::of(folder.path(), seed).expect("the folder is there");
    let store = Sqlite::open_bounded(folder.path(), master_key(), bounds(reserve_bytes)).expect("a fresh folder opens");
    let session = store.open(NOW).await.expect("a fresh store opens").session;
    (folder, disk, store, session)
}

fn message(session: Session, n: u64) -> Accepted {
    let message = MessageId(Key::new(session.writer, 1 + n * 2));
    let (tenant, lane) = (TenantId::from_raw(9), LaneId::from_raw(5));
    let delivery =
        Delivery::queued(DeliveryId(message.0.plus(1)), message, EndpointId::from_raw(4), lane, Tier::Promotional, NOW);
    let lane = Arc::new(LaneSettings::new(lane, tenant, Arc::new(Policy::default())));
    let message =
        Message { correlation_id: Some(message.to_string()), ..Message::new(message, tenant, NOW, vec![b'x'; 20_000]) };
    let deliveries = vec![NewDelivery::new(delivery, RowIndex::Ready, lane)];
    Accepted::new(message, deliveries)
}

fn delivered(session: Session, accepted: &Accepted) -> Settlement {
    let before = &accepted.deliveries[0].delivery;
    let delivery = Delivery { state: State::Delivered { at: NOW }, attempts: 1, ..before.clone() };
    settlement(session, delivery, Cause::Ok, Duration::ZERO)
}

/// Accepts messages until the disk is full. Returns the accepted ones.
async fn fill(store: &Sqlite, session: Session) -> Vec<Accepted> {
    let mut accepted = Vec::new();
    loop {
        let next = message(session, accepted.len() as u64);
        match store.accept(session, vec![next.clone()]).await {
            Ok(_) => accepted.push(next),
            Err(StoreError::Full) => return accepted,
            Err(error) => panic!("a full disk must not stop the store: {error}"),
        }
        store.arrivals().await;
    }
}

/// Settles a delivery on a disk without any room. `free` runs once the settle was tried several times, and makes room.
async fn settle_on_a_full_disk(store: &Sqlite, session: Session, disk: &FaultyDisk, free: impl Future<Output = ()>) {
    let accepted = message(session, 0);
    store.accept(session, vec![accepted.clone()]).await.expect("there is room");
    store.arrivals().await;
    disk.set_room(0);
    let free = async {
        while disk.struck() < 4 {
            tokio::task::yield_now().await;
        }
        free.await;
    };
    let both = async { tokio::join!(store.settle(session, vec![delivered(session, &accepted)]), free) };
    let (settled, ()) = tokio::time::timeout(Duration::from_secs(30), both).await.expect("the settle is tried again");
    assert_eq!(settled.expect("there is room again"), [Settled::Done]);
}

/// Retries a message until the store accepts it.
async fn accept_again(store: &Sqlite, session: Session, n: u64) {
    let resumed = async {
        while let Err(error) = store.accept(session, vec![message(session, n)]).await {
            assert!(matches!(error, StoreError::Full), "{error}");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), resumed).await.expect("the store accepts again by itself");
}

#[test]
fn first_start_on_a_full_disk_is_refused_and_leaves_no_damage() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = FaultyDisk::of(folder.path(), 1).expect("the folder is there");
    for room in [0, 10_000, 100_000] {
        disk.set_room(room);
        let refused =
            Sqlite::open_bounded(folder.path(), master_key(), bounds(0)).expect_err("there is no room").to_string();
        assert!(refused.contains("the disk is full; free some space and start again"), "{refused}");
    }
    disk.heal();
    Sqlite::open_bounded(folder.path(), master_key(), bounds(0)).expect("there is room");
}

#[tokio::test]
async fn accepted_deliveries_are_settled_from_the_reserve_on_a_full_disk() {
    let (folder, disk, store, session) = opened(2, RESERVE).await;
    disk.set_room(5 << 20);
    let accepted = fill(&store, session).await;
    // How many fit depends on how much of them is in the log and in the database at the same time.
    assert!(accepted.len() > 20, "{} were accepted", accepted.len());
    for one in &accepted[..8] {
        let settled = store.settle(session, vec![delivered(session, one)]).await.expect("the reserve has room");
        assert_eq!(settled, [Settled::Done]);
    }
    disk.heal();
    accept_again(&store, session, 1_000).await;
    assert_eq!(store.stopped(), None);
    assert_eq!(std::fs::metadata(folder.path().join("reserve")).expect("the reserve exists again").len(), RESERVE);
}

#[tokio::test]
async fn settle_without_any_room_waits_until_there_is_room() {
    let (_folder, disk, store, session) = opened(3, 0).await;
    let free = async {
        let refused = store.accept(session, vec![message(session, 1)]).await;
        assert!(matches!(refused, Err(StoreError::Full)), "{refused:?}");
        disk.heal();
    };
    settle_on_a_full_disk(&store, session, &disk, free).await;
    accept_again(&store, session, 2).await;
}

#[tokio::test]
async fn store_on_a_failing_disk_answers_stopped_and_keeps_the_reason() {
    let (_folder, disk, store, session) = opened(4, 0).await;
    disk.fail(super::DiskFault { call: super::DiskCall::Sync, kind: super::FaultKind::Broken, at: 1, times: 1 });
    for n in 0..3 {
        let refused = store.accept(session, vec![message(session, n)]).await;
        assert!(matches!(refused, Err(StoreError::Stopped)), "{refused:?}");
    }
    let why = store.stopped().expect("the store keeps the reason");
    assert!(why.starts_with("cannot commit: disk I/O error"), "{why}");
}

#[tokio::test]
async fn document_filed_without_any_room_is_refused_and_not_stored_later() {
    let (_folder, disk, store, session) = opened(5, 0).await;
    let (tenant, id) = (TenantId::from_raw(9), Key::from_raw(5));
    let document = Document { kind: DocumentKind::Policy, id, tenant, name: None, at: NOW, body: "{}".into() };
    let free = async {
        for _ in 0..10 {
            let refused = store.file(session, document.clone(), None, AuditStamp::at(NOW)).await;
            assert!(matches!(refused, Err(StoreError::Full)), "{refused:?}");
        }
        disk.heal();
    };
    settle_on_a_full_disk(&store, session, &disk, free).await;
    assert_eq!(store.document(DocumentKind::Policy, id).await.expect("the store can be read"), None, "it was refused");
    assert_eq!(
        store.file(session, document, None, AuditStamp::at(NOW)).await.expect("there is room again"),
        Filed::Done
    );
}
