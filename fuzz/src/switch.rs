//! Any sequence of frames, time steps and changes through a whole switch: no panic, no frame lost,
//! nothing leaves a host on which no tenant has a way out, what is explained beforehand is what is
//! done, and what runs after any changes is a program that a new switch takes.

use datapath::aqm::{At, Discipline, Red, Step};
use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::intake::Prices;
use datapath::offload::{Gso, GsoEcn, Offload, OffloadSupport};
use datapath::overlay::{Overlay, OverlayChange, Peer, Vtep};
use datapath::pair::Toward;
use datapath::program::{
    Attachment, Change, Elsewhere, Endpoint, EndpointId, IngressMode, OrderKind, Outside, PortFeatures, PortId,
    Program, Share, Tenant, TenantId, Uplink,
};
use datapath::switch::Switch;
use datapath::turns::Cost;
use datapath::units::{Both, Instant, Rate};
use datapath::verdict::Reason;
use datapath::wire::Mac;
use std::net::{IpAddr, Ipv4Addr};

/// Ports of the endpoints of each tenant; port 0 is the uplink.
const PORTS: [&[u32]; 3] = [&[1, 2], &[3, 4], &[5, 6]];
/// Frames, steps and changes a run: longer inputs find nothing new.
const MOST: usize = 200;
/// The switch's end of tunnels, and the network of the tenant that has one.
const VTEP: Vtep = Vtep { address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), mac: Mac([2, 0, 0, 0, 0, 0]) };
const VNI: u32 = 7;
/// What frames from the uplink cost: so much that few are a tenant's share.
const PRICES: Prices = Prices { read: Cost::new(300_000, 80), pass: Cost::new(900_000, 80) };

/// The bytes, one after the other.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// `data` is two bytes of configuration, then operations.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let (Some(how), Some(which)) = (bytes.byte(), bytes.byte()) else { return };
    let mut switch = Switch::new(&program(how, which), 7).expect("a sound program");
    let mut pool = Pool::new(PoolLimits { small: 256, medium: 16, large: 24 });
    let mut now = Instant(1_000_000);
    for _ in 0..MOST {
        let Some(()) = operate(&mut bytes, &mut switch, &mut pool, &mut now) else { break };
    }
    let program = switch.program().clone();
    let built = Switch::new(&program, 7).expect("changes keep a program sound");
    assert_eq!(*built.program(), program);
    // Half the runs end with everything taken away, which frees as much as `clear`.
    if how & 1 == 0 {
        let empty = Program { order: program.order, ingress: program.ingress, ..Program::default() };
        for change in empty.changes_from(&program).expect("the same order") {
            switch.change(&mut pool, now, change).expect("a step of a sound order");
        }
        while let Some((_, frame)) = switch.tx(&mut pool, now) {
            pool.free(frame);
        }
        assert_eq!((switch.frames(), switch.learned()), (0, 0));
    }
    switch.clear(&mut pool);
    assert_eq!(pool.in_use(), 0, "a frame was lost");
}

fn operate(bytes: &mut Bytes<'_>, switch: &mut Switch, pool: &mut Pool, now: &mut Instant) -> Option<()> {
    let operation = bytes.byte()?;
    match operation % 8 {
        0 => *now = now.plus_ns(u64::from(bytes.word()?) * 1000),
        1 => *now = now.plus_ns(u64::from(bytes.word()?) << 20),
        2 => {
            // What does not fit is refused.
            let _ = switch.change(pool, *now, change(bytes)?);
        }
        3 => match operation >> 6 {
            0 => switch.port_drops(PortId(u32::from(bytes.byte()?)), Reason::PortRing, 1),
            1 => watch(switch, operation & 8 == 0),
            _ => limit(bytes, switch, pool, *now)?,
        },
        _ => {
            let port = u32::from(bytes.byte()? % 8);
            let offload = if operation & 0x80 == 0 { Offload::default() } else { offload(bytes)? };
            let len = usize::from(bytes.word()? % 4096);
            let head = bytes.take(if operation & 0x40 == 0 { len } else { len.min(64) });
            let Some(frame) = pool.alloc(len.max(head.len())) else { return Some(()) };
            let room = pool.bytes_mut(&frame);
            room.fill(0);
            room[..head.len()].copy_from_slice(head);
            pool.meta_mut(&frame).offload = offload;
            if operation & 0x10 == 0 {
                let told = switch.explain(pool, *now, PortId(port), &frame);
                let verdict = switch.rx(pool, *now, PortId(port), frame);
                assert_eq!(verdict, told.verdict, "the explanation is another than what was done: {told}");
            } else {
                burst(bytes, switch, pool, *now, (PortId(port), frame));
            }
            if operation & 0x20 == 0 {
                drain(switch, pool, *now);
            }
        }
    }
    Some(())
}

/// A frame several times over, the last time with a byte that differs, handed over together.
fn burst(bytes: &mut Bytes<'_>, switch: &mut Switch, pool: &mut Pool, now: Instant, (port, frame): (PortId, Frame)) {
    let (count, at) = (bytes.byte().unwrap_or(0) % 16, usize::from(bytes.byte().unwrap_or(0)));
    let mut frames = vec![frame];
    frames.extend((0..count).filter_map(|_| pool.duplicate(&frames[0])).collect::<Vec<_>>());
    if let Some(byte) = frames.last().and_then(|last| pool.bytes_mut(last).get_mut(at)) {
        *byte ^= bytes.byte().unwrap_or(0);
    }
    // As it does while the uplink's ring fills: then some of it may be dropped.
    switch.set_intake_weights((TenantId(port.0 / 2 % 4), at as u32), (port, u32::from(count)));
    switch.share_intake((at & 1 == 1).then_some(PRICES), (at as u32) << 9);
    switch.rx_burst(pool, now, port, &mut frames);
    switch.share_intake(None, 0);
    assert!(frames.is_empty(), "the switch takes them over");
}

/// Looks at what arrived, and says whether to go on: what is told must add up.
fn watch(switch: &mut Switch, on: bool) {
    let (mut arrivals, mut queues) = (vec![], vec![]);
    switch.take_arrivals(&mut arrivals, &mut queues);
    let told: u64 = arrivals.iter().map(|arrival| arrival.wire_bytes).sum();
    assert_eq!(told, queues.iter().map(|queue| queue.arrived_bytes).sum::<u64>());
    assert!(queues.iter().all(|queue| switch.program().endpoints.get(queue.endpoint.0).is_some()));
    switch.watch_arrivals(on);
}

/// Limits what an endpoint sends to an address or to everyone, or lifts that.
fn limit(bytes: &mut Bytes<'_>, switch: &mut Switch, pool: &mut Pool, now: Instant) -> Option<()> {
    let (from, to, rate) = (bytes.byte()?, bytes.byte()?, bytes.word()?);
    let to = match to {
        0xff => Toward::Everyone,
        // A group address among them, which is refused.
        n => Toward::Address(Mac([2 | n >> 7, 0, 0, 0, 0, n & 0x7f])),
    };
    let rate = (rate > 0).then_some(Rate(u64::from(rate) << 12));
    let from = EndpointId(u32::from(from % 10));
    let _ = switch.limit_pair(pool, now, from, to, rate);
    // And its turn, from bits that say something else too.
    switch.take_turn(now, from, to, rate.map_or(0, |rate| (rate.0 >> 12) as u8));
    Some(())
}

/// Where no tenant has a way out, nothing leaves by the uplink.
fn drain(switch: &mut Switch, pool: &mut Pool, now: Instant) {
    let program = switch.program();
    let uplink = program.uplink.as_ref().map(|uplink| uplink.port());
    let isolated = program.tenants.values().all(|t| t.attachment == Attachment::Isolated);
    for _ in 0..10_000 {
        let Some((to, frame)) = switch.tx(pool, now) else { return };
        pool.free(frame);
        assert!(!isolated || Some(to) != uplink, "a frame of an isolated tenant left by the uplink");
    }
    panic!("the switch has endlessly many frames for one instant");
}

fn program(how: u8, which: u8) -> Program {
    let rate = Rate([1_000, 1_000_000, 1_000_000_000, 400_000_000_000][usize::from(how >> 6)]);
    let share = Share {
        guarantee: Rate(if which & 1 == 0 { 0 } else { rate.0 / 4 }),
        limit: if which & 2 == 0 { Rate::UNLIMITED } else { Rate((rate.0 / 2).max(1000)) },
        weight: 1 + u32::from(which),
    };
    let mut program = Program {
        order: [OrderKind::Fair, OrderKind::Wf2q, OrderKind::Vtrr, OrderKind::VtrrBytes][usize::from(how & 3)],
        ingress: [IngressMode::Queue, IngressMode::Police, IngressMode::PolicePublished, IngressMode::Queue]
            [usize::from(how >> 2 & 3)],
        uplink: (how & 16 == 0)
            .then_some(Uplink { headroom_ppm: 20_000, ..Uplink::new(PortId(0), Both { egress: rate, ingress: rate }) }),
        ports: vec![PortFeatures::default(); 8].into(),
        fdb_age_ns: 1_000_000_000,
        ..Program::default()
    };
    program.ports[2].offload = OffloadSupport::NONE;
    program.ports[0].offload.tunnel = which & 16 != 0;
    for (index, ports) in PORTS.iter().enumerate() {
        let attachment = [Attachment::Vlan(10), Attachment::Isolated, Attachment::Untagged]
            [if how & 32 == 0 { index } else { index % 2 }];
        let attachment =
            if index == 2 && attachment == Attachment::Vlan(10) { Attachment::Vlan(30) } else { attachment };
        let shares = Both { egress: share, ingress: share };
        program.tenants.push(Tenant { attachment, share: shares, flood_rate: rate, ..Tenant::default() });
        for (number, &port) in ports.iter().enumerate() {
            program.endpoints.push(Endpoint {
                identity: Identity {
                    macs: if number == 0 { vec![Mac([2, 0, 0, 0, 0, port as u8])] } else { vec![] },
                    ..Identity::default()
                },
                trunk: number == 1 && which & 4 != 0,
                share: Both { egress: share, ingress: share },
                queue_bytes: 1 << (8 + which % 8),
                aqm: discipline(which),
                flood_per_second: 100,
                flood_rate: rate,
                max_learned: 3,
                ..Endpoint::new(TenantId(index as u32), PortId(port))
            });
        }
    }
    if which & 8 != 0 {
        program.tenants[1].attachment = Attachment::Vxlan(VNI);
        program.overlay = Overlay {
            local: Some(VTEP),
            peers: [(host(2), Peer { next_hop: Some(VTEP.mac), tenants: vec![TenantId(1)] })].into(),
            remotes: [((TenantId(1), Mac([2, 0, 0, 0, 0, 0])), host(2))].into(),
        };
    }
    program
}

fn host(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

/// Any change of few hosts and addresses.
fn overlay_change(id: u8, more: u8) -> OverlayChange {
    let at = host(2 + more % 3);
    let tenant = TenantId(u32::from(id >> 2 & 3));
    match id % 4 {
        0 => OverlayChange::Local((more & 1 == 0).then_some(VTEP)),
        1 if more & 64 != 0 => OverlayChange::Peer(at, None),
        1 => {
            let next_hop = (more & 128 == 0).then_some(VTEP.mac);
            OverlayChange::Peer(at, Some(Peer { next_hop, tenants: vec![tenant] }))
        }
        _ => OverlayChange::Remote(tenant, Mac([2, 0, 0, 0, 0, id >> 4]), (more & 128 == 0).then_some(at)),
    }
}

/// Any change, mostly of what is there or could be.
fn change(bytes: &mut Bytes<'_>) -> Option<Change> {
    let (what, id) = (bytes.byte()?, bytes.byte()?);
    if what & 0x80 != 0 {
        return Some(match what % 6 {
            0 => Change::Uplink(None),
            1 => Change::Tenant(TenantId(u32::from(id % 5)), None),
            2 => Change::Port(PortId(u32::from(id % 10)), None),
            3 => Change::Endpoint(EndpointId(u32::from(id % 10)), None),
            4 => {
                let ip = Elsewhere::Ip([10, 0, 0, id / 16].into());
                let address = if what & 2 == 0 { ip } else { Elsewhere::Mac(Mac([2, 0, 0, 0, 0, id / 16])) };
                Change::Elsewhere(TenantId(u32::from(id % 5)), address, id & 8 == 0)
            }
            _ => Change::Overlay(overlay_change(id, bytes.byte()?)),
        });
    }
    let rate = Rate(1_000 + (u64::from(bytes.word()?) << 20));
    let knobs = bytes.byte()?;
    let share = Share {
        guarantee: if knobs & 1 == 0 { Rate(0) } else { rate },
        limit: if knobs & 2 == 0 { Rate::UNLIMITED } else { rate },
        weight: 1 + u32::from(knobs >> 2),
    };
    let share = Both { egress: share, ingress: share };
    Some(match what % 8 {
        0 => Change::Uplink(Some(Uplink {
            headroom_ppm: u32::from(id) << 12,
            burst_ns: u64::from(id) << 16,
            ..Uplink::new(PortId(u32::from(id % 10)), Both { egress: rate, ingress: rate })
        })),
        1 | 2 => {
            let attachment = [
                Attachment::Isolated,
                Attachment::Untagged,
                Attachment::Vlan(u16::from(knobs >> 2) / 2 * 10),
                if knobs & 4 == 0 { Attachment::Vlan(30) } else { Attachment::Vxlan(VNI) },
            ][usize::from(id >> 6)];
            let outside =
                Outside { macs: vec![Mac([2, 0, 0, 0, 0, knobs % 16])], ips: vec![[10, 0, 0, knobs % 4].into()] };
            Change::Tenant(
                TenantId(u32::from(id % 5)),
                Some(Tenant { attachment, share, flood_rate: rate, outside, ..Tenant::default() }),
            )
        }
        3 => {
            let tunnel = id & 0x40 != 0;
            let offload =
                if id & 0x80 == 0 { OffloadSupport { tunnel, ..OffloadSupport::ALL } } else { OffloadSupport::NONE };
            let max_frame = 60 + (u32::from(knobs) << 4);
            Change::Port(PortId(u32::from(id % 10)), Some(PortFeatures { offload, max_frame }))
        }
        4 => Change::FdbAge(u64::from(id) << 24),
        _ => {
            let (place, more) = (bytes.byte()?, bytes.byte()?);
            let macs = (0..more % 3).map(|n| Mac([2, 0, 0, 0, 0, 1 + more / 64 + n])).collect();
            Change::Endpoint(
                EndpointId(u32::from(id % 10)),
                Some(Endpoint {
                    identity: Identity { macs, ..Identity::default() },
                    trunk: more & 32 != 0,
                    share,
                    queue_bytes: 1 << (8 + more % 8),
                    aqm: discipline(more),
                    flood_per_second: u32::from(more),
                    flood_rate: rate,
                    max_learned: u32::from(id / 64),
                    ..Endpoint::new(TenantId(u32::from(place % 5)), PortId(u32::from(place / 16 % 10)))
                }),
            )
        }
    })
}

/// One of all disciplines, with thresholds that the few frames of a case reach.
fn discipline(which: u8) -> Option<Discipline> {
    let red = Red { min_bytes: 500, max_bytes: 4000, probability_ppm: 300_000, weight_log: which % 4, ..Red::VCC_RED1 };
    let step = |at| Discipline::Step(Step { mark_bytes: 1000, at });
    match which / 8 % 8 {
        0 => Some(Discipline::Red(red)),
        1 => Some(step(At::Arrival)),
        2 => Some(step(At::Departure)),
        3 => Some(Discipline::Sojourn { target_ns: 1000 }),
        4 => Some(Discipline::Auto),
        5 => Some(Discipline::DropTail),
        _ => None,
    }
}

fn offload(bytes: &mut Bytes<'_>) -> Option<Offload> {
    let flags = bytes.byte()?;
    Some(Offload {
        gso: [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp][usize::from(flags & 3)],
        gso_ecn: if flags & 4 != 0 { GsoEcn::Cwr } else { GsoEcn::None },
        needs_csum: flags & 8 != 0,
        csum_valid: flags & 16 != 0,
        gso_size: bytes.word()?,
        csum_start: bytes.word()?,
        csum_offset: bytes.word()?,
    })
}
