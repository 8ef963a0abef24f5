//! How much of an answer is read, and how much of that is kept: the same over HTTP/1.1 and HTTP/2.

use std::ops::ControlFlow;

use bytes::BytesMut;
use posthaste_store::EXCERPT_BYTES_MAX;

/// Of an answer's head, interim answers apart.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Of an answer's head.
pub(super) const FIELDS_MAX: usize = 100;
/// Of an answer's body: reading on would cost more than a new connection.
pub const BODY_BYTES_READ_MAX: usize = 64 * 1024;
/// Of `100 Continue`, `103 Early Hints` and the like before the answer.
pub const INTERIM_ANSWERS_MAX: usize = 8;

/// What is kept of a body.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) excerpt: BytesMut,
    pub(super) read: usize,
    pub(super) wanted: bool,
}

impl Kept {
    pub(super) fn take(&mut self, data: &[u8]) -> ControlFlow<()> {
        self.read += data.len();
        if self.wanted {
            let room = EXCERPT_BYTES_MAX - self.excerpt.len();
            self.excerpt.extend_from_slice(&data[..data.len().min(room)]);
        }
        match self.read > BODY_BYTES_READ_MAX {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
