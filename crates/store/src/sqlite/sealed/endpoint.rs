//! Endpoints under seal: everything their owners chose, in one value. One that is somebody's is sealed under
//! their key, so that it goes with them.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::TenantId;
use posthaste_crypto::LookupKey;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::seal::SealingKey;
use posthaste_crypto::spot::Field;
use zeroize::{Zeroize, Zeroizing};

use super::{Once, opened, spot, text};
use crate::StoreError;
use crate::journal::pack::{self, Unpack};
use crate::number::{micros, stored_micros};
use crate::row::{Endpoint, EndpointRate, EndpointTls, Idempotency, SigningSecret};
use crate::sqlite::vault::{NewKey, Vault};

/// What an endpoint's uid is looked up by.
pub(in crate::sqlite) fn hide_uid(lookups: &LookupKey, tenant: TenantId, uid: &str) -> Digest {
    lookups.hash("endpoint's uid", tenant.raw(), uid.as_bytes())
}

/// Whose key an endpoint is sealed under: its subject's, else its tenant's.
pub(in crate::sqlite) fn whose(vault: &Vault, endpoint: &Endpoint) -> (TenantId, Option<Digest>) {
    let subject = endpoint.subject.as_deref().map(|subject| vault.subject(endpoint.tenant, subject));
    (endpoint.tenant, subject)
}

/// What of an endpoint is written under seal, and the keys that go along.
pub(in crate::sqlite) struct SealedEndpoint {
    pub(in crate::sqlite) key: Arc<SealingKey>,
    pub(in crate::sqlite) keys: Vec<NewKey>,
    pub(in crate::sqlite) settings: Vec<u8>,
    /// The call it came with, under the endpoint's own key: the answer says what it is.
    pub(in crate::sqlite) once: Option<Once>,
}

impl SealedEndpoint {
    pub(in crate::sqlite) fn new(
        vault: &Vault,
        endpoint: &Endpoint,
        key: &Arc<SealingKey>,
        once: Option<&Idempotency>,
    ) -> Self {
        Self {
            key: Arc::clone(key),
            keys: vault.unwritten(endpoint.tenant, key.id()),
            settings: seal(endpoint, key),
            once: once.map(|call| vault.seal_once(call, key)),
        }
    }
}

/// Seals what its owner chose.
fn seal(endpoint: &Endpoint, key: &SealingKey) -> Vec<u8> {
    let mut plain = Vec::new();
    let Endpoint { url, policy, uid, subject, description, time_zone, tls, .. } = endpoint;
    pack_text(&mut plain, url);
    for text in [policy, uid, subject, description, time_zone, &tls.ca, &tls.client_cert, &tls.client_key] {
        pack_if(&mut plain, text.as_deref(), pack_text);
    }
    for list in [&endpoint.event_types, &endpoint.tags] {
        pack_list(&mut plain, list, |plain, text| pack_text(plain, text));
    }
    for pairs in [&endpoint.headers, &endpoint.status_overrides] {
        pack_list(&mut plain, pairs, |plain, (left, right)| {
            pack_text(plain, left);
            pack_text(plain, right);
        });
    }
    pack_list(&mut plain, &endpoint.secrets, |plain, secret| {
        pack_text(plain, &secret.text);
        pack_if(plain, secret.until, pack::time);
    });
    pack_if(&mut plain, endpoint.timeout, |plain, timeout| pack::number(plain, micros(timeout).cast_unsigned()));
    pack_if(&mut plain, endpoint.rate, |plain, rate| {
        pack::number(plain, rate.milli);
        pack::number(plain, rate.burst.into());
    });
    let sealed = key.seal(&spot(endpoint.tenant, Field::EndpointSettings, endpoint.id.0), &plain);
    plain.zeroize();
    sealed
}

/// The endpoint with what was under seal of it.
pub(in crate::sqlite) fn open(endpoint: &Endpoint, key: &SealingKey, sealed: &[u8]) -> Result<Endpoint, StoreError> {
    let place = spot(endpoint.tenant, Field::EndpointSettings, endpoint.id.0);
    let plain = Zeroizing::new(opened(key, &place, sealed, "an endpoint")?);
    let mut rest = Unpack(&plain);
    let rest = &mut rest;
    // In the order they were packed in.
    let opened = Endpoint {
        url: unpack_text(rest)?,
        policy: unpack_if(rest, unpack_text)?,
        uid: unpack_if(rest, unpack_text)?,
        subject: unpack_if(rest, unpack_text)?,
        description: unpack_if(rest, unpack_text)?,
        time_zone: unpack_if(rest, unpack_text)?,
        tls: EndpointTls {
            ca: unpack_if(rest, unpack_text)?,
            client_cert: unpack_if(rest, unpack_text)?,
            client_key: unpack_if(rest, unpack_text)?,
        },
        event_types: unpack_list(rest, unpack_text)?,
        tags: unpack_list(rest, unpack_text)?,
        headers: unpack_list(rest, |rest| Ok((unpack_text(rest)?, unpack_text(rest)?)))?,
        status_overrides: unpack_list(rest, |rest| Ok((unpack_text(rest)?, unpack_text(rest)?)))?,
        secrets: unpack_list(rest, |rest| {
            Ok(SigningSecret { text: unpack_text(rest)?, until: unpack_if(rest, Unpack::time)? })
        })?,
        timeout: unpack_if(rest, |rest| Ok::<Duration, StoreError>(stored_micros(rest.number()?.cast_signed())))?,
        rate: unpack_if(rest, |rest| Ok(EndpointRate { milli: rest.number()?, burst: rest.small()? }))?,
        ..*endpoint
    };
    rest.end()?;
    Ok(opened)
}

fn pack_text(plain: &mut Vec<u8>, text: &str) {
    pack::bytes(plain, text.as_bytes());
}

fn pack_if<T>(plain: &mut Vec<u8>, value: Option<T>, pack: impl FnOnce(&mut Vec<u8>, T)) {
    plain.push(u8::from(value.is_some()));
    if let Some(value) = value {
        pack(plain, value);
    }
}

fn pack_list<T>(plain: &mut Vec<u8>, list: &[T], pack: impl Fn(&mut Vec<u8>, &T)) {
    pack::number(plain, list.len() as u64);
    list.iter().for_each(|one| pack(plain, one));
}

fn unpack_text(rest: &mut Unpack<'_>) -> Result<String, StoreError> {
    text(rest.bytes()?.to_vec())
}

fn unpack_if<'b, T>(
    rest: &mut Unpack<'b>,
    unpack: impl FnOnce(&mut Unpack<'b>) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    if rest.number()? == 0 { Ok(None) } else { unpack(rest).map(Some) }
}

fn unpack_list<'b, T>(
    rest: &mut Unpack<'b>,
    unpack: impl Fn(&mut Unpack<'b>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let count = rest.number()?;
    (0..count).map(|_| unpack(rest)).collect()
}
