//! Budgets of floods in a whole switch: what copies they let pass, and who does not suffer from
//! whose.

use crate::frame::{Pool, PoolLimits};
use crate::guard::Identity;
use crate::program::{Change, Endpoint, EndpointId, PortFeatures, PortId, Program, Tenant, TenantId};
use crate::switch::chaos::{MBIT, MS, OUTSIDE, Rig, endpoint, ip, mac, program};
use crate::units::Rate;
use crate::verdict::{Reason, Verdict};
use crate::wire::Mac;
use crate::wire::build::{Build, arp_request, eth};

/// Endpoints `0..members` of tenant 0 and one more of tenant 1, with these budgets of copies.
fn switch(members: u32, each: Rate, tenant: Rate) -> Program {
    let endpoints: Vec<Endpoint> =
        (0..=members).map(|n| Endpoint { flood_rate: each, ..endpoint(n, u32::from(n == members)) }).collect();
    let ports = vec![PortFeatures::default(); endpoints.len() + 1].into();
    let mut program = Program { ports, ..program(&endpoints) };
    program.tenants[0].flood_rate = tenant;
    program
}

fn rig(program: &Program) -> Rig {
    let mut rig = Rig::new(program);
    rig.pool = Pool::new(PoolLimits { small: 4000, medium: 0, large: 400 });
    rig
}

fn multicast(from: u32, payload: usize) -> Build<'static> {
    let group = Mac([1, 0, 0x5e, 1, 1, 1]);
    eth(mac(from), group).ipv4(ip(), ip()).udp(1000, 2000).payload(vec![7; payload]).gso(1400)
}

fn arp(from: u32) -> Build<'static> {
    arp_request(mac(from), ip(), ip())
}

/// Wire bytes that leave, by port, while these send one frame each every millisecond.
fn load(rig: &mut Rig, ms: u64, frames: &[(u32, Build<'_>)]) -> Vec<u64> {
    let mut bytes = vec![0; rig.switch.program().ports.len()];
    for _ in 0..ms {
        for (port, frame) in frames {
            let _ = rig.rx(*port, frame);
        }
        rig.now = rig.now.plus_ns(MS);
        while let Some((PortId(port), frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            bytes[port as usize] += u64::from(rig.pool.meta(&frame).wire_bytes);
            rig.pool.free(frame);
        }
    }
    bytes
}

#[test]
fn long_frames_to_a_hundred_members_are_held_to_bytes() {
    let mut rig = rig(&switch(101, Rate(50 * MBIT), Rate(200 * MBIT)));
    let seconds = 4;
    let copied: u64 = load(&mut rig, seconds * 1000, &[(1, multicast(0, 60_000))])[1..].iter().sum();
    // What is saved, and one frame that overdraws it.
    let most = (50 * MBIT * seconds + 50 * MBIT / 4) / 8 + 2 * 101 * 65_000;
    assert!((50 * MBIT / 8 * (seconds - 1)..=most).contains(&copied), "{copied} bytes of copies in {seconds} s");
    assert!(rig.drops(0, Reason::FloodLimit) > 3900);
}

#[test]
fn a_tenants_endpoints_share_its_budget_and_arp_goes_on() {
    let mut rig = rig(&switch(20, Rate(50 * MBIT), Rate(20 * MBIT)));
    let storm: Vec<(u32, Build<'_>)> = (1..20).map(|port| (port, multicast(port - 1, 1400))).collect();
    let copied: u64 = load(&mut rig, 2000, &storm)[1..].iter().sum();
    assert!((4 * MBIT..=7 * MBIT).contains(&copied), "{copied} bytes of copies in two seconds at 20 Mbit/s");
    for _ in 0..50 {
        assert_eq!(rig.rx(20, &arp(19)), Verdict::Forwarded, "another endpoint of the tenant asks");
        load(&mut rig, 10, &storm);
    }
}

#[test]
fn a_storm_from_outside_in_one_network_leaves_the_others_whole() {
    let mut rig = rig(&switch(2, Rate(50 * MBIT), Rate(50 * MBIT)));
    let storm = || eth(mac(OUTSIDE), Mac::BROADCAST).vlan(10).ipv4(ip(), ip()).udp(1, 2).payload(vec![0; 46]);
    let mut passed = 0;
    for step in 0..100_000u64 {
        rig.now = rig.now.plus_ns(MS / 50);
        passed += u32::from(rig.rx(0, &storm()) == Verdict::Forwarded);
        if step % 1000 == 0 {
            assert_eq!(rig.rx(0, &arp(OUTSIDE).vlan(11)), Verdict::Forwarded, "another network's ARP");
            assert_eq!(rig.rx(0, &arp(OUTSIDE).vlan(10)), Verdict::Forwarded, "its own");
        }
        rig.due();
    }
    assert!((39_000..=46_000).contains(&passed), "{passed} in two seconds at 20 000 a second");
}

/// A trace names the budget that is used up: each has another key, and another who may change it.
#[test]
fn a_trace_says_whose_budget_is_used_up() {
    let told = |[each, tenant, network]: [u64; 3], port: u32, frame: Build<'_>| {
        let [each, tenant, network] = [each, tenant, network].map(|mbit| Rate(mbit * MBIT));
        let mut program = switch(2, each, tenant);
        program.uplink_flood.rate = network;
        // Frames for unknown addresses are copied to these.
        program.endpoints[1].identity = Identity::default();
        let mut rig = rig(&program);
        let frame = frame.frame(&mut rig.pool).expect("a buffer");
        let told = rig.switch.explain(&rig.pool, rig.now, PortId(port), &frame);
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(port), frame), told.verdict, "{told}");
        told.to_string()
    };
    let ask = |port: u32| if port == 0 { arp(OUTSIDE).vlan(10) } else { arp(0) };
    for (left, port, whose, is_left) in [
        ([9, 9, 9], 1, "sender's flood budget", true),
        ([0, 9, 9], 1, "sender's flood budget", false),
        ([9, 0, 9], 1, "flood budget of the sender's tenant", false),
        ([9, 9, 9], 0, "network's flood budget for frames from the uplink", true),
        ([9, 9, 0], 0, "network's flood budget for frames from the uplink", false),
    ] {
        let said = told(left, port, ask(port));
        let spent = format!("refused (flood-limit): the {whose} is used up\ndropped (flood-limit)");
        let wanted = if is_left { format!("frames are left of the {whose}\n") } else { spent };
        assert!(said.contains(&wanted), "{said}");
    }
    let unknown = || eth(mac(0), mac(OUTSIDE)).ipv4(ip(), ip()).udp(1, 2).payload(vec![0; 46]);
    for (left, whose) in [([0, 9, 9], "sender's flood budget"), ([9, 0, 9], "flood budget of the sender's tenant")] {
        let said = told(left, 1, unknown());
        assert!(said.contains(&format!("to the uplink alone: the {whose} is used up")), "{said}");
    }
}

#[test]
fn budgets_change_while_they_are_used() {
    let mut rig = rig(&switch(2, Rate(50 * MBIT), Rate::UNLIMITED));
    assert_eq!(rig.rx(1, &arp(0)), Verdict::Forwarded);
    let none = Tenant { flood_rate: Rate(0), ..rig.switch.program().tenants[0].clone() };
    rig.change(Change::Tenant(TenantId(0), Some(none.clone()))).expect("a rate");
    assert_eq!(rig.rx(1, &arp(0)), Verdict::Dropped(Reason::FloodLimit));
    let some = Tenant { flood_rate: Rate(MBIT), ..none };
    rig.change(Change::Tenant(TenantId(0), Some(some))).expect("a rate");
    assert_eq!(rig.rx(1, &arp(0)), Verdict::Forwarded);
    let quiet = Endpoint { flood_rate: Rate(0), ..rig.switch.program().endpoints[0].clone() };
    rig.change(Change::Endpoint(EndpointId(0), Some(quiet))).expect("a rate");
    assert_eq!(rig.rx(1, &arp(0)), Verdict::Dropped(Reason::FloodLimit));
    rig.due();
    let before = rig.switch.program().uplink_flood;
    rig.change(Change::UplinkFlood(crate::flood::FloodLimits { rate: Rate(0), ..before })).expect("limits");
    assert_eq!(rig.rx(0, &arp(OUTSIDE).vlan(10)), Verdict::Dropped(Reason::FloodLimit));
}
