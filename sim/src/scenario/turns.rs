//! Turns: tenants that all want more of the worker than there is, each in a way of its own, and
//! what each has of it.

use datapath::offload::OffloadSupport;
use datapath::program::{PortFeatures, PortId, Share};
use datapath::units::{Instant, Rate};

use super::measure::SECOND;
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::attack::Kind;
use crate::fluid;
use crate::packet::Nic;
use crate::site::{Site, TenantSpec, both};
use crate::topology::{FlowSpec, HostSpec, Topology, Traffic};
use crate::worker::WorkerSpec;
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "turns",
    about: "shares of the worker's time among tenants that all want more of it than there is",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

/// What is left out: until all queues are full.
const WARM_UP_NS: u64 = 200_000_000;
/// How far a share may be from its right, in percent.
const OFF_MOST: f64 = 2.0;
/// Endpoints of each tenant, and how many of them send.
const ENDPOINTS: usize = 6;
/// Floods that an endpoint may send: here time is to hold it back, not its budget.
const FLOODS: u32 = 1_000_000;

/// A tenant: what it is promised, and what it does.
struct Greedy {
    guarantee: Rate,
    weight: u32,
    about: &'static str,
    kind: Kind,
    per_second: u32,
    senders: usize,
}

const TENANTS: [Greedy; 4] = [
    Greedy {
        guarantee: Rate(400_000_000),
        weight: 1,
        about: "two ports send 60-byte frames to neighbours",
        kind: Kind::Shortest,
        per_second: 300_000,
        senders: 2,
    },
    Greedy {
        guarantee: Rate(200_000_000),
        weight: 1,
        about: "64 KiB in segments of 32 bytes toward a port without offloads",
        kind: Kind::Crumbs(32),
        per_second: 2_000,
        senders: 1,
    },
    Greedy {
        guarantee: Rate(0),
        weight: 1,
        about: "64 KiB to a group of 5 members",
        kind: Kind::Group,
        per_second: 20_000,
        senders: 1,
    },
    Greedy {
        guarantee: Rate(0),
        weight: 3,
        about: "four ports send what is refused",
        kind: Kind::Any,
        per_second: 400_000,
        senders: 4,
    },
];

fn run(options: &Options) -> Result<Table, Violation> {
    let site = site();
    let mut topology = Topology { seed: options.seed, flows: flows(&site), ..site.topology() };
    topology.workers = vec![Some(WorkerSpec::default()), None];
    let program = &mut topology.switches[0];
    program.endpoints.values_mut().for_each(|endpoint| endpoint.flood_per_second = FLOODS);
    let plain = PortFeatures { offload: OffloadSupport::NONE, ..PortFeatures::default() };
    program.ports.set(site.near(1, 1) as u32, Some(plain));
    let mut world = World::new(topology);
    world.run_until(Instant(WARM_UP_NS))?;
    let before = used_ns(&site, &world);
    world.run_for(options.seconds * SECOND)?;
    let after = used_ns(&site, &world);
    Ok(table(options, &before.iter().zip(after).map(|(before, after)| after - before).collect::<Vec<_>>()))
}

fn table(options: &Options, used_ns: &[u64]) -> Table {
    let mut table = Table {
        config: vec![("link", Rate(Rate::GBIT).to_string())],
        columns: vec!["promised", "weight", "right %", "has %", "off %", "does"],
        notes: vec![format!(
            "Right is what each would have of the link if all wanted all of it. Of the worker's time tenants had {:.1} %.",
            used_ns.iter().sum::<u64>() as f64 * 100.0 / (options.seconds * SECOND) as f64
        )],
        ..Table::default()
    };
    let claim = |tenant: &Greedy| fluid::Claim {
        guarantee: tenant.guarantee.0 as f64,
        weight: f64::from(tenant.weight),
        ..fluid::Claim::default()
    };
    let tenants = TENANTS
        .iter()
        .map(|tenant| fluid::Tenant { claim: claim(tenant), endpoints: vec![fluid::Claim::default(); ENDPOINTS] });
    let rights = fluid::solve(Rate::GBIT as f64, &tenants.collect::<Vec<_>>());
    let all = used_ns.iter().sum::<u64>() as f64;
    for ((tenant, right), &used) in TENANTS.iter().zip(rights).zip(used_ns) {
        let (right, has) = (right.rate * 100.0 / Rate::GBIT as f64, used as f64 * 100.0 / all);
        let off = (has / right - 1.0) * 100.0;
        table.rows.push(vec![
            tenant.guarantee.to_string().into(),
            Cell::Number(f64::from(tenant.weight), 0),
            Cell::Number(right, 2),
            Cell::Number(has, 2),
            Cell::Number(off, 2),
            tenant.about.into(),
        ]);
        let id = format!("{}: share of time, off its right", tenant.about);
        table.claims.push(Claim { id, value: Some(off.abs()), unit: "%", target: Target::AtMost(OFF_MOST) });
    }
    table
}

fn site() -> Site {
    let tenant = |greedy: &Greedy| TenantSpec {
        share: both(Share { guarantee: greedy.guarantee, weight: greedy.weight, ..Share::default() }),
        endpoints: vec![both(Share::default()); ENDPOINTS],
    };
    let host = HostSpec { nic: Nic::default(), ..HostSpec::default() };
    Site { tenants: TENANTS.iter().map(tenant).collect(), host, ..Site::default() }
}

fn flows(site: &Site) -> Vec<FlowSpec> {
    let of = |(tenant, greedy): (usize, &Greedy)| {
        let traffic = Traffic::Attack { per_second: greedy.per_second, kind: greedy.kind };
        let flow =
            |sender| FlowSpec::new(site.near(tenant, sender), site.near(tenant, (sender + 1) % ENDPOINTS), traffic);
        (0..greedy.senders).map(flow).collect::<Vec<_>>()
    };
    TENANTS.iter().enumerate().flat_map(of).collect()
}

/// What each tenant has had of the worker so far.
fn used_ns(site: &Site, world: &World) -> Vec<u64> {
    let Some(worker) = world.worker(0) else { return Vec::new() };
    let of = |tenant: usize| {
        let ports = (0..ENDPOINTS).map(|endpoint| PortId(site.near(tenant, endpoint) as u32));
        ports.map(|port| worker.spent(port).used_ns).sum()
    };
    (0..TENANTS.len()).map(of).collect()
}
