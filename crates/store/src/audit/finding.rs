//! The findings of an audit, each with a message for the operator, and the report that lists them.

use posthaste_core::DeliveryId;

/// Maximum number of findings that a report lists; further ones are only counted.
const FINDINGS_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointSource {
    /// In the database file: an attacker who can write the file can remove it.
    #[error("the file's own checkpoint")]
    InTheFile,
    /// Elsewhere: it was exported, and the operator passed it to the audit.
    #[error("the checkpoint you gave")]
    Elsewhere,
}

/// A difference between the store and what was written to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// Rows are missing, and no entry announces their deletion.
    #[error("{}", missing(*from, *to))]
    Missing { from: u64, to: u64 },
    /// A row appears after rows with higher numbers, or although its deletion was announced.
    #[error("row {row} is out of place, or was put back after its deletion")]
    Misplaced { row: u64 },
    /// A row's entries do not match its root.
    #[error("row {row} was changed: its entries do not give its root")]
    Changed { row: u64 },
    /// A row does not hold the hash of the row before it.
    #[error("row {row} does not follow the one before it: one of them was changed")]
    Unlinked { row: u64 },
    /// A row cannot be read. If not even its number can, `row` is the number expected there.
    #[error("row {row} cannot be read: {why}")]
    Unreadable { row: u64, why: String },
    /// A checkpoint is not signed by the store's key, or is stored for a row other than the one it names.
    #[error("{kept} for row {row} is not signed by this store's key")]
    Forged { row: u64, kept: CheckpointSource },
    /// A checkpoint belongs to another store.
    #[error("{kept} for row {row} is another store's, or this file's store id was changed")]
    Foreign { row: u64, kept: CheckpointSource },
    /// The store's id or public key is missing from the file, or is not the expected one.
    #[error("{what}")]
    Identity { what: &'static str },
    /// A row that no checkpoint covers announces more deletions than retention allows.
    #[error("row {row}, which no checkpoint covers, announces more deletions than retention allows")]
    Overdone { row: u64 },
    /// Outcomes are missing because of an erasure that the journal does not announce in this row, or that no checkpoint
    /// covers.
    #[error("outcomes are missing because of an erasure, but no checkpoint covers a row {row} that announces it")]
    Unfounded { row: u64 },
    /// A checkpoint was signed for a row with another hash.
    #[error("row {row} is not the one that {kept} was signed for")]
    Differs { row: u64, kept: CheckpointSource },
    /// A checkpoint names a row after the last one: the end of the journal was removed.
    #[error("the journal ends with row {last}, and a checkpoint was signed for row {row}: its end is gone")]
    Truncated { row: u64, last: u64 },
    /// No checkpoint covers the last rows, although the store ran for minutes: checkpoints were removed.
    #[error("no checkpoint covers rows {from} to {to}, although the store ran for minutes: some were removed")]
    Unsigned { from: u64, to: u64 },
    /// The stored outcome or attempt of a delivery differs from the journal.
    #[error("delivery {:x} differs from the journal: {what}", delivery.raw())]
    Outcome { delivery: DeliveryId, what: &'static str },
    /// More outcomes are missing than entries announce as deleted, or later ones.
    #[error("{missing} outcomes are missing, and retention has deleted {announced}")]
    OutcomesMissing { missing: u64, announced: u64 },
    /// This many outcomes are not in the journal.
    #[error("{added} outcomes are not in the journal")]
    OutcomesAdded { added: u64 },
    /// This many attempts are not in the journal.
    #[error("{added} attempts are not in the journal")]
    AttemptsAdded { added: u64 },
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

/// The message of [`Finding::Missing`].
fn missing(from: u64, to: u64) -> String {
    let rows = if from == to { format!("row {from} is") } else { format!("rows {from} to {to} are") };
    format!("{rows} missing, and nothing announces that")
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
