//! A client and a backend that are both outside: turned around, at the expense of a director.

use super::*;
use crate::program::Change;
use crate::service::segment;
use crate::units::Rate;

const VLAN: u16 = 10;
/// The client outside, and backends outside.
const CLIENT: u8 = 60;
const FAR: u8 = 50;
const FARTHER: u8 = 51;
/// The director's number, and its port, at which nothing is.
const DIRECTOR: EndpointId = EndpointId(4);
/// Connections to one backend's port from one address, and what is there for all of those who open
/// them.
const PORTS: u16 = 31_744;

/// Endpoints 1 to 4 as elsewhere, and a director beside them.
fn around(policy: Policy, backends: Vec<Backend>, share: Share) -> Rig {
    let all = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 0)];
    Rig::new(&[Attachment::Vlan(VLAN)], &all, |program| {
        program.endpoints[4].is_director = true;
        program.endpoints[4].max_learned = 0;
        program.endpoints[4].share = Both { egress: share, ingress: share };
        program.services.push(Service { director: Some(DIRECTOR), ..service(policy, backends) });
    })
}

fn plain(backends: Vec<Backend>) -> Rig {
    around(Policy::RoundRobin, backends, Share::default())
}

/// As it goes over the uplink between Ethernet addresses. What is the switch's own has one hop more
/// behind it.
fn wire(
    macs: (Mac, Mac),
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    flags: u8,
    numbers: (u32, u32),
) -> build::Build<'static> {
    let frame = eth(macs.0, macs.1).ip(from.0, to.0).ttl(left(macs.0)).tcp(from.1, to.1, numbers.0);
    let frame = if flags & ACK == 0 { frame.flags(flags) } else { frame.ack(numbers.1, 1000).flags(flags) };
    frame.vlan(VLAN)
}

fn left(sender: Mac) -> u8 {
    if sender == MAC { 63 } else { 64 }
}

fn at(n: u8) -> IpAddr {
    ip(n).into()
}

/// The client outside asks.
fn asks(client: (u8, u16), flags: u8, numbers: (u32, u32)) -> build::Build<'static> {
    wire((mac(client.0), MAC), (at(client.0), client.1), (at(100), 80), flags, numbers)
}

/// The backend outside answers at a port of the service's address.
fn answers(backend: u8, port: u16, flags: u8, numbers: (u32, u32)) -> build::Build<'static> {
    wire((mac(backend), MAC), (at(backend), 8080), (at(100), port), flags, numbers)
}

/// Where a frame that went out goes, and from which port.
fn reached(bytes: &[u8]) -> (u8, u16) {
    let layout = parse(bytes).expect("sound");
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    (bytes[5], port(usize::from(layout.l4_offset)))
}

impl Rig {
    /// Opens a connection of a client outside to a backend outside: which one, and from which port
    /// it is asked.
    fn turn(&mut self, client: (u8, u16)) -> (u8, u16) {
        let (to, bytes) = self.one(0, &asks(client, SYN, (99, 0)));
        let (backend, port) = reached(&bytes);
        let asked = wire((MAC, mac(backend)), (at(100), port), (at(backend), 8080), SYN, (99, 0));
        assert_eq!((to, bytes), (0, asked.bytes()));
        let answer = self.one(0, &answers(backend, port, SYN_ACK, (499, 100)));
        let seen = wire((MAC, mac(client.0)), (at(100), 80), (at(client.0), client.1), SYN_ACK, (499, 100));
        assert_eq!(answer, (0, seen.bytes()));
        let (_, bytes) = self.one(0, &asks(client, ACK, (100, 500)));
        assert_eq!(reached(&bytes), (backend, port));
        (backend, port)
    }

    /// A request and what is answered, of a connection that was opened.
    fn go_on_with(&mut self, client: (u8, u16), (backend, port): (u8, u16)) {
        let (_, bytes) = self.one(0, &asks(client, ACK, (100, 500)).payload(vec![1; 50]));
        assert_eq!(reached(&bytes), (backend, port));
        let (_, bytes) = self.one(0, &answers(backend, port, ACK, (500, 150)).payload(vec![2; 70]));
        let macs = (MAC, mac(client.0));
        let seen = wire(macs, (at(100), 80), (at(client.0), client.1), ACK, (500, 150)).payload(vec![2; 70]);
        assert_eq!(bytes, seen.bytes());
    }

    fn set_connections(&mut self, most: u32) {
        self.switch.change(&mut self.pool, self.now, Change::Connections(most)).expect("it fits");
    }
}

#[test]
fn a_client_outside_has_a_backend_outside() {
    let mut rig = plain(vec![backend(2, Some(1)), backend(FAR, None), backend(FARTHER, None)]);
    // One here is as it always was.
    let (to, bytes) = rig.one(0, &asks((CLIENT, 1), SYN, (99, 0)));
    assert_eq!((to, bytes), (2, tcp((CLIENT, 1), (2, 8080), SYN, (99, 0)).bytes()));
    let all: Vec<_> = (2..4).map(|port| (port, rig.turn((CLIENT, port)))).collect();
    assert_eq!(all.iter().map(|(_, (backend, _))| *backend).collect::<Vec<_>>(), [FAR, FARTHER]);
    for (port, to) in all {
        rig.go_on_with((CLIENT, port), to);
    }
    let shown: Vec<_> =
        rig.switch.service_connections(rig.now, FIRST, 0..u32::MAX).map(|shown| shown.asked_from.is_some()).collect();
    assert_eq!(shown.iter().filter(|is_turned| **is_turned).count(), 2);
}

#[test]
fn the_client_is_answered_where_it_asked_from_last() {
    let mut rig = plain(vec![backend(FAR, None)]);
    let (backend, port) = rig.turn((CLIENT, 7));
    // Another router brings what it sends.
    let moved = wire((mac(61), MAC), (at(CLIENT), 7), (at(100), 80), ACK, (100, 500));
    assert_eq!(reached(&rig.one(0, &moved).1), (backend, port));
    let (_, bytes) = rig.one(0, &answers(backend, port, ACK, (500, 100)).payload(vec![3; 9]));
    assert_eq!(bytes[..6], mac(61).0);
}

#[test]
fn ipv6_udp_and_fragments_are_turned_around() {
    let mut rig = plain(vec![backend(FAR, None)]);
    let far: IpAddr = v6(FAR).into();
    let (client, service): (IpAddr, IpAddr) = (v6(CLIENT).into(), v6(100).into());
    let (_, bytes) = rig.one(0, &wire((mac(CLIENT), MAC), (client, 9), (service, 80), SYN, (99, 0)));
    let port = reached(&bytes).1;
    assert_eq!(bytes, wire((MAC, mac(FAR)), (service, port), (far, 8080), SYN, (99, 0)).bytes());
    let (_, bytes) = rig.one(0, &wire((mac(FAR), MAC), (far, 8080), (service, port), SYN_ACK, (1, 100)));
    assert_eq!(bytes, wire((MAC, mac(CLIENT)), (service, 80), (client, 9), SYN_ACK, (1, 100)).bytes());

    let datagram = |macs: (Mac, Mac), from: (u8, u16), to: (u8, u16)| {
        let frame = eth(macs.0, macs.1).ipv4(ip(from.0), ip(to.0)).ttl(left(macs.0));
        frame.udp(from.1, to.1).payload(vec![4; 64]).vlan(VLAN)
    };
    let (_, bytes) = rig.one(0, &datagram((mac(CLIENT), MAC), (CLIENT, 9), (100, 53)));
    let port = reached(&bytes).1;
    assert_eq!(bytes, datagram((MAC, mac(FAR)), (100, port), (FAR, 8080)).bytes());
    let (_, bytes) = rig.one(0, &datagram((mac(FAR), MAC), (FAR, 8080), (100, port)));
    assert_eq!(bytes, datagram((MAC, mac(CLIENT)), (100, 53), (CLIENT, 9)).bytes());

    let part = |macs: (Mac, Mac), from: (u8, u16), to: (u8, u16), at: u16, more: bool| {
        let id = if from.0 == 100 && to.0 == FAR { 1 } else { 77 };
        let whole = eth(macs.0, macs.1).ipv4(ip(from.0), ip(to.0)).ttl(left(macs.0)).id(id).vlan(VLAN);
        match at {
            0 => whole.udp(from.1, to.1).payload(vec![4; 64]).fragment(0, more),
            _ => whole.protocol(17).payload(vec![4; 64]).fragment(at, more),
        }
    };
    for (at, more) in [(0, true), (72, true), (136, false)] {
        let (_, bytes) = rig.one(0, &part((mac(CLIENT), MAC), (CLIENT, 9), (100, 53), at, more));
        let wanted = part((MAC, mac(FAR)), (100, port), (FAR, 8080), at, more).bytes();
        assert_eq!((&bytes[..40], bytes.len()), (&wanted[..40], wanted.len()), "at {at}");
        let (_, bytes) = rig.one(0, &part((mac(FAR), MAC), (FAR, 8080), (100, port), at, more));
        let wanted = part((MAC, mac(CLIENT)), (100, 53), (CLIENT, 9), at, more).bytes();
        assert_eq!((&bytes[..40], bytes.len()), (&wanted[..40], wanted.len()), "at {at}");
    }
}

#[test]
fn what_a_first_fragment_has_behind_the_fragment_header_stays_as_it_is() {
    let mut service = service(Policy::RoundRobin, vec![backend(FAR, None)]);
    service.addresses.push(Address { ip: v6(100).into(), protocol: protocol::UDP, port: 53 });
    let mut rig = plain(vec![backend(FAR, None)]);
    rig.change_service(Service { director: Some(DIRECTOR), ..service });
    let part = |macs: (Mac, Mac), from: (u8, u16), to: (u8, u16), at: u16| {
        let whole = eth(macs.0, macs.1).ipv6(v6(from.0), v6(to.0)).ttl(left(macs.0)).vlan(VLAN);
        match at {
            0 => whole.fragment(0, true).extension(protocol::DESTINATION_OPTIONS, &PADDING).udp(from.1, to.1),
            _ => whole.fragment(at, false).protocol(protocol::DESTINATION_OPTIONS),
        }
        .payload(vec![4; 64])
    };
    // The number of the packet is the first that the switch gives, and its client's is that too.
    let (_, first) = rig.one(0, &part((mac(CLIENT), MAC), (CLIENT, 9), (100, 53), 0));
    let port = reached(&first).1;
    assert_eq!(first, part((MAC, mac(FAR)), (100, port), (FAR, 8080), 0).bytes());
    let (_, late) = rig.one(0, &part((mac(CLIENT), MAC), (CLIENT, 9), (100, 53), 80));
    assert_eq!(late, part((MAC, mac(FAR)), (100, port), (FAR, 8080), 80).bytes());
}

#[test]
fn errors_reach_who_they_are_for() {
    let mut rig = plain(vec![backend(FAR, None)]);
    let (_, port) = rig.turn((CLIENT, 7));
    let quote = |from: (u8, u16), to: (u8, u16)| tcp(from, to, ACK, (1, 1)).bytes()[14..42].to_vec();
    let error = |macs: (Mac, Mac), from: u8, to: u8, quote: Vec<u8>| {
        eth(macs.0, macs.1).ipv4(ip(from), ip(to)).icmp(3, 4, 1400).payload(quote).vlan(VLAN)
    };
    // A router before the client, about what the service had sent.
    let (to, bytes) = rig.one(0, &error((mac(70), MAC), 70, 100, quote((100, 80), (CLIENT, 7))));
    let layout = parse(&bytes).expect("sound");
    let at = usize::from(layout.l4_offset) + 8;
    let wanted = quote((FAR, 8080), (100, port));
    assert_eq!((to, &bytes[..12]), (0, [mac(FAR).0, MAC.0].as_flattened()));
    assert_eq!(bytes[at + 12..at + 24], wanted[12..24], "addresses and ports as the backend sent them");
    // One before the backend, about what it was sent; and the backend itself.
    for (speaker, source) in [(70, 70), (FAR, 100)] {
        let (to, bytes) = rig.one(0, &error((mac(speaker), MAC), speaker, 100, quote((100, port), (FAR, 8080))));
        let layout = parse(&bytes).expect("sound");
        let at = usize::from(layout.l4_offset) + 8;
        let l3 = usize::from(layout.l3_offset);
        assert_eq!((to, &bytes[..12]), (0, [mac(CLIENT).0, MAC.0].as_flattened()));
        assert_eq!(bytes[at + 12..at + 24], quote((CLIENT, 7), (100, 80))[12..24]);
        assert_eq!(bytes[l3 + 12..l3 + 20], [ip(source).octets(), ip(CLIENT).octets()].as_flattened()[..]);
    }
}

#[test]
fn a_backend_that_refuses_is_replaced_wherever_both_are() {
    for (first, second) in [(FAR, FARTHER), (FAR, 2), (2, FAR)] {
        let to = |n: u8| backend(n, (n == 2).then_some(1));
        let mut rig = plain(vec![to(first), to(second)]);
        let (port, bytes) = rig.one(0, &asks((CLIENT, 7), SYN, (99, 0)));
        let refused = match first {
            2 => rig.one(port, &tcp((2, 8080), (CLIENT, 7), RST | ACK, (0, 100))),
            _ => rig.one(0, &answers(first, reached(&bytes).1, RST | ACK, (0, 100))),
        };
        assert_eq!((refused.0, refused.1[5]), (if second == 2 { 2 } else { 0 }, second), "the client is not told");
        let answered = match second {
            2 => rig.one(2, &tcp((2, 8080), (CLIENT, 7), SYN_ACK, (499, 100))),
            _ => rig.one(0, &answers(second, reached(&refused.1).1, SYN_ACK, (499, 100))),
        };
        assert_eq!((answered.0, answered.1[5]), (0, CLIENT));
    }
}

/// An error has any address, and its client knows the number of the SYN.
#[test]
fn an_error_moves_what_is_turned_around_and_ejects_nobody() {
    let mut rig = plain(vec![backend(FAR, None), backend(FARTHER, None)]);
    for port in 1..=20 {
        let (first, asked_from) = reached(&rig.one(0, &asks((CLIENT, port), SYN, (99, 0))).1);
        let quote = tcp((100, asked_from), (first, 8080), SYN, (99, 0)).bytes()[14..42].to_vec();
        let away = eth(mac(70), MAC).ipv4(ip(70), ip(100)).icmp(3, 1, 0).payload(quote).vlan(VLAN);
        let (second, _) = reached(&rig.one(0, &away).1);
        assert_eq!([first, second].iter().filter(|backend| [FAR, FARTHER].contains(backend)).count(), 2);
        assert_ne!(first, second);
    }
    let mut backends = rig.switch.service_backends(FIRST).map(|(.., stats)| stats);
    assert!(backends.all(|stats| (stats.refused, stats.ejections) == (0, 0)));
}

#[test]
fn without_a_director_nobody_outside_gets_a_backend_outside() {
    let mut rig = plain(vec![backend(FAR, None)]);
    rig.turn((CLIENT, 1));
    let gone = Service { director: None, ..service(Policy::RoundRobin, vec![backend(FAR, None)]) };
    rig.change_service(gone);
    assert_eq!(rig.send(0, &asks((CLIENT, 1), ACK, (100, 500))), (dropped(Reason::Unreachable), vec![]));
    let (_, out) = rig.send_for_bytes(0, &asks((CLIENT, 2), SYN, (99, 0)));
    let Some((0, bytes)) = out.first() else { panic!("{out:?}") };
    assert_eq!(Tcp::of(bytes, &parse(bytes).unwrap()).map(|tcp| tcp.flags() & RST), Some(RST), "refused");
    // An endpoint that is none, or that is not there, pays for nothing.
    for director in [EndpointId(0), EndpointId(77)] {
        let wrong = Service { director: Some(director), ..service(Policy::RoundRobin, vec![backend(FAR, None)]) };
        rig.change_service(wrong);
        assert_eq!(rig.send(0, &asks((CLIENT, 3), SYN, (99, 0))), (dropped(Reason::Unreachable), vec![]));
    }
}

#[test]
fn nobody_else_reaches_a_director() {
    let mut rig = plain(vec![backend(FAR, None)]);
    let everyone = build::arp_request(mac(1), ip(1), ip(9));
    assert_eq!(rig.send(1, &everyone), (FORWARDED, vec![0, 2, 3, 4]));
    assert_eq!(rig.send(0, &build::arp_request(mac(9), ip(9), ip(8)).vlan(VLAN)), (FORWARDED, vec![1, 2, 3, 4]));
    assert_eq!(rig.switch.endpoint_stats(DIRECTOR).drops.nonzero().count(), 0);
    // What forges an answer finds nothing.
    let (_, port) = rig.turn((CLIENT, 7));
    for (backend, port) in [(FARTHER, port), (FAR, port ^ 1)] {
        let (verdict, out) = rig.send_for_bytes(0, &answers(backend, port, ACK, (500, 100)));
        assert!(out.iter().all(|(_, bytes)| bytes[5] == backend), "{verdict:?} {out:?}");
    }
    // Nor from inside, where the backend's address is another's.
    let inside = tcp((1, 8080), (100, port), ACK, (500, 100));
    assert!(rig.send_for_bytes(1, &inside).1.iter().all(|(to, _)| *to == 1));
}

#[test]
fn a_director_pays_in_both_directions() {
    let mbit = |n: u64| Share { limit: Rate(n * 1_000_000), ..Share::default() };
    let mut rig = around(Policy::RoundRobin, vec![backend(FAR, None)], mbit(80));
    let (_, port) = rig.turn((CLIENT, 7));
    let before = rig.switch.endpoint_stats(DIRECTOR);
    // A second of 10 times the limit, in frames of 1000 bytes.
    let (begin, mut sent) = (rig.now, 0u64);
    for n in 0..100_000u64 {
        rig.now = begin.plus_ns(n * 10_000);
        let frame = asks((CLIENT, 7), ACK, (100, 500)).payload(vec![1; 942]).frame(&mut rig.pool).expect("a buffer");
        let _ = rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame);
        while let Some((to, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            assert_eq!((to, reached(rig.pool.bytes(&frame))), (UPLINK, (FAR, port)));
            sent += 1;
            rig.pool.free(frame);
        }
    }
    let bits = sent * 1000 * 8;
    assert!((70_000_000..90_000_000).contains(&bits), "{bits} bit/s for a limit of 80 Mbit/s");
    let after = rig.switch.endpoint_stats(DIRECTOR);
    assert!(after.ingress.traffic.frames - before.ingress.traffic.frames >= sent, "counted when it came");
    assert!(after.egress.traffic.frames - before.egress.traffic.frames >= sent, "and when it went");
    assert!(after.drops.nonzero().count() > 0, "the rest is its loss");
}

#[test]
fn what_is_turned_around_takes_nothing_that_is_promised() {
    let gbit = |n: u64| Share { guarantee: Rate(n * Rate::GBIT / 10), ..Share::default() };
    let both = |n: u64| Both { egress: gbit(n), ingress: gbit(n) };
    let all = [(0, 0), (1, 1)];
    let mut rig = Rig::new(&[Attachment::Vlan(VLAN), Attachment::Vlan(20)], &all, |program| {
        program.endpoints[0].is_director = true;
        program.endpoints[0].max_learned = 0;
        (program.tenants[1].share, program.endpoints[1].share) = (both(6), both(6));
        let around = service(Policy::RoundRobin, vec![backend(FAR, None)]);
        program.services.push(Service { director: Some(EndpointId(0)), ..around });
    });
    rig.turn((CLIENT, 7));
    // All that the link can carry is turned around, and the victim sends and receives as much as it
    // is promised.
    let (begin, mut got, mut sent) = (rig.now, 0u64, 0u64);
    for n in 0..100_000u64 {
        rig.now = begin.plus_ns(n * 10_000);
        let flood = asks((CLIENT, 7), ACK, (100, 500)).payload(vec![1; 1210]);
        let own = udp(1, 9).payload(vec![1; 704]);
        let frames = [(UPLINK, flood), (PortId(2), own), (UPLINK, udp(9, 1).payload(vec![1; 700]).vlan(20))];
        for (port, frame) in frames {
            let frame = frame.frame(&mut rig.pool).expect("a buffer");
            let _ = rig.switch.rx(&mut rig.pool, rig.now, port, frame);
        }
        while let Some((to, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            let is_own = rig.pool.bytes(&frame).get(14..16) == Some(&[0, 20]);
            sent += u64::from(to == UPLINK && is_own);
            got += u64::from(to != UPLINK);
            rig.pool.free(frame);
        }
    }
    assert!(sent >= 99_000 && got >= 99_000, "{sent} sent and {got} received of 100 000");
    assert!(rig.drops(0).iter().map(|(_, count)| count).sum::<u64>() > 30_000, "the flood is cut");
}

#[test]
fn what_is_turned_around_is_handed_over() {
    let all = || vec![backend(FAR, None), backend(FARTHER, None)];
    let mut before = plain(all());
    let open: Vec<_> = (1..=40).map(|port| (port, before.turn((CLIENT, port)))).collect();
    let state = before.switch.export(before.now);
    assert_eq!(state.services[0].1.turns.len(), open.len());
    for turn in &state.services[0].1.turns {
        assert_eq!(crate::service::TurnState::from_bytes(&turn.to_bytes()), *turn);
    }
    let mut after = plain(all());
    after.now = before.now;
    after.switch.import(after.now, 0, &state).expect("the same version");
    assert_eq!(after.switch.export(after.now).services, state.services);
    for &(client, (backend, port)) in &open {
        // The backend may be the first to speak.
        let (_, bytes) = after.one(0, &answers(backend, port, ACK, (500, 100)).payload(vec![5; 9]));
        assert_eq!((bytes[5], reached(&bytes).1), (CLIENT, 80));
        after.go_on_with((CLIENT, client), (backend, port));
    }
}

#[test]
fn a_lost_table_finds_them_again_when_the_client_sends() {
    let all = || vec![backend(FAR, None), backend(FARTHER, None)];
    let mut before = plain(all());
    let open: Vec<_> = (1..=40).map(|port| (port, before.turn((CLIENT, port)))).collect();
    let mut after = plain(all());
    after.now = before.now;
    after.switch.recover_services(after.now);
    for &(client, (owner, port)) in &open {
        // What the backend says first is for nobody that is known.
        let early = answers(owner, port, ACK, (500, 100)).payload(vec![5; 9]);
        assert_eq!(after.send(0, &early), (dropped(Reason::ServiceUnknown), vec![]));
        for _ in 0..2 {
            let (_, bytes) = after.one(0, &asks((CLIENT, client), ACK, (100, 500)).payload(vec![1; 50]));
            let (to, asked_from) = reached(&bytes);
            if to == owner {
                assert_eq!(asked_from, port);
                break;
            }
            let reset = answers(to, asked_from, RST, (500, 0));
            assert_eq!(after.send(0, &reset).0, dropped(Reason::ServiceRetry), "the client is not told");
        }
        after.go_on_with((CLIENT, client), (owner, port));
    }
}

#[test]
fn one_client_leaves_ports_to_others() {
    let mut rig = plain(vec![backend(FAR, None)]);
    rig.set_connections(1 << 18);
    let mut full = 0u32;
    let mut opened = 0u32;
    for port in 1024..61_024u16 {
        let (verdict, out) = rig.send_for_bytes(0, &asks((CLIENT, port), SYN, (99, 0)));
        if verdict == dropped(Reason::ServiceFull) {
            full += 1;
            continue;
        }
        let asked_from = reached(&out[0].1).1;
        rig.send_for_bytes(0, &answers(FAR, asked_from, SYN_ACK, (499, 100)));
        rig.send_for_bytes(0, &asks((CLIENT, port), ACK, (100, 500)));
        opened += 1;
    }
    let most = u32::from(PORTS / 2 + PORTS / 2 / 64);
    assert!(full > 0 && (most * 9 / 10..=most).contains(&opened), "{opened} of {most}");
    // Other clients: but for one in 64, which shares its bucket.
    let others: u32 = (70..170u8).map(|n| u32::from(rig.send(0, &asks((n, 7), SYN, (99, 0))).0 == FORWARDED)).sum();
    assert!(others >= 90, "{others} of 100");
    assert!(rig.switch.service_stats(FIRST).expect("it is there").full >= u64::from(full));
}

#[test]
fn a_flood_from_made_up_addresses_leaves_ports_to_who_goes_on() {
    let mut rig = plain(vec![backend(FAR, None)]);
    rig.set_connections(1 << 20);
    let open: Vec<_> = (1..=50).map(|port| (port, rig.turn((CLIENT, port)))).collect();
    let mut failed = 0;
    for n in 0..4 * u32::from(PORTS) {
        rig.now = rig.now.plus_ns(1000);
        let made_up = IpAddr::from([10, 1, (n >> 8) as u8, n as u8]);
        let port = 1 + (n >> 16) as u16;
        let _ = rig.send(0, &wire((mac(9), MAC), (made_up, port), (at(100), 80), SYN, (9, 0)));
        if n % 1000 == 0 {
            let (verdict, out) = rig.send_for_bytes(0, &asks((CLIENT, 1000 + (n / 1000) as u16), SYN, (99, 0)));
            failed += u32::from(verdict != FORWARDED || out.len() != 1);
        }
    }
    assert_eq!(failed, 0);
    for (client, to) in open {
        rig.go_on_with((CLIENT, client), to);
    }
}

#[test]
fn nobody_outside_turns_around_what_is_an_endpoints() {
    let mut rig = plain(vec![backend(FAR, None)]);
    let own = |flags, numbers| tcp((1, 7), (100, 80), flags, numbers);
    let (_, bytes) = rig.one(1, &own(SYN, (99, 0)));
    assert_eq!(bytes, tcp((1, 7), (FAR, 8080), SYN, (99, 0)).vlan(VLAN).bytes(), "its own address");
    let answer = tcp((FAR, 8080), (1, 7), SYN_ACK, (499, 100)).vlan(VLAN);
    assert_eq!(rig.one(0, &answer), (1, seen(7, SYN_ACK, (499, 100))));
    // Somebody outside speaks as if it was the client.
    for flags in [ACK, FIN_ACK, SYN] {
        let forged = wire((mac(66), MAC), (at(1), 7), (at(100), 80), flags, (100, 500));
        let _ = rig.send_for_bytes(0, &forged);
    }
    let (_, bytes) = rig.one(1, &own(ACK, (100, 500)).payload(vec![1; 9]));
    assert_eq!(bytes, tcp((1, 7), (FAR, 8080), ACK, (100, 500)).payload(vec![1; 9]).vlan(VLAN).bytes());
    let more = tcp((FAR, 8080), (1, 7), ACK, (500, 109)).payload(vec![2; 9]).vlan(VLAN);
    assert_eq!(rig.one(0, &more).0, 1, "and is answered");
}

#[test]
fn who_speaks_from_elsewhere_has_to_know_the_connection() {
    let mut rig = plain(vec![backend(FAR, None)]);
    let (backend, port) = rig.turn((CLIENT, 7));
    let answered = |rig: &mut Rig| {
        let (_, bytes) = rig.one(0, &answers(backend, port, ACK, (500, 100)));
        bytes[5]
    };
    let from = |n: u8, ack: u32| wire((mac(n), MAC), (at(CLIENT), 7), (at(100), 80), ACK, (100, ack));
    rig.one(0, &from(66, 12_345));
    assert_eq!(answered(&mut rig), CLIENT, "a guess");
    rig.one(0, &from(66, 500));
    assert_eq!(answered(&mut rig), 66, "another router");
}

#[test]
fn an_endpoint_pays_itself_for_what_it_sends_for_a_service() {
    let mut rig = plain(vec![backend(FAR, None)]);
    rig.turn((CLIENT, 7));
    let paid = |rig: &Rig, id: u32| rig.switch.endpoint_stats(EndpointId(id)).egress.traffic.frames;
    let before = (paid(&rig, 0), paid(&rig, DIRECTOR.0));
    let quote = tcp((100, 80), (CLIENT, 7), ACK, (1, 1)).bytes()[14..42].to_vec();
    let error = eth(mac(1), MAC).ipv4(ip(1), ip(100)).icmp(3, 4, 1400).payload(quote);
    assert_eq!(rig.one(1, &error).0, 0);
    assert_eq!((paid(&rig, 0), paid(&rig, DIRECTOR.0)), (before.0 + 1, before.1));
}

#[test]
fn an_endpoints_connection_keeps_its_address_where_a_backend_refuses() {
    let mut rig = plain(vec![backend(FAR, None), backend(FARTHER, None)]);
    let (_, bytes) = rig.one(1, &tcp((1, 7), (100, 80), SYN, (99, 0)));
    let (first, second) = (bytes[5], FAR + FARTHER - bytes[5]);
    let (_, bytes) = rig.one(0, &tcp((first, 8080), (1, 7), RST | ACK, (0, 100)).vlan(VLAN));
    assert_eq!(bytes, tcp((1, 7), (second, 8080), SYN, (99, 0)).vlan(VLAN).bytes());
}

#[test]
fn clients_outside_wait_for_a_place_outside() {
    let all = vec![Backend { max_connections: Some(1), ..backend(2, Some(1)) }, backend(FAR, None)];
    let mut rig = plain(all.clone());
    let mut limited = service(Policy::RoundRobin, all);
    (limited.director, limited.hold_ns) = (Some(DIRECTOR), 3_000_000_000);
    rig.change_service(limited.clone());
    for port in 1..=4 {
        let (to, bytes) = rig.one(0, &asks((CLIENT, port), SYN, (99, 0)));
        assert_eq!((to, bytes[5]), if port == 1 { (2, 2) } else { (0, FAR) }, "the one outside is not full");
    }
    limited.backends[1].max_connections = Some(3);
    rig.change_service(limited);
    let frame = asks((CLIENT, 9), SYN, (99, 0)).frame(&mut rig.pool).expect("a buffer");
    let _ = rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame);
    assert!(rig.switch.tx(&mut rig.pool, rig.now).is_none());
    assert_eq!(rig.switch.service_stats(FIRST).map(|stats| (stats.held, stats.refused)), Some((1, 0)));
    // One of them ends: who waits is asked for, as any other is.
    let (_, out) = rig.send_for_bytes(0, &asks((CLIENT, 2), RST, (100, 0)));
    let opens = |bytes: &[u8]| parse(bytes).is_ok_and(|layout| segment(bytes, &layout).flags == SYN);
    let Some((0, bytes)) = out.iter().find(|(_, bytes)| opens(bytes)) else { panic!("{out:02x?}") };
    let (backend, port) = reached(bytes);
    let asked = wire((MAC, mac(FAR)), (at(100), port), (at(FAR), 8080), SYN, (99, 0));
    assert_eq!((backend, bytes), (FAR, &asked.bytes()), "with one tag");
}

#[test]
fn a_port_rests_before_it_is_used_again() {
    let mut rig = plain(vec![backend(FAR, None)]);
    let mut last: std::collections::HashMap<u16, Instant> = std::collections::HashMap::new();
    let mut soon = 0;
    // A hundred connections a second for three minutes, each of which ends at once.
    for n in 0..18_000u32 {
        rig.now = Instant(NOW.0 + u64::from(n) * 10_000_000);
        let client = (60 + (n % 40) as u8, 1024 + (n / 40) as u16);
        let Some((_, port)) = rig.send_for_bytes(0, &asks(client, SYN, (99, 0))).1.first().map(|(_, b)| reached(b))
        else {
            panic!("{n} found none")
        };
        let _ = rig.send_for_bytes(0, &answers(FAR, port, RST | ACK, (0, 100)));
        let began = Instant(NOW.0 + u64::from(n) * 10_000_000);
        soon += u32::from(last.insert(port, began).is_some_and(|before| began.since(before) < 60_000_000_000));
    }
    assert_eq!(soon, 0);
}

#[test]
fn a_table_that_was_made_smaller_has_room_for_all() {
    let mut rig = plain(vec![backend(FAR, None)]);
    rig.change_service(service(Policy::RoundRobin, vec![backend(2, Some(1))]));
    rig.set_connections(4096);
    for port in 1..3000u16 {
        let _ = rig.send(0, &asks((CLIENT, port), SYN, (99, 0)));
    }
    rig.set_connections(1024);
    rig.now = rig.now.plus_ns(60_000_000_000);
    rig.change_service(Service { director: Some(DIRECTOR), ..service(Policy::RoundRobin, vec![backend(FAR, None)]) });
    while rig.switch.sweep() > 0 {}
    for port in 1..200 {
        rig.turn((CLIENT, port));
    }
}

#[test]
fn a_frame_that_goes_round_ends() {
    let mut rig = plain(vec![backend(FAR, None)]);
    let last = eth(mac(CLIENT), MAC).ipv4(ip(CLIENT), ip(100)).ttl(1).udp(9, 53).payload(vec![4; 64]).vlan(VLAN);
    assert_eq!(rig.send_for_bytes(0, &last), (FORWARDED, vec![]));
    assert_eq!(rig.drops(DIRECTOR.0), [(Reason::Loop, 1)]);
}

#[test]
fn what_is_refused_of_a_service_behind_a_director_is_seen_by_agents_as_the_directors() {
    let mut rig = plain(vec![backend(FAR, None)]);
    rig.switch.watch_arrivals(true);
    let closed = eth(mac(CLIENT), MAC).ipv4(ip(CLIENT), ip(100)).udp(9, 54).payload(vec![4; 64]).vlan(VLAN);
    let (_, out) = rig.send_for_bytes(0, &closed);
    assert_eq!(out.len(), 1, "it is refused");
    let (mut arrivals, mut queues) = (Vec::new(), Vec::new());
    rig.switch.take_arrivals(&mut arrivals, &mut queues);
    let seen: Vec<_> = arrivals.iter().map(|arrival| (arrival.to, arrival.from)).collect();
    assert_eq!(seen, [(DIRECTOR, Some(mac(CLIENT)))]);
}
