//! Virtual congestion control under guarantees: what a tenant is promised is what it has.

use datapath::program::{EndpointId, Share};
use datapath::units::{Direction, Instant, Rate};
use datapath::vcc::Mode;
use sim::packet::Nic;
use sim::site::{Site, TenantSpec, both};
use sim::tcp::congestion::Algorithm;
use sim::topology::{HostSpec, Traffic};
use sim::world::World;

const MBIT: u64 = 1_000_000;
const MS: u64 = 1_000_000;
const RATE: Rate = Rate(200 * MBIT);
/// Of three tenants; the last one floods, with a weight of a hundred.
const GUARANTEES: [u64; 3] = [60 * MBIT, 100 * MBIT, 0];
/// TCP connections of the first two.
const FLOWS: [usize; 2] = [1, 8];
const WARM_UP_NS: u64 = 1000 * MS;
const MEASURED_NS: u64 = 2000 * MS;

/// Wire bits a second of each tenant on the uplink, where the first has `mode`.
fn rates(mode: Mode, seed: u64) -> [f64; 3] {
    let tenant = |guarantee: u64| TenantSpec {
        share: both(Share { weight: if guarantee == 0 { 100 } else { 1 }, ..Share::default() }),
        endpoints: vec![both(Share { guarantee: Rate(guarantee), ..Share::default() })],
    };
    let host = HostSpec { nic: Nic::PLAIN, times_syn: true, without_ecn: true, ..HostSpec::default() };
    let site = Site { rate: RATE, host, tenants: GUARANTEES.map(tenant).to_vec(), ..Site::default() };
    let mut topology = site.topology();
    topology.seed = seed;
    for program in &mut topology.switches {
        program.tenants[0].vcc = mode.into();
    }
    for (tenant, flows) in FLOWS.into_iter().enumerate() {
        let flow = site.flow(Direction::Egress, tenant, 0, Traffic::tcp(Algorithm::Cubic));
        topology.flows.extend((0..flows).map(|_| flow));
    }
    topology.flows.push(site.flow(Direction::Egress, 2, 0, Traffic::udp(Rate(2 * RATE.0), 1514)));
    let mut world = World::new(topology);
    let sent = |world: &World| site.wire_bytes(world, Direction::Egress).concat();
    world.run_until(Instant(WARM_UP_NS)).expect("it is safe");
    let before = sent(&world);
    world.run_for(MEASURED_NS).expect("it is safe");
    let after = sent(&world);
    if mode.translates() {
        let counters = world.switch(0).vcc().counters(EndpointId(0)).expect("it has vcc");
        assert!(counters.opened[0] > 0 && counters.marked_bytes > 0, "it is translated, and marked: {counters:?}");
    }
    [0, 1, 2].map(|tenant| (after[tenant] - before[tenant]) as f64 * 8e9 / MEASURED_NS as f64)
}

#[test]
fn a_tenant_with_vcc_and_its_neighbour_have_what_they_are_guaranteed() {
    for mode in [Mode::Off, Mode::Echo, Mode::Dctcp] {
        for seed in 1..=3 {
            let rates = rates(mode, seed);
            for (rate, guarantee) in rates.into_iter().zip(GUARANTEES) {
                assert!(rate >= 0.99 * guarantee as f64, "{mode:?}, seed {seed}: {rate} of {guarantee}");
            }
        }
    }
}
