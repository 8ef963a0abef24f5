//! Runs a group of requests in one transaction. If one of them fails by its own fault, each runs again in a savepoint,
//! so that only that one is refused.
//!
//! Invariant: when a transaction is rolled back, so are its journal entries and its changes to memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::{Cut, CutScope, WriterId};
use rusqlite::{Connection, Statement};

use super::accept::Accept;
use super::endpoint::{CommittedChange, Turned};
use super::fault::is_callers;
use super::journal::Journal;
use super::low::Low;
use super::request::PutEndpoint;
use super::sealed::endpoint::SealedEndpoint;
use super::settle::Settle;
use super::vault::KeyView;
use super::{
    Bounds, SmallChange, Vault, WriteRequest, breaker, cut, derived, endpoint, failed, idempotency, is_full, job, key,
    page, pause, sealed,
};
use crate::journal::JournalEntry;
use crate::{ApiKeyRef, AuditStamp, EndpointPut, Session, SessionStart, Settlement, StoreError};

/// The prepared statements and the state for running groups of requests.
pub(super) struct Group<'c> {
    conn: &'c Connection,
    begin: Statement<'c>,
    commit: Statement<'c>,
    spill: Statement<'c>,
    vault: Arc<Vault>,
    accept: Accept<'c>,
    settle: Settle<'c>,
    pub(super) journal: Journal<'c>,
    low: Low<'c>,
    /// The session that may write. The folder's lock excludes other processes, so this is not stored in the file.
    session: Option<Session>,
    /// Changes to endpoints by this group, in the order of its requests.
    pub(super) changed: Vec<CommittedChange>,
    /// How long the last commit took, its sync included.
    pub(super) commit_took: Duration,
}

/// The refused requests of a group: index in the group, and error.
pub(super) type Refused = Vec<(usize, StoreError)>;

impl<'c> Group<'c> {
    pub(super) fn prepare(conn: &'c Connection, vault: Arc<Vault>, bounds: Bounds) -> Result<Self, StoreError> {
        let doing = failed("prepare the writer");
        Ok(Self {
            conn,
            begin: conn.prepare("BEGIN IMMEDIATE").map_err(&doing)?,
            commit: conn.prepare("COMMIT").map_err(&doing)?,
            spill: conn.prepare("UPDATE delivery SET place = 2 WHERE id = ?1").map_err(&doing)?,
            accept: Accept::prepare(conn, Arc::clone(&vault)).map_err(&doing)?,
            vault,
            settle: Settle::prepare(conn).map_err(&doing)?,
            journal: Journal::prepare(conn)?,
            low: Low::prepare(conn, bounds.low_every).map_err(&doing)?,
            session: None,
            changed: Vec::new(),
            commit_took: Duration::ZERO,
        })
    }

    /// Commits a group. An error ends the writer, unless the disk is full: then the group is rolled back.
    pub(super) fn write(&mut self, group: &mut [WriteRequest]) -> Result<Refused, StoreError> {
        let session = self.session;
        match self.write_together(group) {
            Err(error) if is_callers(&error) => {
                self.undo(session)?;
                self.write_apart(group)
            }
            written => written,
        }
        .or_else(|error| {
            if is_full(&error) {
                self.undo(session)?;
            }
            Err(error)
        })
    }

    /// Rolls back a failed transaction, in the database and in memory.
    fn undo(&mut self, session: Option<Session>) -> Result<(), StoreError> {
        // After some failures SQLite has rolled back already.
        if !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK").map_err(failed("roll back a group"))?;
        }
        self.journal.rolled_back();
        self.low.rolled_back();
        self.vault.not_written(0);
        self.vault.spare(0);
        self.session = session;
        self.changed.clear();
        Ok(())
    }

    fn write_together(&mut self, group: &mut [WriteRequest]) -> Result<Refused, StoreError> {
        let mut refused = Refused::new();
        self.begin.raw_execute().map_err(failed("begin a commit"))?;
        for (place, request) in group.iter_mut().enumerate() {
            match self.apply(request) {
                Ok(()) => {}
                // Both are returned before anything is written.
                Err(error @ (StoreError::Fenced { .. } | StoreError::TooMany { .. })) => refused.push((place, error)),
                Err(error) => return Err(error),
            }
        }
        self.commit()?;
        Ok(refused)
    }

    /// Runs the group again with each request in a savepoint, so that a faulty one fails alone.
    fn write_apart(&mut self, group: &mut [WriteRequest]) -> Result<Refused, StoreError> {
        let mut refused = Refused::new();
        self.begin.raw_execute().map_err(failed("begin a commit"))?;
        for (place, request) in group.iter_mut().enumerate() {
            self.conn.execute_batch("SAVEPOINT request").map_err(failed("begin a request"))?;
            let (before, changed) = (self.journal.entries.len(), self.changed.len());
            let (keys, destroyed) = (self.vault.being_written(), self.vault.being_destroyed());
            let applied = self.apply(request);
            let end = if applied.is_ok() { "RELEASE request" } else { "ROLLBACK TO request; RELEASE request" };
            match applied {
                Err(error) if !is_callers(&error) => return Err(error),
                Err(error) => {
                    self.journal.entries.truncate(before);
                    self.changed.truncate(changed);
                    self.vault.not_written(keys);
                    self.vault.spare(destroyed);
                    refused.push((place, error));
                }
                Ok(()) => {}
            }
            self.conn.execute_batch(end).map_err(failed("end a request"))?;
        }
        self.commit()?;
        Ok(refused)
    }

    #[expect(clippy::disallowed_methods, reason = "how long the disk took is measured, not decided by")]
    fn commit(&mut self) -> Result<(), StoreError> {
        self.journal.write().map_err(failed("write the journal"))?;
        self.low.write().map_err(failed("raise the low-water mark"))?;
        let began = Instant::now();
        self.commit.raw_execute().map_err(failed("commit"))?;
        self.commit_took = began.elapsed();
        self.journal.committed();
        self.low.committed();
        self.vault.destroyed();
        self.vault.written();
        Ok(())
    }

    fn apply(&mut self, request: &mut WriteRequest) -> Result<(), StoreError> {
        if let Some(session) = request.session()
            && self.session != Some(session)
        {
            return Err(StoreError::Fenced { session: session.id });
        }
        self.low.notice(request);
        match request {
            WriteRequest::Open { at, start, .. } => {
                let begun = begin_session(self.conn, &self.vault)?;
                self.journal.entries.push(&JournalEntry::Opened { session: begun.session.id, at: *at });
                self.session = Some(begun.session);
                *start = Some(begun);
                Ok(())
            }
            WriteRequest::Accept { messages, sealed, entries, found, .. } => {
                *found = self.accept.run(messages, sealed, entries, &mut self.journal.entries)?;
                Ok(())
            }
            WriteRequest::Settle { session, settlements, entries, macs, settled, .. } => {
                let written = &mut self.journal.entries;
                let done = self.settle.run(*session, settlements, settled, (entries, macs), written);
                done.and_then(|()| self.disable_where_asked(settlements)).map_err(failed("settle deliveries"))
            }
            WriteRequest::Cut { cut, by, ended, .. } => self.cut(cut, *by, ended),
            WriteRequest::PutEndpoint { put, .. } => self.put_endpoint(put),
            WriteRequest::Change { change, .. } => self.change(change).map_err(failed(change.doing())),
            WriteRequest::Spread { chunk, macs, chunked, .. } => {
                *chunked = job::spread(self.conn, &mut self.accept, chunk, macs, &mut self.journal.entries)?;
                Ok(())
            }
            WriteRequest::Work { work, .. } => work.run(self.conn, &mut self.journal.entries),
            WriteRequest::Follow { slice, .. } => {
                derived::write(self.conn, slice).map_err(failed("follow the journal"))
            }
            WriteRequest::CatchUp(_) | WriteRequest::EmptyLog(_) | WriteRequest::Wake | WriteRequest::Stop => Ok(()),
        }
    }

    fn cut(&mut self, cut: &Cut, by: Option<ApiKeyRef>, ended: &mut Option<u64>) -> Result<(), StoreError> {
        self.journal.entries.push(&JournalEntry::cut(cut, by));
        if let Some(turned) = cut::put(self.conn, cut)? {
            self.turned(turned, AuditStamp { at: cut.at, by });
        }
        // For a lane, a reader counts: the count scans every pending row, and all writes would wait for it.
        if let CutScope::Message(_) = cut.scope {
            *ended = Some(page::count_ended(self.conn, cut.scope)?);
        }
        Ok(())
    }

    /// Disables the endpoints whose receivers asked for it.
    fn disable_where_asked(&mut self, settlements: &[Settlement]) -> rusqlite::Result<()> {
        for settlement in settlements {
            let Some(at) = settlement.asked_to_disable() else { continue };
            let endpoint = settlement.record.delivery.endpoint;
            if let Some(turned) = endpoint::disable(self.conn, endpoint)? {
                self.turned(turned, AuditStamp::at(at));
            }
        }
        Ok(())
    }

    /// Notes that an endpoint has another status.
    fn turned(&mut self, turned: Turned, act: AuditStamp) {
        self.journal.entries.push(&JournalEntry::turned(turned.id, turned.tenant, turned.status, act));
        self.changed.push(CommittedChange::Turned(turned));
    }

    fn put_endpoint(&mut self, put: &mut PutEndpoint) -> Result<(), StoreError> {
        let PutEndpoint { endpoint, sealed, names, once, act, note, put } = put;
        let doing = failed("put an endpoint");
        if let Some(before) = idempotency::known(self.conn, &self.vault, sealed.once.as_ref())? {
            *put = before.into();
            return Ok(());
        }
        let before = endpoint::before(self.conn, endpoint.id).map_err(&doing)?;
        *put = endpoint::may_put(self.conn, endpoint, before.as_ref(), names.uid.as_ref())?;
        if *put != EndpointPut::Done {
            return Ok(());
        }
        let anew = if self.vault.is_destroyed(endpoint.tenant, sealed.key.id()) {
            // Its tenant or subject was erased since it was sealed: seal it again, under a new key.
            let (tenant, subject) = sealed::endpoint::whose(&self.vault, endpoint);
            let key = self.vault.find_or_make(self.conn, KeyView::Writers, tenant, subject.as_ref())?;
            Some(SealedEndpoint::new(&self.vault, endpoint, &key, once.as_ref()))
        } else {
            None
        };
        let sealed = anew.as_ref().unwrap_or(&*sealed);
        self.accept.put_keys(&sealed.keys).map_err(&doing)?;
        idempotency::remember(self.conn, sealed.once.as_ref().map(|once| &once.sealed)).map_err(&doing)?;
        self.journal.entries.push(&JournalEntry::endpoint(endpoint, *act));
        note.iter().for_each(|note| self.journal.entries.push(note));
        endpoint::put(self.conn, endpoint, names, before.as_ref(), &sealed.settings).map_err(&doing)?;
        let moved_from = before.map(|before| before.tenant).filter(|tenant| *tenant != endpoint.tenant);
        self.changed.push(CommittedChange::Put { endpoint: Arc::clone(endpoint), moved_from });
        Ok(())
    }

    fn change(&mut self, change: &SmallChange) -> rusqlite::Result<()> {
        if let Some(entry) = change.entry() {
            self.journal.entries.push(&entry);
        }
        match change {
            SmallChange::Spill(deliveries) => {
                for delivery in deliveries {
                    self.spill.raw_bind_parameter(1, key(delivery.0))?;
                    self.spill.raw_execute()?;
                }
            }
            SmallChange::Uncut(scope, _) => cut::remove(self.conn, *scope)?,
            SmallChange::Pause(pause, _) => pause::put(self.conn, &self.vault, pause)?,
            SmallChange::Resume(scope, _) => pause::remove(self.conn, *scope)?,
            // The journal entry is all there is to write.
            SmallChange::Reset(..) => {}
            SmallChange::Remember(breakers) => breaker::replace(self.conn, breakers)?,
        }
        Ok(())
    }
}

fn begin_session(conn: &Connection, vault: &Vault) -> Result<SessionStart, StoreError> {
    let number: u32 = conn
        .query_row("UPDATE meta SET value = value + 1 WHERE key = 'starts' RETURNING value", [], |row| row.get(0))
        .map_err(failed("count a start"))?;
    let writer = WriterId::new(number);
    let writer = writer.ok_or(StoreError::Damaged { what: "the start counter", found: number.to_string() })?;
    // These deliveries were in flight in an earlier session when a cut was made; they are covered by the cut now, and
    // not sent again.
    conn.execute("DELETE FROM spared", []).map_err(failed("clear the deliveries that cuts spared"))?;
    Ok(SessionStart {
        session: Session { id: number.into(), writer, epoch: number.into() },
        cuts: cut::all(conn)?,
        pauses: pause::all(conn, vault)?,
        spilled: page::spilled_queues(conn)?,
        breakers: breaker::all(conn)?,
    })
}
