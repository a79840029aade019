//! Throughput over buffer and loss: can the simulator's TCP be trusted to fill a link, and does it
//! fill one behind Levada?

use datapath::link::{LinkConfig, Side};
use datapath::units::{Direction, Instant, Rate};

use super::measure::{self, SECOND, WARM_UP_NS, mbps};
use super::{Cell, Options, Scenario, Table};
use crate::packet::{Nic, TCP_HEADERS};
use crate::site::{Site, TenantSpec};
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "throughput",
    about: "one TCP connection over a link, by buffer and random loss: percent of the link's payload rate",
    seconds: 20,
    warms_up: true,
    repeats: true,
    run,
};

const RATE: Rate = Rate(100_000_000);
const DELAY_NS: u64 = 10_000_000;
/// Bytes that the link holds in a round trip.
const PRODUCT: u32 = 250_000;
/// Buffers, in sixteenths of it.
const BUFFERS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const LOSSES_PPM: [u32; 4] = [0, 100, 1_000, 10_000];

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("link", format!("{RATE}, round trip {} ms, frames of 1500 bytes", 2 * DELAY_NS / 1_000_000)),
            ("buffer", format!("in bandwidth-delay products of {PRODUCT} bytes")),
            ("behind Levada", "the buffer is the endpoint's queue, managed by CoDel".into()),
        ],
        columns: vec![
            "algorithm",
            "buffer",
            "no loss",
            "0.01 %",
            "0.1 %",
            "1 %",
            "resent %",
            "behind Levada",
            "resent %",
        ],
        ..Table::default()
    };
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        for sixteenths in BUFFERS {
            let buffer = PRODUCT / 16 * sixteenths;
            let mut row = vec![algorithm.name().into(), Cell::Number(f64::from(sixteenths) / 16.0, 4)];
            let mut resent = 0.0;
            for loss_ppm in LOSSES_PPM {
                let cell = over_link(options, algorithm, buffer, loss_ppm)?;
                row.push(Cell::Number(cell.percent, 1));
                resent = if loss_ppm == 0 { cell.resent } else { resent };
            }
            let behind = behind_levada(options, algorithm, buffer)?;
            row.extend([Cell::Number(resent, 2), Cell::Number(behind.percent, 1), Cell::Number(behind.resent, 2)]);
            table.rows.push(row);
        }
    }
    Ok(table)
}

struct Throughput {
    percent: f64,
    resent: f64,
}

fn over_link(options: &Options, algorithm: Algorithm, buffer: u32, loss_ppm: u32) -> Result<Throughput, Violation> {
    let host = HostSpec { tenant: 1, nic: Nic::PLAIN, ..HostSpec::default() };
    let link = LinkConfig { rate: RATE, delay_ns: DELAY_NS, queue_bytes: buffer, loss_ppm, ..LinkConfig::default() };
    let topology = Topology {
        seed: options.seed,
        hosts: vec![host, host],
        links: vec![link],
        cables: vec![(Plug::Host(0), Plug::Link(0, Side::A)), (Plug::Host(1), Plug::Link(0, Side::B))],
        flows: vec![FlowSpec::new(0, 1, Traffic::tcp(algorithm))],
        ..Topology::default()
    };
    let mut world = World::new(topology);
    world.run_until(Instant(WARM_UP_NS))?;
    let before = world.received(0).bytes;
    world.run_for(options.seconds * SECOND)?;
    let bytes = world.received(0).bytes - before;
    Ok(Throughput { percent: percent(bytes, options.seconds), resent: resent(&world) })
}

fn behind_levada(options: &Options, algorithm: Algorithm, buffer: u32) -> Result<Throughput, Violation> {
    let site = Site {
        rate: RATE,
        delay_ns: DELAY_NS,
        queue_bytes: buffer,
        host: HostSpec { nic: Nic::PLAIN, ..HostSpec::default() },
        tenants: vec![TenantSpec::weighted(1, 1)],
        ..Site::default()
    };
    let flows = vec![FlowSpec::new(site.near(0, 0), site.far(0, 0), Traffic::tcp(algorithm))];
    let topology = Topology { seed: options.seed, flows, ..site.topology() };
    let measured = measure::run(&site, topology, Direction::Egress, options.seconds)?;
    Ok(Throughput { percent: percent(measured.payload[0], options.seconds), resent: resent(&measured.world) })
}

/// Of what the link carries in payload. (Behind Levada there is a tag of four bytes on the link
/// besides.)
fn percent(bytes: u64, seconds: u64) -> f64 {
    let mss = f64::from(Nic::PLAIN.mss());
    let full = RATE.0 as f64 / 1e6 * mss / (mss + TCP_HEADERS as f64 + 24.0);
    mbps(bytes, seconds * SECOND) / full * 100.0
}

fn resent(world: &World) -> f64 {
    let sender = world.sent(0).sender;
    sender.retransmits as f64 / sender.segments as f64 * 100.0
}
