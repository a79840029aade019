//! An uplink of several ports.

use super::*;
use crate::bond::{BondSettings, Duplex, HashPolicy, MemberState, Mode, Negotiated, Way};
use crate::frame_trace::Step;
use crate::program::{Change, ChangeError, Member};

const GBIT: Rate = Rate(Rate::GBIT);
/// Ports of the members: the uplink's own, and those behind the endpoints'.
const PORTS: [u32; 3] = [0, 3, 4];

fn uplink(mode: Mode, ports: &[u32]) -> Uplink {
    let rate = Both { egress: GBIT, ingress: GBIT };
    let members = ports.iter().map(|&port| Member { port: PortId(port), rate }).collect();
    let bond = Some(BondSettings { mode, ..BondSettings::default() });
    Uplink { members, bond, ..Uplink::new(UPLINK, rate) }
}

/// Two endpoints, and an uplink of these ports.
fn rig(mode: Mode, ports: &[u32]) -> Rig {
    Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
        program.ports = vec![PortFeatures::default(); 6].into();
        program.uplink = Some(uplink(mode, ports));
    })
}

impl Rig {
    fn set_member(&mut self, member: u8, state: MemberState) {
        self.switch.set_member_state(&mut self.pool, self.now, MemberId(member), state);
    }

    fn all_up(mut self) -> Rig {
        (0..PORTS.len() as u8).for_each(|member| self.set_member(member, MemberState::Distributing));
        self
    }

    fn change(&mut self, change: Change) -> Result<(), ChangeError> {
        self.switch.change(&mut self.pool, self.now, change)
    }
}

#[test]
fn frames_leave_by_the_members_in_turn_and_come_by_any() {
    let mut rig = rig(Mode::BalanceRr, &PORTS).all_up();
    let out: Vec<u32> = (0..6).flat_map(|_| rig.send(1, &udp(1, 9)).1).collect();
    assert_eq!(out, [0, 3, 4, 0, 3, 4]);
    for port in PORTS {
        assert_eq!(rig.send(port, &udp(9, 2).vlan(10)), (FORWARDED, vec![2]));
    }
    let carried: Vec<_> = rig.switch.members().map(|m| m.counts.traffic).collect();
    assert!(carried.iter().all(|traffic| (traffic.egress.frames, traffic.ingress.frames) == (2, 1)), "{carried:?}");
}

/// What a trace says of the way behind the queue.
fn way(rig: &mut Rig, port: u32, frame: &build::Build<'_>) -> Option<Result<Way, Reason>> {
    let frame = frame.frame(&mut rig.pool).expect("a buffer");
    let trace = rig.switch.explain(&rig.pool, rig.now, PortId(port), &frame);
    rig.pool.free(frame);
    trace.steps.iter().find_map(|step| if let Step::Member(way) = step { Some(*way) } else { None })
}

#[test]
fn a_trace_names_the_member_that_carries_a_frame() {
    let of = |mode, hash, packets_per_member| {
        let mut uplink = uplink(mode, &PORTS);
        uplink.bond = uplink.bond.map(|bond| BondSettings { hash, packets_per_member, ..bond });
        uplink
    };
    let layers = [HashPolicy::Layer2, HashPolicy::Layer23, HashPolicy::Layer34, HashPolicy::VlanSrcmac];
    let by_hash = layers.map(|hash| of(Mode::BalanceXor, hash, 1));
    let usual = HashPolicy::default();
    let others = [(Mode::BalanceRr, 1), (Mode::BalanceRr, 3), (Mode::BalanceRr, 0), (Mode::ActiveBackup, 1)];
    for uplink in by_hash.into_iter().chain(others.map(|(mode, packets)| of(mode, usual, packets))) {
        let mut rig = rig(Mode::BalanceRr, &PORTS);
        rig.change(Change::Uplink(Some(uplink.clone()))).expect("it fits");
        let mut rig = rig.all_up();
        rig.switch.set_active_member(&mut rig.pool, rig.now, Some(MemberId(1)));
        let mut used = std::collections::BTreeSet::new();
        for n in 0..60u8 {
            let frame = eth(mac(1), mac(100 + n)).ipv4(ip(1), ip(100 + n)).udp(n.into(), 2000).payload(vec![7; 100]);
            let Some(Ok(Way::Over(member))) = way(&mut rig, 1, &frame) else { panic!("{uplink:?}") };
            assert_eq!(rig.send(1, &frame), (FORWARDED, vec![PORTS[usize::from(member.0)]]), "{uplink:?}");
            used.insert(member);
        }
        let alone = uplink.bond.is_some_and(|bond| bond.mode == Mode::ActiveBackup || bond.hash == layers[3]);
        assert!(if alone { used.len() == 1 } else { used.len() > 1 });
    }
    let mut rig = rig(Mode::Broadcast, &PORTS).all_up();
    assert_eq!(way(&mut rig, 1, &udp(1, 9)), Some(Ok(Way::Copies(3, None))));
    (0..3).for_each(|member| rig.set_member(member, MemberState::Down));
    assert_eq!(way(&mut rig, 1, &udp(1, 9)), Some(Err(Reason::PortDown)));
}

/// What a backend answers leaves under its own Ethernet address, and what a director sends on under
/// the service's: by these a member is chosen.
#[test]
fn a_trace_names_the_member_that_carries_what_goes_through_a_service() {
    use super::services::{MAC, backend, service};
    use crate::service::choose::Policy;
    use crate::service::{Service, ServiceId};
    use crate::wire::tcp_flags::{ACK, SYN};
    const MEMBERS: [u32; 2] = [0, 4];
    for hash in [HashPolicy::Layer2, HashPolicy::Layer34] {
        let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 0)], |program| {
            program.ports = vec![PortFeatures::default(); 6].into();
            let mut uplink = uplink(Mode::BalanceXor, &MEMBERS);
            uplink.bond = uplink.bond.map(|bond| BondSettings { hash, ..bond });
            program.uplink = Some(uplink);
            (program.endpoints[2].is_director, program.endpoints[2].max_learned) = (true, 0);
        });
        (0..2).for_each(|member| rig.set_member(member, MemberState::Distributing));
        let backends = vec![backend(1, Some(0)), backend(2, Some(1)), backend(50, None)];
        let all = Service { director: Some(EndpointId(2)), ..service(Policy::RoundRobin, backends) };
        rig.change(Change::Service(ServiceId(0), Some(all))).expect("it fits");
        let over = |port: u32| MEMBERS.iter().position(|&at| at == port).map(|at| Ok(Way::Over(MemberId(at as u8))));
        let mut turned = 0;
        for client in 60..72u8 {
            let ask = eth(mac(client), MAC).ipv4(ip(client), ip(100)).tcp(5, 80, 1).flags(SYN).vlan(10);
            let told = way(&mut rig, 0, &ask);
            let (_, out) = rig.send(0, &ask);
            let [to] = out[..] else { panic!("{out:?}") };
            if over(to).is_some() {
                assert_eq!(told, over(to), "{hash:?}: turned around for {client}");
                turned += 1;
                continue;
            }
            let answer = eth(mac(to as u8), mac(client)).ipv4(ip(to as u8), ip(client));
            let answer = answer.tcp(8080, 5, 9).ack(2, 1000).flags(SYN | ACK);
            let told = way(&mut rig, to, &answer);
            let (_, out) = rig.send(to, &answer);
            let [member] = out[..] else { panic!("{out:?}") };
            assert_eq!(told, over(member), "{hash:?}: from {to} to {client}");
        }
        assert_eq!(turned, 4);
    }
}

#[test]
fn a_backup_is_neither_sent_to_nor_received_from() {
    let mut rig = rig(Mode::ActiveBackup, &PORTS).all_up();
    assert_eq!(rig.send(1, &udp(1, 9)), (FORWARDED, vec![]), "nobody is active yet");
    assert_eq!(rig.drops(0), [(Reason::MemberFull, 1)]);
    rig.switch.set_active_member(&mut rig.pool, rig.now, Some(MemberId(1)));
    assert_eq!(rig.send(1, &udp(1, 9)), (FORWARDED, vec![3]));
    assert_eq!(rig.send(3, &udp(9, 2).vlan(10)), (FORWARDED, vec![2]));
    assert_eq!(rig.send(0, &udp(9, 2).vlan(10)), (dropped(Reason::MemberInactive), vec![]));
}

/// What is said of a frame from the uplink is said of one that is received, where any would be.
#[test]
fn a_frame_that_is_for_the_uplink_comes_in_where_it_is_received() {
    for (mode, wanted) in [(Mode::ActiveBackup, 3), (Mode::BalanceRr, 0), (Mode::Broadcast, 0)] {
        let mut rig = rig(mode, &PORTS).all_up();
        assert_eq!(rig.switch.receiving_port(UPLINK), PortId(0), "{mode:?}: none is active, or any is received from");
        rig.switch.set_active_member(&mut rig.pool, rig.now, Some(MemberId(1)));
        for member in PORTS {
            assert_eq!(rig.switch.receiving_port(PortId(member)), PortId(wanted), "{mode:?}");
        }
        assert_eq!(rig.switch.receiving_port(PortId(1)), PortId(1), "an endpoint's");
    }
}

#[test]
fn without_a_member_frames_are_dropped_by_their_reason() {
    let mut rig = rig(Mode::BalanceRr, &PORTS);
    assert_eq!(rig.send(1, &udp(1, 9)), (FORWARDED, vec![]));
    assert_eq!(rig.drops(0), [(Reason::PortDown, 1)]);
}

/// The other end may know sooner that a link is up, and this one may wait for longer (`updelay`).
#[test]
fn what_balances_is_received_over_members_that_are_not_used_yet() {
    for (mode, wanted) in [
        (Mode::BalanceRr, (FORWARDED, vec![2])),
        (Mode::BalanceXor, (FORWARDED, vec![2])),
        (Mode::Broadcast, (FORWARDED, vec![2])),
        (Mode::ActiveBackup, (dropped(Reason::MemberInactive), vec![])),
        (Mode::Lacp, (dropped(Reason::MemberInactive), vec![])),
    ] {
        let mut rig = rig(mode, &PORTS);
        assert_eq!(rig.send(0, &udp(9, 2).vlan(10)), wanted, "{mode:?}");
    }
}

#[test]
fn the_links_rate_follows_its_members() {
    let mut rig = rig(Mode::BalanceRr, &PORTS).all_up();
    let rate = |rig: &Rig| rig.switch.uplink_rate().expect("there is an uplink").egress;
    assert_eq!(rate(&rig), Rate(3 * GBIT.0));
    rig.set_member(1, MemberState::Down);
    assert_eq!(rate(&rig), Rate(2 * GBIT.0));
    // What is offered for 10 ms at three times the rate of two members leaves at their rate.
    let mut left = 0u64;
    for step in 0..1000 {
        rig.now = NOW.plus_ns(step * 10_000);
        for _ in 0..4 {
            let frame = udp(1, 9).payload(vec![0; 1400]).frame(&mut rig.pool).expect("room");
            rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame);
        }
        while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            assert!(port != PortId(3));
            left += u64::from(rig.pool.meta(&frame).wire_bytes);
            rig.pool.free(frame);
        }
    }
    let wanted = Rate(2 * GBIT.0).bytes_in(10_000_000);
    let burst = Rate(2 * GBIT.0).bytes_in(400_000);
    assert!(left > wanted * 95 / 100 && left <= wanted + burst, "{left} of {wanted} bytes");
    rig.switch.clear(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);
}

/// Links that have negotiated less than they are configured for: the schedulers' rate is what they
/// carry, and guarantees, which do not fit any more, shrink in proportion as when a member is lost.
#[test]
fn guarantees_shrink_with_links_that_have_become_slower() {
    const MBIT: u64 = 1_000_000;
    let mut rig = Rig::new(&[Attachment::Vlan(10), Attachment::Vlan(20)], &[(0, 1), (1, 2)], |program| {
        program.ports = vec![PortFeatures::default(); 6].into();
        program.uplink = Some(uplink(Mode::BalanceRr, &PORTS));
        for (tenant, gbit) in [(0, 2), (1, 1)] {
            program.tenants[tenant].share.egress.guarantee = Rate(gbit * GBIT.0);
        }
    })
    .all_up();
    for member in 0..PORTS.len() as u8 {
        let negotiated = Some(Negotiated { mbit: Some(100), duplex: Duplex::Full });
        rig.switch.set_member_negotiated(&mut rig.pool, rig.now, MemberId(member), negotiated);
    }
    assert_eq!(rig.switch.uplink_rate().expect("there is an uplink").egress, Rate(300 * MBIT));
    let views: Vec<_> = rig.switch.members().map(|view| (view.rate, view.configured)).collect();
    assert_eq!(views, [(Rate(100 * MBIT), GBIT); 3]);
    // Both offer more than that for 100 ms.
    let mut left = [0u64; 2];
    for step in 0..10_000 {
        rig.now = NOW.plus_ns(step * 10_000);
        for (port, from) in [(1, 1), (2, 2)] {
            let frame = udp(from, 9).payload(vec![0; 1400]).frame(&mut rig.pool).expect("room");
            rig.switch.rx(&mut rig.pool, rig.now, PortId(port), frame);
        }
        while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            let tenant = usize::from(rig.pool.bytes(&frame)[6..12] == mac(2).0);
            left[tenant] += u64::from(rig.pool.meta(&frame).wire_bytes);
            rig.pool.free(frame);
        }
    }
    let wanted = [200, 100].map(|mbit| Rate(mbit * MBIT).bytes_in(100_000_000));
    for tenant in 0..2 {
        let (left, wanted) = (left[tenant], wanted[tenant]);
        assert!(left.abs_diff(wanted) * 100 <= wanted * 4, "tenant {tenant}: {left} of {wanted} bytes");
    }
    rig.switch.clear(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);
}

#[test]
fn members_come_and_go_while_frames_pass() {
    let mut rig = rig(Mode::BalanceRr, &PORTS).all_up();
    rig.change(Change::Uplink(Some(uplink(Mode::BalanceRr, &[0, 4, 5])))).expect("it fits");
    let states: Vec<_> = rig.switch.members().map(|m| (m.port.0, m.state)).collect();
    use MemberState::{Distributing, Down};
    assert_eq!(states, [(0, Distributing), (4, Distributing), (5, Down)], "who stays keeps its state");
    assert_eq!(rig.send(3, &udp(9, 2).vlan(10)), (dropped(Reason::Unknown), vec![]), "3 is no member any more");
    let out: Vec<u32> = (0..4).flat_map(|_| rig.send(1, &udp(1, 9)).1).collect();
    assert!(out.iter().all(|port| [0, 4].contains(port)) && out.len() == 4, "{out:?}");
    let rate = Both { egress: GBIT, ingress: GBIT };
    rig.change(Change::Uplink(Some(Uplink::new(UPLINK, rate)))).expect("it fits");
    assert_eq!(rig.send(1, &udp(1, 9)), (FORWARDED, vec![0]), "one port, that of the uplink");
    assert_eq!(rig.send(0, &udp(9, 2).vlan(10)), (FORWARDED, vec![2]));
    assert!(rig.switch.members().next().is_none());
}

#[test]
fn members_that_do_not_fit_are_refused() {
    let mut rig = rig(Mode::BalanceRr, &[0, 3]);
    let many: Vec<u32> = (0..17).collect();
    for (ports, why) in [
        (vec![], ChangeError::BadMembers(0)),
        (many, ChangeError::BadMembers(17)),
        (vec![0, 0], ChangeError::PortInUse(PortId(0))),
        (vec![0, 1], ChangeError::PortInUse(PortId(1))),
        (vec![0, 9], ChangeError::UnknownPort(PortId(9))),
    ] {
        assert_eq!(rig.change(Change::Uplink(Some(uplink(Mode::BalanceRr, &ports)))), Err(why), "{ports:?}");
    }
    assert_eq!(rig.change(Change::Port(PortId(3), None)), Err(ChangeError::PortInUse(PortId(3))));
}

#[test]
fn what_a_service_says_itself_leaves_by_a_member_that_is_up() {
    use crate::service::{Address, Service, ServiceId};
    use crate::wire::protocol;
    for mode in [Mode::ActiveBackup, Mode::BalanceXor] {
        let mut rig = rig(mode, &PORTS).all_up();
        let service = Service {
            mac: mac(100),
            addresses: vec![Address { ip: ip(100).into(), protocol: protocol::TCP, port: 80 }],
            ..Service::default()
        };
        rig.change(Change::Service(ServiceId(0), Some(service))).unwrap();
        rig.switch.set_active_member(&mut rig.pool, rig.now, Some(MemberId(0)));
        let asks = build::arp_request(mac(77), ip(77), ip(100)).vlan(10);
        let first = rig.send(PORTS[0], &asks).1;
        assert!(matches!(first[..], [port] if port == PORTS[0] || mode.hashes()), "{mode:?}: {first:?}");
        rig.set_member(0, MemberState::Down);
        rig.switch.set_active_member(&mut rig.pool, rig.now, Some(MemberId(1)));
        let second = rig.send(PORTS[1], &asks).1;
        assert!(
            matches!(second[..], [port] if port == PORTS[1] || mode.hashes() && port != PORTS[0]),
            "{mode:?}: {second:?}"
        );
    }
}
