//! Keys of calls that create something, and what the first of each was answered.

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::id::{Key, TenantId};

use super::Memory;
use crate::row::idempotency::{Acceptance, Before, Day, Idempotency, KeyHash};

/// Calls by the day they were made on, whose they were and their key, with what was made.
pub(super) type Keys = BTreeMap<(Day, TenantId, KeyHash), (Idempotency, Option<Key>)>;

impl Memory {
    /// Whether a call is new. One that is, is known from here on, for what it makes.
    pub(super) fn once(&mut self, call: Option<Idempotency>, makes: Option<Key>) -> Acceptance {
        let before = self.known(call.as_ref()).map(Acceptance::from);
        before.unwrap_or_else(|| {
            self.remember_call(call, makes);
            Acceptance::Fresh
        })
    }

    /// What a call is that was made before.
    pub(super) fn known(&self, call: Option<&Idempotency>) -> Option<Before> {
        let call = call?;
        let days = Day::of(call.at).near();
        let known = days.into_iter().filter_map(|day| self.keys.get(&(day, call.tenant, call.key)));
        known.filter_map(|(known, _)| call.after(known)).next()
    }

    /// Makes a call known, for what it makes.
    pub(super) fn remember_call(&mut self, call: Option<Idempotency>, makes: Option<Key>) {
        self.keys.extend(call.map(|call| ((Day::of(call.at), call.tenant, call.key), (call, makes))));
    }

    /// Forgets the keys of messages and endpoints that were erased, or all of a tenant's.
    pub(super) fn forget_keys_of(&mut self, made: &BTreeSet<Key>, tenant: TenantId, all: bool) {
        self.keys.retain(|(_, of, _), (_, of_call)| {
            let is_theirs = all && *of == tenant || of_call.is_some_and(|it| made.contains(&it));
            !is_theirs
        });
    }

    /// Forgets at most `limit` keys of days before this one; says how many.
    pub fn forget_keys_before(&mut self, day: Day, limit: usize) -> usize {
        let old: Vec<_> = self.keys.keys().take_while(|(of, ..)| *of < day).take(limit).copied().collect();
        for key in &old {
            self.keys.remove(key);
        }
        old.len()
    }
}
