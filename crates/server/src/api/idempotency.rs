//! Reads the `Idempotency-Key` of a request that creates something: a second request with the same key and body gets
//! the first one's answer (A5).
//!
//! The store keeps keys and answers; [`in_progress`](super::in_progress) keeps concurrent requests apart.

use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use posthaste_core::TenantId;
use posthaste_crypto::digest::{self, Digest};
use posthaste_engine::tenants::Made;
use posthaste_store::FirstAnswer;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{body, json_bytes, json_vec};
use crate::problem::{Code, Problem};
use crate::value;

pub(super) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest key that is accepted.
const KEY_BYTES_MAX: usize = 128;

/// Reads a body and, if the request has one, its key with the digest of the request.
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

/// The digest of a request that its key stands for: tenant, path and body.
pub(super) fn stands_for(tenant: TenantId, path: &str, body: &[u8]) -> Digest {
    digest::hash_parts(&[&tenant.raw().to_be_bytes(), path.as_bytes(), body])
}

/// Repeats the first answer to a request, marked with `Idempotency-Replayed`.
pub(super) fn replayed(answer: FirstAnswer) -> Response {
    let mut response = first(answer);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// The first answer to a request, which the store keeps with the request's key.
pub(super) fn first_answer(status: StatusCode, body: &impl Serialize) -> FirstAnswer {
    FirstAnswer { status: status.as_u16(), body: json_vec(body).into() }
}

/// Answers a request that made something, or repeats the first answer.
pub(super) fn made<T>(made: Made<T>, answer: impl FnOnce(&T) -> FirstAnswer) -> Response {
    match made {
        Made::Now(made) => first(answer(&made)),
        Made::Before(first) => replayed(first),
    }
}

pub(super) fn first(FirstAnswer { status, body }: FirstAnswer) -> Response {
    json_bytes(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), body)
}

/// Reads the key, with or without quotes.
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
    fn a_key_is_1_to_128_visible_characters_bare_or_quoted() {
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
