//! Shuffle: a MapReduce job's copies beside endless flows, between two switches of the network.
//!
//! The experiment of the study that found virtual congestion control of no use to such a job: eight
//! machines at each of two switches, all links of 1 Gbit/s, a queue discipline on each. The job's
//! hosts and those of the background are guests of two tenants, each behind Levada on its machine,
//! whose uplink there is ten times as fast as the link: what queues, queues in the network.
//!
//! ```text
//! job, background - [ Levada 0 ] ==== link 0 ==== +----------+            +----------+ ==== link 8 ==== ...
//! job, background - [ Levada 1 ] ==== link 1 ==== | fabric 0 | == trunk = | fabric 1 | ==== link 9 ==== ...
//!                                          ...    +----------+            +----------+
//! ```
//! Background flows run from the machines of fabric 0 to those of fabric 1. A reducer copies from
//! the maps that have ended, in order, so many at a time and never two from one host, each over a
//! connection of its own.

use core::fmt::Write as _;

use datapath::aqm::{Discipline, Red, Step};
use datapath::guard::Identity;
use datapath::link::{LinkConfig, LinkStats, Side};
use datapath::program::{
    Attachment, Endpoint, EndpointId, IngressMode, OrderKind, PortFeatures, PortId, Program, Tenant, TenantId, Uplink,
};
use datapath::units::{Both, Instant, Rate};
use datapath::vcc::Mode;

use crate::fabric::FabricConfig;
use crate::flow::FlowStats;
use crate::packet::Nic;
use crate::random::Random;
use crate::tcp::congestion::Algorithm;
use crate::tcp::receiver::AckPolicy;
use crate::topology::{FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::world::{Violation, World};

/// Machines at each of the two fabrics.
pub const SIDE: usize = 8;
/// All machines.
pub const MACHINES: usize = 2 * SIDE;
/// Of every link, wire bits a second.
pub const RATE: Rate = Rate(Rate::GBIT);
/// Of every link, one way: 300 us there and back across the trunk.
const DELAY_NS: u64 = 50_000;
/// Of Levada's uplinks: above the link's, so that no scheduler takes part.
const UPLINK: Rate = Rate(10 * Rate::GBIT);
/// When the job begins: the background has its share by then.
const JOB_AT_NS: u64 = 300_000_000;
/// How often the job looks what has ended.
const STEP_NS: u64 = 200_000;
/// A job that takes longer after its last map has failed.
const PATIENCE_NS: u64 = 600_000_000_000;
/// A map that ends later, in microseconds after the job's begin, is taken for a mistake: a day.
const MOST_READY_US: u64 = 86_400_000_000;
/// The most background flows.
pub const MOST_PAIRS: usize = 64;
/// A copy of more bytes does not end.
const MOST_BYTES: u64 = 1 << 40;
/// A full frame on the wire, in bytes.
const FULL_FRAME: u64 = 1538;

/// What the job's hosts run, and what the switch does for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guests {
    /// CUBIC with RFC 3168's ECN.
    Native,
    /// CUBIC without ECN.
    Legacy,
    /// The same behind a switch that speaks for it.
    Virtual(Mode),
    /// DCTCP; the background too.
    NativeDctcp,
    /// CUBIC without ECN beside DCTCP.
    LegacyDctcp,
    /// The same behind a switch that speaks for it.
    VirtualDctcp,
}

impl Guests {
    /// The names on the command line.
    pub const NAMES: [(&'static str, Guests); 7] = [
        ("native", Guests::Native),
        ("legacy", Guests::Legacy),
        ("published", Guests::Virtual(Mode::EchoPublished)),
        ("echo", Guests::Virtual(Mode::Echo)),
        ("native-dctcp", Guests::NativeDctcp),
        ("legacy-dctcp", Guests::LegacyDctcp),
        ("dctcp", Guests::VirtualDctcp),
    ];

    fn mode(self) -> Mode {
        match self {
            Guests::Virtual(mode) => mode,
            Guests::VirtualDctcp => Mode::Dctcp,
            _ => Mode::Off,
        }
    }

    fn has_ecn(self) -> bool {
        matches!(self, Guests::Native | Guests::NativeDctcp)
    }

    fn algorithm(self) -> Algorithm {
        if self == Guests::NativeDctcp { Algorithm::Dctcp } else { Algorithm::Cubic }
    }

    fn background(self) -> Algorithm {
        match self {
            Guests::NativeDctcp | Guests::LegacyDctcp | Guests::VirtualDctcp => Algorithm::Dctcp,
            Guests::Native | Guests::Legacy | Guests::Virtual(_) => Algorithm::Cubic,
        }
    }
}

/// The queues of the network's links, by their names on the command line: discipline and length in
/// bytes.
pub const QUEUES: [(&str, Discipline, u32); 6] = [
    ("red1", Discipline::Red(Red::VCC_RED1), 1_000_000),
    ("red2", Discipline::Red(Red::VCC_RED2), 400_000),
    ("red3", Discipline::Red(Red::VCC_RED3), 400_000),
    ("step", Discipline::Step(Step { mark_bytes: 30_000, at: datapath::aqm::At::Arrival }), 1_000_000),
    ("auto", Discipline::Auto, 1_000_000),
    ("droptail", Discipline::DropTail, 1_000_000),
];

/// What a reducer fetches from a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The machine that has it.
    pub from: usize,
    /// The reducer.
    pub reducer: usize,
    /// The reducer's machine.
    pub to: usize,
    /// When the map ends, in nanoseconds after the job's begin.
    pub ready_ns: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// A job's network part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Copies that a reducer has at a time.
    pub parallel: usize,
    /// All copies, in the order in which each reducer asks for them.
    pub copies: Vec<Copy>,
}

impl Job {
    /// Reads a job: a line `parallel COPIES`, then a line `copy FROM REDUCER TO READY_US BYTES`
    /// each.
    ///
    /// # Errors
    /// The line that is not so.
    pub fn read(text: &str) -> Result<Job, String> {
        let mut job = Job { parallel: 5, copies: Vec::new() };
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let numbers: Option<Vec<u64>> = words.iter().skip(1).map(|word| word.parse().ok()).collect();
            match (words.first().copied(), numbers.as_deref()) {
                (Some("parallel"), Some(&[parallel @ 1..=1000])) => job.parallel = parallel as usize,
                (
                    Some("copy"),
                    Some(&[from, reducer @ ..=9_999, to, ready_us @ ..=MOST_READY_US, bytes @ 1..=MOST_BYTES]),
                ) if from.max(to) < MACHINES as u64 => {
                    let (from, reducer, to) = (from as usize, reducer as usize, to as usize);
                    job.copies.push(Copy { from, reducer, to, ready_ns: ready_us * 1000, bytes });
                }
                (None, _) => {}
                _ => return Err(format!("line {}: {line:?} is no copy between machines 0 to 15", number + 1)),
            }
        }
        if job.copies.len() > usize::from(u16::MAX) / 2 {
            return Err("more copies than ports".into());
        }
        Ok(job)
    }

    /// When it is given up, in nanoseconds after its begin: maps may take any time.
    fn given_up_ns(&self) -> u64 {
        self.copies.iter().map(|copy| copy.ready_ns).max().unwrap_or(0) + PATIENCE_NS
    }
}

/// A run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cell {
    /// The queues of all links.
    pub queue: (Discipline, u32),
    /// The job's hosts.
    pub guests: Guests,
    /// Background flows.
    pub pairs: usize,
    /// A control experiment: all packets of hosts with ECN are capable, so that no queue drops what
    /// another host's would have marked.
    pub all_capable: bool,
    /// Another: no receiver of RFC 3168 hurries to acknowledge a mark ([`AckPolicy::hurries`]).
    pub late_marks: bool,
    /// Of all randomness.
    pub seed: u64,
}

/// What a run showed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// From the job's begin until its last copy, in nanoseconds.
    pub job_ns: u64,
    /// Payload that the background received meanwhile, in bytes.
    pub background_bytes: u64,
    /// What the job's connections sent and lost, by [`crate::packet::Kind`].
    pub job: Kinds,
    /// The same of the background, over the whole run.
    pub background: Kinds,
    /// Timeouts of the job's senders.
    pub timeouts: u64,
    /// Retransmissions of the job's senders.
    pub retransmits: u64,
    /// Timeouts of the background's senders.
    pub background_timeouts: u64,
    /// The trunk's queue toward fabric 1.
    pub trunk: LinkStats,
    /// Windows that Levada reduced for the job, and acknowledgements whose window it lowered.
    pub reductions: u64,
    /// See there.
    pub lowered: u64,
}

/// Segments by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kinds {
    /// Sent.
    pub sent: [u64; 4],
    /// Sent, and never arrived.
    pub lost: [u64; 4],
}

impl Kinds {
    fn add(&mut self, sent: &FlowStats, arrived: &FlowStats) {
        for (kind, &count) in sent.sent_kinds.iter().enumerate() {
            self.sent[kind] += count;
            self.lost[kind] += count.saturating_sub(arrived.arrived_kinds[kind]);
        }
    }
}

impl Outcome {
    /// One object of JSON on one line.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = String::from("{");
        let numbers = [
            ("job_ns", self.job_ns),
            ("background_bytes", self.background_bytes),
            ("timeouts", self.timeouts),
            ("retransmits", self.retransmits),
            ("background_timeouts", self.background_timeouts),
            ("trunk_marks", self.trunk.queue.stats.marks),
            ("trunk_dropped_syn", self.trunk.queue.stats.dropped.syn),
            ("trunk_dropped", self.trunk.queue.stats.dropped.total()),
            ("trunk_overflowed", self.trunk.queue.stats.overflowed.total()),
            ("reductions", self.reductions),
            ("lowered", self.lowered),
        ];
        for (name, number) in numbers {
            let _ = write!(text, "\"{name}\": {number}, ");
        }
        for (whose, kinds) in [("job", &self.job), ("background", &self.background)] {
            for (what, counts) in [("sent", kinds.sent), ("lost", kinds.lost)] {
                let [syn, ack, again, data] = counts;
                let _ = write!(text, "\"{whose}_{what}\": [{syn}, {ack}, {again}, {data}], ");
            }
        }
        text.truncate(text.len() - 2);
        text + "}"
    }
}

/// Plays a job in a cell.
///
/// # Errors
/// The first violation of safety, or a job that does not end.
pub fn play(cell: &Cell, job: &Job) -> Result<Outcome, Violation> {
    let mut world = World::new(topology(cell, job));
    world.run_until(Instant(JOB_AT_NS))?;
    let background = |world: &World| (0..cell.pairs).map(|flow| world.received(flow).bytes).sum::<u64>();
    let before = background(&world);
    let mut replay = Replay::new(job, cell.pairs);
    while replay.turn(&mut world) {
        if world.now().0 > JOB_AT_NS + job.given_up_ns() {
            return Err(Violation { at: world.now(), what: "the job does not end".into() });
        }
        world.run_for(STEP_NS)?;
    }
    let mut outcome = Outcome {
        job_ns: world.now().0 - JOB_AT_NS,
        background_bytes: background(&world) - before,
        trunk: world.link(MACHINES, Side::A),
        ..Outcome::default()
    };
    // What is under way is not lost.
    world.run_for(2 * STEP_NS)?;
    for flow in 0..world.topology().flows.len() {
        let (sender, receiver) = (world.sent(flow), world.received(flow));
        let is_job = flow >= cell.pairs;
        let kinds = if is_job { &mut outcome.job } else { &mut outcome.background };
        kinds.add(&sender, &receiver);
        kinds.add(&receiver, &sender);
        if is_job {
            outcome.timeouts += sender.sender.timeouts;
            outcome.retransmits += sender.sender.retransmits;
        } else {
            outcome.background_timeouts += sender.sender.timeouts;
        }
    }
    for machine in 0..MACHINES {
        if let Some(counters) = world.switch(machine).vcc().counters(EndpointId(0)) {
            outcome.reductions += counters.reductions;
            outcome.lowered += counters.lowered;
        }
    }
    Ok(outcome)
}

/// The job as far as it has come.
struct Replay<'a> {
    job: &'a Job,
    /// The flow of the first copy.
    first: usize,
    /// By reducer: copies that wait, in order, and those that are under way.
    reducers: Vec<(Vec<usize>, Vec<usize>)>,
}

impl<'a> Replay<'a> {
    fn new(job: &'a Job, first: usize) -> Self {
        let reducers = job.copies.iter().map(|copy| copy.reducer + 1).max().unwrap_or(0);
        let mut replay = Replay { job, first, reducers: vec![(Vec::new(), Vec::new()); reducers] };
        for (number, copy) in job.copies.iter().enumerate() {
            replay.reducers[copy.reducer].0.push(number);
        }
        replay
    }

    /// Ends what has arrived and begins what may begin; says whether there is more to do.
    fn turn(&mut self, world: &mut World) -> bool {
        let Replay { job, first, reducers } = self;
        let since = world.now().0 - JOB_AT_NS;
        for (waiting, active) in reducers.iter_mut() {
            active.retain(|&number| world.received(*first + number).bytes < job.copies[number].bytes);
            waiting.retain(|&number| {
                let copy = job.copies[number];
                let is_busy = active.iter().any(|&other| job.copies[other].from == copy.from);
                if active.len() >= job.parallel || is_busy || copy.ready_ns > since {
                    return true;
                }
                // What lies on the reducer's own machine takes no network.
                if copy.from != copy.to {
                    world.start(*first + number);
                    active.push(number);
                }
                false
            });
        }
        reducers.iter().any(|(waiting, active)| !waiting.is_empty() || !active.is_empty())
    }
}

/// Hosts 2m and 2m + 1 are the job's and the background's of machine m.
fn topology(cell: &Cell, job: &Job) -> Topology {
    let mut random = Random::new(!cell.seed);
    let mut topology = Topology { seed: cell.seed, ..Topology::default() };
    let nic = Nic::PLAIN;
    for _ in 0..MACHINES {
        let all_capable = cell.all_capable;
        let acks = AckPolicy { hurries: !cell.late_marks, ..AckPolicy::default() };
        let background = HostSpec { tenant: 2, nic, times_syn: true, all_capable, acks, ..HostSpec::default() };
        let job = HostSpec { tenant: 1, without_ecn: !cell.guests.has_ecn(), ..background };
        topology.hosts.extend([job, background]);
    }
    let (discipline, queue_bytes) = cell.queue;
    let link = LinkConfig { rate: RATE, delay_ns: DELAY_NS, queue_bytes, discipline, ..LinkConfig::default() };
    for machine in 0..MACHINES {
        topology.switches.push(program(cell.guests.mode(), &topology, machine));
        topology.links.push(link);
        for place in 0..2 {
            let port = PortId(place as u32);
            topology.cables.push((Plug::Host(2 * machine + place), Plug::Switch(machine, port)));
        }
        topology.cables.push((Plug::Switch(machine, PortId(2)), Plug::Link(machine, Side::A)));
        topology.cables.push((Plug::Link(machine, Side::B), Plug::Fabric(machine / SIDE, machine % SIDE)));
    }
    topology.links.push(link);
    for (fabric, side) in Side::ALL.into_iter().enumerate() {
        let macs = |machine: usize| [0, 1].map(|place| topology.address(2 * machine + place).mac).to_vec();
        let mut ports: Vec<_> = (0..SIDE).map(|place| macs(fabric * SIDE + place)).collect();
        ports.push((0..SIDE).flat_map(|place| macs((1 - fabric) * SIDE + place)).collect());
        topology.fabrics.push(FabricConfig { ports, latency_ns: RATE.time_ns(FULL_FRAME) });
        topology.cables.push((Plug::Fabric(fabric, SIDE), Plug::Link(MACHINES, side)));
    }
    for pair in 0..cell.pairs {
        let (from, to) = (2 * (pair % SIDE) + 1, 2 * (SIDE + pair % SIDE) + 1);
        let traffic = tcp(cell.guests.background(), true, None);
        let start_ns = random.range(0, JOB_AT_NS / 3);
        topology.flows.push(FlowSpec { start_ns, ..FlowSpec::new(from, to, traffic) });
    }
    for copy in &job.copies {
        let traffic = tcp(cell.guests.algorithm(), cell.guests.has_ecn(), Some(copy.bytes));
        // Begun by the replay.
        topology.flows.push(FlowSpec { start_ns: u64::MAX, ..FlowSpec::new(2 * copy.from, 2 * copy.to, traffic) });
    }
    topology
}

fn tcp(algorithm: Algorithm, ecn: bool, bytes: Option<u64>) -> Traffic {
    Traffic::Tcp { algorithm, ecn, bytes, again_after_ns: None, pace: None }
}

/// A machine's switch: the job's endpoint, the background's, the uplink.
fn program(mode: Mode, topology: &Topology, machine: usize) -> Program {
    let endpoint = |place: u32| {
        let address = topology.address(2 * machine + place as usize);
        let identity = Identity { macs: vec![address.mac], ipv4: vec![(address.ip, 32)], ..Identity::default() };
        Endpoint { identity, ..Endpoint::new(TenantId(place), PortId(place)) }
    };
    let tenant = |vlan, vcc| Tenant { attachment: Attachment::Vlan(vlan), vcc, ..Tenant::default() };
    Program {
        order: OrderKind::Fair,
        ingress: IngressMode::Queue,
        uplink: Some(Uplink::new(PortId(2), Both { egress: UPLINK, ingress: UPLINK })),
        tenants: vec![tenant(10, mode.into()), tenant(20, Mode::Off.into())].into(),
        endpoints: (0..2).map(endpoint).collect(),
        ports: vec![PortFeatures::default(); 3].into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two reducers on machine 8 and 9 copy from all machines of the other side.
    fn job(bytes: u64) -> Job {
        let copy = |reducer: usize, from: usize| Copy { from, reducer, to: SIDE + reducer, ready_ns: 0, bytes };
        let copies = (0..2).flat_map(|reducer| (0..SIDE).map(move |from| copy(reducer, from))).collect();
        Job { parallel: 5, copies }
    }

    fn run(queue: &str, guests: Guests, pairs: usize) -> Outcome {
        let (_, discipline, bytes) = QUEUES.into_iter().find(|(name, ..)| *name == queue).unwrap();
        let cell = Cell { queue: (discipline, bytes), guests, pairs, all_capable: false, late_marks: false, seed: 1 };
        play(&cell, &job(300_000)).unwrap_or_else(|violation| panic!("{queue}, {guests:?}: {violation}"))
    }

    #[test]
    fn every_kind_of_guest_ends_its_job_and_a_run_repeats() {
        for (name, guests) in Guests::NAMES {
            let outcome = run("red1", guests, 2);
            assert!(outcome.job_ns > 38_000_000, "{name}: faster than the trunk: {outcome:?}");
            assert_eq!(outcome, run("red1", guests, 2), "{name}");
        }
    }

    #[test]
    fn red_spares_the_packets_of_translated_guests_and_drops_those_of_legacy_ones() {
        let lost = |guests| {
            let [syn, ack, again, data] = run("red1", guests, 4).job.lost;
            (syn + ack + again, data)
        };
        let (legacy, virtual_) = (lost(Guests::Legacy), lost(Guests::Virtual(Mode::Echo)));
        assert!(legacy.1 > 0, "{legacy:?}");
        assert_eq!(virtual_, (0, 0));
    }

    #[test]
    fn a_job_is_read_from_its_lines_and_what_is_wrong_is_named() {
        let job = Job::read("parallel 3\n\ncopy 0 1 9 250 7000\n").unwrap();
        assert_eq!(
            job,
            Job { parallel: 3, copies: vec![Copy { from: 0, reducer: 1, to: 9, ready_ns: 250_000, bytes: 7000 }] }
        );
        let late = format!("copy 0 0 1 {} 1", MOST_READY_US + 1);
        for wrong in ["copy 16 0 0 0 1", "copy 0 0 1 0 0", "copy 0 0 1 0", "parallel 0", "what", &late] {
            assert!(Job::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_job_is_given_up_ten_minutes_after_its_last_map_whenever_that_ends() {
        let job = Job::read("copy 0 0 1 900000000 1\ncopy 0 0 2 1500000000 1\ncopy 0 0 1 0 1\n").unwrap();
        assert_eq!(job.given_up_ns(), 1_500_000_000_000 + PATIENCE_NS);
        assert_eq!(Job { parallel: 5, copies: Vec::new() }.given_up_ns(), PATIENCE_NS);
        // The first is begun although it is ready later than the patience with a job lasts.
        let cell = Cell {
            queue: (Discipline::DropTail, 1_000_000),
            guests: Guests::Native,
            pairs: 0,
            all_capable: false,
            late_marks: false,
            seed: 1,
        };
        let late = Job::read(&format!("copy 0 0 9 {} 1000\n", PATIENCE_NS / 1000 + 1)).unwrap();
        assert!(play(&cell, &late).is_ok_and(|outcome| outcome.job_ns > PATIENCE_NS));
    }
}
