//! Reads a request's body within limits of size and time, after parameters and headers were checked.

use std::error::Error;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::{idempotency, no_parameters};
use crate::problem::{Code, Problem};
use crate::room::NoRoom;

/// The largest request body, except a batch's.
pub const BODY_BYTES_MAX: usize = 2_000_000;
/// The largest batch.
const LINES_BYTES_MAX: usize = 8_000_000;

/// How long a body may take to arrive: enough for some megabytes over a slow line.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// The media types and the size that a body may have.
struct Form {
    /// The media types that are taken; a refusal recommends the first.
    declared: &'static [&'static str],
    bytes_max: usize,
    /// The refusal of an `Idempotency-Key` header. A route that took the header without being idempotent would mislead
    /// the caller.
    no_key: &'static str,
}

const JSON: Form = Form {
    declared: &["application/json"],
    bytes_max: BODY_BYTES_MAX,
    no_key: "Idempotency-Key is for requests that create something, which this one does not; leave it out",
};

const LINES: Form = Form {
    declared: &["application/x-ndjson", "application/json"],
    bytes_max: LINES_BYTES_MAX,
    no_key: "a batch takes no Idempotency-Key of its own; give each line its idempotency_key",
};

pub(super) async fn body(request: Request) -> Result<Bytes, Problem> {
    read(request, &JSON).await
}

pub(super) async fn lines(request: Request) -> Result<Bytes, Problem> {
    read(request, &LINES).await
}

async fn read(request: Request, form: &Form) -> Result<Bytes, Problem> {
    let (head, body) = request.into_parts();
    no_parameters(&head.uri)?;
    check_headers(&head.headers, form)?;
    // Another site's page can make a browser send a body, but only a preflight lets it declare the body as JSON.
    if !body.is_end_stream() && !head.headers.contains_key(CONTENT_TYPE) {
        return Err(not_declared(form));
    }
    let read = tokio::time::timeout(BODY_WITHIN, gathered(Limited::new(body, form.bytes_max))).await;
    match read {
        Ok(Ok(gathered)) => Ok(gathered),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Problem::new(Code::BodyTooLarge, format!("the body is larger than {} bytes", form.bytes_max)))
        }
        Ok(Err(error)) if is_no_room(error.as_ref()) => Err(Problem::overloaded()),
        Ok(Err(_)) => Err(Problem::new(Code::InvalidBody, "the body ended early; send it again")),
        Err(_) => {
            let detail = format!("the body took longer than {} s; send it again", BODY_WITHIN.as_secs());
            Err(Problem::new(Code::BodyTooSlow, detail))
        }
    }
}

/// Gathers a body into one buffer. A body of one frame is returned without a copy; of a larger one each frame is freed
/// once it is copied, so that the body is never in memory twice.
async fn gathered<B: HttpBody<Data = Bytes> + Unpin>(mut body: B) -> Result<Bytes, B::Error> {
    let length = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let Some(first) = data(&mut body).await? else { return Ok(Bytes::new()) };
    if length == Some(first.len()) {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(length.unwrap_or_default().max(first.len()));
    whole.extend_from_slice(&first);
    drop(first);
    while let Some(piece) = data(&mut body).await? {
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

/// The next data frame of a body. Trailers are ignored.
async fn data<B: HttpBody<Data = Bytes> + Unpin>(body: &mut B) -> Result<Option<Bytes>, B::Error> {
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame?.into_data() {
            return Ok(Some(piece));
        }
    }
    Ok(None)
}

fn is_no_room(error: &(dyn Error + 'static)) -> bool {
    error.is::<NoRoom>() || error.source().is_some_and(is_no_room)
}

fn check_headers(headers: &HeaderMap, form: &Form) -> Result<(), Problem> {
    if headers.get(CONTENT_TYPE).is_some_and(|declared| !is_declared(declared, form)) {
        return Err(not_declared(form));
    }
    if headers.contains_key(idempotency::KEY) {
        return Err(Problem::new(Code::InvalidIdempotencyKey, form.no_key));
    }
    Ok(())
}

fn not_declared(form: &Form) -> Problem {
    Problem::new(Code::NotJson, format!("send content-type: {}", form.declared[0]))
}

fn is_declared(declared: &HeaderValue, form: &Form) -> bool {
    let media_type = declared.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    form.declared.iter().any(|known| media_type.eq_ignore_ascii_case(known.as_bytes()))
}
