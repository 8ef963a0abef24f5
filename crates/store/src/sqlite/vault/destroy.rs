//! The end of keys. A key is destroyed by the commit that removes its row, and from that commit's beginning on
//! nothing is written under it; a commit that does not happen gives it back.
//!
//! A tenant's key takes its subjects' with it, which it wraps: their rows go later, a few at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use posthaste_core::id::TenantId;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::keyring::{KeyId, TenantKey};
use posthaste_crypto::seal::SealingKey;
use rusqlite::Connection;

use super::{Keys, NewKey, Vault};
use crate::sqlite::column::key;

/// What was destroyed since the store was opened: what was sealed under it may still be on its way to the writer.
#[derive(Default)]
pub(super) struct Destroyed {
    ids: HashSet<KeyId>,
    /// All keys of a tenant up to this number.
    tenants: HashMap<TenantId, KeyId>,
    /// By the commit under way, with what was in memory of them.
    under_way: Vec<Taken>,
}

impl Destroyed {
    pub(super) fn has(&self, tenant: TenantId, id: KeyId) -> bool {
        !(self.ids.is_empty() && self.tenants.is_empty())
            && (self.ids.contains(&id) || self.tenants.get(&tenant).is_some_and(|upto| id <= *upto))
    }
}

/// What was in memory of keys that are being destroyed.
#[derive(Default)]
struct Taken {
    id: Option<KeyId>,
    /// Whose keys, and up to which number they were destroyed before.
    of: Option<(TenantId, Option<KeyId>)>,
    tenants: Vec<(TenantId, Arc<TenantKey>)>,
    subjects: Vec<((TenantId, Digest), Arc<SealingKey>)>,
    by_id: Vec<(KeyId, Arc<SealingKey>)>,
    unwritten: Vec<(KeyId, NewKey)>,
}

impl Vault {
    /// Whether nothing may be written under a key any more.
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

    /// How many were destroyed by the commit under way.
    pub(in crate::sqlite) fn being_destroyed(&self) -> usize {
        self.read().destroyed.under_way.len()
    }

    /// The commit under way destroys none but the first so many.
    pub(in crate::sqlite) fn spare(&self, from: usize) {
        if self.being_destroyed() <= from {
            return;
        }
        let mut keys = self.write();
        for taken in keys.destroyed.under_way.split_off(from).into_iter().rev() {
            keys.give_back(taken);
        }
    }

    /// The commit is on the disk: nobody has these keys any more.
    pub(in crate::sqlite) fn destroyed(&self) {
        if self.being_destroyed() > 0 {
            self.write().destroyed.under_way.clear();
        }
    }
}

impl Keys {
    fn took(&mut self, taken: Taken) {
        // Whoever has read one meanwhile must not keep it.
        self.forgotten += 1;
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
        self.forgotten += 1;
        self.tenants.extend(taken.tenants);
        self.subjects.extend(taken.subjects);
        self.by_id.extend(taken.by_id);
        self.unwritten.extend(taken.unwritten);
    }
}

/// Removes what an erased tenant left of a subject's key, or of its own; says how much.
pub(super) fn remove_left(conn: &Connection, tenant: TenantId, subject: &[u8]) -> rusqlite::Result<usize> {
    conn.prepare_cached(
        "DELETE FROM data_key WHERE tenant = ?1 AND subject = ?2 AND subject <> x''
           AND id < (SELECT id FROM data_key WHERE tenant = ?1 AND subject = x'')",
    )?
    .execute((key(tenant.0), subject))
}
