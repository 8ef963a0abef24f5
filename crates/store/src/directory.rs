//! Where messages go: the endpoints of each tenant.

use std::sync::Arc;

use posthaste_core::{EndpointId, LaneId, TenantId};

use crate::{
    AuditStamp, Endpoint, EndpointPut, EndpointSelector, Idempotency, ListOrder, MatchedEndpoints, Session, StoreFuture,
};

/// Maximum number of endpoints of one tenant that are listed at once and cached in memory, about 10 MiB.
pub const ENDPOINTS_LISTED_MAX: usize = 10_000;

pub trait Directory: Send + Sync + 'static {
    /// Creates an endpoint (version 0) or changes the one whose version is one less. Does nothing if the same call was
    /// made before under the same idempotency key.
    fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> impl StoreFuture<EndpointPut>;

    /// Changes an endpoint like [`put_endpoint`](Self::put_endpoint), and records in the journal that its secret was
    /// rotated.
    fn rotate_secret(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> impl StoreFuture<EndpointPut>;

    /// Records in the journal that a caller is about to be shown an endpoint's secrets.
    fn note_secret_shown(
        &self,
        session: Session,
        endpoint: EndpointId,
        tenant: TenantId,
        act: AuditStamp,
    ) -> impl StoreFuture<()>;

    /// One endpoint, including a deleted one.
    fn endpoint(&self, id: EndpointId) -> impl StoreFuture<Option<Arc<Endpoint>>>;

    /// The endpoint that has this lane, including a deleted one.
    fn endpoint_of_lane(&self, lane: LaneId) -> impl StoreFuture<Option<Arc<Endpoint>>>;

    fn endpoint_named(&self, tenant: TenantId, uid: String) -> impl StoreFuture<Option<EndpointId>>;

    /// A tenant's endpoints by id, without deleted ones: at most [`ENDPOINTS_LISTED_MAX`], plus one more if there are
    /// more than that. Cached in memory, because every accept needs them.
    fn endpoints(&self, tenant: TenantId) -> impl StoreFuture<Arc<Vec<Arc<Endpoint>>>>;

    /// A page of a tenant's endpoints that match a selector, by id, after `after`, without deleted ones. The number of
    /// rows read depends on the subjects and tags named and on `limit`, not on how many endpoints the tenant has. If
    /// both subjects and tags are named, `limit` counts the endpoints of the subjects before tags are compared.
    fn endpoints_matching(
        &self,
        tenant: TenantId,
        selector: EndpointSelector,
        after: Option<EndpointId>,
        limit: u32,
    ) -> impl StoreFuture<MatchedEndpoints>;

    /// Endpoints of one tenant or of all tenants, after `after`, without deleted ones. For lists.
    fn list_endpoints(
        &self,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<EndpointId>,
        limit: u32,
    ) -> impl StoreFuture<Vec<Arc<Endpoint>>>;

    /// A tenant's endpoints by id, after `after`. For callers that page through all of them, however many there are.
    fn endpoints_after(
        &self,
        tenant: TenantId,
        after: Option<EndpointId>,
        limit: u32,
    ) -> impl StoreFuture<Vec<Arc<Endpoint>>>;
}
