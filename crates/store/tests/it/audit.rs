//! Audits of a data folder: the rows its checkpoints cover, and the store and key they belong to.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Delivery, DeliveryId, EndpointId, Key, LaneId, MessageId, RowIndex, State, TenantId, Tier, Timestamp,
};
use posthaste_store::audit::{AuditReport, CheckpointSource, Finding};
use posthaste_store::sqlite::audit::{Trust, newest_checkpoint, verify};
use posthaste_store::sqlite::{Bounds, Sqlite};
use posthaste_store::{
    Accepted, Archive, AuditStamp, Checkpoints, Directory, Endpoint, Message, NewDelivery, Outbox, Retention,
    RetentionOverride, RetentionOverrides, RetentionPhase, RetentionStep, Session, Signed,
};

use crate::{DAY, day, ended, new_folder, opened, retain};

struct Filled {
    store: Sqlite,
    session: Session,
}

impl Filled {
    async fn open(path: &Path) -> Self {
        let (store, session) = opened(path).await;
        Self { store, session }
    }

    async fn accept(&self, number: u64, at: Timestamp) {
        let id = MessageId(Key::new(self.session.writer, number));
        let message =
            Message { correlation_id: Some(number.to_string()), ..Message::new(id, TenantId::from_raw(1), at, "{}") };
        _ = self.store.accept(self.session, vec![Accepted::new(message, Vec::new())]).await.expect("the store accepts");
    }

    /// Accepts the `nth` message of a tenant for its only endpoint, and records it as delivered.
    async fn deliver(&self, nth: u64, tenant: u64, at: Timestamp) {
        let id = MessageId(Key::new(self.session.writer, 10 * nth));
        let (tenant, endpoint) = (TenantId::from_raw(tenant), EndpointId::from_raw(tenant));
        let endpoint = Endpoint::new(endpoint, LaneId(endpoint.0.plus(70)), tenant, at, "https://example.com/");
        let lane = Arc::new(endpoint.lane_settings());
        let delivery = Delivery::queued(DeliveryId(id.0.plus(1)), id, endpoint.id, lane.lane, Tier::Promotional, at);
        let new = NewDelivery::new(delivery.clone(), RowIndex::Ready, lane);
        let put = self.store.put_endpoint(self.session, endpoint, None, AuditStamp::at(at)).await;
        _ = put.expect("the store takes it");
        let accepted = vec![Accepted::new(Message::new(id, tenant, at, "{}"), vec![new])];
        _ = self.store.accept(self.session, accepted).await.expect("the store accepts");
        let settlement = ended(self.session, &delivery, State::Delivered { at }, at);
        _ = self.store.settle(self.session, vec![settlement]).await.expect("the store settles");
    }

    /// Runs retention from a phase on; returns the number of rows deleted.
    async fn retain(&self, from: RetentionPhase, now: Timestamp) -> u64 {
        retain(&self.store, self.session, Retention::default(), RetentionStep::of(from), now).await.0
    }

    async fn set_retention_overrides(&self, tenant: u64, history: Duration, now: Timestamp) {
        let own = RetentionOverride { history: Some(history), ..RetentionOverride::default() };
        let agreed = RetentionOverrides::all(vec![(TenantId::from_raw(tenant), own)]);
        assert_eq!(self.store.set_retention_overrides(self.session, agreed, now).await.expect("the store takes it"), 1);
    }

    async fn sign(&self, at: Timestamp) -> Signed {
        self.store.sign(self.session, 1, at).await.expect("the store signs").expect("there are rows to sign")
    }
}

pub(super) fn audit(folder: &Path, trust: &Trust) -> AuditReport {
    verify(folder, trust, |_| {}).expect("the folder can be read").report
}

#[tokio::test]
async fn folder_is_audited_while_open_and_after_close() {
    let folder = new_folder();
    let filled = Filled::open(folder.path()).await;
    for number in 1..=3 {
        filled.accept(number, day(0)).await;
    }
    let signed = filled.sign(day(0)).await;
    let trust = Trust::without_checkpoints(day(0));
    let beside = audit(folder.path(), &trust);
    assert_eq!((beside.findings.as_slice(), beside.rows, beside.signed), (&[][..], 4, 4));
    let key = filled.store.public_key();
    filled.store.close().await;
    assert_eq!(audit(folder.path(), &trust), beside);
    assert_eq!(newest_checkpoint(folder.path()).expect("it can be read"), (Some(signed.clone()), key));
    let exported = Trust { checkpoints: vec![signed.line], public_key: Some(key), ..trust };
    assert_eq!(audit(folder.path(), &exported).vouched, 4);
}

/// The log grows past its bound while an audit reads, and restarts afterwards.
#[test]
fn writer_does_not_wait_for_an_audit_at_the_log_bound() {
    const LOG: u64 = 1 << 20;
    let folder = new_folder();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let bounds = Bounds { reserve_bytes: 0, log_bytes: LOG, ..Bounds::default() };
    let filled = runtime.block_on(async {
        let store = Sqlite::open_bounded(folder.path(), crate::master_key(), bounds).expect("a fresh folder opens");
        let session = store.open(day(0)).await.expect("a session begins").session;
        Filled { store, session }
    });
    let mut number = 0;
    let mut grow = || {
        for _ in 0..100 {
            number += 1;
            let id = MessageId(Key::new(filled.session.writer, number));
            let message = Message::new(id, TenantId::from_raw(1), day(0), vec![b'x'; 40_000]);
            let accepted = filled.store.accept(filled.session, vec![Accepted::new(message, Vec::new())]);
            _ = runtime.block_on(accepted).expect("the store accepts");
        }
        std::fs::metadata(folder.path().join("posthaste.db-wal")).expect("the log is there").len()
    };
    assert!(grow() <= LOG);
    let mut grown = 0;
    let report =
        verify(folder.path(), &Trust::without_checkpoints(day(0)), |_| grown = grow()).expect("it is read").report;
    assert_eq!((report.findings.as_slice(), report.rows), (&[][..], 101), "the rows at the start of the audit");
    assert!(grown > LOG, "{grown} bytes");
    assert!(grow() <= grown, "the log restarts");
}

#[tokio::test]
async fn checkpoints_are_deleted_with_their_rows_and_an_exported_one_is_past() {
    let folder = new_folder();
    let filled = Filled::open(folder.path()).await;
    filled.accept(1, day(0)).await;
    let old = filled.sign(day(0)).await;
    filled.accept(2, day(1)).await;
    filled.accept(3, day(2)).await;
    filled.sign(day(2)).await;
    filled.store.catch_up().await.expect("the journal is followed");
    assert_eq!(filled.retain(RetentionPhase::History, day(500)).await, 3, "rows of the journal");
    let trust = Trust { checkpoints: vec![old.line], ..Trust::without_checkpoints(day(500)) };
    assert!(
        audit(folder.path(), &trust).findings.iter().all(|finding| matches!(finding, Finding::Unsigned { .. })),
        "by the journal's times the store ran for days, so a checkpoint is due"
    );
    let last = filled.sign(day(500)).await;
    let left = filled.store.checkpoints(0, 10).await.expect("they are read");
    assert_eq!(left.iter().map(|signed| signed.row).collect::<Vec<_>>(), [4, last.row]);
    let report = audit(folder.path(), &trust);
    assert_eq!(report.findings, []);
    assert_eq!((report.first, report.expired_upto, report.past, report.vouched), (4, 3, 1, 0));
}

#[tokio::test]
async fn deletions_under_a_signed_override_are_no_finding() {
    let folder = new_folder();
    let filled = Filled::open(folder.path()).await;
    filled.deliver(1, 1, day(0)).await;
    filled.deliver(2, 2, day(0)).await;
    let history = DAY;
    let audited = |now| audit(folder.path(), &Trust::without_checkpoints(now));
    let found = |now| audited(now).findings;
    filled.set_retention_overrides(1, history, day(2)).await;
    filled.sign(day(2)).await;
    filled.store.catch_up().await.expect("the journal is followed");
    filled.retain(RetentionPhase::History, day(2)).await;
    assert_eq!(audited(day(2)).ends_expired, 1);
    assert_eq!(found(day(2)), [], "the deletion is not signed yet");
    filled.sign(day(2)).await;
    assert_eq!(found(day(2)), []);
    // The row of the override is deleted, and the override still counts.
    filled.store.catch_up().await.expect("the journal is followed");
    filled.retain(RetentionPhase::History, day(500)).await;
    filled.sign(day(500)).await;
    assert!(audited(day(500)).expired_upto > 0);
    filled.deliver(3, 1, day(500)).await;
    filled.retain(RetentionPhase::History, day(502)).await;
    assert_eq!(audited(day(502)).ends_expired, 1);
    let unsigned = |finding: &Finding| matches!(finding, Finding::Unsigned { .. });
    assert!(found(day(502)).iter().all(unsigned), "{:?}", found(day(502)));
    // A deletion before a checkpoint covers its override: an attacker could have added the override.
    let overdone = |finding: &Finding| matches!(finding, Finding::Overdone { .. });
    filled.sign(day(502)).await;
    filled.deliver(4, 2, day(502)).await;
    let own = RetentionOverride { history: Some(history), ..RetentionOverride::default() };
    let both = RetentionOverrides::all([1, 2].map(|tenant| (TenantId::from_raw(tenant), own)).to_vec());
    filled.store.set_retention_overrides(filled.session, both, day(504)).await.expect("the store takes it");
    filled.retain(RetentionPhase::History, day(504)).await;
    assert!(found(day(504)).iter().any(overdone), "{:?}", found(day(504)));
}

#[tokio::test]
async fn checkpoint_of_another_store_or_key_is_reported() {
    let (folder, other) = (new_folder(), new_folder());
    let (filled, foreign) = (Filled::open(folder.path()).await, Filled::open(other.path()).await);
    let (own, line) = (filled.sign(day(0)).await, foreign.sign(day(0)).await.line);
    let given = Trust { checkpoints: vec![line], ..Trust::without_checkpoints(day(0)) };
    let kept = CheckpointSource::Elsewhere;
    assert_eq!(audit(folder.path(), &given).findings, [Finding::Foreign { row: 1, kept }]);
    let altered = Trust { checkpoints: vec![own.line.replace(" 1 ", " 2 ")], ..Trust::without_checkpoints(day(0)) };
    assert!(matches!(
        audit(folder.path(), &altered).findings[..],
        [Finding::Forged { kept: CheckpointSource::Elsewhere, .. }]
    ));
    let wrong_key = Trust { public_key: Some(foreign.store.public_key()), ..Trust::without_checkpoints(day(0)) };
    assert!(
        matches!(
            audit(folder.path(), &wrong_key).findings[..],
            [Finding::Identity { .. }, Finding::Forged { row: 1, kept: CheckpointSource::InTheFile }]
        ),
        "the file's own checkpoints are not signed with the given key"
    );
}
