//! Frames from outside while the uplink's ring fills.

use super::*;
use crate::arrivals::Arrival;
use crate::bond::BondSettings;
use crate::intake::Prices;
use crate::intake::thin::Thinned;
use crate::overlay::Vtep;
use crate::program::AgentTraffic;
use crate::turns::Cost;

const PRICES: Prices = Prices { read: Cost::new(1_000, 0), pass: Cost::new(3_000, 0) };

/// Two tenants with an endpoint each, and a third in the untagged network, whose ring fills.
fn rig() -> Rig {
    rig_with(|_| {})
}

fn rig_with(edit: impl FnOnce(&mut Program)) -> Rig {
    let tenants = [Attachment::Vlan(10), Attachment::Vlan(20), Attachment::Untagged];
    let mut rig = Rig::new(&tenants, &[(0, 1), (1, 2), (2, 3)], edit);
    (1..=3).for_each(|port| rig.switch.set_intake_weights((TenantId(port - 1), 30_000), (PortId(port), 30_000)));
    rig.switch.share_intake(Some(PRICES), 0);
    rig
}

/// So many frames from outside at once; what left by each port.
fn flood(rig: &mut Rig, frames: usize, frame: &build::Build<'_>) -> usize {
    let mut passed = 0;
    for _ in 0..frames {
        let frame = frame.frame(&mut rig.pool).expect("a buffer");
        rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame);
        while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            passed += 1;
            rig.pool.free(frame);
        }
        rig.now = rig.now.plus_ns(1_000);
    }
    passed
}

#[test]
fn a_flood_for_one_tenant_is_dropped_and_others_have_theirs() {
    let mut rig = rig();
    assert_eq!(flood(&mut rig, 1, &udp(9, 2).vlan(20)), 1);
    let passed = flood(&mut rig, 4_000, &udp(9, 1).vlan(10));
    assert!((400..1_000).contains(&passed), "{passed}");
    assert_eq!(flood(&mut rig, 20, &udp(9, 2).vlan(20)), 20);
    assert_eq!(flood(&mut rig, 20, &udp(9, 3)), 20, "who was not there before");
    let dropped = 4_000 - passed as u64;
    assert_eq!(rig.drops(0), [(Reason::UplinkShare, dropped)], "and nothing else");
    assert_eq!((rig.drops(1), rig.drops(2)), (vec![], vec![]));
    assert_eq!(rig.switch.uplink_drops().total(), 0);
    // The ring has room again.
    rig.switch.share_intake(None, 0);
    assert_eq!(flood(&mut rig, 100, &udp(9, 1).vlan(10)), 100);
}

#[test]
fn what_is_for_nobody_in_particular_is_its_networks_tenants() {
    let mut rig = rig();
    assert_eq!(flood(&mut rig, 1, &udp(9, 2).vlan(20)), 1);
    flood(&mut rig, 4_000, &udp(9, 8).vlan(10));
    let drops = rig.switch.uplink_drops();
    assert!(drops.get(Reason::UplinkShare) > 1_000, "{drops:?}");
    assert_eq!(flood(&mut rig, 20, &udp(9, 1).vlan(10)), 20, "the same tenant's endpoint has its part");
    assert_eq!(flood(&mut rig, 20, &udp(9, 2).vlan(20)), 20);
    // In the network that tenants share, it is nobody's.
    let before = rig.switch.uplink_drops().get(Reason::UplinkShare);
    flood(&mut rig, 4_000, &udp(9, 8));
    assert_eq!(rig.switch.uplink_drops().get(Reason::UplinkShare), before);
}

#[test]
fn agents_learn_that_it_has_arrived_and_was_lost() {
    let mut rig = rig();
    rig.switch.watch_arrivals(true);
    assert_eq!(flood(&mut rig, 1, &udp(9, 2).vlan(20)), 1);
    let passed = flood(&mut rig, 4_000, &udp(9, 1).vlan(10)) as u64;
    let mut arrivals = Vec::new();
    rig.switch.take_arrivals(&mut arrivals, &mut Vec::new());
    let of = |count: fn(&Arrival) -> u64| {
        arrivals.iter().filter(|arrival| arrival.to == EndpointId(0)).map(count).sum::<u64>()
    };
    let (arrived, dropped) = (of(|arrival| arrival.wire_bytes), of(|arrival| arrival.dropped_bytes));
    let each = arrived / 4_000;
    assert_eq!((arrived, dropped), (4_000 * each, (4_000 - passed) * each));
    assert!(dropped > arrived / 4);
}

#[test]
fn weights_are_kept_of_what_the_program_has() {
    let mut rig = rig();
    rig.switch.set_intake_weights((TenantId(u32::MAX), 7), (PortId(1), 7));
    rig.switch.set_intake_weights((TenantId(0), 7), (PortId(u32::MAX), 7));
    rig.switch.set_intake_weights((TenantId(0), 900), (PortId(1), 30_000));
    // Its weight is 900, and the other one has 30 000.
    let frames = [udp(9, 1).vlan(10), udp(9, 2).vlan(20)];
    let mut passed = [0; 2];
    (0..40_000).for_each(|n| passed[n % 2] += flood(&mut rig, 1, &frames[n % 2]));
    assert!(passed[0] < passed[1] / 4, "{passed:?}");
}

fn flood_for(rig: &mut Rig, ms: u64, flood_of: &build::Build<'_>) {
    for _ in 0..ms {
        rig.switch.share_intake(Some(PRICES), 0);
        flood(rig, 1, &udp(9, 2).vlan(20));
        flood(rig, 1_000, flood_of);
    }
}

/// What ports are told after 30 ms of a flood beside a few frames for endpoint 1, while the ring
/// fills.
fn told(rig: &mut Rig, flood_of: &build::Build<'_>) -> Option<Vec<Thinned>> {
    flood_for(rig, 30, flood_of);
    let list = rig.switch.thinned(rig.now).map(<[Thinned]>::to_vec);
    rig.switch.set_thinned(true);
    list
}

#[test]
fn what_ports_drop_of_a_flood_is_counted_about() {
    for (frame, vlan, to) in [(udp(9, 1).vlan(10), Some(10), 0), (udp(9, 3), None, 2)] {
        let mut rig = rig();
        let list = told(&mut rig, &frame).expect("somebody is thinned");
        let [Thinned { to: destination, keep }] = list[..] else { panic!("{list:?}") };
        assert_eq!((destination.vlan, destination.mac), (vlan, mac(to as u8 + 1)));
        let (read, by_share) = (rig.drops(to)[0].1, |rig: &Rig| rig.drops(to)[0].1);
        flood_for(&mut rig, 20, &frame);
        assert!(by_share(&rig) - read <= 20_000, "what was in the ring before tells nothing");
        flood_for(&mut rig, 20, &frame);
        rig.switch.watch_arrivals(true);
        let before = by_share(&rig);
        let passed = flood(&mut rig, 100, &frame) as u64;
        let about = 100 * ((1 << 32) - u64::from(keep)) / u64::from(keep);
        let missed = by_share(&rig) - before - (100 - passed);
        assert!(about > 200 && missed.abs_diff(about) <= 1, "{keep}: {missed}");
        assert_eq!((rig.drops(1), rig.switch.uplink_drops().total()), (vec![], 0));
        let mut arrivals = Vec::new();
        rig.switch.take_arrivals(&mut arrivals, &mut Vec::new());
        let [Arrival { wire_bytes, dropped_bytes, .. }] = arrivals[..] else { panic!("{arrivals:?}") };
        let each = wire_bytes / (100 + missed);
        assert_eq!((wire_bytes, dropped_bytes), (each * (100 + missed), each * (100 + missed - passed)));
        // The ring has room, and is looked at again until all is read.
        rig.switch.share_intake(None, 0);
        assert!(rig.switch.thinned_due().is_some());
        rig.now = rig.now.plus_ns(1_000_000_000);
        assert_eq!(rig.switch.thinned(rig.now), Some(&[][..]));
        rig.switch.set_thinned(true);
        assert_eq!(rig.switch.thinned_due(), None);
        let before = rig.drops(to);
        assert_eq!((flood(&mut rig, 100, &frame), rig.drops(to)), (100, before));
    }
}

#[test]
fn what_a_port_cannot_tell_or_must_not_drop_is_not_thinned() {
    // What is for none of the tenant's endpoints.
    assert_eq!(told(&mut rig(), &udp(9, 8).vlan(10)), None);
    // Agents of other hosts speak to it.
    let rate = Both { egress: Rate(Rate::GBIT), ingress: Rate(Rate::GBIT) };
    let agents = AgentTraffic { address: ip(1).into(), port: 7370, rate };
    let mut rig = rig_with(|program| program.endpoints[0].agent_traffic = Some(agents));
    assert_eq!(told(&mut rig, &udp(9, 1).vlan(10)), None);
    // Tunnels have the address as well.
    let tunnels = Vtep { address: ip(200).into(), mac: mac(3) };
    let mut rig = rig_with(|program| program.overlay.local = Some(tunnels));
    assert_eq!(told(&mut rig, &udp(9, 3)), None);
    assert!(told(&mut rig, &udp(9, 1).vlan(10)).is_some());
    // A bond that numbers frames would wait for what a port drops.
    for (order, is_thinned) in [(true, false), (false, true)] {
        let mut rig = rig_with(|program| {
            let uplink = program.uplink.as_mut().expect("an uplink");
            uplink.bond = Some(BondSettings { order, ..BondSettings::default() });
        });
        assert_eq!(told(&mut rig, &udp(9, 1).vlan(10)).is_some(), is_thinned, "order = {order}");
    }
    // With a tag of no VLAN it is of the same network, and a port tells it apart.
    assert_eq!(told(&mut self::rig(), &udp(9, 3).vlan(0)), None);
}
