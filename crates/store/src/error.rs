//! What a caller can do about a store that could not do its work.

/// A store could not do its work. Nothing was promised, and unless the call says otherwise nothing
/// was changed. After [`StoreError::Stopped`] nobody knows: what was asked for may be on the disk
/// or not, and the next start shows which.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another session owns the store by now: this one must stop.
    #[error("session {session} was taken over by a newer one and can change nothing")]
    Fenced {
        /// The session that lost its shards.
        session: u64,
    },
    /// The store stopped: it was closed, or a write or sync failed, after which nothing is
    /// acknowledged until a restart. A change that was under way then may have become durable.
    #[error("the store has stopped writing; restart to recover")]
    Stopped,
    /// The disk is full: nothing was written, and nothing is accepted until space is freed. The
    /// store goes on by itself then.
    #[error("the disk is full: nothing was accepted; free some space, or ask again later")]
    Full,
    /// More was asked for than the store can take in time: nothing was written.
    #[error("the store has too much to do: nothing was accepted; ask again in a moment")]
    Busy,
    /// The database refused.
    #[error("cannot {doing}")]
    Database {
        /// What was tried.
        doing: &'static str,
        /// What it said.
        #[source]
        source: rusqlite::Error,
    },
    /// As much is under way as may be at once.
    #[error("{limit} {what} are under way already; ask again when one of them is done")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many may be.
        limit: usize,
    },
    /// The data folder cannot be used.
    #[error("cannot use the data folder {folder}: {reason}")]
    Folder {
        /// Which.
        folder: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The system refused a thread.
    #[error("cannot start a thread of the store")]
    Thread {
        /// What it said.
        #[source]
        source: std::io::Error,
    },
    /// What was read is not what was sealed for this place: somebody else wrote it.
    #[error("{what} does not open ({why}): it was altered or moved, and is not used")]
    Altered {
        /// What it is.
        what: &'static str,
        /// Why it does not open.
        why: String,
    },
    /// What was read is not what was written.
    #[error("{what} holds {found}: the file is damaged or from another program")]
    Damaged {
        /// Which column or field.
        what: &'static str,
        /// What stood there.
        found: String,
    },
}
