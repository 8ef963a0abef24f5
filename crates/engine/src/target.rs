//! Where a delivery may go: the guard against server-side request forgery (L1).
//!
//! [`Target::parse`] checks a URL's text and an address written in it; [`check_addresses`] checks
//! the addresses of a name, and the [connector](crate::connector) connects to no others.
//! A [`Target`] can only be made of a text that passed. The checks run in one fixed order, so that a
//! URL with several faults always gets the same [`Refusal`].

mod address;
mod host;
mod refusal;
mod text;

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::{HeaderValue, Uri};
use ipnet::IpNet;
use url::Url;

pub use address::{ADDRESSES_MAX, check_addresses};
pub use host::{BadHostPattern, HostPattern};
pub use refusal::Refusal;
pub use text::DENY_PORTS;

use text::Text;

/// What the operator allows and denies; tenants cannot change it.
#[derive(Clone, Debug)]
pub struct TargetRules {
    /// `targets.allow_http`: allows plain http in addition to https.
    pub allow_http: bool,
    /// `targets.allow_networks`: addresses that are allowed even if they are private or special. Metadata services and
    /// the like are allowed only by an entry that is their address alone.
    pub allow_networks: Vec<IpNet>,
    /// `targets.deny_hosts`: hosts that are never contacted, even in an allowed network.
    pub deny_hosts: Vec<HostPattern>,
    /// `targets.allow_ip_literals`: whether a URL may name an address instead of a host.
    pub allow_ip_literals: bool,
    /// `targets.deny_ports`: ports from 1024 on that are never contacted.
    pub deny_ports: Vec<u16>,
    /// The addresses that this server listens on: a delivery to them would loop.
    pub own_listen: Vec<SocketAddr>,
    /// Returns the addresses of this machine's network interfaces. A server that listens on every address is reached at
    /// each of them.
    pub own_addresses: fn() -> Vec<IpAddr>,
}

impl Default for TargetRules {
    fn default() -> Self {
        Self {
            allow_http: false,
            allow_networks: Vec::new(),
            deny_hosts: Vec::new(),
            allow_ip_literals: true,
            deny_ports: DENY_PORTS.to_vec(),
            own_listen: Vec::new(),
            own_addresses,
        }
    }
}

/// The addresses of this machine now: interfaces come and go while a server runs.
fn own_addresses() -> Vec<IpAddr> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    interfaces.iter().map(if_addrs::Interface::ip).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UrlScheme {
    /// Without encryption.
    Http,
    Https,
}

impl UrlScheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The host of a target: a name that is looked up, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// In ASCII, lower case, without a trailing dot.
    Name(String),
    Address(IpAddr),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Address(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

/// Scheme, host and port; targets of the same origin share connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub scheme: UrlScheme,
    pub host: Host,
    /// The port, also where the URL leaves it out.
    pub port: u16,
}

impl Origin {
    /// Parses an origin such as `https://example.com:443`; the usual port may be left out. Target rules are not
    /// applied.
    pub fn parse(raw: &str) -> Option<Self> {
        let url = Url::parse(raw).ok()?;
        let scheme = match url.scheme() {
            "https" => UrlScheme::Https,
            "http" => UrlScheme::Http,
            _ => return None,
        };
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        let has_no_credentials = url.username().is_empty() && url.password().is_none();
        let host = match url.host()? {
            url::Host::Domain(name) => Host::Name(name.strip_suffix('.').unwrap_or(name).to_owned()),
            url::Host::Ipv4(ip) => Host::Address(IpAddr::V4(ip)),
            url::Host::Ipv6(ip) => Host::Address(IpAddr::V6(ip)),
        };
        let port = url.port().unwrap_or(scheme.default_port());
        (is_bare && has_no_credentials).then_some(Self { scheme, host, port })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme.name(), self.host, self.port)
    }
}

/// A URL whose text passed the checks. The addresses of its host are checked at each connect.
///
/// Its `Debug` form shows the origin alone, since paths and queries can hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    origin: Origin,
    /// The value of the request's `Host` header.
    pub(crate) host_field: HeaderValue,
    pub(crate) path: Uri,
    pub(crate) url: Uri,
}

impl Target {
    /// Checks a URL's text, and the address in it if it has one.
    pub fn parse(raw: &str, rules: &TargetRules) -> Result<Self, Refusal> {
        let text = Text::split(raw, rules)?;
        let url = match Url::parse(&without_zone(raw, &text)) {
            Err(url::ParseError::IdnaError) => Err(host::unparsable(text.host)),
            Err(_) => Err(Refusal::UrlSyntax),
            Ok(url) => Ok(url),
        };
        if url == Err(Refusal::UrlSyntax) {
            return Err(Refusal::UrlSyntax);
        }
        if text.has_userinfo {
            return Err(Refusal::UrlUserinfo);
        }
        if raw.contains('#') {
            return Err(Refusal::UrlFragment);
        }
        let port = text.port(rules)?;
        if text.zone().is_some() {
            return Err(Refusal::HostZoneId);
        }
        let url = url?;
        let host = check_host(&url, &text, port, rules)?;
        Self::build(Origin { scheme: text.scheme, host, port }, &url)
    }

    fn build(origin: Origin, url: &Url) -> Result<Self, Refusal> {
        let authority = match url.port() {
            Some(port) => format!("{}:{port}", origin.host),
            None => origin.host.to_string(),
        };
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let scheme = origin.scheme.name();
        let host_field = HeaderValue::try_from(&authority).map_err(|_| Refusal::HostNameSyntax)?;
        Ok(Self {
            host_field,
            url: Uri::try_from(format!("{scheme}://{authority}{path}")).map_err(|_| Refusal::UrlSyntax)?,
            path: Uri::try_from(path).map_err(|_| Refusal::UrlSyntax)?,
            origin,
        })
    }

    /// Its origin; targets of the same origin share connections.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The text it was parsed from, with the host in canonical form.
    pub fn rewritten(&self, raw: String) -> String {
        let host = self.origin.host.to_string();
        let from = raw.find("://").map_or(0, |at| at + 3);
        let end = raw[from..].find(['/', '?', '#']).map_or(raw.len(), |at| from + at);
        let written = text::split_port(&raw[from..end]).0;
        if written.eq_ignore_ascii_case(&host) {
            return raw;
        }
        format!("{}{host}{}", &raw[..from], &raw[from + written.len()..])
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.origin)
    }
}

/// The URL without a zone id: the parser would fail on one, but it has a refusal code of its own.
fn without_zone<'a>(raw: &'a str, text: &Text<'_>) -> Cow<'a, str> {
    match text.zone() {
        Some(zone) => Cow::Owned(raw.replacen(zone, "", 1)),
        None => Cow::Borrowed(raw),
    }
}

fn check_host(url: &Url, text: &Text<'_>, port: u16, rules: &TargetRules) -> Result<Host, Refusal> {
    let address = match url.host().ok_or(Refusal::UrlSyntax)? {
        url::Host::Ipv4(ip) if text.host != ip.to_string() => return Err(Refusal::HostIpAmbiguous),
        url::Host::Ipv4(ip) => IpAddr::V4(ip),
        url::Host::Ipv6(ip) => IpAddr::V6(ip),
        url::Host::Domain(name) => {
            let name = host::check_name(text.host, name, rules)?;
            deny(name, rules)?;
            return Ok(Host::Name(name.to_owned()));
        }
    };
    deny(&Host::Address(address).to_string(), rules)?;
    if !rules.allow_ip_literals {
        return Err(Refusal::HostIpLiteral);
    }
    address::check_address(address, port, rules)?;
    Ok(Host::Address(address))
}

fn deny(host: &str, rules: &TargetRules) -> Result<(), Refusal> {
    let is_denied = rules.deny_hosts.iter().any(|pattern| pattern.matches(host));
    if is_denied { Err(Refusal::HostDenied) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn http_too() -> TargetRules {
        TargetRules { allow_http: true, ..TargetRules::default() }
    }

    fn check(raw: &str, origin: &str, host_field: &str, path: &str) {
        let target = Target::parse(raw, &http_too()).expect(raw);
        assert_eq!(target.origin().to_string(), origin);
        assert_eq!(target.host_field, host_field);
        assert_eq!(target.path.to_string(), path);
    }

    #[test]
    fn origin_has_one_canonical_form() {
        for (written, origin) in [
            ("https://Example.COM", Some("https://example.com:443")),
            ("https://example.com.:443/", Some("https://example.com:443")),
            ("http://example.com:8080", Some("http://example.com:8080")),
            ("https://b\u{fc}cher.example", Some("https://xn--bcher-kva.example:443")),
            ("https://[2606:4700:4700:0::1111]:8443", Some("https://[2606:4700:4700::1111]:8443")),
            ("http://127.0.0.1:9", Some("http://127.0.0.1:9")),
            ("https://example.com/hook", None),
            ("https://me@example.com", None),
            ("ftp://example.com", None),
            ("example.com", None),
        ] {
            assert_eq!(Origin::parse(written).map(|origin| origin.to_string()).as_deref(), origin, "{written}");
        }
    }

    #[test]
    fn rewritten_changes_the_host_alone() {
        for (raw, expected) in [
            ("https://Example.COM/A?b", "https://Example.COM/A?b"),
            ("https://b\u{fc}cher.example.com./\u{fc}?b", "https://xn--bcher-kva.example.com/\u{fc}?b"),
            ("https://[2606:4700:4700:0::1111]:8443/x", "https://[2606:4700:4700::1111]:8443/x"),
            ("https://s.example.com.:8443", "https://s.example.com:8443"),
        ] {
            let target = Target::parse(raw, &http_too()).expect(raw);
            assert_eq!(target.rewritten(raw.to_owned()), expected);
        }
    }

    #[test]
    fn a_target_knows_its_origin_its_host_field_and_its_path() {
        check("https://Example.COM", "https://example.com:443", "example.com", "/");
        check("https://example.com:443/a/../b?c=d e", "https://example.com:443", "example.com", "/b?c=d%20e");
        check("http://example.com:8080/?", "http://example.com:8080", "example.com:8080", "/?");
        check(
            "https://bücher.example.com./x",
            "https://xn--bcher-kva.example.com:443",
            "xn--bcher-kva.example.com",
            "/x",
        );
        check(
            "https://[2606:4700:4700:0::1111]:8443/",
            "https://[2606:4700:4700::1111]:8443",
            "[2606:4700:4700::1111]:8443",
            "/",
        );
    }

    #[test]
    fn url_with_several_faults_gets_the_code_of_the_first_check() {
        let codes = [
            (" gopher:\\\\u@h#", Refusal::UrlControlChar),
            ("gopher:\\\\u@h#", Refusal::UrlBackslash),
            ("gopher://u@[::1#", Refusal::UrlScheme),
            ("http://u@[::1#", Refusal::UrlSyntax),
            ("http://u@[fe80::1%eth0]:22/#", Refusal::UrlUserinfo),
            ("http://[fe80::1%eth0]:22/#", Refusal::UrlFragment),
            ("http://[fe80::1%eth0]:22/", Refusal::UrlPort),
            ("http://u@٣٢٣٢٢٣٥٧٧٧/", Refusal::UrlUserinfo),
            ("http://[fe80::1%eth0]/", Refusal::HostZoneId),
        ];
        for (raw, refusal) in codes {
            assert_eq!(Target::parse(raw, &http_too()).expect_err(raw), refusal, "{raw}");
        }
    }

    #[test]
    fn a_denied_host_stays_denied_in_an_allowed_network() {
        let rules = TargetRules {
            allow_networks: vec!["127.0.0.0/8".parse().expect("a network")],
            deny_hosts: vec!["127.0.0.1".parse().expect("a pattern")],
            ..TargetRules::default()
        };
        assert_eq!(Target::parse("https://127.0.0.1/", &rules), Err(Refusal::HostDenied));
        assert!(Target::parse("https://127.0.0.2/", &rules).is_ok());
    }

    #[test]
    fn a_url_above_the_limit_is_refused() {
        let url = |bytes: usize| format!("https://example.com/{}", "a".repeat(bytes - 20));
        assert!(Target::parse(&url(text::URL_BYTES_MAX), &http_too()).is_ok());
        assert_eq!(Target::parse(&url(text::URL_BYTES_MAX + 1), &http_too()), Err(Refusal::UrlTooLong));
    }

    #[test]
    fn printing_a_target_shows_neither_path_nor_query() {
        let target = Target::parse("https://example.com/secret?token=hush", &http_too()).expect("a public name");
        assert_eq!(format!("{target:?}"), "Target(https://example.com:443)");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_guard_panic(raw in ".{0,40}", host in "[\\[\\]:%.0-9a-fxA-F@/?#*_-]{0,24}") {
            let _ = Target::parse(&raw, &http_too());
            let _ = Target::parse(&format!("http://{host}"), &http_too());
            let _ = Target::parse(&format!("https://{raw}/"), &http_too());
        }

        #[test]
        fn an_allowed_name_is_plain_ascii_with_a_dot(host in "\\PC{1,12}\\.\\PC{1,6}") {
            if let Ok(target) = Target::parse(&format!("https://{host}/"), &http_too())
                && let Host::Name(name) = &target.origin().host
            {
                prop_assert!(name.contains('.') && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-')));
            }
        }
    }
}
