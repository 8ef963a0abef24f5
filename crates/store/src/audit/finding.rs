//! What does not fit, each in a sentence, and the report that tells of it.

use std::fmt;

use posthaste_core::id::DeliveryId;

/// Findings that a report names; the rest are counted.
const FINDINGS_MAX: usize = 100;

/// Where a checkpoint was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// In the file itself: whoever can write the file can take it away.
    InTheFile,
    /// Elsewhere: it was exported, and given to the audit.
    Elsewhere,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InTheFile => "the file's own checkpoint",
            Self::Elsewhere => "the checkpoint you gave",
        })
    }
}

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
    /// A checkpoint is not signed by the store's key, or is kept for another row than it names.
    Forged {
        /// The row it is for.
        row: u64,
        /// Where it was kept.
        kept: Kept,
    },
    /// A checkpoint is another store's.
    Foreign {
        /// The row it names.
        row: u64,
        /// Where it was kept.
        kept: Kept,
    },
    /// The file does not say, or says otherwise, what the audit must know of its store.
    Identity {
        /// What.
        what: &'static str,
    },
    /// A row that nobody signed for announces that more is gone than retention lets go.
    Overdone {
        /// Its number.
        row: u64,
    },
    /// Outcomes are missing for the sake of an erasure that is not announced, or that nobody signed for.
    Unfounded {
        /// Where the file says it is announced.
        row: u64,
    },
    /// A checkpoint names another row than the one that is there.
    Differs {
        /// The row it names.
        row: u64,
        /// Where it was kept.
        kept: Kept,
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
    /// There are attempts of which the journal does not know.
    AttemptsAdded {
        /// How many.
        added: u64,
    },
}

impl Finding {
    /// What kind it is, in a word for a program.
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
            Self::Misplaced { row } => write!(f, "row {row} stands where an earlier one was to be"),
            Self::Changed { row } => write!(f, "row {row} was changed: its entries do not give its root"),
            Self::Unlinked { row } => write!(f, "row {row} does not follow the one before it: one of them was changed"),
            Self::Unreadable { row, why } => write!(f, "row {row} cannot be read: {why}"),
            Self::Forged { row, kept } => write!(f, "{kept} for row {row} is not signed by this store's key"),
            Self::Foreign { row, kept } => {
                write!(f, "{kept} for row {row} is another store's, or this file's store id was changed")
            }
            Self::Identity { what } => f.write_str(what),
            Self::Overdone { row } => {
                write!(f, "row {row}, which nobody signed for, announces that more is gone than retention lets go")
            }
            Self::Unfounded { row } => {
                write!(f, "outcomes are missing as if somebody was erased, and no row {row} that is signed for says so")
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
            Self::AttemptsAdded { added } => write!(f, "the journal does not know of {added} attempts"),
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
    /// Of these, those whose outcome went because somebody was erased.
    pub ends_erased: u64,
    /// Checkpoints that fit, wherever they were kept.
    pub checkpoints: u64,
    /// Checkpoints of rows that were let go: there is nothing to hold them against.
    pub past: u64,
    /// The last row that a checkpoint vouches for.
    pub signed: u64,
    /// The last row that a checkpoint vouches for which was kept elsewhere.
    pub vouched: u64,
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

    pub(super) fn find(&mut self, finding: Finding) {
        self.found += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}
