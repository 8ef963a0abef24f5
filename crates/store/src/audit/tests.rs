//! Audits of a journal that was altered in every way the audit detects, and of one that was not.

use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{Cause, DeliveryId, EndpointId, LaneId, MessageId, State, TenantId, Tier};

use super::*;
use crate::journal::{Entries, ErasedTarget};

const ROWS: u64 = 12;
const TENANT: TenantId = TenantId::from_raw(4);

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(1_760_000_000_000 + 1_000 * second)
}

fn ended(number: u64) -> JournalEntry {
    JournalEntry::Ended {
        delivery: DeliveryId::from_raw(100 + number),
        message: MessageId::from_raw(100),
        endpoint: EndpointId::from_raw(7),
        lane: LaneId::from_raw(8),
        tier: Tier::Promotional,
        state: State::Dead { at: at(i64::try_from(number).expect("a small number")), cause: Cause::Unavailable },
        attempts: 9,
        attempt: None,
    }
}

/// An audit long after all entries.
fn fresh() -> Audit {
    Audit::new(at(1 << 30), Retention::default())
}

fn outcomes(outcomes: u64) -> AuditCounts {
    AuditCounts { outcomes, attempts: 0 }
}

/// The entry of rows that retention deleted under the default times.
fn retained(phase: RetentionPhase, removed: u64, before: Timestamp, at: Timestamp) -> JournalEntry {
    JournalEntry::Retained { phase, upto: removed, removed, before, at, tenant: None }
}

/// Linked rows that each hold one entry.
fn chain(entries: impl IntoIterator<Item = JournalEntry>) -> Vec<JournalRow> {
    let mut head = Head::default();
    let link = |entry| {
        let mut entries = Entries::default();
        entries.push(&entry);
        let row = head.next(&entries);
        head = Head::behind(&row);
        row
    };
    entries.into_iter().map(link).collect()
}

/// Rows that each hold the end of one delivery, or the entry that `instead` returns for their number.
fn journal(instead: impl Fn(u64) -> Option<JournalEntry>) -> Vec<JournalRow> {
    chain((1..=ROWS).map(|number| instead(number).unwrap_or_else(|| ended(number))))
}

fn sound() -> Vec<JournalRow> {
    journal(|_| None)
}

/// Audits rows with these checkpoints. `archived` compares the entry of a row by its number.
fn audit_of(
    mut audit: Audit,
    rows: &[JournalRow],
    signed: &[&JournalRow],
    archived: impl Fn(u64) -> Archived,
    counts: AuditCounts,
) -> AuditReport {
    signed.iter().for_each(|row| audit.checkpoint(row.number, row.hash(), CheckpointSource::InTheFile));
    rows.iter().for_each(|row| audit.row(row, &mut |_| archived(row.number)));
    audit.finish(counts)
}

/// Audits rows whose outcomes are all stored unchanged.
fn audit(rows: &[JournalRow], signed: &[&JournalRow]) -> AuditReport {
    let ends =
        rows.iter().flat_map(JournalRow::entries).filter(|entry| matches!(entry, Ok(JournalEntry::Ended { .. })));
    audit_of(fresh(), rows, signed, |_| Archived::Fits, outcomes(ends.count() as u64))
}

/// The comparison of an outcome that is missing, or stored unchanged.
fn unless(is_missing: bool) -> Archived {
    if is_missing { Archived::Missing(TENANT) } else { Archived::Fits }
}

#[test]
fn unaltered_journal_is_clean_and_reports_the_last_signed_row() {
    let rows = sound();
    let report = audit(&rows, &[&rows[3], &rows[8]]);
    assert_eq!(report.findings, []);
    assert_eq!((report.first, report.last, report.rows, report.ends), (1, ROWS, ROWS, ROWS));
    assert_eq!((report.checkpoints, report.signed), (2, 9));
}

#[test]
fn removed_moved_or_changed_row_is_detected_at_any_position() {
    let sound = sound();
    for place in 0..sound.len() {
        let number = sound[place].number;
        let mut gone = sound.clone();
        gone.remove(place);
        // Without a checkpoint, the audit cannot detect that the last row is missing.
        assert_eq!(audit(&gone, &[]).is_clean(), number == ROWS, "row {number} gone");
        if place > 0 {
            let mut moved = sound.clone();
            moved.swap(place - 1, place);
            assert!(!audit(&moved, &[]).is_clean(), "row {number} moved");
        }
        let mut changed = sound.clone();
        changed[place].packed = sound[(place + 1) % sound.len()].packed.clone();
        assert_eq!(audit(&changed, &[]).findings, [Finding::Changed { row: number }]);
        let mut torn = sound.clone();
        torn[place].packed = Bytes::from(vec![0xff; 5]);
        assert!(matches!(audit(&torn, &[]).findings[..], [Finding::Unreadable { .. }]), "row {number} torn");
        let mut dated = sound.clone();
        dated[place].at = at(-1);
        assert!(!audit(&dated, &[&sound[11]]).is_clean(), "row {number} dated back");
    }
}

#[test]
fn rewritten_chain_is_detected_by_any_checkpoint_after_the_change() {
    let sound = sound();
    for place in 1..=ROWS {
        let forged = journal(|number| (number == place).then_some(JournalEntry::Opened { session: 9, at: at(0) }));
        assert_eq!(audit(&forged, &[]).findings, [], "not detectable without a checkpoint");
        for signed in &sound {
            let seen = !audit(&forged, &[signed]).is_clean();
            assert_eq!(seen, signed.number >= place, "row {place} rewritten, row {} signed", signed.number);
        }
    }
}

#[test]
fn truncated_journal_is_detected_by_a_checkpoint_of_a_removed_row() {
    let sound = sound();
    let short = &sound[..8];
    assert!(audit(short, &[&sound[7]]).is_clean());
    assert_eq!(audit(short, &[&sound[8]]).findings, [Finding::Truncated { row: 9, last: 8 }]);
}

#[test]
fn rows_deleted_by_retention_are_no_finding_and_one_more_is() {
    let rows = journal(|number| (number == 11).then(|| retained(RetentionPhase::Journal, 5, at(6), at(11))));
    let report = audit(&rows[5..], &[&rows[2], &rows[11]]);
    assert_eq!(report.findings, []);
    assert_eq!((report.first, report.expired_upto, report.checkpoints, report.past), (6, 5, 1, 1));
    assert_eq!(audit(&rows[6..], &[&rows[11]]).findings, [Finding::Missing { from: 6, to: 6 }]);
    assert_eq!(audit(&rows[4..], &[&rows[11]]).findings, [Finding::Misplaced { row: 5 }]);
}

#[test]
fn missing_outcomes_are_a_finding_unless_retention_announced_them() {
    let audited = |removed, missing: &[u64], present| {
        let announced = |number| (number == ROWS).then(|| retained(RetentionPhase::History, removed, at(3), at(12)));
        let rows = journal(announced);
        audit_of(fresh(), &rows, &[&rows[11]], |number| unless(missing.contains(&number)), outcomes(present))
    };
    assert_eq!(audited(3, &[1, 2, 3], 8).findings, []);
    assert_eq!(
        audited(2, &[1, 2, 3], 8).findings,
        [Finding::OutcomesMissing { missing: 3, announced: 2 }],
        "one more than announced"
    );
    assert!(!audited(3, &[1, 2, 4], 8).is_clean(), "one that ended after the announced limit");
    assert_eq!(audited(3, &[1, 2, 3], 9).findings, [Finding::OutcomesAdded { added: 1 }]);
}

#[test]
fn unsigned_announcement_is_accepted_only_within_the_retention_limit() {
    let kept = Retention::default();
    let announced = |before: i64, recorded: i64, now: i64, phase| {
        let rows = journal(|number| (number == ROWS).then(|| retained(phase, 5, at(before), at(recorded))));
        // Signed up to the row before the announcement: an attacker who can write the file could have added it.
        let audit = Audit::new(at(now), kept);
        audit_of(audit, &rows[5..], &[&rows[10]], |_| Archived::Fits, outcomes(0)).findings
    };
    let journal_kept = i64::try_from(kept.journal.as_secs()).expect("days") + 12;
    let overdone = [Finding::Overdone { row: ROWS }];
    assert_eq!(announced(12, journal_kept, journal_kept, RetentionPhase::Journal), []);
    assert_eq!(announced(12, journal_kept - 1, journal_kept, RetentionPhase::Journal), overdone, "kept too shortly");
    assert_eq!(announced(12, journal_kept, 1_000, RetentionPhase::Journal), overdone, "a time in the future");
    let missing = Finding::Missing { from: 1, to: 5 };
    assert_eq!(announced(5, journal_kept, journal_kept, RetentionPhase::Journal), [missing], "after the limit");
    let not_announced = Finding::Missing { from: 1, to: 5 };
    assert!(announced(12, 100, 1_000, RetentionPhase::History).contains(&not_announced));
}

#[test]
fn retention_override_excuses_missing_outcomes_of_its_tenant_only() {
    let own = RetentionOverride { history: Some(Duration::from_secs(2)), ..RetentionOverride::default() };
    let audited = |before: i64, whose: TenantId, signed: &[u64]| {
        let rows = journal(|number| match number {
            5 => Some(JournalEntry::Agreed { tenant: TENANT, own, at: at(5) }),
            ROWS => Some(JournalEntry::Retained {
                phase: RetentionPhase::History,
                upto: 0,
                removed: 3,
                before: at(before),
                at: at(12),
                tenant: Some(TENANT),
            }),
            _ => None,
        });
        let signed: Vec<_> = rows.iter().filter(|row| signed.contains(&row.number)).collect();
        let archived = |number| if number <= 3 { Archived::Missing(whose) } else { Archived::Fits };
        audit_of(Audit::new(at(12), Retention::default()), &rows, &signed, archived, outcomes(7)).findings
    };
    assert_eq!(audited(10, TENANT, &[5]), [], "override signed before the deletion");
    assert_eq!(audited(10, TENANT, &[ROWS]), [], "override signed after the deletion");
    let overdone = [Finding::Overdone { row: ROWS }];
    assert_eq!(audited(11, TENANT, &[5]), overdone, "kept too shortly");
    assert_eq!(audited(10, TENANT, &[4]), overdone, "no checkpoint covers the override");
    let missing = [Finding::OutcomesMissing { missing: 3, announced: 3 }];
    assert_eq!(audited(10, TenantId::from_raw(5), &[5]), missing, "another tenant's");
    assert_eq!(audited(2, TENANT, &[5]), missing, "after the announced limit");
}

#[test]
fn attempts_missing_from_the_journal_are_counted() {
    let counts = AuditCounts { outcomes: ROWS, attempts: 2 };
    let report = audit_of(fresh(), &sound(), &[], |_| Archived::Fits, counts);
    assert_eq!(report.findings, [Finding::AttemptsAdded { added: 2 }]);
}

#[test]
fn report_names_the_last_row_covered_by_an_exported_checkpoint() {
    let rows = sound();
    let mut audit = fresh();
    audit.checkpoint(4, rows[3].hash(), CheckpointSource::Elsewhere);
    let report = audit_of(audit, &rows, &[&rows[8]], |_| Archived::Fits, outcomes(ROWS));
    assert_eq!((report.vouched, report.signed, report.is_clean()), (4, 9, true));
}

#[test]
fn changed_outcome_is_reported_with_its_delivery() {
    let what = "its outcome was changed";
    let archived = |number| if number == 4 { Archived::Differs(what) } else { Archived::Fits };
    let report = audit_of(fresh(), &sound(), &[], archived, outcomes(ROWS));
    assert_eq!(report.findings, [Finding::Outcome { delivery: DeliveryId::from_raw(104), what }]);
}

#[test]
fn minutes_without_a_checkpoint_are_a_finding() {
    let rows = chain((0..10).map(|minute| retained(RetentionPhase::Keys, 1, at(0), at(60 * minute))));
    assert_eq!(audit(&rows, &[&rows[6]]).findings, []);
    assert_eq!(audit(&rows, &[&rows[2]]).findings, [Finding::Unsigned { from: 4, to: 10 }]);
}

#[test]
fn rows_left_unsigned_by_a_killed_session_are_due_with_the_next_session() {
    let opened = |session, second| JournalEntry::Opened { session, at: at(second) };
    let other = |second| retained(RetentionPhase::Keys, 1, at(0), at(second));
    let rows = chain([opened(1, 0), other(0), opened(2, 9_000), other(9_000), other(9_060)]);
    assert_eq!(audit(&rows, &[]).findings, []);
}

#[test]
fn rows_removed_before_a_row_without_a_time_are_missing() {
    let (recorded, without) = (at(1), Timestamp::default());
    let before = Retention::default().old(RetentionPhase::Journal, recorded);
    let gone = |at| {
        let opened = |session| JournalEntry::Opened { session, at };
        let rows = chain([opened(1), opened(2), retained(RetentionPhase::Journal, 1, before, recorded)]);
        audit(&rows[1..], &[&rows[2]]).findings
    };
    assert_eq!(gone(before), []);
    assert_eq!(gone(without), [Finding::Missing { from: 1, to: 1 }]);
}

/// A journal in which a message of a subject is accepted and ended, and the subject is erased in row 9.
fn journal_with_erased_subject() -> Vec<JournalRow> {
    let mark = crate::journal::Hidden([3; 16]);
    journal(|number| match number {
        1 => Some(JournalEntry::Accepted {
            message: MessageId::from_raw(100),
            tenant: TenantId::from_raw(1),
            at: at(0),
            digest: [0; 32],
            subject: Some(mark),
            correlation: None,
            deliveries: Vec::new(),
        }),
        9 => Some(JournalEntry::Erased {
            tenant: TenantId::from_raw(1),
            whom: ErasedTarget::Subject(Some(mark)),
            at: at(9),
            by: None,
        }),
        _ => None,
    })
}

/// Audits that journal with the outcomes of the first `missing` rows removed.
fn audit_without(hint: Option<ErasedHint>, missing: u64, signed: Option<u64>) -> Vec<Finding> {
    let rows = journal_with_erased_subject();
    let mut audit = fresh();
    hint.into_iter().for_each(|hint| audit.erased(hint));
    let signed: Vec<_> = rows.iter().filter(|row| Some(row.number) == signed).collect();
    let present = outcomes(10 - missing.saturating_sub(1));
    audit_of(audit, &rows, &signed, |number| unless(number <= missing), present).findings
}

#[test]
fn erasure_excuses_missing_outcomes_only_if_announced_and_signed() {
    let whom = ErasedTarget::Subject(Some(crate::journal::Hidden([3; 16])));
    let hint = ErasedHint { row: 9, tenant: TenantId::from_raw(1), whom };
    assert_eq!(audit_without(Some(hint), 4, Some(9)), []);
    assert_eq!(audit_without(Some(hint), 4, Some(8)), [Finding::Unfounded { row: 9 }], "announcement not signed");
    let elsewhere = ErasedHint { row: 8, ..hint };
    assert_eq!(audit_without(Some(elsewhere), 4, Some(9)), [Finding::Unfounded { row: 8 }], "announced in another row");
    let other = ErasedHint { whom: ErasedTarget::Subject(Some(crate::journal::Hidden([4; 16]))), ..hint };
    let missing = Finding::OutcomesMissing { missing: 3, announced: 0 };
    assert_eq!(audit_without(Some(other), 4, Some(9)), std::slice::from_ref(&missing), "another subject");
    assert_eq!(audit_without(None, 4, Some(9)), [missing], "no erasure recorded");
}

#[test]
fn tenant_erasure_excuses_outcomes_of_endpoints_made_before_it() {
    let endpoint = JournalEntry::Endpoint {
        endpoint: EndpointId::from_raw(7),
        tenant: TenantId::from_raw(1),
        deed: crate::row::ChangeKind::Made,
        status: crate::row::EndpointStatus::Active,
        at: at(0),
        by: None,
    };
    let erased =
        JournalEntry::Erased { tenant: TenantId::from_raw(1), whom: ErasedTarget::Tenant, at: at(9), by: None };
    for (made, announced, clean) in [(1, 9, true), (2, 1, false)] {
        let rows = journal(|number| match number {
            number if number == announced => Some(erased.clone()),
            number if number == made => Some(endpoint.clone()),
            _ => None,
        });
        let mut audit = fresh();
        audit.erased(ErasedHint { row: announced, tenant: TenantId::from_raw(1), whom: ErasedTarget::Tenant });
        let report = audit_of(audit, &rows, &[&rows[11]], |_| Archived::Missing(TENANT), outcomes(0));
        assert_eq!(report.is_clean(), clean, "announced in row {announced}");
    }
}
