//! The keys that the store holds in wrapped form: its own key, the tenants' keys, and the keys of their subjects.
//!
//! ```text
//! master key ──wraps──> the store's key ──> hashes names, authenticates rows, tokens, API keys
//!     │                                     and checkpoints, seals what is no tenant's
//!     └───────wraps──> a tenant's key ──> seals the tenant's values
//!                          └──wraps──> a subject's key ──> seals what is about that subject
//! ```
//!
//! None of these keys is derived from another, so a destroyed key cannot be recreated. Erasure relies on that. The
//! store's key is separate from the master key so that hashed names, tokens and checkpoints survive a rotation of the
//! master key. `derive.rs` lists the keys that are derived from these for each use.

use std::fmt;
use std::sync::Arc;

use crate::api_key::ApiKeyHasher;
use crate::checkpoint::CheckpointKey;
use crate::derive::{Purpose, derive};
use crate::digest::Digest;
use crate::lookup::LookupKey;
use crate::row_mac::RowMacKey;
use crate::seal::{self, Cipher, NotOpened, OVERHEAD_BYTES, SealingKey};
use crate::seal_context::SealOwner;
use crate::secret::{KEY_BYTES, SecretKey, prints_as};
use crate::token::TokenKey;

/// The number of a stored key, assigned by the store. It is part of every value the key sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The store's own key.
///
/// ```
/// use posthaste_crypto::keyring::{KeyId, StoreKey};
/// use posthaste_crypto::master::{MasterKey, Masters};
///
/// let masters = Masters::new(MasterKey::generate());
/// let made = StoreKey::generate(KeyId(1));
/// let kept = masters.wrap_store(&made);
/// // After a restart:
/// let key = masters.unwrap_store(KeyId(1), &kept)?;
/// assert_eq!(key.lookups().hash("subject", 1, b"user-42"), made.lookups().hash("subject", 1, b"user-42"));
/// # Ok::<(), posthaste_crypto::master::NotUnwrapped>(())
/// ```
pub struct StoreKey {
    id: KeyId,
    secret: SecretKey,
}

impl StoreKey {
    pub fn generate(id: KeyId) -> Self {
        Self::from_secret(id, SecretKey::generate())
    }

    pub(crate) const fn from_secret(id: KeyId, secret: SecretKey) -> Self {
        Self { id, secret }
    }

    pub const fn id(&self) -> KeyId {
        self.id
    }

    pub(crate) const fn secret(&self) -> &SecretKey {
        &self.secret
    }

    /// The key that seals values that belong to no tenant.
    pub fn sealing(&self) -> Arc<SealingKey> {
        Arc::new(SealingKey::new(self.id, SealOwner::Store, &self.derived(Purpose::StoreSeal)))
    }

    /// The key that hashes names that are looked up.
    pub fn lookups(&self) -> LookupKey {
        LookupKey::from_secret(&self.derived(Purpose::Lookup))
    }

    pub fn idempotency(&self) -> LookupKey {
        LookupKey::from_secret(&self.derived(Purpose::Idempotency))
    }

    /// The key that hashes the names of erased subjects and tenants in the list beside backups.
    pub fn erasures(&self) -> LookupKey {
        LookupKey::from_secret(&self.derived(Purpose::Erasure))
    }

    pub fn row_macs(&self) -> RowMacKey {
        RowMacKey::new(self.id, &self.derived(Purpose::RowMac))
    }

    pub fn tokens(&self) -> TokenKey {
        TokenKey::new(self.id, &self.derived(Purpose::TokenMac), &self.derived(Purpose::TokenHide))
    }

    pub fn api_keys(&self) -> ApiKeyHasher {
        ApiKeyHasher::new(&self.derived(Purpose::ApiKey))
    }

    pub fn checkpoints(&self) -> CheckpointKey {
        CheckpointKey::from_seed(&self.derived(Purpose::Checkpoint))
    }

    fn derived(&self, purpose: Purpose) -> SecretKey {
        derive(&self.secret, purpose)
    }
}

/// A tenant's key. Destroying every copy of its wrapped form erases the tenant's data.
pub struct TenantKey {
    tenant: u64,
    secret: SecretKey,
    sealing: Arc<SealingKey>,
    wrap: Cipher,
}

impl TenantKey {
    pub fn generate(id: KeyId, tenant: u64) -> Self {
        Self::from_secret(id, tenant, SecretKey::generate())
    }

    pub(crate) fn from_secret(id: KeyId, tenant: u64, secret: SecretKey) -> Self {
        let sealing = SealingKey::new(id, SealOwner::Tenant(tenant), &derive(&secret, Purpose::TenantSeal));
        let wrap = Cipher::new(&derive(&secret, Purpose::TenantWrap));
        Self { tenant, secret, sealing: Arc::new(sealing), wrap }
    }

    pub fn id(&self) -> KeyId {
        self.sealing.id()
    }

    pub const fn tenant(&self) -> u64 {
        self.tenant
    }

    pub(crate) const fn secret(&self) -> &SecretKey {
        &self.secret
    }

    pub const fn sealing(&self) -> &Arc<SealingKey> {
        &self.sealing
    }

    /// Makes a key for a subject, identified by a keyed hash. Returns it with its wrapped form, which is stored.
    ///
    /// ```
    /// use posthaste_crypto::keyring::{KeyId, TenantKey};
    /// use posthaste_crypto::seal_context::{SealContext, SealOwner, SealedField, SealedObject};
    ///
    /// let tenant = TenantKey::generate(KeyId(4), 1);
    /// let hidden = [7; 32];
    /// let (key, kept) = tenant.new_subject_key(KeyId(5), &hidden);
    /// let context = SealContext::new(SealOwner::Tenant(1), SealedField::MessageBody, SealedObject::Row(77));
    /// let sealed = key.seal(&context, b"about user-42");
    /// // After a restart, as long as `kept` is there:
    /// let key = tenant.unwrap_subject_key(KeyId(5), &hidden, &kept)?;
    /// assert_eq!(key.open(&context, &sealed)?, b"about user-42");
    /// # Ok::<(), posthaste_crypto::seal::NotOpened>(())
    /// ```
    pub fn new_subject_key(&self, id: KeyId, subject: &Digest) -> (Arc<SealingKey>, TenantWrapped) {
        let secret = SecretKey::generate();
        let bound = Wrapped::Subject(self.tenant, subject).bound(id, self.id().0);
        let wrapped = TenantWrapped::of(self.wrap.seal(self.id().0, &bound, secret.expose()));
        (self.subject_key(id, &secret), wrapped)
    }

    pub fn unwrap_subject_key(
        &self,
        id: KeyId,
        subject: &Digest,
        wrapped: &TenantWrapped,
    ) -> Result<Arc<SealingKey>, NotOpened> {
        let parts = seal::parse(wrapped.as_bytes())?;
        if parts.by != self.id().0 {
            return Err(NotOpened::KeyNeeded(KeyId(parts.by)));
        }
        let bound = Wrapped::Subject(self.tenant, subject).bound(id, self.id().0);
        let secret = self.wrap.open_key(&bound, &parts).ok_or(NotOpened::Refused(self.id()))?;
        Ok(self.subject_key(id, &secret))
    }

    fn subject_key(&self, id: KeyId, secret: &SecretKey) -> Arc<SealingKey> {
        Arc::new(SealingKey::new(id, SealOwner::Tenant(self.tenant), &derive(secret, Purpose::SubjectSeal)))
    }
}

pub const WRAPPED_BYTES: usize = KEY_BYTES + OVERHEAD_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterWrapped([u8; WRAPPED_BYTES]);

impl MasterWrapped {
    /// Reads a stored wrapped key.
    pub const fn from_bytes(bytes: [u8; WRAPPED_BYTES]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; WRAPPED_BYTES] {
        &self.0
    }

    pub(crate) fn of(sealed: Vec<u8>) -> Self {
        Self(sealed.try_into().expect("a key has 32 bytes"))
    }

    /// The number of the key that wrapped it. Works for every version of the format.
    pub(crate) fn by_number(&self) -> u32 {
        u32::from_be_bytes(*self.0[1..].first_chunk().expect("the number comes after the version"))
    }
}

/// A subject's key, wrapped by its tenant's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantWrapped([u8; WRAPPED_BYTES]);

impl TenantWrapped {
    /// Reads a stored wrapped key.
    pub const fn from_bytes(bytes: [u8; WRAPPED_BYTES]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; WRAPPED_BYTES] {
        &self.0
    }

    fn of(sealed: Vec<u8>) -> Self {
        Self(sealed.try_into().expect("a key has 32 bytes"))
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Wrapped<'a> {
    Store,
    Tenant(u64),
    /// The key of a tenant's subject, which is identified by a keyed hash.
    Subject(u64, &'a Digest),
}

impl From<SealOwner> for Wrapped<'_> {
    fn from(whose: SealOwner) -> Self {
        match whose {
            SealOwner::Store => Self::Store,
            SealOwner::Tenant(tenant) => Self::Tenant(tenant),
        }
    }
}

const BOUND_BYTES: usize = 1 + 4 + 4 + 1 + 8 + 32;

impl Wrapped<'_> {
    /// The associated data of a wrapped key: its number, its owner, and the key that wraps it.
    pub(crate) fn bound(self, id: KeyId, by: u32) -> [u8; BOUND_BYTES] {
        let mut bytes = [0; BOUND_BYTES];
        bytes[0] = seal::VERSION;
        bytes[1..5].copy_from_slice(&by.to_be_bytes());
        bytes[5..9].copy_from_slice(&id.0.to_be_bytes());
        let (level, tenant) = match self {
            Self::Store => (0, 0),
            Self::Tenant(tenant) => (1, tenant),
            Self::Subject(tenant, _) => (2, tenant),
        };
        bytes[9] = level;
        bytes[10..18].copy_from_slice(&tenant.to_be_bytes());
        if let Self::Subject(_, subject) = self {
            bytes[18..].copy_from_slice(subject);
        }
        bytes
    }
}

prints_as!(StoreKey, |key| "StoreKey({}, ..)", key.id);
prints_as!(TenantKey, |key| "TenantKey({} of tenant {}, ..)", key.id(), key.tenant);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal_context::{SealContext, SealedField, SealedObject};

    const ALICE: Digest = [1; 32];
    const BOB: Digest = [2; 32];

    fn body() -> SealContext {
        SealContext::new(SealOwner::Tenant(1), SealedField::MessageBody, SealedObject::Row(7))
    }

    #[test]
    fn subject_key_opens_what_it_sealed_and_the_tenant_key_does_not() {
        let tenant = TenantKey::generate(KeyId(1), 1);
        let (alice, kept) = tenant.new_subject_key(KeyId(2), &ALICE);
        let sealed = alice.seal(&body(), b"about alice");
        let again = tenant.unwrap_subject_key(KeyId(2), &ALICE, &kept).expect("kept");
        assert_eq!(again.open(&body(), &sealed).as_deref(), Ok(&b"about alice"[..]));
        assert_eq!(tenant.sealing().open(&body(), &sealed), Err(NotOpened::KeyNeeded(KeyId(2))));
    }

    #[test]
    fn wrapped_subject_key_cannot_replace_another() {
        let tenant = TenantKey::generate(KeyId(1), 1);
        let (_, kept) = tenant.new_subject_key(KeyId(2), &ALICE);
        for (id, subject) in [(KeyId(2), BOB), (KeyId(3), ALICE)] {
            let refused = tenant.unwrap_subject_key(id, &subject, &kept);
            assert_eq!(refused.err(), Some(NotOpened::Refused(KeyId(1))));
        }
        let neighbour = TenantKey::generate(KeyId(1), 2);
        assert!(neighbour.unwrap_subject_key(KeyId(2), &ALICE, &kept).is_err());
        let next = TenantKey::generate(KeyId(9), 1);
        let needed = next.unwrap_subject_key(KeyId(2), &ALICE, &kept).err();
        assert_eq!(needed, Some(NotOpened::KeyNeeded(KeyId(1))));
    }

    #[test]
    fn wrapped_key_with_any_altered_byte_is_refused() {
        let tenant = TenantKey::generate(KeyId(1), 1);
        let (_, kept) = tenant.new_subject_key(KeyId(2), &ALICE);
        for at in 0..WRAPPED_BYTES {
            let mut altered = *kept.as_bytes();
            altered[at] ^= 0x10;
            let altered = TenantWrapped::from_bytes(altered);
            assert!(tenant.unwrap_subject_key(KeyId(2), &ALICE, &altered).is_err(), "byte {at}");
        }
    }

    #[test]
    fn same_name_has_different_hashes_for_different_uses() {
        let key = StoreKey::generate(KeyId(1));
        let hashes = [key.lookups(), key.idempotency(), key.erasures()].map(|hide| hide.hash("subject", 1, b"user-42"));
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
    }

    #[test]
    fn keys_are_shared_by_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<(StoreKey, TenantKey, SealingKey, crate::master::Masters)>();
        shared::<(LookupKey, RowMacKey, TokenKey, ApiKeyHasher, CheckpointKey)>();
    }

    #[test]
    fn printed_keys_show_nothing() {
        assert_eq!(format!("{:?}", StoreKey::generate(KeyId(1))), "StoreKey(1, ..)");
        assert_eq!(format!("{:?}", TenantKey::generate(KeyId(4), 2)), "TenantKey(4 of tenant 2, ..)");
    }
}
