//! Reads a request's body within limits of size and time, after parameters and headers were checked.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{idempotency, no_parameters};
use crate::problem::{Code, Problem};
use crate::room::{BodyPlace, NoRoom};

/// The largest request body, except a batch's.
pub const BODY_BYTES_MAX: usize = 2_000_000;
/// The largest batch.
const LINES_BYTES_MAX: usize = 8_000_000;

/// How often the progress of a body is checked. A body that makes too little gives its room up.
const WINDOW: Duration = Duration::from_secs(10);
/// What must arrive in each window, unless the body ends in it.
const WINDOW_BYTES_MIN: usize = 128 * 1024;
/// After so many windows a body must have ended: enough for some megabytes over a slow line.
const WINDOWS_MAX: u32 = 3;
/// The buffer of a body is at most so many times larger than what has arrived.
const TRUSTED_TIMES: usize = 16;

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
    // Refused by its declared length, before anything is read and before a `100 Continue`.
    if body.size_hint().lower() > form.bytes_max as u64 {
        return Err(too_large(form));
    }
    let place = head.extensions.get::<BodyPlace>();
    let mut arriving =
        ArrivingBody { body, whole: BytesMut::new(), window_end: Instant::now() + WINDOW, windows: 0, window_bytes: 0 };
    arriving.gathered(form, place).await
}

/// A body while it is read.
struct ArrivingBody {
    body: Body,
    whole: BytesMut,
    /// When the current window ends. The next one begins when this end is noticed: time in which the server itself
    /// stood still is not held against the sender.
    window_end: Instant,
    /// How many windows of [`WINDOW`] are over.
    windows: u32,
    /// What has come in the current one.
    window_bytes: usize,
}

impl ArrivingBody {
    /// Gathers the body into one buffer. A body of one frame is returned without a copy; of a larger one each frame is
    /// freed once it is copied, so that the body is never in memory twice.
    async fn gathered(&mut self, form: &Form, place: Option<&BodyPlace>) -> Result<Bytes, Problem> {
        let length = self.body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
        while let Some(piece) = self.next_piece().await? {
            let come = self.whole.len() + piece.len();
            if come > form.bytes_max {
                return Err(too_large(form));
            }
            if let Some(place) = place {
                place.take(piece.len() as u64).map_err(|NoRoom| Problem::overloaded())?;
            }
            if length == Some(piece.len()) {
                return Ok(piece);
            }
            // The declared length is believed once a part of it is there.
            if self.whole.capacity() < come {
                let most = length.unwrap_or_default().min(come.saturating_mul(TRUSTED_TIMES));
                self.whole.reserve(most.max(come) - self.whole.len());
            }
            self.whole.extend_from_slice(&piece);
        }
        Ok(std::mem::take(&mut self.whole).freeze())
    }

    /// The next data frame, or `None` at the end. Trailers are ignored.
    async fn next_piece(&mut self) -> Result<Option<Bytes>, Problem> {
        loop {
            match timeout_at(self.window_end, self.body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    if let Ok(piece) = frame.into_data() {
                        self.window_bytes += piece.len();
                        return Ok(Some(piece));
                    }
                }
                Ok(Some(Err(_))) => return Err(Problem::new(Code::InvalidBody, "the body ended early; send it again")),
                Err(_) => {
                    self.windows += 1;
                    self.window_end = Instant::now() + WINDOW;
                    let come = std::mem::take(&mut self.window_bytes);
                    if come < WINDOW_BYTES_MIN || self.windows >= WINDOWS_MAX {
                        return Err(too_slow());
                    }
                }
            }
        }
    }
}

fn too_large(form: &Form) -> Problem {
    Problem::new(Code::BodyTooLarge, format!("the body is larger than {} bytes", form.bytes_max))
}

fn too_slow() -> Problem {
    let (kib, window) = (WINDOW_BYTES_MIN / 1024, WINDOW.as_secs());
    let detail = format!(
        "the body came too slowly: send at least {kib} KiB in {window} s, and all of it within {} s",
        (WINDOW * WINDOWS_MAX).as_secs()
    );
    Problem::new(Code::BodyTooSlow, detail)
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

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;
    use crate::room::BodyRoom;

    /// Reads a body whose pieces of so many bytes come so far apart, and that never ends. Returns the refusal, the time
    /// it took, and the room.
    async fn refused(piece: usize, apart: Duration) -> (u16, Duration, BodyRoom) {
        let ticks = tokio::time::interval_at(Instant::now() + apart, apart);
        let pieces = stream::unfold(ticks, move |mut ticks| async move {
            ticks.tick().await;
            Some((Ok::<_, std::io::Error>(Bytes::from(vec![b' '; piece])), ticks))
        });
        let room = BodyRoom::new();
        let mut request = Request::new(Body::from_stream(pieces));
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.extensions_mut().insert(room.place());
        let began = Instant::now();
        let refused = lines(request).await.expect_err("it never ends");
        (refused.code().status().as_u16(), began.elapsed(), room)
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_comes_too_slowly_is_refused_and_gives_its_room_up() {
        for (piece, apart, seconds) in [(1, 100, 10), (1_000, 1, 10), (20_000, 1, 30)] {
            let (status, took, room) = refused(piece, Duration::from_secs(apart)).await;
            assert_eq!((status, took.as_secs()), (408, seconds), "{piece} bytes every {apart} s");
            assert_eq!(room.place().take(16_000_000), Ok(()), "{piece} bytes every {apart} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_is_not_too_slow_because_the_server_stood_still() {
        let pieces = stream::unfold(0, async move |nth| {
            match nth {
                0 => {}
                1 => tokio::time::advance(Duration::from_secs(25)).await,
                2 => _ = tokio::time::interval_at(Instant::now() + WINDOW / 2, WINDOW).tick().await,
                _ => return None,
            }
            Some((Ok::<_, std::io::Error>(Bytes::from(vec![b' '; WINDOW_BYTES_MIN])), nth + 1))
        });
        let mut request = Request::new(Body::from_stream(pieces));
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        assert_eq!(lines(request).await.map(|body| body.len()).ok(), Some(3 * WINDOW_BYTES_MIN));
    }
}
