//! New keys that are not on the disk yet: made in memory, sent to the writer with the values sealed under them, and
//! written in the same commit. A new key that no request holds any more is dropped, since nothing was written under it;
//! another is made when one is needed.
//!
//! Invariant: a key counts as written from the commit on that wrote it, no matter which request that commit was for.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste_core::TenantId;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::keyring::{KeyId, WRAPPED_BYTES};
use posthaste_crypto::seal::SealingKey;
use rusqlite::Connection;

use super::{KeyView, Keys, Vault, destroy, is_in_place};
use crate::StoreError;
use crate::sqlite::{failed, key, rotation};

/// With at least so many unwritten keys, those that no request holds are dropped. More than the keys of one accept.
const SCAN_AT: usize = 1_024;

/// A key that is written in the same commit as the values sealed under it.
#[derive(Clone)]
pub(in crate::sqlite) struct UnwrittenKey {
    pub(in crate::sqlite) id: KeyId,
    pub(in crate::sqlite) tenant: TenantId,
    /// A keyed hash of the subject it belongs to; `None` for the tenant's own key.
    pub(super) subject: Option<Digest>,
    pub(super) wrapped: [u8; WRAPPED_BYTES],
    /// The key itself. A request that holds it keeps it from being dropped.
    pub(super) key: Arc<SealingKey>,
}

impl Vault {
    /// The keys that must be written with values sealed under this one: itself and its tenant's, those that are
    /// unwritten. The caller must hold the key.
    pub(in crate::sqlite) fn unwritten(&self, tenant: TenantId, id: KeyId) -> Vec<UnwrittenKey> {
        let keys = self.read();
        if keys.unwritten.is_empty() {
            return Vec::new();
        }
        let of_tenant = keys.tenants.get(&tenant).map(|tenant| tenant.id());
        let needed = of_tenant.into_iter().chain((of_tenant != Some(id)).then_some(id));
        needed.filter_map(|id| keys.unwritten.get(&id).cloned()).collect()
    }

    /// A tenant's key, for the writer: made if there is none, and written by the commit under way.
    pub(in crate::sqlite) fn own_on_disk(
        &self,
        conn: &Connection,
        tenant: TenantId,
    ) -> Result<Arc<SealingKey>, StoreError> {
        let own = self.find_or_make(conn, KeyView::Writers, tenant, None)?;
        let put = self.unwritten(tenant, own.id()).iter().try_for_each(|new| self.put(conn, new));
        put.map_err(failed("write a tenant's key"))?;
        Ok(own)
    }

    /// Writes a key with the commit under way, unless it is in the file already.
    pub(in crate::sqlite) fn put(&self, conn: &Connection, new: &UnwrittenKey) -> rusqlite::Result<()> {
        let by_master = new.subject.is_none();
        let subject = new.subject.as_ref().map_or(&[][..], |hidden| hidden);
        let mut sql = conn.prepare_cached(
            "INSERT INTO data_key (id, tenant, subject, wrapped) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO NOTHING",
        )?;
        let mut put = || sql.execute((new.id.0, key(new.tenant.0), subject, (!by_master).then_some(new.wrapped)));
        let is_new = match put() {
            // A row that an erased tenant has left has the same subject: remove it.
            Err(error) if is_in_place(&error) && destroy::remove_left(conn, new.tenant, subject)? > 0 => put()?,
            done => done?,
        };
        if is_new > 0 && by_master {
            // The master key may have been rotated since this key was made, so wrap it again. An unwritten key is
            // always in memory.
            let made = self.read().tenants.get(&new.tenant).filter(|made| made.id() == new.id).cloned();
            let in_use = self.in_use();
            let wrapped = made.map_or(new.wrapped, |made| *in_use.masters.wrap_tenant(&made).as_bytes());
            rotation::put(conn, in_use.side, new.id, &wrapped)?;
        }
        conn.prepare_cached("UPDATE meta SET value = ?1 WHERE key = 'last_key' AND value < ?1")?.execute([new.id.0])?;
        self.write().being_written.push(new.id);
        Ok(())
    }

    /// How many keys the commit under way has written so far; a key may count more than once.
    pub(in crate::sqlite) fn being_written(&self) -> usize {
        self.read().being_written.len()
    }

    /// Forgets that the commit under way writes keys, except the first `from`: the others were rolled back.
    pub(in crate::sqlite) fn not_written(&self, from: usize) {
        if self.being_written() > from {
            self.write().being_written.truncate(from);
        }
    }

    /// Notes that the commit is on the disk, and with it the keys it wrote.
    pub(in crate::sqlite) fn written(&self) {
        if self.being_written() > 0 {
            let mut keys = self.write();
            for id in std::mem::take(&mut keys.being_written) {
                keys.unwritten.remove(&id);
            }
        }
    }
}

impl Keys {
    /// Drops unwritten keys that no request holds: the request they were made for was given up. The next scan waits
    /// until twice as many are unwritten as this one leaves, so that scans stay rare when all of them are needed.
    pub(super) fn drop_unclaimed(&mut self) {
        if self.unwritten.len() < self.scan_at.max(SCAN_AT) {
            return;
        }
        let being_written: HashSet<KeyId> = self.being_written.iter().copied().collect();
        let unclaimed = |new: &UnwrittenKey| {
            // Three references: by owner, by number, and in `unwritten`. Another caller needs our lock to get a fourth.
            Arc::strong_count(&new.key) <= 3 && !being_written.contains(&new.id)
        };
        let subjects = self.unwritten.extract_if(|_, new| new.subject.is_some() && unclaimed(new));
        let mut gone: Vec<UnwrittenKey> = subjects.map(|(_, new)| new).collect();
        // A subject's key cannot be opened without its tenant's, so keep the tenant's.
        let needed: HashSet<TenantId> =
            self.unwritten.values().filter(|new| new.subject.is_some()).map(|new| new.tenant).collect();
        let tenants = &self.tenants;
        let own = self.unwritten.extract_if(|_, new| {
            let in_hand = tenants.get(&new.tenant).is_some_and(|own| Arc::strong_count(own) > 1);
            new.subject.is_none() && unclaimed(new) && !in_hand && !needed.contains(&new.tenant)
        });
        gone.extend(own.map(|(_, new)| new));
        for UnwrittenKey { id, tenant, subject, .. } in &gone {
            self.by_id.remove(id);
            match subject {
                Some(subject) => drop(self.subjects.remove(&(*tenant, *subject))),
                None => drop(self.tenants.remove(tenant)),
            }
        }
        self.scan_at = 2 * self.unwritten.len();
    }
}
