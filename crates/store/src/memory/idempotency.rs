//! Idempotency keys in memory, each with the answer to its first call.

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::{Key, TenantId};

use super::MemoryState;
use crate::row::idempotency::{Acceptance, EarlierCall, Idempotency, KeyHash, UtcDay};

/// Calls by day, tenant and key, with the id of the object they created.
pub(super) type IdempotencyCalls = BTreeMap<(UtcDay, TenantId, KeyHash), (Idempotency, Option<Key>)>;

impl MemoryState {
    /// Checks whether a call is new, and remembers it if so. `makes` is the id of the object it creates.
    pub(super) fn once(&mut self, call: Option<Idempotency>, makes: Option<Key>) -> Acceptance {
        let before = self.known(call.as_ref()).map(Acceptance::from);
        before.unwrap_or_else(|| {
            self.remember_call(call, makes);
            Acceptance::Fresh
        })
    }

    /// The earlier call under the same key, if there is one.
    pub(super) fn known(&self, call: Option<&Idempotency>) -> Option<EarlierCall> {
        let call = call?;
        let days = UtcDay::of(call.at).near();
        let known = days.into_iter().filter_map(|day| self.keys.get(&(day, call.tenant, call.key)));
        known.filter_map(|(known, _)| call.after(known)).next()
    }

    /// Remembers a call. `makes` is the id of the object it creates.
    pub(super) fn remember_call(&mut self, call: Option<Idempotency>, makes: Option<Key>) {
        self.keys.extend(call.map(|call| ((UtcDay::of(call.at), call.tenant, call.key), (call, makes))));
    }

    /// Removes the keys of erased messages and endpoints, or all keys of a tenant.
    pub(super) fn forget_keys_of(&mut self, made: &BTreeSet<Key>, tenant: TenantId, all: bool) {
        self.keys.retain(|(_, of, _), (_, object)| {
            let is_theirs = all && *of == tenant || object.is_some_and(|it| made.contains(&it));
            !is_theirs
        });
    }

    /// Removes the keys of days before this one and returns how many.
    pub(super) fn forget_keys_before(&mut self, day: UtcDay) -> usize {
        let before = self.keys.len();
        self.keys.retain(|(of, ..), _| *of >= day);
        before - self.keys.len()
    }
}
