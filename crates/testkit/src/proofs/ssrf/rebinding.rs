//! DNS rebinding: names that resolve to a good address for the check and to a bad one for the attempt, to a good one
//! for one attempt and a bad one for the next over the same connection, or to good and bad addresses at once.
//!
//! The bad addresses are listed here again, so that the judgement does not depend on the guard under test.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::Cause;
use posthaste_engine::connector::{Connector, Roots, Settings};
use posthaste_engine::target::{Target, TargetRules};

use super::network::{self, FixedNames, Lookup, Site, Witness};

/// Addresses that must never be contacted: one or more of each kind.
const BAD: &[&str] = &[
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.0.0.1",
    "10.255.255.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.8",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:db8::1",
    "2001::1",
    "fd00:ec2::254",
    "fd12:3456:789a::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "3fff::1",
    "5f00::1",
    "100::1",
];
const GOOD: &[&str] = &["93.184.216.34", "1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2001:4860:4860::8888"];

/// Whether the connector's check of addresses is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    On,
    /// The operator's settings allow every network.
    Off,
}

/// The results of the attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RebindingCounts {
    /// How many names changed their addresses.
    pub(super) rebindings: usize,
    /// Sockets opened to bad addresses.
    pub(super) bad_contacts: usize,
    /// Checks and attempts that did not end as their look-up demands.
    pub(super) wrong: usize,
}

pub(super) async fn run(times: u64, seed: u64, guard: Guard) -> io::Result<RebindingCounts> {
    let mut dice = fastrand::Rng::with_seed(seed);
    let receiver = Site::start("200 OK", None).await?;
    let mut seen = RebindingCounts::default();
    for _ in 0..times {
        once(&mut dice, &receiver, guard, &mut seen).await?;
    }
    Ok(seen)
}

/// Runs one name through a check and two attempts, each with a look-up of its own. The second attempt may use the first
/// one's connection.
async fn once(dice: &mut fastrand::Rng, receiver: &Site, guard: Guard, seen: &mut RebindingCounts) -> io::Result<()> {
    // At least one good and one bad answer, in random order.
    let mut answers: Vec<Vec<IpAddr>> = vec![good(dice), bad(dice), if dice.bool() { good(dice) } else { bad(dice) }];
    dice.shuffle(&mut answers);
    let names = FixedNames::new(answers.iter().cloned().map(Lookup::Addresses));
    let witness = Witness::new(receiver.address);
    let everything = ["0.0.0.0/0", "::/0"].map(|network| network.parse().expect("a network"));
    let allow_networks = if guard == Guard::On { Vec::new() } else { everything.to_vec() };
    let rules = TargetRules { allow_http: true, allow_networks, ..TargetRules::default() };
    let settings = Settings { rules: rules.clone(), recheck_after: Duration::ZERO, ..Settings::default() };
    let (connector, mut results) = Connector::with_dial(settings, names, Arc::clone(&witness) as _, Roots::none());
    let target = Target::parse("http://rebinding.example.com/", &rules).map_err(io::Error::other)?;
    let target = Arc::new(target);
    let (first, later) = answers.split_first().expect("there are three");
    // The check at the creation of an endpoint, which opens no connection.
    let created = connector.check(&target).await;
    seen.wrong += usize::from(guard == Guard::On && created.is_ok() != is_good(first));
    for answer in later {
        network::send(&connector, &target)?;
        let done = results.recv().await.ok_or_else(|| io::Error::other("the connector ended"))?;
        let is_right = match done.result {
            Ok(_) => is_good(answer),
            Err(fault) => !is_good(answer) && fault.cause == Cause::AddressRefused,
        };
        seen.wrong += usize::from(guard == Guard::On && !is_right);
    }
    seen.rebindings += answers.windows(2).filter(|pair| pair[0] != pair[1]).count().min(1);
    seen.bad_contacts += witness.dialled().iter().filter(|to| !is_good(&[to.ip()])).count();
    Ok(())
}

fn good(dice: &mut fastrand::Rng) -> Vec<IpAddr> {
    some(dice, GOOD)
}

/// Bad addresses, perhaps with good ones among them.
fn bad(dice: &mut fastrand::Rng) -> Vec<IpAddr> {
    let mut list = some(dice, BAD);
    if dice.bool() {
        list.extend(good(dice));
        dice.shuffle(&mut list);
    }
    list
}

fn some(dice: &mut fastrand::Rng, from: &[&str]) -> Vec<IpAddr> {
    let count = dice.usize(1..=3);
    (0..count).map(|_| from[dice.usize(..from.len())].parse().expect("an address")).collect()
}

fn is_good(addresses: &[IpAddr]) -> bool {
    addresses.iter().all(|address| GOOD.contains(&address.to_string().as_str()))
}
