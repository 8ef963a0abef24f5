//! Master keys. They come from outside the store and are never written to it. They wrap only the store's key and the
//! tenants' keys, so a rotation only has to rewrap those.
//!
//! A master key's id is a fingerprint of the key itself, because a file, the environment or a command provides bytes
//! without a name. The store holds a [`KeyCheck`] of it, which detects a wrong key before anything is read.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use zeroize::Zeroizing;

use crate::derive::{Purpose, derive};
use crate::keyring::{KeyId, MasterWrapped, StoreKey, TenantKey, Wrapped};
use crate::seal::{self, Cipher, NotOpened};
use crate::seal_context::SealOwner;
use crate::secret::{KEY_BYTES, SecretKey, SecretText, prints_as, same};

/// A master key's fingerprint. Displays as eight hexadecimal digits and reveals nothing about the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterKeyId(u32);

impl MasterKeyId {
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl fmt::Display for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The reason why a text is refused as a master key. The error never contains the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMasterKey {
    /// It cannot be decoded.
    #[error("it is neither base64 nor 64 hexadecimal digits; make one with `openssl rand -base64 32`")]
    NotText,
    /// It decodes to another length than 32 bytes.
    #[error("it has {bytes} bytes and must have 32; make one with `openssl rand -base64 32`")]
    Length { bytes: usize },
    /// It is an example, a pass phrase, or otherwise not random.
    #[error("it is an example or a pass phrase, which others could guess; make one with `openssl rand -base64 32`")]
    MadeUp,
}

/// The given key is not the one that the data are sealed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data are sealed under master key {needed}, but master key {given} was given")]
pub struct WrongMasterKey {
    /// The key that the data are sealed under.
    pub needed: MasterKeyId,
    pub given: MasterKeyId,
}

/// A check value of a master key, which a store holds to detect a wrong key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCheck([u8; Self::BYTES]);

impl KeyCheck {
    pub const BYTES: usize = 4 + 16;

    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes to store. They are not secret.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0
    }

    pub fn id(&self) -> MasterKeyId {
        MasterKeyId(u32::from_be_bytes(*self.0.first_chunk().expect("it begins with the id")))
    }

    /// Checks whether `given` is the master key.
    pub fn verify(&self, given: &MasterKey) -> Result<(), WrongMasterKey> {
        if same(&self.0, &given.check.0) {
            Ok(())
        } else {
            Err(WrongMasterKey { needed: self.id(), given: given.id() })
        }
    }
}

/// Decoders for both base64 alphabets, with and without padding.
const ENGINES: [GeneralPurpose; 2] = {
    let indifferent = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    [GeneralPurpose::new(&alphabet::STANDARD, indifferent), GeneralPurpose::new(&alphabet::URL_SAFE, indifferent)]
};

pub struct MasterKey {
    secret: SecretKey,
    check: KeyCheck,
    wrap: Cipher,
}

impl MasterKey {
    pub fn generate() -> Self {
        Self::from_secret(SecretKey::generate())
    }

    /// Parses a key as an operator provides it: 32 random bytes in base64 or hexadecimal digits.
    ///
    /// ```
    /// use posthaste_crypto::master::{BadMasterKey, MasterKey};
    ///
    /// let written = MasterKey::generate().reveal();
    /// assert!(MasterKey::parse(written.expose()).is_ok());
    /// // An example from a page of documentation is refused.
    /// let example = MasterKey::parse("ZXhhbXBsZSBvZiBhIGtleSwgbmV2ZXIgdXNlIGl0ISE=");
    /// assert_eq!(example.err(), Some(BadMasterKey::MadeUp));
    /// ```
    pub fn parse(text: &str) -> Result<Self, BadMasterKey> {
        let text = text.trim();
        let bytes = decode(text).ok_or(BadMasterKey::NotText)?;
        let key = bytes.as_slice().try_into().map_err(|_| BadMasterKey::Length { bytes: bytes.len() })?;
        if made_up(key) { Err(BadMasterKey::MadeUp) } else { Ok(Self::from_secret(SecretKey::from_bytes(key))) }
    }

    /// The key in plain text, as it is written to its file: base64.
    pub fn reveal(&self) -> SecretText {
        // Full capacity from the start: a string that grows leaves copies of its content behind.
        let mut text = String::with_capacity(KEY_BYTES.div_ceil(3) * 4);
        STANDARD.encode_string(self.secret.expose(), &mut text);
        text.into()
    }

    fn from_secret(secret: SecretKey) -> Self {
        let derived = derive(&secret, Purpose::MasterCheck);
        let check = KeyCheck(*derived.expose().first_chunk().expect("a key is longer"));
        let wrap = Cipher::new(&derive(&secret, Purpose::MasterWrap));
        Self { secret, check, wrap }
    }

    pub fn id(&self) -> MasterKeyId {
        self.check.id()
    }

    pub const fn check(&self) -> KeyCheck {
        self.check
    }

    fn wrap(&self, whose: SealOwner, id: KeyId, secret: &SecretKey) -> MasterWrapped {
        let bound = Wrapped::from(whose).bound(id, self.id().0);
        MasterWrapped::of(self.wrap.seal(self.id().0, &bound, secret.expose()))
    }
}

prints_as!(MasterKey, |key| "MasterKey({}, ..)", key.id());

/// The reason why a wrapped key could not be unwrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUnwrapped {
    /// It is wrapped by a master key that was not given; `given` is the newest that was.
    #[error("the key is wrapped by master key {needed}, but master key {given} was given")]
    MasterNeeded { needed: MasterKeyId, given: MasterKeyId },
    /// It was altered, or belongs to another owner or number.
    #[error("the key wrapped by master key {0} was altered, or moved here from elsewhere")]
    Refused(MasterKeyId),
    /// It has a version that this program does not know.
    #[error("this is not a wrapped key, or was written by a newer program")]
    Unknown,
}

/// The available master keys. The newest one wraps, and all of them unwrap. There are several only during a rotation.
///
/// ```
/// use posthaste_crypto::keyring::{KeyId, TenantKey};
/// use posthaste_crypto::master::{MasterKey, Masters};
/// use posthaste_crypto::seal_context::SealOwner;
///
/// let (older, newer) = (MasterKey::generate(), MasterKey::generate());
/// let newer_id = newer.id();
/// let before = Masters::new(older);
/// let wrapped = before.wrap_tenant(&TenantKey::generate(KeyId(2), 1));
///
/// let during = before.rotated_to(newer);
/// let anew = during.rewrap(SealOwner::Tenant(1), KeyId(2), &wrapped)?.expect("it was wrapped by the older");
/// assert_eq!(anew.by(), newer_id);
/// assert!(during.unwrap_tenant(1, KeyId(2), &anew).is_ok());
/// assert!(during.rewrap(SealOwner::Tenant(1), KeyId(2), &anew)?.is_none());
/// # Ok::<(), posthaste_crypto::master::NotUnwrapped>(())
/// ```
#[derive(Debug)]
pub struct Masters {
    newest: MasterKey,
    older: Vec<MasterKey>,
}

impl Masters {
    /// A single key, for use outside of a rotation.
    pub const fn new(key: MasterKey) -> Self {
        Self { newest: key, older: Vec::new() }
    }

    /// Adds a newer key, which wraps from now on.
    #[must_use]
    pub fn rotated_to(mut self, newer: MasterKey) -> Self {
        self.rotate_to(newer);
        self
    }

    /// Adds a newer key, which wraps from now on.
    pub fn rotate_to(&mut self, newer: MasterKey) {
        self.older.insert(0, std::mem::replace(&mut self.newest, newer));
    }

    /// Drops all keys but the newest.
    pub fn forget_older(&mut self) {
        self.older.clear();
    }

    /// Selects the keys that a store needs, given their check values, newest first. Also returns the first given key if
    /// the store does not use it yet: it is offered as a newer one. Other keys are dropped.
    pub fn as_used(self, needed: &[KeyCheck]) -> Result<(Self, Option<MasterKey>), WrongMasterKey> {
        needed.iter().try_for_each(|check| self.verify(check))?;
        let given = self.newest.id();
        let (mut used, mut others) = (Vec::new(), Vec::new());
        let mut keys: Vec<_> = std::iter::once(self.newest).chain(self.older).collect();
        for check in needed {
            let place = keys.iter().position(|key| check.verify(key).is_ok());
            used.extend(place.map(|place| keys.remove(place)));
        }
        others.append(&mut keys);
        let newer =
            if others.first().is_some_and(|key| key.id() == given) { Some(others.swap_remove(0)) } else { None };
        match Self::newest_first(used) {
            Some(used) => Ok((used, newer)),
            // The store has sealed nothing yet, so it begins with the newest key.
            None => Ok((Self::new(newer.expect("at least one key was given")), None)),
        }
    }

    /// Keys in order, newest first; `None` if there are none.
    pub fn newest_first(keys: impl IntoIterator<Item = MasterKey>) -> Option<Self> {
        let mut keys = keys.into_iter();
        Some(Self { newest: keys.next()?, older: keys.collect() })
    }

    pub const fn newest(&self) -> &MasterKey {
        &self.newest
    }

    /// Consumes the keys and returns the newest.
    pub fn into_newest(self) -> MasterKey {
        self.newest
    }

    /// All keys, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &MasterKey> {
        std::iter::once(&self.newest).chain(&self.older)
    }

    /// Checks whether the key with this check value is among them.
    pub fn verify(&self, check: &KeyCheck) -> Result<(), WrongMasterKey> {
        if self.iter().any(|key| check.verify(key).is_ok()) { Ok(()) } else { check.verify(&self.newest) }
    }

    pub fn wrap_store(&self, key: &StoreKey) -> MasterWrapped {
        self.newest.wrap(SealOwner::Store, key.id(), key.secret())
    }

    pub fn unwrap_store(&self, id: KeyId, wrapped: &MasterWrapped) -> Result<StoreKey, NotUnwrapped> {
        Ok(StoreKey::from_secret(id, self.unwrap(SealOwner::Store, id, wrapped)?))
    }

    pub fn wrap_tenant(&self, key: &TenantKey) -> MasterWrapped {
        self.newest.wrap(SealOwner::Tenant(key.tenant()), key.id(), key.secret())
    }

    pub fn unwrap_tenant(&self, tenant: u64, id: KeyId, wrapped: &MasterWrapped) -> Result<TenantKey, NotUnwrapped> {
        Ok(TenantKey::from_secret(id, tenant, self.unwrap(SealOwner::Tenant(tenant), id, wrapped)?))
    }

    /// Wraps a key under the newest master key; `None` if it is already.
    pub fn rewrap(
        &self,
        whose: SealOwner,
        id: KeyId,
        wrapped: &MasterWrapped,
    ) -> Result<Option<MasterWrapped>, NotUnwrapped> {
        // Unwrapped in either case, so that a rotation only counts keys as done that can be used.
        let secret = self.unwrap(whose, id, wrapped)?;
        Ok((wrapped.by() != self.newest.id()).then(|| self.newest.wrap(whose, id, &secret)))
    }

    fn unwrap(&self, whose: SealOwner, id: KeyId, wrapped: &MasterWrapped) -> Result<SecretKey, NotUnwrapped> {
        let parts = seal::parse(wrapped.as_bytes()).map_err(|_: NotOpened| NotUnwrapped::Unknown)?;
        let by = MasterKeyId(parts.by);
        let Some(master) = self.iter().find(|master| master.id() == by) else {
            return Err(NotUnwrapped::MasterNeeded { needed: by, given: self.newest.id() });
        };
        master.wrap.open_key(&Wrapped::from(whose).bound(id, by.0), &parts).ok_or(NotUnwrapped::Refused(by))
    }
}

impl MasterWrapped {
    pub fn by(&self) -> MasterKeyId {
        MasterKeyId(self.by_number())
    }
}

/// Decodes hexadecimal or base64. 64 hexadecimal digits are also valid base64, but of 48 bytes, which is not the length
/// of a key.
fn decode(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    if text.len() == KEY_BYTES * 2 && text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        // Full capacity from the start: a vector that grows leaves copies of its content behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_BYTES));
        let digits = (0..text.len()).step_by(2);
        bytes.extend(digits.map_while(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()));
        return Some(bytes);
    }
    ENGINES.iter().find_map(|engine| engine.decode(text).ok()).map(Zeroizing::new)
}

/// Whether a key looks made up rather than random. Random keys are misjudged very rarely: of 32 random bytes, fewer
/// than 16 are distinct once in 10²⁰ cases, and all are printable once in 10¹³.
fn made_up(key: &[u8; KEY_BYTES]) -> bool {
    const DISTINCT_MIN: usize = 16;
    let mut seen = [false; 256];
    key.iter().for_each(|byte| seen[usize::from(*byte)] = true);
    let distinct = seen.iter().filter(|seen| **seen).count();
    let step = key[1].wrapping_sub(key[0]);
    let counted = key.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == step);
    let typed = key.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    distinct < DISTINCT_MIN || counted || typed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: BadMasterKey) {
        assert_eq!(MasterKey::parse(text).err(), Some(expected), "{text:?}");
    }

    #[test]
    fn key_is_accepted_in_both_base64_alphabets_and_in_hexadecimal() {
        let key = MasterKey::generate();
        let base64 = key.reveal();
        let hex = crate::hex::write(key.secret.expose());
        let url_safe = base64.expose().replace('+', "-").replace('/', "_");
        let texts = [
            format!("{}\n", base64.expose()),
            base64.expose().trim_end_matches('=').to_owned(),
            url_safe,
            hex.to_uppercase(),
            format!(" {hex}\r\n"),
        ];
        for text in texts {
            let parsed = MasterKey::parse(&text).expect("a key");
            assert!(parsed.secret == key.secret);
            assert_eq!(parsed.id(), key.id());
        }
    }

    #[test]
    fn text_that_is_not_a_key_is_refused_with_advice() {
        check("", BadMasterKey::Length { bytes: 0 });
        check("not a key!", BadMasterKey::NotText);
        check(&"g".repeat(64), BadMasterKey::Length { bytes: 48 });
        check(&STANDARD.encode(crate::random::bytes::<31>()), BadMasterKey::Length { bytes: 31 });
        check(&STANDARD.encode(crate::random::bytes::<64>()), BadMasterKey::Length { bytes: 64 });
        let message = BadMasterKey::Length { bytes: 31 }.to_string();
        assert_eq!(message, "it has 31 bytes and must have 32; make one with `openssl rand -base64 32`");
    }

    #[test]
    fn made_up_keys_are_refused() {
        let counted: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).expect("below 32"));
        let made_up = [
            [0; 32],
            [0xff; 32],
            counted,
            counted.map(|byte| 255 - byte * 3),
            *b"correct horse battery staple, 32",
            *b"0123456789abcdef0123456789abcdef",
        ];
        for bytes in made_up {
            check(&STANDARD.encode(bytes), BadMasterKey::MadeUp);
        }
        check(&"0".repeat(64), BadMasterKey::MadeUp);
    }

    #[test]
    fn random_keys_are_not_taken_for_made_up_ones() {
        assert!((0..10_000).all(|_| !made_up(&crate::random::bytes())));
    }

    #[test]
    fn wrong_key_is_reported_with_both_ids() {
        let [ours, other] = [MasterKey::generate(), MasterKey::generate()];
        let check = KeyCheck::from_bytes(ours.check().to_bytes());
        assert_eq!(check.verify(&ours), Ok(()));
        let wrong = check.verify(&other).expect_err("another key");
        assert_eq!(wrong, WrongMasterKey { needed: ours.id(), given: other.id() });
        let expected =
            format!("the data are sealed under master key {}, but master key {} was given", ours.id(), other.id());
        assert_eq!(wrong.to_string(), expected);
        assert_eq!(ours.id().to_string().len(), 8);
    }

    /// Stores hold the id of their key, so it must never change. It was computed by another program.
    #[test]
    fn a_key_keeps_its_id() {
        let key = MasterKey::from_secret(SecretKey::from_bytes(&[7; 32]));
        assert_eq!(format!("{key:?}"), "MasterKey(22397af1, ..)");
    }

    #[test]
    fn tenant_key_is_unwrapped_only_by_the_master_key_that_wrapped_it() {
        let [older, newer, foreign] = [(); 3].map(|()| MasterKey::generate());
        let [older_id, newer_id, foreign_id] = [&older, &newer, &foreign].map(MasterKey::id);
        let key = TenantKey::generate(KeyId(3), 8);
        let before = Masters::new(older);
        let wrapped = before.wrap_tenant(&key);
        assert_eq!(wrapped.by(), older_id);

        let during = before.rotated_to(newer);
        let same_key = during.unwrap_tenant(8, KeyId(3), &wrapped).expect("the older is still at hand");
        assert!(same_key.secret() == key.secret());
        let anew = during.rewrap(SealOwner::Tenant(8), KeyId(3), &wrapped).expect("at hand").expect("by the older");
        assert_eq!(anew.by(), newer_id);
        assert_eq!(during.rewrap(SealOwner::Tenant(8), KeyId(3), &anew).expect("at hand"), None);

        let after = Masters::new(foreign);
        let refused = after.unwrap_tenant(8, KeyId(3), &anew).expect_err("another master key");
        assert_eq!(refused, NotUnwrapped::MasterNeeded { needed: newer_id, given: foreign_id });
    }

    #[test]
    fn any_of_several_keys_may_be_the_needed_one() {
        let keys = [(); 3].map(|()| MasterKey::generate());
        let checks = keys.each_ref().map(MasterKey::check);
        let foreign = MasterKey::generate();
        let masters = Masters::newest_first(keys).expect("three");
        assert!(checks.iter().all(|check| masters.verify(check).is_ok()));
        let wrong = WrongMasterKey { needed: foreign.id(), given: checks[0].id() };
        assert_eq!(masters.verify(&foreign.check()), Err(wrong));
        assert!(Masters::newest_first([]).is_none());
    }

    #[test]
    fn used_keys_are_separated_from_a_newer_key() {
        fn key(n: u8) -> MasterKey {
            MasterKey::from_secret(SecretKey::from_bytes(&[n; 32]))
        }

        fn check(given: &[u8], needed: &[u8], used: &[u8], newer: Option<u8>) {
            let checks: Vec<_> = needed.iter().map(|n| key(*n).check()).collect();
            let given = Masters::newest_first(given.iter().map(|n| key(*n))).expect("some are given");
            let (masters, offered) = given.as_used(&checks).expect("what is needed is given");
            let expected: Vec<_> = used.iter().map(|n| key(*n).id()).collect();
            assert_eq!(masters.iter().map(MasterKey::id).collect::<Vec<_>>(), expected);
            assert_eq!(offered.map(|key| key.id()), newer.map(|n| key(n).id()));
        }
        check(&[1], &[], &[1], None);
        check(&[1], &[1], &[1], None);
        check(&[2, 1], &[1], &[1], Some(2));
        check(&[2, 1], &[2, 1], &[2, 1], None);
        check(&[1, 2], &[2, 1], &[2, 1], None);
        check(&[2, 1], &[2], &[2], None);
        check(&[3, 2, 1], &[2, 1], &[2, 1], Some(3));
        check(&[3, 0, 1], &[1], &[1], Some(3));
    }

    #[test]
    fn wrapped_key_is_bound_to_its_tenant_and_id() {
        let masters = Masters::new(MasterKey::generate());
        let by = masters.newest().id();
        let wrapped = masters.wrap_tenant(&TenantKey::generate(KeyId(3), 8));
        for (tenant, id) in [(9, KeyId(3)), (8, KeyId(4)), (0, KeyId(3))] {
            assert_eq!(masters.unwrap_tenant(tenant, id, &wrapped).err(), Some(NotUnwrapped::Refused(by)));
        }
        assert_eq!(masters.unwrap_store(KeyId(3), &wrapped).err(), Some(NotUnwrapped::Refused(by)));
        for at in 0..wrapped.as_bytes().len() {
            let mut altered = *wrapped.as_bytes();
            altered[at] ^= 1;
            assert!(masters.unwrap_tenant(8, KeyId(3), &MasterWrapped::from_bytes(altered)).is_err(), "byte {at}");
        }
    }

    #[test]
    fn store_key_survives_a_rotation() {
        let before = Masters::new(MasterKey::generate());
        let key = StoreKey::generate(KeyId(1));
        let wrapped = before.wrap_store(&key);
        let during = before.rotated_to(MasterKey::generate());
        let anew = during.rewrap(SealOwner::Store, KeyId(1), &wrapped).expect("at hand").expect("by the older");
        let same_key = during.unwrap_store(KeyId(1), &anew).expect("at hand");
        assert_eq!(same_key.lookups().hash("a", 1, b"b"), key.lookups().hash("a", 1, b"b"));
    }

    proptest! {
        #[test]
        fn parsing_any_text_as_a_key_never_panics(text in "\\PC*|[0-9a-fA-F]{60,68}|[A-Za-z0-9+/]{40,46}={0,2}") {
            let _ = MasterKey::parse(&text);
        }
    }
}
