//! Services of tenants that are on several hosts: clients and backends that are reached through
//! tunnels.

use super::*;
use crate::offload::Offload;
use crate::overlay::{Overlay, Peer, Vtep};
use crate::service::Check;

const VNI: u32 = 5001;

fn host(n: u8, version: u8) -> IpAddr {
    match version {
        4 => IpAddr::from([192, 0, 2, n]),
        _ => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()]),
    }
}

fn nic(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0xff, n])
}

/// Two hosts and what is between them. The first has the service, its backends 2 and 3 and a
/// director; the second has client 1 at port 1, and machine 5 at port 2.
struct Hosts([Rig; 2]);

/// A frame that came out: at which host and port.
type Out = (usize, u32, Vec<u8>);

/// `declared`: the hosts know who is where.
fn hosts(version: u8, declared: bool, service: Service) -> Hosts {
    let overlay = |own: u8, there: &[u8]| {
        let (other, here) = (3 - own, host(own, version));
        let at = |&n: &u8| ((TenantId(0), if n == 100 { MAC } else { mac(n) }), host(other, version));
        Overlay {
            local: Some(Vtep { address: here, mac: nic(own) }),
            peers: [(host(other, version), Peer { next_hop: Some(nic(other)), tenants: vec![TenantId(0)] })].into(),
            remotes: there.iter().filter(|_| declared).map(at).collect(),
        }
    };
    let network = [Attachment::Vxlan(VNI)];
    let one = Rig::new(&network, &[(0, 2), (0, 3), (0, 0)], |program| {
        program.endpoints[2].is_director = true;
        program.endpoints[2].max_learned = 0;
        program.services.push(service);
        program.overlay = overlay(1, &[1, 5]);
        program.ports[0].max_frame = 1584;
        program.ports[0].offload = OffloadSupport::NONE;
    });
    let two = Rig::new(&network, &[(0, 1), (0, 5)], |program| {
        program.overlay = overlay(2, &[2, 3, 100]);
        program.ports[0].max_frame = 1584;
        program.ports[0].offload = OffloadSupport::NONE;
    });
    Hosts([one, two])
}

fn usual() -> Service {
    service(Policy::RoundRobin, vec![backend(2, Some(0)), backend(3, Some(1))])
}

impl Hosts {
    /// Sends a frame from a port of a host. What reaches ports of endpoints on both hosts.
    fn send(&mut self, at: usize, port: u32, frame: &build::Build<'_>) -> Vec<Out> {
        let (_, out) = self.0[at].send_for_bytes(port, frame);
        self.carry(at, out)
    }

    /// Carries what came out of a host's uplink to the other, and what that sends for it back.
    fn carry(&mut self, at: usize, out: Vec<(u32, Vec<u8>)>) -> Vec<Out> {
        let (wire, mut arrived): (Vec<_>, Vec<_>) = out.into_iter().partition(|(port, _)| *port == 0);
        let mut arrived: Vec<Out> = arrived.drain(..).map(|(port, bytes)| (at, port, bytes)).collect();
        for (_, bytes) in wire {
            let there = self.receive(1 - at, &bytes).1;
            arrived.extend(self.carry(1 - at, there));
        }
        arrived
    }

    /// Receives a frame from the wire; it is explained alike.
    fn receive(&mut self, at: usize, bytes: &[u8]) -> (Verdict, Vec<(u32, Vec<u8>)>) {
        let rig = &mut self.0[at];
        let frame = rig.pool.alloc_from(bytes).expect("a buffer");
        rig.pool.meta_mut(&frame).offload = Offload::default();
        let explained = rig.switch.explain(&rig.pool, rig.now, UPLINK, &frame);
        let verdict = rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame);
        assert_eq!(explained.verdict, verdict, "{explained}");
        (verdict, rig.drain())
    }

    /// The same, of which one frame comes out.
    fn one(&mut self, at: usize, port: u32, frame: &build::Build<'_>) -> Out {
        let mut out = self.send(at, port, frame);
        assert_eq!(out.len(), 1, "{out:?}");
        out.remove(0)
    }

    /// The client opens a connection; the port of the backend that got it.
    fn open(&mut self, port: u16) -> u32 {
        let (at, to, bytes) = self.one(1, 1, &ask(port, SYN, (99, 0)));
        let backend = to as u8 + 1;
        assert_eq!((at, bytes), (0, tcp((1, port), (backend, 8080), SYN, (99, 0)).bytes()));
        let answered = self.one(0, to, &answer(backend, port, SYN_ACK, (499, 100)));
        let mut wanted = seen(port, SYN_ACK, (499, 100));
        // Whose it is shows.
        wanted[6..12].copy_from_slice(&mac(backend).0);
        assert_eq!(answered, (1, 1, wanted));
        assert_eq!(self.one(1, 1, &ask(port, ACK, (100, 500))).1, to);
        to
    }
}

#[test]
fn a_client_and_a_backend_on_another_host_meet_by_a_director() {
    for version in [4, 6] {
        let far = service(Policy::RoundRobin, vec![backend(5, None)]);
        let mut hosts = hosts(version, true, Service { director: Some(EndpointId(2)), ..far });
        for port in 1..=3u16 {
            let (at, to, bytes) = hosts.one(1, 1, &ask(port, SYN, (99, 0)));
            let from = u16::from_be_bytes([bytes[34], bytes[35]]);
            let asked = eth(MAC, mac(5)).ipv4(ip(100), ip(5)).ttl(63).tcp(from, 8080, 99).flags(SYN);
            assert_eq!((at, to, bytes), (1, 2, asked.bytes()));
            let answer = eth(mac(5), MAC).ipv4(ip(5), ip(100)).tcp(8080, from, 499).ack(100, 1000).flags(SYN_ACK);
            let seen = tcp((100, 80), (1, port), SYN_ACK, (499, 100)).ttl(63);
            assert_eq!(hosts.one(1, 2, &answer), (1, 1, seen.bytes()));
        }
        // Who has an address that nobody knows is not looked for everywhere.
        let lost = service(Policy::RoundRobin, vec![backend(7, None)]);
        hosts.0[0].change_service(Service { director: Some(EndpointId(2)), ..lost });
        assert_eq!(hosts.send(1, 1, &ask(9, SYN, (99, 0))), vec![]);
        assert_eq!(hosts.0[0].drops(2), [(Reason::NoRoute, 1)]);
    }
}

#[test]
fn a_client_on_another_host_is_served() {
    for version in [4, 6] {
        for declared in [true, false] {
            let mut hosts = hosts(version, declared, usual());
            let question = build::arp_request(mac(1), ip(1), ip(100));
            let mut out = hosts.send(1, 1, &question);
            let at = out.iter().position(|out| (out.0, out.1) == (1, 1)).expect("an answer");
            let (.., bytes) = out.remove(at);
            assert_eq!(bytes, build::arp_reply(MAC, ip(100), mac(1), ip(1)).bytes());
            // Who does not know where the service is, asks the neighbours too.
            assert!(out.iter().all(|out| out.0 == 1 && out.2 == question.bytes()), "{out:?}");
            assert_eq!((1..=4).map(|port| hosts.open(port)).collect::<Vec<_>>(), [1, 2, 1, 2]);
            let echo = eth(mac(1), MAC).ipv4(ip(1), ip(100)).icmp(8, 0, 7).payload(vec![1; 56]);
            let (at, port, bytes) = hosts.one(1, 1, &echo);
            let layout = parse(&bytes).unwrap();
            assert_eq!((at, port, Icmp::of(&bytes, &layout).unwrap().kind()), (1, 1, 0), "a ping is answered");
            let (at, port, bytes) = hosts.one(1, 1, &tcp((1, 9), (100, 81), SYN, (5, 0)));
            let flags = Tcp::of(&bytes, &parse(&bytes).unwrap()).unwrap().flags();
            assert_eq!((at, port, flags), (1, 1, RST | ACK), "nobody is at that port");
        }
    }
}

#[test]
fn what_is_long_crosses_in_segments_and_arrives_as_the_services() {
    for version in [4, 6] {
        let mut hosts = hosts(version, true, usual());
        hosts.open(1);
        let large = answer(2, 1, ACK, (500, 100)).payload((0..9000).map(|n| n as u8).collect::<Vec<_>>()).gso(1400);
        let mut out = hosts.send(0, 1, &large);
        let mut got = Vec::new();
        for (at, port, bytes) in out.drain(..) {
            let layout = parse(&bytes).unwrap();
            assert_eq!((at, port, source(&bytes), destination(&bytes)), (1, 1, mac(2), mac(1)));
            assert_eq!(crate::wire::Ipv4::of(&bytes, &layout).unwrap().source(), ip(100));
            got.extend_from_slice(&bytes[usize::from(layout.payload_offset)..layout.end as usize]);
        }
        assert_eq!(got, (0..9000).map(|n| n as u8).collect::<Vec<_>>());
        // Also those that are recognized by what the last ones were.
        for n in 0..5 {
            let (.., bytes) = hosts.one(0, 1, &answer(2, 1, ACK, (9500 + 10 * n, 100)).payload(vec![6; 10]));
            assert_eq!((source(&bytes), destination(&bytes)), (mac(2), mac(1)), "{n}");
        }
        // The client's own, cut by its host.
        let large = ask(1, ACK, (100, 9500)).payload(vec![5; 5000]).gso(1000);
        let out = hosts.send(1, 1, &large);
        assert_eq!(out.len(), 5);
        assert!(out.iter().all(|(at, port, bytes)| (*at, *port) == (0, 1) && destination(bytes) == mac(2)));
    }
}

/// Backends on another host answer clients here: what comes back through the tunnel is translated.
#[test]
fn a_backend_on_another_host_serves_clients_here_and_is_checked() {
    let elsewhere = service(Policy::RoundRobin, vec![backend(5, None)]);
    let mut hosts = hosts(4, true, elsewhere.clone());
    let ask = tcp((2, 7), (100, 80), SYN, (99, 0));
    let (at, port, bytes) = hosts.one(0, 1, &ask);
    assert_eq!((at, port, bytes), (1, 2, tcp((2, 7), (5, 8080), SYN, (99, 0)).bytes()));
    let back = hosts.one(1, 2, &tcp((5, 8080), (2, 7), SYN_ACK, (499, 100)));
    assert_eq!(back, (0, 1, tcp((100, 80), (2, 7), SYN_ACK, (499, 100)).bytes()));
    // Whether it is well is asked through the tunnel.
    hosts.0[0].change_service(Service { check: Some(Check::default()), ..elsewhere });
    let now = hosts.0[0].now;
    let mut asked = 0;
    while hosts.0[0].now.since(now) < 5_000_000_000 {
        let out = hosts.0[0].drain();
        let mut arrived = hosts.carry(0, out);
        while let Some((at, port, bytes)) = arrived.pop() {
            let said = Tcp::of(&bytes, &parse(&bytes).unwrap()).map(|tcp| (tcp.flags(), tcp.source(), tcp.sequence()));
            let (flags, to, number) = said.unwrap();
            assert_eq!((at, port, source(&bytes)), (1, 2, MAC));
            if flags == SYN {
                asked += 1;
                let answer = eth(mac(5), MAC).ipv4(ip(5), ip(100)).tcp(8080, to, 7);
                arrived.extend(hosts.send(1, 2, &answer.ack(number.wrapping_add(1), 1000).flags(SYN_ACK)));
            }
        }
    }
    let stats: Vec<_> = hosts.0[0].switch.service_backends(FIRST).map(|(_, _, stats)| stats).collect();
    assert!(asked >= 3, "{asked}");
    assert_eq!((stats[0].is_down, stats[0].failed_checks, stats[0].checks >= 3), (false, 0, true));
}

/// Nobody in a tunnel has a service's address, and who is no host of the tenant is not answered.
#[test]
fn what_is_forged_in_a_tunnel_is_dropped() {
    let mut hosts = hosts(4, true, usual());
    let outer = |from: u8, vni: u32, inner: &build::Build<'_>| {
        let mut payload = vec![8, 0, 0, 0];
        payload.extend_from_slice(&(vni << 8).to_be_bytes());
        payload.extend_from_slice(&inner.bytes());
        let ips = [from, 1].map(|n| Ipv4Addr::new(192, 0, 2, n));
        eth(nic(from), nic(1)).ipv4(ips[0], ips[1]).udp(50_000, 4789).payload(payload).bytes()
    };
    let syn = ask(1, SYN, (99, 0));
    for (bytes, reason) in [
        (outer(2, VNI, &eth(mac(1), mac(2)).ipv4(ip(100), ip(2)).udp(53, 9)), Reason::Loop),
        (outer(2, VNI, &eth(MAC, mac(2)).ipv4(ip(9), ip(2)).udp(1, 2)), Reason::Loop),
        (outer(2, VNI, &build::arp_reply(mac(1), ip(100), mac(2), ip(2))), Reason::Loop),
        (outer(3, VNI, &syn), Reason::UnknownVtep),
        (outer(2, VNI + 1, &syn), Reason::BadVni),
        (outer(2, VNI, &syn.clone().vlan(10)), Reason::BadVlan),
    ] {
        let (verdict, out) = hosts.receive(0, &bytes);
        assert_eq!((verdict, out.len()), (dropped(reason), 0));
    }
    let (verdict, out) = hosts.receive(0, &outer(2, VNI, &syn));
    assert_eq!((verdict, out.len()), (FORWARDED, 1));
}

/// Answers to clients on other hosts have the budget of all that is answered outside.
#[test]
fn answers_through_tunnels_have_a_budget() {
    let mut hosts = hosts(4, true, usual());
    let (_, wire) = hosts.0[1].send_for_bytes(1, &tcp((1, 9), (100, 81), SYN, (5, 0)));
    let (now, mut answered) = (hosts.0[0].now, 0);
    for _ in 0..1000 {
        let rig = &mut hosts.0[0];
        let frame = rig.pool.alloc_from(&wire[0].1).expect("a buffer");
        answered += u32::from(rig.switch.rx(&mut rig.pool, now, UPLINK, frame) == FORWARDED);
        while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, now) {
            rig.pool.free(frame);
        }
    }
    assert!((1..=100).contains(&answered), "{answered}");
}

/// Where the way into the tunnel is too narrow, the backend is told of the packet that it sent and
/// the client here of the one that it sent, not of what the service made of these.
#[test]
fn who_sends_too_long_packets_through_a_service_is_told_in_its_own_words() {
    let mut hosts = hosts(4, true, usual());
    hosts.open(1);
    let narrow = |rig: &mut Rig| {
        let features = PortFeatures { max_frame: 1350, ..rig.switch.program().ports[0] };
        rig.switch.change(&mut rig.pool, rig.now, crate::program::Change::Port(UPLINK, Some(features))).expect("fits");
    };
    narrow(&mut hosts.0[0]);
    let dont_fragment = |build: &build::Build<'_>| {
        let mut bytes = build.bytes();
        bytes[20] |= 0x40;
        let sum = crate::checksum::update(crate::wire::be16(&bytes, 24), 0, 0x4000);
        crate::wire::put16(&mut bytes, 24, sum);
        bytes
    };
    let told = |rig: &mut Rig, port: u32, bytes: &[u8]| {
        let frame = rig.pool.alloc_from(bytes).expect("a buffer");
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(port), frame), dropped(Reason::PathMtu));
        let out = rig.drain();
        let [(to, answer)] = &out[..] else { panic!("{out:?}") };
        assert_eq!(*to, port);
        let layout = parse(answer).unwrap();
        assert_eq!(crate::checksum::sum(&answer[14..34]), 0xffff);
        assert_eq!(crate::checksum::sum(&answer[34..layout.end as usize]), 0xffff, "ICMP's sum is right");
        let ip = crate::wire::Ipv4::of(answer, &layout).unwrap();
        (destination(answer), ip.destination(), answer[42..42 + 28].to_vec())
    };
    // The quoted packet begins with the header that was sent, but for the sum of TCP.
    let long = dont_fragment(&answer(2, 1, ACK, (500, 100)).payload(vec![1; 1400]));
    let (mac_to, ip_to, quoted) = told(&mut hosts.0[0], 1, &long);
    assert_eq!((mac_to, ip_to), (mac(2), ip(2)));
    assert_eq!((&quoted[12..20], &quoted[20..24]), (&long[26..34], &long[34..38]));
    // A client here, whose backend is on the other host.
    let mut hosts = self::hosts(4, true, service(Policy::RoundRobin, vec![backend(5, None)]));
    let asks = |flags, numbers| tcp((2, 7), (100, 80), flags, numbers);
    hosts.one(0, 1, &asks(SYN, (99, 0)));
    hosts.one(1, 2, &tcp((5, 8080), (2, 7), SYN_ACK, (499, 100)));
    narrow(&mut hosts.0[0]);
    let long = dont_fragment(&asks(ACK, (100, 500)).payload(vec![1; 1400]));
    let (mac_to, ip_to, quoted) = told(&mut hosts.0[0], 1, &long);
    assert_eq!((mac_to, ip_to), (mac(2), ip(2)));
    assert_eq!((&quoted[12..20], &quoted[20..24]), (&long[26..34], &long[34..38]));
}

/// What the stage refuses took the link all the same: agents see who sends it.
#[test]
fn what_is_refused_counts_as_arrived() {
    let mut hosts = hosts(4, true, usual());
    hosts.0[0].switch.watch_arrivals(true);
    let closed = tcp((1, 9), (100, 81), SYN, (5, 0)).payload(vec![0; 500]);
    hosts.send(1, 1, &closed);
    let (mut arrivals, mut queues) = (Vec::new(), Vec::new());
    hosts.0[0].switch.take_arrivals(&mut arrivals, &mut queues);
    let [arrival] = arrivals[..] else { panic!("{arrivals:?}") };
    assert_eq!((arrival.to, arrival.from), (EndpointId(0), Some(mac(1))));
    assert!(arrival.wire_bytes > 550, "with the tunnel's headers: {arrival:?}");
}

/// A client on another host whose backend refuses is told, where the only other one is outside too.
#[test]
fn a_client_elsewhere_gets_no_backend_elsewhere_instead() {
    let mut hosts = hosts(4, true, service(Policy::RoundRobin, vec![backend(2, Some(0)), backend(5, None)]));
    let (.., bytes) = hosts.one(1, 1, &ask(1, SYN, (99, 0)));
    assert_eq!(destination(&bytes), mac(2));
    let refused = answer(2, 1, RST | ACK, (0, 100));
    let (at, port, bytes) = hosts.one(0, 1, &refused);
    let flags = Tcp::of(&bytes, &parse(&bytes).unwrap()).unwrap().flags();
    assert_eq!((at, port, source(&bytes), flags & RST), (1, 1, mac(2), RST));
}
