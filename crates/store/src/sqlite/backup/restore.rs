//! Makes a data folder of a backup. The database is completed in the subfolder `restoring`, with the master key it
//! needs, and only then put in place. It starts paused, its new ids cannot collide with the original's, and all
//! erasures made since the backup are applied to it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use posthaste_core::{Key, Timestamp};
use posthaste_crypto::digest::Sha256;
use posthaste_crypto::master::{KeyCheck, Masters};
use posthaste_crypto::public_id::{IdKey, IdKind};
use rusqlite::Connection;

use super::manifest::{MANIFEST, Manifest};
use super::{CopyProgress, ERASURES, NotCopied, beside, each_chunk, erasures, io_error};
use crate::sqlite::erasure::ErasedAgain;
use crate::sqlite::folder::{LOCK, RESTORING};
use crate::sqlite::{
    Bounds, DATABASE, FILE_MODE, FOLDER_MODE, Folder, Sqlite, failed, fault, get, journal, pause, rotation, schema,
    statement, stored_key,
};
use crate::{Outbox, Pause, PauseScope, StoreError};

/// How many starts the original may have made since the backup: their numbers are skipped, so that no id is given
/// twice.
const STARTS_LEFT_OUT: u32 = 1_000;
/// The files that may be in a folder that a backup is restored to, such as the master key it needs.
const MAY_BE_THERE: [&str; 2] = ["master.key", LOCK];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub manifest: Manifest,
    /// The pending deliveries that are sent once the pause is released, by endpoint.
    pub would_send: Vec<WouldSend>,
    /// The erasures that were applied again.
    pub erased_again: ErasedAgain,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WouldSend {
    pub endpoint: String,
    /// The public id of the endpoint's tenant; `None` if the endpoint's row does not exist.
    pub tenant: Option<String>,
    pub pending: u64,
    pub due: u64,
    /// The earliest due time of a pending delivery.
    pub first_due: Timestamp,
}

/// Makes a data folder of a backup. `ask` returns the master keys that the backup needs, as for
/// [`Sqlite::open_asking`]; `lists` are further lists of erasures to apply.
pub async fn restore(
    from: &Path,
    folder: &Path,
    lists: &[PathBuf],
    now: Timestamp,
    ask: impl FnOnce(&[KeyCheck]) -> Result<Masters, String>,
    mut say: impl FnMut(CopyProgress),
) -> Result<Restored, NotCopied> {
    let refused = |why: String| NotCopied::Refused { path: from.display().to_string(), why };
    let text = fs::read_to_string(from.join(MANIFEST)).map_err(io_error("read", &from.join(MANIFEST)))?;
    let manifest = Manifest::parse(&text).map_err(refused)?;
    if manifest.schema as usize > schema::MIGRATIONS.len() {
        let known = schema::MIGRATIONS.len();
        return Err(refused(format!("its tables have version {} and this build knows {known}", manifest.schema)));
    }
    let list = all_erasures(from, &manifest, lists)?;
    is_free(folder)?;
    let was_locked = folder.join(LOCK).exists();
    let place = Folder::take(folder)?;
    // Dropped before `place` releases the lock.
    let mut left = Left { folder, was_locked, is_done: false };
    let staged = Staged::make(folder)?;
    let database = staged.path.join(DATABASE);
    copy(from, &manifest, &database, &mut say)?;
    let masters = prepare((from, &database), &manifest, now, ask).map_err(|error| match error {
        // A copy that SQLite cannot read is refused, although its digest is right.
        NotCopied::Store(error @ StoreError::Database { .. }) => refused(fault::chain(&error)),
        error => error,
    })?;
    if !list.is_empty() {
        super::write_new(&staged.path.join(ERASURES), list.as_bytes())?;
    }
    let bounds = Bounds { reserve_bytes: 0, ..Bounds::default() };
    let store = Sqlite::open_bounded(&staged.path, masters, bounds).map_err(|error| match error {
        // Drop the path of the subfolder, which means nothing to the operator.
        StoreError::Folder { reason, .. } => refused(reason),
        error => error.into(),
    })?;
    let finished = finish(&store, &list, now).await;
    store.close().await;
    let (would_send, erased_again) = finished?;
    if let Some(why) = store.stopped() {
        return Err(refused(why.to_owned()));
    }
    if let Some(erased) = erasures(&staged.path)? {
        super::write_new(&folder.join(ERASURES), &erased)?;
    }
    place.put_in_place(&database).map_err(io_error("write", &folder.join(DATABASE)))?;
    left.is_done = true;
    drop(staged);
    Ok(Restored { manifest, would_send, erased_again })
}

/// All lists of erasures in one: those in the backup and beside it, and the given ones.
fn all_erasures(from: &Path, manifest: &Manifest, lists: &[PathBuf]) -> Result<String, NotCopied> {
    let mut all = String::new();
    let beside = from.parent().map(|parent| parent.join(beside(&manifest.store)));
    let own = [Some(from.join(ERASURES)), beside].into_iter().flatten().filter(|path| path.exists());
    for path in own.chain(lists.iter().cloned()) {
        let text = fs::read_to_string(&path).map_err(io_error("read", &path))?;
        for line in text.lines() {
            if !all.lines().any(|known| known == line) {
                all.push_str(line);
                all.push('\n');
            }
        }
    }
    Ok(all)
}

/// Refuses a folder with files that a restore could destroy.
fn is_free(folder: &Path) -> Result<(), NotCopied> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry.map_err(io_error("read", folder))?;
        let name = entry.file_name();
        // Files that an interrupted restore has left.
        let left = name == RESTORING || name == DATABASE && entry.metadata().is_ok_and(|file| file.len() == 0);
        if !left && !MAY_BE_THERE.iter().any(|may| name == *may) {
            return Err(NotCopied::Exists { path: entry.path().display().to_string() });
        }
    }
    Ok(())
}

/// Removes the files that a failed restore has put into the folder. The folder itself stays, since it may contain the
/// master key.
struct Left<'a> {
    folder: &'a Path,
    was_locked: bool,
    is_done: bool,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let database = self.folder.join(DATABASE).metadata();
        if self.is_done || database.is_ok_and(|file| file.len() > 0) {
            return;
        }
        // `is_free` refused a folder with such files, so this restore made them, and they contain no data yet.
        let names = [Some(DATABASE), Some(ERASURES), (!self.was_locked).then_some(LOCK)];
        for path in names.into_iter().flatten().map(|name| self.folder.join(name)) {
            if path.exists()
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::warn!(%error, path = %path.display(), "cannot remove a file of a failed restore");
            }
        }
    }
}

/// The subfolder in which the database is made, removed on drop.
struct Staged {
    path: PathBuf,
}

impl Staged {
    fn make(folder: &Path) -> Result<Self, NotCopied> {
        let path = folder.join(RESTORING);
        if path.exists() {
            fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
        }
        DirBuilder::new().mode(FOLDER_MODE).create(&path).map_err(io_error("make", &path))?;
        Ok(Self { path })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the temporary folder of a restore");
        }
    }
}

/// Copies the database, whose length and digest must be those in the manifest.
fn copy(from: &Path, manifest: &Manifest, to: &Path, say: &mut impl FnMut(CopyProgress)) -> Result<(), NotCopied> {
    let source = from.join(DATABASE);
    let refused = |why: String| NotCopied::Refused { path: from.display().to_string(), why };
    let bytes = fs::metadata(&source).map_err(io_error("read", &source))?.len();
    if bytes != manifest.bytes {
        return Err(refused(format!(
            "its database has {bytes} bytes and should have {}: it was cut short or altered; use another backup",
            manifest.bytes
        )));
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(to);
    let mut copy = made.map_err(io_error("make", to))?;
    let (mut digest, mut done) = (Sha256::default(), 0);
    each_chunk(&source, |chunk| {
        digest.update(chunk);
        done += chunk.len() as u64;
        say(CopyProgress { done, of: bytes });
        copy.write_all(chunk)
    })
    .and_then(|_| copy.sync_all())
    .map_err(io_error("copy", &source))?;
    if digest.finish() != manifest.digest {
        return Err(refused(
            "the digest of its database is not the one in the manifest: it was altered; use another backup".to_owned(),
        ));
    }
    Ok(())
}

/// Changes the copy so that it starts paused and gives its new ids numbers of their own; returns the master keys.
fn prepare(
    (from, database): (&Path, &Path),
    manifest: &Manifest,
    now: Timestamp,
    ask: impl FnOnce(&[KeyCheck]) -> Result<Masters, String>,
) -> Result<Masters, NotCopied> {
    let doing = failed("prepare the restored database");
    let refused = |why: String| NotCopied::Refused { path: from.display().to_string(), why };
    let mut conn = Connection::open(database).map_err(&doing)?;
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(&doing)?;
    let head = journal::last(&conn)?;
    let is_head = head.as_ref().map_or(0, |row| row.number) == manifest.journal_row
        && head.is_none_or(|row| row.hash() == manifest.journal_hash);
    if !is_head {
        return Err(refused("its journal does not end as the manifest says; use another backup".to_owned()));
    }
    let masters = ask(&rotation::checks(&conn)?).map_err(refused)?;
    let tx = conn.transaction().map_err(&doing)?;
    tx.execute("UPDATE meta SET value = value + ?1 WHERE key = 'starts'", [STARTS_LEFT_OUT])
        .and_then(|_| pause::put_bare(&tx, PauseScope::All))
        .and_then(|()| tx.execute("INSERT OR REPLACE INTO meta VALUES ('restored_ms', ?1)", [now.as_millis()]))
        .map_err(&doing)?;
    tx.commit().map_err(&doing)?;
    conn.close().map_err(|(_, error)| doing(error))?;
    Ok(masters)
}

/// The reason given for the pause of a restored copy.
const PAUSED_BECAUSE: &str = "restored from a backup: the original may still be sending";

/// Records the pause in the journal, applies the erasures again, and counts the pending deliveries.
async fn finish(store: &Sqlite, list: &str, now: Timestamp) -> Result<(Vec<WouldSend>, ErasedAgain), NotCopied> {
    let session = store.open(now).await?.session;
    let reason = Some(PAUSED_BECAUSE.to_owned());
    store.pause(session, Pause { reason, ..Pause::new(PauseScope::All, None) }, now).await?;
    let again = if list.is_empty() { ErasedAgain::default() } else { store.erase_again(session, list, now).await? };
    let ids = IdKey::from_bytes(store.id_key());
    let would_send = store.readers.read(move |conn| would_send(conn, &ids, now)).await?;
    Ok((would_send, again))
}

/// The endpoints with pending deliveries, those with the most first.
fn would_send(conn: &Connection, ids: &IdKey, now: Timestamp) -> Result<Vec<WouldSend>, StoreError> {
    let sql =
        "SELECT d.endpoint, (SELECT e.tenant FROM endpoint e WHERE e.id = d.endpoint), count(*), sum(d.due_ms <= ?1),
                min(d.due_ms), (SELECT e.at_ms FROM endpoint e WHERE e.id = d.endpoint),
                (SELECT t.at_ms FROM endpoint e JOIN document t ON t.kind = 0 AND t.tenant = e.tenant
                 WHERE e.id = d.endpoint)
         FROM delivery d GROUP BY d.endpoint ORDER BY 3 DESC, 1";
    statement::prepare(conn, "count pending deliveries", sql)?.read_all([now.as_millis()], |row| {
        let id = |kind, key: Key, made: Option<i64>| {
            let made = made.and_then(|made| u64::try_from(made).ok()).unwrap_or(0);
            ids.mint(kind, key.writer().number(), key.seq(), made)
        };
        let tenant = get::<Option<i64>>(row, 1)?.map(stored_key).transpose()?;
        let made = get(row, 6)?;
        Ok(WouldSend {
            endpoint: id(IdKind::Endpoint, stored_key(get(row, 0)?)?, get(row, 5)?),
            tenant: tenant.map(|tenant| id(IdKind::Tenant, tenant, made)),
            pending: get::<i64>(row, 2)?.unsigned_abs(),
            due: get::<i64>(row, 3)?.unsigned_abs(),
            first_due: Timestamp::from_millis(get(row, 4)?),
        })
    })
}
