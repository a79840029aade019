//! The controller as published: it works, in its time, and at its price.

use crate::world::{Load, MBIT, MS, Receiver, World};
use agent::settings::ControllerKind;

#[test]
fn notifications_halve_until_the_victim_has_its_guarantee() {
    let receivers = [Receiver::of("a", 500.0), Receiver::of("b", 245.0)];
    let mut world = World::under(
        ControllerKind::Gatekeeper,
        &receivers,
        &[(1, 0, Load::Open(500.0 * MBIT)), (2, 1, Load::Open(1000.0 * MBIT)), (3, 1, Load::Open(1000.0 * MBIT))],
    );
    let took = world.time_until_restored(0, 500.0 * MBIT, 3000 * MS);
    assert!(took.is_some_and(|ns| ns > 50 * MS), "{took:?}: it decides on 100 ms");
    assert!(world.limit(1).is_some() && world.limit(2).is_some(), "{:?}", world.limits);
    let report = world.agents[0].report(datapath::units::Instant(world.now));
    assert!(report.counters.notified >= 2 && report.limited.is_empty(), "{report:?}");
    for flow in &mut world.flows[1..] {
        flow.load = Load::Open(0.0);
    }
    world.run(11_000 * MS);
    assert!(world.limits.is_empty(), "limits grow back: {:?}", world.limits);
}
