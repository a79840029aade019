//! Figure 5 of the Gatekeeper paper, its receiving half: two machines send to a third, where tenant
//! A is promised three quarters and B one. Beside it what the figure does not show: short
//! connections that never leave slow start, idle bandwidth, what becomes of a throttled sender's
//! traffic to other receivers, and of it all where the switches' loops stall, as on busy machines.

use agent::Settings;
use agent::settings::ControllerKind;
use datapath::units::{Instant, Rate};

use super::convergence::controllers;
use super::measure::{SECOND, mbps};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::rack::{Member, Rack};
use crate::random::Random;
use crate::tcp::congestion::Algorithm;
use crate::topology::{Fault, FlowSpec, Topology, Traffic};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "fig5",
    about: "two machines send to a third: what a victim gets of its guarantee there, idle bandwidth, harm to other traffic",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

/// Promised to A and to B on the receiving machine: as published; and with `rate` all that there is
/// beside its headroom, as in the live experiment.
const PUBLISHED: [Rate; 2] = [Rate(645_000_000), Rate(215_000_000)];
const ALL: [Rate; 2] = [Rate(735_000_000), Rate(245_000_000)];
/// Datagrams handed over at once.
const TRAIN: u32 = 20;
const FRAME: u32 = 1514;
/// What a flood offers: more than its link takes.
const FLOOD: Rate = Rate(1_050_000_000);
/// A swarm: so many connections at a time, each of so many bytes, the next as soon as one is done.
/// 20 segments are two round trips.
const SWARM: usize = 64;
const SWARM_BYTES: u64 = 20 * 1448;
/// The throttled sender's traffic to another receiver, and what it then sends to the contended one:
/// together less than its link.
const ASIDE: Rate = Rate(200_000_000);
const FLOOD_BESIDE: Rate = Rate(700_000_000);
/// What is left out at the start of each cell.
const WARM_UP_NS: u64 = 400_000_000;
/// Where loops stall: how long after the last one at the same machine the next stall comes, and how
/// long it is, both drawn evenly from this. All of them together are 5 % of the time.
const STALL_AFTER_NS: (u64, u64) = (1_000_000, 21_000_000);
const STALL_NS: (u64, u64) = (50_000, 1_000_000);
/// Percent of its guarantee that a victim must get, of the link that must be used when the other is
/// idle, and of what is offered that must reach other receivers.
const VICTIM_LEAST: f64 = 99.5;
const IDLE_LEAST: f64 = 99.0;
const ASIDE_LEAST: f64 = 99.0;

/// What a tenant sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    None,
    Tcp(usize),
    Udp,
    Swarm,
}

/// What the aggressor does.
const AGGRESSORS: [Load; 5] = [Load::None, Load::Tcp(1), Load::Tcp(10), Load::Udp, Load::Swarm];
/// What the victim does.
const VICTIMS: [Load; 2] = [Load::Tcp(1), Load::Tcp(10)];

fn run(options: &Options) -> Result<Table, Violation> {
    let rack = Rack::default();
    let mut table = Table {
        config: vec![
            ("links", format!("{}, fabric queue {} bytes, drop-tail", rack.rate, rack.fabric_queue_bytes)),
            ("promised on the receiving machine", format!("A {}, B {}", PUBLISHED[0], PUBLISHED[1])),
            ("promised with rate", format!("A {}, B {}", ALL[0], ALL[1])),
            ("UDP", "at line rate".into()),
            ("stalls", "5 % of the time, of 0.05 to 1 ms, at each machine; uplinks have a burst of 1 ms then".into()),
            ("left out", format!("the first {} ms of each cell", WARM_UP_NS / 1_000_000)),
            ("swarm", format!("{SWARM} connections of {SWARM_BYTES} bytes at a time, one after the other")),
            (
                "percent of guarantee",
                "wire bytes; the victim is A, with B the aggressor, and then the other way round".into(),
            ),
        ],
        columns: vec!["victim", "aggressor", "agents", "A victim: A %", "B Mbit/s", "B victim: B %", "A Mbit/s"],
        ..Table::default()
    };
    for (name, settings) in controllers() {
        // What is not claimed is shown for one kind of victim only.
        let victims = if name == "rate" { &VICTIMS[..] } else { &VICTIMS[..1] };
        for &victim in victims {
            for aggressor in AGGRESSORS {
                row(&mut table, options, (name, settings), victim, aggressor, false)?;
            }
        }
        for aggressor in AGGRESSORS.into_iter().filter(|_| name == "rate") {
            row(&mut table, options, (name, settings), Load::Tcp(1), aggressor, true)?;
        }
        idle(&mut table, options, (name, settings))?;
        aside(&mut table, options, (name, settings))?;
    }
    Ok(table)
}

type Named<'a> = (&'a str, Option<Settings>);

/// A victim beside an aggressor: each tenant in turn.
fn row(
    table: &mut Table,
    options: &Options,
    (name, settings): Named,
    victim: Load,
    aggressor: Load,
    stalls: bool,
) -> Result<(), Violation> {
    let agents = if stalls { format!("{name}, stalls") } else { name.into() };
    let mut cells = vec![victim.name().into(), aggressor.name().into(), agents.into()];
    for v in 0..2 {
        let loads = if v == 0 { [victim, aggressor] } else { [aggressor, victim] };
        let got = measure(options, settings, loads, stalls)?;
        let percent = got[v] * 1e6 / promised(settings)[v].0 as f64 * 100.0;
        cells.extend([Cell::Number(percent, 2), Cell::Number(got[1 - v], 1)]);
        let hard = matches!(aggressor, Load::Tcp(10) | Load::Udp | Load::Swarm);
        if name == "rate" && hard {
            let who = ["A", "B"][v];
            let among = if stalls { ", loops stall" } else { "" };
            let id = format!("{who} with {} beside {}{among}: share of its guarantee", victim.name(), aggressor.name());
            table.claims.push(Claim { id, value: Some(percent), unit: "%", target: Target::AtLeast(VICTIM_LEAST) });
        }
    }
    table.rows.push(cells);
    Ok(())
}

/// One tenant is silent: what the other gets, of what it gets without agents or guarantees in its
/// way, which is the link.
fn idle(table: &mut Table, options: &Options, (name, settings): Named) -> Result<(), Violation> {
    for load in [Load::Tcp(1), Load::Udp] {
        let got = measure(options, settings, [Load::None, load], false)?[1];
        table.notes.push(format!("{name}: A silent, B with {} gets {got:.1} Mbit/s", load.name()));
        if name == "rate" {
            let id = format!("A silent: part of the link that B gets with {}", load.name());
            let percent = got * 1e6 / Rate::GBIT as f64 * 100.0;
            table.claims.push(Claim { id, value: Some(percent), unit: "%", target: Target::AtLeast(IDLE_LEAST) });
        }
    }
    Ok(())
}

/// B floods the contended receiver, and from the same endpoint sends to another: how much of that
/// arrives?
fn aside(table: &mut Table, options: &Options, (name, settings): Named) -> Result<(), Violation> {
    let rack = rack(settings);
    let udp = |rate| Traffic::udp(rate, FRAME);
    let (from, to, other) = (rack.host(2, 0), rack.host(0, 1), rack.host(3, 0));
    let flows = vec![
        FlowSpec::new(rack.host(1, 0), rack.host(0, 0), Load::Tcp(1).traffic()),
        FlowSpec::new(from, to, udp(FLOOD_BESIDE)),
        FlowSpec::new(from, other, udp(ASIDE)),
    ];
    let mut world = World::new(Topology { seed: options.seed, flows, ..rack.topology() });
    world.run_until(Instant(WARM_UP_NS))?;
    let counted = |world: &World| (world.sent(2).frames_sent, world.received(2).segments);
    let before = counted(&world);
    world.run_for(options.seconds * SECOND)?;
    let after = counted(&world);
    let percent = (after.1 - before.1) as f64 / (after.0 - before.0) as f64 * 100.0;
    table.notes.push(format!("{name}: of a throttled sender's {ASIDE} to another receiver arrives {percent:.2} %"));
    if name == "rate" {
        let id = "a throttled sender's traffic to another receiver: part that arrives".into();
        table.claims.push(Claim { id, value: Some(percent), unit: "%", target: Target::AtLeast(ASIDE_LEAST) });
    }
    Ok(())
}

/// What A and B get at the receiving machine, in Mbit/s on the wire.
fn measure(
    options: &Options,
    settings: Option<Settings>,
    loads: [Load; 2],
    stalls: bool,
) -> Result<[f64; 2], Violation> {
    let mut rack = rack(settings);
    if stalls {
        rack.burst_ns = STALL_NS.1;
    }
    let mut flows = Vec::new();
    for (tenant, load) in loads.into_iter().enumerate() {
        let flow = FlowSpec::new(rack.host(1 + tenant, 0), rack.host(0, tenant), load.traffic());
        flows.extend((0..load.flows()).map(|_| flow));
    }
    let until = WARM_UP_NS + options.seconds * SECOND;
    let faults = if stalls { lags(options.seed, rack.machines.len(), until) } else { Vec::new() };
    let mut world = World::new(Topology { seed: options.seed, flows, faults, ..rack.topology() });
    let bytes = |world: &World| [0, 1].map(|endpoint| rack.arrived(world, 0, endpoint).traffic.wire_bytes);
    world.run_until(Instant(WARM_UP_NS))?;
    let before = bytes(&world);
    world.run_for(options.seconds * SECOND)?;
    let after = bytes(&world);
    Ok([0, 1].map(|tenant| mbps(after[tenant] - before[tenant], options.seconds * SECOND)))
}

/// When the loops of so many switches stall.
fn lags(seed: u64, switches: usize, until_ns: u64) -> Vec<(u64, Fault)> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for switch in 0..switches {
        let mut at = 0;
        while at < until_ns {
            let for_ns = random.range(STALL_NS.0, STALL_NS.1);
            at += for_ns + random.range(STALL_AFTER_NS.0, STALL_AFTER_NS.1);
            all.push((at, Fault::Lag { switch, for_ns }));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

fn promised(agents: Option<Settings>) -> [Rate; 2] {
    match agents.map(|settings| settings.controller) {
        Some(ControllerKind::Rate) => ALL,
        Some(ControllerKind::Gatekeeper) | None => PUBLISHED,
    }
}

/// Machine 0 receives; machine 1 sends for A, 2 for B; machine 3 has another receiver of B's.
fn rack(agents: Option<Settings>) -> Rack {
    let gatekeeper = agents.as_ref().is_some_and(|settings| settings.controller == ControllerKind::Gatekeeper);
    let promised = promised(agents);
    Rack {
        machines: vec![
            vec![Member::receiver(0, promised[0]), Member::receiver(1, promised[1])],
            vec![Member::sender(0)],
            vec![Member::sender(1)],
            vec![Member::sender(1)],
        ],
        headroom_ppm: if gatekeeper { 50_000 } else { 20_000 },
        agents,
        ..Rack::default()
    }
}

impl Load {
    fn name(self) -> String {
        match self {
            Load::None => "none".into(),
            Load::Tcp(n) => format!("{n} TCP"),
            Load::Udp => "UDP".into(),
            Load::Swarm => "swarm".into(),
        }
    }

    fn flows(self) -> usize {
        match self {
            Load::None => 0,
            Load::Tcp(n) => n,
            Load::Udp => 1,
            Load::Swarm => SWARM,
        }
    }

    fn traffic(self) -> Traffic {
        match self {
            Load::None | Load::Tcp(_) => Traffic::tcp(Algorithm::Cubic),
            Load::Udp => Traffic::Udp { rate: FLOOD, frame: FRAME, train: TRAIN, on_off_ns: (0, 0) },
            Load::Swarm => Traffic::Tcp {
                algorithm: Algorithm::Cubic,
                ecn: false,
                bytes: Some(SWARM_BYTES),
                again_after_ns: Some(0),
                pace: None,
            },
        }
    }
}
