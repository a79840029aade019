//! Cases as tables: a frame, who sends it, what the guard says.

use super::*;
use crate::wire::build::{self, Build, eth, link_local};
use crate::wire::{parse, protocol};
use proptest::prelude::*;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const OWN4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const NO4: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const OWN6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const NO6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
/// Link-local, of a random interface identifier.
const RANDOM_LL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x1234, 0x5678, 0x9abc, 0xdef0);
/// Link-local, as gateways have it.
const GATEWAY_LL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const EIGHT: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

const OK: Result<(), Reason> = Ok(());
const MAC: Result<(), Reason> = Err(Reason::SpoofedMac);
const ARP: Result<(), Reason> = Err(Reason::SpoofedArp);
const IP4: Result<(), Reason> = Err(Reason::SpoofedIpv4);
const IP6: Result<(), Reason> = Err(Reason::SpoofedIpv6);
const ND: Result<(), Reason> = Err(Reason::SpoofedNd);
const DHCP: Result<(), Reason> = Err(Reason::DhcpServer);
const RA: Result<(), Reason> = Err(Reason::RouterAdvertisement);
const RESERVED: Result<(), Reason> = Err(Reason::Reserved);
const CONTROL: Result<(), Reason> = Err(Reason::ControlProtocol);
const BAD: Result<(), Reason> = Err(Reason::Malformed);

/// One MAC, one address of each family, nothing else.
fn strict() -> Identity {
    Identity { macs: vec![OWN], ipv4: vec![(OWN4, 32)], ipv6: vec![(OWN6, 128)], allow: Allow::default() }
}

/// One MAC, any address.
fn any_ip() -> Identity {
    Identity { macs: vec![OWN], ..Identity::default() }
}

#[track_caller]
fn assert_all(identity: &Identity, cases: &[(Build, Result<(), Reason>)]) {
    for (build, expected) in cases {
        let bytes = build.bytes();
        let layout = parse(&bytes).unwrap_or_else(|_| panic!("malformed: {build:?}"));
        assert_eq!(check(&bytes, &layout, identity).map(drop), *expected, "{build:?} from {identity:?}");
        // A tag changes nothing: whether there may be one is decided elsewhere.
        let bytes = build.clone().vlan(5).bytes();
        let again = check(&bytes, &parse(&bytes).unwrap(), identity).map(drop);
        assert_eq!(again, *expected, "tagged {build:?}");
    }
}

#[test]
fn ethernet_addresses() {
    let to = |mac| eth(OWN, mac);
    let from = |mac| eth(mac, OTHER);
    let reserved = |last| Mac([1, 0x80, 0xc2, 0, 0, last]);
    let everywhere = [
        (to(reserved(0)), RESERVED),
        (to(reserved(1)).ethertype(ethertype::MAC_CONTROL).payload(&[0, 1]), RESERVED),
        (to(OTHER).ethertype(ethertype::MAC_CONTROL).payload(&[0, 1]), RESERVED),
        (to(reserved(0x0f)), RESERVED),
        (to(reserved(0x10)), CONTROL),
        (to(Mac([1, 0, 0x5e, 0, 0, 0xfb])), OK),
        (to(Mac::BROADCAST), OK),
        (from(Mac([3, 0, 0, 0, 0, 0xa])), Err(Reason::BadSource)),
        (from(Mac::BROADCAST), Err(Reason::BadSource)),
        (from(Mac::default()), Err(Reason::BadSource)),
    ];
    for identity in [strict(), any_ip(), Identity::default()] {
        assert_all(&identity, &everywhere);
        for (build, expected) in &everywhere {
            let bytes = build.bytes();
            assert_eq!(check_transit(&bytes), if *expected == CONTROL { OK } else { *expected });
        }
    }
    assert_all(&strict(), &[(from(OWN), OK), (from(OTHER), MAC), (from(Mac([2, 0, 0, 0, 0, 0xc])), MAC)]);
    assert_all(&Identity::default(), &[(from(OWN), OK), (from(OTHER), OK)]);
    let two = Identity { macs: vec![OTHER, OWN], ..Identity::default() };
    assert_all(&two, &[(from(OWN), OK), (from(OTHER), OK), (from(Mac([2, 0, 0, 0, 0, 0xc])), MAC)]);
}

#[test]
fn arp_senders() {
    let spoofed_mac = eth(OWN, OTHER)
        .ethertype(ethertype::ARP)
        .payload(build::arp_reply(OTHER, OWN4, OWN, OWN4).bytes()[14..].to_vec());
    let cases = [
        (build::arp_request(OWN, OWN4, OTHER4), OK),
        (build::arp_reply(OWN, OWN4, OTHER, OTHER4), OK),
        (build::arp_request(OWN, NO4, OTHER4), OK),
        (build::arp_request(OWN, OWN4, OWN4), OK),
        (build::arp_reply(OWN, NO4, OTHER, OTHER4), ARP),
        (build::arp_request(OWN, OTHER4, OTHER4), ARP),
        (build::arp_reply(OWN, OTHER4, OTHER, OTHER4), ARP),
        (spoofed_mac.clone(), ARP),
    ];
    assert_all(&strict(), &cases);
    let any = [(build::arp_reply(OWN, OTHER4, OTHER, OTHER4), OK), (spoofed_mac.clone(), ARP)];
    assert_all(&any_ip(), &any);
    assert_all(&Identity::default(), &[(spoofed_mac, ARP)]);
    let only6 = Identity { ipv4: vec![], ..strict() };
    assert_all(&only6, &[(build::arp_request(OWN, OWN4, OTHER4), ARP), (build::arp_request(OWN, NO4, OTHER4), OK)]);
}

#[test]
fn ipv4_sources() {
    let from = |source| eth(OWN, OTHER).ipv4(source, OTHER4);
    let cases = [
        (from(OWN4).tcp(1, 2, 3), OK),
        (from(OWN4).fragment(0, true).udp(1, 2).payload(&[0; 8]), OK),
        (from(OWN4).fragment(8, false).protocol(17).payload(&[0; 8]), OK),
        (from(OTHER4).tcp(1, 2, 3), IP4),
        (from(OTHER4).fragment(8, false).protocol(17).payload(&[0; 8]), IP4),
        (from(OTHER4).protocol(4), IP4),
        (build::dhcp_discover(OWN), OK),
        (from(NO4).udp(68, 68), IP4),
        (from(NO4).udp(67, 67), IP4),
        (from(NO4).udp(5353, 5353), IP4),
        (from(NO4).tcp(68, 67, 0), IP4),
        (from(NO4).fragment(0, true).udp(68, 67), IP4),
        (from(NO4).protocol(2), IP4),
        (eth(OTHER, OWN).ipv4(OWN4, OTHER4).udp(1, 2), MAC),
    ];
    assert_all(&strict(), &cases);
    assert_all(&any_ip(), &[(from(OTHER4).tcp(1, 2, 3), OK), (from(NO4).udp(1, 2), OK)]);
    let only6 = Identity { ipv4: vec![], ..strict() };
    assert_all(&only6, &[(from(OWN4).tcp(1, 2, 3), IP4), (build::dhcp_discover(OWN), OK)]);
}

#[test]
fn membership_reports_without_address() {
    const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
    let igmp = |source, to, kind: u8, len| {
        let mut message = vec![0; len];
        message[0] = kind;
        eth(OWN, Mac([1, 0, 0x5e, 0, 0, 22])).ipv4(source, to).protocol(protocol::IGMP).payload(message)
    };
    let report = |kind| igmp(NO4, GROUP, kind, 16);
    let cases = [
        (report(0x22), OK),
        (report(0x16), OK),
        (report(0x12), OK),
        (report(0x22).ip_options(&[0x94, 4, 0, 0]), OK),
        (igmp(OWN4, GROUP, 0x22, 16), OK),
        (igmp(OTHER4, GROUP, 0x22, 16), IP4),
        // A query, a leave: of those that have an address.
        (report(0x11), IP4),
        (report(0x17), IP4),
        (igmp(NO4, OTHER4, 0x22, 16), IP4),
        (igmp(NO4, GROUP, 0x22, 7), IP4),
        (report(0x22).fragment(0, true), IP4),
        (report(0x22).fragment(8, false), IP4),
        (report(0x22).protocol(3), IP4),
    ];
    assert_all(&strict(), &cases);
}

#[test]
fn prefixes_of_every_length() {
    let v4 = |a: [u8; 4]| eth(OWN, OTHER).ipv4(a.into(), OTHER4).udp(1, 2);
    let with4 = |prefix: [u8; 4], len| Identity { ipv4: vec![(OTHER4, 32), (prefix.into(), len)], ..strict() };
    assert_all(&with4([192, 168, 4, 0], 22), &[(v4([192, 168, 7, 255]), OK), (v4([192, 168, 8, 0]), IP4)]);
    assert_all(&with4([10, 9, 9, 9], 8), &[(v4([10, 200, 0, 1]), OK), (v4([11, 9, 9, 9]), IP4)]);
    assert_all(&with4([9, 9, 9, 9], 0), &[(v4([200, 1, 2, 3]), OK), (v4([0, 0, 0, 0]), OK)]);
    assert_all(&with4([9, 9, 9, 9], 32), &[(v4([9, 9, 9, 9]), OK), (v4([9, 9, 9, 8]), IP4)]);
    let v6 = |a: &str| eth(OWN, OTHER).ipv6(a.parse().unwrap(), OTHER6).udp(1, 2);
    let with6 = |prefix: &str, len| Identity { ipv6: vec![(prefix.parse().unwrap(), len)], ..strict() };
    assert_all(&with6("2001:db8::", 47), &[(v6("2001:db8:1::9"), OK), (v6("2001:db8:2::9"), IP6)]);
    assert_all(&with6("2001:db8::", 0), &[(v6("ffff::1"), OK), (v6("fe80::1"), OK)]);
    assert_all(&with6("2001:db8::1", 128), &[(v6("2001:db8::1"), OK), (v6("2001:db8::"), IP6)]);
    assert_all(&with6("fe80::1", 128), &[(v6("fe80::1"), OK), (v6("fe80::2"), IP6)]);
}

#[test]
fn ipv6_sources() {
    let from = |source| eth(OWN, OTHER).ipv6(source, OTHER6);
    let cases = [
        (from(OWN6).tcp(1, 2, 3), OK),
        (from(OTHER6).tcp(1, 2, 3), IP6),
        (from(OTHER6).extension(protocol::DESTINATION_OPTIONS, &EIGHT).tcp(1, 2, 3), IP6),
        (from(OTHER6).fragment(8, false).protocol(6).payload(&[0; 8]), IP6),
        (from(link_local(OWN)).udp(1, 2), OK),
        (from(link_local(OTHER)).udp(1, 2), IP6),
        (from(RANDOM_LL).udp(1, 2), OK),
        (from(GATEWAY_LL).udp(1, 2), IP6),
        (from("fe80:0:0:1:1234:5:6:7".parse().unwrap()).udp(1, 2), IP6),
        (from(build::ALL_NODES).udp(1, 2), IP6),
        (from(NO6).udp(546, 547), IP6),
        (from(NO6).icmp(128, 0, 0), IP6),
        (from(NO6).fragment(0, false).icmp(143, 0, 0), IP6),
        (build::mld_report(OWN, NO6), OK),
        (build::mld_report(OWN, link_local(OWN)), OK),
        (build::router_solicitation(OWN, NO6), OK),
        (build::router_solicitation(OWN, link_local(OWN)), OK),
        (build::dhcpv6_solicit(OWN, link_local(OWN)), OK),
    ];
    assert_all(&strict(), &cases);
    // An endpoint with IPv4 addresses only still speaks on its link, as every host does.
    let only4 = Identity { ipv6: vec![], ..strict() };
    assert_all(&only4, &[(from(OWN6).tcp(1, 2, 3), IP6), (from(link_local(OWN)).udp(1, 2), OK)]);
    assert_all(&any_ip(), &[(from(OTHER6).udp(1, 2), OK), (from(NO6).udp(1, 2), OK), (from(GATEWAY_LL).udp(1, 2), OK)]);
}

#[test]
fn neighbour_discovery_speaks_for_the_sender_only() {
    let own_ll = link_local(OWN);
    let option = |kind, mac| build::link_layer_option(kind, mac);
    let solicit = |body: Vec<u8>| {
        let body = [OTHER6.octets().to_vec(), body].concat();
        build::nd(icmpv6::NEIGHBOUR_SOLICITATION, OWN, (OWN6, OTHER6), 0, body)
    };
    let advertise = |body: Vec<u8>| {
        let body = [OWN6.octets().to_vec(), body].concat();
        build::nd(icmpv6::NEIGHBOUR_ADVERTISEMENT, OWN, (OWN6, OTHER6), 0, body)
    };
    let advertisement = build::neighbour_advertisement;
    let cases = [
        (build::neighbour_solicitation(OWN, OWN6, OTHER6), OK),
        (build::neighbour_solicitation(OWN, own_ll, OTHER6), OK),
        (build::neighbour_solicitation(OWN, OTHER6, OWN6), IP6),
        (build::neighbour_solicitation(OWN, GATEWAY_LL, OTHER6), IP6),
        // Duplicate address detection.
        (build::neighbour_solicitation(OWN, NO6, OWN6), OK),
        (build::neighbour_solicitation(OWN, NO6, own_ll), OK),
        (build::neighbour_solicitation(OWN, NO6, RANDOM_LL), OK),
        (build::neighbour_solicitation(OWN, NO6, OTHER6), ND),
        (build::neighbour_solicitation(OWN, NO6, GATEWAY_LL), ND),
        (advertisement(OWN, OWN6, OWN6), OK),
        (advertisement(OWN, own_ll, OWN6), OK),
        (advertisement(OWN, own_ll, own_ll), OK),
        (advertisement(OWN, OWN6, OTHER6), ND),
        (advertisement(OWN, OWN6, GATEWAY_LL), ND),
        (advertisement(OWN, OWN6, link_local(OTHER)), ND),
        (advertisement(OWN, OTHER6, OWN6), IP6),
        // Link-layer addresses.
        (solicit(option(1, OTHER)), ND),
        (solicit([option(1, OWN), option(1, OTHER)].concat()), ND),
        (solicit([vec![14, 1, 0, 0, 0, 0, 0, 0], option(1, OTHER)].concat()), ND),
        (solicit([&[1, 2][..], &[0; 14]].concat()), ND),
        (solicit(vec![]), OK),
        (solicit(vec![1, 0, 0, 0, 0, 0, 0, 0]), BAD),
        (solicit(vec![1]), BAD),
        (solicit([14, 1, 0, 0, 0, 0, 0, 0].repeat(64)), OK),
        (solicit([14, 1, 0, 0, 0, 0, 0, 0].repeat(65)), BAD),
        (advertise(option(2, OTHER)), ND),
        (advertise(option(1, OTHER)), ND),
        (advertise(vec![]), OK),
        (build::nd(133, OWN, (own_ll, build::ALL_ROUTERS), 0, option(1, OTHER)), ND),
        (build::nd(133, OWN, (NO6, build::ALL_ROUTERS), 0, option(1, OWN)), ND),
        (build::nd(135, OWN, (OWN6, OTHER6), 0, vec![0; 15]), BAD),
        (build::nd(136, OWN, (OWN6, OTHER6), 0, vec![0; 15]), BAD),
        // However it is wrapped.
        (advertisement(OWN, OWN6, OTHER6).extension(protocol::DESTINATION_OPTIONS, &EIGHT), ND),
        (advertisement(OWN, OWN6, OTHER6).extension(protocol::HOP_BY_HOP, &EIGHT), ND),
        (advertisement(OWN, OWN6, OWN6).fragment(0, false), ND),
        (advertisement(OWN, OWN6, OWN6).extension(protocol::ROUTING, &EIGHT).fragment(0, true), ND),
        (eth(OWN, OTHER).ipv6(OWN6, OTHER6).icmp(128, 0, 0).payload(&[9; 9]), OK),
    ];
    assert_all(&strict(), &cases);
    let any = [
        (advertisement(OWN, OWN6, OTHER6), OK),
        (solicit(option(1, OTHER)), ND),
        (advertisement(OWN, OWN6, OWN6).fragment(0, false), ND),
    ];
    assert_all(&any_ip(), &any);
}

#[test]
fn routers_and_servers_are_allowed_to_be() {
    let own_ll = link_local(OWN);
    let v4 = || eth(OWN, OTHER).ipv4(OWN4, OTHER4);
    let v6 = || eth(OWN, OTHER).ipv6(OWN6, OTHER6);
    let router = [
        build::router_advertisement(OWN, own_ll),
        build::router_advertisement(OWN, own_ll).extension(protocol::HOP_BY_HOP, &EIGHT),
        build::redirect(OWN, own_ll, OTHER6, OTHER6),
        v4().icmp(5, 1, 0),
        v4().icmp(9, 0, 0),
    ];
    let server = [
        build::dhcp_offer((OWN, OWN4), OTHER, OTHER4),
        build::dhcpv6_advertise((OWN, own_ll), (OTHER, OTHER6)),
        v4().udp(67, 67),
        v4().udp(9999, 68),
        v4().fragment(0, true).udp(67, 68).payload(&[0; 8]),
        v6().udp(9999, 546),
        v6().udp(547, 547),
        v6().extension(protocol::DESTINATION_OPTIONS, &EIGHT).udp(547, 546),
        v6().fragment(0, true).udp(547, 546).payload(&[0; 8]),
    ];
    let allow = |identity: Identity, router, dhcp_server| Identity {
        allow: Allow { router, dhcp_server, ..Allow::default() },
        ..identity
    };
    for identity in [strict(), any_ip(), Identity::default()] {
        for build in &router {
            assert_all(&allow(identity.clone(), true, false), &[(build.clone(), OK)]);
            assert_all(&allow(identity.clone(), false, true), &[(build.clone(), RA)]);
        }
        for build in &server {
            assert_all(&allow(identity.clone(), false, true), &[(build.clone(), OK)]);
            assert_all(&allow(identity.clone(), true, false), &[(build.clone(), DHCP)]);
        }
        assert_all(&identity, &[(v4().udp(68, 67), OK), (v6().udp(546, 547), OK), (v4().icmp(8, 0, 0), OK)]);
        // The numbers of one family mean nothing in the other.
        assert_all(&identity, &[(v6().udp(67, 68), OK), (v4().udp(547, 546), OK), (v6().icmp(5, 0, 0), OK)]);
    }
    let fragmented = build::router_advertisement(OWN, own_ll).fragment(0, false);
    assert_all(&strict(), &[(fragmented.clone(), RA)]);
    assert_all(&allow(strict(), true, false), &[(fragmented, ND)]);
    let for_another =
        build::nd(134, OWN, (own_ll, build::ALL_NODES), 0, [vec![0; 8], build::link_layer_option(1, OTHER)].concat());
    assert_all(&allow(strict(), true, false), &[(for_another, ND)]);
}

/// By the addresses that are reserved for them, by EtherType and by LLC; a permission lets each
/// pass but what no switch forwards.
#[test]
fn control_protocols_are_allowed_to_be() {
    let llc = |to: Mac, body: &[u8]| eth(OWN, to).ethertype(body.len() as u16).payload(body.to_vec());
    let cisco = |last, kind: u16| {
        let [high, low] = kind.to_be_bytes();
        llc(Mac([1, 0, 0x0c, 0xcc, 0xcc, last]), &[0xaa, 0xaa, 3, 0, 0, 0x0c, high, low, 0, 0])
    };
    let cases = [
        cisco(0xcc, 0x2000),
        cisco(0xcc, 0x2003),
        cisco(0xcc, 0x2004),
        cisco(0xcc, 0x0104),
        cisco(0xcd, 0x010b),
        eth(OWN, Mac([1, 0x80, 0xc2, 0, 0, 0x21])).ethertype(0x88f5),
        eth(OWN, Mac([1, 0x80, 0xc2, 0, 0, 0x33])).ethertype(0x88b5),
        llc(OTHER, &[0x42, 0x42, 3, 0, 0]),
        llc(OTHER, &[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0]),
        llc(OTHER, &[0xfe, 0xfe, 3, 0x83]),
        eth(OWN, OTHER).ethertype(0x88cc).payload(&[2, 7]),
        eth(OWN, OTHER).ethertype(0x8809).payload(&[1, 1]),
        eth(OWN, OTHER).ethertype(0x888e).payload(&[1, 2]),
    ];
    for identity in [strict(), any_ip(), Identity::default()] {
        let allow = Allow { control_protocols: true, ..Allow::default() };
        let allowed = Identity { allow, ..identity.clone() };
        for build in &cases {
            assert_all(&identity, &[(build.clone(), CONTROL)]);
            assert_all(&allowed, &[(build.clone(), OK)]);
            let bytes = build.bytes();
            let trunk = check_trunk(&bytes, &parse(&bytes).unwrap(), identity.allow, None::<fn(u16) -> bool>);
            assert_eq!(trunk.map(drop), CONTROL, "a trunk: {build:?}");
        }
        assert_all(&allowed, &[(eth(OWN, Mac([1, 0x80, 0xc2, 0, 0, 0])), RESERVED)]);
    }
}

#[test]
fn what_only_routers_say() {
    let group = Ipv4Addr::new(224, 0, 0, 18);
    let v4 = || eth(OWN, OTHER).ipv4(OWN4, group);
    let v6 = || eth(OWN, OTHER).ipv6(OWN6, build::ALL_ROUTERS);
    let pppoe = |code: u8| eth(OWN, OTHER).ethertype(ethertype::PPPOE_DISCOVERY).payload(vec![0x11, code, 0, 0, 0, 0]);
    let routers = [
        v4().protocol(protocol::VRRP).payload(&[0; 20]),
        v4().protocol(protocol::OSPF).payload(&[0; 44]),
        v4().fragment(8, false).protocol(protocol::OSPF).payload(&[0; 8]),
        v4().protocol(protocol::PIM).payload(&[0; 8]),
        v4().protocol(protocol::IGMP).payload(&[0x11, 0, 0, 0, 0, 0, 0, 0]),
        v4().protocol(protocol::IGMP).fragment(0, true).payload(&[0x16, 0, 0, 0, 0, 0, 0, 0]),
        v4().udp(1985, 1985),
        v4().udp(520, 520),
        v6().protocol(protocol::OSPF).payload(&[0; 36]),
        v6().extension(protocol::DESTINATION_OPTIONS, &EIGHT).protocol(protocol::VRRP).payload(&[0; 8]),
        v6().icmp(icmpv6::MLD_QUERY, 0, 0).payload(&[0; 16]),
        v6().icmp(icmpv6::RENUMBERING, 1, 0).payload(&[0; 16]),
        v6().extension(protocol::MOBILITY, &EIGHT).icmp(icmpv6::ROUTER_ADVERTISEMENT, 0, 0).payload(&[0; 8]),
        v6().extension(protocol::HOST_IDENTITY, &EIGHT).icmp(icmpv6::ROUTER_ADVERTISEMENT, 0, 0).payload(&[0; 8]),
        v6().udp(521, 521),
        pppoe(7),
        pppoe(0x65),
    ];
    for identity in [strict(), any_ip(), Identity::default()] {
        let router = Identity { allow: Allow { router: true, ..Allow::default() }, ..identity.clone() };
        for build in &routers {
            assert_all(&identity, &[(build.clone(), RA)]);
            assert_all(&router, &[(build.clone(), OK)]);
        }
        let hosts = [
            v4().protocol(protocol::IGMP).payload(&[0x17, 0, 0, 0, 0, 0, 0, 0]),
            eth(OWN, OTHER).ipv4(OWN4, OTHER4).udp(520, 1985),
            eth(OWN, OTHER).ipv6(OWN6, OTHER6).udp(9, 521),
            v4().udp(5353, 5353),
            pppoe(9),
        ];
        for build in hosts {
            assert_all(&identity, &[(build, OK)]);
        }
    }
}

#[test]
fn a_moved_machine_announces_itself_by_reverse_arp() {
    let rarp = |operation: u8, sender: Mac, target: Mac| {
        let head = [0, 1, 8, 0, 6, 4, 0, operation];
        let body = [&head[..], &sender.0, &[0; 4], &target.0, &[0; 4]].concat();
        eth(OWN, Mac::BROADCAST).ethertype(ethertype::RARP).payload(body)
    };
    let cases = [
        (rarp(3, OWN, OWN), OK),
        (rarp(3, OTHER, OTHER), ARP),
        (rarp(3, OWN, OTHER), ARP),
        (rarp(4, OWN, OWN), ARP),
        (eth(OWN, OTHER).ethertype(ethertype::RARP).payload(&[0; 20]), BAD),
    ];
    for identity in [strict(), any_ip(), Identity::default()] {
        assert_all(&identity, &cases);
    }
}

/// A trunk in the untagged network leaves it with its tags: none of them leads into another
/// tenant's VLAN.
#[test]
fn a_trunk_does_not_tag_into_others_vlans() {
    let tag = |kind: u16, vlan: u16| [kind.to_be_bytes(), vlan.to_be_bytes()].concat();
    let frame = |tags: Vec<u8>| [&OTHER.0[..], &OWN.0, &tags, &0x88b5u16.to_be_bytes(), &[0; 46]].concat();
    let verdict = |bytes: &[u8], taken: bool| {
        let is_taken = taken.then_some(|vlan| vlan == 10);
        let allow = Allow { router: true, dhcp_server: true, ..Allow::default() };
        check_trunk(bytes, &parse(bytes).unwrap(), allow, is_taken).map(drop)
    };
    let bad = Err(Reason::BadVlan);
    for (tags, expected) in [
        (vec![], OK),
        (tag(0x8100, 11), OK),
        (tag(0x8100, 10), bad),
        (tag(0x8100, 0xe00a), bad),
        (tag(0x88a8, 10), bad),
        ([tag(0x8100, 0), tag(0x8100, 10)].concat(), bad),
        ([tag(0x8100, 0), tag(0x8100, 0), tag(0x88a8, 10)].concat(), bad),
        ([tag(0x8100, 11), tag(0x8100, 10)].concat(), OK),
        (tag(0x8100, 0).repeat(7), OK),
    ] {
        assert_eq!(verdict(&frame(tags.clone()), true), expected, "{tags:02x?}");
        assert_eq!(verdict(&frame(tags.clone()), false), OK, "in a VLAN of its own: {tags:02x?}");
    }
    assert_eq!(verdict(&frame(tag(0x8100, 0).repeat(8)), false), bad, "more than anybody looks behind");
}

/// Beside others a trunk is no router and no DHCP server unless it is allowed to be one, and hides
/// neither behind priority tags. In a VLAN of its own it may be both.
#[test]
fn a_trunk_serves_a_network_only_where_it_may() {
    let offer = eth(OWN, OTHER).ipv4(OTHER4, OWN4).udp(67, 68).payload(&[0; 300]);
    let offer6 = eth(OWN, OTHER).ipv6(RANDOM_LL, OTHER6).udp(547, 546).payload(&[0; 60]);
    let query = eth(OWN, Mac([1, 0, 0x5e, 0, 0, 1])).ipv4(OTHER4, Ipv4Addr::new(224, 0, 0, 1)).protocol(protocol::IGMP);
    let query = query.payload(&[0x11, 0, 0, 0, 0, 0, 0, 0]);
    let vrrp = eth(OWN, OTHER).ipv6(RANDOM_LL, OTHER6).protocol(protocol::VRRP).payload(&[0; 40]);
    let cases = [
        (build::router_advertisement(OWN, GATEWAY_LL), RA),
        (offer, DHCP),
        (offer6, DHCP),
        (query, RA),
        (vrrp, RA),
        (eth(OWN, OTHER).ipv4(OTHER4, OWN4).icmp(5, 0, 0).payload(&[0; 28]), RA),
        (eth(OWN, OTHER).ipv4(OTHER4, OWN4).tcp(67, 68, 0), OK),
        (eth(OWN, OTHER).ipv6(RANDOM_LL, OTHER6).icmp(128, 0, 0), OK),
    ];
    let verdict =
        |bytes: &[u8], allow| check_trunk(bytes, &parse(bytes).unwrap(), allow, Some(|vlan| vlan == 10)).map(drop);
    let both = Allow { router: true, dhcp_server: true, ..Allow::default() };
    for (build, expected) in cases {
        let tagged = |vlan: u16| build.clone().vlan(vlan).bytes();
        for bytes in [build.bytes(), tagged(0)] {
            assert_eq!(verdict(&bytes, Allow::default()), expected, "{build:?}");
            assert_eq!(verdict(&bytes, both), OK, "{build:?}");
        }
        assert_eq!(verdict(&tagged(11), Allow::default()), OK, "in a VLAN of its own: {build:?}");
        let twice = [&tagged(0)[..12], &[0x81, 0, 0, 0], &tagged(0)[12..]].concat();
        assert_eq!(verdict(&twice, Allow::default()), Err(Reason::BadVlan), "{build:?}");
        assert_eq!(verdict(&twice, both), OK, "{build:?}");
    }
    let router = Allow { router: true, ..Allow::default() };
    let advertisement = build::router_advertisement(OWN, GATEWAY_LL).bytes();
    let body = [&[0xaa, 0xaa, 3, 0, 0, 0][..], &advertisement[12..]].concat();
    let snap = eth(OWN, OTHER).ethertype(body.len() as u16).payload(body).bytes();
    assert_eq!((verdict(&snap, Allow::default()), verdict(&snap, both)), (BAD, OK));
    assert_eq!(verdict(&advertisement, router), OK);
    assert_eq!(verdict(&advertisement, Allow { dhcp_server: true, ..Allow::default() }), RA);
}

#[test]
fn nothing_hides_behind_another_encapsulation() {
    let inner = build::router_advertisement(OTHER, GATEWAY_LL).bytes();
    let tagged = [&[0, 0][..], &inner[12..]].concat();
    let snap = |oui: u8| [&[0xaa, 0xaa, 3, 0, 0, oui][..], &inner[12..]].concat();
    let llc = |body: Vec<u8>| eth(OWN, OTHER).ethertype(body.len() as u16).payload(body);
    for identity in [strict(), any_ip(), Identity::default()] {
        let cases = [
            (eth(OWN, OTHER).ethertype(ethertype::VLAN).payload(&tagged), Err(Reason::BadVlan)),
            (eth(OWN, OTHER).ethertype(ethertype::SERVICE_VLAN).payload(&tagged), Err(Reason::BadVlan)),
            (llc(snap(0)), BAD),
            (llc(snap(0xf8)), BAD),
            (llc([&[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7][..], &inner].concat()), BAD),
            (llc([&[0xaa, 0xaa, 3, 0, 0x11, 0x22, 0, 7][..], &inner].concat()), OK),
            (eth(OWN, OTHER).ethertype(ethertype::JUMBO_LLC).payload(snap(0)), BAD),
            (eth(OWN, OTHER).ethertype(ethertype::OTHER_QINQ).payload(&tagged), Err(Reason::BadVlan)),
            (eth(OWN, OTHER).ethertype(ethertype::BACKBONE_TAG).payload(&tagged), Err(Reason::BadVlan)),
            (llc(vec![]), OK),
            (llc(vec![0xf0, 0xf0, 3]), OK),
        ];
        // The first case without a tag around it is no second tag, but a first.
        let (first, others) = cases.split_first().unwrap();
        let bytes = first.0.clone().vlan(0).bytes();
        assert_eq!(check(&bytes, &parse(&bytes).unwrap(), &identity).map(drop), first.1);
        assert_all(&identity, others);
    }
}

#[test]
fn most_frames_are_judged_in_few_steps() {
    for build in [eth(OWN, OTHER).ipv4(OWN4, OTHER4).udp(1, 2), eth(OWN, OTHER).ipv4(OWN4, OTHER4).tcp(1, 2, 3)] {
        let bytes = build.bytes();
        assert!(is_plain(&bytes, &parse(&bytes).unwrap(), &strict()), "{build:?}");
    }
}

proptest! {
    /// What is accepted in few steps is what all of the guard accepts, whatever is changed in a
    /// frame.
    #[test]
    fn few_steps_accept_nothing_that_all_refuse(
        is_tcp in any::<bool>(),
        ports in (0..6usize, 0..6usize),
        changes in prop::collection::vec((0..38usize, any::<u8>()), 0..3),
        groups in any::<bool>(),
        bits in 0..40u8,
    ) {
        let ports = [ports.0, ports.1].map(|at| [67, 68, 520, 1985, 53, 4000][at]);
        let to = if groups { Ipv4Addr::new(224, 0, 0, 9) } else { OTHER4 };
        let build = eth(OWN, OTHER).ipv4(OWN4, to);
        let build = if is_tcp { build.tcp(ports[0], ports[1], 3) } else { build.udp(ports[0], ports[1]) };
        let mut bytes = build.bytes();
        for (at, to) in changes {
            bytes[at] = to;
        }
        let mac = Mac(bytes[6..12].try_into().unwrap());
        for macs in [vec![OWN], vec![mac], vec![]] {
            let identity = Identity { macs, ipv4: vec![(OWN4, bits)], ..Identity::default() };
            if let Ok(layout) = parse(&bytes)
                && is_plain(&bytes, &layout, &identity)
            {
                prop_assert_eq!(check_all(&bytes, &layout, &identity), Ok(Right::Declared));
            }
        }
    }
}
