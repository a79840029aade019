//! Many endpoints and many hosts: how much agents talk, and that shares hold.

use crate::share::ideal;
use crate::world::{Load, MBIT, MS, Receiver, World};
use control::agent::message::MAX_DATAGRAM;
use sim::random::Random;

#[test]
fn a_hundred_endpoints_and_fifty_hosts_take_at_most_500_datagrams_a_second() {
    let tenants = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"];
    let receivers: Vec<Receiver> = (0..100).map(|n| Receiver::of(tenants[n / 10], (n % 10) as f64)).collect();
    let mut random = Random::new(3);
    let mut demands = vec![0.0; receivers.len()];
    let mut flows = Vec::new();
    for n in 0..250 {
        let (to, mbit) = (n % 100, random.range(1, 40) as f64);
        demands[to] += mbit;
        flows.push((1 + n % 50, to as u32, Load::Open(mbit * MBIT)));
    }
    let mut world = World::new(&receivers, &flows);
    world.run(2000 * MS);
    let before = world.datagrams[0];
    let shares = world.shares(2000 * MS);
    let a_second = (world.datagrams[0] - before) / 2;
    assert!(a_second <= 500, "{a_second} datagrams a second");
    assert!(world.longest <= MAX_DATAGRAM);
    let total: f64 = shares.iter().sum();
    assert!(total >= 0.97 * 1000.0 * MBIT, "{} Mbit/s", total / MBIT);
    let ideal = ideal(&receivers, &demands);
    let off = shares.iter().zip(&ideal).map(|(got, wanted)| (got - wanted).abs() / wanted).fold(0.0, f64::max);
    assert!(off <= 0.1, "{off}: {shares:?}\n{ideal:?}");
}
