//! As many connections as one switch is promised to keep.

use super::*;

const ENDPOINTS: u32 = 16;
const EACH: u32 = 62_500;

/// A guest of an endpoint, or its peer that has this number, sends; what is on the wire, or what
/// the guest sees.
fn pass(rig: &mut Rig, (endpoint, peer): (u32, u32), is_sent: bool, says: &Says) -> Segment {
    let [_, _, high, low] = peer.to_be_bytes();
    let ips = [Ipv4Addr::new(10, 9, high, low), Ipv4Addr::new(10, 0, 0, endpoint as u8 + 1)];
    let macs = [Mac([2, 0, 0, 9, 0, 1]), Mac([2, 0, 0, 0, 0, endpoint as u8 + 1])];
    let [from, to] = if is_sent { [1, 0] } else { [0, 1] };
    let ports = if is_sent { [80, 40_000] } else { [40_000, 80] };
    let bytes = eth(macs[from], macs[to])
        .ipv4(ips[from], ips[to])
        .tos(says.ecn)
        .tcp(ports[0], ports[1], says.seq)
        .flags(says.flags)
        .ack(says.ack, says.window)
        .payload(vec![0; says.payload])
        .bytes();
    let frame = rig.pool.alloc_from(&bytes).unwrap();
    rig.pool.meta_mut(&frame).layout = parse(&bytes).unwrap();
    if is_sent {
        assert_eq!(rig.sides[SERVER].send(&mut rig.pool, rig.now, EndpointId(endpoint), &frame), Ok(()));
    } else {
        rig.sides[SERVER].receive(&mut rig.pool, rig.now, EndpointId(endpoint), &frame);
    }
    rig.read(frame)
}

#[test]
fn a_million_connections_are_open_and_each_is_translated() {
    let mut rig = Rig::new([Mode::Off, Mode::Off]);
    // Nobody has more than what is free beside what all of his have.
    rig.sides[SERVER].set_flows(3 * ENDPOINTS * EACH / 2);
    for n in 0..ENDPOINTS {
        let owner = Owner { tenant: TenantId(n), endpoint: EndpointId(n) };
        rig.sides[SERVER].set(owner, Mode::Echo.into());
    }
    while rig.sides[SERVER].go_on() > 0 {}
    let all = || (0..EACH).flat_map(|peer| (0..ENDPOINTS).map(move |endpoint| (endpoint, peer)));
    for one in all() {
        let asks = SYN | tcp_flags::ECE | tcp_flags::CWR;
        pass(&mut rig, one, false, &Says { seq: 100, flags: asks, window: 64_240, ..Says::default() });
        pass(&mut rig, one, true, &Says { seq: 200, ack: 101, flags: SYN | ACK, window: 65_160, ..Says::default() });
        pass(&mut rig, one, false, &Says { seq: 101, ack: 201, flags: ACK, window: 502, ..Says::default() });
        rig.now = rig.now.plus_ns(1000);
    }
    let open = |rig: &Rig| -> u32 {
        (0..ENDPOINTS).map(|n| rig.sides[SERVER].connections().count(EndpointId(n), Class::Open)).sum()
    };
    assert_eq!(open(&rig), ENDPOINTS * EACH);
    assert_eq!(rig.sides[SERVER].connections().len(), 1_000_000);
    let (mut capable, mut hidden) = (0, 0);
    for one in all() {
        let data = Says { seq: 201, ack: 101, flags: ACK, window: 509, payload: 100, ..Says::default() };
        capable += u32::from(pass(&mut rig, one, true, &data).ecn == ecn::ECT0);
        let marked = Says { seq: 101, ack: 301, ecn: ecn::CE, payload: 100, ..data };
        hidden += u32::from(pass(&mut rig, one, false, &marked).ecn == ecn::NOT);
    }
    assert_eq!((capable, hidden, open(&rig)), (1_000_000, 1_000_000, 1_000_000));
}
