//! Crockford's base 32, in lower case. Texts sort like their values, and each value has exactly one text.
//!
//! Only for values of 22 and 32 bytes: with four leading padding bits, which are zero, their bits fill whole digits.

/// Crockford's digits: without `i`, `l`, `o` and `u`, which are easily misread.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const PADDING_BITS: u32 = 4;

/// The number of digits for a value of `bytes` bytes.
pub(crate) const fn digits(bytes: usize) -> usize {
    let bits = bytes * 8 + PADDING_BITS as usize;
    assert!(bits.is_multiple_of(5), "no whole number of digits");
    bits / 5
}

pub(crate) fn push<const BYTES: usize>(value: &[u8; BYTES], text: &mut String) {
    const { digits(BYTES) };
    let mut bits: u32 = 0;
    let mut held = PADDING_BITS;
    for byte in value {
        bits = bits << 8 | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            text.push(char::from(DIGITS[(bits >> held & 31) as usize]));
        }
    }
}

/// Decodes a text. It must have exactly the right number of digits and zero padding bits.
pub(crate) fn parse<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let text = text.as_bytes();
    if text.len() != const { digits(BYTES) } {
        return None;
    }
    let first = digit_value(text[0])?;
    if first > 1 {
        return None;
    }
    let mut value = [0; BYTES];
    let mut filled = 0;
    let mut bits = u32::from(first);
    let mut held = 5 - PADDING_BITS;
    for digit in &text[1..] {
        bits = bits << 5 | u32::from(digit_value(*digit)?);
        held += 5;
        if held >= 8 {
            held -= 8;
            value[filled] = (bits >> held).to_le_bytes()[0];
            filled += 1;
        }
    }
    Some(value)
}

fn digit_value(digit: u8) -> Option<u8> {
    const NONE: u8 = u8::MAX;
    const VALUES: [u8; 256] = {
        let mut values = [NONE; 256];
        let mut value: u8 = 0;
        while (value as usize) < DIGITS.len() {
            values[DIGITS[value as usize] as usize] = value;
            value += 1;
        }
        values
    };
    Some(VALUES[usize::from(digit)]).filter(|value| *value != NONE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: &[u8; 32]) -> String {
        let mut text = String::new();
        push(value, &mut text);
        text
    }

    #[test]
    fn the_smallest_and_the_largest_value_have_52_digits() {
        assert_eq!(written(&[0; 32]), "0".repeat(52));
        assert_eq!(written(&[0xff; 32]), format!("1{}", "z".repeat(51)));
    }

    proptest! {
        #[test]
        fn value_is_read_from_exactly_one_text(value: [u8; 32], other in "[0-9a-zA-Z]{50,54}") {
            prop_assert_eq!(parse(&written(&value)), Some(value));
            if let Some(parsed) = parse::<32>(&other) {
                prop_assert_eq!(written(&parsed), other);
            }
        }

        #[test]
        fn digits_are_in_the_order_of_values(one: [u8; 32], other: [u8; 32]) {
            prop_assert_eq!(one.cmp(&other), written(&one).cmp(&written(&other)));
        }
    }
}
