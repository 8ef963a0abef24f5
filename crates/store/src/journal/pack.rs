//! The binary encoding of entries: numbers as LEB128, seven bits a byte, low bits first; each entry preceded by its
//! length. Decoding checks its input: bytes that this encoder does not write are [`StoreError::Damaged`].

use posthaste_core::Timestamp;
use posthaste_crypto::digest::Digest;

use super::Hidden;

use crate::StoreError;

/// Appends an entry, preceded by its length, and returns the offset at which the entry itself begins.
pub(crate) fn framed(bytes: &mut Vec<u8>, pack: impl FnOnce(&mut Vec<u8>)) -> usize {
    let at = bytes.len();
    bytes.push(0);
    pack(bytes);
    let length = bytes.len() - at - 1;
    // One byte is enough for the length of most entries. For longer ones the entry is shifted.
    if let Ok(short @ 0..0x80) = u8::try_from(length) {
        bytes[at] = short;
        return at + 1;
    }
    let mut written = Vec::new();
    number(&mut written, length as u64);
    let from = at + written.len();
    bytes.splice(at..=at, written);
    from
}

pub(crate) fn frames(bytes: &[u8]) -> impl Iterator<Item = Result<&[u8], StoreError>> {
    let mut rest = Unpack(bytes);
    std::iter::from_fn(move || {
        if rest.0.is_empty() {
            return None;
        }
        let frame = rest.number().and_then(|length| rest.take(usize::try_from(length).unwrap_or(usize::MAX)));
        if frame.is_err() {
            rest.0 = &[];
        }
        Some(frame)
    })
}

/// Appends a number in as few bytes as it needs.
pub(crate) fn number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Appends a time. Times before 1970, possible with a wrong clock, take ten bytes.
pub(crate) fn time(bytes: &mut Vec<u8>, at: Timestamp) {
    number(bytes, at.as_millis().cast_unsigned());
}

/// Appends bytes, preceded by their length.
pub(crate) fn bytes(bytes: &mut Vec<u8>, more: &[u8]) {
    number(bytes, more.len() as u64);
    bytes.extend_from_slice(more);
}

/// Reads the bytes of an entry; holds those not read yet.
pub(crate) struct Unpack<'b>(pub(crate) &'b [u8]);

impl<'b> Unpack<'b> {
    pub(crate) fn number(&mut self) -> Result<u64, StoreError> {
        let mut number = 0;
        for (place, byte) in self.0.iter().enumerate().take(10) {
            number |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                self.0 = &self.0[place + 1..];
                return Ok(number);
            }
        }
        Err(damaged("a number that has no end"))
    }

    /// Reads a number into a smaller type; an error if it does not fit.
    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, StoreError> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| damaged(&format!("the number {number}")))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, StoreError> {
        Ok(Timestamp::from_millis(self.number()?.cast_signed()))
    }

    pub(crate) fn digest(&mut self) -> Result<Digest, StoreError> {
        self.array()
    }

    pub(crate) fn hidden(&mut self) -> Result<Hidden, StoreError> {
        Ok(Hidden(self.array()?))
    }

    /// Reads bytes preceded by their length.
    pub(crate) fn bytes(&mut self) -> Result<&'b [u8], StoreError> {
        let length = self.small()?;
        self.take(length)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| damaged("a fingerprint that is cut off"))
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], StoreError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| damaged("an entry that is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// Fails unless every byte was read.
    pub(crate) fn end(&self) -> Result<(), StoreError> {
        if self.0.is_empty() { Ok(()) } else { Err(damaged("an entry that is too long")) }
    }
}

pub(crate) fn damaged(found: &str) -> StoreError {
    StoreError::Damaged { what: "the journal", found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_round_trip() {
        for expected in [0, 1, 127, 128, 300, 1 << 40, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            number(&mut bytes, expected);
            let mut rest = Unpack(&bytes);
            assert_eq!(rest.number().expect("a complete number"), expected);
            assert!(rest.end().is_ok());
        }
    }

    #[test]
    fn frames_of_any_length_round_trip() {
        let entries = [vec![7; 3], Vec::new(), vec![9; 127], vec![1; 128], vec![2; 20_000]];
        let mut bytes = Vec::new();
        for entry in &entries {
            let from = framed(&mut bytes, |bytes| bytes.extend(entry));
            assert_eq!(&bytes[from..], entry.as_slice());
        }
        let found: Vec<&[u8]> = frames(&bytes).collect::<Result<_, _>>().expect("complete frames");
        assert_eq!(found, entries);
    }

    #[test]
    fn truncated_bytes_are_reported_as_damage() {
        let mut bytes = Vec::new();
        framed(&mut bytes, |bytes| bytes.extend([1; 40]));
        for length in 1..bytes.len() {
            assert!(frames(&bytes[..length]).any(|frame| frame.is_err()), "{length} bytes");
        }
        assert!(Unpack(&[0x80; 11]).number().is_err());
        assert!(Unpack(&[0xff, 0x01]).small::<u8>().is_ok());
        assert!(Unpack(&[0xff, 0x02]).small::<u8>().is_err());
    }
}
