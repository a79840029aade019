//! Rates: up to how many frames a second a guarantee holds on one core, beside attackers that take
//! all the time that they get.
//!
//! What a tenant has of the worker's time is its share of the link, of all that tenants have. They
//! have half where the uplink's ring is never empty either. So the answer is a part of what the
//! core moves for one who is alone, whatever the machine.

use datapath::program::Share;
use datapath::units::{Direction, Instant, Rate};

use super::measure::SECOND;
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::attack::Kind;
use crate::costs::{Costs, FORWARD_INSTRUCTIONS};
use crate::packet::Nic;
use crate::site::{Site, TenantSpec, both};
use crate::topology::{FlowSpec, HostSpec, Topology, Traffic};
use crate::worker::WorkerSpec;
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "frame-rates",
    about: "the largest rate of frames at which a guarantee holds on one core beside saturating attackers",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

/// What is left out: until all queues are full.
const WARM_UP_NS: u64 = 100_000_000;
/// So fast that the core is short first: 1500-byte frames as fast as it moves them take 4.
const LINK: Rate = Rate(10 * Rate::GBIT);
/// Frames, without their FCS of 4 bytes, and what they are called.
const FRAMES: [(u32, &str); 2] = [(60, "64"), (1514, "1500 + 18")];
/// What a frame takes of the link beside its bytes: preamble, FCS and gap.
const AROUND: u64 = 24;
/// The victim's guarantee, in percent of the link. The attackers have the rest.
const SHARES: [u64; 3] = [25, 50, 75];
/// More than a core moves, of the victim and of each attacker.
const PLENTY: u64 = 500_000;
/// What is offered of what the victim had when it offered too much, in percent: beyond it rings
/// overflow now and then.
const OFFERED: u64 = 98;
/// What must arrive of it, and what it must be of the core's own maximum by the rule, in percent.
const LEAST: f64 = 99.0;
const OF_RULE: f64 = 95.0;

/// Who attacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attackers {
    Nobody,
    /// Neighbours, who send each other the shortest frames.
    Inside,
    /// And somebody outside, who sends them more.
    Outside,
}

impl Attackers {
    fn about(self) -> &'static str {
        match self {
            Attackers::Nobody => "none",
            Attackers::Inside => "on the host",
            Attackers::Outside => "on the host and outside",
        }
    }

    /// The part of the worker's time that is shared among tenants, in percent.
    fn left(self) -> u64 {
        if self == Attackers::Outside { 50 } else { 100 }
    }
}

fn run(options: &Options) -> Result<Table, Violation> {
    let costs = Costs::default();
    let mut table = Table {
        config: vec![("link", LINK.to_string())],
        columns: vec!["frame", "guarantee %", "attackers", "frames/s", "of the core's %", "kept %"],
        notes: vec![format!(
            "The core's: what the same tenant moves to the uplink when it is alone. The switch's part of a frame is \
             {FORWARD_INSTRUCTIONS} instructions; with the kernel's, a frame takes as long as {} (64 bytes) and {} (1500).",
            as_instructions(&costs, FRAMES[0].0),
            as_instructions(&costs, FRAMES[1].0)
        )],
        ..Table::default()
    };
    for (frame, name) in FRAMES {
        let alone = cell(options, frame, 50, Attackers::Nobody, PLENTY)?.1;
        row(&mut table, name, None, (Attackers::Nobody, alone), (100.0, 100.0));
        for share in SHARES {
            for attackers in [Attackers::Inside, Attackers::Outside] {
                let had = cell(options, frame, share, attackers, PLENTY)?.1;
                let (offered, arrived) = cell(options, frame, share, attackers, had * OFFERED / 100)?;
                let kept = (arrived * 100) as f64 / offered as f64;
                let part = (offered * 100) as f64 / alone as f64;
                row(&mut table, name, Some(share), (attackers, offered), (part, kept));
                let of = format!("{name} bytes, {share} %, attackers {}", attackers.about());
                let rule = (share * attackers.left()) as f64 / 100.0;
                table.claims.push(claim(format!("{of}: kept"), kept, LEAST));
                table.claims.push(claim(
                    format!("{of}: of the guarantee's part of the core"),
                    part * 100.0 / rule,
                    OF_RULE,
                ));
            }
        }
    }
    Ok(table)
}

fn claim(id: String, value: f64, least: f64) -> Claim {
    Claim { id, value: Some(value), unit: "%", target: Target::AtLeast(least) }
}

fn row(
    table: &mut Table,
    frame: &str,
    share: Option<u64>,
    (attackers, rate): (Attackers, u64),
    (part, kept): (f64, f64),
) {
    table.rows.push(vec![
        frame.into(),
        share.map_or(Cell::Empty, |share| Cell::Number(share as f64, 0)),
        attackers.about().into(),
        Cell::Number(rate as f64, 0),
        Cell::Number(part, 1),
        Cell::Number(kept, 2),
    ]);
}

/// Instructions that take as long as a frame does, the kernel's part included.
fn as_instructions(costs: &Costs, bytes: u32) -> u64 {
    costs.frame_ps(bytes.into()) * FORWARD_INSTRUCTIONS / costs.forward.each_ps
}

/// Frames a second that the victim sends, and that arrive at its peer.
fn cell(
    options: &Options,
    frame: u32,
    share: u64,
    attackers: Attackers,
    per_second: u64,
) -> Result<(u64, u64), Violation> {
    let site = site(share);
    let mut topology = Topology { seed: options.seed, ..site.topology() };
    topology.workers = vec![Some(WorkerSpec::default()), None];
    let rate = Rate(per_second * (u64::from(frame) + AROUND) * 8);
    topology.flows = vec![site.flow(Direction::Egress, 0, 0, Traffic::udp(rate, frame))];
    let attack = Traffic::Attack { per_second: PLENTY as u32, kind: Kind::Shortest };
    if attackers != Attackers::Nobody {
        topology.flows.push(FlowSpec::new(site.near(1, 0), site.near(1, 1), attack));
    }
    if attackers == Attackers::Outside {
        topology.flows.push(FlowSpec::new(site.far(1, 0), site.near(1, 0), attack));
    }
    let mut world = World::new(topology);
    world.run_until(Instant(WARM_UP_NS))?;
    let counts = |world: &World| (world.sent(0).frames_sent, world.received(0).segments);
    let before = counts(&world);
    world.run_for(options.seconds * SECOND)?;
    let after = counts(&world);
    Ok(((after.0 - before.0) / options.seconds, (after.1 - before.1) / options.seconds))
}

fn site(share: u64) -> Site {
    let tenant = |percent: u64, endpoints| TenantSpec {
        share: both(Share { guarantee: LINK.scaled(percent, 100), ..Share::default() }),
        endpoints: vec![both(Share::default()); endpoints],
    };
    let host = HostSpec { nic: Nic::PLAIN, ..HostSpec::default() };
    Site { rate: LINK, tenants: vec![tenant(share, 1), tenant(100 - share, 2)], host, ..Site::default() }
}
