//! Hexadecimal encoding of bytes, for text that people and other programs read.

use std::fmt::Write as _;

/// Encodes each byte as two lower-case digits.
pub fn write(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

/// Decodes `BYTES` bytes; `None` unless the text has exactly twice as many digits.
pub fn read<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    if text.len() != BYTES * 2 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_digits_are_read_back() {
        assert_eq!(write(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(read("001fff"), Some([0, 0x1f, 0xff]));
        for bad in ["", "001ff", "001fff0", "00+fff", "00 fff", "001ffg", "00é1ff"] {
            assert_eq!(read::<3>(bad), None, "{bad}");
        }
    }
}
