//! The format of HTTP/1.1: writing requests and parsing answers.
//!
//! Pure: received bytes go in, the parsed answer comes out; `exchange` has the socket. Everything in an answer is
//! bounded: the head, its fields, interim answers, chunks, trailers, the body. An ambiguous answer is read strictly,
//! and a connection whose answer was not read to a clear end is not used again.

mod chunks;

use std::io::Write;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use bytes::{Buf, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use posthaste_channels::{ChannelRequest, webhook};
use posthaste_core::Cause;

use super::bounds::{BodyExcerpt, FIELDS_MAX, HEAD_BYTES_MAX, INTERIM_ANSWERS_MAX};
use super::{ConnectionFault, ReceivedResponse};
use crate::Target;
use chunks::Chunks;

/// The header fields of an answer that are used: for framing, and for what it asks for. Others are dropped.
const READ: [HeaderName; 5] =
    [header::CONNECTION, header::CONTENT_LENGTH, header::RETRY_AFTER, header::TRANSFER_ENCODING, webhook::ASKS];

/// Writes a request's head: path and host of the target, the request's fields, and the length of its body.
pub(super) fn write_head(out: &mut Vec<u8>, request: &ChannelRequest, target: &Target) {
    let path = target.path.path_and_query().map_or("/", |path| path.as_str());
    let (ours, own) = (request.ours.lines().as_bytes(), request.own.lines().as_bytes());
    let host = target.host_field.as_bytes();
    for part in [b"POST ", path.as_bytes(), b" HTTP/1.1\r\nhost: ", host, b"\r\n", ours, own] {
        out.extend_from_slice(part);
    }
    write!(out, "content-length: {}\r\n\r\n", request.body.len()).expect("a vector takes everything");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadProgress {
    More,
    /// It was read to its end.
    Whole,
    /// Its body is longer than the bound or malformed, and reading stops. The status stands.
    Cut,
}

#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    interim: usize,
    /// Bytes of the head that were parsed before and were incomplete.
    looked: usize,
    head: Option<Head>,
    kept: BodyExcerpt,
}

#[derive(Debug)]
struct Head {
    status: StatusCode,
    headers: HeaderMap,
    framing: Framing,
    /// Whether another answer may follow this one.
    keeps_open: bool,
}

/// How the end of a body is found.
#[derive(Debug)]
enum Framing {
    Length(u64),
    Chunks(Chunks),
    UntilClosed,
}

impl ResponseReader {
    /// Consumes as much of the received bytes as it can.
    pub(super) fn take(&mut self, inbox: &mut BytesMut) -> Result<ReadProgress, ConnectionFault> {
        while self.head.is_none() {
            if !self.is_worth_a_look(inbox) {
                return Ok(ReadProgress::More);
            }
            match parse(inbox)? {
                Parsed::Incomplete => return Ok(ReadProgress::More),
                Parsed::Interim(length) => {
                    self.interim += 1;
                    if self.interim > INTERIM_ANSWERS_MAX {
                        return Err(ConnectionFault::new(Cause::ProtocolError, "interim_answers"));
                    }
                    inbox.advance(length);
                }
                Parsed::Head(head, length) => {
                    inbox.advance(length);
                    self.kept.wanted = !head.status.is_success();
                    self.head = Some(head);
                }
            }
            self.looked = 0;
        }
        let head = self.head.as_mut().expect("it was read above");
        Ok(head.framing.take(inbox, &mut self.kept))
    }

    /// Whether to parse the head now. It is parsed from its beginning each time, so when bytes come slowly, it is
    /// parsed once a line. It is always parsed at the first bytes, which show whether it is HTTP.
    fn is_worth_a_look(&mut self, inbox: &BytesMut) -> bool {
        let looked = std::mem::replace(&mut self.looked, inbox.len());
        !inbox.is_empty() && (looked == 0 || inbox.len() >= HEAD_BYTES_MAX || inbox[looked..].contains(&b'\n'))
    }

    /// The connection has ended, cleanly or not: the final progress of the answer, or `None` without a head.
    pub(super) fn end(
        &mut self,
        inbox: &mut BytesMut,
        is_clean: bool,
    ) -> Result<Option<ReadProgress>, ConnectionFault> {
        // Parsed a last time, including a line that is cut off.
        self.looked = 0;
        let end = self.take(inbox)?;
        let is_all =
            |head: &Head| is_clean && matches!(head.framing, Framing::UntilClosed) && end == ReadProgress::More;
        Ok(self.head.as_ref().map(|head| if is_all(head) { ReadProgress::Whole } else { end }))
    }

    /// The answer, and whether its connection may carry another. `None` before its head is there.
    pub(super) fn into_answer(self, end: ReadProgress) -> Option<(ReceivedResponse, bool)> {
        let Head { status, headers, keeps_open, .. } = self.head?;
        let is_whole = end == ReadProgress::Whole;
        // A 205 has no body by definition: after one that has, the connection is not used again.
        let is_odd = status == StatusCode::RESET_CONTENT && self.kept.read > 0;
        let excerpt = self.kept.excerpt.freeze();
        Some((ReceivedResponse { status, headers, excerpt, cut: !is_whole }, is_whole && keeps_open && !is_odd))
    }
}

/// What the received bytes begin with.
enum Parsed {
    Incomplete,
    /// An interim answer of this many bytes; another answer follows.
    Interim(usize),
    /// The head of the answer, and its bytes.
    Head(Head, usize),
}

fn parse(inbox: &[u8]) -> Result<Parsed, ConnectionFault> {
    let most = &inbox[..inbox.len().min(HEAD_BYTES_MAX)];
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut answer = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut answer, most, &mut fields);
    let length = match parsed {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if most.len() < HEAD_BYTES_MAX => return Ok(Parsed::Incomplete),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(ConnectionFault::plain(Cause::ResponseHeadTooLarge));
        }
        Err(_) => return Err(NOT_HTTP),
    };
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(NOT_HTTP)?;
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Parsed::Interim(length));
    }
    if !(200..=599).contains(&status.as_u16()) {
        return Err(ConnectionFault::new(Cause::ProtocolError, "status"));
    }
    let mut headers = HeaderMap::new();
    for field in answer.headers.iter() {
        let value = HeaderValue::from_bytes(field.value).map_err(|_| NOT_HTTP)?;
        if let Some(name) = READ.iter().find(|name| name.as_str().eq_ignore_ascii_case(field.name)) {
            headers.append(name, value);
        }
    }
    let is_old = answer.version == Some(0);
    let framing = Framing::of(status, &headers, is_old)?;
    let keeps_open = !matches!(framing, Framing::UntilClosed) && keeps_open(&headers, is_old);
    Ok(Parsed::Head(Head { status, headers, framing, keeps_open }, length))
}

const NOT_HTTP: ConnectionFault = ConnectionFault::plain(Cause::ProtocolError);

/// Whether the receiver leaves the connection open: with HTTP/1.1 unless it sends `close`, with HTTP/1.0 only if it
/// sends `keep-alive`.
fn keeps_open(headers: &HeaderMap, is_old: bool) -> bool {
    let has_token = |word: &str| {
        let lists = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
        lists.flat_map(|list| list.split(',')).any(|token| token.trim().eq_ignore_ascii_case(word))
    };
    !has_token("close") && (!is_old || has_token("keep-alive"))
}

impl Framing {
    fn of(status: StatusCode, headers: &HeaderMap, is_old: bool) -> Result<Self, ConnectionFault> {
        let encoding = headers.get_all(header::TRANSFER_ENCODING).iter().next_back();
        let length = length(headers)?;
        match (encoding, length) {
            (Some(_), Some(_)) => Err(ConnectionFault::new(Cause::ProtocolError, "two_lengths")),
            (Some(_), None) if is_old => Err(NOT_HTTP),
            _ if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => Ok(Self::Length(0)),
            (Some(encoding), None) if is_chunked(encoding) => Ok(Self::Chunks(Chunks::default())),
            (None, Some(length)) => Ok(Self::Length(length)),
            (Some(_) | None, None) => Ok(Self::UntilClosed),
        }
    }

    fn take(&mut self, inbox: &mut BytesMut, kept: &mut BodyExcerpt) -> ReadProgress {
        match self {
            Self::Chunks(chunks) => chunks.take(inbox, kept),
            Self::UntilClosed => {
                let all = inbox.len();
                if keep(inbox, all, kept).is_break() { ReadProgress::Cut } else { ReadProgress::More }
            }
            Self::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(inbox.len());
                *left -= here as u64;
                if keep(inbox, here, kept).is_break() {
                    ReadProgress::Cut
                } else if *left == 0 {
                    ReadProgress::Whole
                } else {
                    ReadProgress::More
                }
            }
        }
    }
}

/// Consumes `length` received bytes of a body, and keeps their excerpt.
fn keep(inbox: &mut BytesMut, length: usize, kept: &mut BodyExcerpt) -> ControlFlow<()> {
    let flow = kept.take(&inbox[..length]);
    inbox.advance(length);
    flow
}

/// The value of the length fields; an error if they differ, or are not numbers.
fn length(headers: &HeaderMap) -> Result<Option<u64>, ConnectionFault> {
    let mut found = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        let is_number = !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_digit);
        let length = value.to_str().ok().filter(|_| is_number).and_then(|digits| digits.parse::<u64>().ok());
        let length = length.ok_or(NOT_HTTP)?;
        if found.is_some_and(|before| before != length) {
            return Err(NOT_HTTP);
        }
        found = Some(length);
    }
    Ok(found)
}

/// Whether `chunked` is the last transfer encoding.
fn is_chunked(encoding: &HeaderValue) -> bool {
    let last = encoding.as_bytes().rsplit(|byte| *byte == b',').next().unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case(b"chunked")
}

#[cfg(test)]
mod tests;
