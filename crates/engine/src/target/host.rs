//! Which host names may be used, independent of the addresses that they resolve to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Refusal, TargetRules};

const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Names of local, private or metadata services; refused with everything below them.
const SPECIAL_NAMES: &[&str] = &[
    "localhost",
    "localdomain",
    "local",
    "internal",
    "home.arpa",
    "invalid",
    "test",
    "onion",
    "example",
    "in-addr.arpa",
    "ip6.arpa",
    "ip6-localhost",
    "ip6-loopback",
    "metadata.goog",
    "metadata.tencentyun.com",
];

const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Checks a host name, and returns it without its trailing dot.
///
/// `written` is the host as the URL has it, `name` the result of the parser's IDNA mapping.
pub(super) fn check_name<'a>(written: &str, name: &'a str, rules: &TargetRules) -> Result<&'a str, Refusal> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if written.contains('%') || name.len() > NAME_BYTES_MAX || !name.split('.').all(is_label) {
        return Err(Refusal::HostNameSyntax);
    }
    // An operator that allows the loopback network allows this name for it as well.
    let loopback = |ip: &IpAddr| rules.allow_networks.iter().any(|network| network.contains(ip));
    if name == "localhost" && LOOPBACK.iter().any(loopback) {
        return Ok(name);
    }
    if SPECIAL_NAMES.iter().any(|special| name == *special || is_below(name, special)) {
        return Err(Refusal::HostSpecialName);
    }
    if name.contains('.') { Ok(name) } else { Err(Refusal::HostSingleLabel) }
}

/// The refusal for a host that the parser refused: an invalid name, or no host at all.
pub(super) fn unparsable(written: &str) -> Refusal {
    let is_name = written.chars().all(|c| !c.is_ascii() || c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
    if is_name { Refusal::HostNameSyntax } else { Refusal::UrlSyntax }
}

/// A host an operator names: `example.net` means that host, `*.example.net` every name below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    name: String,
    below: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is neither a host such as example.net nor a pattern such as *.example.net")]
pub struct BadHostPattern {
    pattern: String,
}

impl std::str::FromStr for HostPattern {
    type Err = BadHostPattern;

    fn from_str(pattern: &str) -> Result<Self, BadHostPattern> {
        let bad = || BadHostPattern { pattern: pattern.to_owned() };
        let (written, below) = pattern.strip_prefix("*.").map_or((pattern, false), |rest| (rest, true));
        // The parser maps case and IDNA exactly as it does for a target's host.
        let host = url::Host::parse(written).map_err(|_| bad())?.to_string();
        let name = host.strip_suffix('.').unwrap_or(&host).to_owned();
        if name.is_empty() || name.contains('*') {
            return Err(bad());
        }
        Ok(Self { name, below })
    }
}

impl HostPattern {
    /// Whether this host, a mapped name or an address in canonical form, is meant.
    pub(super) fn matches(&self, host: &str) -> bool {
        if self.below { is_below(host, &self.name) } else { host == self.name }
    }
}

fn is_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    (1..=LABEL_BYTES_MAX).contains(&bytes.len())
        && bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn is_below(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_a_name_where_the_loopback_network_is_allowed() {
        let allowing = |network: &str| TargetRules {
            allow_networks: vec![network.parse().expect("a network")],
            ..TargetRules::default()
        };
        for (network, allowed) in [("127.0.0.0/8", true), ("::1/128", true), ("10.0.0.0/8", false)] {
            let checked = check_name("localhost", "localhost", &allowing(network));
            assert_eq!(checked.is_ok(), allowed, "{network}");
        }
        assert_eq!(check_name("db.localhost", "db.localhost", &allowing("127.0.0.0/8")), Err(Refusal::HostSpecialName));
    }

    #[test]
    fn special_name_is_refused_with_everything_below_it() {
        for name in ["localhost", "a.localhost", "x.home.arpa", "metadata.goog"] {
            assert_eq!(check_name(name, name, &TargetRules::default()), Err(Refusal::HostSpecialName), "{name}");
        }
        for name in ["notlocalhost.com", "xmetadata.goog", "home.arpa.com", "example.com", "local.example.org"] {
            assert_eq!(check_name(name, name, &TargetRules::default()), Ok(name));
        }
    }

    #[test]
    fn host_pattern_matches_a_host_or_the_names_below_it() {
        let check = |pattern: &str, host: &str| pattern.parse::<HostPattern>().expect("a pattern").matches(host);
        assert!(check("example.net", "example.net"));
        assert!(!check("example.net", "a.example.net"));
        assert!(check("*.Example.NET.", "a.b.example.net"));
        assert!(!check("*.example.net", "example.net"));
        assert!(!check("*.example.net", "badexample.net"));
        assert!(check("bücher.example.com", "xn--bcher-kva.example.com"));
        assert!(check("1.1.1.1", "1.1.1.1"));
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_refused_with_its_text() {
        for pattern in ["", "*", "*.", "a.*.com", "exa mple.com", "**.example.com"] {
            let error = pattern.parse::<HostPattern>().expect_err(pattern);
            assert!(error.to_string().contains(&format!("{pattern:?}")), "{error}");
        }
    }
}
