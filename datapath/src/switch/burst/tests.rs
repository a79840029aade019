use crate::aqm::Discipline;
use crate::frame::Frame;
use crate::guard::{Allow, Identity};
use crate::offload::{Gso, Offload, OffloadSupport};
use crate::program::{Change, Endpoint, EndpointId, OrderKind, PortFeatures, PortId, Program, Share};
use crate::switch::chaos::{Dice, ORDERS, Rig, both, endpoint, learning, limited, mac, program};
use crate::units::Rate;
use crate::vcc;
use crate::wire::build::eth;
use std::cell::Cell;
use std::net::Ipv4Addr;

fn own(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0100 + n)
}

/// With an address of IPv4, and a limit that holds nothing back.
fn strict(n: u32) -> Endpoint {
    let identity = Identity { macs: vec![mac(n)], ipv4: vec![(own(n), 32)], ..Identity::default() };
    Endpoint { identity, share: limited(1000), ..endpoint(n, 0) }
}

/// Endpoints that differ in what decides whether their frames go in runs. Limits are such that no
/// charge is rounded: so the sum of several is what they are one by one.
fn mixed(order: OrderKind) -> Program {
    let serves = Allow { dhcp_server: true, ..Allow::default() };
    let counted = vcc::Settings { mode: vcc::Mode::Count, ..vcc::Settings::default() };
    let mut program = program(&[
        strict(0),
        strict(1),
        Endpoint { share: limited(2), ..strict(2) },
        Endpoint { share: both(Share::default()), ..strict(3) },
        endpoint(4, 0),
        Endpoint { aqm: Some(Discipline::Codel), ..strict(5) },
        Endpoint { identity: Identity { allow: serves, ..strict(6).identity }, ..strict(6) },
        Endpoint { vcc: Some(counted), ..strict(7) },
        learning(8, 1),
        endpoint(9, 1),
    ]);
    program.order = order;
    for tenant in program.tenants.values_mut() {
        tenant.share = both(Share { limit: Rate(4_000_000_000), ..Share::default() });
    }
    program.ports = vec![PortFeatures { max_frame: 1000, offload: OffloadSupport::NONE }; 12].into();
    program
}

type Sent = (Vec<u8>, Offload);

/// A frame of `from`: of a flow, of another, or of none, and some with a bit that is wrong.
fn some(dice: &mut Dice, from: u32) -> Sent {
    let to = if dice.below(8) > 0 { (from + 1) % 10 } else { dice.below(12) as u32 };
    let source = if dice.below(20) > 0 { own(from) } else { own(to) };
    let build = eth(mac(from), mac(to)).ipv4(source, own(to)).ttl(dice.below(3) as u8 + 1).id(dice.below(9) as u16);
    let payload = vec![dice.below(256) as u8; [18, 18, 500, 940, 1200][dice.below(5) as usize]];
    let build = match dice.below(24) {
        0 => build.udp(67, 68),
        1 => build.fragment(dice.below(2) as u16, true).udp(1000, 2000),
        2 => build.icmp(8, 0, 1),
        3 => build.vlan(5).udp(1000, 2000),
        4..=9 => build.tcp(1000, 2000, dice.below(1000) as u32).flags(0x10),
        10 => build.ip_options(&[1, 1, 1, 1]).udp(1000, 2000),
        11 => eth(mac(from), mac(to)).ipv6(own(from).to_ipv6_mapped(), own(to).to_ipv6_mapped()).udp(1000, 2000),
        _ => build.udp(1000, 2000),
    };
    let mut bytes = Vec::new();
    let offload = build.payload(payload).write(&mut bytes);
    if dice.below(8) == 0 {
        let at = dice.below(60.min(bytes.len() as u64)) as usize;
        bytes[at] ^= 1 << dice.below(8);
    }
    match dice.below(40) {
        0 => (bytes, Offload { gso: Gso::Udp, gso_size: 100, ..offload }),
        1 => (bytes, Offload { needs_csum: true, csum_start: 34, csum_offset: 6, ..offload }),
        2 => (bytes, Offload { csum_valid: true, ..offload }),
        _ => (bytes, offload),
    }
}

/// What a port has read: many frames like the one before.
fn burst(dice: &mut Dice, from: u32) -> Vec<Sent> {
    let mut burst: Vec<Sent> = Vec::new();
    for _ in 0..1 + dice.below(40) {
        let mut next = some(dice, from);
        if let Some(last) = burst.last().filter(|_| dice.below(4) > 0) {
            next = last.clone();
            // What differs within a flow: identification, TTL, and what is behind the ports.
            for at in [18, 19, 22, 40, 41, 46, 47] {
                if dice.below(6) == 0 && at < next.0.len() {
                    next.0[at] ^= 1 << dice.below(8);
                }
            }
        }
        burst.push(next);
    }
    burst
}

fn frames(rig: &mut Rig, burst: &[Sent]) -> Vec<Frame> {
    let made = burst.iter().map(|(bytes, offload)| {
        let frame = rig.pool.alloc_from(bytes).expect("a buffer");
        rig.pool.meta_mut(&frame).offload = *offload;
        frame
    });
    made.collect()
}

/// All that comes out, with what is known of it, and what the switch has counted then.
fn left(rig: &mut Rig) -> (Vec<String>, String) {
    let mut out = Vec::new();
    while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
        let meta = rig.pool.meta(&frame);
        out.push(format!("{port:?} {:?} {:?} {:?}", meta.out(), meta.offload, rig.pool.bytes(&frame)));
        rig.pool.free(frame);
    }
    let numbers =
        (0..10).map(|id| (rig.switch.endpoint_stats(EndpointId(id)), rig.switch.is_paused(PortId(id + 1), rig.now)));
    (out, format!("{:?} {:?}", numbers.collect::<Vec<_>>(), rig.switch.poll_timeout()))
}

thread_local! {
    /// Frames of this thread's tests that passed the queues in runs.
    pub static PASSED: Cell<u32> = const { Cell::new(0) };
}

#[test]
fn a_burst_is_what_its_frames_are_one_by_one() {
    let orders = ORDERS.into_iter().chain([OrderKind::Fair; 4]).cycle();
    for (seed, order) in (0..16).zip(orders) {
        let mut dice = Dice(seed);
        let (mut one, mut all) = (Rig::new(&mixed(order)), Rig::new(&mixed(order)));
        for step in 0..60 {
            let from = (dice.below(2) * dice.below(10)) as u32;
            let port = PortId(from + 1);
            let burst = burst(&mut dice, from);
            for frame in frames(&mut one, &burst) {
                one.switch.rx(&mut one.pool, one.now, port, frame);
            }
            let mut together = frames(&mut all, &burst);
            all.switch.rx_burst(&mut all.pool, all.now, port, &mut together);
            assert!(together.is_empty());
            let (one_left, all_left) = (left(&mut one), left(&mut all));
            assert_eq!(one_left.0, all_left.0, "seed {seed}, step {step}: what leaves");
            assert_eq!(one_left.1, all_left.1, "seed {seed}, step {step}: what is counted");
            if step % 12 == 11 {
                let kept = |rig: &Rig| format!("{:?}", rig.switch);
                assert_eq!(kept(&one), kept(&all), "seed {seed}, step {step}: what is kept");
            }
            assert_eq!(all.switch.frames(), all.pool.in_use(), "a frame was lost");
            let later = dice.below(2) * dice.below(2_000_000);
            (one.now, all.now) = (one.now.plus_ns(later), all.now.plus_ns(later));
            if dice.below(10) == 0 {
                // Who was known may be somewhere else.
                for rig in [&mut one, &mut all] {
                    rig.change(Change::Endpoint(EndpointId(3), None)).expect("an endpoint");
                    rig.add(3, Endpoint { share: both(Share::default()), ..strict(3) });
                }
            }
        }
    }
    assert!(PASSED.get() > 500, "only {} frames went in runs", PASSED.get());
}

/// A flow of `count` frames from the first to the second, handed over together; how many passed.
fn passed(rig: &mut Rig, count: u32) -> u32 {
    let frame = eth(mac(0), mac(1)).ipv4(own(0), own(1)).udp(1000, 2000).payload(vec![0; 18]);
    let mut burst: Vec<Frame> = (0..count).map(|_| frame.frame(&mut rig.pool).expect("a buffer")).collect();
    let before = PASSED.get();
    rig.switch.rx_burst(&mut rig.pool, rig.now, PortId(1), &mut burst);
    PASSED.get() - before
}

#[test]
fn what_a_limit_would_hold_back_does_not_pass_in_one_go() {
    let slow = Endpoint { share: limited(10), ..strict(0) };
    let mut rig = Rig::new(&program(&[slow, strict(1)]));
    // 12 500 bytes may be sent at once: of 84 each.
    assert_eq!((passed(&mut rig, 1), passed(&mut rig, 100)), (0, 100));
    assert_eq!(passed(&mut rig, 60), 0);
    assert_eq!(rig.switch.frames() - 161, 0, "all are there");
    assert_eq!(rig.due().len(), 149, "the rest waits");
}
