//! Convergence: hosts begin to blast datagrams at line rate at a machine where a victim has a
//! guarantee. How long until it has it again?

use agent::Settings;
use agent::settings::ControllerKind;
use datapath::units::{Instant, Rate};

use super::measure::SECOND;
use super::watch::{self, Watch};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::packet::{self, UDP_HEADERS};
use crate::rack::{Member, Rack};
use crate::random::Random;
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, Topology, Traffic};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "convergence",
    about: "senders on other machines blast datagrams at line rate: time until a victim has its guarantee again",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

/// Promised to the victim and to the blast's receiver: three quarters and one quarter of what a
/// headroom of 5 % leaves of 1 Gbit/s.
pub const PROMISED: [Rate; 2] = [Rate(712_500_000), Rate(237_500_000)];
/// How many blast.
const SENDERS: [usize; 3] = [1, 4, 15];
/// The blast begins so long after the victim, or up to [`PHASE_NS`] later: samples must not be in
/// step with it.
const QUIET_NS: u64 = 30_000_000;
/// A sample of the slower controller.
const PHASE_NS: u64 = 10_000_000;
/// The other senders begin up to so long after the first: machines are not in step to the
/// nanosecond.
const APART_NS: u64 = 200_000;
/// Before that a TCP victim has so long to grow.
const GROW_NS: u64 = 500_000_000;
/// Runs with another phase for each cell that something is claimed of.
const RUNS: u64 = 20;
/// Datagrams handed over at once, as the kernel's segmentation offload does.
const TRAIN: u32 = 20;
/// Bytes of a datagram's frame.
const FRAME: u32 = 1514;
/// What a sender offers: a little more than its link takes.
const BLAST: Rate = Rate(1_050_000_000);
/// The most that an open-loop victim may be without its guarantee, in milliseconds.
const TARGET_MS: f64 = 5.0;

/// Who suffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// Datagrams at the guaranteed rate, whatever becomes of them.
    OpenLoop,
    /// One connection.
    Tcp,
}

/// A controller, or none, by the name in tables.
pub fn controllers() -> Vec<(&'static str, Option<Settings>)> {
    let with = |controller| Some(Settings { controller, ..Settings::default() });
    vec![("none", None), ("gatekeeper", with(ControllerKind::Gatekeeper)), ("rate", with(ControllerKind::Rate))]
}

/// What one blast did.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Until the guarantee was back; none, if it was not.
    pub back_ms: Option<f64>,
    /// What the victim lost of its datagrams, as time at its guarantee.
    pub lost_ms: f64,
    /// Of all windows of 5 ms after that, how many brought the guarantee, in percent.
    pub kept: f64,
    /// What the victim got over the whole blast, in percent of its guarantee.
    pub victim: f64,
    /// What the blast's receiver got in the second half.
    pub blast_mbps: f64,
    /// Retransmission timeouts of a TCP victim.
    pub timeouts: u64,
}

fn run(options: &Options) -> Result<Table, Violation> {
    let rack = rack(1, None);
    let mut table = Table {
        config: vec![
            ("links", format!("{}, fabric queue {} bytes, drop-tail", rack.rate, rack.fabric_queue_bytes)),
            (
                "round trip",
                format!(
                    "{} us; agents' messages {} to {} us one way",
                    rack.delay_ns * 4 / 1000,
                    rack.mail.delay_ns / 1000,
                    (rack.mail.delay_ns + rack.mail.jitter_ns) / 1000
                ),
            ),
            ("promised", format!("victim {}, the blast's receiver {}", PROMISED[0], PROMISED[1])),
            (
                "back",
                format!(
                    "from that moment each window of 5 ms brings 99 % of the guarantee, for {} ms",
                    watch::STAYS_NS / 1_000_000
                ),
            ),
            ("open-loop victims, rate", format!("{RUNS} runs with other phases")),
        ],
        columns: vec![
            "victim",
            "senders",
            "agents",
            "back ms median",
            "worst",
            "lost ms",
            "windows kept %",
            "victim %",
            "blast Mbit/s",
            "timeouts",
        ],
        ..Table::default()
    };
    for victim in [Victim::OpenLoop, Victim::Tcp] {
        for senders in SENDERS {
            for (name, settings) in controllers() {
                cell(&mut table, options, victim, senders, (name, settings))?;
            }
        }
    }
    Ok(table)
}

fn cell(
    table: &mut Table,
    options: &Options,
    victim: Victim,
    senders: usize,
    (name, settings): (&str, Option<Settings>),
) -> Result<(), Violation> {
    let runs = if victim == Victim::OpenLoop && name == "rate" { RUNS } else { 1 };
    // Without an agent nothing changes any more after the first milliseconds.
    let ns = if settings.is_some() { options.seconds * SECOND } else { SECOND / 4 };
    let outcomes = (0..runs).map(|run| blast(options.seed + run, victim, senders, settings, ns));
    let outcomes = outcomes.collect::<Result<Vec<Outcome>, Violation>>()?;
    let mut back: Vec<f64> = outcomes.iter().map(|outcome| outcome.back_ms.unwrap_or(f64::INFINITY)).collect();
    back.sort_by(f64::total_cmp);
    let time = |ms: f64| if ms.is_finite() { Cell::Number(ms, 2) } else { Cell::Text("never".into()) };
    let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / runs as f64;
    let open = victim == Victim::OpenLoop;
    table.rows.push(vec![
        if open { "open loop" } else { "1 TCP" }.into(),
        Cell::Number(senders as f64, 0),
        name.into(),
        time(back[back.len() / 2]),
        time(back[back.len() - 1]),
        if open { Cell::Number(mean(|outcome| outcome.lost_ms), 2) } else { Cell::Empty },
        Cell::Number(mean(|outcome| outcome.kept), 1),
        Cell::Number(mean(|outcome| outcome.victim), 2),
        Cell::Number(mean(|outcome| outcome.blast_mbps), 1),
        if open { Cell::Empty } else { Cell::Number(mean(|outcome| outcome.timeouts as f64), 0) },
    ]);
    let worst = Some(back[back.len() - 1]).filter(|ms| ms.is_finite());
    if open && name == "rate" {
        let id = format!("{senders} senders: open-loop victim has its guarantee back, worst of {runs}");
        table.claims.push(Claim { id, value: worst, unit: "ms", target: Target::AtMost(TARGET_MS) });
    }
    Ok(())
}

/// One blast.
///
/// # Errors
/// The first violation of safety.
pub fn blast(
    seed: u64,
    victim: Victim,
    senders: usize,
    agents: Option<Settings>,
    ns: u64,
) -> Result<Outcome, Violation> {
    let rack = rack(senders, agents);
    let quiet_ns = if victim == Victim::Tcp { GROW_NS } else { QUIET_NS };
    let mut random = Random::new(seed);
    let begin = quiet_ns + random.range(0, PHASE_NS);
    let mut flows = vec![FlowSpec::new(rack.host(1, 0), rack.host(0, 0), victim.traffic())];
    for sender in 0..senders {
        let traffic = Traffic::Udp { rate: BLAST, frame: FRAME, train: TRAIN, on_off_ns: (0, 0) };
        let flow = FlowSpec::new(rack.host(2 + sender, 0), rack.host(0, 1), traffic);
        let later_ns = if sender == 0 { 0 } else { random.range(0, APART_NS) };
        flows.push(FlowSpec { start_ns: begin + later_ns, ..flow });
    }
    let mut world = World::new(Topology { seed, flows, ..rack.topology() });
    world.run_until(Instant(begin))?;
    let timeouts = world.sent(0).sender.timeouts;
    let missing = |world: &World| world.sent(0).frames_sent as f64 - world.received(0).segments as f64;
    let missing_before = missing(&world);
    let endpoints = [(0, 0, PROMISED[0]), (0, 1, PROMISED[1])];
    let watches = Watch::run(&mut world, &rack, ns, &endpoints)?;
    let back_ms = watches[0].back_ms();
    let frame_ms = f64::from(wire_bytes()) * 8e3 / PROMISED[0].0 as f64;
    Ok(Outcome {
        back_ms,
        lost_ms: (missing(&world) - missing_before) * frame_ms,
        kept: watches[0].kept(back_ms.unwrap_or(0.0)),
        victim: watches[0].percent(0.0),
        blast_mbps: watches[1].mbps(ns as f64 / 2e6),
        timeouts: world.sent(0).sender.timeouts - timeouts,
    })
}

impl Victim {
    fn traffic(self) -> Traffic {
        match self {
            // The source counts its frames without the tenant's tag.
            Victim::OpenLoop => {
                let bare = u64::from(wire_bytes());
                Traffic::udp(PROMISED[0].scaled(bare, bare + TAG), FRAME)
            }
            Victim::Tcp => Traffic::tcp(Algorithm::Cubic),
        }
    }
}

/// Bytes of a VLAN tag (IEEE 802.1Q).
const TAG: u64 = 4;

fn wire_bytes() -> u32 {
    let payload = FRAME as usize - UDP_HEADERS;
    packet::wire_bytes(UDP_HEADERS, payload, payload)
}

/// Machine 0 has both receivers, machine 1 the victim's sender, each one more a sender of the
/// blast. The network of a blast.
#[must_use]
pub fn rack(senders: usize, agents: Option<Settings>) -> Rack {
    let mut machines =
        vec![vec![Member::receiver(0, PROMISED[0]), Member::receiver(1, PROMISED[1])], vec![Member::sender(0)]];
    machines.extend((0..senders).map(|_| vec![Member::sender(1)]));
    let gatekeeper = agents.as_ref().is_some_and(|settings| settings.controller == ControllerKind::Gatekeeper);
    let headroom_ppm = if gatekeeper { 50_000 } else { 20_000 };
    Rack { machines, agents, headroom_ppm, ..Rack::default() }
}
