//! Exporting all data about a subject (L5). It is read part by part, so that only one part is in memory at a time.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{DeliveryId, EndpointId, MessageId, TenantId, Timestamp};
use posthaste_store::{
    ApiKeyRef, DeliveryRecord, Endpoint, EndpointSelector, ExportRequest, ListOrder, Message, Name, Store, StoreError,
};

use crate::{Clock, Engine};

/// Endpoints of the subject in one part.
const ENDPOINTS: u32 = 500;
const MESSAGES: u32 = 64;
/// Deliveries in one part, each with the beginnings of its receivers' answers: at most 1 KiB an attempt.
const DELIVERIES: u32 = 50;

#[derive(Clone, Debug, PartialEq)]
pub enum Exported {
    Endpoint(Arc<Endpoint>),
    Message(Arc<Message>),
    Delivery {
        shown: DeliveryRecord,
        accepted_at: Timestamp,
        /// The beginnings of receivers' answers, by the attempt's number: they may repeat what was sent.
        excerpts: Vec<(u16, Bytes)>,
    },
}

/// An export under way. [`Engine::export`] begins it, [`Engine::exported`] reads its parts.
#[derive(Debug)]
pub struct Export {
    tenant: TenantId,
    subject: String,
    at: At,
    /// Messages that were looked up and are still to come, in reverse order.
    waiting: Vec<MessageId>,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Endpoints(Option<EndpointId>),
    Messages(Option<MessageId>),
    /// In the deliveries of this message, which was accepted at this time, after this delivery.
    Deliveries(MessageId, Timestamp, Option<DeliveryId>),
    End,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Begins an export. Once this returns, the journal has an entry of it.
    pub async fn export(&self, tenant: TenantId, subject: String, by: Option<ApiKeyRef>) -> Result<Export, StoreError> {
        let asked = ExportRequest { tenant, subject: subject.clone(), at: self.clock.now(), by };
        self.store.note_export(self.session, asked).await?;
        Ok(Export { tenant, subject, at: At::Endpoints(None), waiting: Vec::new() })
    }

    /// The next part of an export, oldest first: endpoints, then each message with its deliveries; `None` at the end. A
    /// part may be empty.
    pub async fn exported(&self, export: &mut Export) -> Result<Option<Vec<Exported>>, StoreError> {
        match export.at {
            At::End => Ok(None),
            At::Endpoints(after) => self.endpoints_of(export, after).await.map(Some),
            At::Messages(after) => self.message_of(export, after).await,
            At::Deliveries(message, accepted_at, after) => {
                let shown = self.store.deliveries(message, after, self.clock.now(), DELIVERIES).await?;
                let last = shown.last().map(|shown| shown.delivery.id);
                let is_full = shown.len() == DELIVERIES as usize;
                let more = At::Deliveries(message, accepted_at, last);
                export.at = if is_full { more } else { At::Messages(Some(message)) };
                let mut part = Vec::with_capacity(shown.len());
                for shown in shown {
                    let excerpts = self.store.excerpts(shown.delivery.id).await?;
                    part.push(Exported::Delivery { shown, accepted_at, excerpts });
                }
                Ok(Some(part))
            }
        }
    }

    async fn endpoints_of(&self, export: &mut Export, after: Option<EndpointId>) -> Result<Vec<Exported>, StoreError> {
        let theirs = EndpointSelector::for_subject(export.subject.clone());
        let page = self.store.endpoints_matching(export.tenant, theirs, after, ENDPOINTS).await?;
        export.at = page.next.map_or(At::Messages(None), |next| At::Endpoints(Some(next)));
        Ok(page.endpoints.into_iter().map(Exported::Endpoint).collect())
    }

    async fn message_of(
        &self,
        export: &mut Export,
        after: Option<MessageId>,
    ) -> Result<Option<Vec<Exported>>, StoreError> {
        if export.waiting.is_empty() {
            let name = Name::Subject(export.subject.clone());
            let page = self.store.named(export.tenant, name, ListOrder::OldestFirst, after, MESSAGES).await?;
            export.waiting = page.messages;
            export.waiting.reverse();
            if export.waiting.is_empty() {
                // A page may be short and still have a next.
                export.at = page.next.map_or(At::End, |next| At::Messages(Some(next)));
            }
        }
        let Some(next) = export.waiting.pop() else { return Ok(Some(Vec::new())) };
        // It may have been deleted or erased since it was looked up.
        let message = self.store.message(next).await?;
        export.at = match &message {
            Some(message) => At::Deliveries(next, message.at, None),
            None => At::Messages(Some(next)),
        };
        Ok(Some(message.into_iter().map(Exported::Message).collect()))
    }
}
