//! Services: who gets a connection, and what both sides see of each other.

use super::*;
use crate::service::choose::Policy;
use crate::service::{Address, Backend, Service, ServiceId, WhenDown};
use crate::wire::{Arp, Icmp, Tcp, parse, protocol, tcp_flags};
use std::net::{IpAddr, Ipv6Addr};

mod ahead;
mod broken;
mod changed;
mod checked;
mod chosen;
mod drained;
mod failed;
mod flapping;
mod flooded;
mod full;
mod held;
mod lost;
mod recent;
mod slow;
mod stays;
mod swept;
mod taken;
mod tunnels;
mod turned;
mod unreachable;

pub(super) const MAC: Mac = Mac([2, 0, 0, 0, 0, 100]);
const FIRST: ServiceId = ServiceId(0);
const SYN: u8 = tcp_flags::SYN;
const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
const ACK: u8 = tcp_flags::ACK;
const FIN_ACK: u8 = tcp_flags::FIN | tcp_flags::ACK;
const RST: u8 = tcp_flags::RST;

fn v6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())
}

pub(super) fn backend(n: u8, endpoint: Option<u32>) -> Backend {
    Backend {
        ipv4: Some(ip(n)),
        ipv6: Some(v6(n)),
        mac: mac(n),
        port: Some(8080),
        weight: 1,
        drain_ns: 0,
        cores: 1,
        max_connections: None,
        endpoint: endpoint.map(EndpointId),
    }
}

pub(super) fn service(policy: Policy, backends: Vec<Backend>) -> Service {
    let at = |ip: IpAddr, protocol, port| Address { ip, protocol, port };
    Service {
        tenant: TenantId(0),
        mac: MAC,
        addresses: vec![
            at(ip(100).into(), protocol::TCP, 80),
            at(v6(100).into(), protocol::TCP, 80),
            at(ip(100).into(), protocol::UDP, 53),
        ],
        policy,
        backends,
        when_down: WhenDown::Reset,
        ping: true,
        report_period_ns: 5_000_000_000,
        ..Service::default()
    }
}

/// Endpoints 1 to 4 at ports of the same number, the client at port 1, backends at 2 and 3.
fn rig(policy: Policy) -> Rig {
    Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3), (0, 4)], |program| {
        program.services.push(service(policy, vec![backend(2, Some(1)), backend(3, Some(2))]));
    })
}

fn tcp(from: (u8, u16), to: (u8, u16), flags: u8, numbers: (u32, u32)) -> build::Build<'static> {
    let frame = eth(mac(from.0), mac(to.0)).ipv4(ip(from.0), ip(to.0)).tcp(from.1, to.1, numbers.0);
    if flags & ACK == 0 { frame.flags(flags) } else { frame.ack(numbers.1, 1000).flags(flags) }
}

/// From the client to the service, as it asks for it.
fn ask(port: u16, flags: u8, numbers: (u32, u32)) -> build::Build<'static> {
    tcp((1, port), (100, 80), flags, numbers)
}

/// What a backend answers, and what the client is to see of that.
fn answer(backend: u8, port: u16, flags: u8, numbers: (u32, u32)) -> build::Build<'static> {
    tcp((backend, 8080), (1, port), flags, numbers)
}

fn seen(port: u16, flags: u8, numbers: (u32, u32)) -> Vec<u8> {
    tcp((100, 80), (1, port), flags, numbers).bytes()
}

/// Data, as the client sees it.
fn seen_with(port: u16, numbers: (u32, u32), payload: Vec<u8>) -> Vec<u8> {
    tcp((100, 80), (1, port), ACK, numbers).payload(payload).bytes()
}

impl Rig {
    /// Sends a frame, which one other leaves for, and which is explained alike.
    fn one(&mut self, port: u32, frame: &build::Build<'_>) -> (u32, Vec<u8>) {
        let explained = {
            let frame = frame.frame(&mut self.pool).expect("a buffer");
            let frame_trace = self.switch.explain(&self.pool, self.now, PortId(port), &frame);
            self.pool.free(frame);
            frame_trace
        };
        let (verdict, mut out) = self.send_for_bytes(port, frame);
        assert_eq!(explained.verdict, verdict, "{explained}");
        assert_eq!((verdict, out.len()), (FORWARDED, 1), "{explained}\n{out:?}");
        out.remove(0)
    }

    /// Opens a connection; the port of the backend that got it.
    fn open(&mut self, port: u16) -> u8 {
        let (to, bytes) = self.one(1, &ask(port, SYN, (99, 0)));
        let backend = to as u8;
        assert_eq!(bytes, tcp((1, port), (backend, 8080), SYN, (99, 0)).bytes());
        let (client, bytes) = self.one(to, &answer(backend, port, SYN_ACK, (499, 100)));
        assert_eq!((client, bytes), (1, seen(port, SYN_ACK, (499, 100))));
        assert_eq!(self.one(1, &ask(port, ACK, (100, 500))).0, to);
        backend
    }

    fn in_flight(&self) -> Vec<(u64, u32, u32)> {
        self.switch.service_backends(FIRST).map(|(_, _, stats)| (stats.new, stats.busy, stats.idle)).collect()
    }

    fn change_service(&mut self, service: Service) {
        let change = crate::program::Change::Service(FIRST, Some(service));
        self.switch.change(&mut self.pool, self.now, change).expect("it fits");
    }
}

#[test]
fn a_connection_has_one_backend_and_its_client_sees_the_service_only() {
    let mut rig = rig(Policy::RoundRobin);
    assert_eq!((1..=4).map(|port| rig.open(port)).collect::<Vec<_>>(), [2, 3, 2, 3]);
    for port in 1..=4u16 {
        let backend = if port % 2 == 1 { 2 } else { 3 };
        let request = ask(port, ACK, (100, 500)).payload(vec![1; 50]);
        let (to, bytes) = rig.one(1, &request);
        let wanted = tcp((1, port), (backend, 8080), ACK, (100, 500)).payload(vec![1; 50]);
        assert_eq!((to, bytes), (backend.into(), wanted.bytes()));
    }
    assert_eq!(rig.in_flight(), [(2, 2, 0), (2, 2, 0)]);
    // One answer, offloaded, and the acknowledgement of its end.
    let large = answer(2, 1, ACK, (500, 150)).payload(vec![5; 9000]).gso(1460);
    assert_eq!(rig.one(2, &large).1, tcp((100, 80), (1, 1), ACK, (500, 150)).payload(vec![5; 9000]).gso(1460).bytes());
    rig.one(1, &ask(1, ACK, (150, 9500)));
    assert_eq!(rig.in_flight(), [(2, 1, 1), (2, 2, 0)]);
    // And it ends.
    rig.one(1, &ask(1, FIN_ACK, (150, 9500)));
    rig.one(2, &answer(2, 1, FIN_ACK, (9500, 151)));
    rig.one(1, &ask(1, ACK, (151, 9501)));
    assert_eq!(rig.in_flight(), [(2, 1, 0), (2, 2, 0)]);
    // The same port again is a new connection, chosen anew.
    assert_eq!(rig.open(1), 2);
    assert_eq!(rig.open(9), 3);
}

#[test]
fn what_is_not_for_a_service_is_not_touched() {
    let mut rig = rig(Policy::P2c);
    let direct = tcp((1, 7), (2, 8080), SYN, (1, 0));
    assert_eq!(rig.one(1, &direct), (2, direct.bytes()));
    let reply = tcp((2, 8080), (1, 7), SYN_ACK, (1, 2));
    assert_eq!(rig.one(2, &reply), (1, reply.bytes()));
    assert_eq!(rig.one(1, &udp(1, 4)), (4, udp(1, 4).bytes()));
}

#[test]
fn its_address_is_told_and_nobody_else_has_it() {
    let mut rig = rig(Policy::P2c);
    let (port, bytes) = rig.one(1, &build::arp_request(mac(1), ip(1), ip(100)));
    assert_eq!((port, bytes), (1, build::arp_reply(MAC, ip(100), mac(1), ip(1)).bytes()));
    let asks = build::neighbour_solicitation(mac(1), build::link_local(mac(1)), v6(100));
    let (port, bytes) = rig.one(1, &asks);
    let layout = parse(&bytes).unwrap();
    assert_eq!((port, Icmp::of(&bytes, &layout).unwrap().kind()), (1, 136));
    let ping = eth(mac(1), MAC).ipv4(ip(1), ip(100)).icmp(8, 0, 1).payload(vec![1; 20]);
    assert_eq!(rig.one(1, &ping).1, eth(MAC, mac(1)).ipv4(ip(100), ip(1)).icmp(0, 0, 1).payload(vec![1; 20]).bytes());
    for (claim, reason) in [
        (build::arp_reply(mac(4), ip(100), mac(1), ip(1)), Reason::SpoofedArp),
        (build::neighbour_advertisement(mac(4), build::link_local(mac(4)), v6(100)), Reason::SpoofedNd),
        (eth(mac(4), mac(1)).ipv4(ip(100), ip(1)).udp(53, 9), Reason::SpoofedIpv4),
        (eth(mac(4), mac(1)).ipv6(v6(100), v6(1)).udp(53, 9), Reason::SpoofedIpv6),
    ] {
        assert_eq!(rig.send(4, &claim), (dropped(reason), vec![]));
        assert_eq!(rig.send(0, &claim.vlan(10)).0, dropped(Reason::Loop));
    }
}

#[test]
fn a_client_outside_is_answered_in_its_vlan() {
    let mut rig = rig(Policy::RoundRobin);
    let far = |build: build::Build<'static>| build.vlan(10);
    let (port, bytes) = rig.one(0, &far(build::arp_request(mac(77), ip(77), ip(100))));
    assert_eq!((port, bytes), (0, far(build::arp_reply(MAC, ip(100), mac(77), ip(77))).bytes()));
    let (port, bytes) = rig.one(0, &far(tcp((77, 5), (100, 80), SYN, (1, 0))));
    assert_eq!((port, bytes), (2, tcp((77, 5), (2, 8080), SYN, (1, 0)).bytes()));
    let (port, bytes) = rig.one(2, &tcp((2, 8080), (77, 5), SYN_ACK, (9, 2)));
    // Under the backend's own Ethernet address: switches outside learn the service's from what is
    // announced.
    let wanted = far(eth(mac(2), mac(77)).ipv4(ip(100), ip(77)).tcp(80, 5, 9).ack(2, 1000).flags(SYN_ACK));
    assert_eq!((port, bytes), (0, wanted.bytes()));
    rig.switch.announce_service(&mut rig.pool, rig.now, FIRST);
    let said = [far(build::arp_request(MAC, ip(100), ip(100))), far(build::unsolicited_advertisement(MAC, v6(100)))];
    assert_eq!(rig.drain(), said.each_ref().map(|said| (0, said.bytes())));
    // What other switches of the network say of it is none of its own.
    assert_eq!(rig.send(0, &said[0]).0, dropped(Reason::Loop));
}

#[test]
fn a_service_is_announced_where_switches_learn_only() {
    for (attachment, tags) in [
        (Attachment::Isolated, None),
        (Attachment::Vxlan(7), None),
        (Attachment::Untagged, Some(None)),
        (Attachment::Vlan(9), Some(Some(9))),
    ] {
        let mut rig = Rig::new(&[attachment], &[(0, 2)], |program| {
            program.services.push(service(Policy::P2c, vec![backend(2, Some(0))]));
        });
        rig.switch.announce_service(&mut rig.pool, rig.now, FIRST);
        let out = rig.drain();
        assert_eq!(out.len(), if tags.is_some() { 2 } else { 0 }, "{attachment:?}");
        for (_, bytes) in out {
            assert_eq!((Some(parse(&bytes).unwrap().vlan), source(&bytes)), (tags, MAC));
        }
        rig.switch.announce_service(&mut rig.pool, rig.now, ServiceId(7));
        assert_eq!(rig.drain(), []);
    }
}

#[test]
fn a_backend_outside_serves_clients_here() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1)], |program| {
        program.services.push(service(Policy::RoundRobin, vec![backend(50, None)]));
    });
    let (port, bytes) = rig.one(1, &ask(5, SYN, (1, 0)));
    assert_eq!((port, bytes), (0, tcp((1, 5), (50, 8080), SYN, (1, 0)).vlan(10).bytes()));
    let (port, bytes) = rig.one(0, &tcp((50, 8080), (1, 5), SYN_ACK, (9, 2)).vlan(10));
    assert_eq!(
        (port, bytes),
        (1, eth(MAC, mac(1)).ipv4(ip(100), ip(1)).tcp(80, 5, 9).ack(2, 1000).flags(SYN_ACK).bytes())
    );
    // Clients outside cannot be sent there from here.
    let (verdict, out) = rig.send_for_bytes(0, &tcp((77, 5), (100, 80), SYN, (1, 0)).vlan(10));
    assert_eq!((verdict, out.len(), out[0].0), (FORWARDED, 1, 0), "a reset");
    let layout = parse(&out[0].1).unwrap();
    assert_eq!(Tcp::of(&out[0].1, &layout).unwrap().flags(), RST | ACK);
}

#[test]
fn udp_and_ipv6_have_the_same_service() {
    let mut rig = rig(Policy::RoundRobin);
    let query = eth(mac(1), MAC).ipv4(ip(1), ip(100)).udp(5000, 53).payload(vec![1; 9]);
    assert_eq!(
        rig.one(1, &query),
        (2, eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).udp(5000, 8080).payload(vec![1; 9]).bytes())
    );
    let reply = eth(mac(2), mac(1)).ipv4(ip(2), ip(1)).udp(8080, 5000).payload(vec![2; 99]);
    assert_eq!(rig.one(2, &reply).1, eth(MAC, mac(1)).ipv4(ip(100), ip(1)).udp(53, 5000).payload(vec![2; 99]).bytes());
    let syn = eth(mac(1), MAC).ipv6(v6(1), v6(100)).tcp(7, 80, 3).flags(SYN);
    assert_eq!(rig.one(1, &syn), (3, eth(mac(1), mac(3)).ipv6(v6(1), v6(3)).tcp(7, 8080, 3).flags(SYN).bytes()));
}

#[test]
fn fragments_follow_the_first_one_both_ways() {
    let mut rig = rig(Policy::RoundRobin);
    let part = |from: (u8, u16), to: (u8, u16), at: u16, more: bool| {
        let whole = eth(mac(from.0), mac(to.0)).ipv4(ip(from.0), ip(to.0)).id(7);
        if at == 0 {
            whole.udp(from.1, to.1).payload(vec![4; 64]).fragment(0, more)
        } else {
            whole.protocol(17).payload(vec![4; 64]).fragment(at, more)
        }
    };
    let late = part((1, 5000), (100, 53), 72, false);
    assert_eq!(rig.send(1, &late).0, dropped(Reason::NoFirstFragment));
    let (to, bytes) = rig.one(1, &part((1, 5000), (100, 53), 0, true));
    assert_eq!(to, 2);
    let layout = parse(&bytes).unwrap();
    assert_eq!(crate::wire::Ipv4::of(&bytes, &layout).unwrap().destination(), ip(2));
    assert_eq!(rig.one(1, &late), (2, part((1, 0), (2, 0), 72, false).bytes()));
    rig.one(2, &part((2, 8080), (1, 5000), 0, true));
    let mut wanted = part((100, 0), (1, 0), 72, false).bytes();
    wanted[6..12].copy_from_slice(&MAC.0);
    assert_eq!(rig.one(2, &part((2, 8080), (1, 5000), 72, false)).1, wanted);
}

/// Eight bytes of options that say nothing.
const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

#[test]
fn fragments_of_ipv6_follow_the_first_one_whatever_it_has_behind_the_fragment_header() {
    let mut service = service(Policy::RoundRobin, vec![backend(2, Some(1)), backend(3, Some(2))]);
    service.addresses.push(Address { ip: v6(100).into(), protocol: protocol::UDP, port: 53 });
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(service);
    let part = |from: (u8, u16), to: (u8, u16), at: u16, more: bool| {
        let whole = eth(mac(from.0), mac(to.0)).ipv6(v6(from.0), v6(to.0));
        match at {
            // The order of RFC 8200, section 4.1.
            0 => whole.fragment(0, more).extension(protocol::DESTINATION_OPTIONS, &PADDING).udp(from.1, to.1),
            _ => whole.fragment(at, more).protocol(protocol::DESTINATION_OPTIONS),
        }
        .payload(vec![4; 64])
    };
    let (to, bytes) = rig.one(1, &part((1, 5000), (100, 53), 0, true));
    assert_eq!((to, bytes), (2, part((1, 5000), (2, 8080), 0, true).bytes()));
    let late = part((1, 0), (100, 0), 80, false);
    assert_eq!(rig.one(1, &late), (2, part((1, 0), (2, 0), 80, false).bytes()));
    rig.one(2, &part((2, 8080), (1, 5000), 0, true));
    assert_eq!(rig.one(2, &part((2, 0), (1, 0), 80, false)), (1, part((100, 0), (1, 0), 80, false).bytes()));
}

#[test]
fn an_error_about_a_connection_reaches_its_backend() {
    let mut rig = rig(Policy::RoundRobin);
    rig.open(5);
    let sent = tcp((100, 80), (1, 5), ACK, (500, 100)).payload(vec![9; 40]).bytes()[14..].to_vec();
    let too_big = eth(mac(1), MAC).ipv4(ip(1), ip(100)).icmp(3, 4, 1400).payload(sent);
    let (to, bytes) = rig.one(1, &too_big);
    let inner = tcp((2, 8080), (1, 5), ACK, (500, 100)).payload(vec![9; 40]).bytes()[14..].to_vec();
    assert_eq!((to, bytes), (2, eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).icmp(3, 4, 1400).payload(inner).bytes()));
    // And one of the backend's, its client.
    let got = tcp((1, 5), (2, 8080), ACK, (100, 500)).bytes()[14..].to_vec();
    let closed = eth(mac(2), mac(1)).ipv4(ip(2), ip(1)).icmp(3, 3, 0).payload(got);
    let told = tcp((1, 5), (100, 80), ACK, (100, 500)).bytes()[14..].to_vec();
    assert_eq!(rig.one(2, &closed), (1, eth(MAC, mac(1)).ipv4(ip(100), ip(1)).icmp(3, 3, 0).payload(told).bytes()));
}

#[test]
fn an_error_about_a_fragment_or_behind_extension_headers_reaches_its_backend() {
    let mut rig = rig(Policy::RoundRobin);
    let mut service = service(Policy::RoundRobin, vec![backend(2, Some(1))]);
    service.addresses.push(Address { ip: v6(100).into(), protocol: protocol::UDP, port: 53 });
    rig.change_service(service);
    let ends = |from: u8, to: u8| eth(mac(from), mac(to)).ipv6(v6(from), v6(to));
    rig.one(1, &ends(1, 100).udp(5000, 53));
    let sent = |from: (u8, u16), to: (u8, u16)| {
        let whole = ends(from.0, to.0);
        [
            whole.clone().fragment(0, true),
            whole.clone().extension(protocol::HOP_BY_HOP, &PADDING),
            whole.clone().extension(protocol::DESTINATION_OPTIONS, &PADDING).fragment(0, true),
        ]
        .map(|packet| packet.udp(from.1, to.1).payload(vec![9; 1160]).bytes()[14..].to_vec())
    };
    let (seen, of_backend) = (sent((100, 53), (1, 5000)), sent((2, 8080), (1, 5000)));
    for (quote, wanted) in seen.into_iter().zip(of_backend) {
        let too_big = ends(1, 100).icmp(2, 0, 1280).payload(quote);
        let wanted = ends(1, 2).icmp(2, 0, 1280).payload(wanted);
        assert_eq!(rig.one(1, &too_big), (2, wanted.bytes()));
    }
}

#[test]
fn a_router_before_a_backend_tells_the_client_what_the_client_has_sent() {
    let mut rig = rig(Policy::RoundRobin);
    assert_eq!(rig.open(5), 2);
    let sent = |to: (u8, u16)| tcp((1, 5), to, ACK, (100, 500)).payload(vec![9; 40]).bytes()[14..].to_vec();
    // In this network, at port 4.
    let too_big = |quote| eth(mac(4), mac(1)).ipv4(ip(4), ip(1)).icmp(3, 4, 1400).payload(quote);
    assert_eq!(rig.one(4, &too_big(sent((2, 8080)))), (1, too_big(sent((100, 80))).bytes()), "it speaks for itself");
    // What is not of a connection stays as it is.
    for other in [sent((2, 8081)), sent((3, 8080)), sent((4, 8080))] {
        assert_eq!(rig.one(4, &too_big(other.clone())), (1, too_big(other).bytes()));
    }
}

#[test]
fn a_backend_that_calls_its_own_service_gets_another_or_itself() {
    let mut rig = rig(Policy::RoundRobin);
    for port in 1..4 {
        assert_eq!(rig.one(2, &tcp((2, port), (100, 80), SYN, (1, 0))).0, 3);
    }
    let alone = service(Policy::RoundRobin, vec![backend(2, Some(1))]);
    rig.change_service(alone);
    let (to, bytes) = rig.one(2, &tcp((2, 9), (100, 80), SYN, (1, 0)));
    assert_eq!((to, bytes), (2, eth(mac(2), mac(2)).ipv4(ip(100), ip(2)).tcp(9, 8080, 1).flags(SYN).bytes()));
    let (to, bytes) = rig.one(2, &tcp((2, 8080), (100, 9), SYN_ACK, (5, 2)));
    let wanted = eth(MAC, mac(2)).ipv4(ip(100), ip(2)).tcp(80, 9, 5).ack(2, 1000).flags(SYN_ACK);
    assert_eq!((to, bytes), (2, wanted.bytes()));
}

#[test]
fn a_policy_is_changed_and_backends_come_and_go_while_connections_stay() {
    let mut rig = rig(Policy::RoundRobin);
    let first: Vec<u8> = (1..=6).map(|port| rig.open(port)).collect();
    let mut three = service(Policy::LeastInflight, vec![backend(4, Some(3)), backend(3, Some(2)), backend(2, Some(1))]);
    rig.change_service(three.clone());
    for (port, &backend) in (1..=6).zip(&first) {
        assert_eq!(rig.one(1, &ask(port, ACK, (100, 500))).0, backend.into());
    }
    assert_eq!([rig.open(11), rig.open(12), rig.open(13)], [4; 3], "the newcomer has none in flight");
    // Drained: it keeps what it has and gets nothing new.
    three.backends[2].weight = 0;
    rig.change_service(three.clone());
    assert!((20..30).all(|port| rig.open(port) != 2));
    assert_eq!(rig.one(1, &ask(1, ACK, (100, 500))).0, 2);
    // Removed: its connections are known no more, those of others are.
    three.backends.pop();
    rig.change_service(three);
    assert!([3, 4].contains(&rig.one(1, &ask(1, ACK, (100, 500))).0), "another, which will refuse it");
    assert_eq!(rig.one(1, &ask(2, ACK, (100, 500))).0, 3);
}

#[test]
fn without_a_backend_a_client_is_refused_at_once() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1)], |program| {
        program.services.push(service(Policy::P2c, vec![]));
    });
    let reset = eth(MAC, mac(1)).ipv4(ip(100), ip(1)).tcp(80, 5, 0).ack(100, 0).flags(RST | ACK);
    assert_eq!(rig.one(1, &ask(5, SYN, (99, 0))).1, reset.ttl(64).bytes());
    let (_, bytes) = rig.one(1, &eth(mac(1), MAC).ipv4(ip(1), ip(100)).udp(5000, 53));
    assert_eq!(Icmp::of(&bytes, &parse(&bytes).unwrap()).map(|icmp| (icmp.kind(), icmp.code())), Some((3, 3)));
    let ping = eth(mac(1), MAC).ipv4(ip(1), ip(100)).icmp(8, 0, 1);
    assert_eq!(rig.send(1, &ping).0, dropped(Reason::Unreachable), "no ping either");
    rig.change_service(Service { when_down: WhenDown::Drop, ..service(Policy::P2c, vec![]) });
    assert_eq!(rig.send(1, &ask(5, SYN, (99, 0))).0, dropped(Reason::ServiceDown));
}

#[test]
fn a_closed_port_of_the_address_is_refused() {
    let mut rig = rig(Policy::P2c);
    let (_, bytes) = rig.one(1, &tcp((1, 5), (100, 443), SYN, (99, 0)));
    assert_eq!(Tcp::of(&bytes, &parse(&bytes).unwrap()).unwrap().flags(), RST | ACK);
    assert_eq!(rig.send(1, &ask(5, RST, (100, 0))).0, dropped(Reason::ServiceUnknown));
    assert!(Arp::of(&bytes, &parse(&bytes).unwrap()).is_none());
}

#[test]
fn another_service_may_not_have_the_address_nor_a_tenant_go_that_has_services() {
    let mut rig = rig(Policy::P2c);
    let change = |rig: &mut Rig, change| rig.switch.change(&mut rig.pool, NOW, change);
    let twin = Some(service(Policy::P2c, vec![]));
    let refused = change(&mut rig, crate::program::Change::Service(ServiceId(1), twin));
    assert!(matches!(refused, Err(crate::program::ChangeError::ServiceInUse(..))));
    for id in 0..4 {
        change(&mut rig, crate::program::Change::Endpoint(EndpointId(id), None)).unwrap();
    }
    assert!(change(&mut rig, crate::program::Change::Tenant(TenantId(0), None)).is_err());
    change(&mut rig, crate::program::Change::Service(FIRST, None)).unwrap();
    change(&mut rig, crate::program::Change::Tenant(TenantId(0), None)).unwrap();
}
