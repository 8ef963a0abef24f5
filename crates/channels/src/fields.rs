//! The headers of a request as HTTP/1.1 writes them: one line each, in one allocation.
//!
//! Every attempt has about ten headers, which are read once and in order: a map would be built, hashed and dropped each
//! time for nothing. Invariant: each header in [`Fields`] is one line of printable ASCII, and none is a header that the
//! connection sets: the target, the length of the body, or the use of the connection.

use std::fmt;

use http::header::{self, HeaderName};

/// Headers that the connection sets, or that HTTP/2 forbids.
const OF_THE_CONNECTION: [HeaderName; 7] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Headers, in the order in which they are written. Values may be credentials: `Debug` does not print them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fields {
    /// `name: value` and a line end, for each header.
    lines: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadField {
    #[error("the value holds a character that is not printable ASCII")]
    Value,
    #[error("the name belongs to the connection")]
    Name,
}

impl Fields {
    /// No headers, with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { lines: String::with_capacity(bytes) }
    }

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

    /// All headers as they are written to the connection.
    pub fn lines(&self) -> &str {
        &self.lines
    }

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
    fn headers_are_lines_in_the_order_added() {
        let mut fields = Fields::default();
        fields.push(&TEAM, "a: b").expect("a value");
        fields.push(&header::AUTHORIZATION, "").expect("a value");
        assert_eq!(fields.lines(), "x-team: a: b\r\nauthorization: \r\n");
        assert_eq!(fields.iter().collect::<Vec<_>>(), [("x-team", "a: b"), ("authorization", "")]);
    }

    #[test]
    fn headers_of_the_connection_are_refused() {
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
        fn an_accepted_value_is_one_line_and_reads_back_the_same(value in "[\t -~]{0,12}|(?s).{0,3}") {
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
