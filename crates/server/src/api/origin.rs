//! Who may speak to a server that asks for no key: programs on this machine, and no web page.
//!
//! A browser on this machine can be made to send requests here by any page it shows, under our own
//! address or under a name that somebody made point at it. Both are told by what the browser adds.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use http::uri::Authority;

use crate::problem::{Code, Problem};

/// Lets a request on, or refuses it for where it comes from.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |detail: &str| Err(Problem::new(Code::ForbiddenOrigin, detail));
    if !headers.get_all(HOST).iter().all(is_this_machine) {
        return refused(
            "call this server as localhost, 127.0.0.1 or [::1]: it asks for no key and serves no other name",
        );
    }
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    if !headers.get_all(ORIGIN).iter().all(|origin| origin.as_bytes().strip_prefix(b"http://") == host) {
        return refused("web pages may not call this server: it asks for no key; call it from a program");
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
    fn only_a_page_of_our_own_may_call() {
        assert!(passes("localhost:8400", "http://localhost:8400"));
        for origin in
            ["null", "https://evil.example", "http://localhost:3000", "https://localhost:8400", "localhost:8400"]
        {
            assert!(!passes("localhost:8400", origin), "{origin}");
        }
        assert!(!passes("", "http://localhost:8400"));
    }
}
