//! Faults of a bond: links between two switches that fail and come back, and switches whose process
//! begins anew, at times from seeds; under datagrams both ways and a TCP connection.
//!
//! What is offered is less than one link carries, as no more than one may be up. What is lost,
//! comes twice or behind a later datagram the receiving hosts count; the bond is not asked. Beside
//! that, a connection takes all there is while carriers come and go.

use datapath::units::{Instant, Rate};

use super::bonding::{Links, network};
use super::measure::{Interval, SECOND, mbps};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::flaps::{self, Kind, Pattern};
use crate::random::Random;
use crate::restart::GIVES_WAY_NS;
use crate::tcp::congestion::Algorithm;
use crate::topology::{Fault, FlowSpec, Topology, Traffic};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "bonding-faults",
    about: "links of a numbered round-robin bond that flap, and switches that begin anew, at times from seeds",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

const MS: u64 = 1_000_000;
const LINKS: usize = 3;
/// Seeds of each row.
const SEEDS: u64 = 8;
/// What is offered: datagrams each way, of so many bytes, and a connection's payload one way.
const UDP: Rate = Rate(150_000_000);
const FRAME: u32 = 1000;
const TCP: Rate = Rate(300_000_000);
/// Flows, by number: datagrams, and the connection.
const DATAGRAMS: [usize; 2] = [0, 1];
const CONNECTION: usize = 2;
/// Traffic begins when bonds have agreed, and faults begin when it runs.
const BEGIN_NS: u64 = 100 * MS;
const FROM_NS: u64 = 200 * MS;
/// Behind the last fault traffic goes on for so long: a connection has lost a time-out or two.
const AFTER_NS: u64 = 500 * MS;
/// Then nothing is sent for so long, and nothing may wait.
const REST_NS: u64 = 100 * MS;
/// Between two restarts.
const RESTARTS_NS: (u64, u64) = (400 * MS, 600 * MS);
/// A datagram that was on its way to a process that is killed was sent no longer before, and one
/// that comes before the bonds have agreed no longer behind.
const ON_THE_WAY_NS: u64 = MS;

/// What goes wrong in a row.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// Links fail.
    Links(Pattern),
    /// Processes are killed, and there is none for so long, in milliseconds.
    Kill((u64, u64)),
    /// They give way to others, and nobody works for so long.
    Takeover((u64, u64)),
}

/// What a row is judged by.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    wrong: Wrong,
    /// For so long nothing may come, in milliseconds; of a process that is killed, beside the time
    /// for which there is none.
    gap_ms: f64,
}

const fn links(name: &'static str, kinds: &'static [Kind], lasts_ms: (u64, u64), apart_ms: (u64, u64)) -> Row {
    let gap_ms = if matches!(kinds, [Kind::Carrier]) { 5.0 } else { 20.0 };
    Row { name, wrong: Wrong::Links(Pattern { kinds, lasts_ms, apart_ms }), gap_ms }
}

/// Silence is noticed, and what it took is sent again, within 15 ms: for those that last as long,
/// and begin behind that of the one before.
const ROWS: [Row; 9] = [
    links("carriers", &[Kind::Carrier], (3, 80), (1, 40)),
    links("silent", &[Kind::Silent], (15, 80), (25, 80)),
    links("silent one way", &[Kind::OneWay], (15, 80), (25, 80)),
    links("carrier at one end", &[Kind::OneEnd], (15, 80), (25, 80)),
    links("any of these", &Kind::ALL, (15, 80), (25, 80)),
    links("silent, too short to notice", &[Kind::Silent, Kind::OneWay], (1, 10), (25, 80)),
    links("silent, two at a time", &[Kind::Silent, Kind::OneWay], (30, 80), (2, 12)),
    Row { name: "killed", wrong: Wrong::Kill((10, 60)), gap_ms: 5.0 },
    Row { name: "taken over", wrong: Wrong::Takeover((0, 5)), gap_ms: 20.0 },
];

/// What became of traffic.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    faults: u64,
    sent: u64,
    lost: u64,
    /// Of these, such as were sent while there was no process, and such as were not sent around
    /// that.
    away: u64,
    elsewhere: u64,
    twice: u64,
    late: u64,
    gap_ns: u64,
    again: u64,
    /// Connections that carry nothing any more, and frames that are left in the end.
    stuck: u64,
    /// From when a process begins until both ends number.
    agreed_ns: u64,
}

impl Outcome {
    fn and(self, other: Outcome) -> Outcome {
        Outcome {
            faults: self.faults + other.faults,
            sent: self.sent + other.sent,
            lost: self.lost + other.lost,
            away: self.away + other.away,
            elsewhere: self.elsewhere + other.elsewhere,
            twice: self.twice + other.twice,
            late: self.late + other.late,
            gap_ns: self.gap_ns.max(other.gap_ns),
            again: self.again + other.again,
            stuck: self.stuck + other.stuck,
            agreed_ns: self.agreed_ns.max(other.agreed_ns),
        }
    }
}

fn run(options: &Options) -> Result<Table, Violation> {
    let (udp, tcp) = (UDP.0 / 1_000_000, TCP.0 / 1_000_000);
    let mut table = Table {
        config: vec![
            (
                "links",
                format!("{LINKS} x 1000 Mbit/s, of which one at least is up; delays 100 us, others up to 300 us more"),
            ),
            ("offered", format!("datagrams, {udp} Mbit/s each way, and one connection with {tcp}: less than one link")),
            ("rows", format!("{SEEDS} seeds each; an end is told of a carrier within 1 ms")),
            ("gap of processes that are killed", "less the time for which there is none".into()),
        ],
        columns: vec![
            "what",
            "times",
            "datagrams",
            "lost",
            "twice",
            "late",
            "gap ms",
            "sent again",
            "stuck",
            "agreed ms",
        ],
        ..Table::default()
    };
    for row in ROWS {
        let outcomes = (0..SEEDS).map(|n| play(options.seed + n, options.seconds, row.wrong));
        let all = outcomes.collect::<Result<Vec<_>, _>>()?.into_iter().fold(Outcome::default(), Outcome::and);
        table.rows.push(cells(row.name, &all));
        judge(&mut table, &row, &all);
        if let Wrong::Kill(_) = row.wrong {
            let (away, around) = (all.away, all.lost - all.away);
            table.notes.push(format!(
                "Of what was lost with processes that were killed, {away} datagrams were sent while there was none, and {around} were in it or on the way, or came before both ends knew each other."
            ));
        }
    }
    let shares = (0..SEEDS).map(|n| share(options.seed + n, options.seconds)).collect::<Result<Vec<f64>, _>>()?;
    let Interval { mean, half } = Interval::of(&shares);
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    table.notes.push(format!(
        "A connection that takes all there is while carriers come and go has {mean:.1} % (+- {half:.1}, least {least:.1}) of what it has without, by the links that are up."
    ));
    Ok(table)
}

fn cells(name: &str, all: &Outcome) -> Vec<Cell> {
    let ms = |ns: u64| Cell::Number(ns as f64 / 1e6, 2);
    let counts = [all.faults, all.sent, all.lost, all.twice, all.late].map(|count| Cell::Number(count as f64, 0));
    let agreed = if all.agreed_ns > 0 { ms(all.agreed_ns) } else { Cell::Empty };
    let rest = [ms(all.gap_ns), Cell::Number(all.again as f64, 0), Cell::Number(all.stuck as f64, 0), agreed];
    [name.into()].into_iter().chain(counts).chain(rest).collect()
}

fn judge(table: &mut Table, row: &Row, all: &Outcome) {
    let mut claim = |what: &str, value: f64, unit, most| {
        let (id, target) = (format!("{}: {what}", row.name), Target::AtMost(most));
        table.claims.push(Claim { id, value: Some(value), unit, target });
    };
    let (gap_ms, agreed_ms) = (all.gap_ns as f64 / 1e6, all.agreed_ns as f64 / 1e6);
    if let Wrong::Kill(_) = row.wrong {
        claim("lost of what was sent earlier or later than 1 ms around", all.elsewhere as f64, "", 0.0);
        claim("longest gap, less the time for which there is none", gap_ms, "ms", row.gap_ms);
        claim("until both number again", agreed_ms, "ms", row.gap_ms);
    } else {
        claim("lost", all.lost as f64, "", 0.0);
        claim("longest gap", gap_ms, "ms", row.gap_ms);
    }
    if let Wrong::Takeover(_) = row.wrong {
        claim("until both number again", agreed_ms, "ms", 0.0);
    }
    claim("twice", all.twice as f64, "", 0.0);
    claim("out of order", all.late as f64, "", 0.0);
    claim("connections that stand still, frames that are left", all.stuck as f64, "", 0.0);
}

/// A restart: when, and when the next process begins.
type Restart = (u64, u64);

fn play(seed: u64, seconds: u64, wrong: Wrong) -> Result<Outcome, Violation> {
    let until = FROM_NS + seconds * SECOND;
    let stop = until + AFTER_NS;
    let mut topology = Topology { flows: flows(stop), ..network(seed, &Links::of(&[Rate::GBIT; LINKS])) };
    let mut random = Random::new(!seed);
    let mut restarts = Vec::new();
    let faults = match wrong {
        Wrong::Links(pattern) => {
            let flaps = pattern.draw(&mut random, LINKS, (FROM_NS, until));
            topology.faults.extend(flaps::faults(&mut random, &flaps));
            flaps.len()
        }
        Wrong::Kill(away_ms) | Wrong::Takeover(away_ms) => {
            restarts = restart(&mut random, &mut topology, wrong, away_ms, until);
            restarts.len()
        }
    };
    let mut world = World::new(topology);
    let mut outcome = Outcome { faults: faults as u64, ..Outcome::default() };
    for &(_, begins) in &restarts {
        world.run_until(Instant(begins))?;
        while !both_number(&world) && world.now().0 < stop {
            world.run_for(MS / 20)?;
        }
        outcome.agreed_ns = outcome.agreed_ns.max(world.now().0 - begins);
    }
    world.run_until(Instant(stop - 100 * MS))?;
    let before = world.received(CONNECTION).bytes;
    world.run_until(Instant(stop + REST_NS))?;
    outcome.again = world.sent(CONNECTION).sender.retransmits;
    outcome.stuck = u64::from(world.received(CONNECTION).bytes == before) + world.frames() as u64;
    for flow in DATAGRAMS {
        count(&world, flow, stop, &restarts, &mut outcome);
    }
    if let (Wrong::Kill(_), Some((killed, begins))) = (wrong, restarts.first()) {
        outcome.gap_ns = outcome.gap_ns.saturating_sub(begins - killed);
    }
    Ok(outcome)
}

fn flows(stop_ns: u64) -> Vec<FlowSpec> {
    let udp = Traffic::udp(UDP, FRAME);
    let flow = |from, traffic| FlowSpec { start_ns: BEGIN_NS, stop_ns, ..FlowSpec::new(from, 1 - from, traffic) };
    vec![flow(0, udp), flow(1, udp), flow(0, tcp(Some(TCP)))]
}

fn tcp(pace: Option<Rate>) -> Traffic {
    Traffic::Tcp { algorithm: Algorithm::Cubic, ecn: false, bytes: None, again_after_ns: None, pace }
}

/// Either switch's process ends now and then, each time for as long.
fn restart(
    random: &mut Random,
    topology: &mut Topology,
    wrong: Wrong,
    (least, most): (u64, u64),
    until: u64,
) -> Vec<Restart> {
    let away_ns = random.range(least * MS, most * MS);
    let mut restarts = Vec::new();
    let mut at = FROM_NS + random.range(0, RESTARTS_NS.0);
    while at < until {
        let switch = random.range(0, 1) as usize;
        let is_kill = matches!(wrong, Wrong::Kill(_));
        let fault = if is_kill { Fault::Kill { switch, away_ns } } else { Fault::Takeover { switch, away_ns } };
        topology.faults.push((at, fault));
        restarts.push((at, at + if is_kill { 0 } else { GIVES_WAY_NS } + away_ns));
        at += random.range(RESTARTS_NS.0, RESTARTS_NS.1);
    }
    restarts
}

fn both_number(world: &World) -> bool {
    (0..2).all(|side| world.switch(side).bond_peer().is_some_and(|peer| peer.plain.is_none()))
}

/// What came of a flow of datagrams.
fn count(world: &World, flow: usize, stop: u64, restarts: &[Restart], outcome: &mut Outcome) {
    let (sent, Some(arrivals)) = (world.sent(flow).frames_sent, world.arrivals(flow)) else { return };
    let stats = arrivals.stats();
    outcome.sent += sent;
    outcome.lost += sent - stats.datagrams;
    outcome.twice += stats.twice;
    outcome.late += stats.late;
    let last_at = stats.last_at.unwrap_or_default();
    outcome.gap_ns = outcome.gap_ns.max(stats.gap_ns).max(stop.saturating_sub(last_at.0));
    // They are sent at a steady rate.
    let sent_at = |number: u64| BEGIN_NS + (u128::from(number) * u128::from(stop - BEGIN_NS) / u128::from(sent)) as u64;
    let is_near =
        |at: u64, by_ns: u64| restarts.iter().any(|&(ends, begins)| (ends - by_ns..begins + by_ns).contains(&at));
    for at in arrivals.missing(sent).map(sent_at) {
        outcome.away += u64::from(is_near(at, 0));
        outcome.elsewhere += u64::from(!is_near(at, ON_THE_WAY_NS));
    }
}

/// What a connection that takes all there is has while carriers come and go, of what it has without
/// that, in percent of the time for which links are up.
fn share(seed: u64, seconds: u64) -> Result<f64, Violation> {
    let Wrong::Links(pattern) = ROWS[0].wrong else { return Ok(f64::NAN) };
    let (from, until) = (FROM_NS, FROM_NS + seconds * SECOND);
    let mut random = Random::new(!seed);
    let flaps = pattern.draw(&mut random, LINKS, (from, until));
    let faults = flaps::faults(&mut random, &flaps);
    let rate = |faults: &[(u64, Fault)]| {
        let mut topology = network(seed, &Links::of(&[Rate::GBIT; LINKS]));
        topology.faults.extend_from_slice(faults);
        topology.flows = vec![FlowSpec { start_ns: BEGIN_NS, ..FlowSpec::new(0, 1, tcp(None)) }];
        let mut world = World::new(topology);
        world.run_until(Instant(from))?;
        let before = world.received(0).bytes;
        world.run_until(Instant(until))?;
        Ok(mbps(world.received(0).bytes - before, until - from))
    };
    let up = flaps::up_ns(&flaps, LINKS, (from, until)) as f64 / (LINKS as u64 * (until - from)) as f64;
    Ok(rate(&faults)? / (rate(&[])? * up) * 100.0)
}
