//! Speed: how much faster than the wall clock the simulator runs. It measures the machine, so it
//! has no snapshot.

use datapath::units::{Direction, Rate};

use super::measure;
use super::{Cell, Options, Scenario, Table};
use crate::packet::Nic;
use crate::site::{Site, TenantSpec};
use crate::tcp::congestion::Algorithm;
use crate::topology::{HostSpec, Topology, Traffic};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "speed",
    about: "virtual seconds in a second of this machine, 20 endpoints with a TCP connection each",
    seconds: 3,
    warms_up: true,
    repeats: false,
    run,
};

/// Endpoints of the switch under test; as many are at the far end.
pub const ENDPOINTS: usize = 20;

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        columns: vec![
            "link",
            "hosts send",
            "total Mbit/s",
            "frames handed over",
            "ns a frame",
            "faster than real time",
        ],
        notes: vec!["A frame is handed over several times on its way: host, switch, link, switch, host.".into()],
        ..Table::default()
    };
    for gbit in [1, 20] {
        for (title, nic) in [("offloaded frames", Nic::default()), ("1500-byte frames", Nic::PLAIN)] {
            let speed = measure(options, Rate(gbit * Rate::GBIT), nic)?;
            table.rows.push(vec![
                Rate(gbit * Rate::GBIT).to_string().into(),
                title.into(),
                Cell::Number(speed.mbps, 1),
                Cell::Number(speed.frames as f64, 0),
                Cell::Number(speed.ns_a_frame, 0),
                Cell::Number(speed.ratio, 2),
            ]);
        }
    }
    Ok(table)
}

/// How fast one network ran.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Mbit/s on the wire.
    pub mbps: f64,
    /// Frames handed from one component to another.
    pub frames: u64,
    /// Nanoseconds of this machine for each.
    pub ns_a_frame: f64,
    /// Virtual seconds in a second.
    pub ratio: f64,
}

/// Runs [`ENDPOINTS`] endpoints that share one link.
///
/// # Errors
/// The first violation of safety.
pub fn measure(options: &Options, rate: Rate, nic: Nic) -> Result<Speed, Violation> {
    let site = Site {
        rate,
        host: HostSpec { nic, ..HostSpec::default() },
        tenants: vec![TenantSpec::weighted(1, 4); ENDPOINTS / 4],
        ..Site::default()
    };
    let traffic = Traffic::tcp(Algorithm::Cubic);
    let flows = (0..ENDPOINTS).map(|e| site.flow(Direction::Egress, e / 4, e % 4, traffic)).collect();
    let topology = Topology { seed: options.seed, flows, ..site.topology() };
    let start = Clock::start();
    let measured = measure::run(&site, topology, Direction::Egress, options.seconds)?;
    let spent_ns = start.spent_ns();
    let frames = measured.world.steps();
    Ok(Speed {
        mbps: measured.total_mbps(),
        frames,
        ns_a_frame: spent_ns / frames as f64,
        ratio: measured.world.now().0 as f64 / spent_ns,
    })
}

/// The time this thread spent on a CPU, where the kernel says it (Linux's schedstat), else the wall
/// clock: other work on the machine is not the simulator's.
struct Clock {
    wall: std::time::Instant,
    cpu_ns: Option<u64>,
}

impl Clock {
    fn start() -> Self {
        Clock { wall: std::time::Instant::now(), cpu_ns: cpu_ns() }
    }

    fn spent_ns(&self) -> f64 {
        let cpu = self.cpu_ns.zip(cpu_ns()).map(|(before, after)| after - before);
        cpu.map_or_else(|| self.wall.elapsed().as_nanos() as f64, |ns| ns as f64)
    }
}

fn cpu_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}
