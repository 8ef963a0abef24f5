//! Entries survive a round trip through their packed form, and every change to a chain is detected.

use std::time::Duration;

use posthaste_core::flow::SharedGate;
use posthaste_core::scheduler::{BreakerOf, Reset};
use posthaste_core::{
    Cause, CutScope, DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, OriginId, State, TenantId, Tier,
};
use posthaste_crypto::master::MasterKeyId;

use super::*;
use crate::row::{
    ApiKeyRef, AttemptRecord, AuditStamp, ChangeKind, DocumentKind, EndpointStatus, JobState, PauseScope,
    RetentionOverride, RetentionPhase, SecretAct,
};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_760_000_000_000 + ms)
}

fn attempt(number: u16, status: Option<u16>) -> AttemptRecord {
    AttemptRecord {
        number,
        at: at(number.into()),
        took: Duration::from_micros(12_345),
        cause: Cause::Unavailable,
        status,
    }
}

fn ended(state: State, attempt: Option<AttemptRecord>) -> JournalEntry {
    JournalEntry::Ended {
        delivery: DeliveryId::from_raw(1 << 40 | 9),
        message: MessageId::from_raw(1 << 40 | 7),
        endpoint: EndpointId::from_raw(2),
        lane: LaneId::from_raw(3),
        tier: Tier::Engagement,
        state,
        attempts: 9,
        attempt,
    }
}

/// Entries of every kind, with each optional field present and absent.
fn every_kind() -> Vec<JournalEntry> {
    let accepted = |subject, correlation, deliveries: &[(EndpointId, u64, Tier)]| JournalEntry::Accepted {
        message: MessageId::from_raw(1 << 40 | 7),
        tenant: TenantId::from_raw(u64::MAX >> 1),
        at: at(0),
        digest: sha256(&[b"{}"]),
        subject,
        correlation,
        deliveries: deliveries.iter().map(|(of, lane, tier)| (*of, LaneId::from_raw(*lane), *tier)).collect(),
    };
    let (delivery, message) = (DeliveryId::from_raw(8), MessageId::from_raw(7));
    let (endpoint, lane, job) = (EndpointId::from_raw(2), LaneId::from_raw(3), JobId::from_raw(7));
    let (tenant, erased, upto) = (TenantId::from_raw(4), TenantId::from_raw(3), Key::from_raw(9));
    let by = Some(ApiKeyRef { key: Key::from_raw(1 << 40 | 2), made: at(3) });
    let origin = OriginId::from_raw(u64::MAX);
    let changed = |deed, status, by| JournalEntry::Endpoint {
        endpoint: EndpointId::from_raw(3),
        tenant,
        deed,
        status,
        at: at(5),
        by,
    };
    let retained =
        |phase, tenant| JournalEntry::Retained { phase, upto: 9, removed: 3, before: at(5), at: at(7), tenant };
    let an_hour = RetentionOverride { payload: Some(Duration::from_secs(3_600)), history: None };
    let whom = |mark: Option<u8>| ErasedTarget::Subject(mark.map(|byte| Hidden([byte; 16])));
    // A lane next to its endpoint, and lanes as far from it as ids allow.
    let (first, last) = (EndpointId::from_raw(0), EndpointId::from_raw(u64::MAX >> 1));
    let all = [(first, 1, Tier::Transactional), (first, u64::MAX >> 1, Tier::Promotional), (last, 3, Tier::Engagement)];
    vec![
        JournalEntry::Opened { session: 1, at: at(0) },
        accepted(None, None, &[]),
        accepted(Some(Hidden([1; 16])), None, &all),
        accepted(None, Some(Hidden([2; 16])), &all[..1]),
        accepted(Some(Hidden([1; 16])), Some(Hidden([2; 16])), &all),
        JournalEntry::Attempted { delivery, endpoint, attempt: attempt(1, None) },
        JournalEntry::Late { delivery, endpoint, attempt: attempt(65_535, Some(599)) },
        ended(State::Delivered { at: at(1) }, Some(attempt(9, Some(204)))),
        ended(State::Dead { at: at(2), cause: Cause::Gone }, None),
        ended(State::Expired { at: at(3) }, None),
        ended(State::Cancelled { at: Timestamp::from_millis(-5), cause: Cause::Superseded }, Some(attempt(9, None))),
        JournalEntry::Cut { scope: CutScope::Message(message), upto, cause: Cause::Ok, at: at(4), by: None },
        JournalEntry::Cut { scope: CutScope::Lane(lane), upto, cause: Cause::Cancelled, at: at(4), by },
        JournalEntry::Uncut { scope: CutScope::Lane(lane), at: at(4) },
        JournalEntry::Paused { scope: PauseScope::All, until: None, at: at(4), by: None },
        JournalEntry::Paused { scope: PauseScope::Tenant(tenant), until: Some(at(5)), at: at(4), by },
        JournalEntry::Resumed { scope: PauseScope::Lane(lane), at: at(4), by: None },
        JournalEntry::Hurried { delivery, message, endpoint, at: at(4), by },
        JournalEntry::Reset { of: BreakerOf::Lane(lane), how: Reset::Probe, at: at(4), by: None },
        JournalEntry::Reset { of: BreakerOf::Shared(SharedGate::Origin(origin)), how: Reset::Force, at: at(4), by },
        JournalEntry::Resumed { scope: PauseScope::Origin(origin), at: at(4), by },
        changed(ChangeKind::Changed, EndpointStatus::Gone, None),
        changed(ChangeKind::Made, EndpointStatus::Active, by),
        JournalEntry::secret(EndpointId::from_raw(3), tenant, SecretAct::Rotated, AuditStamp { at: at(5), by }),
        JournalEntry::Document {
            kind: DocumentKind::ApiKey,
            id: Key::from_raw(1 << 40 | 2),
            tenant,
            made: at(3),
            deed: ChangeKind::Removed,
            at: at(5),
            by,
        },
        JournalEntry::Spread {
            job,
            tenant,
            at: at(6),
            deliveries: vec![SpreadDelivery { delivery, message, queue: (endpoint, lane, Tier::Engagement) }; 2],
        },
        JournalEntry::Job { job, tenant, state: JobState::Cancelled, replay: Some(at(5)), at: at(6), by },
        JournalEntry::Job { job, tenant, state: JobState::Done, replay: None, at: at(6), by: None },
        JournalEntry::Purged { tenant, upto: 9, at: at(6), by },
        retained(RetentionPhase::Journal, None),
        retained(RetentionPhase::History, Some(tenant)),
        JournalEntry::Agreed { tenant, own: RetentionOverride::default(), at: at(7) },
        JournalEntry::Agreed { tenant, own: an_hour, at: at(7) },
        JournalEntry::Erased { tenant: erased, whom: ErasedTarget::Tenant, at: at(8), by: None },
        JournalEntry::Erased { tenant: erased, whom: whom(None), at: at(8), by },
        JournalEntry::Erased { tenant: erased, whom: whom(Some(7)), at: at(8), by },
        JournalEntry::Exported { tenant: erased, subject: None, at: at(8), by: None },
        JournalEntry::Exported { tenant: erased, subject: Some(Hidden([7; 16])), at: at(8), by },
        JournalEntry::ErasureDone { announced: 300, messages: 7, deliveries: 900, at: at(9) },
        JournalEntry::RotationBegun { to: MasterKeyId::from_raw(u32::MAX), at: at(8), by },
        JournalEntry::RotationEnded { to: MasterKeyId::from_raw(7), rewrapped: 100, at: at(9) },
    ]
}

fn packed(entries: &[JournalEntry]) -> Entries {
    let mut packed = Entries::default();
    entries.iter().for_each(|entry| packed.push(entry));
    packed
}

fn chain(calls: &[Vec<JournalEntry>]) -> Vec<JournalRow> {
    let mut head = Head::default();
    let link = |entries: &Vec<JournalEntry>| {
        let row = head.next(&packed(entries));
        head = Head::behind(&row);
        row
    };
    calls.iter().map(link).collect()
}

/// Whether the rows are linked and each one's entries match its root.
fn is_valid(rows: &[JournalRow]) -> bool {
    let mut head = Head::default();
    rows.iter().all(|row| {
        let valid = head.is_followed_by(row) && row.is_sound().unwrap_or(false);
        head = Head::behind(row);
        valid
    })
}

/// A journal must stay readable for ever. The digest was recorded when the encoding was defined.
#[test]
fn encoding_of_every_kind_never_changes() {
    let mut bytes = Vec::new();
    every_kind().iter().for_each(|entry| entry.pack(&mut bytes));
    assert_eq!(
        posthaste_crypto::hex::write(&posthaste_crypto::digest::sha256(&[&bytes])),
        "a3ea47fe04a7c662ad9d293ddd17f765d3c5cac994ab5b7849018550b903d6b2"
    );
}

#[test]
fn every_kind_of_entry_survives_a_round_trip() {
    let entries = every_kind();
    let row = Head::default().next(&packed(&entries));
    let found: Vec<JournalEntry> = row.entries().collect::<Result<_, _>>().expect("complete entries");
    assert_eq!(found, entries);
}

#[test]
fn every_kind_has_a_unique_name_and_an_example_here() {
    let kinds: Vec<EntryKind> = every_kind().iter().map(JournalEntry::kind).collect();
    for kind in EntryKind::ALL {
        assert!(kinds.contains(&kind), "{kind:?}");
        assert_eq!(EntryKind::named(kind.name()), Some(kind));
    }
    assert_eq!(EntryKind::named("nothing"), None);
}

#[test]
fn row_has_the_time_of_its_latest_entry() {
    for entry in every_kind() {
        let row = Head::default().next(&packed(std::slice::from_ref(&entry)));
        assert_eq!(row.at, entry.at().max(Timestamp::default()), "{entry:?}");
    }
    let row = Head::default().next(&packed(&every_kind()));
    assert_eq!(Some(row.at), every_kind().iter().map(JournalEntry::at).max());
}

#[test]
fn truncated_or_unknown_entry_is_reported_as_damage() {
    for entry in every_kind() {
        let mut bytes = Vec::new();
        entry.pack(&mut bytes);
        // Optional fields come last, so a truncated entry may be a valid shorter one. It must not equal the original.
        let is_same = |length: usize| JournalEntry::unpack(&bytes[..length]).is_ok_and(|found| found == entry);
        assert!((0..bytes.len()).all(|length| !is_same(length)), "{entry:?}");
        bytes.push(0);
        assert!(JournalEntry::unpack(&bytes).is_ok_and(|found| found == entry).eq(&false), "{entry:?}");
    }
    assert!(JournalEntry::unpack(&[99]).is_err());
    assert!(JournalEntry::unpack(&[]).is_err());
}

#[test]
fn entries_copied_from_another_list_give_the_same_row() {
    let elsewhere = packed(&every_kind());
    let mut here = Entries::default();
    (0..elsewhere.len()).for_each(|index| here.push_from(&elsewhere, index));
    assert_eq!(Head::default().next(&here), Head::default().next(&elsewhere));
}

#[test]
fn truncated_entries_do_not_affect_the_root() {
    let entries = every_kind();
    let mut some = packed(&entries[..5]);
    some.push(&entries[6]);
    some.truncate(5);
    assert_eq!(Head::default().next(&some).root, Head::default().next(&packed(&entries[..5])).root);
    some.truncate(0);
    assert!(some.is_empty());
}

#[test]
fn row_time_never_goes_back() {
    let later = vec![JournalEntry::Opened { session: 1, at: at(9) }];
    let earlier = vec![ended(State::Delivered { at: at(1) }, None)];
    let rows = chain(&[later, earlier, vec![JournalEntry::Opened { session: 2, at: at(2) }]]);
    assert_eq!(rows.iter().map(|row| row.at).collect::<Vec<_>>(), [at(9), at(9), at(9)]);
    assert!(is_valid(&rows));
}

#[test]
fn changed_removed_and_reordered_rows_are_detected() {
    let calls: Vec<Vec<JournalEntry>> = every_kind().chunks(3).map(<[JournalEntry]>::to_vec).collect();
    let rows = chain(&calls);
    assert!(is_valid(&rows));
    for at in 0..rows.len() {
        for byte in 0..rows[at].packed.len() {
            let mut changed = rows.clone();
            let mut bytes = changed[at].packed.to_vec();
            bytes[byte] ^= 1;
            changed[at].packed = bytes.into();
            assert!(!is_valid(&changed), "row {at}, byte {byte}");
        }
        let mut without = rows.clone();
        without.remove(at);
        // Without the last row the chain is still valid; only a checkpoint detects that it is missing.
        assert_eq!(is_valid(&without), at + 1 == rows.len(), "without row {at}");
        if at > 0 {
            let mut swapped = rows.clone();
            swapped.swap(at - 1, at);
            assert!(!is_valid(&swapped), "rows {at} and the one before");
        }
    }
}

#[test]
fn entry_weight_is_the_number_of_deliveries_made_also_when_copied() {
    let spread = |n| SpreadDelivery {
        delivery: DeliveryId::from_raw(n),
        message: MessageId::from_raw(7),
        queue: (EndpointId::from_raw(n), LaneId::from_raw(n), Tier::Engagement),
    };
    let made = |count| JournalEntry::Spread {
        job: JobId::from_raw(7),
        tenant: TenantId::from_raw(9),
        at: at(0),
        deliveries: (1..=count).map(spread).collect(),
    };
    let mut elsewhere = Entries::default();
    elsewhere.push(&made(5));
    elsewhere.push(&JournalEntry::Opened { session: 1, at: at(0) });
    let mut entries = Entries::default();
    entries.push(&made(1_000));
    entries.push_from(&elsewhere, 0);
    assert_eq!((entries.len(), entries.weight()), (2, 1_005));
    entries.push_from(&elsewhere, 1);
    entries.truncate(1);
    assert_eq!(entries.weight(), 1_000);
}
