//! The findings of an audit, each with a message for the operator, and the report that lists them.

use std::fmt;

use posthaste_core::DeliveryId;

/// Maximum number of findings that a report lists; further ones are only counted.
const FINDINGS_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointSource {
    /// In the database file: an attacker who can write the file can remove it.
    InTheFile,
    /// Elsewhere: it was exported, and the operator passed it to the audit.
    Elsewhere,
}

impl fmt::Display for CheckpointSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InTheFile => "the file's own checkpoint",
            Self::Elsewhere => "the checkpoint you gave",
        })
    }
}

/// A difference between the store and what was written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Rows are missing, and no entry announces their deletion.
    Missing { from: u64, to: u64 },
    /// A row appears after rows with higher numbers, or although its deletion was announced.
    Misplaced { row: u64 },
    /// A row's entries do not match its root.
    Changed { row: u64 },
    /// A row does not hold the hash of the row before it.
    Unlinked { row: u64 },
    Unreadable {
        /// The row's number, or the number expected there.
        row: u64,
        why: String,
    },
    /// A checkpoint is not signed by the store's key, or is stored for a row other than the one it names.
    Forged { row: u64, kept: CheckpointSource },
    /// A checkpoint belongs to another store.
    Foreign { row: u64, kept: CheckpointSource },
    /// The store's id or public key is missing from the file, or is not the expected one.
    Identity { what: &'static str },
    /// A row that no checkpoint covers announces more deletions than retention allows.
    Overdone { row: u64 },
    /// Outcomes are missing because of an erasure that the journal does not announce, or that no checkpoint covers.
    Unfounded {
        /// The row in which the erasure should be announced.
        row: u64,
    },
    /// A checkpoint was signed for a row with another hash.
    Differs { row: u64, kept: CheckpointSource },
    /// A checkpoint names a row after the last one: the end of the journal was removed.
    Truncated { row: u64, last: u64 },
    /// No checkpoint covers the last rows, although the store ran for minutes: checkpoints were removed.
    Unsigned {
        /// The first row not covered.
        from: u64,
        to: u64,
    },
    /// The stored outcome or attempt of a delivery differs from the journal.
    Outcome { delivery: DeliveryId, what: &'static str },
    /// More outcomes are missing than announced, or later ones.
    OutcomesMissing {
        missing: u64,
        /// The number that entries announce as deleted.
        announced: u64,
    },
    /// There are outcomes that are not in the journal.
    OutcomesAdded {
        /// The number of such outcomes.
        added: u64,
    },
    /// There are attempts that are not in the journal.
    AttemptsAdded {
        /// The number of such attempts.
        added: u64,
    },
}

impl Finding {
    /// The kind of finding, as a code for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing",
            Self::Misplaced { .. } => "misplaced",
            Self::Changed { .. } => "changed",
            Self::Unlinked { .. } => "unlinked",
            Self::Unreadable { .. } => "unreadable",
            Self::Forged { .. } => "forged",
            Self::Foreign { .. } => "foreign",
            Self::Identity { .. } => "identity",
            Self::Overdone { .. } => "overdone",
            Self::Unfounded { .. } => "unfounded",
            Self::Differs { .. } => "differs",
            Self::Truncated { .. } => "truncated",
            Self::Unsigned { .. } => "unsigned",
            Self::Outcome { .. } => "outcome",
            Self::OutcomesMissing { .. } => "outcomes_missing",
            Self::OutcomesAdded { .. } => "outcomes_added",
            Self::AttemptsAdded { .. } => "attempts_added",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { from, to } if from == to => write!(f, "row {from} is missing, and nothing announces that"),
            Self::Missing { from, to } => write!(f, "rows {from} to {to} are missing, and nothing announces that"),
            Self::Misplaced { row } => write!(f, "row {row} is out of place, or was put back after its deletion"),
            Self::Changed { row } => write!(f, "row {row} was changed: its entries do not give its root"),
            Self::Unlinked { row } => write!(f, "row {row} does not follow the one before it: one of them was changed"),
            Self::Unreadable { row, why } => write!(f, "row {row} cannot be read: {why}"),
            Self::Forged { row, kept } => write!(f, "{kept} for row {row} is not signed by this store's key"),
            Self::Foreign { row, kept } => {
                write!(f, "{kept} for row {row} is another store's, or this file's store id was changed")
            }
            Self::Identity { what } => f.write_str(what),
            Self::Overdone { row } => {
                write!(f, "row {row}, which no checkpoint covers, announces more deletions than retention allows")
            }
            Self::Unfounded { row } => {
                write!(
                    f,
                    "outcomes are missing because of an erasure, but no checkpoint covers a row {row} that announces it"
                )
            }
            Self::Differs { row, kept } => write!(f, "row {row} is not the one that {kept} was signed for"),
            Self::Truncated { row, last } => {
                write!(
                    f,
                    "the journal ends with row {last}, and a checkpoint was signed for row {row}: its end is gone"
                )
            }
            Self::Unsigned { from, to } => {
                write!(
                    f,
                    "no checkpoint covers rows {from} to {to}, although the store ran for minutes: some were removed"
                )
            }
            Self::Outcome { delivery, what } => {
                write!(f, "delivery {:x} differs from the journal: {what}", delivery.raw())
            }
            Self::OutcomesMissing { missing, announced } => {
                write!(f, "{missing} outcomes are missing, and retention has deleted {announced}")
            }
            Self::OutcomesAdded { added } => write!(f, "{added} outcomes are not in the journal"),
            Self::AttemptsAdded { added } => write!(f, "{added} attempts are not in the journal"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    pub first: u64,
    pub last: u64,
    /// Rows up to this one were deleted by retention, as entries announce.
    pub expired_upto: u64,
    pub rows: u64,
    pub entries: u64,
    /// Deliveries that ended, according to the journal.
    pub ends: u64,
    /// The number of `ends` whose outcome is missing and was not erased: retention deleted it.
    pub ends_expired: u64,
    /// The number of `ends` whose outcome was removed by an erasure.
    pub ends_erased: u64,
    /// Checkpoints that match their row, wherever they were stored.
    pub checkpoints: u64,
    /// Checkpoints of rows that were deleted, which can no longer be compared.
    pub past: u64,
    pub signed: u64,
    /// The last row that a checkpoint stored elsewhere covers.
    pub vouched: u64,
    pub findings: Vec<Finding>,
    pub found: u64,
}

impl AuditReport {
    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }

    pub(super) fn find(&mut self, finding: Finding) {
        self.found += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}
