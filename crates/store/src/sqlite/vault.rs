//! The keys of a store, its tenants and their subjects: wrapped in a table, unwrapped in memory.
//!
//! A message that is somebody's data is sealed under that subject's key, everything else of a tenant
//! under the tenant's. A key that is destroyed opens nothing any more, wherever copies of what it sealed
//! may be.
//!
//! Invariants: a key is on the disk with the first commit that holds something sealed under it, or
//! before; nothing is written under a key that was destroyed.

mod destroy;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use posthaste_core::id::TenantId;
use posthaste_crypto::LookupKey;
use posthaste_crypto::api_key::ApiKeyHasher;
use posthaste_crypto::checkpoint::CheckpointKey;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::keyring::{KeyId, MasterWrapped, StoreKey, TenantKey, TenantWrapped, WRAPPED_BYTES};
use posthaste_crypto::master::{KeyCheck, Masters};
use posthaste_crypto::random;
use posthaste_crypto::row_mac::RowMacKey;
use posthaste_crypto::seal::SealingKey;
use posthaste_crypto::spot::{Field, Object, Spot, Whose};
use rusqlite::{Connection, OptionalExtension, Row};

use super::column::{key, stored_key};
use super::failed;
use super::folder::Folder;
use super::rotation::{self, InUse, Side};
use crate::StoreError;

/// The store's own key has this number.
pub(super) const STORE_KEY: KeyId = KeyId(1);

/// Keys in memory, at about 1.5 KiB each; beyond it all are forgotten and read again.
const KEPT_MAX: usize = 8_192;

const OWN: Spot = Spot::new(Whose::Store, Field::IdKey, Object::Row(0));

/// What a store has of its own: made once for its life.
pub(super) struct Own {
    pub(super) id_key: [u8; 16],
    pub(super) store_id: [u8; 16],
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").field("store_id", &self.store_id).finish_non_exhaustive()
    }
}

/// The keys.
pub(super) struct Vault {
    pub(super) in_use: RwLock<InUse>,
    store: StoreKey,
    lookups: LookupKey,
    requests: LookupKey,
    erasures: LookupKey,
    signer: CheckpointKey,
    row_macs: RowMacKey,
    keys: RwLock<Keys>,
}

#[derive(Default)]
struct Keys {
    /// The highest number that was given.
    last: u32,
    tenants: HashMap<TenantId, Arc<TenantKey>>,
    subjects: HashMap<(TenantId, Digest), Arc<SealingKey>>,
    by_id: HashMap<KeyId, Arc<SealingKey>>,
    /// Made, and not known to be on the disk: they go along with what is sealed under them.
    unwritten: HashMap<KeyId, NewKey>,
    destroyed: destroy::Destroyed,
    /// How often keys were forgotten: what was read before may be out of date after.
    forgotten: u64,
}

/// A key that goes to the disk with what is sealed under it.
#[derive(Clone, Copy)]
pub(super) struct NewKey {
    pub(super) id: KeyId,
    pub(super) tenant: TenantId,
    /// Whose, as a keyed hash; nobody's is the tenant's own.
    subject: Option<Digest>,
    wrapped: [u8; WRAPPED_BYTES],
}

impl Vault {
    /// Opens the store's keys with its master key; makes them if it is new.
    pub(super) fn open(
        conn: &mut Connection,
        folder: &Folder,
        ask: impl FnOnce(&[KeyCheck]) -> Result<Masters, String>,
    ) -> Result<(Self, Own), StoreError> {
        let needed = rotation::checks(conn)?;
        let given = ask(&needed).map_err(|why| folder.refused(why))?;
        let (masters, newer) = given.as_used(&needed).map_err(|wrong| {
            folder.refused(format!("{wrong}; give it the key it was made with: nothing can be read without"))
        })?;
        if needed.is_empty() {
            make(conn, &masters)?;
        }
        let wrapped = rotation::wrapped(conn, STORE_KEY)?.ok_or_else(|| damaged("the store's key"))?;
        let store = masters.unwrap_store(STORE_KEY, &wrapped).map_err(|refused| folder.refused(refused.to_string()))?;
        let sealed: Vec<u8> = expected(conn, "id_key")?;
        let id_key = store.sealing().open(&OWN, &sealed).ok().and_then(|opened| opened.try_into().ok());
        let id_key = id_key.ok_or_else(|| damaged("the key of public ids"))?;
        let last: u32 = expected(conn, "last_key")?;
        let vault = Self {
            in_use: RwLock::new(InUse { masters, newer, side: rotation::side(conn)? }),
            lookups: store.lookups(),
            requests: store.idempotency(),
            erasures: store.erasures(),
            signer: store.checkpoints(),
            row_macs: store.row_macs(),
            store,
            keys: RwLock::new(Keys { last, ..Keys::default() }),
        };
        Ok((vault, Own { id_key, store_id: expected(conn, "store_id")? }))
    }

    /// Seals what is nobody's but the store's own.
    pub(super) fn own(&self) -> Arc<SealingKey> {
        self.store.sealing()
    }

    /// Hides names that are looked up.
    pub(super) fn lookups(&self) -> &LookupKey {
        &self.lookups
    }

    /// Hides what was asked for with an idempotency key.
    pub(super) fn requests(&self) -> &LookupKey {
        &self.requests
    }

    /// Hashes API keys.
    pub(super) fn api_keys(&self) -> ApiKeyHasher {
        self.store.api_keys()
    }

    /// Hides who was erased, and authenticates the list of them.
    pub(super) fn erasures(&self) -> &LookupKey {
        &self.erasures
    }

    /// Signs for the journal.
    pub(super) fn signer(&self) -> &CheckpointKey {
        &self.signer
    }

    /// Makes and checks what rows of deliveries say of themselves.
    pub(super) fn row_macs(&self) -> &RowMacKey {
        &self.row_macs
    }

    /// A subject as its key's row names it.
    pub(super) fn subject(&self, tenant: TenantId, subject: &str) -> Digest {
        self.lookups.hash("subject", tenant.raw(), subject.as_bytes())
    }

    /// The key of a tenant or of a subject, if it is in memory.
    pub(super) fn known(&self, tenant: TenantId, subject: Option<&Digest>) -> Option<Arc<SealingKey>> {
        self.read().known(tenant, subject)
    }

    /// The key of a tenant or of a subject, as it is on the disk.
    pub(super) fn find(
        &self,
        conn: &Connection,
        tenant: TenantId,
        subject: Option<&Digest>,
    ) -> Result<Option<Arc<SealingKey>>, StoreError> {
        loop {
            let forgotten = {
                let keys = self.read();
                if let Some(known) = keys.known(tenant, subject) {
                    return Ok(Some(known));
                }
                keys.forgotten
            };
            let Some(row) = stored(conn, tenant, subject)? else { return Ok(None) };
            let Some(found) = self.unwrap(conn, &row)? else { return Ok(None) };
            let mut keys = self.write();
            if keys.forgotten == forgotten {
                keys.keep(&row, &found);
                return Ok(Some(found.sealing()));
            }
        }
    }

    /// The same, made if there is none. It is on the disk once [`Vault::unwritten`] is.
    pub(super) fn find_or_make(
        &self,
        conn: &Connection,
        tenant: TenantId,
        subject: Option<&Digest>,
    ) -> Result<Arc<SealingKey>, StoreError> {
        loop {
            let forgotten = self.read().forgotten;
            if let Some(found) = self.find(conn, tenant, subject)? {
                return Ok(found);
            }
            if subject.is_some() {
                self.find_or_make(conn, tenant, None)?;
            }
            let mut keys = self.write();
            if let Some(known) = keys.known(tenant, subject) {
                return Ok(known);
            }
            // Nobody has made one since we looked, unless some were forgotten in between.
            if keys.forgotten == forgotten
                && let Some(made) = keys.make(tenant, subject, &self.in_use().masters)
            {
                return Ok(made);
            }
        }
    }

    /// The key of this number; `None` when it was destroyed.
    pub(super) fn by_id(&self, conn: &Connection, id: KeyId) -> Result<Option<Arc<SealingKey>>, StoreError> {
        if let Some(known) = self.read().by_id.get(&id) {
            return Ok(Some(Arc::clone(known)));
        }
        let forgotten = self.read().forgotten;
        let Some(row) = stored_by_id(conn, id)? else { return Ok(None) };
        let Some(found) = self.unwrap(conn, &row)? else { return Ok(None) };
        let mut keys = self.write();
        if keys.forgotten == forgotten {
            keys.keep(&row, &found);
        }
        Ok(Some(found.sealing()))
    }

    /// The keys that must be written with what is sealed under this one: its own and its tenant's.
    pub(super) fn unwritten(&self, tenant: TenantId, id: KeyId) -> Vec<NewKey> {
        let keys = self.read();
        if keys.unwritten.is_empty() {
            return Vec::new();
        }
        let of_tenant = keys.tenants.get(&tenant).map(|tenant| tenant.id());
        let needed = of_tenant.into_iter().chain((of_tenant != Some(id)).then_some(id));
        needed.filter_map(|id| keys.unwritten.get(&id).copied()).collect()
    }

    /// Writes a tenant's key down if it is not; it goes along once more with what is sealed under it next.
    pub(super) fn write_down(&self, conn: &Connection, tenant: TenantId) -> rusqlite::Result<()> {
        let Some(own) = self.known(tenant, None) else { return Ok(()) };
        self.unwritten(tenant, own.id()).iter().try_for_each(|new| self.put(conn, new))
    }

    /// Writes a key down; one that is there already stays.
    pub(super) fn put(&self, conn: &Connection, new: &NewKey) -> rusqlite::Result<()> {
        let by_master = new.subject.is_none();
        let subject = new.subject.as_ref().map_or(&[][..], |hidden| hidden);
        let mut sql = conn.prepare_cached(
            "INSERT INTO data_key (id, tenant, subject, wrapped) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO NOTHING",
        )?;
        let mut put = || sql.execute((new.id.0, key(new.tenant.0), subject, (!by_master).then_some(new.wrapped)));
        let is_new = match put() {
            // What an erased tenant left is in its place.
            Err(error) if is_in_place(&error) && destroy::remove_left(conn, new.tenant, subject)? > 0 => put()?,
            done => done?,
        };
        if is_new > 0 && by_master {
            // Its master key may have been rotated since it was made. What is not on the disk is in memory.
            let made = self.read().tenants.get(&new.tenant).filter(|made| made.id() == new.id).cloned();
            let in_use = self.in_use();
            let wrapped = made.map_or(new.wrapped, |made| *in_use.masters.wrap_tenant(&made).as_bytes());
            rotation::put(conn, in_use.side, new.id, &wrapped)?;
        }
        conn.prepare_cached("UPDATE meta SET value = ?1 WHERE key = 'last_key' AND value < ?1")?.execute([new.id.0])?;
        Ok(())
    }

    fn in_use(&self) -> RwLockReadGuard<'_, InUse> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that keys are on the disk.
    pub(super) fn written(&self, written: &[NewKey]) {
        if !written.is_empty() {
            let mut keys = self.write();
            for new in written {
                keys.unwritten.remove(&new.id);
            }
        }
    }

    /// An unwrapped key; `None` for a subject's that was wrapped by a key of its tenant which is destroyed: numbers
    /// grow, so it is lower than the one the tenant has now.
    fn unwrap(&self, conn: &Connection, row: &StoredKey) -> Result<Option<Found>, StoreError> {
        let refused = |why: &dyn fmt::Display| damaged_because("a wrapped key", why);
        let Some(subject) = &row.subject else {
            let wrapped = MasterWrapped::from_bytes(row.wrapped);
            let opened = self.in_use().masters.unwrap_tenant(row.tenant.raw(), row.id, &wrapped);
            let opened = opened.map_err(|why| refused(&why))?;
            return Ok(Some(Found::Tenant(Arc::new(opened))));
        };
        self.find(conn, row.tenant, None)?;
        let tenant = self.read().tenants.get(&row.tenant).cloned();
        let Some(tenant) = tenant.filter(|tenant| tenant.id() < row.id) else { return Ok(None) };
        let wrapped = TenantWrapped::from_bytes(row.wrapped);
        let opened = tenant.unwrap_subject_key(row.id, subject, &wrapped).map_err(|why| refused(&why))?;
        Ok(Some(Found::Subject(opened)))
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").field("store", &self.store).finish_non_exhaustive()
    }
}

/// An unwrapped key.
enum Found {
    Tenant(Arc<TenantKey>),
    Subject(Arc<SealingKey>),
}

impl Found {
    fn sealing(&self) -> Arc<SealingKey> {
        match self {
            Self::Tenant(tenant) => Arc::clone(tenant.sealing()),
            Self::Subject(subject) => Arc::clone(subject),
        }
    }
}

impl Keys {
    fn known(&self, tenant: TenantId, subject: Option<&Digest>) -> Option<Arc<SealingKey>> {
        match subject {
            None => self.tenants.get(&tenant).map(|known| Arc::clone(known.sealing())),
            Some(subject) => self.subjects.get(&(tenant, *subject)).cloned(),
        }
    }

    fn keep(&mut self, row: &StoredKey, found: &Found) {
        if self.destroyed.has(row.tenant, row.id) {
            return;
        }
        self.make_room();
        self.by_id.insert(row.id, found.sealing());
        match (found, row.subject) {
            (Found::Subject(subject), Some(hidden)) => {
                self.subjects.insert((row.tenant, hidden), Arc::clone(subject));
            }
            (Found::Tenant(tenant), _) => drop(self.tenants.insert(row.tenant, Arc::clone(tenant))),
            (Found::Subject(_), None) => {}
        }
    }

    /// Forgets all but those that nobody could read again.
    fn make_room(&mut self) {
        if self.by_id.len() < KEPT_MAX {
            return;
        }
        self.forgotten += 1;
        let unwritten = &self.unwritten;
        self.subjects.retain(|_, subject| unwritten.contains_key(&subject.id()));
        self.tenants.retain(|_, tenant| unwritten.contains_key(&tenant.id()));
        self.by_id.retain(|id, _| unwritten.contains_key(id));
    }

    /// A new key; `None` when its tenant's is not here.
    fn make(&mut self, tenant: TenantId, subject: Option<&Digest>, masters: &Masters) -> Option<Arc<SealingKey>> {
        self.make_room();
        let id = KeyId(self.last + 1);
        let (sealing, wrapped) = match subject {
            None => {
                let made = Arc::new(TenantKey::generate(id, tenant.raw()));
                let sealing = Arc::clone(made.sealing());
                let wrapped = *masters.wrap_tenant(&made).as_bytes();
                self.tenants.insert(tenant, made);
                (sealing, wrapped)
            }
            Some(subject) => {
                let (sealing, wrapped) = self.tenants.get(&tenant)?.new_subject_key(id, subject);
                self.subjects.insert((tenant, *subject), Arc::clone(&sealing));
                (sealing, *wrapped.as_bytes())
            }
        };
        self.last += 1;
        self.by_id.insert(id, Arc::clone(&sealing));
        self.unwritten.insert(id, NewKey { id, tenant, subject: subject.copied(), wrapped });
        Some(sealing)
    }
}

/// Whether what was sealed under a key can be opened: it is there, and so is the one that wraps it.
pub(super) fn is_on_disk(conn: &Connection, id: KeyId) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT 1 FROM data_key AS k WHERE k.id = ?1 AND (k.subject = x'' OR EXISTS
           (SELECT 1 FROM data_key AS t WHERE t.tenant = k.tenant AND t.subject = x'' AND t.id < k.id))",
    )?
    .exists([id.0])
}

fn is_in_place(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation)
}

/// A key as it is kept.
struct StoredKey {
    id: KeyId,
    tenant: TenantId,
    subject: Option<Digest>,
    wrapped: [u8; WRAPPED_BYTES],
}

const COLUMNS: &str = "id, tenant, subject, coalesce(wrapped,
    (SELECT w.wrapped FROM master_wrapped_0 w WHERE w.id = data_key.id),
    (SELECT w.wrapped FROM master_wrapped_1 w WHERE w.id = data_key.id))";

fn stored(conn: &Connection, tenant: TenantId, subject: Option<&Digest>) -> Result<Option<StoredKey>, StoreError> {
    let subject = subject.map_or(&[][..], |hidden| hidden);
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM data_key WHERE tenant = ?1 AND subject = ?2"))
        .and_then(|mut sql| sql.query_row((key(tenant.0), subject), |row| Ok(read_key(row))).optional())
        .map_err(failed("read a key"))?
        .transpose()
}

fn stored_by_id(conn: &Connection, id: KeyId) -> Result<Option<StoredKey>, StoreError> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM data_key WHERE id = ?1"))
        .and_then(|mut sql| sql.query_row([id.0], |row| Ok(read_key(row))).optional())
        .map_err(failed("read a key"))?
        .transpose()
}

fn read_key(row: &Row<'_>) -> Result<StoredKey, StoreError> {
    let doing = failed("read a key");
    let subject: Vec<u8> = row.get(2).map_err(&doing)?;
    let subject = match subject.len() {
        0 => None,
        _ => Some(subject.try_into().map_err(|_| damaged("whose key it is"))?),
    };
    Ok(StoredKey {
        id: KeyId(row.get(0).map_err(&doing)?),
        tenant: TenantId(stored_key(row.get(1).map_err(&doing)?)?),
        subject,
        wrapped: row.get(3).map_err(&doing)?,
    })
}

/// The keys of a new store, all at once.
fn make(conn: &mut Connection, masters: &Masters) -> Result<(), StoreError> {
    let store = StoreKey::generate(STORE_KEY);
    let id_key = store.sealing().seal(&OWN, &random::bytes::<16>());
    let doing = failed("make the store's keys");
    let tx = conn.transaction().map_err(&doing)?;
    let put = |name: &str, value: &dyn rusqlite::ToSql| {
        tx.execute("INSERT INTO meta VALUES (?1, ?2)", rusqlite::params![name, value]).map(drop)
    };
    put("key_check", &masters.newest().check().to_bytes())
        .and_then(|()| put("id_key", &id_key))
        .and_then(|()| put("store_id", &random::bytes::<16>()))
        .and_then(|()| put("public_key", &store.checkpoints().public().to_string()))
        .and_then(|()| put("last_key", &STORE_KEY.0))
        .and_then(|()| {
            tx.execute("INSERT INTO data_key VALUES (?1, -1, x'', NULL)", [STORE_KEY.0])?;
            rotation::put(&tx, Side::Zero, STORE_KEY, masters.wrap_store(&store).as_bytes())
        })
        .map_err(&doing)?;
    tx.commit().map_err(&doing)
}

pub(super) fn meta<T: rusqlite::types::FromSql>(conn: &Connection, name: &str) -> Result<Option<T>, StoreError> {
    conn.query_row("SELECT value FROM meta WHERE key = ?1", [name], |row| row.get(0))
        .optional()
        .map_err(failed("read the store's keys"))
}

pub(super) fn expected<T: rusqlite::types::FromSql>(conn: &Connection, name: &'static str) -> Result<T, StoreError> {
    meta(conn, name)?.ok_or_else(|| damaged(name))
}

pub(super) fn damaged(what: &'static str) -> StoreError {
    StoreError::Damaged { what, found: "nothing that fits".to_owned() }
}

pub(super) fn damaged_because(what: &'static str, why: &dyn fmt::Display) -> StoreError {
    StoreError::Damaged { what, found: format!("something else ({why})") }
}

#[cfg(test)]
mod tests;
