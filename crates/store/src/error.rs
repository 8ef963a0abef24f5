//! The errors of a store, by what a caller can do about them.

/// A call to the store failed. Unless the call says otherwise, nothing was changed. The exception is
/// [`StoreError::Stopped`]: the change may or may not be on disk, and only the next start shows which.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A newer session owns the store; the caller's session must stop.
    #[error("session {session} was taken over by a newer one and can change nothing")]
    Fenced { session: u64 },
    /// The store stopped: it was closed, or a write or sync failed, after which nothing is acknowledged until a
    /// restart. A change in progress at that moment may have become durable.
    #[error("the store has stopped writing; restart to recover")]
    Stopped,
    /// The disk is full: nothing was written, and nothing is accepted until space is freed. The store then resumes by
    /// itself.
    #[error("the disk is full: nothing was accepted; free some space, or ask again later")]
    Full,
    /// The store is overloaded: nothing was written.
    #[error("the store has too much to do: nothing was accepted; ask again in a moment")]
    Busy,
    #[error("cannot {doing}")]
    Database {
        /// The operation that failed, as a verb phrase.
        doing: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    /// The limit on concurrent work of this kind, named in the plural, is reached.
    #[error("{limit} {what} are under way already; ask again when one of them is done")]
    TooMany { what: &'static str, limit: usize },
    /// `reason` says why the folder cannot be used, and what to do.
    #[error("cannot use the data folder {folder}: {reason}")]
    Folder { folder: String, reason: String },
    /// The operating system could not start a thread.
    #[error("cannot start a thread of the store")]
    Thread {
        #[source]
        source: std::io::Error,
    },
    /// A sealed value of this kind, such as a payload, does not open in its place: it was altered or moved by another
    /// program.
    #[error("{what} does not open ({why}): it was altered or moved, and is not used")]
    Altered { what: &'static str, why: String },
    /// A stored value is not one this program writes.
    #[error("{what} holds {found}: the file is damaged or from another program")]
    Damaged { what: &'static str, found: String },
}
