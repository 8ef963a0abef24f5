//! Where messages go: the endpoints of each tenant.

use std::future::Future;
use std::sync::Arc;

use posthaste_core::id::{EndpointId, LaneId, TenantId};

use crate::StoreError;
use crate::row::{Act, Endpoint, EndpointPut, EndpointSelector, Idempotency, ListOrder, MatchedEndpoints, Session};

/// Endpoints of one tenant that are listed at once, and kept in memory: about 10 MiB.
pub const ENDPOINTS_LISTED_MAX: usize = 10_000;

/// Remembers endpoints.
pub trait Directory: Send + Sync + 'static {
    /// Makes an endpoint, whose version is 0, or changes the one of the version before; unless this was done
    /// before under the same key.
    fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: Act,
    ) -> impl Future<Output = Result<EndpointPut, StoreError>> + Send;

    /// Changes an endpoint in the same way, whose newest secret is another from now on.
    fn rotate_secret(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: Act,
    ) -> impl Future<Output = Result<EndpointPut, StoreError>> + Send;

    /// Notes that somebody is about to see an endpoint's secrets.
    fn note_secret_shown(
        &self,
        session: Session,
        endpoint: EndpointId,
        tenant: TenantId,
        act: Act,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// One endpoint, also one that was deleted.
    fn endpoint(&self, id: EndpointId) -> impl Future<Output = Result<Option<Arc<Endpoint>>, StoreError>> + Send;

    /// The endpoint that has this lane, also one that was deleted.
    fn endpoint_of_lane(&self, lane: LaneId) -> impl Future<Output = Result<Option<Arc<Endpoint>>, StoreError>> + Send;

    /// Which endpoint of a tenant has this uid.
    fn endpoint_named(
        &self,
        tenant: TenantId,
        uid: String,
    ) -> impl Future<Output = Result<Option<EndpointId>, StoreError>> + Send;

    /// A tenant's endpoints by id, without those that were deleted: the first [`ENDPOINTS_LISTED_MAX`] and one more, where there are
    /// more. Kept in memory, since every accept asks for them.
    fn endpoints(&self, tenant: TenantId) -> impl Future<Output = Result<Arc<Vec<Arc<Endpoint>>>, StoreError>> + Send;

    /// A page of a tenant's endpoints that a selector means, from behind one, without those that were deleted. Reads
    /// in proportion to the subjects and tags that are named and to `limit`, however many endpoints the tenant has.
    /// Where both are named, `limit` counts the endpoints of the subjects, before tags are compared.
    fn endpoints_matching(
        &self,
        tenant: TenantId,
        selector: EndpointSelector,
        after: Option<EndpointId>,
        limit: u32,
    ) -> impl Future<Output = Result<MatchedEndpoints, StoreError>> + Send;

    /// Endpoints of a tenant or of everybody, from behind one, without those that were deleted: for lists.
    fn list_endpoints(
        &self,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<EndpointId>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Arc<Endpoint>>, StoreError>> + Send;

    /// A tenant's by id, from behind one: for whoever walks all of them, however many.
    fn endpoints_after(
        &self,
        tenant: TenantId,
        after: Option<EndpointId>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Arc<Endpoint>>, StoreError>> + Send;
}
