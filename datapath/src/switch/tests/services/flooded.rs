//! Floods of segments and datagrams of connections that nobody has opened.

use super::*;
use crate::program::Change;
use crate::service::connections::LEAST_CONNECTIONS;
use crate::service::entry::State;

/// Who floods: an endpoint of the first tenant.
const THIEF: u32 = 5;
/// The ports of those who suffer, and of their backends: of the same tenant, and of another.
const CLIENTS: [u32; 2] = [1, 6];
const BACKENDS: [u32; 2] = [2, 7];
/// What each has open before, of TCP and of UDP, and from which ports: none at which the guard
/// looks for DHCP.
const OPEN: u16 = 40;
const FIRST_PORT: u16 = 1000;

fn two_tenants() -> Rig {
    let all = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1), (1, 2)];
    let mut rig = Rig::new(&[Attachment::Vlan(10), Attachment::Vlan(20)], &all, |program| {
        let one = |endpoint| service(Policy::P2c, vec![backend(2, Some(endpoint))]);
        program.services.push(one(1));
        program.services.push(Service { tenant: TenantId(1), ..one(6) });
    });
    rig.switch.change(&mut rig.pool, rig.now, Change::Connections(LEAST_CONNECTIONS)).expect("it fits");
    rig
}

fn query(port: u16) -> build::Build<'static> {
    eth(mac(1), MAC).ipv4(ip(1), ip(100)).udp(port, 53).payload(vec![1; 9])
}

fn reply(port: u16) -> build::Build<'static> {
    eth(mac(2), mac(1)).ipv4(ip(2), ip(1)).udp(8080, port).payload(vec![2; 9])
}

/// The frames of a flood, each of another connection.
#[derive(Clone, Copy, Debug)]
enum Flood {
    Tcp(u8),
    Udp,
}

impl Flood {
    fn send(self, rig: &mut Rig, n: u32) {
        let (source, port) = (Ipv4Addr::from(0x0a01_0000 + n / 50_000), FIRST_PORT + (n % 50_000) as u16);
        let frame = eth(mac(5), MAC).ipv4(source, ip(100));
        let frame = match self {
            Flood::Tcp(flags) => frame.tcp(port, 80, n).ack(n, 1000).flags(flags),
            Flood::Udp => frame.udp(port, 53),
        };
        let (_, to) = rig.send(THIEF, &frame);
        // Its backend knows nothing of it. Half of its resets are late.
        if let (Flood::Tcp(_), [2], 0) = (self, &to[..], n % 2) {
            let reset = eth(mac(2), mac(5)).ipv4(ip(2), source).tcp(8080, port, n).flags(RST);
            rig.send(2, &reset);
        }
        rig.now = rig.now.plus_ns(1000);
    }
}

/// Opens a connection and begins a flow, while `meanwhile` happens. Whether both were had.
fn opens(rig: &mut Rig, whose: usize, port: u16, mut meanwhile: impl FnMut(&mut Rig)) -> bool {
    let (client, backend) = (CLIENTS[whose], BACKENDS[whose]);
    let asked = [ask(port, SYN, (99, 0)), query(port)].map(|frame| rig.send(client, &frame).1 == [backend]);
    meanwhile(rig);
    let answers = [answer(2, port, SYN_ACK, (499, 100)), reply(port)];
    let answered = answers.map(|frame| rig.send(backend, &frame).1 == [client]);
    let follows = rig.send(client, &ask(port, ACK, (100, 500))).1 == [backend];
    asked == [true; 2] && answered == [true; 2] && follows
}

/// How many of a client's connections and flows are there, by state.
fn kept(rig: &Rig, whose: usize) -> [usize; 2] {
    let shown = || rig.switch.service_connections(rig.now, ServiceId(whose as u32), 0..u32::MAX);
    [State::Open, State::TwoWay]
        .map(|state| shown().filter(|shown| shown.client == IpAddr::from(ip(1)) && shown.state == state).count())
}

#[test]
fn made_up_segments_and_datagrams_take_nothing_of_others() {
    for flood in [Flood::Tcp(ACK), Flood::Tcp(FIN_ACK), Flood::Udp] {
        let mut rig = two_tenants();
        for port in (FIRST_PORT..).take(OPEN.into()) {
            assert!(opens(&mut rig, 0, port, |_| {}) && opens(&mut rig, 1, port, |_| {}));
        }
        let mut sent = 0..;
        let mut some = |rig: &mut Rig, most: usize| {
            sent.by_ref().take(most).for_each(|n| flood.send(rig, n));
        };
        for port in (FIRST_PORT + OPEN..).take(OPEN.into()) {
            some(&mut rig, 10 * LEAST_CONNECTIONS as usize / usize::from(OPEN));
            for whose in [0, 1] {
                assert!(opens(&mut rig, whose, port, |rig| some(rig, 16)), "{flood:?}: {whose}, {port}");
            }
        }
        for whose in [0, 1] {
            assert_eq!(kept(&rig, whose), [usize::from(2 * OPEN); 2], "{flood:?}: {whose}");
        }
        // What the flood has is at most a bucket's half of what its tenant may have, which is its
        // own quarter of the table and the common half.
        let held = rig.switch.connections().0 - 8 * u32::from(OPEN);
        assert!((1..=LEAST_CONNECTIONS * 3 / 8).contains(&held), "{flood:?}: {held}");
    }
}

/// Segments count as in flight nowhere until both sides know the connection; datagrams do, as each
/// may be a question.
#[test]
fn made_up_segments_are_not_in_flight() {
    for (flood, busy) in [(Flood::Tcp(ACK), 0), (Flood::Tcp(FIN_ACK), 0), (Flood::Udp, 100)] {
        let mut rig = two_tenants();
        (0..100).for_each(|n| flood.send(&mut rig, n));
        assert_eq!(rig.in_flight()[0].1, busy, "{flood:?}");
    }
}
