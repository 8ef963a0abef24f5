//! Verification that a journal was not altered: the check behind `audit verify`.
//!
//! It reads rows in order, in bounded memory, and reports everything that does not fit: a row that is missing, moved,
//! changed or added, a checkpoint for a different row, an outcome that differs from the journal. Deletions by
//! retention and erasure are announced by entries; only data missing beyond that is a finding.
//!
//! Limit: an attacker who can write the file can remove or rewrite the rows after the last checkpoint that the reader
//! of the report trusts. That is why checkpoints are exported.

mod erased;
mod finding;
mod overrides;

use std::collections::BTreeMap;

use posthaste_core::{TenantId, Timestamp};
use posthaste_crypto::digest::Digest;

use crate::journal::{Head, JournalEntry, JournalRow};
use crate::row::{Retention, RetentionOverride, RetentionPhase};

pub use erased::ErasedHint;
pub use finding::{AuditReport, CheckpointSource, Finding};

/// A running store signs a checkpoint within a minute of its last rows. Rows not covered this long after are suspect.
const SIGNED_WITHIN_MS: i64 = 5 * 60 * 1_000;

/// The comparison of an entry with the stored outcome or attempt of its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archived {
    /// The stored record matches the entry.
    Fits,
    /// The stored record differs from the entry, in this way.
    Differs(&'static str),
    /// There is no stored record. Holds the tenant of the delivery, 0 if it is unknown.
    Missing(TenantId),
}

/// The number of records in the tables that the audit compares with the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCounts {
    pub outcomes: u64,
    /// Attempts that did not end their delivery.
    pub attempts: u64,
}

/// Verifies a journal row by row.
#[derive(Debug, Default)]
pub struct Audit {
    /// The time of the audit; entries from later times are suspect.
    now: Timestamp,
    retention: Retention,
    report: AuditReport,
    head: Option<Head>,
    /// The signed hashes of rows not read yet, by row.
    checkpoints: BTreeMap<u64, Vec<(Digest, CheckpointSource)>>,
    first_at: Timestamp,
    /// The highest row of the journal that an entry announces as deleted.
    announced: u64,
    /// The retention limit of that announcement.
    announced_before: Option<Timestamp>,
    /// The first row, among those no checkpoint covers yet, that announces more than retention allows.
    overdone: Option<u64>,
    /// The number of outcomes that entries announce as deleted.
    outcomes_announced: u64,
    /// The latest retention limit announced for outcomes of tenants without an override.
    outcomes_before: Option<Timestamp>,
    outcomes_missing: u64,
    /// Retention overrides and missing outcomes, by tenant.
    overrides: overrides::OverrideHistory,
    /// Erasures, and the outcomes missing because of them.
    erased: erased::ErasureRecords,
    /// The number of attempts that match the journal.
    attempts: u64,
    /// The first row that no checkpoint covers, and since when the running store could have signed one.
    unsigned: Option<(u64, Timestamp)>,
    /// Whether the current row has the entry of a new session.
    begun: bool,
    last_at: Option<Timestamp>,
}

impl Audit {
    /// An audit at `now` of a store with these default retention times.
    pub fn new(now: Timestamp, retention: Retention) -> Self {
        Self { now, retention, ..Self::default() }
    }

    /// Adds a checkpoint with a valid signature. Must be called before the row it covers is read.
    pub fn checkpoint(&mut self, row: u64, hash: Digest, kept: CheckpointSource) {
        self.checkpoints.entry(row).or_default().push((hash, kept));
    }

    /// Adds an erasure that is recorded in the file. Must be called before the first row is read.
    pub fn erased(&mut self, hint: ErasedHint) {
        self.erased.add(hint);
    }

    /// Adds a finding from outside the journal's rows.
    pub fn find(&mut self, finding: Finding) {
        self.report.find(finding);
    }

    /// Adds a finding for the next row, which cannot be read at all.
    pub fn unreadable(&mut self, why: String) {
        let row = self.report.last + 1;
        self.report.find(Finding::Unreadable { row, why });
    }

    /// Verifies the next row. `archived` compares an entry with the stored outcome or attempt of its delivery.
    pub fn row(&mut self, row: &JournalRow, archived: &mut dyn FnMut(&JournalEntry) -> Archived) {
        self.place(row);
        self.begun = false;
        match row.is_sound() {
            Ok(true) => self.entries(row, archived),
            Ok(false) => self.report.find(Finding::Changed { row: row.number }),
            Err(error) => self.report.find(Finding::Unreadable { row: row.number, why: error.to_string() }),
        }
        self.signed(row);
        self.head = Some(Head::behind(row));
        self.last_at = Some(row.at);
        self.report.rows += 1;
        self.report.last = row.number;
    }

    /// Checks the row's number and its link to the row before.
    fn place(&mut self, row: &JournalRow) {
        let Some(head) = self.head else {
            self.report.first = row.number;
            self.first_at = row.at;
            if row.number == 1 && !Head::default().is_followed_by(row) {
                self.report.find(Finding::Unlinked { row: 1 });
            }
            return;
        };
        if head.is_followed_by(row) {
            return;
        }
        let expected = self.report.last + 1;
        self.report.find(match row.number {
            number if number > expected => Finding::Missing { from: expected, to: number - 1 },
            number if number < expected => Finding::Misplaced { row: number },
            number => Finding::Unlinked { row: number },
        });
    }

    fn entries(&mut self, row: &JournalRow, archived: &mut dyn FnMut(&JournalEntry) -> Archived) {
        for entry in row.entries() {
            self.report.entries += 1;
            match entry {
                // A row has the time of its latest entry.
                Ok(entry) if entry.at() > row.at => self.report.find(Finding::Changed { row: row.number }),
                Ok(entry) => self.entry(row.number, &entry, archived),
                Err(error) => self.report.find(Finding::Unreadable { row: row.number, why: error.to_string() }),
            }
        }
    }

    fn entry(&mut self, row: u64, entry: &JournalEntry, archived: &mut dyn FnMut(&JournalEntry) -> Archived) {
        self.erased.meet(row, entry);
        match entry {
            JournalEntry::Opened { .. } => self.begun = true,
            JournalEntry::Retained { phase: RetentionPhase::Journal, upto, before, at, .. } => {
                self.may_announce(row, self.retention.old(RetentionPhase::Journal, *at), *before, *at);
                self.announced = self.announced.max(*upto);
                self.announced_before = self.announced_before.max(Some(*before));
            }
            JournalEntry::Retained { phase: RetentionPhase::History, removed, before, at, tenant, .. } => {
                let own = tenant.and_then(|tenant| self.overrides.history(tenant, self.report.signed));
                let kept = RetentionOverride { history: own, ..RetentionOverride::default() };
                let old = self.retention.with(kept).old(RetentionPhase::History, *at);
                self.may_announce(row, old, *before, *at);
                self.outcomes_announced += removed;
                match tenant {
                    Some(tenant) => self.overrides.announced(*tenant, *before),
                    None => self.outcomes_before = self.outcomes_before.max(Some(*before)),
                }
            }
            JournalEntry::Agreed { tenant, own, .. } => self.overrides.set(row, *tenant, *own),
            JournalEntry::Attempted { delivery, .. } | JournalEntry::Late { delivery, .. } => match archived(entry) {
                Archived::Fits => self.attempts += 1,
                Archived::Differs(what) => self.report.find(Finding::Outcome { delivery: *delivery, what }),
                Archived::Missing(_) => {}
            },
            JournalEntry::Ended { delivery, message, endpoint, .. } => {
                self.report.ends += 1;
                match archived(entry) {
                    Archived::Fits => {}
                    Archived::Differs(what) => self.report.find(Finding::Outcome { delivery: *delivery, what }),
                    Archived::Missing(_) if self.erased.excuses(*message, *endpoint) => {}
                    Archived::Missing(tenant) => {
                        self.outcomes_missing += 1;
                        self.overrides.missing(tenant, Some(entry.at()));
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks an announced retention limit (`before`) against the one that applied at the time `at` (`old`). An
    /// attacker who can write the file can append a row with any announcement. So one above the limit, or with a time
    /// in the future, is accepted only once a checkpoint covers its row.
    fn may_announce(&mut self, row: u64, old: Timestamp, before: Timestamp, at: Timestamp) {
        if before > old || at.as_millis() > self.now.as_millis() + SIGNED_WITHIN_MS {
            self.overdone.get_or_insert(row);
        }
    }

    fn signed(&mut self, row: &JournalRow) {
        let hash = row.hash();
        // Checkpoints of earlier rows that were not read: those rows were reported as missing, or retention deleted
        // them.
        while let Some(before) = self.checkpoints.first_entry().filter(|entry| *entry.key() < row.number) {
            let is_past = *before.key() < self.report.first;
            let lines = before.remove().len() as u64;
            self.report.past += if is_past { lines } else { 0 };
        }
        let Some(signed) = self.checkpoints.remove(&row.number) else {
            let (_, since) = self.unsigned.get_or_insert((row.number, row.at));
            // A new session signs the rows that the session before left unsigned, so its time starts here.
            if self.begun {
                *since = row.at;
            }
            return;
        };
        for (one, kept) in signed {
            if one != hash {
                self.report.find(Finding::Differs { row: row.number, kept });
                continue;
            }
            self.report.checkpoints += 1;
            self.report.signed = row.number;
            if kept == CheckpointSource::Elsewhere {
                self.report.vouched = row.number;
            }
            self.unsigned = None;
            self.overdone = None;
        }
    }

    /// Ends the audit after the last row, and compares it with the number of records in the tables.
    pub fn finish(mut self, counts: AuditCounts) -> AuditReport {
        self.beginning();
        let last = self.report.last;
        for (row, lines) in std::mem::take(&mut self.checkpoints) {
            if row > last {
                self.report.find(Finding::Truncated { row, last });
            } else {
                self.report.past += lines.len() as u64;
            }
        }
        if let (Some((from, since)), Some(at)) = (self.unsigned, self.last_at)
            && at.as_millis() - since.as_millis() > SIGNED_WITHIN_MS
        {
            self.report.find(Finding::Unsigned { from, to: last });
        }
        if let Some(row) = self.overdone {
            self.report.find(Finding::Overdone { row });
        }
        if let Some(row) = self.erased.unfounded(self.report.signed) {
            self.report.find(Finding::Unfounded { row });
        }
        self.tables(counts);
        self.report
    }

    /// Checks that exactly the rows announced as deleted are missing before the first row.
    fn beginning(&mut self) {
        let first = self.report.first;
        self.report.expired_upto = self.announced;
        if self.report.rows == 0 {
            return;
        }
        if first > self.announced + 1 {
            self.report.find(Finding::Missing { from: self.announced + 1, to: first - 1 });
        } else if first <= self.announced {
            // Announced rows are deleted in the commit that announces them, so this one was put back.
            self.report.find(Finding::Misplaced { row: first });
        } else if self.announced > 0 && !self.is_first_old() {
            // Retention deletes a row only when the row after it has expired too.
            self.report.find(Finding::Missing { from: 1, to: first - 1 });
        }
    }

    /// Whether the first row is within the announced retention limit. A row without a time is not.
    fn is_first_old(&self) -> bool {
        self.first_at > Timestamp::default() && Some(self.first_at) <= self.announced_before
    }

    fn tables(&mut self, counts: AuditCounts) {
        let (missing, announced) = (self.outcomes_missing, self.outcomes_announced);
        self.report.ends_expired = missing;
        self.report.ends_erased = self.erased.excused;
        // The announcements also cover outcomes whose end is in a row that is no longer there, so fewer may be missing.
        let too_many = missing > announced || self.overrides.are_late(self.outcomes_before);
        if too_many {
            self.report.find(Finding::OutcomesMissing { missing, announced });
        }
        // If rows are deleted or unreadable, the number of ends in the journal is not known.
        if self.announced > 0 || self.report.found > 0 {
            return;
        }
        let known = self.report.ends - missing - self.erased.excused;
        if counts.outcomes > known {
            self.report.find(Finding::OutcomesAdded { added: counts.outcomes - known });
        }
        if counts.attempts > self.attempts {
            self.report.find(Finding::AttemptsAdded { added: counts.attempts - self.attempts });
        }
    }
}

#[cfg(test)]
mod tests;
