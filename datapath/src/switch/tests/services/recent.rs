//! A frame of a connection that sent lately is passed on as if it went the whole way.

use super::*;
use crate::service::{Check, OnFailure};
use proptest::prelude::*;

/// What may happen: who sends, from which of a few ports, what, and after how long; or a change.
type Step = (u8, u8, u8, (u8, u8), u8);

fn frame((who, port, kind, (sequence, ack), _): Step) -> (u32, build::Build<'static>) {
    let port = 4000 + u16::from(port % 3);
    let numbers = (100 + u32::from(sequence % 4) * 50, 500 + u32::from(ack % 4) * 50);
    let flags = [ACK, ACK, ACK, ACK, ACK, SYN, SYN_ACK, FIN_ACK, RST, RST | ACK][usize::from(kind % 10)];
    let payload = vec![kind; usize::from(kind / 10 % 3) * 50];
    // A client, two backends, and the same client behind the uplink.
    if who % 9 == 8 {
        return (1, eth(mac(1), mac(4)).ipv4(ip(1), ip(4)).udp(port, 9).payload(payload));
    }
    let (at, from, to) = match who % 8 {
        0 | 1 => (1, (1, port), (100, 80)),
        2 | 3 => (2, (2, 8080), (1, port)),
        4 | 5 => (3, (3, 8080), (1, port)),
        6 => (0, (77, port), (100, 80)),
        _ => (2 + u32::from(port % 2), (2 + (port % 2) as u8, 8080), (77, port)),
    };
    let mut build = tcp(from, to, flags, numbers).payload(payload);
    if at == 1 && ack % 3 == 0 {
        // By a neighbour, as if it were the way to the service.
        build = by(4, port, flags, numbers).payload(vec![kind; usize::from(kind / 10 % 3) * 50]);
    }
    if at == 0 {
        build = build.vlan(10);
    }
    match kind % 16 {
        3 => build = build.partial(),
        5 => build = build.payload(vec![9; 3000]).gso(1000),
        7 => build = build.tcp_options(2),
        _ => {}
    }
    (at, build)
}

/// What a client asks of the service, by the address of an endpoint.
fn by(endpoint: u8, port: u16, flags: u8, numbers: (u32, u32)) -> build::Build<'static> {
    let frame = eth(mac(1), mac(endpoint)).ipv4(ip(1), ip(100)).tcp(port, 80, numbers.0);
    if flags & ACK == 0 { frame.flags(flags) } else { frame.ack(numbers.1, 1000).flags(flags) }
}

fn changed(step: Step) -> Service {
    let mut backends = vec![backend(2, Some(1)), backend(3, Some(2))];
    backends[0].weight = u32::from(step.1 % 2);
    backends[0].mac = mac(2 + step.2 % 2 * 40);
    backends.truncate(1 + usize::from(step.3.0 % 4).min(1));
    backends.iter_mut().for_each(|backend| backend.drain_ns = u64::from(step.3.1 % 2) * 1_000_000_000);
    service(Policy::RoundRobin, backends)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn is_as_if_it_went_the_whole_way(steps in prop::collection::vec(any::<Step>(), 100..400)) {
        let mut quick = rig(Policy::RoundRobin);
        let mut whole = rig(Policy::RoundRobin);
        whole.switch.services.remember_none();
        for port in 4000..4003 {
            prop_assert_eq!(quick.open(port), whole.open(port));
        }
        for step in steps {
            for rig in [&mut quick, &mut whole] {
                rig.now = rig.now.plus_ns(u64::from(step.4) * 3_000_000);
            }
            if step.0 > 250 {
                quick.change_service(changed(step));
                whole.change_service(changed(step));
                continue;
            }
            let (at, frame) = frame(step);
            prop_assert_eq!(quick.send_for_bytes(at, &frame), whole.send_for_bytes(at, &frame));
            let known = |rig: &Rig| {
                let shown = rig.switch.service_connections(rig.now, FIRST, 0..u32::MAX).map(|shown| format!("{shown:?}"));
                (rig.switch.service_stats(FIRST), format!("{:?}", rig.in_flight()), shown.collect::<Vec<_>>())
            };
            prop_assert_eq!(known(&quick), known(&whole));
            let numbers = |rig: &Rig| rig.switch.export(rig.now).services;
            prop_assert_eq!(numbers(&quick), numbers(&whole));
        }
        prop_assert_eq!(whole.switch.services.passed_recent(), 0);
    }
}

#[test]
fn all_frames_but_the_first_two_of_each_direction_are_quick_and_not_the_first_after_a_change() {
    let mut rig = rig(Policy::RoundRobin);
    let backend = rig.open(5);
    let quick = |rig: &mut Rig| {
        for _ in 0..10 {
            rig.one(1, &ask(5, ACK, (100, 500)).payload(vec![1; 50]));
            rig.one(backend.into(), &answer(backend, 5, ACK, (500, 150)).payload(vec![2; 70]));
        }
        rig.switch.services.passed_recent()
    };
    assert_eq!(quick(&mut rig), 17, "the acknowledgement of the SYN was the first");
    rig.change_service(service(Policy::P2c, vec![super::backend(2, Some(1)), super::backend(3, Some(2))]));
    assert_eq!(quick(&mut rig), 35);
    // What it says is counted: the answer's end is acknowledged, and both sides finish.
    rig.one(1, &ask(5, ACK, (150, 570)));
    assert_eq!(rig.in_flight().iter().map(|(_, busy, idle)| (busy + idle, *idle)).max(), Some((1, 1)));
    rig.one(1, &ask(5, FIN_ACK, (150, 570)));
    rig.one(backend.into(), &answer(backend, 5, FIN_ACK, (570, 151)));
    assert_eq!(rig.switch.services.passed_recent(), 36, "what closes goes the whole way");
    rig.one(1, &ask(5, ACK, (151, 571)));
    assert_eq!(rig.in_flight().iter().map(|(_, busy, idle)| busy + idle).sum::<u32>(), 0);
}

#[test]
fn who_asks_by_a_neighbours_address_reaches_the_backend_whatever_else_goes_to_the_neighbour() {
    let mut rig = rig(Policy::RoundRobin);
    let backend = rig.open(5);
    for n in 0..6 {
        let mine = eth(mac(1), mac(4)).ipv4(ip(1), ip(4)).udp(7, 9);
        assert_eq!(rig.one(1, &mine).0, 4);
        assert_eq!(rig.one(1, &by(4, 5, ACK, (101, 501))).0, u32::from(backend), "frame {n}");
    }
    assert!(rig.switch.services.passed_recent() >= 4);
}

/// Two tenants, in networks of their own: the second one's service checks its only backend.
fn two_tenants(on_failure: OnFailure) -> Rig {
    let attachments = [Attachment::Vlan(10), Attachment::Vlan(20)];
    Rig::new(&attachments, &[(0, 1), (0, 2), (1, 1), (1, 2)], |program| {
        let check = Check { fall: 1, ..Check::default() };
        program.services.push(service(Policy::RoundRobin, vec![backend(2, Some(1))]));
        program.services.push(Service {
            tenant: TenantId(1),
            check: Some(check),
            on_failure,
            ..service(Policy::RoundRobin, vec![backend(2, Some(3))])
        });
    })
}

/// Frames at a time, by port.
fn at_once(rig: &mut Rig, frames: &[(u32, build::Build<'_>)]) {
    for (at, frame) in frames {
        let frame = frame.frame(&mut rig.pool).expect("a buffer");
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(*at), frame), FORWARDED);
        while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            rig.pool.free(frame);
        }
    }
}

/// How many of four more frames of a client are quick.
fn quick(rig: &mut Rig, client: u32) -> u64 {
    let before = rig.switch.services.passed_recent();
    at_once(rig, &[0; 4].map(|_| (client, ask(5, ACK, (100, 500)))));
    rig.switch.services.passed_recent() - before
}

#[test]
fn a_backend_that_goes_down_makes_only_its_own_network_go_the_whole_way_and_only_where_it_matters() {
    for (on_failure, own) in [(OnFailure::Keep, 4), (OnFailure::Reset, 0)] {
        let mut rig = two_tenants(on_failure);
        for client in [1, 3] {
            at_once(&mut rig, &[(client, ask(5, SYN, (99, 0))), (client + 1, answer(2, 5, SYN_ACK, (499, 100)))]);
            quick(&mut rig, client);
            assert_eq!(quick(&mut rig, client), 4);
        }
        // Nobody answers its checks.
        let until = rig.now.plus_ns(2_500_000_000);
        while let Some(due) = rig.switch.poll_timeout().filter(|&due| due <= until) {
            rig.now = rig.now.max(due);
            while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
                rig.pool.free(frame);
            }
        }
        assert!(rig.switch.service_backends(ServiceId(1)).all(|(.., stats)| stats.is_down));
        assert_eq!([1, 3].map(|client| quick(&mut rig, client)), [4, own], "{on_failure:?}");
    }
}
