//! The kinds of journal entries, with the names that the API uses for them.

use super::JournalEntry;

/// A kind of [`JournalEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Opened,
    /// A message became durable.
    Accepted,
    /// An attempt did not end its delivery.
    Attempted,
    /// An attempt whose delivery had already ended or changed.
    Late,
    Ended,
    /// A message was cancelled, or all pending deliveries of an endpoint were ended.
    Cut,
    /// All deliveries that a cut covers are swept.
    Uncut,
    Paused,
    Resumed,
    /// A caller asked for a delivery to be retried now.
    Hurried,
    Reset,
    /// An endpoint was made, changed or deleted.
    Endpoint,
    /// An endpoint's secrets were shown or rotated.
    Secret,
    Spread,
    /// A job began, changed or ended.
    Job,
    Purged,
    /// Retention deleted expired rows.
    Retained,
    /// A tenant's retention override changed.
    Agreed,
    /// A tenant, an API key or a policy was made, changed or removed.
    Document,
    Erased,
    ErasureDone,
    /// A caller exported the data held about a subject.
    Exported,
    RotationBegun,
    /// A rotation of the master key ended: no older key is needed.
    RotationEnded,
}

impl EntryKind {
    pub const ALL: [Self; 24] = [
        Self::Opened,
        Self::Accepted,
        Self::Attempted,
        Self::Late,
        Self::Ended,
        Self::Cut,
        Self::Uncut,
        Self::Paused,
        Self::Resumed,
        Self::Hurried,
        Self::Reset,
        Self::Endpoint,
        Self::Secret,
        Self::Spread,
        Self::Job,
        Self::Purged,
        Self::Retained,
        Self::Agreed,
        Self::Document,
        Self::Erased,
        Self::ErasureDone,
        Self::Exported,
        Self::RotationBegun,
        Self::RotationEnded,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Accepted => "accepted",
            Self::Attempted => "attempted",
            Self::Late => "late",
            Self::Ended => "ended",
            Self::Cut => "cut",
            Self::Uncut => "uncut",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Hurried => "hurried",
            Self::Reset => "breaker_reset",
            Self::Endpoint => "endpoint",
            Self::Secret => "secret",
            Self::Spread => "spread",
            Self::Job => "job",
            Self::Purged => "purged",
            Self::Retained => "retained",
            Self::Agreed => "agreed",
            Self::Document => "document",
            Self::Erased => "erased",
            Self::ErasureDone => "erasure_done",
            Self::Exported => "exported",
            Self::RotationBegun => "rotation_begun",
            Self::RotationEnded => "rotation_ended",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl JournalEntry {
    pub const fn kind(&self) -> EntryKind {
        match self {
            Self::Opened { .. } => EntryKind::Opened,
            Self::Accepted { .. } => EntryKind::Accepted,
            Self::Attempted { .. } => EntryKind::Attempted,
            Self::Late { .. } => EntryKind::Late,
            Self::Ended { .. } => EntryKind::Ended,
            Self::Cut { .. } => EntryKind::Cut,
            Self::Uncut { .. } => EntryKind::Uncut,
            Self::Paused { .. } => EntryKind::Paused,
            Self::Resumed { .. } => EntryKind::Resumed,
            Self::Hurried { .. } => EntryKind::Hurried,
            Self::Reset { .. } => EntryKind::Reset,
            Self::Endpoint { .. } => EntryKind::Endpoint,
            Self::Secret { .. } => EntryKind::Secret,
            Self::Spread { .. } => EntryKind::Spread,
            Self::Job { .. } => EntryKind::Job,
            Self::Purged { .. } => EntryKind::Purged,
            Self::Retained { .. } => EntryKind::Retained,
            Self::Agreed { .. } => EntryKind::Agreed,
            Self::Document { .. } => EntryKind::Document,
            Self::Erased { .. } => EntryKind::Erased,
            Self::ErasureDone { .. } => EntryKind::ErasureDone,
            Self::Exported { .. } => EntryKind::Exported,
            Self::RotationBegun { .. } => EntryKind::RotationBegun,
            Self::RotationEnded { .. } => EntryKind::RotationEnded,
        }
    }
}
