//! The headers of a request as HTTP/1.1 writes them, one line each in one allocation, and those that an endpoint's owner
//! adds to its requests.
//!
//! Every attempt has about ten headers, which are read once and in order: a map would be built, hashed and dropped each
//! time for nothing. Invariants: each header in [`Fields`] is one line of printable ASCII, and none is a header that the
//! connection sets: the target, the length of the body, or the use of the connection. No header in [`CustomHeaders`] can
//! replace a header of ours, change how the request is framed, or end a line. Values may be credentials: they are
//! neither printed nor part of an error.

use std::fmt;
use std::sync::Arc;

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

impl Fields {
    /// No headers, with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { lines: String::with_capacity(bytes) }
    }

    /// Adds a header and returns `true`, unless the name belongs to the connection or the value holds a character that
    /// is not printable ASCII.
    #[must_use]
    pub fn push(&mut self, name: &HeaderName, value: &str) -> bool {
        let is_printable = value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
        if OF_THE_CONNECTION.contains(name) || !is_printable {
            return false;
        }
        for part in [name.as_str(), ": ", value, "\r\n"] {
            self.lines.push_str(part);
        }
        true
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

/// The most headers of one endpoint.
pub const HEADERS_MAX: usize = 64;
/// The longest name: longer than any in use.
pub const NAME_BYTES_MAX: usize = 128;
/// The longest value: enough for a large bearer token.
pub const VALUE_BYTES_MAX: usize = 4 * 1024;
/// The most bytes of all names and values together. With our headers, half of what common servers accept.
pub const TOTAL_BYTES_MAX: usize = 8 * 1024;

/// Names that frame the request, concern the connection, describe the body or trace the attempt.
const RESERVED: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
/// The prefixes of our own headers, including future ones.
const RESERVED_PREFIXES: &[&str] = &["webhook-", "posthaste-"];

#[derive(Clone, Default, PartialEq, Eq)]
pub struct CustomHeaders(pub(crate) Arc<Fields>);

/// Why an endpoint's headers are refused. It never contains a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    #[error("an endpoint has at most {} headers; leave some out", HEADERS_MAX)]
    TooMany,
    #[error("the headers have more than {} bytes together; leave some out or shorten them", TOTAL_BYTES_MAX)]
    TooLarge,
    #[error("{name:?} is not a header name; use 1 to {} letters, digits and hyphens", NAME_BYTES_MAX)]
    Name { name: String },
    #[error("header {name} is set by the sender; choose another name")]
    Reserved { name: String },
    #[error("header {name} is given twice; give it once")]
    Twice { name: String },
    #[error("header {name}: the value holds a character that is not printable ASCII; encode it")]
    Value { name: String },
    #[error("header {name}: the value has {bytes} bytes, more than {}; shorten it", VALUE_BYTES_MAX)]
    ValueTooLong { name: String, bytes: usize },
}

impl BadHeader {
    /// The name of the refused header; `None` if the error concerns all of them.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::TooMany | Self::TooLarge => None,
            Self::Name { name }
            | Self::Reserved { name }
            | Self::Twice { name }
            | Self::Value { name }
            | Self::ValueTooLong { name, .. } => Some(name),
        }
    }
}

impl CustomHeaders {
    /// Checks names and values as the API received them. White space around a value is removed.
    pub fn parse<'a>(given: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, BadHeader> {
        let mut fields = Fields::default();
        let mut total_bytes = 0;
        for (count, (name, value)) in given.into_iter().enumerate() {
            if count == HEADERS_MAX {
                return Err(BadHeader::TooMany);
            }
            let name = parse_name(name)?;
            if fields.iter().any(|(other, _)| other == name) {
                return Err(BadHeader::Twice { name: name.to_string() });
            }
            let value = value.trim_matches([' ', '\t']);
            if value.len() > VALUE_BYTES_MAX {
                return Err(BadHeader::ValueTooLong { name: name.to_string(), bytes: value.len() });
            }
            if !fields.push(&name, value) {
                return Err(BadHeader::Value { name: name.to_string() });
            }
            total_bytes += name.as_str().len() + value.len();
            if total_bytes > TOTAL_BYTES_MAX {
                return Err(BadHeader::TooLarge);
            }
        }
        Ok(Self(Arc::new(fields)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter()
    }
}

impl fmt::Debug for CustomHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn parse_name(text: &str) -> Result<HeaderName, BadHeader> {
    let name = Some(text)
        .filter(|text| text.len() <= NAME_BYTES_MAX)
        .and_then(|text| HeaderName::from_bytes(text.as_bytes()).ok())
        .ok_or_else(|| BadHeader::Name { name: text.chars().take(NAME_BYTES_MAX).collect() })?;
    let is_reserved =
        RESERVED.contains(&name.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix));
    if is_reserved { Err(BadHeader::Reserved { name: name.to_string() }) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEAM: HeaderName = HeaderName::from_static("x-team");

    #[test]
    fn headers_are_lines_in_the_order_added() {
        let mut fields = Fields::default();
        assert!(fields.push(&TEAM, "a: b") && fields.push(&header::AUTHORIZATION, ""));
        assert_eq!(fields.lines(), "x-team: a: b\r\nauthorization: \r\n");
        assert_eq!(fields.iter().collect::<Vec<_>>(), [("x-team", "a: b"), ("authorization", "")]);
    }

    #[test]
    fn headers_of_the_connection_are_refused() {
        for name in OF_THE_CONNECTION {
            let mut fields = Fields::default();
            assert!(!fields.push(&name, "9") && fields.lines().is_empty(), "{name}");
        }
    }

    fn check(name: &str, value: &str, expected: Result<&str, BadHeader>) {
        let taken = CustomHeaders::parse([(name, value)])
            .map(|headers| headers.iter().map(|(_, value)| value.to_owned()).collect::<String>());
        assert_eq!(taken, expected.map(str::to_owned), "{name:?}: {value:?}");
    }

    #[test]
    fn an_ordinary_header_is_accepted_unchanged() {
        check("x-team", "a", Ok("a"));
        check("Authorization", "Bearer a.b:c, d", Ok("Bearer a.b:c, d"));
        check("x_odd.name!", "", Ok(""));
        check("x-team", " \ta\tb ", Ok("a\tb"));
    }

    #[test]
    fn a_name_that_could_break_the_head_is_refused() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let names =
            ["", " ", "x-a:", ":path", "x-a: b", "x a", "x-a\r\ny", "x\n", "x\0", "x-ä", "x\t", "(x)", "\"x\"", &long];
        for name in names {
            let beginning = name.chars().take(NAME_BYTES_MAX).collect();
            check(name, "a", Err(BadHeader::Name { name: beginning }));
        }
    }

    #[test]
    fn a_value_that_could_break_the_head_is_refused() {
        for value in ["a\r\nx: y", "a\n", "\r", "a\0b", "\x1b[1m", "\x7f", "ä", "a\u{a0}", "\u{2028}"] {
            check("x-team", value, Err(BadHeader::Value { name: "x-team".to_owned() }));
        }
    }

    #[test]
    fn reserved_names_are_refused_in_any_case() {
        let ours = ["webhook-id", "webhook-signature", "webhook-anything", "posthaste-attempt", "posthaste-"];
        for name in RESERVED.iter().chain(&ours) {
            let reserved = BadHeader::Reserved { name: (*name).to_owned() };
            check(name, "a", Err(reserved.clone()));
            check(&name.to_uppercase(), "a", Err(reserved));
        }
    }

    #[test]
    fn a_repeated_name_is_refused_in_any_case() {
        let refused = CustomHeaders::parse([("x-team", "a"), ("X-Team", "b")]);
        assert_eq!(refused, Err(BadHeader::Twice { name: "x-team".to_owned() }));
    }

    #[test]
    fn number_and_sizes_are_bounded() {
        let names: Vec<String> = (0..10_000).map(|n| format!("x-{n}")).collect();
        let many = |count: usize| CustomHeaders::parse(names[..count].iter().map(|name| (name.as_str(), "a")));
        assert_eq!(many(HEADERS_MAX).map(|headers| headers.iter().count()), Ok(HEADERS_MAX));
        assert_eq!(many(HEADERS_MAX + 1), Err(BadHeader::TooMany));
        assert_eq!(many(10_000), Err(BadHeader::TooMany));

        let longest = "v".repeat(VALUE_BYTES_MAX);
        check("x", &longest, Ok(&longest));
        let megabyte = "v".repeat(1_000_000);
        check("x", &megabyte, Err(BadHeader::ValueTooLong { name: "x".to_owned(), bytes: 1_000_000 }));
        assert_eq!(CustomHeaders::parse([("x", longest.as_str()), ("y", &longest)]), Err(BadHeader::TooLarge));
    }

    #[test]
    fn a_value_is_never_printed() {
        let headers = CustomHeaders::parse([("authorization", "canary-7")]).expect("a valid header");
        assert_eq!(format!("{headers:?}"), r#"["authorization"]"#);
        assert_eq!(format!("{:?}", headers.0), r#"["authorization"]"#);
        for value in ["canary\n", &"canary".repeat(1_000)] {
            let refused = CustomHeaders::parse([("authorization", value)]).expect_err("not a value");
            assert!(!format!("{refused} {refused:?}").contains("canary"));
        }
    }

    proptest! {
        #[test]
        fn an_accepted_value_is_one_line_and_reads_back_the_same(value in "[\t -~]{0,12}|(?s).{0,3}") {
            let mut fields = Fields::default();
            if fields.push(&TEAM, &value) {
                prop_assert_eq!(fields.lines().matches(['\r', '\n']).count(), 2);
                prop_assert_eq!(fields.iter().collect::<Vec<_>>(), [("x-team", value.as_str())]);
            } else {
                prop_assert_eq!(fields.lines(), "");
            }
        }

        #[test]
        fn accepted_headers_are_single_lines_and_read_back_the_same(
            fields in prop::collection::vec(("x-[a-z]{1,3}|[!-~]{1,3}|\\PC{0,3}", "[\t -~]{0,12}|(?s).{0,3}"), 0..4),
        ) {
            let given = fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            if let Ok(headers) = CustomHeaders::parse(given) {
                for (name, value) in headers.iter() {
                    prop_assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'));
                    prop_assert!(value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)));
                }
                prop_assert_eq!(CustomHeaders::parse(headers.iter()), Ok(headers.clone()));
            }
        }
    }
}
