//! Authenticates and authorises callers: which scopes the API key has, and which tenant the request is about.
//!
//! A handler takes a [`Caller`] of the scope that its route needs, so that it never runs for a request without it.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use posthaste_core::TenantId;
use posthaste_crypto::api_key::{ApiKeyScope, Denied, KeyClass};
use posthaste_engine::access::{Grant, KnownKey, NotAdmitted};
use posthaste_engine::tenants::Tenant;
use posthaste_store::ApiKeyRef;

use super::endpoint_fields::Sight;
use super::prelude::*;
use crate::room::{BodyPlace, RoomHolder};

pub(super) const TENANT: HeaderName = HeaderName::from_static("posthaste-tenant");

/// Whether callers need an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Every caller needs a key.
    Locked,
    /// No caller needs a key, and a request without one may do everything: for `serve --dev` on one's own machine.
    Open,
}

/// The scopes as const parameters of [`Caller`].
pub(crate) const SEND: u8 = ApiKeyScope::Send as u8;
pub(crate) const READ: u8 = ApiKeyScope::Read as u8;
pub(crate) const MANAGE: u8 = ApiKeyScope::Manage as u8;
pub(crate) const REPLAY: u8 = ApiKeyScope::Replay as u8;
pub(crate) const SECRETS: u8 = ApiKeyScope::Secrets as u8;
pub(crate) const PRIVACY: u8 = ApiKeyScope::Privacy as u8;
pub(crate) const OPERATE: u8 = ApiKeyScope::Operate as u8;

/// Added to a scope for routes about the caller's own tenant: a tenant key needs the scope, an operator key `operate`.
const OWN: u8 = 0x80;
pub(crate) const READ_OWN: u8 = OWN | READ;
pub(crate) const MANAGE_OWN: u8 = OWN | MANAGE;

/// A caller whose key has this scope.
#[derive(Debug)]
pub struct Caller<const SCOPE: u8> {
    /// The key it presented; `None` if it presented none and the server needs none.
    key: Option<Arc<KnownKey>>,
    /// The tenant of the request: the key's own, the one an operator named, or the default one without a key.
    tenant: Option<Arc<Tenant>>,
    /// Whether the header `Posthaste-Tenant` was sent.
    is_named: bool,
}

impl<const SCOPE: u8> Caller<SCOPE> {
    const NEEDS: ApiKeyScope = ApiKeyScope::ALL[(SCOPE & !OWN) as usize];

    /// The tenant of the request. Fails with `tenant_required` for an operator that named none.
    pub(crate) fn tenant(&self) -> Result<&Arc<Tenant>> {
        self.tenant.as_ref().ok_or_else(|| {
            Problem::new(Code::TenantRequired, "name the tenant: send the header Posthaste-Tenant with its id or uid")
        })
    }

    /// What the request covers on an operator route: the key's own tenant; for an operator the tenant in
    /// `Posthaste-Tenant`, or all tenants without that header. The default tenant of a request without a key does not
    /// count as named.
    pub(crate) fn asks_for(&self) -> Visibility {
        if self.is_named || !self.is_operator() { self.sees() } else { Visibility::All }
    }

    pub(crate) fn tenant_id(&self) -> Result<TenantId> {
        Ok(self.tenant()?.id)
    }

    /// What the caller may read: its tenant's data, or all data for an operator that named no tenant.
    pub(crate) fn sees(&self) -> Visibility {
        self.tenant.as_ref().map_or(Visibility::All, |tenant| Visibility::Tenant(tenant.id))
    }

    pub(crate) fn may(&self, scope: ApiKeyScope) -> Result<()> {
        self.key.as_ref().map_or(Ok(()), |key| key.allows(scope)).map_err(denied)
    }

    /// The most that a key created by this caller may have; everything if the caller needs no key.
    pub(super) fn grant(&self, class: KeyClass) -> Grant {
        self.key.as_ref().map_or_else(|| Grant::all(class), |key| key.grant(class))
    }

    /// How much of an endpoint's URL the caller sees: the origin with an operator key, else the whole URL.
    pub(super) fn sight(&self) -> Sight {
        match &self.key {
            Some(key) if key.tenant.is_none() => Sight::Origin,
            _ => Sight::Whole,
        }
    }

    /// The key for the audit trail; `None` for a caller without a key.
    pub(super) fn by(&self) -> Option<ApiKeyRef> {
        self.key.as_ref().map(|key| ApiKeyRef { key: key.id, made: key.at })
    }

    /// Whether the caller has an operator key, or needs no key.
    pub(crate) fn is_operator(&self) -> bool {
        self.key.as_ref().is_none_or(|key| key.tenant.is_none())
    }
}

impl<S: Store, C: Clock, const SCOPE: u8> FromRequestParts<Arc<Api<S, C>>> for Caller<SCOPE> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api<S, C>>) -> Result<Self> {
        let headers = &parts.headers;
        let key = match (headers.get(AUTHORIZATION), api.door) {
            (None, Door::Open) => None,
            (presented, _) => Some(admitted(api, presented).await?),
        };
        if let Some(key) = &key {
            let is_operators = SCOPE & OWN != 0 && key.tenant.is_none();
            key.allows(if is_operators { ApiKeyScope::Operate } else { Self::NEEDS }).map_err(denied)?;
        }
        let tenant = match key.as_ref().and_then(|key| key.tenant) {
            Some(own) => Some(own_tenant(api, own, headers).await?),
            None => named_tenant(api, headers, key.is_none()).await?,
        };
        let is_named = headers.contains_key(TENANT);
        if let Some(place) = parts.extensions.get::<BodyPlace>() {
            let tenant = tenant.as_ref().map(|tenant| tenant.id);
            place.belongs_to(RoomHolder { tenant, key: key.as_ref().map(|key| key.id) });
        }
        Ok(Self { key, tenant, is_named })
    }
}

/// Admits the key in an `Authorization` header.
async fn admitted<S: Store, C: Clock>(api: &Api<S, C>, presented: Option<&HeaderValue>) -> Result<Arc<KnownKey>> {
    let Some(presented) = presented else {
        return Err(Problem::new(Code::Unauthorized, "send your API key as Authorization: Bearer ph_…"));
    };
    let text = presented.to_str().ok().and_then(|text| text.split_once(' '));
    let Some((_, key)) = text.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
        let detail = "Authorization holds no bearer key; send your API key as Authorization: Bearer ph_…";
        return Err(Problem::new(Code::Unauthorized, detail));
    };
    match api.engine.admit(key.trim()).await {
        Ok(known) => Ok(known),
        Err(NotAdmitted::Denied(denial)) => Err(denied(denial)),
        Err(NotAdmitted::Store(error)) => Err(error.into()),
    }
}

fn denied(denial: Denied) -> Problem {
    let code = match denial {
        Denied::Wrong | Denied::Expired => Code::Unauthorized,
        Denied::ScopeMissing(_) => Code::ScopeMissing,
    };
    Problem::new(code, denial.to_string())
}

/// The tenant of a tenant key. `Posthaste-Tenant` may only name that tenant; another tenant is answered like an unknown
/// one.
async fn own_tenant<S: Store, C: Clock>(api: &Api<S, C>, own: TenantId, headers: &HeaderMap) -> Result<Arc<Tenant>> {
    // A key can be cached for a moment after its tenant was erased.
    let tenant = api.engine.tenant(own).await?.ok_or_else(|| denied(Denied::Wrong))?;
    let is_own = |named: &HeaderValue| {
        named.to_str().is_ok_and(|named| tenant.uid.as_deref() == Some(named) || tenant_id(api, named) == Some(own))
    };
    if headers.get_all(TENANT).iter().all(is_own) { Ok(tenant) } else { Err(unknown()) }
}

/// The tenant that `Posthaste-Tenant` names; without the header the default tenant if `falls_back`, else `None`.
async fn named_tenant<S: Store, C: Clock>(
    api: &Api<S, C>,
    headers: &HeaderMap,
    falls_back: bool,
) -> Result<Option<Arc<Tenant>>> {
    let mut named = headers.get_all(TENANT).iter();
    match (named.next(), named.next()) {
        (None, _) if falls_back => Ok(Some(api.engine.default_tenant().await?)),
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(Problem::new(Code::InvalidParameter, "name one tenant in Posthaste-Tenant")),
        (Some(named), None) => {
            let tenant = find_tenant(api, named.to_str().unwrap_or_default()).await?;
            tenant.map(Some).ok_or_else(unknown)
        }
    }
}

fn unknown() -> Problem {
    Problem::new(Code::NotFound, "there is no tenant with the id or uid in Posthaste-Tenant")
}

fn tenant_id<S: Store, C: Clock>(api: &Api<S, C>, named: &str) -> Option<TenantId> {
    api.engine.opened(IdKind::Tenant, named).map(|(key, _)| TenantId(key))
}

pub(super) async fn find_tenant<S: Store, C: Clock>(api: &Api<S, C>, named: &str) -> Result<Option<Arc<Tenant>>> {
    if let Some(id) = tenant_id(api, named)
        && let Some(tenant) = api.engine.tenant(id).await?
    {
        return Ok(Some(tenant));
    }
    Ok(api.engine.tenant_named(named).await?)
}
