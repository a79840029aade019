//! Next hops, as a namespace has them.

use crate::testbed::{Space, soon, turn};
use datapath::wire::Mac;
use ports::neighbours::{Changes, Hop, Subject, look};
use std::net::IpAddr;
use std::time::Duration;

/// Longer than the kernel goes on about one thing: of an address, its route, and groups that are joined.
const QUIET: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(60);

fn space() -> Space {
    let space = Space::new();
    space.ip("link add name w1 type veth peer name w2");
    for line in [
        "link set w1 up",
        "link set w2 up",
        "addr add 192.0.2.1/24 dev w1",
        "addr add 2001:db8::1/64 dev w1 nodad",
        "neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev w1 nud permanent",
        "neigh replace 2001:db8::2 lladdr 02:00:00:00:00:62 dev w1 nud permanent",
        "route add 198.51.100.0/24 via 192.0.2.2",
        "route add 203.0.113.0/24 via inet6 2001:db8::2",
        "route add 2001:db8:1::/64 via 2001:db8::2",
    ] {
        space.ip(line);
    }
    space
}

#[test]
fn next_hops_are_neighbours_or_routers_of_either_ip_version() {
    let Some(_turn) = turn("next_hops_are_neighbours_or_routers_of_either_ip_version") else { return };
    let space = space();
    let at = |last| Hop::At(Mac([2, 0, 0, 0, 0, last]));
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    for (own, ways) in [
        (
            "192.0.2.1",
            [
                ("192.0.2.2", at(2)),
                ("198.51.100.7", at(2)),
                ("203.0.113.7", at(0x62)),
                ("192.0.2.1", Hop::Own),
                ("198.18.0.1", Hop::NoRoute),
                ("192.0.2.3", Hop::Asked(address("192.0.2.3"))),
            ],
        ),
        (
            "2001:db8::1",
            [
                ("2001:db8::2", at(0x62)),
                ("2001:db8:1::7", at(0x62)),
                ("2001:db8:1::8", at(0x62)),
                ("2001:db8::1", Hop::Own),
                ("2001:db8:2::1", Hop::NoRoute),
                ("2001:db8::3", Hop::Asked(address("2001:db8::3"))),
            ],
        ),
    ] {
        let others: Vec<IpAddr> = ways.iter().map(|(to, _)| address(to)).collect();
        let seen = look("w1", Some(&space.0), address(own), &others).unwrap();
        assert!(seen.is_ours);
        assert_eq!(seen.hops, ways.map(|(_, hop)| hop));
    }
    assert!(!look("w1", Some(&space.0), address("2001:db8::9"), &[]).unwrap().is_ours);
}

#[test]
fn changes_of_the_ways_are_heard() {
    let Some(_turn) = turn("changes_of_the_ways_are_heard") else { return };
    let space = space();
    let changes = Changes::open(Subject::Ways, Some(&space.0)).unwrap();
    let settle = || soon("the kernel has no more to say", || !changes.wait(QUIET).unwrap());
    for line in [
        "neigh replace 192.0.2.2 lladdr 02:00:00:00:00:03 dev w1 nud permanent",
        "neigh replace 2001:db8::2 lladdr 02:00:00:00:00:63 dev w1 nud permanent",
        "route del 198.51.100.0/24",
        "route del 2001:db8:1::/64",
        "addr del 192.0.2.1/24 dev w1",
        "addr del 2001:db8::1/64 dev w1",
        "link set w1 address 02:00:00:00:00:99",
    ] {
        settle();
        space.ip(line);
        assert!(changes.wait(PATIENCE).unwrap(), "{line}");
    }
    drop(space);
    soon("the namespace is missed", || changes.wait(Duration::ZERO).is_err());
}
