//! Faults: a blast while agents' messages are lost, doubled, overtaken, replayed and cut off,
//! agents are killed, clocks jump and loops lag.
//!
//! Faults end before the blast does, so that a test can ask when the guarantee is back; then the
//! blast ends, for half of the seeds together with all mail, and a test can ask when nobody is
//! throttled any more.

use agent::Settings;
use agent::settings::ControllerKind;
use datapath::program::EndpointId;
use datapath::units::{Instant, Rate};

use super::convergence::controllers;
use super::watch::Watch;
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::mail::MailConfig;
use crate::rack::{Member, Rack};
use crate::random::Random;
use crate::topology::{Fault, FlowSpec, Topology, Traffic};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "faults",
    about: "a blast under lost messages, partitions, killed agents and clock steps: what the guarantee loses, when limits are gone",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

const RATE: Rate = Rate(200_000_000);
/// Promised to the victim and to the blast's receiver.
const PROMISED: [Rate; 2] = [Rate(142_500_000), Rate(47_500_000)];
const FABRIC_QUEUE_BYTES: u32 = 64 << 10;
/// Machines with a sender of the blast.
const SENDERS: usize = 2;
/// When the blast and the faults begin.
const BLAST_NS: u64 = 50_000_000;
/// When the faults are over.
const FAULTS_END_NS: u64 = 350_000_000;
/// When the blast is.
const BLAST_END_NS: u64 = 600_000_000;
/// For so long it is watched whether limits go.
const RELEASE_NS: u64 = 2_000_000_000;
/// Between two looks at that.
const LOOK_NS: u64 = 5_000_000;
/// Seeds for each row.
const SEEDS: u64 = 20;
/// In all of them, messages are lost so often, in millionths.
const LOSS_PPM: u32 = 300_000;
/// The longest that the victim may need after the faults, and the longest that a limit may outlive
/// the blast, in milliseconds.
const BACK_MS: f64 = 50.0;
const RELEASED_MS: f64 = 1_000.0;

/// What one seed did.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Survival {
    /// What the victim got of its guarantee during the faults, in percent.
    pub during: f64,
    /// When after the faults its guarantee was back, in milliseconds; none if it was not.
    pub back_ms: Option<f64>,
    /// When after the blast the last limit was gone, in milliseconds; none if one was left.
    pub released_ms: Option<f64>,
}

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            (
                "links",
                format!(
                    "{RATE}, fabric queue {FABRIC_QUEUE_BYTES} bytes; {SENDERS} senders blast from {} to {} ms",
                    BLAST_NS / 1_000_000,
                    BLAST_END_NS / 1_000_000
                ),
            ),
            ("promised", format!("victim {} (open loop), the blast's receiver {}", PROMISED[0], PROMISED[1])),
            (
                "faults",
                format!(
                    "until {} ms, by {SEEDS} seeds; messages are lost at {} % at least",
                    FAULTS_END_NS / 1_000_000,
                    LOSS_PPM / 10_000
                ),
            ),
        ],
        columns: vec![
            "agents",
            "faults",
            "victim % during: mean",
            "worst",
            "back ms: median",
            "worst",
            "released ms: median",
            "worst",
        ],
        ..Table::default()
    };
    for (name, settings) in controllers() {
        let Some(settings) = settings else { continue };
        // Gatekeeper's limits grow back for up to ten seconds: one row says as much.
        let kinds = if name == "rate" { KINDS } else { &KINDS[..1] };
        for (faults, kind) in kinds {
            let outcomes = (0..SEEDS).map(|n| survive(options.seed + n, settings, *kind).map(|(s, _)| s));
            let outcomes = outcomes.collect::<Result<Vec<Survival>, Violation>>()?;
            row(&mut table, name, faults, &outcomes);
        }
    }
    Ok(table)
}

fn row(table: &mut Table, name: &str, faults: &str, outcomes: &[Survival]) {
    let sorted = |of: fn(&Survival) -> Option<f64>| {
        let mut times: Vec<f64> = outcomes.iter().map(|one| of(one).unwrap_or(f64::INFINITY)).collect();
        times.sort_by(f64::total_cmp);
        [times[times.len() / 2], times[times.len() - 1]]
    };
    let during = outcomes.iter().map(|one| one.during);
    let (back, released) = (sorted(|one| one.back_ms), sorted(|one| one.released_ms));
    let mut cells = vec![
        name.into(),
        faults.into(),
        Cell::Number(during.clone().sum::<f64>() / outcomes.len() as f64, 1),
        Cell::Number(during.fold(f64::INFINITY, f64::min), 1),
    ];
    let time = |ms: f64| if ms.is_finite() { Cell::Number(ms, 2) } else { Cell::Text("never".into()) };
    cells.extend(back.into_iter().chain(released).map(time));
    table.rows.push(cells);
    if name == "rate" {
        for (what, [_, worst], most) in
            [("guarantee back after", back, BACK_MS), ("limits gone after the blast with", released, RELEASED_MS)]
        {
            let value = Some(worst).filter(|ms| ms.is_finite());
            let id = format!("{what} {faults}, worst of {} seeds", outcomes.len());
            table.claims.push(Claim { id, value, unit: "ms", target: Target::AtMost(most) });
        }
    }
}

/// Draws the faults of a seed.
pub type Kind = fn(&mut Random) -> Vec<(u64, Fault)>;

/// Each kind of fault, and all together.
pub const KINDS: &[(&str, Kind)] = &[
    ("30 % loss", |_| Vec::new()),
    ("duplicates, reordering, replays", |random| vec![(0, Fault::Mail { config: bad_mail(random) })]),
    ("partition", partition),
    ("killed agents", |random| several(random, |random| Fault::AgentRestart { switch: machine(random) })),
    ("clock steps", |random| {
        several(random, |random| Fault::ClockStep {
            switch: machine(random),
            ahead_ns: random.range(1_000_000, 1 << 42),
        })
    }),
    ("lags", |random| {
        several(random, |random| Fault::Lag { switch: machine(random), for_ns: random.range(1_000_000, 20_000_000) })
    }),
    ("all", |random| KINDS[..KINDS.len() - 1].iter().flat_map(|(_, kind)| kind(random)).collect()),
];

fn machine(random: &mut Random) -> usize {
    random.range(0, 1 + SENDERS as u64) as usize
}

fn several(random: &mut Random, mut fault: impl FnMut(&mut Random) -> Fault) -> Vec<(u64, Fault)> {
    (0..random.range(1, 5)).map(|_| (random.range(BLAST_NS, FAULTS_END_NS), fault(random))).collect()
}

fn partition(random: &mut Random) -> Vec<(u64, Fault)> {
    let apart = (0..2 + SENDERS).filter(|_| random.happens_ppm(500_000)).collect();
    let from = random.range(BLAST_NS, FAULTS_END_NS);
    let to = random.range(from, FAULTS_END_NS);
    vec![(from, Fault::Partition { apart }), (to, Fault::Partition { apart: Vec::new() })]
}

fn bad_mail(random: &mut Random) -> MailConfig {
    MailConfig {
        delay_ns: random.range(50_000, 3_000_000),
        jitter_ns: random.range(0, 10_000_000),
        loss_ppm: LOSS_PPM,
        duplicate_ppm: 300_000,
        late_ns: random.range(0, 2_000_000_000),
        // Between daemons, authentication keeps out what was damaged.
        damage_ppm: 0,
    }
}

/// Lives through the faults of a seed; also the world at the end.
///
/// # Errors
/// The first violation of safety.
pub fn survive(seed: u64, settings: Settings, kind: Kind) -> Result<(Survival, World), Violation> {
    let rack = rack(settings);
    let mut random = Random::new(seed);
    let mut faults = kind(&mut random);
    if !faults.iter().any(|(_, fault)| matches!(fault, Fault::Mail { .. })) {
        faults.push((0, Fault::Mail { config: MailConfig { loss_ppm: LOSS_PPM, ..MailConfig::default() } }));
    }
    faults.push((FAULTS_END_NS, Fault::Mail { config: MailConfig::default() }));
    if random.happens_ppm(500_000) {
        // From now on nobody hears of anything: machine 0, which knows who blasts, is apart.
        faults.push((BLAST_END_NS, Fault::Partition { apart: vec![0] }));
    }
    let udp = |rate| Traffic::Udp { rate, frame: 1514, train: 1, on_off_ns: (0, 0) };
    // Without the tenant's tag of 4 bytes, as the source counts.
    let mut flows = vec![FlowSpec::new(rack.host(1, 0), rack.host(0, 0), udp(PROMISED[0].scaled(1538, 1542)))];
    for sender in 0..SENDERS {
        let flow = FlowSpec::new(rack.host(2 + sender, 0), rack.host(0, 1), udp(RATE));
        let start_ns = BLAST_NS + random.range(0, 10_000_000);
        flows.push(FlowSpec { start_ns, stop_ns: BLAST_END_NS, ..flow });
    }
    let mut world = World::new(Topology { seed, flows, faults, ..rack.topology() });
    world.run_until(Instant(BLAST_NS))?;
    let victim = [(0, 0, PROMISED[0])];
    let during = Watch::run(&mut world, &rack, FAULTS_END_NS - BLAST_NS, &victim)?[0].percent(0.0);
    let back_ms = Watch::run(&mut world, &rack, BLAST_END_NS - FAULTS_END_NS, &victim)?[0].back_ms();
    let released_ms = release(&mut world)?;
    Ok((Survival { during, back_ms, released_ms }, world))
}

/// Runs on until nothing is limited, and says how many milliseconds that took.
fn release(world: &mut World) -> Result<Option<f64>, Violation> {
    let begin = world.now();
    while world.now().since(begin) < RELEASE_NS {
        if limits(world) == 0 {
            return Ok(Some(world.now().since(begin) as f64 / 1e6));
        }
        world.run_for(LOOK_NS)?;
    }
    Ok(None)
}

/// Pairs that are limited anywhere.
#[must_use]
pub fn limits(world: &World) -> usize {
    let switches = 0..world.topology().switches.len();
    let of = |switch: usize| {
        let switch = world.switch(switch);
        let endpoints = switch.program().endpoints.iter();
        endpoints.map(|(id, _)| switch.pairs(EndpointId(id)).count()).sum::<usize>()
    };
    switches.map(of).sum()
}

fn rack(settings: Settings) -> Rack {
    let mut machines =
        vec![vec![Member::receiver(0, PROMISED[0]), Member::receiver(1, PROMISED[1])], vec![Member::sender(0)]];
    machines.extend((0..SENDERS).map(|_| vec![Member::sender(1)]));
    let gatekeeper = settings.controller == ControllerKind::Gatekeeper;
    Rack {
        rate: RATE,
        fabric_queue_bytes: FABRIC_QUEUE_BYTES,
        machines,
        headroom_ppm: if gatekeeper { 50_000 } else { 20_000 },
        agents: Some(settings),
        ..Rack::default()
    }
}
