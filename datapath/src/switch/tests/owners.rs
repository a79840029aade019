//! Whose an address is that nobody here has declared, or somebody else has.

use super::*;
use crate::program::{Change, Elsewhere, Outside};
use crate::wire::build::{
    ALL_NODES, arp_reply, arp_request, link_layer_option, link_local, nd, neighbour_advertisement,
    neighbour_solicitation,
};
use std::net::{IpAddr, Ipv6Addr};

const SECOND: u64 = 1_000_000_000;
/// A link-local address that nobody's MAC address gives away.
const RANDOM: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xa1b2, 0xc3d4, 0xe5f6, 0x708);
const SHARED: [Attachment; 2] = [Attachment::Untagged, Attachment::Untagged];

fn later(rig: &mut Rig, seconds: u64) {
    rig.now = rig.now.plus_ns(seconds * SECOND);
}

fn raw(from: u8, to: u8) -> build::Build<'static> {
    eth(mac(from), mac(to)).payload(vec![0; 46])
}

fn lists(addresses: &[&str]) -> Identity {
    let mut identity = Identity::default();
    for address in addresses {
        match address.parse().unwrap() {
            IpAddr::V4(v4) => identity.ipv4.push((v4, 32)),
            IpAddr::V6(v6) => identity.ipv6.push((v6, 128)),
        }
    }
    identity
}

#[test]
fn what_is_outside_is_learned_here_once_it_has_aged_there_and_the_other_way_round() {
    for attachment in [Attachment::Untagged, Attachment::Vlan(10)] {
        let mut rig = Rig::new(&[attachment], &[(0, 1), (0, 0)], |_| {});
        let outside = |n| if attachment == Attachment::Untagged { raw(n, 1) } else { raw(n, 1).vlan(10) };
        assert_eq!(rig.send(0, &outside(9)), (FORWARDED, vec![1]));
        assert_eq!(rig.send(2, &raw(9, 1)), (dropped(Reason::SeenOutside), vec![]));
        assert_eq!(rig.send(1, &raw(1, 9)), (FORWARDED, vec![0]), "it is where it was, and nobody else reads it");
        assert_eq!(rig.send(1, &raw(1, 8)), (FORWARDED, vec![0, 2]), "nobody knows where that one is");
        later(&mut rig, 200);
        assert_eq!(rig.send(0, &outside(9)).0, FORWARDED);
        later(&mut rig, 200);
        assert_eq!(rig.send(2, &raw(9, 1)).0, dropped(Reason::SeenOutside));
        later(&mut rig, 101);
        assert_eq!(rig.send(2, &raw(9, 1)), (FORWARDED, vec![1]), "a machine has moved in");
        assert_eq!(rig.send(0, &outside(9)).0, dropped(Reason::Loop), "and is not outside now");
        later(&mut rig, 301);
        assert_eq!(rig.send(0, &outside(9)).0, FORWARDED, "it has moved out");
    }
}

#[test]
fn nobody_outside_locks_an_endpoint_out_of_its_declared_address() {
    let mut rig = Rig::new(&[Attachment::Untagged], &[(0, 0)], |_| {});
    assert_eq!(rig.send(0, &raw(5, 1)).0, FORWARDED, "to who is learned");
    let declares = |rig: &Rig| {
        let mut endpoint = rig.switch.program().endpoints[0].clone();
        endpoint.identity.macs = vec![mac(5)];
        endpoint
    };
    let change = Change::Endpoint(EndpointId(0), Some(declares(&rig)));
    rig.switch.change(&mut rig.pool, rig.now, change).unwrap();
    assert_eq!(rig.send(1, &raw(5, 9)), (FORWARDED, vec![0]));
    assert_eq!(rig.send(0, &raw(5, 1)).0, dropped(Reason::Loop));
}

#[test]
fn a_flood_outside_lets_nobody_take_what_was_there() {
    let mut rig = Rig::new(&[Attachment::Untagged, Attachment::Vlan(10)], &[(0, 0), (1, 0)], |_| {});
    assert_eq!(rig.send(0, &raw(9, 1)).0, FORWARDED);
    for n in 0..10_000u32 {
        let [a, b, c, d] = n.to_be_bytes();
        let from = eth(Mac([6, 0, a, b, c, d]), mac(1)).payload(vec![0; 46]);
        let frame = from.frame(&mut rig.pool).unwrap();
        rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame);
        rig.switch.clear(&mut rig.pool);
    }
    assert_eq!(rig.send(1, &raw(9, 1)).0, dropped(Reason::SeenOutside));
    assert_eq!(rig.send(1, &raw(8, 1)).0, dropped(Reason::OutsideFull), "it may be one of those");
    assert_eq!(rig.send(2, &raw(8, 1)).0, FORWARDED, "another network is not concerned");
    later(&mut rig, 301);
    assert_eq!(rig.send(1, &raw(8, 1)).0, FORWARDED);
}

#[test]
fn a_learned_address_moves_within_its_tenant_only() {
    let mut rig = Rig::new(&SHARED, &[(0, 0), (1, 0), (0, 0)], |_| {});
    assert_eq!(rig.send(1, &raw(7, 9)).0, FORWARDED);
    later(&mut rig, 2);
    assert_eq!(rig.send(2, &raw(7, 9)).0, dropped(Reason::SpoofedMac));
    assert_eq!(rig.send(3, &raw(7, 9)).0, FORWARDED);
    later(&mut rig, 301);
    assert_eq!(rig.send(2, &raw(7, 9)).0, FORWARDED, "it has aged");
}

#[test]
fn what_had_aged_has_not_moved_to_who_learns_it_next() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 0), (0, 0)], |_| {});
    assert_eq!(rig.send(1, &raw(7, 9)).0, FORWARDED);
    later(&mut rig, 301);
    assert_eq!(rig.send(2, &raw(7, 9)).0, FORWARDED, "it has aged");
    assert_eq!(rig.send(1, &raw(7, 9)).0, FORWARDED, "it moves for the first time");
    assert_eq!(rig.send(2, &raw(7, 9)).0, dropped(Reason::Flapping));
}

#[test]
fn who_may_learn_nothing_sends_nothing_and_gets_nothing_for_strangers() {
    let mut rig = Rig::new(&SHARED, &[(0, 1), (1, 0)], |program| program.endpoints[1].max_learned = 0);
    assert_eq!(rig.send(2, &raw(7, 1)), (dropped(Reason::Undeclared), vec![]));
    assert_eq!(rig.send(1, &raw(1, 9)), (FORWARDED, vec![0]));
}

#[test]
fn what_is_listed_as_outside_is_claimed_by_no_endpoint_but_one_that_lists_it_too() {
    let router = |n: u8| IpAddr::from(ip(n));
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 0), (0, 2), (0, 3)], |program| {
        program.tenants[0].outside = Outside { macs: vec![mac(9), mac(3)], ips: vec![router(254), router(253)] };
        program.endpoints[2].identity.ipv4 = vec![(ip(3), 32), (ip(253), 32)];
    });
    assert_eq!(rig.send(1, &raw(9, 2)).0, dropped(Reason::SpoofedMac));
    assert_eq!(rig.send(2, &arp_reply(mac(2), ip(254), mac(3), ip(3))).0, dropped(Reason::SpoofedArp));
    assert_eq!(rig.send(2, &arp_request(mac(2), Ipv4Addr::UNSPECIFIED, ip(254))).0, dropped(Reason::SpoofedArp));
    assert_eq!(rig.send(2, &eth(mac(2), mac(3)).ipv4(ip(254), ip(3)).udp(1, 2)).0, dropped(Reason::SpoofedIpv4));
    assert_eq!(rig.send(2, &arp_reply(mac(2), ip(4), mac(3), ip(3))).0, FORWARDED);
    // Two routers share an address, one here and one outside.
    assert_eq!(rig.send(3, &arp_reply(mac(3), ip(253), mac(2), ip(2))).0, FORWARDED);
    assert_eq!(rig.send(0, &arp_reply(mac(8), ip(253), mac(2), ip(2)).vlan(10)).0, FORWARDED);
    assert_eq!(rig.send(0, &arp_reply(mac(8), ip(3), mac(2), ip(2)).vlan(10)).0, dropped(Reason::Loop));
    assert_eq!(rig.send(0, &arp_reply(mac(8), ip(254), mac(2), ip(2)).vlan(10)).0, FORWARDED);
    // The list follows the tenant.
    let tenant = Tenant { outside: Outside::default(), ..rig.switch.program().tenants[0].clone() };
    rig.switch.change(&mut rig.pool, rig.now, Change::Tenant(TenantId(0), Some(tenant))).unwrap();
    assert_eq!(rig.send(2, &arp_reply(mac(2), ip(254), mac(3), ip(3))).0, FORWARDED);
}

#[test]
fn an_address_of_another_hosts_endpoint_is_not_learned_here() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 0), (0, 2)], |_| {});
    let change = |rig: &mut Rig, n, is_there| {
        let change = Change::Elsewhere(TenantId(0), Elsewhere::Mac(mac(n)), is_there);
        rig.switch.change(&mut rig.pool, rig.now, change).unwrap();
    };
    assert_eq!(rig.send(1, &raw(9, 2)).0, FORWARDED);
    change(&mut rig, 9, true);
    change(&mut rig, 2, true);
    assert_eq!(rig.send(1, &raw(9, 2)).0, dropped(Reason::SpoofedMac));
    assert_eq!(rig.send(2, &raw(2, 8)).0, FORWARDED, "what is declared here is here, whatever others say");
    change(&mut rig, 9, false);
    assert_eq!(rig.send(1, &raw(9, 2)).0, FORWARDED);
}

#[test]
fn an_ip_address_of_another_hosts_endpoint_is_claimed_by_none_here_that_does_not_list_it() {
    let mut rig = Rig::new(&SHARED, &[(0, 1), (1, 2), (1, 3), (1, 4)], |program| {
        // One without a list, one with a prefix, and two that have moved here.
        program.endpoints[1].identity.ipv4 = vec![(ip(0), 24)];
        program.endpoints[1].identity.ipv6 = vec![("fd00::".parse().unwrap(), 64)];
        program.endpoints[2].identity.ipv4 = vec![(ip(8), 32)];
        program.endpoints[3].identity.ipv4 = vec![(ip(7), 32)];
    });
    let declared: Ipv6Addr = "fd00::9".parse().unwrap();
    let own: Ipv6Addr = "fd00::2".parse().unwrap();
    let change = |rig: &mut Rig, address: IpAddr, is_there| {
        let change = Change::Elsewhere(TenantId(0), Elsewhere::Ip(address), is_there);
        rig.switch.change(&mut rig.pool, rig.now, change).unwrap();
    };
    // One holds it before anybody says that it is declared elsewhere.
    assert_eq!(rig.send(1, &arp_reply(mac(1), ip(9), mac(3), ip(8))).0, FORWARDED);
    for address in [ip(9).into(), declared.into(), ip(8).into()] {
        change(&mut rig, address, true);
    }
    let theft = |n: u8| {
        [
            (arp_reply(mac(n), ip(9), mac(3), ip(8)), Reason::SpoofedArp),
            (arp_request(mac(n), Ipv4Addr::UNSPECIFIED, ip(9)), Reason::SpoofedArp),
            (neighbour_advertisement(mac(n), own, declared), Reason::SpoofedNd),
            (neighbour_solicitation(mac(n), Ipv6Addr::UNSPECIFIED, declared), Reason::SpoofedNd),
        ]
    };
    for (frame, reason) in theft(1).iter().chain(&theft(2)) {
        assert_eq!(rig.send(1 + u32::from(frame.bytes()[11] == 2), frame), (dropped(*reason), vec![]), "{frame:?}");
    }
    assert_eq!(rig.send(1, &eth(mac(1), mac(3)).ipv4(ip(9), ip(8)).udp(1, 2)).0, dropped(Reason::SpoofedIpv4));
    assert_eq!(rig.send(1, &eth(mac(1), mac(3)).ipv6(declared, own).udp(1, 2)).0, dropped(Reason::SpoofedIpv6));
    // Who lists it has it, whatever others say; and nobody outside has it by that.
    assert_eq!(rig.send(3, &arp_reply(mac(3), ip(8), mac(1), ip(5))).0, FORWARDED);
    assert_eq!(rig.send(0, &arp_reply(mac(9), ip(8), mac(1), ip(5))).0, dropped(Reason::Loop));
    // The owner is outside, and so are its answers.
    assert_eq!(rig.send(0, &arp_reply(mac(9), ip(9), mac(3), ip(8))).0, FORWARDED);
    // It follows its tenant, and goes.
    let attach = |rig: &mut Rig, attachment| {
        let tenant = Tenant { attachment, ..rig.switch.program().tenants[0].clone() };
        rig.switch.change(&mut rig.pool, rig.now, Change::Tenant(TenantId(0), Some(tenant))).unwrap();
    };
    rig.switch.change(&mut rig.pool, rig.now, Change::Endpoint(EndpointId(0), None)).unwrap();
    attach(&mut rig, Attachment::Vlan(10));
    later(&mut rig, 301);
    let claim = arp_reply(mac(2), ip(9), mac(3), ip(8));
    assert_eq!(rig.send(2, &claim).0, FORWARDED, "it is another network's");
    attach(&mut rig, Attachment::Untagged);
    assert_eq!(rig.send(2, &claim).0, dropped(Reason::SpoofedArp));
    change(&mut rig, ip(9).into(), false);
    assert_eq!(rig.send(2, &claim).0, FORWARDED);
}

#[test]
fn a_declared_ip_address_is_its_owners() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3), (0, 4)], |program| {
        program.endpoints[0].identity = Identity { macs: vec![mac(1)], ..lists(&["10.0.0.1", "fd00::1"]) };
        program.endpoints[2].identity.ipv4 = vec![(ip(0), 24)];
        program.endpoints[3].identity.allow.router = true;
    });
    let target: Ipv6Addr = "fd00::1".parse().unwrap();
    let other: Ipv6Addr = "fd00::2".parse().unwrap();
    let probe = arp_request(mac(2), Ipv4Addr::UNSPECIFIED, ip(1));
    for (frame, reason) in [
        (arp_reply(mac(2), ip(1), mac(3), ip(3)), Reason::SpoofedArp),
        (probe, Reason::SpoofedArp),
        (eth(mac(2), mac(3)).ipv4(ip(1), ip(3)).udp(1, 2), Reason::SpoofedIpv4),
        (neighbour_advertisement(mac(2), other, target), Reason::SpoofedNd),
        (neighbour_solicitation(mac(2), Ipv6Addr::UNSPECIFIED, target), Reason::SpoofedNd),
        (eth(mac(2), mac(3)).ipv6(target, other).udp(1, 2), Reason::SpoofedIpv6),
    ] {
        assert_eq!(rig.send(2, &frame), (dropped(reason), vec![]), "{frame:?}");
    }
    assert_eq!(
        rig.send(3, &arp_reply(mac(3), ip(1), mac(2), ip(2))).0,
        dropped(Reason::SpoofedArp),
        "a prefix is less"
    );
    assert_eq!(rig.send(3, &arp_reply(mac(3), ip(5), mac(2), ip(2))).0, FORWARDED);
    // From outside, too; but a packet may have come through a router, outside or here.
    assert_eq!(rig.send(0, &arp_reply(mac(9), ip(1), mac(2), ip(2)).vlan(10)).0, dropped(Reason::Loop));
    assert_eq!(rig.send(0, &eth(mac(9), mac(2)).ipv4(ip(1), ip(2)).udp(1, 2).vlan(10)).0, FORWARDED);
    assert_eq!(rig.send(4, &eth(mac(4), mac(2)).ipv4(ip(1), ip(2)).udp(1, 2)).0, FORWARDED);
    assert_eq!(rig.send(4, &arp_reply(mac(4), ip(1), mac(2), ip(2))).0, dropped(Reason::SpoofedArp));
    let dad = neighbour_solicitation(mac(9), Ipv6Addr::UNSPECIFIED, target).vlan(10);
    assert_eq!(rig.send(0, &dad).0, dropped(Reason::Loop), "an owner that has just come would give it up");
    // Its own.
    assert_eq!(rig.send(1, &arp_reply(mac(1), ip(1), mac(2), ip(2))).0, FORWARDED);
    assert_eq!(rig.send(1, &neighbour_solicitation(mac(1), Ipv6Addr::UNSPECIFIED, target)).0, FORWARDED);
}

/// An advertisement with the source's option before the target's, which alone receivers read (RFC
/// 4861, section 7.2.5).
fn two_faced(from: u8, target: Ipv6Addr, shown: u8, meant: u8) -> build::Build<'static> {
    let options = [link_layer_option(1, mac(shown)), link_layer_option(2, mac(meant))].concat();
    let body = [&target.octets()[..], &options].concat();
    nd(136, mac(from), (target, ALL_NODES), 0x2000_0000, body)
}

#[test]
fn an_option_that_receivers_skip_gives_no_right_to_an_address() {
    let mut rig = Rig::new(&SHARED, &[(0, 1), (1, 0)], |program| {
        program.endpoints[0].identity = Identity { macs: vec![mac(1)], ..lists(&["fd00::1"]) };
        program.endpoints[1].trunk = true;
    });
    let declared: Ipv6Addr = "fd00::1".parse().unwrap();
    assert_eq!(rig.send(0, &two_faced(9, declared, 1, 1)).0, FORWARDED, "a proxy tells the owner's own");
    assert_eq!(rig.send(0, &two_faced(9, declared, 1, 9)).0, dropped(Reason::Loop));
    // A router outside, and another tenant's trunk.
    for address in [RANDOM, link_local(mac(9))] {
        assert_eq!(rig.send(0, &neighbour_advertisement(mac(9), address, address)).0, FORWARDED);
        assert_eq!(rig.send(2, &two_faced(2, address, 9, 2)), (dropped(Reason::SpoofedNd), vec![]));
    }
    // Somebody outside, and what an endpoint holds.
    let held = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xa1b2, 0xc3d4, 0xe5f6, 0x709);
    assert_eq!(rig.send(1, &neighbour_advertisement(mac(1), held, held)).0, FORWARDED);
    assert_eq!(rig.send(0, &two_faced(8, held, 1, 8)).0, dropped(Reason::Loop));
}

#[test]
fn a_redirect_gives_nobody_elses_link_layer_address_for_its_target() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3)], |program| {
        program.endpoints[0].identity = Identity { macs: vec![mac(1)], ..lists(&["fd00::1"]) };
        program.endpoints[2].identity.allow.router = true;
    });
    let declared: Ipv6Addr = "fd00::1".parse().unwrap();
    let redirect = |from: u8, target: Ipv6Addr, given: u8| {
        let options = link_layer_option(2, mac(given));
        let body = [&target.octets()[..], &target.octets(), &options].concat();
        nd(137, mac(from), (link_local(mac(from)), ALL_NODES), 0, body)
    };
    assert_eq!(rig.send(1, &neighbour_advertisement(mac(1), RANDOM, RANDOM)).0, FORWARDED);
    for target in [declared, RANDOM, link_local(mac(1))] {
        assert_eq!(rig.send(0, &redirect(9, target, 1).vlan(10)).0, FORWARDED, "{target} is there");
        assert_eq!(rig.send(0, &redirect(9, target, 9).vlan(10)).0, dropped(Reason::Loop), "{target}");
        assert_eq!(rig.send(3, &redirect(3, target, 1)).0, FORWARDED, "{target} is there");
        assert_eq!(rig.send(3, &redirect(3, target, 3)).0, dropped(Reason::SpoofedNd), "{target}");
        assert_eq!(rig.send(3, &redirect(3, target, 2)).0, dropped(Reason::SpoofedNd), "{target} is not there");
    }
    // All that the router shows of itself is declared: its target is not.
    let mut identity = Identity { macs: vec![mac(3)], ..lists(&["fd00::3"]) };
    identity.allow.router = true;
    let endpoint = Endpoint { identity, ..rig.switch.program().endpoints[2].clone() };
    rig.switch.change(&mut rig.pool, rig.now, Change::Endpoint(EndpointId(2), Some(endpoint))).expect("it fits");
    let own: Ipv6Addr = "fd00::3".parse().unwrap();
    let redirect = |target: Ipv6Addr, given: u8| {
        let body = [&target.octets()[..], &target.octets(), &link_layer_option(2, mac(given))].concat();
        nd(137, mac(3), (own, ALL_NODES), 0, body)
    };
    for target in [declared, RANDOM, link_local(mac(1))] {
        assert_eq!(rig.send(3, &redirect(target, 1)).0, FORWARDED, "{target} is there");
        assert_eq!(rig.send(3, &redirect(target, 3)).0, dropped(Reason::SpoofedNd), "{target}");
        assert_eq!(rig.send(3, &redirect(target, 2)).0, dropped(Reason::SpoofedNd), "{target} is not there");
    }
    assert_eq!(rig.send(3, &redirect(own, 3)).0, FORWARDED, "to itself");
}

#[test]
fn a_link_local_address_is_of_who_comes_first_until_it_ages() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |_| {});
    let claim = |n: u8| neighbour_advertisement(mac(n), RANDOM, RANDOM);
    let dad = neighbour_solicitation(mac(1), Ipv6Addr::UNSPECIFIED, RANDOM);
    assert_eq!(rig.send(1, &dad).0, FORWARDED);
    assert_eq!(rig.send(2, &claim(2)).0, dropped(Reason::SpoofedNd), "nobody answers but the owner");
    assert_eq!(rig.send(2, &eth(mac(2), mac(1)).ipv6(RANDOM, ALL_NODES).udp(1, 2)).0, dropped(Reason::SpoofedIpv6));
    assert_eq!(rig.send(0, &claim(9).vlan(10)).0, dropped(Reason::Loop));
    later(&mut rig, 299);
    assert_eq!(rig.send(1, &eth(mac(1), mac(2)).ipv6(RANDOM, ALL_NODES).udp(1, 2)).0, FORWARDED, "it is in use");
    later(&mut rig, 2);
    assert_eq!(rig.send(2, &claim(2)).0, dropped(Reason::SpoofedNd));
    later(&mut rig, 300);
    assert_eq!(rig.send(2, &claim(2)).0, FORWARDED);
    assert_eq!(rig.send(1, &dad).0, dropped(Reason::SpoofedNd));
    // Who has more than it may hold loses its own, and takes none of others'.
    for n in 0..20 {
        let address = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x77, 0, 0, n);
        assert_eq!(rig.send(1, &neighbour_advertisement(mac(1), address, address)).0, FORWARDED);
    }
    assert_eq!(rig.send(1, &claim(1)).0, dropped(Reason::SpoofedNd));
    let first = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x77, 0, 0, 0);
    assert_eq!(rig.send(2, &neighbour_advertisement(mac(2), first, first)).0, FORWARDED);
    // What is made from a MAC address is of who has that.
    let made = link_local(mac(1));
    assert_eq!(rig.send(2, &neighbour_advertisement(mac(2), made, made)).0, dropped(Reason::SpoofedNd));
    assert_eq!(rig.send(0, &neighbour_advertisement(mac(9), made, made).vlan(10)).0, dropped(Reason::Loop));
    assert_eq!(rig.send(1, &neighbour_advertisement(mac(1), made, made)).0, FORWARDED);
}

#[test]
fn a_routers_link_local_address_is_outside_whoever_came_first() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |_| {});
    let claim = |n: u8| neighbour_advertisement(mac(n), RANDOM, RANDOM);
    assert_eq!(rig.send(2, &claim(2)).0, FORWARDED);
    let router = |n| nd(136, mac(n), (RANDOM, ALL_NODES), 0xa000_0000, RANDOM.octets().to_vec()).vlan(10);
    assert_eq!(rig.send(0, &claim(9).vlan(10)).0, dropped(Reason::Loop));
    assert_eq!(rig.send(0, &router(9)).0, FORWARDED, "it says to be a router");
    assert_eq!(rig.send(2, &claim(2)).0, dropped(Reason::SpoofedNd));
    let plain = nd(136, mac(8), (RANDOM, ALL_NODES), 0, RANDOM.octets().to_vec());
    assert_eq!(rig.send(0, &plain.vlan(10)).0, FORWARDED, "outside there are others who guard");
    let declared = Identity { macs: vec![mac(1)], ipv6: vec![(RANDOM, 128)], ..Identity::default() };
    let endpoint = Endpoint { identity: declared, ..rig.switch.program().endpoints[0].clone() };
    rig.switch.change(&mut rig.pool, rig.now, Change::Endpoint(EndpointId(0), Some(endpoint))).unwrap();
    assert_eq!(rig.send(1, &claim(1)).0, FORWARDED, "a declared one is the owner's all the same");
    assert_eq!(rig.send(0, &router(9)).0, dropped(Reason::Loop));
}

#[test]
fn in_a_shared_network_an_undeclared_ip_address_is_of_who_comes_first() {
    let mut rig = Rig::new(&SHARED, &[(0, 1), (1, 2), (0, 3)], |_| {});
    assert_eq!(rig.send(0, &arp_request(mac(9), ip(254), ip(1))).0, FORWARDED);
    let claim = |n: u8, what: u8| arp_reply(mac(n), ip(what), mac(9), ip(99));
    assert_eq!(rig.send(2, &claim(2, 254)).0, dropped(Reason::SpoofedArp), "the router's");
    assert_eq!(rig.send(2, &eth(mac(2), mac(9)).ipv4(ip(254), ip(1)).udp(1, 2)).0, dropped(Reason::SpoofedIpv4));
    assert_eq!(rig.send(1, &claim(1, 7)).0, FORWARDED);
    assert_eq!(rig.send(2, &claim(2, 7)).0, dropped(Reason::SpoofedArp));
    assert_eq!(rig.send(2, &eth(mac(2), mac(9)).ipv4(ip(7), ip(1)).udp(1, 2)).0, dropped(Reason::SpoofedIpv4));
    assert_eq!(rig.send(3, &claim(3, 7)).0, FORWARDED, "the same tenant's");
    assert_eq!(rig.send(0, &arp_reply(mac(8), ip(7), mac(1), ip(1))).0, dropped(Reason::Loop));
    // The same machine was outside a moment ago.
    assert_eq!(rig.send(0, &arp_request(mac(8), ip(30), ip(1))).0, FORWARDED);
    let mut endpoint = rig.switch.program().endpoints[1].clone();
    endpoint.identity.macs.push(mac(8));
    rig.switch.change(&mut rig.pool, rig.now, Change::Endpoint(EndpointId(1), Some(endpoint))).unwrap();
    assert_eq!(rig.send(2, &claim(8, 30)).0, FORWARDED);
}

#[test]
fn a_trunk_in_the_untagged_network_stays_out_of_others_vlans() {
    let tenants = [Attachment::Untagged, Attachment::Vlan(10)];
    let mut rig = Rig::new(&tenants, &[(0, 0), (1, 2)], |program| program.endpoints[0].trunk = true);
    assert_eq!(rig.send(1, &raw(1, 2).vlan(10)), (dropped(Reason::BadVlan), vec![]));
    assert_eq!(rig.send(1, &raw(1, 2).vlan(11)), (FORWARDED, vec![0]));
}

#[test]
fn an_address_inside_a_message_is_the_senders() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 0), (0, 2)], |_| {});
    let body = arp_reply(mac(9), ip(9), mac(2), ip(2)).bytes()[14..].to_vec();
    let frame = eth(mac(1), mac(2)).ethertype(0x0806).payload(body);
    assert_eq!(rig.send(1, &frame).0, dropped(Reason::SpoofedArp));
}

#[test]
fn an_address_is_not_had_with_the_mac_that_was_given_for_it() {
    let mut rig = Rig::new(&SHARED, &[(0, 0), (1, 0)], |program| program.endpoints[0].trunk = true);
    let udp = |from: u8, address: u8| eth(mac(from), mac(20)).ipv4(ip(address), ip(21)).udp(1, 2);
    // Another tenant's trunk answers for a machine behind it that was not seen itself.
    let answer = eth(mac(6), Mac::BROADCAST).ethertype(0x0806);
    let body = arp_reply(mac(7), ip(50), mac(20), ip(21)).bytes()[14..].to_vec();
    assert_eq!(rig.send(1, &answer.payload(&body)).0, FORWARDED);
    assert_eq!(rig.send(2, &udp(7, 50)).0, dropped(Reason::SpoofedIpv4));
    assert_eq!(rig.send(2, &udp(2, 50)).0, dropped(Reason::SpoofedIpv4));
    // What somebody outside answers for may move in with its MAC address, and with no other.
    let answer = eth(mac(8), Mac::BROADCAST).ethertype(0x0806);
    let body = arp_reply(mac(9), ip(60), mac(20), ip(21)).bytes()[14..].to_vec();
    assert_eq!(rig.send(0, &answer.payload(&body)).0, FORWARDED);
    assert_eq!(rig.send(2, &udp(9, 60)).0, FORWARDED);
    assert_eq!(rig.send(2, &udp(2, 60)).0, dropped(Reason::SpoofedIpv4));
}

#[test]
fn an_address_in_use_is_not_another_tenants_to_take() {
    let mut rig = Rig::new(&SHARED, &[(0, 1), (1, 2), (1, 3)], |_| {});
    let packet = || eth(mac(1), mac(20)).ipv4(ip(7), ip(21)).tcp(1, 2, 3);
    let probe = || arp_request(mac(2), Ipv4Addr::UNSPECIFIED, ip(7));
    assert_eq!(rig.send(1, &arp_reply(mac(1), ip(7), mac(20), ip(21))).0, FORWARDED);
    for _ in 0..40 {
        later(&mut rig, 10);
        assert_eq!(rig.send(1, &packet()).0, FORWARDED);
    }
    assert_eq!(rig.send(2, &probe()).0, dropped(Reason::SpoofedArp));
    assert_eq!(rig.send(2, &arp_reply(mac(2), ip(7), mac(20), ip(21))).0, dropped(Reason::SpoofedArp));
    assert_eq!(rig.send(1, &packet()).0, FORWARDED);
    later(&mut rig, 301);
    assert_eq!(rig.send(2, &probe()).0, FORWARDED, "it was silent");
    // Packets alone make nobody the owner.
    let mut rig = Rig::new(&SHARED, &[(0, 1), (1, 2)], |_| {});
    assert_eq!(rig.send(1, &packet()).0, FORWARDED);
    later(&mut rig, 100);
    assert_eq!(rig.send(1, &packet()).0, FORWARDED);
    assert_eq!(rig.send(2, &probe()).0, FORWARDED);
}

#[test]
fn machines_that_change_places_are_learned_where_they_are() {
    let few = |program: &mut Program| {
        program.endpoints[0].max_learned = 1;
        program.endpoints[1].max_learned = 1;
    };
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 0), (0, 0)], few);
    assert_eq!(rig.send(1, &raw(1, 9)).0, FORWARDED);
    assert_eq!(rig.send(2, &raw(2, 9)).0, FORWARDED);
    assert_eq!(rig.send(1, &raw(2, 9)).0, dropped(Reason::FdbFull));
    later(&mut rig, 301);
    for (port, from) in [(1, 2), (2, 1)] {
        let frame = raw(from, 9).frame(&mut rig.pool).unwrap();
        let told = rig.switch.explain(&rig.pool, rig.now, PortId(port), &frame);
        rig.pool.free(frame);
        assert_eq!((told.verdict, rig.send(port, &raw(from, 9)).0), (FORWARDED, FORWARDED));
    }
}
