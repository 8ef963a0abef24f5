//! The kinds of journal entries, with the names that the API uses for them.

use super::JournalEntry;

macro_rules! kinds {
    ($($kind:ident = $name:literal,)+) => {
        /// A kind of [`JournalEntry`]: each is explained at the entry's variant of the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EntryKind {
            $($kind,)+
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
    Accepted = "accepted",
    Attempted = "attempted",
    Late = "late",
    Ended = "ended",
    Cut = "cut",
    Uncut = "uncut",
    Paused = "paused",
    Resumed = "resumed",
    Hurried = "hurried",
    Reset = "breaker_reset",
    Endpoint = "endpoint",
    Secret = "secret",
    Spread = "spread",
    Job = "job",
    Purged = "purged",
    Retained = "retained",
    Agreed = "agreed",
    Document = "document",
    Erased = "erased",
    ErasureDone = "erasure_done",
    Exported = "exported",
    RotationBegun = "rotation_begun",
    RotationEnded = "rotation_ended",
}
