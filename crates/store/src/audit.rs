//! Whether a journal is what was written: the check behind `audit verify`.
//!
//! It reads rows in order, in bounded memory, and says everything that does not fit: a row that is
//! missing, moved, changed or added, a checkpoint that names another row, an outcome that is not the
//! one the journal tells of. What retention has let go is announced by an entry; only what is missing
//! beyond that is a finding.
//!
//! What it cannot see: rows behind the last checkpoint that the reader of a report trusts can be taken
//! away, or made anew from there on, by whoever can write the file. So checkpoints are exported.

use std::collections::BTreeMap;
use std::fmt;

use posthaste_core::id::DeliveryId;
use posthaste_core::time::Timestamp;
use posthaste_crypto::digest::Digest;

use crate::journal::{Entry, Head, JournalRow};
use crate::row::RetentionPhase;

/// Findings that a report names; the rest are counted.
const FINDINGS_MAX: usize = 100;

/// While a store runs, its last rows are signed for within a minute; this much later they should be.
const SIGNED_WITHIN_MS: i64 = 5 * 60 * 1_000;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Rows are missing, and no entry announces that.
    Missing {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// A row stands where an earlier one was to be.
    Misplaced {
        /// Its number.
        row: u64,
    },
    /// A row's entries are not those its root was made over.
    Changed {
        /// Its number.
        row: u64,
    },
    /// A row does not name the one before it.
    Unlinked {
        /// Its number.
        row: u64,
    },
    /// A row cannot be read.
    Unreadable {
        /// Its number, as far as it is known.
        row: u64,
        /// Why.
        why: String,
    },
    /// A checkpoint is not signed by the store's key.
    Forged {
        /// The row it names.
        row: u64,
    },
    /// A checkpoint names another row than the one that is there.
    Differs {
        /// The row it names.
        row: u64,
    },
    /// A checkpoint names a row behind the last one: the end of the journal is gone.
    Truncated {
        /// The row it names.
        row: u64,
        /// The last row there is.
        last: u64,
    },
    /// The store ran for minutes and nobody signed for what it wrote: checkpoints were taken away.
    Unsigned {
        /// The first row without.
        from: u64,
        /// The last row.
        to: u64,
    },
    /// What became of a delivery is not what the journal says.
    Outcome {
        /// Which.
        delivery: DeliveryId,
        /// What is different.
        what: &'static str,
    },
    /// Outcomes are missing that nobody has announced to be gone.
    OutcomesMissing {
        /// How many.
        missing: u64,
        /// How many retention has let go.
        announced: u64,
    },
    /// There are outcomes of which the journal does not know.
    OutcomesAdded {
        /// How many.
        added: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { from, to } if from == to => write!(f, "row {from} is missing, and nothing announces that"),
            Self::Missing { from, to } => write!(f, "rows {from} to {to} are missing, and nothing announces that"),
            Self::Misplaced { row } => write!(f, "row {row} stands where an earlier one was to be"),
            Self::Changed { row } => write!(f, "row {row} was changed: its entries do not give its root"),
            Self::Unlinked { row } => write!(f, "row {row} does not follow the one before it: one of them was changed"),
            Self::Unreadable { row, why } => write!(f, "row {row} cannot be read: {why}"),
            Self::Forged { row } => write!(f, "the checkpoint of row {row} is not signed by this store's key"),
            Self::Differs { row } => write!(f, "row {row} is not the one its checkpoint was signed for"),
            Self::Truncated { row, last } => {
                write!(
                    f,
                    "the journal ends with row {last}, and a checkpoint was signed for row {row}: its end is gone"
                )
            }
            Self::Unsigned { from, to } => {
                write!(
                    f,
                    "nobody signed for rows {from} to {to}, though the store ran for minutes: checkpoints are gone"
                )
            }
            Self::Outcome { delivery, what } => {
                write!(f, "what became of delivery {:x} is not what the journal says: {what}", delivery.raw())
            }
            Self::OutcomesMissing { missing, announced } => {
                write!(f, "{missing} outcomes are missing, and retention has let go of {announced}")
            }
            Self::OutcomesAdded { added } => write!(f, "the journal does not know of {added} outcomes"),
        }
    }
}

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first row there is.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Rows up to this one were let go, as entries announce.
    pub let_go: u64,
    /// Rows read.
    pub rows: u64,
    /// Entries in them.
    pub entries: u64,
    /// Deliveries that ended.
    pub ends: u64,
    /// Of these, those whose outcome retention has let go.
    pub ends_let_go: u64,
    /// Checkpoints that fit.
    pub checkpoints: u64,
    /// The last row that a checkpoint vouches for.
    pub signed: u64,
    /// What is not as it was written, the first hundred.
    pub findings: Vec<Finding>,
    /// How many there are in all.
    pub found: u64,
}

impl Report {
    /// Whether everything is as it was written.
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }

    fn find(&mut self, finding: Finding) {
        self.found += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}

/// What the file has of a delivery that an entry tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archived {
    /// As the journal says.
    Fits,
    /// It says something else.
    Differs(&'static str),
    /// There is nothing of that delivery.
    Missing,
}

/// Reads a journal row by row.
#[derive(Debug, Default)]
pub struct Audit {
    report: Report,
    head: Option<Head>,
    /// Row to hash, of those that are still to come.
    checkpoints: BTreeMap<u64, Vec<Digest>>,
    /// The highest row of the journal that was announced to be gone.
    announced: u64,
    /// Outcomes announced to be gone, and up to which end.
    outcomes_announced: u64,
    outcomes_before: Option<Timestamp>,
    outcomes_missing: u64,
    latest_missing: Option<Timestamp>,
    /// The first row that nobody has signed for, and since when somebody could have.
    unsigned: Option<(u64, Timestamp)>,
    /// Whether a session has begun and nothing has told yet when that was.
    begun: bool,
    last_at: Option<Timestamp>,
}

impl Audit {
    /// Takes a checkpoint whose signature is good.
    pub fn checkpoint(&mut self, row: u64, hash: Digest) {
        self.checkpoints.entry(row).or_default().push(hash);
    }

    /// Takes note of a checkpoint that is not this store's.
    pub fn forged(&mut self, row: u64) {
        self.report.find(Finding::Forged { row });
    }

    /// Takes note of a row that cannot be read at all.
    pub fn unreadable(&mut self, why: String) {
        let row = self.report.last + 1;
        self.report.find(Finding::Unreadable { row, why });
    }

    /// Takes the next row. `archived` says what the file has of a delivery that was tried or has ended.
    pub fn row(&mut self, row: &JournalRow, archived: &mut dyn FnMut(&Entry) -> Archived) {
        self.place(row);
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
                Ok(entry) => self.entry(&entry, archived),
                Err(error) => self.report.find(Finding::Unreadable { row: row.number, why: error.to_string() }),
            }
        }
    }

    fn entry(&mut self, entry: &Entry, archived: &mut dyn FnMut(&Entry) -> Archived) {
        match entry {
            Entry::Opened { .. } => self.begun = true,
            Entry::Retained { phase: RetentionPhase::Journal, upto, .. } => self.announced = self.announced.max(*upto),
            Entry::Retained { phase: RetentionPhase::History, removed, before, .. } => {
                self.outcomes_announced += removed;
                self.outcomes_before = self.outcomes_before.max(Some(*before));
            }
            Entry::Attempted { delivery, .. } | Entry::Late { delivery, .. } => {
                if let Archived::Differs(what) = archived(entry) {
                    self.report.find(Finding::Outcome { delivery: *delivery, what });
                }
            }
            Entry::Ended { delivery, .. } => {
                self.report.ends += 1;
                match archived(entry) {
                    Archived::Fits => {}
                    Archived::Differs(what) => self.report.find(Finding::Outcome { delivery: *delivery, what }),
                    Archived::Missing => {
                        self.outcomes_missing += 1;
                        self.latest_missing = self.latest_missing.max(entry.at());
                    }
                }
            }
            _ => {}
        }
    }

    /// Compares the row with the checkpoints that name it.
    fn signed(&mut self, row: &JournalRow) {
        let hash = row.hash();
        let Some(signed) = self.checkpoints.remove(&row.number) else {
            let (_, since) = self.unsigned.get_or_insert((row.number, row.at));
            // What the session before did not get signed is signed by this one, in its own time.
            if self.begun && row.at > self.last_at.unwrap_or_default() {
                *since = row.at;
                self.begun = false;
            }
            return;
        };
        for one in signed {
            if one == hash {
                self.report.checkpoints += 1;
                self.report.signed = row.number;
                self.unsigned = None;
            } else {
                self.report.find(Finding::Differs { row: row.number });
            }
        }
    }

    /// The end of the journal. `outcomes` is how many outcomes the file has.
    pub fn finish(mut self, outcomes: u64) -> Report {
        let (first, last) = (self.report.first, self.report.last);
        self.report.let_go = self.announced;
        if first > self.announced + 1 {
            self.report.find(Finding::Missing { from: self.announced + 1, to: first - 1 });
        } else if first <= self.announced && self.report.rows > 0 {
            // They went with the commit that announced it.
            self.report.find(Finding::Misplaced { row: first });
        }
        for row in std::mem::take(&mut self.checkpoints).into_keys() {
            if row > last {
                self.report.find(Finding::Truncated { row, last });
            } else if row >= first {
                self.report.find(Finding::Missing { from: row, to: row });
            }
        }
        if let (Some((from, since)), Some(at)) = (self.unsigned, self.last_at)
            && at.as_millis() - since.as_millis() > SIGNED_WITHIN_MS
        {
            self.report.find(Finding::Unsigned { from, to: last });
        }
        self.outcomes(outcomes);
        self.report
    }

    fn outcomes(&mut self, outcomes: u64) {
        let (missing, announced) = (self.outcomes_missing, self.outcomes_announced);
        self.report.ends_let_go = missing;
        // What ended before the first row that is left may have been let go too.
        let too_many = missing > announced || self.latest_missing > self.outcomes_before;
        if too_many {
            self.report.find(Finding::OutcomesMissing { missing, announced });
        }
        let known = self.report.ends - missing;
        // Of a row that is gone or cannot be read, nobody knows how many ends it told of.
        if outcomes > known && self.announced == 0 && self.report.found == 0 {
            self.report.find(Finding::OutcomesAdded { added: outcomes - known });
        }
    }
}

#[cfg(test)]
mod tests;
