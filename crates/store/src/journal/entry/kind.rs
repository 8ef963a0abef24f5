//! The kinds of journal entries, with the names that the API uses for them.

use super::JournalEntry;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)+) => {
        /// A kind of [`JournalEntry`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EntryKind {
            $($(#[$doc])* $kind,)+
        }

        impl EntryKind {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }

            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|kind| kind.name() == name)
            }
        }

        impl JournalEntry {
            pub const fn kind(&self) -> EntryKind {
                match self {
                    $(Self::$kind { .. } => EntryKind::$kind,)+
                }
            }
        }
    };
}

kinds! {
    Opened = "opened",
    /// A message became durable.
    Accepted = "accepted",
    /// An attempt did not end its delivery.
    Attempted = "attempted",
    /// An attempt whose delivery had already ended or changed.
    Late = "late",
    Ended = "ended",
    /// A message was cancelled, or all pending deliveries of an endpoint were ended.
    Cut = "cut",
    /// All deliveries that a cut covers are swept.
    Uncut = "uncut",
    Paused = "paused",
    Resumed = "resumed",
    /// A caller asked for a delivery to be retried now.
    Hurried = "hurried",
    Reset = "breaker_reset",
    /// An endpoint was made, changed or deleted.
    Endpoint = "endpoint",
    /// An endpoint's secrets were shown or rotated.
    Secret = "secret",
    Spread = "spread",
    /// A job began, changed or ended.
    Job = "job",
    Purged = "purged",
    /// Retention deleted expired rows.
    Retained = "retained",
    /// A tenant's retention override changed.
    Agreed = "agreed",
    /// A tenant, an API key or a policy was made, changed or removed.
    Document = "document",
    Erased = "erased",
    ErasureDone = "erasure_done",
    /// A caller exported the data held about a subject.
    Exported = "exported",
    RotationBegun = "rotation_begun",
    /// A rotation of the master key ended: no older key is needed.
    RotationEnded = "rotation_ended",
}
