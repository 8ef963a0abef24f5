//! Why a target is refused: one closed list of stable codes.
//!
//! A refusal never contains the address that was found: a tenant must not learn about the server's network from it.

macro_rules! refusals {
    ($($name:ident $code:literal $message:literal;)*) => {
        /// Why a target is refused. `Display` says what is wrong and the way out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
        pub enum Refusal {
            $(#[doc = $message] #[error($message)] $name,)*
        }

        impl Refusal {
            #[cfg(test)]
            const ALL: &'static [Refusal] = &[$(Self::$name,)*];

            /// Its stable code, in the API and in an attempt's detail.
            pub const fn code(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }
        }
    };
}

refusals! {
    UrlControlChar "url_control_char" "the URL holds a control character or surrounding white space; remove it";
    UrlBackslash "url_backslash" "the URL holds a backslash, which parsers read differently; use %5C in a path";
    UrlScheme "url_scheme" "the URL's scheme is not allowed; use https (http only where targets.allow_http is set)";
    UrlSyntax "url_syntax" "not a URL of the form https://host/path";
    UrlTooLong "url_too_long" "the URL is longer than 4096 bytes; send what is long in a header, or use a shorter one";
    UrlUserinfo "url_userinfo" "the URL holds credentials before an @; send them in a header instead";
    UrlFragment "url_fragment" "the URL holds a fragment, which is never sent; remove the # and what follows";
    UrlPort "url_port" "the URL's port is not allowed; use 80, 443 or one from 1024 that belongs to no other protocol";
    HostZoneId "host_zone_id" "the host has a zone id, which means something on this machine alone; use a name";
    HostIpAmbiguous "host_ip_ambiguous" "the host is an IPv4 address in an unusual notation; write it as a.b.c.d";
    HostNameSyntax "host_name_syntax" "the host is not a valid name: labels of letters, digits and hyphens, each up to 63 characters";
    HostSpecialName "host_special_name" "the host is a name reserved for local, private or metadata services; use a public name";
    HostSingleLabel "host_single_label" "the host is a single label, which search domains would expand; use a full name";
    HostDenied "host_denied" "the operator denies this host (targets.deny_hosts)";
    HostIpLiteral "host_ip_literal" "the host is an address and the operator takes names alone; use a name or set targets.allow_ip_literals";
    IpUnspecified "ip_unspecified" "the address is the unspecified one, which reaches this machine; use a public address";
    IpThisNetwork "ip_this_network" "the address is in 0.0.0.0/8, which names no other machine; use a public address";
    IpLoopback "ip_loopback" "the address is a loopback one; add its network to targets.allow_networks to permit it";
    IpPrivate "ip_private" "the address is private; add its network to targets.allow_networks to permit it";
    IpCgnat "ip_cgnat" "the address is in the carriers' shared space; add its network to targets.allow_networks to permit it";
    IpLinkLocal "ip_link_local" "the address is link-local; list it alone, as a /32 or /128, in targets.allow_networks to permit it";
    IpMetadata "ip_metadata" "the address is a cloud's metadata service; use a public address, or list it alone in targets.allow_networks";
    IpIetfProtocol "ip_ietf_protocol" "the address is reserved for protocol assignments; use a public address";
    IpDocumentation "ip_documentation" "the address is reserved for documentation; use a public address";
    IpBenchmark "ip_benchmark" "the address is reserved for benchmarks; use a public address";
    IpMulticast "ip_multicast" "the address is a multicast group; use a public address";
    IpBroadcast "ip_broadcast" "the address is the broadcast one; use a public address";
    IpReserved "ip_reserved" "the address is reserved; use a public address";
    IpSpecial "ip_special" "the address belongs to a special-purpose service; use a public address";
    IpUla "ip_ula" "the address is a unique local one; add its network to targets.allow_networks to permit it";
    IpSiteLocal "ip_site_local" "the address is site-local; use a public address";
    IpV4Mapped "ip_v4_mapped" "the address is an IPv4 address mapped into IPv6; write the IPv4 address itself";
    IpV4Compat "ip_v4_compat" "the address embeds an IPv4 address; write the IPv4 address itself";
    IpV4Translated "ip_v4_translated" "the address embeds a translated IPv4 address; write the IPv4 address itself";
    IpNat64 "ip_nat64" "the address goes through NAT64; write the IPv4 address itself";
    Ip6to4 "ip_6to4" "the address is a 6to4 one; write the IPv4 address itself";
    IpTeredo "ip_teredo" "the address is a Teredo one; use a public address";
    IpDiscard "ip_discard" "the address is discard-only; use a public address";
    IpOrchid "ip_orchid" "the address is an ORCHID, which is not routed; use a public address";
    IpSrv6 "ip_srv6" "the address is a segment-routing identifier; use a public address";
    IpSelf "ip_self" "the address and port are this server's own; deliveries would loop";
    DnsMixed "dns_mixed" "the name has allowed and refused addresses; remove the refused ones from its records";
    DnsTooMany "dns_too_many" "the name has more than 64 addresses; publish fewer";
    DnsNotFound "dns_not_found" "the name does not exist or has no address; publish an A or AAAA record";
    DnsFailed "dns_failed" "the resolver failed or timed out; it is asked again at the next attempt";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_refusals_share_a_code() {
        let mut codes: Vec<_> = Refusal::ALL.iter().map(|refusal| refusal.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Refusal::ALL.len());
    }

    #[test]
    fn a_message_is_a_lower_case_line_without_a_final_dot() {
        for refusal in Refusal::ALL {
            let message = refusal.to_string();
            assert!(message.starts_with(char::is_lowercase), "{message}");
            assert!(!message.ends_with('.'), "{message}");
        }
    }
}
