//! LACP: two switches whose uplinks are bonds in 802.3ad, and what becomes of their links.
//!
//! How long it takes until both members carry frames at both ends, and until one is given up that
//! fails: without a carrier, or silently. Pings go on all the time; none may pass before both ends
//! have agreed, and no member may be sent to whose other end does not receive from it.

use datapath::bond::lacp::LacpSettings;
use datapath::bond::{BondSettings, MemberId, MemberState, Mode};
use datapath::guard::Identity;
use datapath::link::{CERTAIN_PPM, LinkConfig, Side};
use datapath::program::{Attachment, Endpoint, Member, PortFeatures, PortId, Program, Tenant, TenantId, Uplink};
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;

use super::measure::SECOND;
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::packet::Nic;
use crate::random::Random;
use crate::site::both;
use crate::topology::{Fault, FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "lacp",
    about: "a bond in 802.3ad: until it is up, and until a member that fails is given up",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

const MS: u64 = 1_000_000;
const RATE: Rate = Rate(Rate::GBIT);
const LINKS: usize = 2;
/// The host's port of a switch; members' ports are behind it.
const GUEST: PortId = PortId(0);
/// Most that a link's delay is, in nanoseconds.
const DELAY_MOST_NS: u64 = 100_000;
const LINK_QUEUE_BYTES: u32 = 1 << 20;
/// Between two looks at the members.
const LOOK_NS: u64 = 5 * MS;
/// When the last link fails, and when it is back.
const FAILS_NS: u64 = 10 * SECOND + 300 * MS;
const RETURNS_NS: u64 = FAILS_NS + 8 * SECOND;
const RETURNS_SLOW_NS: u64 = FAILS_NS + 100 * SECOND;
/// Longest that it takes until it is used again.
const PATIENCE_NS: u64 = 60 * SECOND;
const PING_NS: u64 = 10 * MS;
const UP_S: f64 = 3.5;
const SILENT_S: f64 = 3.2;

/// What happens to the last link.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    /// Nothing arrives any more, in either direction.
    Silent,
    /// Both ends lose its carrier.
    Pulled,
}

/// What one run has shown.
struct Outcome {
    up_ns: Option<u64>,
    given_up_ns: Option<u64>,
    again_ns: Option<u64>,
    /// Pings that arrived before both ends had agreed on a member, and in all.
    early: u64,
    arrived: u64,
    /// How often, until both were up, a member was seen that was sent to and not received from.
    ahead: u64,
}

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![(
            "links",
            format!("2 of 1 Gbit/s, delays up to {} us; pings each {} ms", DELAY_MOST_NS / 1000, PING_NS / MS),
        )],
        columns: vec!["rate", "loss %", "what fails", "up s", "given up s", "up again s", "early pings", "pings"],
        ..Table::default()
    };
    for (is_fast, loss_ppm, broken, name) in [
        (true, 0, Broken::Silent, "a silent link"),
        (true, 0, Broken::Pulled, "a pulled link"),
        (true, 100_000, Broken::Silent, "a silent link"),
        (false, 0, Broken::Silent, "a silent link"),
    ] {
        let outcome = play(options.seed, is_fast, loss_ppm, broken)?;
        let seconds = |ns: Option<u64>| ns.map(|ns| ns as f64 / SECOND as f64);
        let cell = |ns: Option<u64>| seconds(ns).map_or(Cell::Empty, |seconds| Cell::Number(seconds, 3));
        let rate = if is_fast { "fast" } else { "slow" };
        table.rows.push(vec![
            rate.into(),
            Cell::Number(f64::from(loss_ppm) / 10_000.0, 0),
            name.into(),
            cell(outcome.up_ns),
            cell(outcome.given_up_ns),
            cell(outcome.again_ns),
            Cell::Number(outcome.early as f64, 0),
            Cell::Number(outcome.arrived as f64, 0),
        ]);
        let mut claim = |what: &str, value: Option<f64>, unit: &'static str, most: f64| {
            let id = format!("{rate}, {} % loss, {name}: {what}", loss_ppm / 10_000);
            table.claims.push(Claim { id, value, unit, target: Target::AtMost(most) });
        };
        claim("pings before both have agreed", Some(outcome.early as f64), "", 0.0);
        claim("members sent to that are not received from", Some(outcome.ahead as f64), "", 0.0);
        if loss_ppm == 0 {
            claim("up", seconds(outcome.up_ns), "s", UP_S);
        }
        if loss_ppm == 0 && is_fast {
            claim("given up at both ends", seconds(outcome.given_up_ns), "s", SILENT_S);
        }
    }
    Ok(table)
}

fn play(seed: u64, is_fast: bool, loss_ppm: u32, broken: Broken) -> Result<Outcome, Violation> {
    let returns_ns = if is_fast { RETURNS_NS } else { RETURNS_SLOW_NS };
    let mut world = World::new(topology(seed, is_fast, loss_ppm, broken, returns_ns));
    let (mut early, mut ahead) = (0, 0);
    let up_ns = until(&mut world, FAILS_NS, |world| {
        if !(0..LINKS).any(|member| carries(world, 0, member) && receives(world, 1, member)) {
            early = world.received(0).segments;
        }
        let is_ahead =
            |&(side, member): &(usize, usize)| carries(world, side, member) && !receives(world, 1 - side, member);
        ahead += members().filter(is_ahead).count() as u64;
        all_carry(world)
    })?;
    world.run_until(Instant(FAILS_NS))?;
    let given_up = |world: &World| (0..2).all(|side| !carries(world, side, LINKS - 1));
    let given_up_ns = until(&mut world, returns_ns - FAILS_NS, given_up)?;
    world.run_until(Instant(returns_ns))?;
    let again_ns = until(&mut world, PATIENCE_NS, all_carry)?;
    let arrived = world.received(0).segments;
    Ok(Outcome { up_ns, given_up_ns, again_ns, early, arrived, ahead })
}

/// How long it takes until something is so.
fn until(world: &mut World, most_ns: u64, mut is_so: impl FnMut(&World) -> bool) -> Result<Option<u64>, Violation> {
    let begin = world.now();
    while world.now().since(begin) < most_ns {
        if is_so(world) {
            return Ok(Some(world.now().since(begin)));
        }
        world.run_for(LOOK_NS)?;
    }
    Ok(None)
}

fn state(world: &World, side: usize, member: usize) -> MemberState {
    world.switch(side).members().nth(member).map_or(MemberState::Down, |view| view.state)
}

fn carries(world: &World, side: usize, member: usize) -> bool {
    state(world, side, member) == MemberState::Distributing
}

fn receives(world: &World, side: usize, member: usize) -> bool {
    state(world, side, member).receives()
}

fn all_carry(world: &World) -> bool {
    members().all(|(side, member)| carries(world, side, member))
}

/// Both switches' members.
fn members() -> impl Iterator<Item = (usize, usize)> {
    (0..2).flat_map(|side| (0..LINKS).map(move |member| (side, member)))
}

fn topology(seed: u64, is_fast: bool, loss_ppm: u32, broken: Broken, returns_ns: u64) -> Topology {
    let host = HostSpec { tenant: 1, nic: Nic::default(), ..HostSpec::default() };
    let mut topology = Topology { seed, hosts: vec![host; 2], ..Topology::default() };
    topology.switches = (0..2).map(|side| program(&topology, side, is_fast)).collect();
    topology.cables = (0..2).map(|side| (Plug::Host(side), Plug::Switch(side, GUEST))).collect();
    let mut random = Random::new(seed);
    for link in 0..LINKS {
        let delay_ns = random.range(5_000, DELAY_MOST_NS);
        let queue_bytes = LINK_QUEUE_BYTES;
        topology.links.push(LinkConfig { rate: RATE, delay_ns, loss_ppm, queue_bytes, ..LinkConfig::default() });
        for (side, end) in Side::ALL.into_iter().enumerate() {
            topology.cables.push((Plug::Link(link, end), Plug::Switch(side, port(link))));
            topology.faults.push((0, member(side, link, true)));
        }
    }
    let last = LINKS - 1;
    for (at_ns, is_up) in [(FAILS_NS, false), (returns_ns, true)] {
        match broken {
            Broken::Silent => {
                let ppm = if is_up { loss_ppm } else { CERTAIN_PPM };
                topology.faults.push((at_ns, Fault::Loss { link: last, ppm }));
            }
            Broken::Pulled => topology.faults.extend((0..2).map(|side| (at_ns, member(side, last, is_up)))),
        }
    }
    topology.flows = vec![FlowSpec::new(0, 1, Traffic::Ping { every_ns: PING_NS })];
    topology
}

fn member(switch: usize, member: usize, is_up: bool) -> Fault {
    Fault::Member { switch, member: MemberId(member as u8), is_up }
}

fn port(member: usize) -> PortId {
    PortId(member as u32 + 1)
}

fn program(topology: &Topology, side: usize, is_fast: bool) -> Program {
    let members = (0..LINKS).map(|n| Member { port: port(n), rate: both(RATE) }).collect();
    let lacp = LacpSettings { system: Mac([2, 0, 0, 0, 1, side as u8]), is_fast, ..LacpSettings::default() };
    let bond = Some(BondSettings { mode: Mode::Lacp, lacp, ..BondSettings::default() });
    let mut ports = vec![PortFeatures { max_frame: 1518, ..PortFeatures::default() }; LINKS + 1];
    ports[0] = PortFeatures::default();
    let identity = Identity { macs: vec![topology.address(side).mac], ..Identity::default() };
    Program {
        uplink: Some(Uplink { members, bond, ..Uplink::new(port(0), both(RATE)) }),
        tenants: vec![Tenant { attachment: Attachment::Vlan(10), ..Tenant::default() }].into(),
        endpoints: vec![Endpoint { identity, ..Endpoint::new(TenantId(0), GUEST) }].into(),
        ports: ports.into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}
