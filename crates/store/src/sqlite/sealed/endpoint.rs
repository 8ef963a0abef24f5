//! Seals endpoints: everything their owners set, in one value. An endpoint of a subject is sealed under the subject's
//! key, so that erasing the subject erases it.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::TenantId;
use posthaste_crypto::LookupKey;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::seal::SealingKey;
use posthaste_crypto::seal_context::SealedField;
use zeroize::{Zeroize, Zeroizing};

use super::{
    context, opened, pack_if, pack_list, pack_pair, pack_text, unpack_if, unpack_list, unpack_pair, unpack_text,
};
use crate::journal::pack::{self, Unpack};
use crate::sqlite::{SealedCall, UnwrittenKey, Vault, micros, stored_micros};
use crate::{
    Endpoint, EndpointRate, EndpointTarget, EndpointTls, Idempotency, SigningSecret, StoreError, WebhookTarget,
};

/// The keyed hash by which an endpoint's uid is looked up.
pub(in crate::sqlite) fn hide_uid(lookups: &LookupKey, tenant: TenantId, uid: &str) -> Digest {
    lookups.hash("endpoint's uid", tenant.raw(), uid.as_bytes())
}

/// Bytes of the hashes by which subjects and tags are looked up: enough to make a collision negligible.
pub(in crate::sqlite) const NAME_BYTES: usize = 16;

/// The hash by which a subject or tag is looked up: the first bytes of a keyed hash of the tenant and the name.
pub(in crate::sqlite) type NameHash = [u8; NAME_BYTES];

pub(in crate::sqlite) fn hide_subject(lookups: &LookupKey, tenant: TenantId, subject: &str) -> NameHash {
    shortened(&lookups.hash("endpoint's subject", tenant.raw(), subject.as_bytes()))
}

pub(in crate::sqlite) fn hide_tag(lookups: &LookupKey, tenant: TenantId, tag: &str) -> NameHash {
    shortened(&lookups.hash("endpoint's tag", tenant.raw(), tag.as_bytes()))
}

fn shortened(hash: &Digest) -> NameHash {
    std::array::from_fn(|at| hash[at])
}

pub(in crate::sqlite) struct EndpointNames {
    pub(in crate::sqlite) uid: Option<Digest>,
    pub(in crate::sqlite) subject: Option<NameHash>,
    /// In order, each once.
    pub(in crate::sqlite) tags: Vec<NameHash>,
}

impl EndpointNames {
    pub(in crate::sqlite) fn new(lookups: &LookupKey, endpoint: &Endpoint) -> Self {
        let tenant = endpoint.tenant;
        let mut tags: Vec<NameHash> = endpoint.tags.iter().map(|tag| hide_tag(lookups, tenant, tag)).collect();
        tags.sort_unstable();
        tags.dedup();
        Self {
            uid: endpoint.uid.as_deref().map(|uid| hide_uid(lookups, tenant, uid)),
            subject: endpoint.subject.as_deref().map(|subject| hide_subject(lookups, tenant, subject)),
            tags,
        }
    }
}

/// The owner of the key that an endpoint is sealed under: its subject if it has one, else its tenant.
pub(in crate::sqlite) fn whose(vault: &Vault, endpoint: &Endpoint) -> (TenantId, Option<Digest>) {
    let subject = endpoint.subject.as_deref().map(|subject| vault.subject(endpoint.tenant, subject));
    (endpoint.tenant, subject)
}

/// The encrypted columns of an endpoint, and the keys that must be written with them.
pub(in crate::sqlite) struct SealedEndpoint {
    pub(in crate::sqlite) key: Arc<SealingKey>,
    pub(in crate::sqlite) keys: Vec<UnwrittenKey>,
    pub(in crate::sqlite) settings: Vec<u8>,
    /// The idempotency key of the call, and its answer, sealed under the endpoint's key since it contains the endpoint.
    pub(in crate::sqlite) once: Option<SealedCall>,
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

fn seal(endpoint: &Endpoint, key: &SealingKey) -> Vec<u8> {
    let mut plain = Vec::new();
    pack_target(&mut plain, &endpoint.target);
    let Endpoint { policy, uid, subject, description, time_zone, .. } = endpoint;
    for text in [policy, uid, subject, description, time_zone] {
        pack_if(&mut plain, text.as_deref(), pack_text);
    }
    for list in [&endpoint.event_types, &endpoint.tags] {
        pack_list(&mut plain, list, |plain, text| pack_text(plain, text));
    }
    pack_if(&mut plain, endpoint.timeout, |plain, timeout| pack::number(plain, micros(timeout).cast_unsigned()));
    pack_if(&mut plain, endpoint.rate, |plain, rate| {
        pack::number(plain, rate.milli);
        pack::number(plain, rate.burst.into());
    });
    let sealed = key.seal(&context(endpoint.tenant, SealedField::EndpointSettings, endpoint.id.0), &plain);
    plain.zeroize();
    sealed
}

/// Opens the sealed settings; `endpoint` has the fields that are not sealed.
pub(in crate::sqlite) fn open(endpoint: &Endpoint, key: &SealingKey, sealed: &[u8]) -> Result<Endpoint, StoreError> {
    let context = context(endpoint.tenant, SealedField::EndpointSettings, endpoint.id.0);
    let plain = Zeroizing::new(opened(key, &context, sealed, "an endpoint")?);
    let mut rest = Unpack(&plain);
    let rest = &mut rest;
    // The fields of a struct expression are evaluated in this order, which is the order of `seal`.
    let opened = Endpoint {
        target: unpack_target(rest)?,
        policy: unpack_if(rest, unpack_text)?,
        uid: unpack_if(rest, unpack_text)?,
        subject: unpack_if(rest, unpack_text)?,
        description: unpack_if(rest, unpack_text)?,
        time_zone: unpack_if(rest, unpack_text)?,
        event_types: unpack_list(rest, unpack_text)?,
        tags: unpack_list(rest, unpack_text)?,
        timeout: unpack_if(rest, |rest| Ok::<Duration, StoreError>(stored_micros(rest.number()?.cast_signed())))?,
        rate: unpack_if(rest, |rest| Ok(EndpointRate { milli: rest.number()?, burst: rest.small()? }))?,
        ..*endpoint
    };
    rest.end()?;
    Ok(opened)
}

/// The number of the channel, which comes first in a packed target.
const WEBHOOK: u64 = 0;

fn pack_target(plain: &mut Vec<u8>, target: &EndpointTarget) {
    match target {
        EndpointTarget::Webhook(WebhookTarget { url, headers, secrets, tls, status_overrides }) => {
            pack::number(plain, WEBHOOK);
            pack_text(plain, url);
            for text in [&tls.ca, &tls.client_cert, &tls.client_key] {
                pack_if(plain, text.as_deref(), pack_text);
            }
            for pairs in [headers, status_overrides] {
                pack_list(plain, pairs, pack_pair);
            }
            pack_list(plain, secrets, |plain, secret| {
                pack_text(plain, &secret.text);
                pack_if(plain, secret.until, pack::time);
            });
        }
    }
}

fn unpack_target(rest: &mut Unpack<'_>) -> Result<EndpointTarget, StoreError> {
    match rest.number()? {
        // The order of the fields is that of `pack_target`.
        WEBHOOK => Ok(EndpointTarget::Webhook(WebhookTarget {
            url: unpack_text(rest)?,
            tls: EndpointTls {
                ca: unpack_if(rest, unpack_text)?,
                client_cert: unpack_if(rest, unpack_text)?,
                client_key: unpack_if(rest, unpack_text)?,
            },
            headers: unpack_list(rest, unpack_pair)?,
            status_overrides: unpack_list(rest, unpack_pair)?,
            secrets: unpack_list(rest, |rest| {
                Ok(SigningSecret { text: unpack_text(rest)?, until: unpack_if(rest, Unpack::time)? })
            })?,
        })),
        other => Err(pack::damaged(&format!("an endpoint of channel {other}"))),
    }
}
