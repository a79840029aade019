//! Who gets what: against the fluid model, and what one leaves is another's.

use crate::world::{HEADROOM_PPM, LINK, Load, MBIT, MS, Receiver, World};

/// What is divided under contention.
const CONTENDED: f64 = LINK * (1.0 - HEADROOM_PPM as f64 / 1e6);

#[test]
fn what_one_leaves_is_the_others() {
    for slow in [0.0, 1.0, 20.0, 100.0, 300.0] {
        let receivers = [Receiver::of("a", 735.0), Receiver::of("b", 245.0)];
        let mut world = World::new(&receivers, &[(1, 0, Load::Open(735.0 * MBIT)), (2, 1, Load::Open(1000.0 * MBIT))]);
        world.run(300 * MS);
        world.flows[0].load = Load::Open(slow * MBIT);
        world.run(200 * MS);
        let shares = world.shares(500 * MS);
        let capacity = if slow == 0.0 { LINK } else { CONTENDED };
        assert!(shares[0] >= 0.99 * slow * MBIT, "{slow} Mbit/s: {shares:?}");
        assert!(shares[1] >= 0.99 * (capacity - slow * MBIT), "{slow} Mbit/s: {shares:?}");
    }
}

#[test]
fn bursts_of_a_slow_one_do_not_cost_the_others_much() {
    let receivers = [Receiver::of("a", 735.0), Receiver::of("b", 245.0)];
    let bursts = Load::Bursts { rate: 100.0 * MBIT, bytes: 65_536.0 };
    let mut world = World::new(&receivers, &[(1, 0, bursts), (2, 1, Load::Open(1000.0 * MBIT))]);
    world.run(300 * MS);
    let lost = world.flows[0].lost;
    let shares = world.shares(1000 * MS);
    assert!(world.flows[0].lost <= lost, "bursts of 64 KiB fit into the network");
    assert!(shares[0] >= 0.99 * 100.0 * MBIT, "{shares:?}");
    // Ideal are 880; what a burst promises and does not keep costs something.
    assert!(shares[1] >= 0.91 * (CONTENDED - 100.0 * MBIT), "{shares:?}");
}

/// What the fluid model gives, with all of one tenant's endpoints beside each other.
pub fn ideal(receivers: &[Receiver], demands: &[f64]) -> Vec<f64> {
    let mut tenants: Vec<(&str, sim::fluid::Tenant)> = Vec::new();
    for (receiver, &demand) in receivers.iter().zip(demands) {
        let claim = sim::fluid::Claim {
            guarantee: receiver.guarantee * MBIT,
            limit: receiver.limit * MBIT,
            weight: f64::from(receiver.weight),
            demand: demand * MBIT,
        };
        match tenants.iter_mut().find(|(name, _)| *name == receiver.tenant) {
            Some((_, tenant)) => tenant.endpoints.push(claim),
            None => {
                tenants.push((receiver.tenant, sim::fluid::Tenant { endpoints: vec![claim], ..Default::default() }))
            }
        }
    }
    let tenants: Vec<_> = tenants.into_iter().map(|(_, tenant)| tenant).collect();
    sim::fluid::solve(CONTENDED, &tenants).into_iter().flat_map(|shares| shares.endpoints).collect()
}

#[test]
fn shares_are_the_fluid_models_within_one_per_cent() {
    let open = |mbit| Load::Open(mbit * MBIT);
    let one = |tenant, guarantee, limit, weight| Receiver { tenant, guarantee, limit, weight };
    let unlimited = f64::INFINITY;
    let cases: [(Vec<Receiver>, Vec<f64>); 6] = [
        (vec![one("a", 500.0, unlimited, 1), one("b", 0.0, unlimited, 1)], vec![900.0, 900.0]),
        (
            vec![one("a", 100.0, unlimited, 1), one("b", 0.0, unlimited, 1), one("c", 0.0, unlimited, 1)],
            vec![1000.0, 50.0, 1000.0],
        ),
        // Two levels: what a1 leaves of its guarantee is a2's first.
        (
            vec![one("a", 400.0, unlimited, 1), one("a", 100.0, unlimited, 1), one("b", 200.0, unlimited, 1)],
            vec![100.0, 900.0, 900.0],
        ),
        (vec![one("a", 0.0, 150.0, 1), one("b", 100.0, unlimited, 1)], vec![900.0, 1000.0]),
        // A flood of an endpoint with a limit, beside one that fits.
        (vec![one("a", 0.0, 150.0, 1), one("b", 735.0, unlimited, 1)], vec![1000.0, 735.0]),
        (
            vec![one("a", 0.0, unlimited, 1), one("a", 0.0, unlimited, 3), one("b", 0.0, unlimited, 1)],
            vec![800.0, 800.0, 800.0],
        ),
    ];
    for (receivers, demands) in cases {
        let flows: Vec<_> = demands.iter().enumerate().map(|(n, &mbit)| (1 + n, n as u32, open(mbit))).collect();
        let mut world = World::new(&receivers, &flows);
        world.run(300 * MS);
        let shares = world.shares(1000 * MS);
        for (got, wanted) in shares.iter().zip(ideal(&receivers, &demands)) {
            assert!(
                (got - wanted).abs() <= 0.01 * wanted,
                "{receivers:?}: {shares:?}, ideal {:?}",
                ideal(&receivers, &demands)
            );
        }
    }
}
