//! Something to write with an answer of its own kind, for verbs that are rare: the writer runs it
//! in a group as it runs everything else, and need not know what it is.

use rusqlite::Connection;

use super::request::Reply;
use crate::StoreError;
use crate::journal::Entries;

/// What the writer does with it.
pub(super) trait Work: Send {
    /// Runs it. May be run again in another transaction, when another request of its group was bad.
    /// What it did goes into the journal with the rest of its group.
    fn run(&mut self, conn: &Connection, entries: &mut Entries) -> Result<(), StoreError>;

    /// Whether nobody waits for its answer.
    fn is_abandoned(&self) -> bool;

    /// Answers its caller, after the commit.
    fn answer(self: Box<Self>, refusal: Option<StoreError>);
}

/// A function whose answer waits for the commit.
pub(super) struct Asked<F, T> {
    run: F,
    done: Option<T>,
    reply: Reply<T>,
}

impl<F, T> Asked<F, T> {
    pub(super) fn new(run: F, reply: Reply<T>) -> Self {
        Self { run, done: None, reply }
    }
}

impl<T: Send, F: FnMut(&Connection, &mut Entries) -> Result<T, StoreError> + Send> Work for Asked<F, T> {
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
