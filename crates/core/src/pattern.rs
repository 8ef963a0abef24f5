//! Event types, and the patterns by which endpoints subscribe to them: segments joined by dots.

/// `invoice.paid` matches itself; `invoice.*` matches one or more further segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// The text of an invalid pattern or event type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadEventPattern(pub String);

impl std::fmt::Display for BadEventPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.strip_suffix(".*").unwrap_or(&self.0).len() > EVENT_TYPE_BYTES_MAX {
            return write!(f, "a pattern has at most {EVENT_TYPE_BYTES_MAX} characters before a last .*");
        }
        write!(f, "{:?} is not segments of letters, digits, - and _ joined by dots (a pattern may end in .*)", self.0)
    }
}

impl std::error::Error for BadEventPattern {}

/// The longest event type, in bytes. It is sent in a header.
pub const EVENT_TYPE_BYTES_MAX: usize = 128;

/// Whether this is a valid event type: `[A-Za-z0-9_-]` segments joined by dots.
pub fn is_event_type(text: &str) -> bool {
    let segment = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    text.len() <= EVENT_TYPE_BYTES_MAX && text.split('.').all(segment)
}

impl Pattern {
    /// Parses an event type, one that ends in `.*`, or `*` alone.
    pub fn parse(text: &str) -> Result<Self, BadEventPattern> {
        let stem = text.strip_suffix(".*").unwrap_or(text);
        if text == "*" || is_event_type(stem) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadEventPattern(text.to_owned()))
        }
    }

    pub fn matches(&self, event_type: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(stem) => event_type.len() > stem.len() && event_type.starts_with(stem),
            None => self.0 == event_type,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_one_or_more_segments() {
        let wants = |pattern: &str, event: &str| Pattern::parse(pattern).expect("a valid pattern").matches(event);
        assert!(wants("invoice.paid", "invoice.paid"));
        assert!(wants("invoice.*", "invoice.paid"));
        assert!(wants("invoice.*", "invoice.paid.late"));
        assert!(wants("*", "anything.at.all"));
        assert!(!wants("invoice.*", "invoice"));
        assert!(!wants("invoice.*", "invoices.paid"));
        assert!(!wants("invoice.paid", "invoice.paid.late"));
    }

    #[test]
    fn a_pattern_that_could_never_match_is_refused() {
        for text in ["", ".", "a..b", ".*", "a.*.b", "a*", "a b", "ä", "a.", "**", "*.a"] {
            assert_eq!(Pattern::parse(text), Err(BadEventPattern(text.to_owned())));
        }
    }
}
