//! Keys of calls that create something, and what the first of each was answered.

use std::collections::BTreeMap;

use posthaste_core::id::TenantId;

use super::Memory;
use crate::row::idempotency::{Acceptance, Day, Idempotency, KeyHash};

/// Calls by the day they were made on, whose they were and their key.
pub(super) type Keys = BTreeMap<(Day, TenantId, KeyHash), Idempotency>;

impl Memory {
    /// Whether a call is new. One that is, is known from here on.
    pub(super) fn once(&mut self, call: Option<Idempotency>) -> Acceptance {
        let before = self.known(call.as_ref());
        before.unwrap_or_else(|| {
            self.remember_call(call);
            Acceptance::Fresh
        })
    }

    /// What a call is that was made before.
    pub(super) fn known(&self, call: Option<&Idempotency>) -> Option<Acceptance> {
        let call = call?;
        let days = Day::of(call.at).near();
        let known = days.into_iter().filter_map(|day| self.keys.get(&(day, call.tenant, call.key)));
        known.filter_map(|known| call.after(known)).next()
    }

    /// Makes a call known.
    pub(super) fn remember_call(&mut self, call: Option<Idempotency>) {
        self.keys.extend(call.map(|call| ((Day::of(call.at), call.tenant, call.key), call)));
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
