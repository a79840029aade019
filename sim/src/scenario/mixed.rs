//! Balancing, mixed sizes: the policies of services before servers that share their time, against
//! queueing theory.
//!
//! Connections come at random (Poisson) and are served by processor sharing; means are in units of
//! the mean size. The policies are the datapath's own (`datapath/src/service/choose.rs`), asked as
//! the switch asks them: with what is in flight at each server. Sizes are exponential, or mixed of
//! a few large and many small ones with a squared coefficient of variation of 10 (hyperexponential,
//! balanced means). In the last row one server of three has half the speed of the others, and the
//! same weight: nobody said so to the switch.
//!
//! Theory, for exponential sizes: random splits are M/M/1 each, 1/(1-r). Round-robin gives each
//! server Erlang arrivals: 1/(1-s) with s = (Nr/(Nr+1-s))^N (Kleinrock 1975, section 6.4; the mean
//! of processor sharing is that of a queue for exponential sizes). Least-inflight is near M/M/N,
//! which bounds it from below.

use datapath::service::choose::{Chooser, LOAD_ONE, Load, Policy, Report};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::random::Random;
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "lb-mixed",
    about: "connections of mixed sizes over servers that share their time, by policy, against queueing theory",
    seconds: 4,
    warms_up: false,
    repeats: true,
    run,
};

/// Connections of a cell for each second asked for.
pub(super) const CONNECTIONS: u64 = 250_000;
/// Connections that are left out, while servers fill.
pub(super) const LEFT_OUT: u64 = 20_000;
const COMPARED: [Policy; 4] = [Policy::Random, Policy::RoundRobin, Policy::LeastInflight, Policy::P2c];
const SERVERS: [usize; 3] = [2, 3, 10];
const LOADS: [f64; 3] = [0.7, 0.9, 0.95];
/// How far a simulated mean may be from theory, in percent.
const NEAR: f64 = 3.0;
/// At this load, what is won against round-robin with mixed sizes, in percent: by least-inflight
/// and by p2c.
pub(super) const JUDGED: f64 = 0.9;
const WON: [(usize, f64, f64); 3] = [(2, 35.0, 30.0), (3, 45.0, 35.0), (10, 65.0, 40.0)];
/// Where one server of three is slow: its speed, the load, of what the three can do together, and
/// what is won against round-robin. That gives each a third, so from 60 % on the slow one has more
/// than it can do, and nothing can be compared: here it is 83 % loaded.
const SLOW: (f64, f64, f64) = (0.5, 0.5, 30.0);

/// How large connections are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sizes {
    Exponential,
    /// SCV 10.
    Mixed,
}

impl Sizes {
    const fn name(self) -> &'static str {
        match self {
            Sizes::Exponential => "exponential",
            Sizes::Mixed => "SCV 10",
        }
    }

    /// One size; the mean is 1.
    fn draw(self, random: &mut Random) -> f64 {
        match self {
            Sizes::Exponential => exponential(random),
            Sizes::Mixed => {
                // Half of the work is in the larger ones: p = (1 + sqrt(9/11)) / 2, means 1/2p and
                // 1/2(1-p).
                const SMALL_PPM: u32 = 952_267;
                let small = random.happens_ppm(SMALL_PPM);
                let part = f64::from(SMALL_PPM) / 1e6;
                exponential(random) / (2.0 * if small { part } else { 1.0 - part })
            }
        }
    }
}

fn run(options: &Options) -> Result<Table, Violation> {
    let connections = options.seconds * CONNECTIONS;
    let mut table = Table {
        config: vec![("connections", format!("{connections} a cell, after {LEFT_OUT} that are left out"))],
        columns: vec![
            "sizes",
            "servers",
            "load %",
            "random",
            "theory",
            "round-robin",
            "theory",
            "least-inflight",
            "less %",
            "p2c",
            "less %",
        ],
        ..Table::default()
    };
    for sizes in [Sizes::Exponential, Sizes::Mixed] {
        for servers in SERVERS {
            for load in LOADS {
                row(options, &mut table, sizes, servers, load, connections);
            }
        }
    }
    slow_row(options, &mut table, connections);
    Ok(table)
}

/// One server of three is slow.
fn slow_row(options: &Options, table: &mut Table, connections: u64) {
    let (last_speed, load, won) = SLOW;
    let sizes = Sizes::Mixed;
    let mean =
        |policy| play(options.seed, &Setup { sizes, servers: 3, last_speed, load, policy, period: None }, connections);
    let means = COMPARED.map(mean);
    // Of processor sharing with random arrivals, the mean does not depend on the sizes.
    let rate = load * (2.0 + last_speed) / 3.0;
    let split = (2.0 / (1.0 - rate) + 1.0 / (last_speed - rate)) / 3.0;
    let name = format!("{}, one server slow", sizes.name());
    table.rows.push(cells(&name, 3, load, means, split, None));
    let [_, turns, least, p2c] = means;
    for (policy, own) in [("least-inflight", least), ("p2c", p2c)] {
        let id = format!("{policy}, {name}, {:.0} %: less than round-robin", 100.0 * load);
        table.claims.push(Claim { id, value: Some(less(own, turns)), unit: "%", target: Target::AtLeast(won) });
    }
}

/// A row of means, in the order of [`COMPARED`], and what theory has for the first two.
fn cells(
    name: &str,
    servers: usize,
    load: f64,
    [random, turns, least, p2c]: [f64; 4],
    split: f64,
    in_turn: Option<f64>,
) -> Vec<Cell> {
    vec![
        name.into(),
        Cell::Number(servers as f64, 0),
        Cell::Number(100.0 * load, 0),
        Cell::Number(random, 2),
        Cell::Number(split, 2),
        Cell::Number(turns, 2),
        in_turn.map_or(Cell::Empty, |mean| Cell::Number(mean, 2)),
        Cell::Number(least, 2),
        Cell::Number(less(least, turns), 0),
        Cell::Number(p2c, 2),
        Cell::Number(less(p2c, turns), 0),
    ]
}

/// By how much a mean is less than round-robin's, in percent.
fn less(own: f64, turns: f64) -> f64 {
    100.0 * (1.0 - own / turns)
}

fn row(options: &Options, table: &mut Table, sizes: Sizes, servers: usize, load: f64, connections: u64) {
    let mean = |policy| {
        play(options.seed, &Setup { sizes, servers, last_speed: 1.0, load, policy, period: None }, connections)
    };
    let means @ [random, turns, least, p2c] = COMPARED.map(mean);
    let less = |own: f64| less(own, turns);
    // Of processor sharing with random arrivals, the mean does not depend on the sizes.
    let split = 1.0 / (1.0 - load);
    let in_turn = (sizes == Sizes::Exponential).then(|| round_robin(servers, load));
    table.rows.push(cells(sizes.name(), servers, load, means, split, in_turn));
    let at = format!("{} servers, {:.0} %", servers, 100.0 * load);
    let mut claim =
        |id: String, value: f64, target| table.claims.push(Claim { id, value: Some(value), unit: "%", target });
    let name = sizes.name();
    claim(format!("random, {name}, {at}: off theory"), off(random, split), Target::AtMost(NEAR));
    if let Some(theory) = in_turn {
        claim(format!("round-robin, {name}, {at}: off theory"), off(turns, theory), Target::AtMost(NEAR));
    }
    let won = WON.iter().find(|(n, ..)| *n == servers);
    if let (Some(&(_, by_least, by_p2c)), Sizes::Mixed, true) = (won, sizes, load == JUDGED) {
        claim(format!("least-inflight, {at}: less than round-robin"), less(least), Target::AtLeast(by_least));
        claim(format!("p2c, {at}: less than round-robin"), less(p2c), Target::AtLeast(by_p2c));
    }
}

/// By how much, in percent.
fn off(mean: f64, theory: f64) -> f64 {
    100.0 * (mean / theory - 1.0).abs()
}

/// See the module.
fn round_robin(servers: usize, load: f64) -> f64 {
    let all = servers as f64 * load;
    let (mut s, rounds) = (load, 10_000);
    for _ in 0..rounds {
        let base = all / (all + 1.0 - s);
        s = (0..servers).fold(1.0, |power, _| power * base);
    }
    1.0 / (1.0 - s)
}

/// What is played.
pub(super) struct Setup {
    pub sizes: Sizes,
    pub servers: usize,
    /// The speed of the last server; that of the others is 1.
    pub last_speed: f64,
    /// Of what all can do.
    pub load: f64,
    pub policy: Policy,
    /// Between two reports of each server, where the policy goes by them.
    pub period: Option<f64>,
}

/// A server that gives all that it has the same part of its time.
struct Server {
    speed: f64,
    /// Work that each connection has had which is there since the beginning.
    had: f64,
    /// The work at which each ends, as bits, which are in the order of the numbers as none is
    /// negative; and when it came.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Server {
    /// When the next one ends, if none comes.
    fn next(&self, now: f64) -> Option<f64> {
        let Reverse((end, _)) = self.ends.peek()?;
        Some(now + (f64::from_bits(*end) - self.had) * self.ends.len() as f64 / self.speed)
    }

    fn work(&mut self, time: f64) {
        if !self.ends.is_empty() {
            self.had += self.speed * time / self.ends.len() as f64;
        }
    }
}

/// The mean time of a connection.
pub(super) fn play(seed: u64, setup: &Setup, connections: u64) -> f64 {
    let mut random = Random::new(seed);
    let [mut gaps, mut sizes, mut hashes] = [random.split(), random.split(), random.split()];
    let mut chooser = Chooser::new(random.word());
    let speed = |n| if n + 1 == setup.servers { setup.last_speed } else { 1.0 };
    let server = |n| Server { speed: speed(n), had: 0.0, ends: BinaryHeap::new() };
    let mut servers: Vec<Server> = (0..setup.servers).map(server).collect();
    let mut loads = vec![Load { takes: true, weight: 1, cores: 1, ..Load::default() }; setup.servers];
    let rate = setup.load * servers.iter().map(|server| server.speed).sum::<f64>();
    let (mut now, mut next_report, mut come, mut ended, mut total) = (0.0, 0.0, 0u64, 0u64, 0.0);
    let mut next_arrival = exponential(&mut gaps) / rate;
    while ended < connections {
        let departure = servers.iter().enumerate().filter_map(|(n, server)| Some((server.next(now)?, n)));
        let departure = departure.min_by(|a, b| a.0.total_cmp(&b.0));
        let (at, leaves) = match departure {
            Some((at, n)) if at <= next_arrival => (at.max(now), Some(n)),
            _ => (next_arrival, None),
        };
        servers.iter_mut().for_each(|server| server.work(at - now));
        now = at;
        if let Some(n) = leaves {
            let Some(Reverse((end, came))) = servers[n].ends.pop() else { continue };
            servers[n].had = f64::from_bits(end);
            if servers[n].ends.is_empty() {
                servers[n].had = 0.0;
            }
            loads[n].busy -= 1;
            // Those that came first found empty servers.
            if come > LEFT_OUT {
                total += now - f64::from_bits(came);
                ended += 1;
            }
            continue;
        }
        come += 1;
        if let Some(period) = setup.period.filter(|_| now >= next_report) {
            for load in &mut loads {
                let reported = u64::from(load.busy) * LOAD_ONE;
                load.report = Some(Report { load: reported, is_fresh: true, sent_since: 0 });
            }
            next_report = now + period;
        }
        let chosen = choose(&mut chooser, setup.policy, &loads, &mut hashes);
        loads[chosen].busy += 1;
        if let Some(report) = &mut loads[chosen].report {
            report.sent_since += 1;
        }
        let end = servers[chosen].had + setup.sizes.draw(&mut sizes);
        servers[chosen].ends.push(Reverse((end.to_bits(), now.to_bits())));
        next_arrival = now + exponential(&mut gaps) / rate;
    }
    total / ended as f64
}

/// As the switch asks: with two candidates that a hash would name.
pub(super) fn choose(chooser: &mut Chooser, policy: Policy, loads: &[Load], hashes: &mut Random) -> usize {
    let servers = loads.len() as u64;
    let first = hashes.range(0, servers - 1);
    let second = (first + hashes.range(1, servers - 1)) % servers;
    chooser.choose(policy, loads, [first as usize, second as usize]).unwrap_or_default()
}

/// An exponential number of mean 1.
pub(super) fn exponential(random: &mut Random) -> f64 {
    // 53 bits in (0, 1].
    -logarithm(((random.word() >> 11) + 1) as f64 / (1u64 << 53) as f64)
}

/// The natural logarithm, by arithmetic that is the same on every machine, which that of a system's
/// library is not: of x = m 2^e, by the series of the inverse hyperbolic tangent.
fn logarithm(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut power, mut sum) = (z * z, z, 0.0);
    for odd in (1..40).step_by(2) {
        sum += power / f64::from(odd);
        power *= square;
    }
    2.0 * sum + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_one() {
        for x in [1.0, 0.5, 1e-16, 0.999_999, 0.123_456, 1.0 / 3.0] {
            assert!((logarithm(x) - f64::ln(x)).abs() < 1e-12, "{x}");
        }
    }

    #[test]
    fn sizes_have_their_mean_and_variation() {
        for (sizes, variation) in [(Sizes::Exponential, 1.0), (Sizes::Mixed, 10.0)] {
            let mut random = Random::new(5);
            let all: Vec<f64> = (0..1_000_000).map(|_| sizes.draw(&mut random)).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let square = all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64;
            let scv = square / (mean * mean) - 1.0;
            assert!((mean - 1.0).abs() < 0.02 && (scv / variation - 1.0).abs() < 0.1, "{mean} {scv}");
        }
    }

    #[test]
    fn round_robin_of_one_server_is_random() {
        assert!((round_robin(1, 0.9) - 10.0).abs() < 1e-6);
        // The design's figure for two servers at 90 %.
        assert!((round_robin(2, 0.9) - 7.6).abs() < 0.05, "{}", round_robin(2, 0.9));
    }
}
