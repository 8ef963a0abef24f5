//! Protects a server that needs no key: only programs on this machine may call it, and no web page.
//!
//! A page in a browser on this machine can send requests to the server, directly or under a host name that an attacker
//! has made resolve to this machine (DNS rebinding). The headers `Origin` and `Host` reveal both.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use http::uri::Authority;

use crate::problem::{Code, Problem};

/// Refuses a request whose `Host` is not this machine, or whose `Origin` is another site.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |detail: &str| Err(Problem::new(Code::ForbiddenOrigin, detail));
    if !headers.get_all(HOST).iter().all(is_this_machine) {
        return refused(
            "call this server as localhost, 127.0.0.1 or [::1]: it needs no key and serves no other host name",
        );
    }
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    if !headers.get_all(ORIGIN).iter().all(|origin| origin.as_bytes().strip_prefix(b"http://") == host) {
        return refused("web pages may not call this server, because it needs no key; call it from a program");
    }
    Ok(())
}

fn is_this_machine(host: &HeaderValue) -> bool {
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(host: &str, origin: &str) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in [(HOST, host), (ORIGIN, origin)].into_iter().filter(|(_, value)| !value.is_empty()) {
            headers.insert(name, value.parse().expect("a header's value"));
        }
        check(&headers).is_ok()
    }

    #[test]
    fn only_names_of_this_machine_are_served() {
        for host in ["localhost", "LOCALHOST:8400", "127.0.0.1", "127.1.2.3:8400", "[::1]:8400", "[::1]"] {
            assert!(passes(host, ""), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8400", "10.0.0.1", "0.0.0.0:8400", "127.0.0.1.evil", "a b"]
        {
            assert!(!passes(host, ""), "{host}");
        }
    }

    #[test]
    fn only_pages_of_this_server_may_call() {
        assert!(passes("localhost:8400", "http://localhost:8400"));
        for origin in
            ["null", "https://evil.example", "http://localhost:3000", "https://localhost:8400", "localhost:8400"]
        {
            assert!(!passes("localhost:8400", origin), "{origin}");
        }
        assert!(!passes("", "http://localhost:8400"));
    }
}
