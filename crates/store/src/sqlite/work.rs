//! Writes with an answer type of their own, for rare verbs: the writer runs them in a group like
//! every other request, without knowing what they do.

use rusqlite::Connection;

use super::request::Reply;
use crate::StoreError;
use crate::journal::Entries;

/// A write that the writer runs and answers.
pub(super) trait Work: Send {
    /// Runs the write in the current transaction. May be called again in another transaction, when another request of
    /// the group failed. Its `entries` go into the journal with those of the group.
    fn run(&mut self, conn: &Connection, entries: &mut Entries) -> Result<(), StoreError>;

    /// Whether the caller has stopped waiting for the answer.
    fn is_abandoned(&self) -> bool;

    /// Answers the caller, after the commit: with the result, or with the error that refused the write.
    fn answer(self: Box<Self>, refusal: Option<StoreError>);
}

/// A function to run, and its result until the commit.
pub(super) struct WorkCall<F, T> {
    run: F,
    done: Option<T>,
    reply: Reply<T>,
}

impl<F, T> WorkCall<F, T> {
    pub(super) fn new(run: F, reply: Reply<T>) -> Self {
        Self { run, done: None, reply }
    }
}

impl<T: Send, F: FnMut(&Connection, &mut Entries) -> Result<T, StoreError> + Send> Work for WorkCall<F, T> {
    fn run(&mut self, conn: &Connection, entries: &mut Entries) -> Result<(), StoreError> {
        self.done = Some((self.run)(conn, entries)?);
        Ok(())
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn answer(self: Box<Self>, refusal: Option<StoreError>) {
        let Self { done, reply, .. } = *self;
        _ = reply.send(refusal.map_or_else(|| done.ok_or(StoreError::Stopped), Err));
    }
}
