//! What kinds of things the journal tells of, and what they are called.

use super::Entry;

/// A kind of [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A session began.
    Opened,
    /// A message became durable.
    Accepted,
    /// An attempt did not end its delivery.
    Attempted,
    /// An attempt came too late to matter.
    Late,
    /// A delivery ended.
    Ended,
    /// A message was cancelled, or all that waits for an endpoint was ended.
    Cut,
    /// All that a cut covers is written off.
    Uncut,
    /// Something was paused.
    Paused,
    /// A pause was ended.
    Resumed,
    /// A delivery was asked for now.
    Hurried,
    /// A breaker was reset.
    Reset,
    /// An endpoint was made, changed or deleted.
    Endpoint,
    /// An endpoint's secrets were looked at or rotated.
    Secret,
    /// A job made deliveries.
    Spread,
    /// A job began, changed or ended.
    Job,
    /// Dead letters were taken back.
    Purged,
    /// Retention let something go.
    Retained,
    /// How long a tenant's things are kept has changed.
    Agreed,
    /// A tenant, an API key or a policy was made, changed or removed.
    Document,
    /// A subject or a tenant was erased.
    Erased,
    /// Nothing is left of what was erased.
    ErasureDone,
    /// Somebody asked what is held about a subject.
    Exported,
    /// The master key is being rotated.
    RotationBegun,
    /// No older master key is needed any more.
    RotationEnded,
}

impl Kind {
    /// Every kind there is.
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

    /// What the API calls it.
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

    /// The kind that is called so.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Entry {
    /// What kind of thing it tells of.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Opened { .. } => Kind::Opened,
            Self::Accepted { .. } => Kind::Accepted,
            Self::Attempted { .. } => Kind::Attempted,
            Self::Late { .. } => Kind::Late,
            Self::Ended { .. } => Kind::Ended,
            Self::Cut { .. } => Kind::Cut,
            Self::Uncut { .. } => Kind::Uncut,
            Self::Paused { .. } => Kind::Paused,
            Self::Resumed { .. } => Kind::Resumed,
            Self::Hurried { .. } => Kind::Hurried,
            Self::Reset { .. } => Kind::Reset,
            Self::Endpoint { .. } => Kind::Endpoint,
            Self::Secret { .. } => Kind::Secret,
            Self::Spread { .. } => Kind::Spread,
            Self::Job { .. } => Kind::Job,
            Self::Purged { .. } => Kind::Purged,
            Self::Retained { .. } => Kind::Retained,
            Self::Agreed { .. } => Kind::Agreed,
            Self::Document { .. } => Kind::Document,
            Self::Erased { .. } => Kind::Erased,
            Self::ErasureDone { .. } => Kind::ErasureDone,
            Self::Exported { .. } => Kind::Exported,
            Self::RotationBegun { .. } => Kind::RotationBegun,
            Self::RotationEnded { .. } => Kind::RotationEnded,
        }
    }
}
