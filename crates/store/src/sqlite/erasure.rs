//! Erasures over SQLite. One commit announces the erasure in the journal and destroys the key. Then the erasure is
//! added to the list beside the data, a checkpoint is signed that covers the announcement, and only then rows are
//! deleted, a few at a time (`rows`). At the end gaps of pages are overwritten with zeros (`scrub`) and the log is
//! truncated.
//!
//! Invariants: no outcome is deleted before a checkpoint vouches for the announcement that excuses it; after a crash
//! the erasure continues from its last step; an erasure is done when none of the data it covers is in the file.

mod rows;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Cause, Delivery, DeliveryId, MessageId, State, TenantId, Timestamp};
use posthaste_crypto::digest::Digest;
use posthaste_crypto::keyring::KeyId;
use rusqlite::{Connection, Row};
use tokio::sync::oneshot;

use super::erasures_file::ErasureLine;
use super::{
    Sqlite, Vault, WriteRequest, derived, erasures_file, excerpt, failed, get, idempotency, key, prepare, scrub,
    sealed, signed, stored_key, vault,
};
use crate::journal::{Entries, ErasedTarget, Hidden, JournalEntry};
use crate::{
    ApiKeyRef, Checkpoints, ERASURE_STEP_MAX, Erase, Erasure, ErasureStep, ErasureTarget, Erasures, ExportRequest,
    Session, StoreError,
};

/// Rows that one read for erased answers goes through.
const ANSWERS_LOOKED: u32 = 2_000;

/// How long another program's read may delay the end of an erasure; after that, the next start of the server finishes
/// it.
const WAIT_MAX: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(20);

const STEP: usize = ERASURE_STEP_MAX as usize;

/// The next thing to do. The numbers are stored on users' disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The erasure is announced; it may be missing from the list.
    Announced,
    /// It is in the list; there may be no checkpoint for its announcement yet.
    Listed,
    Keys,
    Endpoints,
    Jobs,
    Messages,
    Kept,
    Answers,
    Gaps,
    Log,
    Done,
}

impl Phase {
    const ALL: [Self; 11] = [
        Self::Announced,
        Self::Listed,
        Self::Keys,
        Self::Endpoints,
        Self::Jobs,
        Self::Messages,
        Self::Kept,
        Self::Answers,
        Self::Gaps,
        Self::Log,
        Self::Done,
    ];

    /// The next phase. A subject has no keys but its own, and all its messages, kept ones too, are found by its name.
    fn next(self, is_tenant: bool) -> Self {
        let of_tenants = [Self::Keys, Self::Jobs, Self::Kept];
        let behind = Self::ALL.into_iter().find(|next| *next > self && (is_tenant || !of_tenants.contains(next)));
        behind.unwrap_or(Self::Done)
    }
}

#[derive(Clone, Copy, Debug)]
struct Open {
    erasure: Erasure,
    hidden: Digest,
    mark: Option<Hidden>,
    phase: Phase,
    cursor: i64,
    /// Messages passed over in this pass, since a delivery of theirs is in flight.
    left: i64,
}

impl Erasures for Sqlite {
    async fn erase(&self, session: Session, erase: Erase) -> Result<Erasure, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let subject = match &erase.whom {
            ErasureTarget::Subject(name) => Some(vault.subject(erase.tenant, name)),
            ErasureTarget::Tenant => None,
        };
        let begin = move |conn: &Connection, entries: &mut Entries| {
            begin(conn, &vault, (erase.tenant, subject.as_ref()), (erase.at, erase.by), entries)
        };
        let open = self.asked_work(session, 1, begin).await?;
        self.shared.cache.evict_tenant(open.erasure.tenant);
        self.list(&open).await?;
        self.turn(session, open).await?;
        self.sign(session, 1, open.erasure.at).await?;
        Ok(open.erasure)
    }

    async fn erase_step(
        &self,
        session: Session,
        number: u64,
        now: Timestamp,
        under_way: Vec<DeliveryId>,
    ) -> Result<Option<ErasureStep>, StoreError> {
        let Some(open) = self.readers.read(move |conn| one(conn, number)).await? else { return Ok(None) };
        let (mut lanes, mut waits) = (Vec::new(), false);
        match open.phase {
            Phase::Announced => {
                self.list(&open).await?;
                self.turn(session, open).await?;
            }
            Phase::Listed if self.is_signed(session, open.erasure.row, now).await? && self.follows(open).await? => {
                self.turn(session, open).await?;
            }
            Phase::Listed => waits = true,
            Phase::Keys | Phase::Endpoints | Phase::Jobs | Phase::Messages | Phase::Kept => {
                let under_way: BTreeSet<DeliveryId> = under_way.into_iter().collect();
                let run = move |conn: &Connection, entries: &mut Entries| rows::step(conn, number, &under_way, entries);
                (lanes, waits) = self.noted_work(session, STEP, run).await?;
            }
            Phase::Answers => {
                self.erase_answers(session, open.erasure.tenant).await?;
                self.turn(session, open).await?;
            }
            Phase::Gaps => self.clear_gaps(session, open).await?,
            Phase::Log if self.empty_log().await? => {
                self.noted_work(session, 1, move |conn, entries| end(conn, number, now, entries)).await?;
            }
            Phase::Log => waits = true,
            Phase::Done => {}
        }
        let open = self.readers.read(move |conn| one(conn, number)).await?;
        Ok(open.map(|open| ErasureStep { erasure: open.erasure, lanes, waits }))
    }

    async fn erasure(&self, number: u64) -> Result<Option<Erasure>, StoreError> {
        Ok(self.readers.read(move |conn| one(conn, number)).await?.map(|open| open.erasure))
    }

    async fn unfinished_erasures(&self, limit: u32) -> Result<Vec<Erasure>, StoreError> {
        self.readers.read(move |conn| unfinished(conn, limit)).await
    }

    async fn note_export(&self, session: Session, asked: ExportRequest) -> Result<(), StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let ExportRequest { tenant, subject, at, by } = asked;
        let subject = vault.subject(tenant, &subject);
        let note = move |conn: &Connection, entries: &mut Entries| {
            let mark = known_subject(conn, &vault, tenant, &subject)?.and_then(|(_, mark)| mark);
            entries.push(&JournalEntry::Exported { tenant, subject: mark, at, by });
            Ok(())
        };
        self.asked_work(session, 1, note).await
    }

    async fn count_erased(&self, messages: Vec<MessageId>) -> Result<u64, StoreError> {
        self.readers
            .read(move |conn| {
                let erased = messages.iter().map(|id| Ok(u64::from(erased_at(conn, *id)?.is_some())));
                erased.sum::<Result<u64, StoreError>>()
            })
            .await
    }
}

impl Sqlite {
    /// Copies the log into the database and truncates it, so that no overwritten bytes are left in it. Returns `false`
    /// when another program's read prevents it, or the disk is full: then try again.
    pub(super) async fn empty_log(&self) -> Result<bool, StoreError> {
        self.writer.ask(WriteRequest::EmptyLog).await
    }

    /// Adds an erasure to the list beside the data, unless the list has it.
    async fn list(&self, open: &Open) -> Result<(), StoreError> {
        let line =
            ErasureLine { store: self.own.store_id, row: open.erasure.row, at: open.erasure.at, hidden: open.hidden };
        let (folder, text) = (self.shared.path.clone(), line.to_text(&self.shared.vault.erasures));
        // Runs on a reader thread, since it waits for the disk.
        let append = move |_: &Connection| {
            let done = match erasures_file::has(&folder, &text) {
                Ok(true) => Ok(()),
                Ok(false) => erasures_file::append(&folder, &text),
                Err(error) => Err(error),
            };
            done.map_err(|error| StoreError::Folder {
                folder: folder.display().to_string(),
                reason: format!(
                    "cannot add to its list of erasures: {error}; free some space, or let its owner write it"
                ),
            })
        };
        self.readers.read(append).await
    }

    async fn turn(&self, session: Session, open: Open) -> Result<(), StoreError> {
        self.work(session, 1, move |conn| open.turn(conn)).await
    }

    /// Whether a checkpoint vouches for this row; tries to sign one if none does.
    async fn is_signed(&self, session: Session, row: u64, now: Timestamp) -> Result<bool, StoreError> {
        let newest = |conn: &Connection| Ok(signed::newest(conn)?.map_or(0, |signed| signed.row));
        if self.readers.read(newest).await? < row {
            self.sign(session, 1, now).await?;
        }
        Ok(self.readers.read(newest).await? >= row)
    }

    /// Whether the follower is past the announcement, so that it adds no more rows derived from erased messages.
    async fn follows(&self, open: Open) -> Result<bool, StoreError> {
        let followed = |conn: &Connection| Ok(derived::followed(conn)?.followed);
        if self.readers.read(followed).await? < open.erasure.row {
            let (reply, done) = oneshot::channel();
            self.writer.send(WriteRequest::CatchUp(reply)).await?;
            // This may fail on a full disk.
            _ = done.await;
        }
        Ok(self.readers.read(followed).await? >= open.erasure.row)
    }

    /// Deletes a tenant's idempotency keys whose answers are sealed under a destroyed key.
    async fn erase_answers(&self, session: Session, tenant: TenantId) -> Result<(), StoreError> {
        let mut behind = Some((i64::MIN, [0; 16]));
        while let Some(from) = behind {
            let look = move |conn: &Connection| idempotency::erased(conn, tenant, from, ANSWERS_LOOKED);
            let (found, next) = self.readers.read(look).await?;
            behind = next;
            for some in found.chunks(STEP) {
                let some = some.to_vec();
                let remove = move |conn: &Connection| {
                    let mut each = some.iter().map(|(day, key)| idempotency::remove(conn, *day, tenant, *key));
                    each.try_for_each(|removed| removed.map(drop)).map_err(failed("delete erased answers"))
                };
                self.work(session, STEP, remove).await?;
            }
        }
        Ok(())
    }

    async fn clear_gaps(&self, session: Session, open: Open) -> Result<(), StoreError> {
        let behind = u32::try_from(open.cursor).unwrap_or(u32::MAX);
        let found = self.readers.read(move |conn| scrub::find(conn, behind)).await?;
        let run = move |conn: &Connection| {
            scrub::clear(conn, &found.pages)?;
            match found.next {
                Some(next) => Open { cursor: i64::from(next), ..open }.write(conn),
                None => open.turn(conn),
            }
        };
        self.work(session, scrub::CLEARED, run).await
    }
}

/// Announces an erasure, and destroys the key.
fn begin(
    conn: &Connection,
    vault: &Vault,
    (tenant, subject): (TenantId, Option<&Digest>),
    (at, by): (Timestamp, Option<ApiKeyRef>),
    entries: &mut Entries,
) -> Result<Open, StoreError> {
    let doing = "begin an erasure";
    let hidden = hidden(vault, tenant, subject);
    let mark = match subject {
        Some(subject) => destroy_subject(conn, vault, tenant, subject)?,
        None => {
            prepare(conn, doing, "DELETE FROM data_key WHERE tenant = ?1 AND subject = x''")?
                .execute([key(tenant.0)])?;
            vault.destroy_tenant(tenant);
            None
        }
    };
    let whom = subject.map_or(ErasedTarget::Tenant, |_| ErasedTarget::Subject(mark));
    entries.push(&JournalEntry::Erased { tenant, whom, at, by });
    // The row of the journal that this commit will write.
    let row: i64 = prepare(conn, doing, "SELECT coalesce(max(number), 0) + 1 FROM journal")?.value([])?;
    let sql =
        "INSERT INTO erasure (tenant, kind, hidden, mark, row, at_ms, phase, cursor, left_over, messages, deliveries)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, 0, 0, 0, 0) RETURNING number";
    let (kind, mark_column) = (u8::from(subject.is_none()), mark.map(|mark| mark.0));
    let number: i64 =
        prepare(conn, doing, sql)?.value((key(tenant.0), kind, hidden, mark_column, row, at.as_millis()))?;
    let erasure = Erasure {
        number: number.unsigned_abs(),
        tenant,
        is_tenant: subject.is_none(),
        row: row.unsigned_abs(),
        at,
        messages: 0,
        deliveries: 0,
        done: None,
    };
    Ok(Open { erasure, hidden, mark, phase: Phase::Announced, cursor: 0, left: 0 })
}

/// Destroys a subject's key, if it has one; returns the keyed hash that stands for the subject in the journal.
fn destroy_subject(
    conn: &Connection,
    vault: &Vault,
    tenant: TenantId,
    subject: &Digest,
) -> Result<Option<Hidden>, StoreError> {
    let Some((id, mark)) = known_subject(conn, vault, tenant, subject)? else { return Ok(None) };
    prepare(conn, "destroy a subject's key", "DELETE FROM data_key WHERE id = ?1")?.execute([id.0])?;
    vault.destroy_subject(tenant, subject, id);
    Ok(mark)
}

/// The key of a subject, if it has one, and the keyed hash that stands for the subject in the journal.
fn known_subject(
    conn: &Connection,
    vault: &Vault,
    tenant: TenantId,
    subject: &Digest,
) -> Result<Option<(KeyId, Option<Hidden>)>, StoreError> {
    let sql = "SELECT id FROM data_key WHERE tenant = ?1 AND subject = ?2";
    let id = prepare(conn, "look for a subject's key", sql)?.find((key(tenant.0), subject))?;
    let Some(id) = id.map(KeyId) else { return Ok(None) };
    let mark = vault.by_id(conn, id)?.map(|sealing| sealed::subject_mark(&sealing));
    Ok(Some((id, mark)))
}

/// The keyed hash of an erased subject or tenant, as in the list beside the data.
fn hidden(vault: &Vault, tenant: TenantId, subject: Option<&Digest>) -> Digest {
    match subject {
        Some(subject) => vault.erasures.hash("subject", tenant.raw(), subject),
        None => vault.erasures.hash("tenant", tenant.raw(), &[]),
    }
}

fn end(conn: &Connection, number: u64, now: Timestamp, entries: &mut Entries) -> Result<(), StoreError> {
    let Some(open) = one(conn, number)?.filter(|open| open.phase == Phase::Log) else { return Ok(()) };
    let Erasure { row, messages, deliveries, .. } = open.erasure;
    entries.push(&JournalEntry::ErasureDone { announced: row, messages, deliveries, at: now });
    let erasure = Erasure { done: Some(now), ..open.erasure };
    Open { erasure, phase: Phase::Done, ..open }.write(conn)
}

impl Open {
    fn turn(self, conn: &Connection) -> Result<(), StoreError> {
        Self { phase: self.phase.next(self.erasure.is_tenant), cursor: 0, left: 0, ..self }.write(conn)
    }

    fn write(self, conn: &Connection) -> Result<(), StoreError> {
        let Erasure { number, messages, deliveries, done, .. } = self.erasure;
        let phase = Phase::ALL.iter().position(|phase| *phase == self.phase).unwrap_or(0);
        let (phase, done) = (i64::try_from(phase).unwrap_or(0), done.map(Timestamp::as_millis));
        let counts = (messages.cast_signed(), deliveries.cast_signed());
        let sql =
            "UPDATE erasure SET phase = ?2, cursor = ?3, left_over = ?4, messages = ?5, deliveries = ?6, done_ms = ?7
                   WHERE number = ?1";
        prepare(conn, "store the progress of an erasure", sql)?
            .execute((number.cast_signed(), phase, self.cursor, self.left, counts.0, counts.1, done))
            .map(drop)
    }
}

const COLUMNS: &str =
    "number, tenant, kind, hidden, mark, row, at_ms, phase, cursor, left_over, messages, deliveries, done_ms";

fn one(conn: &Connection, number: u64) -> Result<Option<Open>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM erasure WHERE number = ?1");
    prepare(conn, "read an erasure", &sql)?.read([number.cast_signed()], stored)
}

fn unfinished(conn: &Connection, limit: u32) -> Result<Vec<Erasure>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM erasure WHERE done_ms IS NULL ORDER BY number LIMIT ?1");
    prepare(conn, "read erasures", &sql)?.read_all([limit], |row| Ok(stored(row)?.erasure))
}

fn stored(row: &Row<'_>) -> Result<Open, StoreError> {
    let number = |index| -> Result<u64, StoreError> { Ok(get::<i64>(row, index)?.unsigned_abs()) };
    let phase = usize::try_from(get::<i64>(row, 7)?).ok().and_then(|phase| Phase::ALL.get(phase).copied());
    Ok(Open {
        erasure: Erasure {
            number: number(0)?,
            tenant: TenantId(stored_key(get(row, 1)?)?),
            is_tenant: get(row, 2)?,
            row: number(5)?,
            at: Timestamp::from_millis(get(row, 6)?),
            messages: number(10)?,
            deliveries: number(11)?,
            done: get::<Option<i64>>(row, 12)?.map(Timestamp::from_millis),
        },
        hidden: get(row, 3)?,
        mark: get::<Option<[u8; 16]>>(row, 4)?.map(Hidden),
        phase: phase.ok_or_else(|| vault::damaged("the phase of an erasure"))?,
        cursor: get(row, 8)?,
        left: get(row, 9)?,
    })
}

/// When a message was erased whose row still exists; `None` if it was not erased.
fn erased_at(conn: &Connection, message: MessageId) -> Result<Option<Timestamp>, StoreError> {
    let doing = "check whether a message was erased";
    let found: Option<(i64, Vec<u8>)> = prepare(conn, doing, excerpt::HEAD)?.columns([key(message.0)])?;
    let Some((tenant, head)) = found else { return Ok(None) };
    if vault::is_on_disk(conn, sealed::key_of(&head)?).map_err(failed(doing))? {
        return Ok(None);
    }
    let sql = "SELECT max(at_ms) FROM erasure WHERE done_ms IS NULL AND tenant = ?1";
    let at: Option<i64> = prepare(conn, doing, sql)?.value([tenant])?;
    Ok(Some(Timestamp::from_millis(at.unwrap_or(0))))
}

/// The outcome of a pending delivery whose message was erased, and whose row is not deleted yet.
pub(super) fn end_of(conn: &Connection, delivery: &Delivery) -> Result<Option<State>, StoreError> {
    if !prepare(conn, "look for erasures", "SELECT 1 FROM erasure WHERE done_ms IS NULL LIMIT 1")?.exists([])? {
        return Ok(None);
    }
    Ok(erased_at(conn, delivery.message)?.map(|at| State::Cancelled { at, cause: Cause::Erased }))
}

/// The result of applying a list of erasures, in numbers of its lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasedAgain {
    /// Applied: their keys and rows are deleted.
    pub applied: u64,
    /// Not needed: the copy has no data of theirs, or had that erasure already.
    pub known: u64,
    /// Refused: of another store, incomplete or altered.
    pub refused: u64,
}

impl Sqlite {
    /// Applies a list of erasures to a restored copy of the data that is older than they are, and finishes all
    /// erasures. The store must not be served meanwhile.
    pub async fn erase_again(&self, session: Session, list: &str, at: Timestamp) -> Result<ErasedAgain, StoreError> {
        let mut again = ErasedAgain::default();
        for text in list.lines().filter(|text| !text.is_empty() && !text.starts_with('#')) {
            let line =
                ErasureLine::parse(text, &self.shared.vault.erasures).filter(|line| line.store == self.own.store_id);
            let Some(line) = line else {
                again.refused += 1;
                continue;
            };
            let vault = Arc::clone(&self.shared.vault);
            let run = move |conn: &Connection, entries: &mut Entries| apply(conn, &vault, &line, at, entries);
            match self.noted_work(session, 1, run).await? {
                Some(open) => {
                    self.list(&open).await?;
                    again.applied += 1;
                }
                None => again.known += 1,
            }
        }
        self.finish_erasures(session, at).await?;
        Ok(again)
    }

    async fn finish_erasures(&self, session: Session, at: Timestamp) -> Result<(), StoreError> {
        let mut waited = Duration::ZERO;
        while let Some(next) = self.unfinished_erasures(1).await?.first() {
            let step = self.erase_step(session, next.number, at, Vec::new()).await?;
            if step.is_some_and(|step| step.waits) {
                if waited >= WAIT_MAX {
                    tracing::warn!(
                        "an erasure is not finished, since another program reads the file; the next start finishes it"
                    );
                    return Ok(());
                }
                waited += WAIT;
                tokio::time::sleep(WAIT).await;
            }
        }
        Ok(())
    }
}

/// Applies one erasure, unless the data had it already.
fn apply(
    conn: &Connection,
    vault: &Vault,
    line: &ErasureLine,
    at: Timestamp,
    entries: &mut Entries,
) -> Result<Option<Open>, StoreError> {
    if is_known(conn, line)? {
        return Ok(None);
    }
    let Some((tenant, subject)) = whom(conn, vault, &line.hidden)? else { return Ok(None) };
    begin(conn, vault, (tenant, subject.as_ref()), (at, None), entries).map(Some)
}

/// Whether the data had this erasure already: it is recorded, or retention has deleted everything of its time.
fn is_known(conn: &Connection, line: &ErasureLine) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM erasure WHERE hidden = ?1 AND at_ms >= ?2
       UNION ALL
       SELECT 1 FROM (SELECT number, at_ms FROM journal ORDER BY number LIMIT 1) WHERE number > 1 AND at_ms > ?2";
    prepare(conn, "check whether an erasure is known", sql)?.exists((line.hidden, line.at.as_millis()))
}

/// The tenant or subject with this keyed hash, among those that have a key.
fn whom(conn: &Connection, vault: &Vault, wanted: &Digest) -> Result<Option<(TenantId, Option<Digest>)>, StoreError> {
    let sql = "SELECT tenant, subject FROM data_key WHERE tenant >= 0";
    let mut sql = prepare(conn, "find the subject of an erasure", sql)?;
    let mut rows = sql.query([])?;
    while let Some(row) = rows.next()? {
        let tenant = TenantId(stored_key(get(row, 0)?)?);
        let subject = vault::stored_subject(get(row, 1)?)?;
        if hidden(vault, tenant, subject.as_ref()) == *wanted {
            return Ok(Some((tenant, subject)));
        }
    }
    Ok(None)
}
