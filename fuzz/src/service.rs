//! Any frames of a client, of backends (answers to health checks too) and from outside, turned
//! around there too, in a VLAN or in a tunnel, through a switch with services, while backends come
//! and go and the switch is taken over: no panic, no frame lost, what is explained is what happens,
//! and no more is kept than the table may have.

use datapath::frame::{Pool, PoolLimits};
use datapath::overlay::{Overlay, Peer, Vtep};
use datapath::program::{Attachment, Change, PortId, Program, TenantId};
use datapath::service::{ConnectionState, OnFailure, ServiceId};
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::wire::build::{Build, eth};
use datapath::wire::{Ipv4, Mac, Tcp, parse};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a step.
pub const STEP: usize = 12;
/// Steps of one case at most.
const MOST: usize = 400;
/// Connections that the switch may have.
const CONNECTIONS: u32 = 1024;

const HOST: &str = r#"
[daemon]
name = "t"
[[switch]]
name = "s1"
connections = 1024
[switch.uplink]
port = "tap://up"
rate = "1 Gbit/s"
[[switch.tenant]]
name = "red"
vlan = 10
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://red1"
mac = "02:00:00:00:00:01"
ip = ["10.0.0.1", "fd00::1"]
[[switch.tenant.endpoint]]
name = "red2"
port = "tap://red2"
mac = "02:00:00:00:00:02"
ip = ["10.0.0.2", "fd00::2"]
[[switch.tenant.endpoint]]
name = "red3"
port = "tap://red3"
mac = "02:00:00:00:00:03"
ip = ["10.0.0.3", "fd00::3"]
[[switch.tenant.endpoint]]
name = "lb"
port = "director://"
[[switch.tenant.service]]
name = "web"
director = "lb"
address = ["10.0.0.100:80", "[fd00::100]:80", "udp://10.0.0.100:53"]
mac = "02:00:00:00:00:64"
check = "http"
[[switch.tenant.service.backend]]
name = "red2"
port = 8080
[[switch.tenant.service.backend]]
name = "red3"
port = 8080
[[switch.tenant.service.backend]]
name = "far"
ip = ["10.0.0.50", "fd00::50"]
mac = "02:00:00:00:00:32"
port = 8080
"#;

const HERE: [u8; 4] = [192, 0, 2, 1];
const THERE: [u8; 4] = [192, 0, 2, 2];
const NICS: [Mac; 2] = [Mac([2, 0, 0, 0, 1, 1]), Mac([2, 0, 0, 0, 1, 2])];
const VNI: u32 = 10;
/// Bytes of a tunnel's headers.
const OUTER: usize = 50;

/// The tenant is on another host too, which has machine 50; where machine 77 is, nobody knows.
fn tunnel(program: &mut Program) {
    program.tenants[0].attachment = Attachment::Vxlan(VNI);
    program.overlay = Overlay {
        local: Some(Vtep { address: IpAddr::from(HERE), mac: NICS[0] }),
        peers: [(IpAddr::from(THERE), Peer { next_hop: Some(NICS[1]), tenants: vec![TenantId(0)] })].into(),
        remotes: [((TenantId(0), Mac([2, 0, 0, 0, 0, 50])), IpAddr::from(THERE))].into(),
    };
}

/// A frame of the other host in its tunnel, without the tag that it would have in a VLAN.
fn wrapped(mut inner: Vec<u8>) -> Vec<u8> {
    if inner.get(12..14) == Some(&[0x81, 0]) && inner.len() >= 18 {
        inner.drain(12..16);
    }
    let mut payload = vec![8, 0, 0, 0];
    payload.extend_from_slice(&(VNI << 8).to_be_bytes());
    payload.append(&mut inner);
    eth(NICS[1], NICS[0]).ipv4(THERE.into(), HERE.into()).udp(50_000, 4789).payload(payload).bytes()
}

/// `data` is a step of [`STEP`] bytes after the other: who sends what to whom, with which flags,
/// ports and numbers, and when; or what is changed. Of the bytes more that are behind them, outside
/// is in a tunnel where they are an odd number, and clients outside get backends outside where they
/// are two or three.
pub fn run(data: &[u8]) {
    let mut plan = control::load(HOST).plan.expect("a good configuration");
    let is_tunnelled = matches!(data.len() % STEP, 1 | 3);
    if !matches!(data.len() % STEP, 2 | 3) {
        plan.switches[0].program.services[0].director = None;
    }
    if is_tunnelled {
        tunnel(&mut plan.switches[0].program);
    }
    let program = &plan.switches[0].program;
    let mut pool = Pool::new(PoolLimits { small: 64, medium: 8, large: 4 });
    let mut switch = Switch::new(program, 7).expect("a sound program");
    let mut now = Instant(1_000_000_000);
    switch.recover_services(now);
    let mut asked = None;
    for step in data.as_chunks::<STEP>().0.iter().take(MOST) {
        now = now.plus_ns(u64::from(step[11]) * 20_000_000);
        match step[0] & 0xf0 {
            0xf0 => switch = change(program, switch, &mut pool, now, step),
            0xe0 => {
                if let Some((port, build)) = asked.as_deref().and_then(|asked| answer(asked, step)) {
                    frame(&mut switch, &mut pool, now, (port, &build, is_tunnelled), step, &mut asked);
                }
            }
            _ => {
                let port = u32::from(step[0] & 7) % 4;
                frame(&mut switch, &mut pool, now, (port, &built(step), is_tunnelled), step, &mut asked);
            }
        }
        let (len, most) = switch.connections();
        assert!(len <= most && most == CONNECTIONS);
    }
    switch.clear(&mut pool);
    assert_eq!(pool.in_use(), 0, "no frame is lost");
}

/// Another policy or weight, a backend less, or a takeover.
fn change(program: &Program, mut switch: Switch, pool: &mut Pool, now: Instant, step: &[u8; STEP]) -> Switch {
    if step[0] & 1 == 0 {
        let mut service = program.services[0].clone();
        let policies = datapath::service::choose::Policy::ALL;
        service.policy = policies[usize::from(step[1]) % policies.len()];
        for (backend, weight) in service.backends.iter_mut().zip(&step[2..]) {
            backend.weight = u32::from(*weight) % 3;
        }
        service.backends.truncate(usize::from(step[6] % 4));
        service.backends.iter_mut().for_each(|backend| backend.drain_ns = u64::from(step[7] & 3) << 30);
        (service.affinity_ns, service.hold_ns) = (u64::from(step[7] >> 2 & 3) << 32, u64::from(step[7] >> 4 & 3) << 30);
        service.on_failure = if step[8] & 1 == 0 { OnFailure::Keep } else { OnFailure::Reset };
        service.panic_ppm = u32::from(step[8] >> 1) * 7874;
        let most = u32::from(step[7] >> 6);
        service.backends.iter_mut().for_each(|backend| backend.max_connections = (most > 0).then_some(most));
        switch.change(pool, now, Change::Service(ServiceId(0), Some(service))).expect("it fits");
        return switch;
    }
    let mut state = switch.export(now);
    for (_, service) in &mut state.services {
        for connection in &mut service.connections {
            // One that lies.
            let mut bytes = connection.to_bytes();
            bytes[usize::from(step[2]) % ConnectionState::BYTES] ^= step[3];
            *connection = ConnectionState::from_bytes(&bytes).unwrap_or(*connection);
        }
    }
    let mut next = Switch::new(program, 7).expect("a sound program");
    next.import(now, u64::from(step[4]) * 1_000_000_000, &state).expect("the own version");
    switch.clear(pool);
    next
}

fn built(step: &[u8; STEP]) -> Build<'static> {
    const HOSTS: [u8; 6] = [1, 2, 3, 50, 77, 100];
    let host = |byte: u8| HOSTS[usize::from(byte) % HOSTS.len()];
    let port = |byte: u8| [80, 8080, 53, 4000 + u16::from(byte >> 4)][usize::from(byte & 3)];
    let (from, to) = (host(step[1]), host(step[2]));
    let ends = eth(Mac([2, 0, 0, 0, 0, from]), Mac([2, 0, 0, 0, 0, to]));
    let ip = |n: u8| Ipv4Addr::new(10, 0, 0, n);
    let is_v6 = step[0] & 8 != 0;
    let ends = if is_v6 {
        let ip = |n: u8| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n));
        ends.ipv6(ip(from), ip(to))
    } else {
        ends.ipv4(ip(from), ip(to))
    };
    let ends = if step[0] & 7 == 0 { ends.vlan(10) } else { ends };
    let number = |at: usize| u32::from(step[at]) * 16;
    match step[0] >> 4 & 7 {
        0..=3 => {
            let tcp = ends.tcp(port(step[3]), port(step[4]), number(6)).ack(number(7), 1000).flags(step[5]);
            tcp.payload(vec![0; usize::from(step[8])])
        }
        4 => ends.udp(port(step[3]), port(step[4])).payload(vec![0; usize::from(step[8])]),
        5 if !is_v6 => ends.id(step[6].into()).udp(port(step[3]), port(step[4])).payload(vec![0; 64]).fragment(0, true),
        6 if !is_v6 => ends.id(step[6].into()).protocol(17).payload(vec![0; 64]).fragment(64, step[8] & 1 == 1),
        _ => {
            let quoted = eth(Mac([0; 6]), Mac([0; 6])).ipv4(ip(to), ip(host(step[8])));
            let quoted = quoted.tcp(port(step[4]), port(step[3]), number(6)).bytes()[14..].to_vec();
            ends.icmp(step[5], step[7], 0).payload(quoted)
        }
    }
}

/// What a backend may answer to the last check of the switch: the port it comes by, and the frame.
fn answer(asked: &[u8], step: &[u8; STEP]) -> Option<(u32, Build<'static>)> {
    let layout = parse(asked).ok()?;
    let (tcp, ip) = (Tcp::of(asked, &layout)?, Ipv4::of(asked, &layout)?);
    let mac = |at: usize| Some(Mac(asked.get(at..at + 6)?.try_into().ok()?));
    let payload = layout.end - u32::from(layout.payload_offset);
    let syn = u32::from(tcp.flags() & 2 != 0);
    let ack = tcp.sequence().wrapping_add(payload + syn).wrapping_add(u32::from(step[1] & 1));
    let sequence = match syn {
        1 => u32::from(step[2]),
        _ => tcp.acknowledgement().wrapping_add(u32::from(step[1] & 2)),
    };
    let flags = [0x12, 0x14, 0x10, 0x18, 0x11, step[5]][usize::from(step[3]) % 6];
    let says = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], b"HTTP/1.0 503", b"HTT", b"", &step[..]][usize::from(step[4]) % 5];
    let frame = eth(mac(0)?, mac(6)?).ipv4(ip.destination(), ip.source());
    let frame = frame.tcp(tcp.destination(), tcp.source(), sequence).ack(ack, 1000).flags(flags);
    let from = ip.destination().octets()[3];
    let is_outside = from >= 50;
    let frame = if is_outside { frame.vlan(10) } else { frame };
    Some((if is_outside { 0 } else { u32::from(from) }, frame.payload(says.to_vec())))
}

/// A frame comes by a port. What the switch asks a backend meanwhile is remembered.
fn frame(
    switch: &mut Switch,
    pool: &mut Pool,
    now: Instant,
    (port, build, is_tunnelled): (u32, &Build<'_>, bool),
    step: &[u8; STEP],
    asked: &mut Option<Vec<u8>>,
) {
    let mut bytes = build.bytes();
    // Sometimes a byte is wrong, or the frame too short.
    if step[9] & 0x80 != 0 {
        let at = usize::from(step[9] & 0x7f) % bytes.len();
        bytes[at] ^= step[10];
        bytes.truncate(bytes.len() - usize::from(step[10] & 7));
    }
    if is_tunnelled && port == 0 {
        bytes = wrapped(bytes);
    }
    let port = PortId(port);
    let Some(frame) = pool.alloc_from(&bytes) else { return };
    let explained = switch.explain(pool, now, port, &frame).verdict;
    let verdict = switch.rx(pool, now, port, frame);
    assert_eq!(explained, verdict, "what is explained is what happens");
    while let Some((to, frame)) = switch.tx(pool, now) {
        let mut bytes = pool.bytes(&frame);
        if is_tunnelled && to.0 == 0 {
            bytes = &bytes[OUTER..];
        }
        if bytes[6..12] == [2, 0, 0, 0, 0, 0x64] && parse(bytes).is_ok_and(|layout| Tcp::of(bytes, &layout).is_some()) {
            *asked = Some(bytes.to_vec());
        }
        pool.free(frame);
    }
}
