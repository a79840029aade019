//! FS-VDE's two published tables (Cha, Yoo, Hong, 2012): two clients with weights 1:2 whose flow
//! counts are the other way round.

use datapath::program::{IngressMode, OrderKind, Share};
use datapath::units::{Direction, Rate};

use super::fairness::name;
use super::measure;
use super::{Cell, Options, Scenario, Table};
use crate::packet::Nic;
use crate::site::{Site, TenantSpec, both};
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, HostSpec, Topology, Traffic};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "fs-vde",
    about: "FS-VDE's published flows, clients c1:c2 = 1:2: Mbit/s of each client, and the worse client's part of its ideal",
    seconds: 5,
    warms_up: true,
    repeats: true,
    run,
};

/// About what the authors' plain switch carried.
const RATE: Rate = Rate(600_000_000);
const WEIGHTS: [u32; 2] = [1, 2];

/// A system of the table: a switch that only forwards, or one of Levada's modes.
struct System {
    name: &'static str,
    mode: Option<(OrderKind, IngressMode)>,
}

const EGRESS: [System; 4] = [
    System { name: "plain", mode: None },
    System { name: "vtrr (as published)", mode: Some((OrderKind::Vtrr, IngressMode::Queue)) },
    System { name: "vtrr-bytes", mode: Some((OrderKind::VtrrBytes, IngressMode::Queue)) },
    System { name: "fair", mode: Some((OrderKind::Fair, IngressMode::Queue)) },
];

const INGRESS: [System; 4] = [
    System { name: "plain", mode: None },
    System { name: "police (as published)", mode: Some((OrderKind::Vtrr, IngressMode::PolicePublished)) },
    System { name: "police (cured)", mode: Some((OrderKind::Vtrr, IngressMode::Police)) },
    System { name: "queue", mode: Some((OrderKind::Fair, IngressMode::Queue)) },
];

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("link", format!("{RATE}, round trip 200 us, cubic, frames of 1500 bytes")),
            ("egress", "c1 one connection, c2 four from two VMs".into()),
            ("ingress", "c1 two connections to two VMs, c2 one".into()),
        ],
        columns: vec!["direction", "system", "c1", "c2", "total", "c2 / c1", "worse client %"],
        notes: vec!["Published: egress 183 and 369 of 552 (plain 136 and 446 of 582), ingress 184 and 355 of 539 (plain 378 and 200 of 578).".into()],
        ..Table::default()
    };
    for (direction, systems) in [(Direction::Egress, &EGRESS), (Direction::Ingress, &INGRESS)] {
        for system in systems {
            table.rows.push(row(options, direction, system)?);
        }
    }
    Ok(table)
}

fn row(options: &Options, direction: Direction, system: &System) -> Result<Vec<Cell>, Violation> {
    let (order, ingress) = system.mode.unwrap_or_default();
    let client = |weight, vms| TenantSpec {
        share: both(Share { weight, ..Share::default() }),
        endpoints: vec![both(Share::default()); vms],
    };
    // VMs of c1 and c2 on the switch under test: a client's share is divided among them.
    let vms = if direction == Direction::Egress { [1, 2] } else { [2, 1] };
    let site = Site {
        order,
        ingress,
        rate: RATE,
        delay_ns: 100_000,
        host: HostSpec { nic: Nic::PLAIN, ..HostSpec::default() },
        tenants: vec![client(WEIGHTS[0], vms[0]), client(WEIGHTS[1], vms[1])],
        ..Site::default()
    };
    let flows = flows(&site, direction);
    let network = if system.mode.is_some() { site.topology() } else { site.plain_topology() };
    let measured = measure::run(
        &site,
        Topology { seed: options.seed, flows: flows.clone(), ..network },
        direction,
        options.seconds,
    )?;
    let client = |client: usize| {
        let its = flows.iter().enumerate().filter(|(_, flow)| {
            let host = if direction == Direction::Egress { flow.from } else { flow.to };
            (host >= site.near(1, 0)) == (client == 1)
        });
        its.map(|(flow, _)| measured.flow_mbps(flow)).sum::<f64>()
    };
    let (c1, c2) = (client(0), client(1));
    let ideal = (c1 + c2) / f64::from(WEIGHTS[0] + WEIGHTS[1]);
    let worse = (c1 / ideal).min(c2 / ideal / f64::from(WEIGHTS[1])) * 100.0;
    Ok(vec![
        name(direction).into(),
        system.name.into(),
        Cell::Number(c1, 2),
        Cell::Number(c2, 2),
        Cell::Number(c1 + c2, 2),
        Cell::Number(c2 / c1, 3),
        Cell::Number(worse, 2),
    ])
}

/// The published flows, in Mbit/s of payload as iperf counts.
fn flows(site: &Site, direction: Direction) -> Vec<FlowSpec> {
    let tcp = Traffic::tcp(Algorithm::Cubic);
    match direction {
        Direction::Egress => {
            let from_to = [(0, 0, 0), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)];
            from_to.map(|(c, from, to)| FlowSpec::new(site.near(c, from), site.far(c, to), tcp)).to_vec()
        }
        Direction::Ingress => {
            let from_to = [(0, 0, 0), (0, 1, 1), (1, 0, 0)];
            from_to.map(|(c, from, to)| FlowSpec::new(site.far(c, from), site.near(c, to), tcp)).to_vec()
        }
    }
}
