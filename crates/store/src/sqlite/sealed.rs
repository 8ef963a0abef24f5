//! Seals messages and endpoints for the file: every value that a producer or a tenant chose is encrypted, and opens
//! only for its own tenant, field and row.
//!
//! Only numbers (ids, times, sizes, states) and keyed hashes are in clear text. Values that lists are filtered by, such
//! as event types, are sealed so that equal values of a tenant have equal ciphertexts.

pub(super) mod endpoint;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use posthaste_core::{Audience, DeliveryId, JobId, Key, MessageId, TenantId, Tier, Timestamp};
use posthaste_crypto::digest::Digest;
use posthaste_crypto::keyring::KeyId;
use posthaste_crypto::row_mac::RowMac;
use posthaste_crypto::seal::{self, NotOpened, SealingKey};
use posthaste_crypto::seal_context::{SealContext, SealOwner, SealedField, SealedObject};
use rusqlite::Connection;
use zeroize::{Zeroize, Zeroizing};

use super::vault::KeyView;
use super::{SealedCall, UnwrittenKey, Vault, token};
use crate::derived::NameKind;
use crate::journal::pack::{self, Unpack};
use crate::journal::{Entries, Hidden, JournalEntry, MessageMarks};
use crate::{Accepted, Details, Document, DocumentKind, ListedMessage, Message, Name, StoreError, number};

/// The encrypted columns of a message's row, and what is written with it.
pub(super) struct SealedMessage {
    pub(super) key: KeyId,
    pub(super) event_type: Option<String>,
    /// The hashes it is found by: see [`NameHashes`].
    pub(super) names: Option<Vec<u8>>,
    pub(super) head: Vec<u8>,
    pub(super) compact: Option<Vec<u8>>,
    pub(super) body: Vec<u8>,
    /// The MACs of its deliveries' rows, in their order.
    pub(super) macs: Vec<RowMac>,
    /// The idempotency key of its call, and the call's answer, sealed under the same key since it contains the
    /// message's id.
    pub(super) once: Option<SealedCall>,
}

/// The sealed messages of an accept, in their order, and the keys that must be written with them.
#[derive(Default)]
pub(super) struct SealedAccept {
    pub(super) messages: Vec<SealedMessage>,
    pub(super) keys: Vec<UnwrittenKey>,
}

/// The fields of a message that are sealed together in the column `head`: all but the payloads. Columns for some of the
/// same fields exist for lists.
struct MessageHead {
    at: Timestamp,
    correlation_id: Option<String>,
    subject: Option<String>,
    event_type: Option<String>,
    tier: Tier,
    details: Option<Box<Details>>,
}

fn context(tenant: TenantId, field: SealedField, row: Key) -> SealContext {
    SealContext::new(SealOwner::Tenant(tenant.raw()), field, SealedObject::Row(row.raw()))
}

impl Vault {
    /// The key that a message is sealed under, and its tenant's; `None` unless both are in memory.
    fn key_at_hand(&self, message: &Message) -> Option<(Arc<SealingKey>, Arc<SealingKey>)> {
        let own = self.known(message.tenant, None)?;
        let key = match &message.subject {
            None => Arc::clone(&own),
            Some(subject) => self.known(message.tenant, Some(&self.subject(message.tenant, subject)))?,
        };
        Some((key, own))
    }

    /// The owners of the keys needed to seal a message: its tenant, and its subject if it has one.
    pub(super) fn keys_needed(&self, message: &Message) -> impl Iterator<Item = (TenantId, Option<Digest>)> {
        let subject = message.subject.as_deref().map(|subject| self.subject(message.tenant, subject));
        let subject = subject.map(|subject| (message.tenant, Some(subject)));
        [(message.tenant, None)].into_iter().chain(subject)
    }

    /// Seals messages for the writer, with the answers for their idempotency keys. `None` when a key is not in memory.
    pub(super) fn seal(&self, messages: &[Accepted]) -> Option<(SealedAccept, Entries)> {
        let keys = messages.iter().map(|accepted| self.key_at_hand(&accepted.message)).collect::<Option<Vec<_>>>()?;
        let mut sealed = SealedAccept::default();
        let mut entries = Entries::with_capacity(messages.len());
        for (accepted, (key, own)) in messages.iter().zip(&keys) {
            sealed.keys.extend(self.unwritten(accepted.message.tenant, key.id()));
            let marks = self.marks(&accepted.message, key);
            sealed.messages.push(self.seal_message(accepted, &marks, key, own));
            entries.push(&JournalEntry::accepted(accepted, &marks));
        }
        Some((sealed, entries))
    }

    /// Seals a message again, in the writer, when its key was destroyed meanwhile: under a new key.
    pub(super) fn seal_anew(
        &self,
        conn: &Connection,
        accepted: &Accepted,
    ) -> Result<(SealedMessage, Vec<UnwrittenKey>, JournalEntry), StoreError> {
        let message = &accepted.message;
        let find = |subject: Option<&Digest>| self.find_or_make(conn, KeyView::Writers, message.tenant, subject);
        let own = find(None)?;
        let key = match &message.subject {
            None => Arc::clone(&own),
            Some(subject) => find(Some(&self.subject(message.tenant, subject)))?,
        };
        let keys = self.unwritten(message.tenant, key.id());
        let marks = self.marks(message, &key);
        Ok((self.seal_message(accepted, &marks, &key, &own), keys, JournalEntry::accepted(accepted, &marks)))
    }

    fn seal_message(
        &self,
        accepted: &Accepted,
        marks: &MessageMarks,
        key: &Arc<SealingKey>,
        own: &SealingKey,
    ) -> SealedMessage {
        let message = &accepted.message;
        let seal = |field, plain: &[u8]| key.seal(&context(message.tenant, field, message.id.0), plain);
        SealedMessage {
            key: key.id(),
            event_type: message.event_type.as_deref().map(|text| seal_event_type(own, message.tenant, text)),
            names: NameHashes::of(marks).to_column(),
            head: seal(SealedField::MessageHead, &pack_head(message)),
            compact: message.compact.as_ref().map(|compact| seal(SealedField::MessageCompact, compact)),
            body: seal(SealedField::MessageBody, &message.body),
            macs: accepted.deliveries.iter().map(|new| token::make(&self.row_macs, &new.delivery)).collect(),
            once: accepted.idempotency.as_ref().map(|call| self.seal_once(call, key)),
        }
    }

    fn marks(&self, message: &Message, key: &SealingKey) -> MessageMarks {
        MessageMarks {
            payload: key.mark("payload", &message.body),
            subject: message.subject.as_ref().map(|_| subject_mark(key)),
            correlation: message
                .correlation_id
                .as_deref()
                .map(|id| Hidden::new(&self.lookups, "correlation", message.tenant, id)),
        }
    }

    /// Opens the columns of a message; `None` when its key is destroyed.
    pub(super) fn open_message(
        &self,
        conn: &Connection,
        (tenant, id): (TenantId, MessageId),
        head: &[u8],
        compact: Option<&[u8]>,
        body: &[u8],
    ) -> Result<Option<Message>, StoreError> {
        let altered = |why: NotOpened| StoreError::Altered { what: "a message", why: why.to_string() };
        let Some(key) = self.by_id(conn, seal::key_of(body).map_err(altered)?)? else { return Ok(None) };
        let open = |field, sealed| key.open(&context(tenant, field, id.0), sealed).map_err(altered);
        let MessageHead { at, correlation_id, subject, event_type, tier, details } =
            unpack_head(&open(SealedField::MessageHead, head)?)?;
        Ok(Some(Message {
            id,
            tenant,
            at,
            event_type,
            correlation_id,
            subject,
            tier,
            details,
            compact: compact.map(|compact| open(SealedField::MessageCompact, compact)).transpose()?.map(Bytes::from),
            body: Bytes::from(open(SealedField::MessageBody, body)?),
        }))
    }

    /// Opens the part of a message that a list shows; `None` when its key is destroyed.
    pub(super) fn open_listed(
        &self,
        conn: &Connection,
        (tenant, id): (TenantId, MessageId),
        head: &[u8],
    ) -> Result<Option<ListedMessage>, StoreError> {
        let Some(key) = self.by_id(conn, key_of(head)?)? else { return Ok(None) };
        let plain = key.open(&context(tenant, SealedField::MessageHead, id.0), head);
        let plain = plain.map_err(|why| StoreError::Altered { what: "a message", why: why.to_string() })?;
        let MessageHead { at, correlation_id, subject, event_type, tier, details } = unpack_head(&plain)?;
        Ok(Some(ListedMessage { id, tenant, at, tier, event_type, subject, correlation_id, details }))
    }

    /// The keyed hash of a name in the journal; `None` for a subject that has no key.
    pub(super) fn hide(
        &self,
        conn: &Connection,
        tenant: TenantId,
        name: &Name,
    ) -> Result<Option<(NameKind, Hidden)>, StoreError> {
        match name {
            Name::Correlation(_) => Ok(Some(name.hide(&self.lookups, tenant))),
            Name::Subject(subject) => {
                let key = self.find(conn, tenant, Some(&self.subject(tenant, subject)))?;
                Ok(key.map(|key| (NameKind::Subject, subject_mark(&key))))
            }
        }
    }

    /// Seals an event type for a row: the same result for the same text of the same tenant. `None` when the tenant has
    /// no key, so that no row can have it.
    pub(super) fn seal_event_type(
        &self,
        conn: &Connection,
        tenant: TenantId,
        text: &str,
    ) -> Result<Option<String>, StoreError> {
        Ok(self.find(conn, tenant, None)?.map(|own| seal_event_type(&own, tenant, text)))
    }

    /// Opens an event type; `None` when its tenant was erased.
    pub(super) fn open_event_type(
        &self,
        conn: &Connection,
        tenant: TenantId,
        sealed: &str,
    ) -> Result<Option<String>, StoreError> {
        let bytes = STANDARD_NO_PAD.decode(sealed).map_err(|_| super::vault::damaged("an event type"))?;
        let Some(key) = self.by_id(conn, key_of(&bytes)?)? else { return Ok(None) };
        text(opened(&key, &event_type_spot(tenant), &bytes, "an event type")?).map(Some)
    }

    /// Seals the excerpt of an answer under the key of the message that was sent, which `head` names; `None` when that
    /// key is destroyed.
    pub(super) fn seal_excerpt(
        &self,
        conn: &Connection,
        place: (TenantId, DeliveryId, u16),
        head: &[u8],
        excerpt: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.by_id(conn, key_of(head)?)?.map(|key| key.seal(&excerpt_spot(place), excerpt)))
    }

    /// Opens an excerpt; `None` when its key is destroyed.
    pub(super) fn open_excerpt(
        &self,
        conn: &Connection,
        place: (TenantId, DeliveryId, u16),
        sealed: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(key) = self.by_id(conn, key_of(sealed)?)? else { return Ok(None) };
        opened(&key, &excerpt_spot(place), sealed, "an answer's excerpt").map(Some)
    }

    pub(super) fn seal_reason(&self, (tenant, job): (TenantId, JobId), own: &SealingKey, reason: &str) -> String {
        STANDARD_NO_PAD.encode(own.seal(&context(tenant, SealedField::ReplayReason, job.0), reason.as_bytes()))
    }

    /// Opens the reason given for a replay; `None` when its tenant was erased.
    pub(super) fn open_reason(
        &self,
        conn: &Connection,
        (tenant, job): (TenantId, JobId),
        sealed: &str,
    ) -> Result<Option<String>, StoreError> {
        let bytes = STANDARD_NO_PAD.decode(sealed).map_err(|_| super::vault::damaged("a replay's reason"))?;
        let Some(key) = self.by_id(conn, key_of(&bytes)?)? else { return Ok(None) };
        let context = context(tenant, SealedField::ReplayReason, job.0);
        text(opened(&key, &context, &bytes, "a replay's reason")?).map(Some)
    }

    /// Whether a sealed value can still be opened, because its key exists.
    pub(super) fn is_there(&self, conn: &Connection, sealed: &[u8]) -> Result<bool, StoreError> {
        Ok(self.by_id(conn, key_of(sealed)?)?.is_some())
    }
}

/// The keyed hashes a message is found by, as in the table `name` and the journal. They are not sealed, so that the
/// rows of `name` can be deleted also when the message's key is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameHashes {
    correlation: Option<Hidden>,
    subject: Option<Hidden>,
}

impl NameHashes {
    fn of(marks: &MessageMarks) -> Self {
        Self { correlation: marks.correlation, subject: marks.subject }
    }

    /// The column: a byte that says which there are, then each; `None` if there is none.
    fn to_column(self) -> Option<Vec<u8>> {
        let which = u8::from(self.correlation.is_some()) | u8::from(self.subject.is_some()) << 1;
        let mut column = vec![which];
        [self.correlation, self.subject].iter().flatten().for_each(|hidden| column.extend_from_slice(&hidden.0));
        (which > 0).then_some(column)
    }

    pub(super) fn stored(column: Option<&[u8]>) -> Result<Self, StoreError> {
        let Some((which, rest)) = column.and_then(|column| column.split_first()) else {
            return Ok(Self { correlation: None, subject: None });
        };
        let mut rest = Unpack(rest);
        let correlation = if which & 1 == 0 { None } else { Some(rest.hidden()?) };
        let subject = if which & 2 == 0 { None } else { Some(rest.hidden()?) };
        rest.end()?;
        Ok(Self { correlation, subject })
    }

    pub(super) fn each(self) -> impl Iterator<Item = (NameKind, Hidden)> {
        let subject = self.subject.map(|subject| (NameKind::Subject, subject));
        subject.into_iter().chain(self.correlation.map(|correlation| (NameKind::Correlation, correlation)))
    }
}

/// The hash that stands for a subject in the journal. It is made with the subject's key, so it cannot be computed again
/// once that key is destroyed.
pub(super) fn subject_mark(key: &SealingKey) -> Hidden {
    Hidden(*key.mark("subject", &[]).first_chunk().expect("a digest is longer"))
}

fn pack_head(message: &Message) -> Vec<u8> {
    let texts = [&message.correlation_id, &message.subject, &message.event_type];
    let bytes: usize = texts.iter().flat_map(|text| text.as_ref()).map(String::len).sum();
    let mut head = Vec::with_capacity(bytes + 24);
    pack::time(&mut head, message.at);
    texts.iter().for_each(|text| pack_if(&mut head, text.as_deref(), pack_text));
    head.push(number::tier_number(message.tier));
    pack_if(&mut head, message.details.as_deref(), pack_details);
    head
}

fn pack_details(head: &mut Vec<u8>, details: &Details) {
    let Details { labels, region, cost_center, audience, deliver_at, ttl } = details;
    pack_list(head, labels, pack_pair);
    pack_if(head, region.as_deref(), pack_text);
    pack_if(head, cost_center.as_deref(), pack_text);
    for list in [&audience.subjects, &audience.tags] {
        pack_list(head, list, |head, text| pack_text(head, text));
    }
    head.push(u8::from(audience.all) | u8::from(audience.named) << 1);
    head.push(u8::from(deliver_at.is_some()) | u8::from(ttl.is_some()) << 1);
    deliver_at.iter().for_each(|at| pack::time(head, *at));
    ttl.iter().for_each(|ttl| pack::number(head, u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)));
}

fn unpack_head(plain: &[u8]) -> Result<MessageHead, StoreError> {
    let mut rest = Unpack(plain);
    Ok(MessageHead {
        at: rest.time()?,
        correlation_id: unpack_if(&mut rest, unpack_text)?,
        subject: unpack_if(&mut rest, unpack_text)?,
        event_type: unpack_if(&mut rest, unpack_text)?,
        tier: number::stored_tier(rest.small::<u8>()?.into())?,
        details: unpack_if(&mut rest, unpack_details)?.map(Box::new),
    })
}

fn unpack_details(rest: &mut Unpack<'_>) -> Result<Details, StoreError> {
    let labels = unpack_list(rest, unpack_pair)?;
    let (region, cost_center) = (unpack_if(rest, unpack_text)?, unpack_if(rest, unpack_text)?);
    let (subjects, tags) = (unpack_list(rest, unpack_text)?, unpack_list(rest, unpack_text)?);
    let whom = rest.number()?;
    let audience = Audience { subjects, tags, all: whom & 1 != 0, named: whom & 2 != 0 };
    let times = rest.number()?;
    let deliver_at = if times & 1 == 0 { None } else { Some(rest.time()?) };
    let ttl = if times & 2 == 0 { None } else { Some(Duration::from_micros(rest.number()?)) };
    Ok(Details { labels, region, cost_center, audience, deliver_at, ttl })
}

fn event_type_spot(tenant: TenantId) -> SealContext {
    SealContext::new(SealOwner::Tenant(tenant.raw()), SealedField::EventType, SealedObject::Row(0))
}

fn seal_event_type(own: &SealingKey, tenant: TenantId, text: &str) -> String {
    STANDARD_NO_PAD.encode(own.seal_alike(&event_type_spot(tenant), text.as_bytes()))
}

fn excerpt_spot((tenant, delivery, number): (TenantId, DeliveryId, u16)) -> SealContext {
    let part = SealedObject::Part(delivery.raw(), number.into());
    SealContext::new(SealOwner::Tenant(tenant.raw()), SealedField::ResponseExcerpt, part)
}

/// Seals a document: its kind, name and body.
pub(super) fn seal_document(document: &Document, key: &SealingKey) -> Vec<u8> {
    let mut plain = vec![number::document_number(document.kind)];
    pack_if(&mut plain, document.name.as_deref(), pack_text);
    plain.extend_from_slice(&document.body);
    let sealed = key.seal(&context(document.tenant, SealedField::Document, document.id), &plain);
    plain.zeroize();
    sealed
}

/// Opens a document: its name and body.
pub(super) fn open_document(
    tenant: TenantId,
    kind: DocumentKind,
    id: Key,
    key: &SealingKey,
    sealed: &[u8],
) -> Result<(Option<String>, Vec<u8>), StoreError> {
    let plain = Zeroizing::new(opened(key, &context(tenant, SealedField::Document, id), sealed, "a document")?);
    let mut rest = Unpack(&plain);
    if rest.small::<u8>()? != number::document_number(kind) {
        return Err(super::vault::damaged("the kind of a document"));
    }
    Ok((unpack_if(&mut rest, unpack_text)?, rest.0.to_vec()))
}

pub(super) fn key_of(sealed: &[u8]) -> Result<KeyId, StoreError> {
    seal::key_of(sealed).map_err(|why| not_opened("a sealed value", why))
}

pub(super) fn opened(
    key: &SealingKey,
    context: &SealContext,
    sealed: &[u8],
    what: &'static str,
) -> Result<Vec<u8>, StoreError> {
    key.open(context, sealed).map_err(|why| not_opened(what, why))
}

fn not_opened(what: &'static str, why: NotOpened) -> StoreError {
    StoreError::Damaged { what, found: why.to_string() }
}

fn text(bytes: Vec<u8>) -> Result<String, StoreError> {
    String::from_utf8(bytes).map_err(|_| super::vault::damaged("a text"))
}

fn pack_text(plain: &mut Vec<u8>, text: &str) {
    pack::bytes(plain, text.as_bytes());
}

fn pack_pair(plain: &mut Vec<u8>, (left, right): &(String, String)) {
    pack_text(plain, left);
    pack_text(plain, right);
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

fn unpack_pair(rest: &mut Unpack<'_>) -> Result<(String, String), StoreError> {
    Ok((unpack_text(rest)?, unpack_text(rest)?))
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
