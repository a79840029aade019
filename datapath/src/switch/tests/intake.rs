//! Frames from outside while the uplink's ring fills.

use super::*;
use crate::arrivals::Arrival;
use crate::intake::Prices;
use crate::turns::Cost;

const PRICES: Prices = Prices { read: Cost::new(1_000, 0), pass: Cost::new(3_000, 0) };

/// Two tenants with an endpoint each, and a third in the untagged network, whose ring fills.
fn rig() -> Rig {
    let tenants = [Attachment::Vlan(10), Attachment::Vlan(20), Attachment::Untagged];
    let mut rig = Rig::new(&tenants, &[(0, 1), (1, 2), (2, 3)], |_| {});
    (1..=3).for_each(|port| rig.switch.set_intake_weights((TenantId(port - 1), 30_000), (PortId(port), 30_000)));
    rig.switch.share_intake(Some(PRICES));
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
    rig.switch.share_intake(None);
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
