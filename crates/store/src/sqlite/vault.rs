//! The data keys of a store, its tenants and their subjects: wrapped in a table, unwrapped in memory.
//!
//! A message with a subject is sealed under that subject's key, everything else of a tenant under the tenant's. Once a
//! key is destroyed, no copy of a value sealed under it can be opened, wherever that copy may be.
//!
//! Invariants: a key is on the disk with the first commit that has a value sealed under it, or before; nothing is
//! written under a key that was destroyed.

mod destroy;
mod unwritten;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use posthaste_core::TenantId;
use posthaste_crypto::LookupKey;
use posthaste_crypto::api_key::ApiKeyHasher;
use posthaste_crypto::checkpoint::CheckpointKey;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::keyring::{KeyId, MasterWrapped, StoreKey, TenantKey, TenantWrapped, WRAPPED_BYTES};
use posthaste_crypto::master::{KeyCheck, Masters};
use posthaste_crypto::random;
use posthaste_crypto::row_mac::RowMacKey;
use posthaste_crypto::seal::SealingKey;
use posthaste_crypto::seal_context::{SealContext, SealOwner, SealedField, SealedObject};
use rusqlite::{Connection, OptionalExtension, Row};

use super::rotation::{InUse, Side};
use super::{Folder, failed, key, prepare, rotation, stored_key};
use crate::StoreError;
pub(super) use unwritten::UnwrittenKey;

pub(super) const STORE_KEY: KeyId = KeyId(1);

/// The most keys in memory that are also on the disk, at about 1.5 KiB each. Beyond it all of them are evicted, and
/// read again when needed.
const KEPT_MAX: usize = 8_192;

const OWN: SealContext = SealContext::new(SealOwner::Store, SealedField::IdKey, SealedObject::Row(0));

/// Random values of a store, made once and never changed.
pub(super) struct Own {
    pub(super) id_key: [u8; 16],
    pub(super) store_id: [u8; 16],
}

pub(super) struct Vault {
    pub(super) in_use: RwLock<InUse>,
    store: StoreKey,
    /// Hashes names that are looked up.
    pub(super) lookups: LookupKey,
    /// Hashes requests that have an idempotency key.
    pub(super) requests: LookupKey,
    /// Hashes subjects and tenants in the list of erasures, and authenticates that list.
    pub(super) erasures: LookupKey,
    pub(super) signer: CheckpointKey,
    pub(super) row_macs: RowMacKey,
    keys: RwLock<Keys>,
}

#[derive(Default)]
struct Keys {
    /// The highest number given to a key.
    last: u32,
    tenants: HashMap<TenantId, Arc<TenantKey>>,
    subjects: HashMap<(TenantId, Digest), Arc<SealingKey>>,
    by_id: HashMap<KeyId, Arc<SealingKey>>,
    /// New keys that are not known to be on the disk: written with the values sealed under them.
    unwritten: HashMap<KeyId, UnwrittenKey>,
    destroyed: destroy::Destroyed,
    /// The keys written by the commit under way.
    being_written: Vec<KeyId>,
    /// The number of unwritten keys at which those that no request holds are dropped.
    scan_at: usize,
    /// How often keys were removed from memory, by eviction or destruction. A read of keys that began before a removal
    /// may be out of date after it.
    removals: u64,
}

/// How much of the keys on the disk a connection sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyView {
    /// The writer's connection: sees all keys.
    Writers,
    /// A reader's snapshot, which began after this number of removals. Keys that were removed from memory since may be
    /// on the disk although the snapshot does not have them.
    Since(u64),
}

impl Vault {
    /// Opens the store's keys with the master keys that `ask` returns; makes them if the store is new.
    pub(super) fn open(
        conn: &mut Connection,
        folder: &Folder,
        ask: impl FnOnce(&[KeyCheck]) -> Result<Masters, String>,
    ) -> Result<(Self, Own), StoreError> {
        let needed = rotation::checks(conn)?;
        let given = ask(&needed).map_err(|why| folder.refused(why))?;
        let (masters, newer) = given.as_used(&needed).map_err(|wrong| {
            folder.refused(format!("{wrong}; give it the key it was made with: nothing can be read without it"))
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
            in_use: RwLock::new(InUse { masters, newer, newer_by: None, side: rotation::side(conn)? }),
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

    /// The store's own key, for values that belong to no tenant.
    pub(super) fn own(&self) -> Arc<SealingKey> {
        self.store.sealing()
    }

    /// Hashes API keys.
    pub(super) fn api_keys(&self) -> ApiKeyHasher {
        self.store.api_keys()
    }

    /// The keyed hash of a subject in the row of its key.
    pub(super) fn subject(&self, tenant: TenantId, subject: &str) -> Digest {
        self.lookups.hash("subject", tenant.raw(), subject.as_bytes())
    }

    /// The key of a tenant or of a subject, if it is in memory.
    pub(super) fn known(&self, tenant: TenantId, subject: Option<&Digest>) -> Option<Arc<SealingKey>> {
        self.read().known(tenant, subject)
    }

    /// The view of a snapshot that begins after this call.
    pub(super) fn view(&self) -> KeyView {
        KeyView::Since(self.read().removals)
    }

    /// The key of a tenant or of a subject, from memory or the disk; `None` if there is none.
    pub(super) fn find(
        &self,
        conn: &Connection,
        tenant: TenantId,
        subject: Option<&Digest>,
    ) -> Result<Option<Arc<SealingKey>>, StoreError> {
        if subject.is_none() {
            return Ok(self.find_own(conn, tenant)?.map(|own| Arc::clone(own.sealing())));
        }
        let (known, removals) = self.look(|keys| keys.known(tenant, subject));
        if known.is_some() {
            return Ok(known);
        }
        let Some(row) = stored(conn, tenant, subject)? else { return Ok(None) };
        self.opened(conn, &row, removals)
    }

    /// A tenant's key, from memory or the disk; `None` if there is none.
    fn find_own(&self, conn: &Connection, tenant: TenantId) -> Result<Option<Arc<TenantKey>>, StoreError> {
        let (known, removals) = self.look(|keys| keys.tenants.get(&tenant).cloned());
        if known.is_some() {
            return Ok(known);
        }
        let Some(row) = stored(conn, tenant, None)? else { return Ok(None) };
        let own = self.unwrap_own(&row)?;
        self.write().keep(&row, &Found::Tenant(Arc::clone(&own)), removals);
        Ok(Some(own))
    }

    /// The key of a tenant or of a subject, made if there is none. The caller must have a new key written: see
    /// [`Vault::unwritten`]. Returns [`StoreError::Busy`] when the view is out of date, because keys were destroyed or
    /// evicted since: then try again with a newer view.
    pub(super) fn find_or_make(
        &self,
        conn: &Connection,
        view: KeyView,
        tenant: TenantId,
        subject: Option<&Digest>,
    ) -> Result<Arc<SealingKey>, StoreError> {
        let Some(subject) = subject else {
            return Ok(Arc::clone(self.find_or_make_own(conn, view, tenant)?.sealing()));
        };
        if let Some(found) = self.find(conn, tenant, Some(subject))? {
            return if self.is_destroyed(tenant, found.id()) { Err(StoreError::Busy) } else { Ok(found) };
        }
        let own = self.find_or_make_own(conn, view, tenant)?;
        let mut keys = self.write();
        match keys.known(tenant, Some(subject)) {
            Some(known) => Ok(known),
            None if keys.sees_all(view) && !keys.destroyed.has(tenant, own.id()) => {
                Ok(keys.make_subject(&own, tenant, subject))
            }
            None => Err(StoreError::Busy),
        }
    }

    fn find_or_make_own(
        &self,
        conn: &Connection,
        view: KeyView,
        tenant: TenantId,
    ) -> Result<Arc<TenantKey>, StoreError> {
        if let Some(found) = self.find_own(conn, tenant)? {
            return if self.is_destroyed(tenant, found.id()) { Err(StoreError::Busy) } else { Ok(found) };
        }
        let mut keys = self.write();
        match keys.tenants.get(&tenant) {
            Some(known) => Ok(Arc::clone(known)),
            None if keys.sees_all(view) => Ok(keys.make_own(tenant, &self.in_use().masters)),
            None => Err(StoreError::Busy),
        }
    }

    /// The key of this number; `None` when it was destroyed.
    pub(super) fn by_id(&self, conn: &Connection, id: KeyId) -> Result<Option<Arc<SealingKey>>, StoreError> {
        let (known, removals) = self.look(|keys| keys.by_id.get(&id).cloned());
        if known.is_some() {
            return Ok(known);
        }
        let Some(row) = stored_by_id(conn, id)? else { return Ok(None) };
        self.opened(conn, &row, removals)
    }

    /// Reads from memory; returns the number of removals until then too.
    fn look<T>(&self, look: impl FnOnce(&Keys) -> T) -> (T, u64) {
        let keys = self.read();
        (look(&keys), keys.removals)
    }

    /// Unwraps a key that was read, and keeps it in memory unless keys were removed since.
    fn opened(&self, conn: &Connection, row: &StoredKey, removals: u64) -> Result<Option<Arc<SealingKey>>, StoreError> {
        let Some(found) = self.unwrap(conn, row)? else { return Ok(None) };
        self.write().keep(row, &found, removals);
        Ok(Some(found.sealing()))
    }

    fn in_use(&self) -> RwLockReadGuard<'_, InUse> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unwraps a key; `None` for a subject's key that was wrapped by an earlier, destroyed key of its tenant. Since
    /// numbers grow, the number of such a key is lower than that of the tenant's present key.
    fn unwrap(&self, conn: &Connection, row: &StoredKey) -> Result<Option<Found>, StoreError> {
        let Some(subject) = &row.subject else { return Ok(Some(Found::Tenant(self.unwrap_own(row)?))) };
        let own = self.find_own(conn, row.tenant)?;
        let Some(own) = own.filter(|own| own.id() < row.id) else { return Ok(None) };
        let opened = own.unwrap_subject_key(row.id, subject, &TenantWrapped::from_bytes(row.wrapped));
        Ok(Some(Found::Subject(opened.map_err(|why| damaged_because("a wrapped key", &why))?)))
    }

    fn unwrap_own(&self, row: &StoredKey) -> Result<Arc<TenantKey>, StoreError> {
        let wrapped = MasterWrapped::from_bytes(row.wrapped);
        let opened = self.in_use().masters.unwrap_tenant(row.tenant.raw(), row.id, &wrapped);
        opened.map(Arc::new).map_err(|why| damaged_because("a wrapped key", &why))
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }
}

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

    /// Keeps a key in memory, unless keys were removed since it was read, or it is destroyed.
    fn keep(&mut self, row: &StoredKey, found: &Found, removals: u64) {
        if self.removals != removals || self.destroyed.has(row.tenant, row.id) {
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

    /// Evicts all keys that can be read from the disk again, if there are too many.
    fn make_room(&mut self) {
        if self.by_id.len().saturating_sub(self.unwritten.len()) < KEPT_MAX {
            return;
        }
        self.removals += 1;
        let unwritten = &self.unwritten;
        self.subjects.retain(|_, subject| unwritten.contains_key(&subject.id()));
        self.tenants.retain(|_, tenant| unwritten.contains_key(&tenant.id()));
        self.by_id.retain(|id, _| unwritten.contains_key(id));
    }

    /// Whether a key that is neither in memory nor in this view is certain not to exist, so that one may be made.
    fn sees_all(&self, view: KeyView) -> bool {
        view == KeyView::Writers || view == KeyView::Since(self.removals)
    }

    fn make_own(&mut self, tenant: TenantId, masters: &Masters) -> Arc<TenantKey> {
        let made = Arc::new(TenantKey::generate(self.next(), tenant.raw()));
        self.add(tenant, None, made.sealing(), *masters.wrap_tenant(&made).as_bytes());
        self.tenants.insert(tenant, Arc::clone(&made));
        made
    }

    fn make_subject(&mut self, own: &TenantKey, tenant: TenantId, subject: &Digest) -> Arc<SealingKey> {
        let (made, wrapped) = own.new_subject_key(self.next(), subject);
        self.add(tenant, Some(*subject), &made, *wrapped.as_bytes());
        self.subjects.insert((tenant, *subject), Arc::clone(&made));
        made
    }

    /// Takes the number for a new key, and makes room in memory for it.
    fn next(&mut self) -> KeyId {
        self.make_room();
        self.drop_unclaimed();
        self.last += 1;
        KeyId(self.last)
    }

    fn add(&mut self, tenant: TenantId, subject: Option<Digest>, key: &Arc<SealingKey>, wrapped: [u8; WRAPPED_BYTES]) {
        let id = key.id();
        self.by_id.insert(id, Arc::clone(key));
        self.unwritten.insert(id, UnwrittenKey { id, tenant, subject, wrapped, key: Arc::clone(key) });
    }
}

/// Whether the key that a value was sealed under is on the disk, which it is until it is destroyed.
pub(super) fn can_open(conn: &Connection, sealed: &[u8]) -> Result<bool, StoreError> {
    is_on_disk(conn, super::sealed::key_of(sealed)?).map_err(failed("look for a key"))
}

/// Whether a key is on the disk, together with the key that wraps it.
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

/// A wrapped key, as read from its row.
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
    let sql = format!("SELECT {COLUMNS} FROM data_key WHERE tenant = ?1 AND subject = ?2");
    prepare(conn, "read a key", &sql)?.read((key(tenant.0), subject), read_key)
}

fn stored_by_id(conn: &Connection, id: KeyId) -> Result<Option<StoredKey>, StoreError> {
    prepare(conn, "read a key", &format!("SELECT {COLUMNS} FROM data_key WHERE id = ?1"))?.read([id.0], read_key)
}

fn read_key(row: &Row<'_>) -> Result<StoredKey, StoreError> {
    let (id, tenant, subject, wrapped): (_, _, Vec<u8>, _) = row.try_into().map_err(failed("read a key"))?;
    Ok(StoredKey { id: KeyId(id), tenant: TenantId(stored_key(tenant)?), subject: stored_subject(subject)?, wrapped })
}

/// The keyed hash of a subject in the row of its key; `None` for the key of a tenant.
pub(super) fn stored_subject(column: Vec<u8>) -> Result<Option<Digest>, StoreError> {
    if column.is_empty() {
        return Ok(None);
    }
    column.try_into().map(Some).map_err(|_| damaged("the subject of a key"))
}

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
    StoreError::Damaged { what, found: "an invalid value".to_owned() }
}

pub(super) fn damaged_because(what: &'static str, why: &dyn fmt::Display) -> StoreError {
    StoreError::Damaged { what, found: format!("an invalid value ({why})") }
}

#[cfg(test)]
mod tests;
