//! Destroys keys. A key is destroyed by the commit that removes its row, and from that commit's beginning on
//! nothing is written under it; if the commit is rolled back, the key is restored.
//!
//! A tenant's key wraps its subjects' keys, so these are destroyed with it; their rows are deleted later, a few at a
//! time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use posthaste_core::TenantId;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::keyring::{KeyId, TenantKey};
use posthaste_crypto::seal::SealingKey;
use rusqlite::Connection;

use super::{Keys, UnwrittenKey, Vault};
use crate::sqlite::key;

/// The keys destroyed since the store was opened. Values sealed under them may still be in requests to the writer.
#[derive(Default)]
pub(super) struct Destroyed {
    ids: HashSet<KeyId>,
    tenants: HashMap<TenantId, KeyId>,
    /// Those destroyed by the commit under way, with their entries in memory, to restore them after a rollback.
    under_way: Vec<Taken>,
}

impl Destroyed {
    pub(super) fn has(&self, tenant: TenantId, id: KeyId) -> bool {
        !(self.ids.is_empty() && self.tenants.is_empty())
            && (self.ids.contains(&id) || self.tenants.get(&tenant).is_some_and(|upto| id <= *upto))
    }
}

/// The entries in memory of keys that are being destroyed.
#[derive(Default)]
struct Taken {
    id: Option<KeyId>,
    /// The tenant all of whose keys are destroyed, and the number up to which they were destroyed before.
    of: Option<(TenantId, Option<KeyId>)>,
    tenants: Vec<(TenantId, Arc<TenantKey>)>,
    subjects: Vec<((TenantId, Digest), Arc<SealingKey>)>,
    by_id: Vec<(KeyId, Arc<SealingKey>)>,
    unwritten: Vec<(KeyId, UnwrittenKey)>,
}

impl Vault {
    /// Whether a key is destroyed, so that nothing may be written under it.
    pub(in crate::sqlite) fn is_destroyed(&self, tenant: TenantId, id: KeyId) -> bool {
        self.read().destroyed.has(tenant, id)
    }

    /// Destroys a subject's key with the commit under way, which removes its row.
    pub(in crate::sqlite) fn destroy_subject(&self, tenant: TenantId, subject: &Digest, id: KeyId) {
        let mut keys = self.write();
        let mut taken = Taken { id: Some(id), ..Taken::default() };
        taken.subjects.extend(keys.subjects.remove_entry(&(tenant, *subject)));
        taken.by_id.extend(keys.by_id.remove_entry(&id));
        taken.unwritten.extend(keys.unwritten.remove_entry(&id));
        keys.destroyed.ids.insert(id);
        keys.took(taken);
    }

    /// Destroys a tenant's key and all its subjects' with the commit under way, which removes the tenant's row.
    pub(in crate::sqlite) fn destroy_tenant(&self, tenant: TenantId) {
        let mut keys = self.write();
        let last = KeyId(keys.last);
        let mut taken = Taken { of: Some((tenant, keys.destroyed.tenants.insert(tenant, last))), ..Taken::default() };
        taken.tenants.extend(keys.tenants.remove_entry(&tenant));
        taken.subjects.extend(keys.subjects.extract_if(|(of, _), _| *of == tenant));
        taken.unwritten.extend(keys.unwritten.extract_if(|_, new| new.tenant == tenant));
        let own = taken.tenants.iter().map(|(_, own)| own.sealing().id());
        let ids: HashSet<KeyId> = own.chain(taken.subjects.iter().map(|(_, subject)| subject.id())).collect();
        taken.by_id.extend(keys.by_id.extract_if(|id, _| ids.contains(id)));
        keys.took(taken);
    }

    /// How many calls to destroy keys the commit under way has made so far.
    pub(in crate::sqlite) fn being_destroyed(&self) -> usize {
        self.read().destroyed.under_way.len()
    }

    /// Restores the keys that the commit under way has destroyed, except for the first `from` calls: the others were
    /// rolled back.
    pub(in crate::sqlite) fn spare(&self, from: usize) {
        if self.being_destroyed() <= from {
            return;
        }
        let mut keys = self.write();
        for taken in keys.destroyed.under_way.split_off(from).into_iter().rev() {
            keys.give_back(taken);
        }
    }

    /// Notes that the commit is on the disk: the keys are gone for good.
    pub(in crate::sqlite) fn destroyed(&self) {
        if self.being_destroyed() > 0 {
            self.write().destroyed.under_way.clear();
        }
    }
}

impl Keys {
    fn took(&mut self, taken: Taken) {
        // A reader that has read one of them meanwhile must not put it back into memory.
        self.removals += 1;
        self.destroyed.under_way.push(taken);
    }

    fn give_back(&mut self, taken: Taken) {
        if let Some(id) = taken.id {
            self.destroyed.ids.remove(&id);
        }
        match taken.of {
            Some((tenant, Some(before))) => _ = self.destroyed.tenants.insert(tenant, before),
            Some((tenant, None)) => _ = self.destroyed.tenants.remove(&tenant),
            None => {}
        }
        self.removals += 1;
        self.tenants.extend(taken.tenants);
        self.subjects.extend(taken.subjects);
        self.by_id.extend(taken.by_id);
        self.unwritten.extend(taken.unwritten);
    }
}

/// Removes the row that an erased tenant has left of a subject's key; returns how many rows.
pub(super) fn remove_left(conn: &Connection, tenant: TenantId, subject: &[u8]) -> rusqlite::Result<usize> {
    conn.prepare_cached(
        "DELETE FROM data_key WHERE tenant = ?1 AND subject = ?2 AND subject <> x''
           AND id < (SELECT id FROM data_key WHERE tenant = ?1 AND subject = x'')",
    )?
    .execute((key(tenant.0), subject))
}
