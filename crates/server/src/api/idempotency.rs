//! The `Idempotency-Key` of a request that creates something: the same request with the same key is
//! answered the same (A5).

use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use posthaste_core::id::TenantId;
use posthaste_crypto::digest::{self, Digest};
use posthaste_store::FirstAnswer;
use serde_json::value::RawValue;

use super::{body, json_bytes};
use crate::problem::{Code, Problem};
use crate::value;

pub(super) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Longer ones are no keys but something else.
const KEY_BYTES_MAX: usize = 128;

/// A body and, if the request has one, its key and what that key stands for.
pub(super) async fn keyed_body(
    tenant: TenantId,
    mut request: Request,
) -> Result<(Bytes, Option<(String, Digest)>), Problem> {
    let key = key(request.headers())?;
    request.headers_mut().remove(KEY);
    let path = request.uri().path().to_owned();
    let body = body(request).await?;
    let key = key.map(|key| (key, stands_for(tenant, &path, &body)));
    Ok((body, key))
}

/// What a key stands for: whose request it is, for what, and what it says.
pub(super) fn stands_for(tenant: TenantId, path: &str, body: &[u8]) -> Digest {
    digest::of_parts(&[&tenant.raw().to_be_bytes(), path.as_bytes(), body])
}

/// The answer to a request that was carried out before.
pub(super) fn replayed(first: FirstAnswer) -> Response {
    let status = StatusCode::from_u16(first.status).unwrap_or(StatusCode::OK);
    let mut response = json_bytes(status, first.body);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// The key, bare or in quotes.
fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut given = headers.get_all(KEY).iter();
    let Some(first) = given.next() else { return Ok(None) };
    let written = first.as_bytes();
    let bare = written.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(written);
    match std::str::from_utf8(bare) {
        Ok(key) if is_key(key) && given.next().is_none() => Ok(Some(key.to_owned())),
        _ => {
            let detail = format!("give one Idempotency-Key of 1 to {KEY_BYTES_MAX} visible ASCII characters");
            Err(Problem::new(Code::InvalidIdempotencyKey, detail))
        }
    }
}

/// The key of one line among others.
pub(super) fn key_of_line(raw: &RawValue) -> Result<String, String> {
    let key = value::text(raw)?;
    if is_key(&key) {
        Ok(key)
    } else {
        Err(format!("must be 1 to {KEY_BYTES_MAX} visible ASCII characters, no quotes"))
    }
}

fn is_key(text: &str) -> bool {
    let visible = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
    visible && (1..=KEY_BYTES_MAX).contains(&text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[&str], expected: Option<Option<&str>>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEY, HeaderValue::try_from(*value).expect("a header's value"));
        }
        assert_eq!(key(&headers).ok(), expected.map(|key| key.map(str::to_owned)), "{values:?}");
    }

    #[test]
    fn a_key_is_bare_or_quoted_and_of_a_sensible_length() {
        check(&[], Some(None));
        check(&["order-99"], Some(Some("order-99")));
        check(&["\"order-99\""], Some(Some("order-99")));
        check(&[&"k".repeat(128)], Some(Some(&"k".repeat(128))));
        for bad in ["", "\"\"", "\"", "a b", "a\"b", "\"a", &"k".repeat(129), "schlüssel"] {
            check(&[bad], None);
        }
        check(&["a", "a"], None);
    }
}
