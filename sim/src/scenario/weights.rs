//! Weights up to 1000:1, guarantees and limits, at two levels: each endpoint's share of the
//! measured total against the fluid model.

use datapath::program::{OrderKind, Share};
use datapath::units::{Direction, Rate};

use super::fairness::name;
use super::measure;
use super::{Cell, Options, Scenario, Table};
use crate::site::{Site, TenantSpec, both};
use crate::tcp::congestion::Algorithm;
use crate::topology::{Topology, Traffic};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "weights",
    about: "weights up to 1000:1, guarantees and limits: the endpoint furthest from its ideal share",
    seconds: 5,
    warms_up: true,
    repeats: true,
    run,
};

/// How much wider the network is than the uplink where endpoints receive UDP: else its queue
/// decides who gets what, not Levada.
const WIDE: u64 = 8;
const MBIT: u64 = 1_000_000;
const ORDERS: [(&str, OrderKind); 2] = [("fair", OrderKind::Fair), ("wf2q", OrderKind::Wf2q)];

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            (
                "traffic",
                "each endpoint: one TCP (cubic) connection, or UDP at 1.5 times the link's rate, offloaded frames"
                    .into(),
            ),
            (
                "UDP on ingress",
                format!("over a network of {WIDE} times the uplink's rate, else the network would divide it"),
            ),
            ("holds", "within the larger of 0.1 % and two maximum frames".into()),
        ],
        columns: vec![
            "case",
            "link",
            "direction",
            "order",
            "traffic",
            "total Mbit/s",
            "off by %",
            "max frames",
            "holds",
        ],
        ..Table::default()
    };
    for (title, site) in cases() {
        for direction in Direction::ALL {
            for (order_name, order) in ORDERS {
                for udp in [false, true] {
                    let wide = (udp && direction == Direction::Ingress).then(|| site.rate.scaled(WIDE, 1));
                    let site = Site { order, link_rate: wide, ..site.clone() };
                    let measured = cell(options, &site, direction, udp)?;
                    let worst = measured.worst(&site, direction);
                    table.rows.push(vec![
                        title.into(),
                        site.rate.to_string().into(),
                        name(direction).into(),
                        order_name.into(),
                        if udp { "UDP" } else { "TCP" }.into(),
                        Cell::Number(measured.total_mbps(), 2),
                        Cell::Number(worst.percent, 3),
                        Cell::Number(worst.frames, 2),
                        if worst.holds() { "yes" } else { "NO" }.into(),
                    ]);
                }
            }
        }
    }
    Ok(table)
}

fn cases() -> Vec<(&'static str, Site)> {
    let two_levels = |weights: &[u32]| {
        let share = |weight| both(Share { weight, ..Share::default() });
        TenantSpec { endpoints: weights.iter().map(|&weight| share(weight)).collect(), ..TenantSpec::default() }
    };
    let promised = |guarantee: u64, limit: u64| Share {
        guarantee: Rate(guarantee * MBIT),
        limit: if limit == 0 { Rate::UNLIMITED } else { Rate(limit * MBIT) },
        ..Share::default()
    };
    let gbit = Site { rate: Rate(Rate::GBIT), ..Site::default() };
    let mixed = TenantSpec {
        share: both(Share { weight: 3, ..Share::default() }),
        endpoints: vec![both(promised(200, 0)), both(promised(50, 60)), both(promised(0, 0))],
    };
    vec![
        ("1000:1", Site { tenants: vec![TenantSpec::weighted(1000, 1), TenantSpec::weighted(1, 1)], ..gbit.clone() }),
        (
            "1000:1",
            Site {
                rate: Rate(100 * MBIT),
                tenants: vec![TenantSpec::weighted(1000, 1), TenantSpec::weighted(1, 1)],
                ..gbit.clone()
            },
        ),
        (
            "1:10:100 in 2:1",
            Site {
                tenants: vec![
                    TenantSpec { share: both(Share { weight: 2, ..Share::default() }), ..two_levels(&[1, 10, 100]) },
                    two_levels(&[1, 10, 100]),
                ],
                ..gbit.clone()
            },
        ),
        (
            "guarantee, limit",
            Site {
                tenants: vec![mixed, TenantSpec { share: both(promised(0, 250)), ..two_levels(&[1, 2]) }],
                ..gbit.clone()
            },
        ),
        ("16 equal", Site { tenants: vec![TenantSpec::weighted(1, 1); 16], ..gbit }),
    ]
}

fn cell(options: &Options, site: &Site, direction: Direction, udp: bool) -> Result<measure::Measured, Violation> {
    let traffic = if udp {
        // On ingress, together they fill the wide network without losing anything in it.
        let all = site.endpoints() as u64;
        let rate =
            if direction == Direction::Ingress { site.rate.scaled(WIDE, all + 1) } else { site.rate.scaled(3, 2) };
        Traffic::Udp { rate, frame: 1514, train: 20, on_off_ns: (0, 0) }
    } else {
        Traffic::tcp(Algorithm::Cubic)
    };
    let tenants = site.tenants.iter().enumerate();
    let all = tenants.flat_map(|(tenant, spec)| (0..spec.endpoints.len()).map(move |endpoint| (tenant, endpoint)));
    let flows = all.map(|(tenant, endpoint)| site.flow(direction, tenant, endpoint, traffic)).collect();
    measure::run(site, Topology { seed: options.seed, flows, ..site.topology() }, direction, options.seconds)
}
