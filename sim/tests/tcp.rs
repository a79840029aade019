//! TCP over one link: does it fill it, and does it recover?

use datapath::aqm::Discipline;
use datapath::link::{LinkConfig, Side};
use datapath::units::{Instant, Rate};
use sim::packet::Nic;
use sim::tcp::congestion::Algorithm;
use sim::topology::{Fault, FlowSpec, HostSpec, Plug, Topology, Traffic};
use sim::world::World;

const SECOND: u64 = 1_000_000_000;
const LINK: LinkConfig = LinkConfig {
    rate: Rate(100_000_000),
    delay_ns: 5_000_000,
    queue_bytes: 256 << 10,
    discipline: Discipline::DropTail,
    loss_ppm: 0,
    seed: 0,
};

/// Hosts of one tenant at both ends of a link, with a flow from the first to the second.
fn pair(link: LinkConfig, nic: Nic, traffic: Traffic) -> Topology {
    let host = HostSpec { tenant: 1, nic, ..HostSpec::default() };
    Topology {
        hosts: vec![host, host],
        links: vec![link],
        cables: vec![(Plug::Host(0), Plug::Link(0, Side::A)), (Plug::Host(1), Plug::Link(0, Side::B))],
        flows: vec![FlowSpec::new(0, 1, traffic)],
        ..Topology::default()
    }
}

/// Goodput in Mbit/s after `warm` seconds, over `seconds`.
fn goodput(topology: Topology, warm: u64, seconds: u64) -> (f64, World) {
    let mut world = World::new(topology);
    world.run_until(Instant(warm * SECOND)).unwrap();
    let before = world.received(0).bytes;
    world.run_for(seconds * SECOND).unwrap();
    let bytes = world.received(0).bytes - before;
    (bytes as f64 * 8.0 / 1e6 / seconds as f64, world)
}

/// What 100 Mbit/s of wire carry in payload.
const FULL: f64 = 100.0 * 1448.0 / 1538.0;

#[test]
fn a_connection_fills_a_link_with_a_queue_of_its_delay_product() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        for nic in [Nic::PLAIN, Nic::default()] {
            let (mbit, world) = goodput(pair(LINK, nic, Traffic::tcp(algorithm)), 2, 10);
            assert!(mbit > 0.99 * FULL, "{algorithm:?} {nic:?}: {mbit} of {FULL}; {:?}", world.sent(0).sender);
        }
    }
}

#[test]
fn throughput_under_random_loss_is_as_the_formula_says() {
    // Mathis et al., 1997: MSS / RTT x sqrt(3/2) / sqrt(p), with a round trip of 10 ms and a little
    // queueing.
    for ppm in [1000, 10_000] {
        let link = LinkConfig { loss_ppm: ppm, ..LINK };
        let (mbit, _) = goodput(pair(link, Nic::PLAIN, Traffic::tcp(Algorithm::NewReno)), 2, 20);
        let formula = 1448.0 * 8.0 / 0.0102 * 1.2247 / (f64::from(ppm) / 1e6).sqrt() / 1e6;
        assert!((0.8..1.2).contains(&(mbit / formula)), "{ppm} ppm: {mbit} where the formula says {formula}");
    }
}

#[test]
fn it_survives_a_cable_pulled_out() {
    let mut topology = pair(LINK, Nic::PLAIN, Traffic::tcp(Algorithm::Cubic));
    topology.faults =
        vec![(3 * SECOND, Fault::Loss { link: 0, ppm: 1_000_000 }), (5 * SECOND, Fault::Loss { link: 0, ppm: 0 })];
    let (mbit, world) = goodput(topology, 8, 4);
    assert!(mbit > 0.9 * FULL, "{mbit}; {:?}", world.sent(0).sender);
    assert!(world.sent(0).sender.timeouts > 1);
}
