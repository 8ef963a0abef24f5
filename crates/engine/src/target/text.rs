//! Checks of a URL's raw text, before a parser interprets it.
//!
//! A lenient parser drops tabs, turns backslashes into slashes and reads `0x7f.1` as an address.
//! Another parser reads the same text differently, and an attacker can use the difference. So the
//! text is checked first, and the parser's result is compared with it. Read next: `host`.

use super::{Refusal, TargetRules, UrlScheme};

/// The longest URL: many receivers refuse longer ones, and every endpoint in memory holds its URL.
pub(super) const URL_BYTES_MAX: usize = 4096;

/// Ports above 1023 of other protocols and of services without passwords, which could take a request for a command. The
/// settings file has each with its reason.
pub const DENY_PORTS: &[u16] = &[
    1433, 1521, 1719, 1720, 1723, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 3659, 4045, 4190, 5060, 5061, 5432,
    5672, 5984, 6000, 6379, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 9042, 9092, 9200, 9300, 10080, 10250,
    11211, 27017,
];

/// The pieces of `scheme://[userinfo@]host[:port]…` as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text<'a> {
    pub(super) scheme: UrlScheme,
    pub(super) has_userinfo: bool,
    pub(super) host: &'a str,
    port: &'a str,
}

impl<'a> Text<'a> {
    /// Checks characters and scheme, then splits the authority.
    pub(super) fn split(raw: &'a str, rules: &TargetRules) -> Result<Self, Refusal> {
        if raw.trim() != raw || raw.contains(char::is_control) {
            return Err(Refusal::UrlControlChar);
        }
        if raw.contains('\\') {
            return Err(Refusal::UrlBackslash);
        }
        let (scheme, rest) = scheme(raw, rules)?;
        if raw.len() > URL_BYTES_MAX {
            return Err(Refusal::UrlTooLong);
        }
        let rest = rest.strip_prefix("//").ok_or(Refusal::UrlSyntax)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (userinfo, host_and_port) = match authority.rsplit_once('@') {
            Some((userinfo, rest)) => (Some(userinfo), rest),
            None => (None, authority),
        };
        let (host, port) = split_port(host_and_port);
        if host.is_empty() {
            return Err(Refusal::UrlSyntax);
        }
        Ok(Self { scheme, has_userinfo: userinfo.is_some(), host, port })
    }

    /// The port, explicit or by the scheme, if it is allowed.
    pub(super) fn port(&self, rules: &TargetRules) -> Result<u16, Refusal> {
        let port = match self.port {
            "" => self.scheme.default_port(),
            digits => digits.parse().map_err(|_| Refusal::UrlSyntax)?,
        };
        let allowed = matches!(port, 80 | 443 | 1024..) && !rules.deny_ports.contains(&port);
        allowed.then_some(port).ok_or(Refusal::UrlPort)
    }

    /// The zone id of a bracketed address, with its `%`.
    pub(super) fn zone(&self) -> Option<&'a str> {
        let inside = self.host.strip_prefix('[')?.strip_suffix(']')?;
        inside.find('%').map(|at| &inside[at..])
    }
}

fn scheme<'a>(raw: &'a str, rules: &TargetRules) -> Result<(UrlScheme, &'a str), Refusal> {
    let (name, rest) = raw.split_once(':').ok_or(Refusal::UrlSyntax)?;
    let is_scheme = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    match name.to_ascii_lowercase().as_str() {
        "https" => Ok((UrlScheme::Https, rest)),
        "http" if rules.allow_http => Ok((UrlScheme::Http, rest)),
        _ if is_scheme => Err(Refusal::UrlScheme),
        _ => Err(Refusal::UrlSyntax),
    }
}

/// Host and port text; a bracketed address keeps its brackets.
pub(super) fn split_port(text: &str) -> (&str, &str) {
    let host_end = match text.rfind(']') {
        Some(bracket) if text.starts_with('[') => bracket + 1,
        _ => text.rfind(':').unwrap_or(text.len()),
    };
    let (host, port) = text.split_at(host_end);
    (host, port.strip_prefix(':').unwrap_or(port))
}
