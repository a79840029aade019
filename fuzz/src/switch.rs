//! Any sequence of frames, time steps and changes through a whole switch: no panic, no frame lost, no tenant's frame at another's port.

use datapath::frame::{Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::offload::{Gso, Offload, OffloadSupport};
use datapath::program::{
    Attachment, Endpoint, EndpointId, IngressMode, OrderKind, PortFeatures, PortId, Program, Share, Tenant, TenantId,
    Tuning, Uplink,
};
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::verdict::Reason;
use datapath::wire::Mac;

/// Ports of the endpoints of each tenant; port 0 is the uplink.
const PORTS: [&[u32]; 3] = [&[1, 2], &[3, 4], &[5, 6]];
/// Frames, steps and changes a run: longer inputs find nothing new.
const MOST: usize = 200;

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
    let mut switch = Switch::new(program(how, which), 7);
    let mut pool = Pool::new(PoolLimits { small: 256, large: 24 });
    let mut now = Instant(1_000_000);
    for _ in 0..MOST {
        let Some(()) = operate(&mut bytes, &mut switch, &mut pool, &mut now) else { break };
    }
    switch.clear(&mut pool);
    assert_eq!(pool.in_use(), 0, "a frame was lost");
}

fn operate(bytes: &mut Bytes<'_>, switch: &mut Switch, pool: &mut Pool, now: &mut Instant) -> Option<()> {
    let operation = bytes.byte()?;
    match operation % 8 {
        0 => *now = now.plus_ns(u64::from(bytes.word()?) * 1000),
        1 => *now = now.plus_ns(u64::from(bytes.word()?) << 20),
        2 => switch.tune(pool, tuning(bytes)?),
        3 => switch.port_drops(PortId(u32::from(bytes.byte()?)), Reason::PortRing, 1),
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
            switch.rx(pool, *now, PortId(port), frame);
            if operation & 0x20 == 0 {
                drain(switch, pool, *now, port);
            }
        }
    }
    Some(())
}

/// What one frame from `port` causes at once stays in its tenant's network, if nothing else waited.
fn drain(switch: &mut Switch, pool: &mut Pool, now: Instant, port: u32) {
    let tenant = PORTS.iter().position(|ports| ports.contains(&port));
    let isolated = switch.program().tenants.iter().all(|t| t.attachment != Attachment::Untagged);
    for _ in 0..10_000 {
        let Some((to, frame)) = switch.tx(pool, now) else { return };
        pool.free(frame);
        // Lanes may hold other tenants' frames; a frame of an isolated tenant never comes out of the uplink.
        if isolated && to.0 == 0 && tenant.is_some() {
            assert!(switch.program().tenants.iter().any(|t| t.attachment != Attachment::Isolated));
        }
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
        uplink: (how & 16 == 0).then_some(Uplink {
            port: PortId(0),
            rate: Both { egress: rate, ingress: rate },
            headroom_ppm: 20_000,
        }),
        ports: vec![PortFeatures::default(); 8],
        fdb_age_ns: 1_000_000_000,
        ..Program::default()
    };
    program.ports[2].offload = OffloadSupport::NONE;
    for (index, ports) in PORTS.iter().enumerate() {
        let attachment = [Attachment::Vlan(10), Attachment::Isolated, Attachment::Untagged]
            [if how & 32 == 0 { index } else { index % 2 }];
        let attachment =
            if index == 2 && attachment == Attachment::Vlan(10) { Attachment::Vlan(30) } else { attachment };
        program.tenants.push(Tenant { attachment, share: Both { egress: share, ingress: share } });
        for (number, &port) in ports.iter().enumerate() {
            program.endpoints.push(Endpoint {
                tenant: TenantId(index as u32),
                port: PortId(port),
                identity: Identity {
                    macs: if number == 0 { vec![Mac([2, 0, 0, 0, 0, port as u8])] } else { vec![] },
                    ..Identity::default()
                },
                trunk: number == 1 && which & 4 != 0,
                share: Both { egress: share, ingress: share },
                queue_bytes: 1 << (8 + which % 8),
                flood_per_second: 100,
                max_learned: 3,
            });
        }
    }
    program
}

fn tuning(bytes: &mut Bytes<'_>) -> Option<Tuning> {
    let rate = Rate(1_000 + (u64::from(bytes.word()?) << 20));
    let knobs = bytes.byte()?;
    let share = Share {
        guarantee: if knobs & 1 == 0 { Rate(0) } else { rate },
        limit: if knobs & 2 == 0 { Rate::UNLIMITED } else { rate },
        weight: 1 + u32::from(knobs >> 2),
    };
    let share = Both { egress: share, ingress: share };
    Some(match bytes.byte()? {
        0 => Tuning::UplinkRate(Both { egress: rate, ingress: rate }),
        id if id & 1 == 0 => Tuning::Tenant(TenantId(u32::from(id >> 1)), share),
        id => Tuning::Endpoint(EndpointId(u32::from(id >> 1)), share),
    })
}

fn offload(bytes: &mut Bytes<'_>) -> Option<Offload> {
    let flags = bytes.byte()?;
    Some(Offload {
        gso: [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp][usize::from(flags & 3)],
        gso_ecn: flags & 4 != 0,
        needs_csum: flags & 8 != 0,
        csum_valid: flags & 16 != 0,
        gso_size: bytes.word()?,
        csum_start: bytes.word()?,
        csum_offset: bytes.word()?,
    })
}
