//! Keys on their way to the disk: made in memory, carried along with what is sealed under them, and written with it.
//! One that nobody carries any more is forgotten, and another is made when one is needed: nothing was written under it.
//!
//! Invariant: a key is known to be on the disk from the commit on that wrote it, whoever asked for that.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste_core::id::TenantId;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::keyring::{KeyId, WRAPPED_BYTES};
use posthaste_crypto::seal::SealingKey;
use rusqlite::Connection;

use super::{Keys, Vault, View, destroy, is_in_place};
use crate::StoreError;
use crate::sqlite::column::key;
use crate::sqlite::{failed, rotation};

/// With so many keys that are not on the disk it is looked which of them nobody carries: more than an accept brings.
const LOOK_AT: usize = 1_024;

/// A key that goes to the disk with what is sealed under it.
#[derive(Clone)]
pub(in crate::sqlite) struct NewKey {
    pub(in crate::sqlite) id: KeyId,
    pub(in crate::sqlite) tenant: TenantId,
    /// Whose, as a keyed hash; nobody's is the tenant's own.
    pub(super) subject: Option<Digest>,
    pub(super) wrapped: [u8; WRAPPED_BYTES],
    /// The key itself: who carries this has it in hand.
    pub(super) key: Arc<SealingKey>,
}

impl Vault {
    /// The keys that must be written with what is sealed under this one, which the caller has in hand: its own and its
    /// tenant's.
    pub(in crate::sqlite) fn unwritten(&self, tenant: TenantId, id: KeyId) -> Vec<NewKey> {
        let keys = self.read();
        if keys.unwritten.is_empty() {
            return Vec::new();
        }
        let of_tenant = keys.tenants.get(&tenant).map(|tenant| tenant.id());
        let needed = of_tenant.into_iter().chain((of_tenant != Some(id)).then_some(id));
        needed.filter_map(|id| keys.unwritten.get(&id).cloned()).collect()
    }

    /// A tenant's key, for the writer: made if there is none, and on the disk with the commit under way.
    pub(in crate::sqlite) fn own_on_disk(
        &self,
        conn: &Connection,
        tenant: TenantId,
    ) -> Result<Arc<SealingKey>, StoreError> {
        let own = self.find_or_make(conn, View::Writers, tenant, None)?;
        let put = self.unwritten(tenant, own.id()).iter().try_for_each(|new| self.put(conn, new));
        put.map_err(failed("write a tenant's key"))?;
        Ok(own)
    }

    /// Writes a key down with the commit under way; one that is there already stays.
    pub(in crate::sqlite) fn put(&self, conn: &Connection, new: &NewKey) -> rusqlite::Result<()> {
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
        self.write().being_written.push(new.id);
        Ok(())
    }

    /// How many the commit under way has written, some of them more than once.
    pub(in crate::sqlite) fn being_written(&self) -> usize {
        self.read().being_written.len()
    }

    /// The commit under way writes none but the first so many.
    pub(in crate::sqlite) fn not_written(&self, from: usize) {
        if self.being_written() > from {
            self.write().being_written.truncate(from);
        }
    }

    /// The commit is on the disk, and so is what it wrote.
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
    /// Forgets keys that nobody has in hand and nobody has written: what they were made for never came. It looks at
    /// twice as many next time as it left, so that it does not look for ever where all are needed.
    pub(super) fn forget_unclaimed(&mut self) {
        if self.unwritten.len() < self.look_at.max(LOOK_AT) {
            return;
        }
        let being_written: HashSet<KeyId> = self.being_written.iter().copied().collect();
        let unclaimed = |new: &NewKey| {
            // By its owner's name, by its number, and here; who takes it from us waits for our lock.
            Arc::strong_count(&new.key) <= 3 && !being_written.contains(&new.id)
        };
        let subjects = self.unwritten.extract_if(|_, new| new.subject.is_some() && unclaimed(new));
        let mut gone: Vec<NewKey> = subjects.map(|(_, new)| new).collect();
        // A subject's key is worth nothing without its tenant's.
        let needed: HashSet<TenantId> =
            self.unwritten.values().filter(|new| new.subject.is_some()).map(|new| new.tenant).collect();
        let tenants = &self.tenants;
        let own = self.unwritten.extract_if(|_, new| {
            let in_hand = tenants.get(&new.tenant).is_some_and(|own| Arc::strong_count(own) > 1);
            new.subject.is_none() && unclaimed(new) && !in_hand && !needed.contains(&new.tenant)
        });
        gone.extend(own.map(|(_, new)| new));
        for NewKey { id, tenant, subject, .. } in &gone {
            self.by_id.remove(id);
            match subject {
                Some(subject) => drop(self.subjects.remove(&(*tenant, *subject))),
                None => drop(self.tenants.remove(tenant)),
            }
        }
        self.look_at = 2 * self.unwritten.len();
    }
}
