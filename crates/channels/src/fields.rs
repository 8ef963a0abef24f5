//! The fields of a request's head as HTTP/1.1 writes them: one line each, one behind the other in one piece of memory.
//!
//! Every attempt has some ten of them. A map of them would be made, hashed and thrown away each time, to be read once and
//! in order. Invariant: holding [`Fields`] proves that each is one line of printable ASCII, and that none says what the
//! connection says: where the request leads, how long its body is, how the connection is used.

use std::fmt;

use http::header::{self, HeaderName};

/// What the connection says itself, or must not be said over one of HTTP/2.
const OF_THE_CONNECTION: [HeaderName; 7] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Fields, in the order they are written in. Values may be credentials: they are not printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fields {
    /// `name: value` and the end of the line, for each.
    lines: String,
}

/// Why something is no field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadField {
    /// A line end, another control character or something outside ASCII.
    #[error("the value holds a character that is not printable ASCII")]
    Value,
    /// The connection says it.
    #[error("the name belongs to the connection")]
    Name,
}

impl Fields {
    /// None so far, and room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { lines: String::with_capacity(bytes) }
    }

    /// Adds one.
    pub fn push(&mut self, name: &HeaderName, value: &str) -> Result<(), BadField> {
        if OF_THE_CONNECTION.contains(name) {
            return Err(BadField::Name);
        }
        if !value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
            return Err(BadField::Value);
        }
        for part in [name.as_str(), ": ", value, "\r\n"] {
            self.lines.push_str(part);
        }
        Ok(())
    }

    /// As they are written.
    pub fn lines(&self) -> &str {
        &self.lines
    }

    /// Names, in lower case, and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lines.split_terminator("\r\n").filter_map(|line| line.split_once(": "))
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEAM: HeaderName = HeaderName::from_static("x-team");

    #[test]
    fn fields_are_lines_in_their_order() {
        let mut fields = Fields::default();
        fields.push(&TEAM, "a: b").expect("a value");
        fields.push(&header::AUTHORIZATION, "").expect("a value");
        assert_eq!(fields.lines(), "x-team: a: b\r\nauthorization: \r\n");
        assert_eq!(fields.iter().collect::<Vec<_>>(), [("x-team", "a: b"), ("authorization", "")]);
    }

    #[test]
    fn what_the_connection_says_is_no_field() {
        for name in OF_THE_CONNECTION {
            let mut fields = Fields::default();
            assert_eq!(fields.push(&name, "9"), Err(BadField::Name), "{name}");
            assert_eq!(fields.lines(), "");
        }
    }

    #[test]
    fn a_value_is_never_printed() {
        let mut fields = Fields::default();
        fields.push(&header::AUTHORIZATION, "canary").expect("a value");
        assert_eq!(format!("{fields:?}"), r#"["authorization"]"#);
    }

    proptest! {
        #[test]
        fn whatever_is_taken_is_one_line_that_reads_back_the_same(value in "[\t -~]{0,12}|(?s).{0,3}") {
            let mut fields = Fields::default();
            if fields.push(&TEAM, &value).is_ok() {
                prop_assert_eq!(fields.lines().matches(['\r', '\n']).count(), 2);
                prop_assert_eq!(fields.iter().collect::<Vec<_>>(), [("x-team", value.as_str())]);
            } else {
                prop_assert_eq!(fields.lines(), "");
            }
        }
    }
}
