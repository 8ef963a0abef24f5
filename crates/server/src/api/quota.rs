//! A tenant's quota: takes messages from it, and writes what is left into the headers of answers.

use axum::response::Response;
use http::header::{HeaderName, HeaderValue};
use posthaste_engine::tenants::{Allowance, Tenant};

use super::prelude::*;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Takes a message from a tenant's quota; `None` if it has no quota. Fails with `Retry-After` if the quota is used up.
pub(super) fn take<S: Store, C: Clock>(api: &Api<S, C>, tenant: &Tenant) -> Result<Option<Allowance>> {
    api.engine.take_from_quota(tenant).map_err(|until| {
        let wait = until.as_millis().saturating_sub(api.engine.now().as_millis()).max(0);
        let seconds = u64::try_from(wait).unwrap_or(0).div_ceil(1_000).max(1);
        let detail = format!("this tenant's quota is used up; nothing was stored; send it again in {seconds} s");
        Problem::new(Code::QuotaExceeded, detail).after(seconds)
    })
}

/// Writes what is left of a quota in the headers of the IETF draft "RateLimit header fields": `q` messages at once
/// within `w` seconds; `r` are left, and in `t` seconds all of them.
pub(super) fn tell(response: &mut Response, allowance: Option<Allowance>) {
    let Some(Allowance { quota, left, whole_in }) = allowance else { return };
    let window = quota.burst.div_ceil(quota.per_second.max(1)).max(1);
    let whole_in = whole_in.as_millis().div_ceil(1_000);
    let fields = [
        (POLICY, format!("\"messages\";q={};w={window}", quota.burst)),
        (LIMIT, format!("\"messages\";r={left};t={whole_in}")),
    ];
    for (name, text) in fields {
        if let Ok(text) = HeaderValue::try_from(text) {
            response.headers_mut().insert(name, text);
        }
    }
}
