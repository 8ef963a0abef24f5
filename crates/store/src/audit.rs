//! Whether a journal is what was written: the check behind `audit verify`.
//!
//! It reads rows in order, in bounded memory, and says everything that does not fit: a row that is
//! missing, moved, changed or added, a checkpoint that names another row, an outcome that is not the
//! one the journal tells of. What retention has let go or somebody had erased is announced by an entry; only
//! what is missing beyond that is a finding.
//!
//! What it cannot see: rows behind the last checkpoint that the reader of a report trusts can be taken
//! away, or made anew from there on, by whoever can write the file. So checkpoints are exported.

mod agreed;
mod erased;
mod finding;

use std::collections::BTreeMap;

use posthaste_core::id::TenantId;
use posthaste_core::time::Timestamp;
use posthaste_crypto::digest::Digest;

use crate::journal::{Entry, Head, JournalRow};
use crate::row::{OwnRetention, Retention, RetentionPhase};

pub use erased::ErasedHint;
pub use finding::{Finding, Kept, Report};

/// While a store runs, its last rows are signed for within a minute; this much later they should be.
const SIGNED_WITHIN_MS: i64 = 5 * 60 * 1_000;

/// What the file has of a delivery that an entry tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archived {
    /// As the journal says.
    Fits,
    /// It says something else.
    Differs(&'static str),
    /// There is nothing of that delivery, which was this tenant's; 0 when nobody knows.
    Missing(TenantId),
}

/// How much the tables hold that the journal tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Outcomes.
    pub outcomes: u64,
    /// Attempts that did not end their delivery.
    pub attempts: u64,
}

/// Reads a journal row by row.
#[derive(Debug)]
pub struct Audit {
    /// When it is made: what happens later has not happened.
    now: Timestamp,
    retention: Retention,
    report: Report,
    head: Option<Head>,
    /// Row to hash, of those that are still to come.
    checkpoints: BTreeMap<u64, Vec<(Digest, Kept)>>,
    first_at: Timestamp,
    /// The highest row of the journal that was announced to be gone, and up to which time.
    announced: u64,
    announced_before: Option<Timestamp>,
    /// The first row that announces more than it may, among those that nobody has signed for.
    overdone: Option<u64>,
    /// Outcomes announced to be gone, and up to which end.
    outcomes_announced: u64,
    outcomes_before: Option<Timestamp>,
    outcomes_missing: u64,
    /// Whose they are, and what was agreed with whom.
    agreed: agreed::Agreements,
    /// What is missing because somebody was erased.
    erased: erased::Erased,
    /// Attempts that are as the journal says.
    attempts: u64,
    /// The first row that nobody has signed for, and since when somebody could have.
    unsigned: Option<(u64, Timestamp)>,
    /// Whether this row tells of a session that began.
    begun: bool,
    last_at: Option<Timestamp>,
}

impl Audit {
    /// An audit that is made now, of a store that keeps things for so long.
    pub fn new(now: Timestamp, retention: Retention) -> Self {
        Self {
            now,
            retention,
            report: Report::default(),
            head: None,
            checkpoints: BTreeMap::new(),
            first_at: Timestamp::default(),
            announced: 0,
            announced_before: None,
            overdone: None,
            outcomes_announced: 0,
            outcomes_before: None,
            outcomes_missing: 0,
            agreed: agreed::Agreements::default(),
            erased: erased::Erased::default(),
            attempts: 0,
            unsigned: None,
            begun: false,
            last_at: None,
        }
    }

    /// Takes a checkpoint whose signature is good, before the row it names.
    pub fn checkpoint(&mut self, row: u64, hash: Digest, kept: Kept) {
        self.checkpoints.entry(row).or_default().push((hash, kept));
    }

    /// Takes an erasure that the file tells of, before the first row.
    pub fn erased(&mut self, hint: ErasedHint) {
        self.erased.add(hint);
    }

    /// Takes note of what does not fit outside of the journal's rows.
    pub fn find(&mut self, finding: Finding) {
        self.report.find(finding);
    }

    /// Takes note of a row that cannot be read at all.
    pub fn unreadable(&mut self, why: String) {
        let row = self.report.last + 1;
        self.report.find(Finding::Unreadable { row, why });
    }

    /// Takes the next row. `archived` says what the file has of a delivery that was tried or has ended.
    pub fn row(&mut self, row: &JournalRow, archived: &mut dyn FnMut(&Entry) -> Archived) {
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

    /// Whether it is the one that follows.
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

    fn entries(&mut self, row: &JournalRow, archived: &mut dyn FnMut(&Entry) -> Archived) {
        for entry in row.entries() {
            self.report.entries += 1;
            match entry {
                // A row is not earlier than what it tells.
                Ok(entry) if entry.at() > row.at => self.report.find(Finding::Changed { row: row.number }),
                Ok(entry) => self.entry(row.number, &entry, archived),
                Err(error) => self.report.find(Finding::Unreadable { row: row.number, why: error.to_string() }),
            }
        }
    }

    fn entry(&mut self, row: u64, entry: &Entry, archived: &mut dyn FnMut(&Entry) -> Archived) {
        self.erased.meet(row, entry);
        match entry {
            Entry::Opened { .. } => self.begun = true,
            Entry::Retained { phase: RetentionPhase::Journal, upto, before, at, .. } => {
                self.may_announce(row, self.retention.old(RetentionPhase::Journal, *at), *before, *at);
                self.announced = self.announced.max(*upto);
                self.announced_before = self.announced_before.max(Some(*before));
            }
            Entry::Retained { phase: RetentionPhase::History, removed, before, at, tenant, .. } => {
                let own = tenant.and_then(|tenant| self.agreed.history(tenant, self.report.signed));
                let kept = OwnRetention { history: own, ..OwnRetention::default() };
                let old = self.retention.with(kept).old(RetentionPhase::History, *at);
                self.may_announce(row, old, *before, *at);
                self.outcomes_announced += removed;
                match tenant {
                    Some(tenant) => self.agreed.announced(*tenant, *before),
                    None => self.outcomes_before = self.outcomes_before.max(Some(*before)),
                }
            }
            Entry::Agreed { tenant, own, .. } => self.agreed.tell(row, *tenant, *own),
            Entry::Attempted { delivery, .. } | Entry::Late { delivery, .. } => match archived(entry) {
                Archived::Fits => self.attempts += 1,
                Archived::Differs(what) => self.report.find(Finding::Outcome { delivery: *delivery, what }),
                Archived::Missing(_) => {}
            },
            Entry::Ended { delivery, message, endpoint, .. } => {
                self.report.ends += 1;
                match archived(entry) {
                    Archived::Fits => {}
                    Archived::Differs(what) => self.report.find(Finding::Outcome { delivery: *delivery, what }),
                    Archived::Missing(_) if self.erased.excuses(*message, *endpoint) => {}
                    Archived::Missing(tenant) => {
                        self.outcomes_missing += 1;
                        self.agreed.missing(tenant, Some(entry.at()));
                    }
                }
            }
            _ => {}
        }
    }

    /// Anybody who can write the file can add a row that announces something. Until it is signed for, it is
    /// believed where retention would have done the same: by then what is not later than `old` had been kept for long
    /// enough.
    fn may_announce(&mut self, row: u64, old: Timestamp, before: Timestamp, at: Timestamp) {
        if before > old || at.as_millis() > self.now.as_millis() + SIGNED_WITHIN_MS {
            self.overdone.get_or_insert(row);
        }
    }

    /// Compares the row with the checkpoints that name it.
    fn signed(&mut self, row: &JournalRow) {
        let hash = row.hash();
        // Of rows before this one, which are missing: that was said, or they were let go.
        while let Some(before) = self.checkpoints.first_entry().filter(|entry| *entry.key() < row.number) {
            let is_past = *before.key() < self.report.first;
            let lines = before.remove().len() as u64;
            self.report.past += if is_past { lines } else { 0 };
        }
        let Some(signed) = self.checkpoints.remove(&row.number) else {
            let (_, since) = self.unsigned.get_or_insert((row.number, row.at));
            // What the session before did not get signed is signed by this one, in its own time.
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
            if kept == Kept::Elsewhere {
                self.report.vouched = row.number;
            }
            self.unsigned = None;
            self.overdone = None;
        }
    }

    /// The end of the journal, beside what the tables hold.
    pub fn finish(mut self, counts: Counts) -> Report {
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

    /// Whether the rows before the first were let go, and no others.
    fn beginning(&mut self) {
        let first = self.report.first;
        self.report.let_go = self.announced;
        if self.report.rows == 0 {
            return;
        }
        if first > self.announced + 1 {
            self.report.find(Finding::Missing { from: self.announced + 1, to: first - 1 });
        } else if first <= self.announced {
            // They went with the commit that announced it.
            self.report.find(Finding::Misplaced { row: first });
        } else if self.announced > 0 && !self.is_first_old() {
            // A row goes when the one behind it is old enough.
            self.report.find(Finding::Missing { from: 1, to: first - 1 });
        }
    }

    /// Whether the first row is as old as those were announced to be that went before it. One without a time is not: nobody
    /// knows when it was.
    fn is_first_old(&self) -> bool {
        self.first_at > Timestamp::default() && Some(self.first_at) <= self.announced_before
    }

    fn tables(&mut self, counts: Counts) {
        let (missing, announced) = (self.outcomes_missing, self.outcomes_announced);
        self.report.ends_let_go = missing;
        self.report.ends_erased = self.erased.excused;
        // What ended before the first row that is left may have been let go too.
        let too_many = missing > announced || self.agreed.are_late(self.outcomes_before);
        if too_many {
            self.report.find(Finding::OutcomesMissing { missing, announced });
        }
        // Of a row that is gone or cannot be read, nobody knows what it told of.
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
