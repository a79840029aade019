//! Mixed frame sizes: is the share one of bytes, whatever the frames?

use datapath::program::OrderKind;
use datapath::units::{Direction, Rate};

use super::fairness::name;
use super::measure;
use super::{Cell, Options, Scenario, Table};
use crate::packet::Nic;
use crate::site::{Site, TenantSpec};
use crate::tcp::congestion::Algorithm;
use crate::topology::{HostSpec, Topology, Traffic};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "sizes",
    about: "two equal tenants whose frames differ in size, under every order",
    seconds: 2,
    warms_up: true,
    repeats: true,
    run,
};

const RATE: Rate = Rate(100_000_000);
/// How much wider the network is than the uplink on ingress: else its queue decides who gets what,
/// not Levada.
const WIDE: u64 = 4;
/// What each datagram source offers, in tenths of the link.
const OFFERED: u64 = 9;

/// What the two tenants send.
const CASES: [(&str, Kind, Kind); 4] = [
    ("64 B / 1518 B UDP", Kind::Udp(60), Kind::Udp(1514)),
    ("64 B UDP / 1 TCP", Kind::Udp(60), Kind::Tcp(Nic::PLAIN)),
    ("300 B UDP / 64 KiB TCP", Kind::Udp(296), Kind::Tcp(Nic { mtu: 1500, offload_bytes: 65_160, csum: true })),
    ("1 TCP / 64 KiB TCP", Kind::Tcp(Nic::PLAIN), Kind::Tcp(Nic { mtu: 1500, offload_bytes: 65_160, csum: true })),
];

const ORDERS: [(&str, OrderKind); 4] = [
    ("fair", OrderKind::Fair),
    ("wf2q", OrderKind::Wf2q),
    ("vtrr", OrderKind::Vtrr),
    ("vtrr-bytes", OrderKind::VtrrBytes),
];

#[derive(Clone, Copy)]
enum Kind {
    /// Datagrams in frames of this many bytes, FCS not included.
    Udp(u32),
    Tcp(Nic),
}

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("link", format!("{RATE}, weights 1:1")),
            ("ingress", format!("over a network of {WIDE} times the uplink's rate, else the network would divide it")),
            ("UDP", format!("offers {OFFERED} tenths of the link")),
        ],
        columns: vec!["direction", "frames", "order", "first Mbit/s", "second", "total", "off by %", "max frames"],
        notes: vec!["vtrr counts packets, as published: there the small frames lose.".into()],
        ..Table::default()
    };
    for direction in Direction::ALL {
        for (title, first, second) in CASES {
            for (order_name, order) in ORDERS {
                let (site, measured) = cell(options, direction, order, [first, second])?;
                let worst = measured.worst(&site, direction);
                table.rows.push(vec![
                    name(direction).into(),
                    title.into(),
                    order_name.into(),
                    Cell::Number(measured.tenant_mbps(0), 3),
                    Cell::Number(measured.tenant_mbps(1), 3),
                    Cell::Number(measured.total_mbps(), 3),
                    Cell::Number(worst.percent, 3),
                    Cell::Number(worst.frames, 2),
                ]);
            }
        }
    }
    Ok(table)
}

fn cell(
    options: &Options,
    direction: Direction,
    order: OrderKind,
    kinds: [Kind; 2],
) -> Result<(Site, measure::Measured), Violation> {
    let site = Site {
        order,
        rate: RATE,
        link_rate: (direction == Direction::Ingress).then(|| RATE.scaled(WIDE, 1)),
        host: HostSpec { nic: Nic::PLAIN, ..HostSpec::default() },
        tenants: vec![TenantSpec::weighted(1, 1); 2],
        ..Site::default()
    };
    let mut topology = Topology { seed: options.seed, ..site.topology() };
    for (tenant, kind) in kinds.into_iter().enumerate() {
        let traffic = match kind {
            Kind::Udp(frame) => Traffic::udp(RATE.scaled(OFFERED, 10), frame),
            Kind::Tcp(nic) => {
                topology.hosts[site.near(tenant, 0)].nic = nic;
                topology.hosts[site.far(tenant, 0)].nic = nic;
                Traffic::tcp(Algorithm::Cubic)
            }
        };
        topology.flows.push(site.flow(direction, tenant, 0, traffic));
    }
    let measured = measure::run(&site, topology, direction, options.seconds)?;
    Ok((site, measured))
}
