//! API keys: operator keys and tenant keys are created, listed and revoked.

use posthaste_core::{TenantId, Timestamp};
use posthaste_crypto::api_key::{ApiKeyScope, ApiKeyScopes, KeyClass};
use posthaste_crypto::digest::{self, Digest};
use posthaste_engine::accept::IdempotencyRequest;
use posthaste_engine::access::{Grant, KnownKey, MadeKey, NewKey};
use posthaste_store::{ApiKeyRef, FirstAnswer, OPERATOR};

use super::caller::{OPERATE, SECRETS};
use super::idempotency::{first_answer, keyed_body, made};
use super::prelude::*;
use super::tenants;
use crate::value::{self, ShortText};

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/keys", "Creates an operator key")
        .scope("operate")
        .optional_body::<NewKeyBody>()
        .keyed()
        .returns::<KeyView>(201, "The key. This is the only answer that shows it."),
    Operation::get("/v1/keys", "Lists operator keys")
        .scope("operate")
        .list(&[])
        .returns::<ListPage<KeyView>>(200, "A page of keys."),
    Operation::new("DELETE", "/v1/keys/{id}", "Revokes an operator key")
        .scope("operate")
        .no_answer(204, "The key is revoked."),
    Operation::post("/v1/tenants/{t}/keys", "Creates a key of a tenant")
        .scope("secrets")
        .optional_body::<NewKeyBody>()
        .keyed()
        .returns::<KeyView>(201, "The key. This is the only answer that shows it."),
    Operation::get("/v1/tenants/{t}/keys", "Lists the keys of a tenant")
        .scope("secrets")
        .list(&[])
        .returns::<ListPage<KeyView>>(200, "A page of keys."),
    Operation::new("DELETE", "/v1/tenants/{t}/keys/{id}", "Revokes a key of a tenant")
        .scope("secrets")
        .no_answer(204, "The key is revoked."),
];

/// `POST /v1/keys`: an operator key.
pub async fn make_operators<S: Store, C: Clock>(
    State(api): ApiRef<S, C>,
    caller: Caller<OPERATE>,
    request: Request,
) -> Answer {
    make(&api, &caller, None, request).await
}

pub async fn make_tenants<S: Store, C: Clock>(
    ByName { api, caller, name }: ByName<S, C, SECRETS>,
    request: Request,
) -> Answer {
    let tenant = managed_tenant(&api, &caller, &name).await?;
    make(&api, &caller, Some(tenant), request).await
}

pub async fn list_operators<S: Store, C: Clock>(State(api): ApiRef<S, C>, _: Caller<OPERATE>, uri: Uri) -> Answer {
    list(&api, None, &uri).await
}

pub async fn list_tenants<S: Store, C: Clock>(ByName { api, caller, name }: ByName<S, C, SECRETS>, uri: Uri) -> Answer {
    list(&api, Some(managed_tenant(&api, &caller, &name).await?), &uri).await
}

pub async fn revoke_operators<S: Store, C: Clock>(
    ByName { api, caller, name }: ByName<S, C, OPERATE>,
    _: EmptyBody,
) -> Answer {
    revoke(&api, None, &name, caller.by()).await
}

pub async fn revoke_tenants<S: Store, C: Clock>(
    ByName { api, caller, name: (tenant, key) }: ByName<S, C, SECRETS, (String, String)>,
    _: EmptyBody,
) -> Answer {
    revoke(&api, Some(managed_tenant(&api, &caller, &tenant).await?), &key, caller.by()).await
}

/// Finds the tenant in the path, if the caller may manage its keys.
async fn managed_tenant<S: Store, C: Clock>(
    api: &Api<S, C>,
    caller: &Caller<SECRETS>,
    named: &str,
) -> Result<TenantId> {
    let unknown = || Problem::no_such("tenant");
    let tenant = tenants::found(api, named).await?;
    let own = if caller.is_operator() { None } else { Some(caller.tenant_id()?) };
    if own.is_none_or(|own| own == tenant.id) { Ok(tenant.id) } else { Err(unknown()) }
}

async fn make<S: Store, C: Clock, const SCOPE: u8>(
    api: &Api<S, C>,
    caller: &Caller<SCOPE>,
    tenant: Option<TenantId>,
    request: Request,
) -> Answer {
    let (body, key) = keyed_body(tenant.unwrap_or(OPERATOR), request).await?;
    let class = if tenant.is_some() { KeyClass::Tenant } else { KeyClass::Operator };
    let new = granted(parse(&body, tenant, api.engine.now())?, caller.grant(class))?;
    // With the maker's key in the digest, the answer, which shows an API key, is repeated only to the caller that got
    // it first.
    let by = caller.by();
    let own = |digest: Digest| digest::hash_parts(&[&digest, &by.map_or(0, |by| by.key.raw()).to_be_bytes()]);
    let once = key.map(|(key, digest)| IdempotencyRequest { key, digest: own(digest), answer });
    Ok(made(api.engine.make_key(new, once, by).await?, |made| {
        tracing::info!(key = made.public_id, "made an API key");
        answer(made)
    }))
}

fn answer(made: &MadeKey) -> FirstAnswer {
    let mut shown = KeyView::of(made.public_id.clone(), &made.known);
    shown.key = Some(made.key.reveal());
    first_answer(StatusCode::CREATED, &shown)
}

async fn list<S: Store, C: Clock>(api: &Api<S, C>, tenant: Option<TenantId>, uri: &Uri) -> Answer {
    let query = ListQuery::of(uri, &[])?;
    let list = query.list(api, tenant.map_or(Visibility::All, Visibility::Tenant), &"keys");
    let after = query.behind(api, list)?;
    let mut found = api.engine.keys(tenant, query.order, after, query.limit + 1).await?;
    let next = query.cut(&mut found).map(|last| api.engine.cursor_behind(list, last.id));
    let id = |known: &KnownKey| api.engine.public_id(IdKind::Key, known.id, known.at);
    Ok(page(uri, found.iter().map(|known| KeyView::of(id(known), known)).collect(), next))
}

async fn revoke<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: Option<TenantId>,
    id: &str,
    by: Option<ApiKeyRef>,
) -> Answer {
    let unknown = || Problem::no_such("key");
    let (key, _) = api.engine.opened(IdKind::Key, id).ok_or_else(unknown)?;
    if !api.engine.revoke_key(tenant, key, by).await? {
        return Err(unknown());
    }
    tracing::info!(key = id, "revoked an API key");
    Ok(super::nothing())
}

#[derive(Serialize, JsonSchema)]
struct KeyView<'a> {
    id: String,
    /// The first characters of the key.
    prefix: &'a str,
    scopes: Vec<ApiWord<ApiKeyScope>>,
    description: Option<&'a str>,
    created_at: ApiTime,
    expires_at: Option<ApiTime>,
    /// The key itself, only in the answer that creates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

impl<'a> KeyView<'a> {
    fn of(id: String, known: &'a KnownKey) -> Self {
        Self {
            id,
            prefix: &known.public_prefix,
            scopes: known.scopes.iter().map(ApiWord).collect(),
            description: known.description.as_deref(),
            created_at: ApiTime(known.at),
            expires_at: known.expires.map(ApiTime),
            key: None,
        }
    }
}

body! {
    struct NewKeyBody as "NewKey" {
        /// What the key allows; at most the scopes of the key that creates it, which are the default.
        scopes: optional ScopeNames,
        /// When it stops working; no later than the key that creates it, which is the default.
        expires_at: optional ApiTime,
        /// A note, such as what the key is for.
        description: optional ShortText<256>,
    }
}

kinds! {
    /// A list of scopes. Which of them a key can have depends on its class.
    ScopeNames: Vec<String> = value::texts, as Vec<ApiWord<ApiKeyScope>>;
}

fn parse(body: &[u8], tenant: Option<TenantId>, now: Timestamp) -> Result<NewKey> {
    let mut fields = BodyObject::read_optional(body)?;
    let NewKeyBody { scopes, expires_at, description } = NewKeyBody::read(&mut fields);
    let scopes = fields.check("scopes", scopes, |names| usable_scopes(&names, tenant.is_some()));
    let expires = fields.check("expires_at", expires_at, |expires| match expires {
        past if past <= now => Err("must be in the future; leave it out for a key that does not expire".to_owned()),
        expires => Ok(expires),
    });
    fields.finish()?;
    Ok(NewKey { tenant, scopes, expires, description })
}

/// Checks a new key against what its maker may grant, which is also the default.
fn granted(new: NewKey, grant: Grant) -> Result<NewKey> {
    let scopes = new.scopes.unwrap_or(grant.scopes);
    let beyond: Vec<&str> = scopes.beyond(grant.scopes).map(ApiKeyScope::name).collect();
    if !beyond.is_empty() {
        let beyond = beyond.join(", ");
        let detail = format!("your key lacks {beyond} and cannot grant more than it has; leave that out of scopes");
        return Err(Problem::new(Code::ScopeMissing, detail));
    }
    if let (Some(wanted), Some(own)) = (new.expires, grant.expires)
        && wanted > own
    {
        let own = value::write_time(own);
        let detail =
            format!("your key expires at {own}, and a key that it makes cannot outlast it; set an earlier expires_at");
        return Err(Problem::new(Code::ScopeMissing, detail));
    }
    Ok(NewKey { scopes: Some(scopes), expires: new.expires.or(grant.expires), ..new })
}

fn usable_scopes(written: &[String], is_tenants: bool) -> Result<ApiKeyScopes, String> {
    let usable = || ApiKeyScope::ALL.into_iter().filter(|scope| !is_tenants || *scope != ApiKeyScope::Operate);
    let named = |name: &String| usable().find(|scope| scope.name() == name.as_str());
    match written.iter().map(named).collect::<Option<Vec<ApiKeyScope>>>() {
        Some(scopes) if !scopes.is_empty() => Ok(ApiKeyScopes::of(&scopes)),
        _ => Err(format!("must be one or more of {}", usable().map(ApiKeyScope::name).collect::<Vec<_>>().join(", "))),
    }
}
