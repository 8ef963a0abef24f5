//! How much of an answer is read, and how much of it is kept: the same over HTTP/1.1 and HTTP/2.

use std::ops::ControlFlow;

use bytes::BytesMut;
use posthaste_store::EXCERPT_BYTES_MAX;

/// The most bytes of an answer's head, without interim answers.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most header fields of an answer.
pub(super) const FIELDS_MAX: usize = 100;
/// The most bytes read of an answer's body: reading further would cost more than a new connection.
pub const BODY_BYTES_READ_MAX: usize = 64 * 1024;
/// The most interim answers, such as `100 Continue` and `103 Early Hints`, before the answer.
pub const INTERIM_ANSWERS_MAX: usize = 8;

/// The excerpt of a body, and how much of the body was read.
#[derive(Debug, Default)]
pub(super) struct BodyExcerpt {
    pub(super) excerpt: BytesMut,
    pub(super) read: usize,
    /// Whether an excerpt is kept at all: only of failures.
    pub(super) wanted: bool,
}

impl BodyExcerpt {
    pub(super) fn take(&mut self, data: &[u8]) -> ControlFlow<()> {
        self.read += data.len();
        if self.wanted {
            let room = EXCERPT_BYTES_MAX - self.excerpt.len();
            self.excerpt.extend_from_slice(&data[..data.len().min(room)]);
        }
        if self.read > BODY_BYTES_READ_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
