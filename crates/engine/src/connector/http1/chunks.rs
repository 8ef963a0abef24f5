//! The chunked encoding of a body: each chunk is a line with its size in hexadecimal, followed by that many bytes. The
//! trailers after the last chunk are skipped.

use bytes::{Buf, BytesMut};

use super::{ReadProgress, keep};
use crate::connector::bounds::{BodyExcerpt, HEAD_BYTES_MAX};

/// The most digits of a chunk's size.
const DIGITS_MAX: u8 = 16;

/// The position in a chunked body.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    at: At,
    /// Bytes of extensions and trailers so far: they are skipped, and bounded together.
    skipped: usize,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// In a size: its value so far, and the digits read.
    Size(u64, u8),
    /// After a size, on its line.
    Extension(u64),
    /// Between the CR and the LF that end the line of a size.
    SizeEnds(u64),
    /// In a chunk with this many bytes left.
    Data(u64),
    /// After a chunk, before the CR.
    DataEnds,
    /// After a chunk, between the CR and the LF.
    DataEnded,
    /// In a line of trailers; an empty one is the last.
    Trailer {
        is_empty: bool,
    },
    TrailerEnds {
        is_empty: bool,
    },
    End,
}

impl Default for At {
    fn default() -> Self {
        Self::Size(0, 0)
    }
}

impl Chunks {
    /// Consumes as much of the received bytes as it can.
    pub(super) fn take(&mut self, inbox: &mut BytesMut, kept: &mut BodyExcerpt) -> ReadProgress {
        loop {
            if let At::Data(left) = self.at {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(inbox.len());
                if keep(inbox, here, kept).is_break() {
                    return ReadProgress::Cut;
                }
                let left = left - here as u64;
                self.at = if left == 0 { At::DataEnds } else { At::Data(left) };
            }
            if matches!(self.at, At::End) {
                return ReadProgress::Whole;
            }
            if inbox.is_empty() {
                return ReadProgress::More;
            }
            match self.after(inbox.get_u8()) {
                Some(at) if self.skipped <= HEAD_BYTES_MAX => self.at = at,
                _ => return ReadProgress::Cut,
            }
        }
    }

    /// The position after this byte; `None` if no chunked body has it here.
    fn after(&mut self, byte: u8) -> Option<At> {
        Some(match (self.at, byte) {
            (At::Size(_, 0), b'\r' | b';' | b' ' | b'\t') => return None,
            (At::Size(size, _) | At::Extension(size), b'\r') => At::SizeEnds(size),
            (At::Size(size, _), b';' | b' ' | b'\t') => At::Extension(size),
            (At::Size(size, digits), digit) if digits < DIGITS_MAX => {
                At::Size(size << 4 | u64::from(char::from(digit).to_digit(16)?), digits + 1)
            }
            (At::Extension(size), byte) if byte != b'\n' => {
                self.skipped += 1;
                At::Extension(size)
            }
            (At::SizeEnds(0), b'\n') => At::Trailer { is_empty: true },
            (At::SizeEnds(size), b'\n') => At::Data(size),
            (At::DataEnds, b'\r') => At::DataEnded,
            (At::DataEnded, b'\n') => At::default(),
            (At::Trailer { is_empty }, b'\r') => At::TrailerEnds { is_empty },
            (At::TrailerEnds { is_empty: true }, b'\n') => At::End,
            (At::TrailerEnds { is_empty: false }, b'\n') => At::Trailer { is_empty: true },
            (At::Trailer { .. }, _) => {
                self.skipped += 1;
                At::Trailer { is_empty: false }
            }
            _ => return None,
        })
    }
}
