//! Which addresses may be contacted. Pure: addresses in, a verdict out.
//!
//! Stricter than "globally reachable": IPv4 refuses every entry of the special-purpose registry,
//! multicast and the clouds' own addresses; IPv6 is an allow-list, global unicast minus its special
//! blocks; an IPv4 address embedded in IPv6 is refused, never unwrapped. Invariant: the connector
//! connects only to addresses of a list that [`check_addresses`] returned.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Refusal, TargetRules};

/// The most addresses of a name: more are an attack or a mistake, and each may cost a connect.
pub const ADDRESSES_MAX: usize = 64;

/// The addresses of one look-up, in their order, if every one of them may be contacted on this port.
///
/// One refused address refuses the set: an attacker who can add a record must not be able to choose
/// which one is connected to.
pub fn check_addresses(answers: &[IpAddr], port: u16, rules: &TargetRules) -> Result<Vec<IpAddr>, Refusal> {
    if answers.is_empty() {
        return Err(Refusal::DnsNotFound);
    }
    if answers.len() > ADDRESSES_MAX {
        return Err(Refusal::DnsTooMany);
    }
    let bad: Vec<Refusal> = answers.iter().filter_map(|ip| check_address(*ip, port, rules).err()).collect();
    // The least of several codes, so that the order of the answers does not matter.
    match bad.iter().min() {
        None => Ok(answers.to_vec()),
        Some(refusal) if bad.len() == answers.len() => Err(*refusal),
        Some(_) => Err(Refusal::DnsMixed),
    }
}

pub(super) fn check_address(ip: IpAddr, port: u16, rules: &TargetRules) -> Result<(), Refusal> {
    if let Some(refusal) = class(ip)
        && !rules.allow_networks.iter().any(|network| allows(*network, ip, refusal))
    {
        return Err(refusal);
    }
    // Also in an allowed network: a delivery to this server would loop.
    let is_ours = rules.own_listen.iter().any(|own| own.port() == port && is_own(own.ip(), ip, rules));
    if is_ours { Err(Refusal::IpSelf) } else { Ok(()) }
}

/// Whether an entry of the allow-list opens a refused address. A network that contains the address of a metadata
/// service, a link-local one or one that embeds an IPv4 address does not: an entry such as `0.0.0.0/0` is meant for
/// private networks. Such an address must be listed alone.
fn allows(network: IpNet, ip: IpAddr, refusal: Refusal) -> bool {
    let must_be_alone = matches!(
        refusal,
        Refusal::IpMetadata
            | Refusal::IpLinkLocal
            | Refusal::IpUnspecified
            | Refusal::IpV4Mapped
            | Refusal::IpV4Compat
            | Refusal::IpV4Translated
            | Refusal::IpNat64
            | Refusal::Ip6to4
            | Refusal::IpTeredo
    );
    network.contains(&ip) && (!must_be_alone || network.prefix_len() == network.max_prefix_len())
}

/// A server that listens on every address is reached through loopback and at each interface too; the unspecified
/// address reaches loopback.
fn is_own(listens: IpAddr, ip: IpAddr, rules: &TargetRules) -> bool {
    let ip = ip.to_canonical();
    listens.to_canonical() == ip
        || (ip.is_unspecified() && listens.is_loopback())
        || (listens.is_unspecified()
            && (ip.is_loopback() || ip.is_unspecified() || (rules.own_addresses)().contains(&ip)))
}

/// The refusal of an address by its block; `None` for public unicast.
fn class(ip: IpAddr) -> Option<Refusal> {
    match ip {
        IpAddr::V4(ip) => V4.iter().find(|(network, _)| network.contains(&ip)).map(|(_, refusal)| *refusal),
        IpAddr::V6(ip) => match V6.iter().find(|(network, _)| network.contains(&ip)) {
            Some((_, refusal)) => Some(*refusal),
            None if V6_GLOBAL.contains(&ip) => None,
            None => Some(Refusal::IpReserved),
        },
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(segments: [u16; 8], bits: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), bits)
}

/// The first match wins, so a narrower network stands above the one that holds it.
const V4: &[(Ipv4Net, Refusal)] = &[
    (v4(0, 0, 0, 0, 32), Refusal::IpUnspecified),
    (v4(0, 0, 0, 0, 8), Refusal::IpThisNetwork),
    (v4(10, 0, 0, 0, 8), Refusal::IpPrivate),
    (v4(100, 100, 100, 200, 32), Refusal::IpMetadata),
    (v4(100, 64, 0, 0, 10), Refusal::IpCgnat),
    (v4(127, 0, 0, 0, 8), Refusal::IpLoopback),
    (v4(168, 63, 129, 16, 32), Refusal::IpMetadata),
    (v4(169, 254, 42, 42, 32), Refusal::IpMetadata),
    (v4(169, 254, 169, 123, 32), Refusal::IpMetadata),
    (v4(169, 254, 169, 253, 32), Refusal::IpMetadata),
    (v4(169, 254, 169, 254, 32), Refusal::IpMetadata),
    (v4(169, 254, 170, 2, 32), Refusal::IpMetadata),
    (v4(169, 254, 170, 23, 32), Refusal::IpMetadata),
    (v4(169, 254, 0, 0, 16), Refusal::IpLinkLocal),
    (v4(172, 16, 0, 0, 12), Refusal::IpPrivate),
    (v4(192, 0, 0, 192, 32), Refusal::IpMetadata),
    (v4(192, 0, 0, 0, 24), Refusal::IpIetfProtocol),
    (v4(192, 0, 2, 0, 24), Refusal::IpDocumentation),
    (v4(192, 31, 196, 0, 24), Refusal::IpSpecial),
    (v4(192, 52, 193, 0, 24), Refusal::IpSpecial),
    (v4(192, 88, 99, 0, 24), Refusal::IpSpecial),
    (v4(192, 168, 0, 0, 16), Refusal::IpPrivate),
    (v4(192, 175, 48, 0, 24), Refusal::IpSpecial),
    (v4(198, 18, 0, 0, 15), Refusal::IpBenchmark),
    (v4(198, 51, 100, 0, 24), Refusal::IpDocumentation),
    (v4(203, 0, 113, 0, 24), Refusal::IpDocumentation),
    (v4(224, 0, 0, 0, 4), Refusal::IpMulticast),
    (v4(255, 255, 255, 255, 32), Refusal::IpBroadcast),
    (v4(240, 0, 0, 0, 4), Refusal::IpReserved),
];

/// The only block that holds public unicast.
const V6_GLOBAL: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// The first match wins, so a narrower network stands above the one that holds it.
const V6: &[(Ipv6Net, Refusal)] = &[
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), Refusal::IpUnspecified),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), Refusal::IpLoopback),
    (v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), Refusal::IpV4Mapped),
    (v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96), Refusal::IpV4Translated),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), Refusal::IpV4Compat),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), Refusal::IpNat64),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), Refusal::IpNat64),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), Refusal::IpDiscard),
    (v6([0x100, 0, 0, 1, 0, 0, 0, 0], 64), Refusal::IpDiscard),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), Refusal::IpTeredo),
    (v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48), Refusal::IpBenchmark),
    (v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28), Refusal::IpOrchid),
    (v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28), Refusal::IpOrchid),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), Refusal::IpIetfProtocol),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), Refusal::IpDocumentation),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), Refusal::Ip6to4),
    (v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48), Refusal::IpSpecial),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), Refusal::IpDocumentation),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), Refusal::IpSrv6),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), Refusal::IpMetadata),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0], 32), Refusal::IpMetadata),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), Refusal::IpUla),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), Refusal::IpLinkLocal),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), Refusal::IpSiteLocal),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), Refusal::IpMulticast),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn public(ip: IpAddr) -> bool {
        check_address(ip, 443, &TargetRules::default()).is_ok()
    }

    proptest! {
        #[test]
        fn addresses_special_to_the_standard_library_are_refused(v4: u32, v6: u128, head in 0usize..12) {
            let v4 = Ipv4Addr::from(v4);
            let special = v4.is_loopback() || v4.is_private() || v4.is_link_local() || v4.is_multicast()
                || v4.is_broadcast() || v4.is_documentation() || v4.is_unspecified();
            prop_assert!(!(special && public(v4.into())), "{v4}");

            // Uniform bits would hardly ever hit a special block, so the first segment is one of a block's.
            const HEADS: [u128; 12] =
                [0, 0xffff, 0x64, 0xff9b, 0x100, 0x2001, 0x2002, 0x2620, 0x3fff, 0xfc00, 0xfe80, 0xff00];
            let v6 = Ipv6Addr::from((v6 >> 16) | (HEADS[head] << 112));
            let special = v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.is_unique_local()
                || v6.is_unicast_link_local() || v6.to_ipv4().is_some();
            prop_assert!(!(special && public(v6.into())), "{v6}");
            prop_assert!(!public(v6.into()) || v6.segments()[0] >> 13 == 1, "{v6}");
        }

        #[test]
        fn an_allowed_network_permits_exactly_its_addresses(last: u32) {
            let rules = TargetRules {
                allow_networks: vec!["10.20.0.0/16".parse().expect("a network")],
                ..TargetRules::default()
            };
            let ip = Ipv4Addr::from(0x0a00_0000 | (last >> 8));
            let inside = ip.octets()[1] == 20;
            prop_assert_eq!(check_address(ip.into(), 443, &rules).is_ok(), inside);
        }

        #[test]
        fn the_order_of_answers_does_not_change_the_verdict(mut answers in proptest::collection::vec(any::<IpAddr>(), 0..8)) {
            let verdict = |answers: &[IpAddr]| check_addresses(answers, 443, &TargetRules::default()).map(|_| ());
            let before = verdict(&answers);
            answers.reverse();
            prop_assert_eq!(before, verdict(&answers));
        }
    }

    fn networks(networks: &[&str]) -> TargetRules {
        let allow_networks = networks.iter().map(|network| network.parse().expect("a network")).collect();
        TargetRules { allow_networks, ..TargetRules::default() }
    }

    fn check(ip: &str, rules: &TargetRules, expected: Result<(), Refusal>) {
        assert_eq!(check_address(ip.parse().expect("an address"), 8400, rules), expected, "{ip}");
    }

    #[test]
    fn metadata_and_link_local_addresses_are_opened_only_by_an_entry_of_their_own() {
        let wide = networks(&["0.0.0.0/0", "169.254.0.0/16", "::/0", "fe80::/10", "fd00::/8"]);
        check("10.1.2.3", &wide, Ok(()));
        check("fd00::1", &wide, Ok(()));
        for (ip, refusal) in [
            ("169.254.169.254", Refusal::IpMetadata),
            ("168.63.129.16", Refusal::IpMetadata),
            ("100.100.100.200", Refusal::IpMetadata),
            ("fd00:ec2::254", Refusal::IpMetadata),
            ("169.254.1.1", Refusal::IpLinkLocal),
            ("fe80::1", Refusal::IpLinkLocal),
            ("0.0.0.0", Refusal::IpUnspecified),
            ("::", Refusal::IpUnspecified),
            ("::ffff:169.254.169.254", Refusal::IpV4Mapped),
            ("64:ff9b::a9fe:a9fe", Refusal::IpNat64),
            ("2002:a9fe:a9fe::1", Refusal::Ip6to4),
        ] {
            check(ip, &wide, Err(refusal));
            let bits = if ip.contains(':') { 128 } else { 32 };
            check(ip, &networks(&[&format!("{ip}/{bits}")]), Ok(()));
        }
    }

    #[test]
    fn server_recognises_its_own_listener_at_every_address_of_the_machine() {
        let listening = |at: &str| TargetRules {
            own_listen: vec![at.parse().expect("an address")],
            own_addresses: || vec![IpAddr::from([10, 1, 2, 3]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1])],
            ..networks(&["0.0.0.0/0", "::/0", "0.0.0.0/32", "::ffff:10.1.2.3/128"])
        };
        for everywhere in ["0.0.0.0:8400", "[::]:8400"] {
            for ip in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "10.1.2.3", "::ffff:10.1.2.3", "fd00::1"] {
                check(ip, &listening(everywhere), Err(Refusal::IpSelf));
            }
            check("10.1.2.4", &listening(everywhere), Ok(()));
            check("8.8.8.8", &listening(everywhere), Ok(()));
        }
        let [loopback, other_port] = ["127.0.0.1:8400", "0.0.0.0:8401"].map(listening);
        check("0.0.0.0", &loopback, Err(Refusal::IpSelf));
        check("10.1.2.3", &loopback, Ok(()));
        check("10.1.2.3", &other_port, Ok(()));
    }

    #[test]
    fn addresses_of_this_machine_are_found() {
        let found = (TargetRules::default().own_addresses)();
        assert!(found.iter().any(IpAddr::is_loopback), "{found:?}");
    }
}
