//! A backend that is drained keeps its connections for a while, and then both sides are told.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn drained(seconds: u64, weight: u32) -> Service {
    let mut two = service(Policy::RoundRobin, vec![backend(2, Some(1)), backend(3, Some(2))]);
    two.backends.iter_mut().for_each(|backend| backend.drain_ns = seconds * SECOND);
    two.backends[0].weight = weight;
    two
}

/// Sends a frame that is explained alike; what leaves for it.
fn all(rig: &mut Rig, port: u32, frame: &build::Build<'_>) -> Vec<(u32, Vec<u8>)> {
    let explained = {
        let frame = frame.frame(&mut rig.pool).expect("a buffer");
        let explained = rig.switch.explain(&rig.pool, rig.now, PortId(port), &frame);
        rig.pool.free(frame);
        explained
    };
    let (verdict, mut out) = rig.send_for_bytes(port, frame);
    assert_eq!(explained.verdict, verdict, "{explained}");
    out.sort();
    out
}

fn first(rig: &Rig) -> crate::service::BackendStats {
    rig.switch.service_backends(FIRST).next().unwrap().2
}

#[test]
fn it_keeps_its_connections_until_then_and_both_sides_get_a_reset_that_they_take() {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(drained(10, 1));
    assert_eq!([rig.open(1), rig.open(2), rig.open(3)], [2, 3, 2]);
    rig.change_service(drained(10, 0));
    let end = rig.now.plus_ns(10 * SECOND);
    assert_eq!(first(&rig).drained_at, Some(end));
    assert!((10..20).all(|port| rig.open(port) == 3));
    rig.now = Instant(end.0 - 1);
    assert_eq!(rig.one(1, &ask(1, ACK, (100, 500))).0, 2, "not yet");
    rig.now = end;
    // The client speaks: the server sees a reset with the number it expects, the client one with
    // the number that it has acknowledged.
    let request = ask(1, ACK, (100, 500)).payload(vec![1; 50]);
    let wanted = [
        (1, tcp((100, 80), (1, 1), RST, (500, 0)).ack(0, 0).flags(RST).bytes()),
        (2, tcp((1, 1), (2, 8080), ACK, (100, 500)).ack(500, 0).flags(RST | ACK).bytes()),
    ];
    assert_eq!(all(&mut rig, 1, &request), wanted);
    assert_eq!((first(&rig).cut, first(&rig).busy), (1, 1));
    // The server speaks, in one large frame.
    let large = answer(2, 3, ACK, (500, 100)).payload(vec![5; 9000]).gso(1460);
    let wanted = [
        (1, tcp((100, 80), (1, 3), ACK, (500, 100)).ack(100, 0).flags(RST | ACK).bytes()),
        (2, tcp((1, 3), (2, 8080), RST, (100, 0)).ack(0, 0).flags(RST).bytes()),
    ];
    let got = all(&mut rig, 2, &large);
    assert_eq!(got[0], wanted[0]);
    assert_eq!((got[1].0, &got[1].1[14..]), (2, &wanted[1].1[14..]));
    assert_eq!((first(&rig).cut, first(&rig).busy), (2, 0));
    // Whoever goes on is told again, and nobody else.
    let again = all(&mut rig, 1, &ask(1, ACK, (100, 500)));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].0, 1);
    // Others' connections go on, and the same client is served anew.
    assert_eq!(rig.one(1, &ask(2, ACK, (100, 500))).0, 3);
    assert_eq!(rig.open(1), 3);
}

#[test]
fn without_a_time_they_last_and_with_a_weight_it_is_drained_no_more() {
    let mut rig = rig(Policy::RoundRobin);
    assert_eq!(rig.open(1), 2);
    rig.change_service(drained(0, 0));
    rig.now = rig.now.plus_ns(3600 * SECOND);
    assert_eq!(rig.one(1, &ask(1, ACK, (100, 500))).0, 2);
    assert_eq!(first(&rig).drained_at, None);
    rig.change_service(drained(10, 0));
    rig.now = rig.now.plus_ns(5 * SECOND);
    rig.change_service(drained(10, 1));
    rig.now = rig.now.plus_ns(3600 * SECOND);
    assert_eq!(rig.one(1, &ask(1, ACK, (100, 500))).0, 2);
    assert_eq!(first(&rig).cut, 0);
}

#[test]
fn a_client_outside_is_told_in_its_vlan() {
    let mut rig = rig(Policy::RoundRobin);
    let far = |build: build::Build<'static>| build.vlan(10);
    assert_eq!(rig.one(0, &far(tcp((77, 5), (100, 80), SYN, (99, 0)))).0, 2);
    rig.one(2, &tcp((2, 8080), (77, 5), SYN_ACK, (499, 100)));
    rig.change_service(drained(1, 0));
    rig.now = rig.now.plus_ns(SECOND);
    let out = all(&mut rig, 0, &far(tcp((77, 5), (100, 80), ACK, (100, 500))));
    assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(out[0].1, far(tcp((100, 80), (77, 5), RST, (500, 0)).ack(0, 0).flags(RST)).bytes());
    assert_eq!(out[1].1, tcp((77, 5), (2, 8080), ACK, (100, 500)).ack(500, 0).flags(RST | ACK).bytes());
}

#[test]
fn a_reset_to_a_client_outside_leaves_under_its_backends_own_address_as_all_that_this_sends() {
    let mut rig = rig(Policy::RoundRobin);
    let far = |build: build::Build<'static>| build.vlan(10);
    rig.one(0, &far(tcp((77, 5), (100, 80), SYN, (99, 0))));
    let (_, usual) = rig.one(2, &tcp((2, 8080), (77, 5), SYN_ACK, (499, 100)));
    assert_eq!(crate::wire::source(&usual), mac(2));
    rig.change_service(drained(1, 0));
    rig.now = rig.now.plus_ns(SECOND);
    let out = all(&mut rig, 2, &tcp((2, 8080), (77, 5), ACK, (500, 100)));
    assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0, 2]);
    let sent = |frame: &[u8]| (crate::wire::source(frame), Tcp::of(frame, &parse(frame).unwrap()).unwrap().flags());
    assert_eq!(sent(&out[0].1), (mac(2), RST | ACK), "whoever it is that sends");
    assert_eq!(sent(&out[1].1), (MAC, RST), "to a neighbour it is the service");
}

#[test]
fn each_backend_has_a_time_of_its_own() {
    let mut rig = rig(Policy::RoundRobin);
    assert_eq!([rig.open(1), rig.open(2)], [2, 3]);
    let mut service = drained(10, 0);
    (service.backends[1].weight, service.backends[1].drain_ns) = (0, SECOND);
    rig.change_service(service);
    rig.now = rig.now.plus_ns(2 * SECOND);
    assert_eq!(rig.one(1, &ask(1, ACK, (100, 500))).0, 2);
    assert_eq!(all(&mut rig, 1, &ask(2, ACK, (100, 500))).len(), 2, "both sides are told");
}
