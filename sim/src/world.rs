//! World: the network that a topology describes, running under a virtual clock.
//!
//! Hosts, switches with their agents, links and the agents' mail are components. What touches one
//! makes it dirty; dirty ones are worked off in order until none is left, then the clock jumps to
//! the earliest deadline. Nothing else moves, so a run is a function of its topology. At every step
//! safety is checked: the pool holds exactly the frames that the components hold, queues are within
//! their bounds, an uplink is not sent more than its rate, the clock moves on. Hosts check what
//! reaches them. A breach ends the run with a [`Violation`].

use std::collections::VecDeque;
use std::fmt;

use datapath::frame::{Frame, Pool};
use datapath::link::{Link, LinkStats, Side};
use datapath::program::PortId;
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::wire::Mac;

use crate::arrivals::Arrivals;
use crate::cut::Cut;
use crate::deadlines::Deadlines;
use crate::fabric::Fabric;
use crate::flow::{FlowEnd, FlowStats, Role, SEND_BUFFER, SinkKind, TcpSink, TcpSource, UdpSource};
use crate::host::Host;
use crate::mail::{Mail, MailStats};
use crate::node::Node;
use crate::packet::{Envelope, UDP_HEADERS};
use crate::random::Random;
use crate::steering::Steering;
use crate::tcp::SenderConfig;
use crate::tcp::congestion::Algorithm;
use crate::topology::{Fault, FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::worker::Worker;

/// Steps between two looks into every part and every queue: at each step only what was at work
/// since the last is looked at.
const WHOLE_CHECK: u64 = 256;
/// Times that one component may ask to be called again at the same instant before the clock counts
/// as stuck.
const STUCK_ROUNDS: u32 = 10_000;

/// Something that must never happen, and when it did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// When.
    pub at: Instant,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} ns: {}", self.at.0, self.what)
    }
}

impl std::error::Error for Violation {}

/// A component, by its place among all: hosts first, then switches, links, fabrics, and the mail
/// last.
type Component = usize;

/// Which component that is, by its place among those of its kind.
enum Part {
    Host(usize),
    Switch(usize),
    Link(usize),
    Fabric(usize),
    Mail,
}

/// A running network.
#[derive(Debug)]
pub struct World {
    topology: Topology,
    now: Instant,
    pool: Pool,
    hosts: Vec<(Host, Option<Plug>)>,
    nodes: Vec<Node>,
    links: Vec<(Link, [Option<Plug>; 2])>,
    /// By link, then the side that sends.
    cuts: Vec<[Cut; 2]>,
    fabrics: Vec<Fabric>,
    mail: Mail,
    /// Where each flow's ends are: place at the sending host, place at the receiving host.
    flows: Vec<(usize, Option<usize>)>,
    faults: VecDeque<(u64, Fault)>,
    deadlines: Deadlines,
    dirty: VecDeque<Component>,
    is_dirty: Vec<bool>,
    /// Frames that each component held when it was last at work, and all together.
    held: Vec<usize>,
    held_together: usize,
    trace: u64,
    steps: u64,
    lost_at_open_ends: u64,
    /// Times that safety was checked.
    checks: u64,
    /// How often the clock stood still, in a row.
    rounds: u32,
}

impl World {
    /// The network at time zero.
    ///
    /// # Panics
    /// Where the topology names what it does not have: that is a mistake in the test that made it.
    #[must_use]
    pub fn new(topology: Topology) -> World {
        let mut random = Random::new(topology.seed);
        // Of their own, so that networks without them repeat as they did.
        let mut aside = Random::new(!topology.seed);
        let components =
            topology.hosts.len() + topology.switches.len() + topology.links.len() + topology.fabrics.len() + 1;
        let hosts = topology.hosts.iter().enumerate();
        let mut world = World {
            now: Instant::ZERO,
            pool: Pool::new(topology.pool),
            hosts: hosts.map(|(i, &spec)| (Host::new(spec, topology.address(i)), None)).collect(),
            nodes: nodes(&topology, &mut random),
            links: topology
                .links
                .iter()
                .map(|config| (Link::new(datapath::link::LinkConfig { seed: random.word(), ..*config }), [None; 2]))
                .collect(),
            cuts: vec![Default::default(); topology.links.len()],
            fabrics: topology.fabrics.iter().map(|config| Fabric::new(config, aside.split())).collect(),
            mail: Mail::new(topology.mail, topology.switches.len(), aside.split()),
            flows: Vec::new(),
            faults: VecDeque::new(),
            deadlines: Deadlines::new(components),
            dirty: VecDeque::new(),
            is_dirty: vec![false; components],
            held: vec![0; components],
            held_together: 0,
            trace: topology.seed,
            steps: 0,
            lost_at_open_ends: 0,
            checks: 0,
            rounds: 0,
            topology,
        };
        world.plug_in();
        let mut faults = world.topology.faults.clone();
        faults.sort_by_key(|&(at, _)| at);
        world.faults = faults.into();
        for flow in 0..world.topology.flows.len() {
            let ends = world.add_flow(flow, &mut random);
            world.flows.push(ends);
        }
        (0..components).for_each(|component| world.touch(component));
        world
    }

    /// What it was made from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// A digest of every frame that was handed over so far: where, when, how long and with which
    /// headers.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Frames handed over so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Frames that are anywhere.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.pool.in_use()
    }

    /// A host.
    #[must_use]
    pub fn host(&self, host: usize) -> &Host {
        &self.hosts[host].0
    }

    /// A switch.
    #[must_use]
    pub fn switch(&self, switch: usize) -> &Switch {
        &self.nodes[switch].switch
    }

    /// Whose time a switch takes, where that is bounded.
    #[must_use]
    pub fn worker(&self, switch: usize) -> Option<&Worker> {
        self.nodes[switch].worker.as_deref()
    }

    /// What steers a switch, where there is an agent.
    #[must_use]
    pub fn steering(&self, switch: usize) -> Option<&Steering> {
        self.nodes[switch].steering.as_ref()
    }

    /// What a switch's agent sent.
    #[must_use]
    pub fn mailed(&self, switch: usize) -> MailStats {
        self.mail.sent(switch)
    }

    /// What a side of a link sent.
    #[must_use]
    pub fn link(&self, link: usize, side: Side) -> LinkStats {
        self.links[link].0.stats(side)
    }

    /// What was counted at the receiving end of a flow. For pings the sending end counts too.
    #[must_use]
    pub fn received(&self, flow: usize) -> FlowStats {
        let to = self.topology.flows[flow].to;
        self.flows[flow].1.map_or_else(FlowStats::default, |place| self.hosts[to].0.end(place).counted())
    }

    /// What was counted at the sending end of a flow.
    #[must_use]
    pub fn sent(&self, flow: usize) -> FlowStats {
        let from = self.topology.flows[flow].from;
        self.hosts[from].0.end(self.flows[flow].0).counted()
    }

    /// What came of the datagrams of a flow; `None` where it is none of datagrams.
    #[must_use]
    pub fn arrivals(&self, flow: usize) -> Option<&Arrivals> {
        let end = self.hosts[self.topology.flows[flow].to].0.end(self.flows[flow].1?);
        if let Role::UdpSink { arrivals, .. } = &end.role { Some(arrivals) } else { None }
    }

    /// The end of a flow that sends, for a look at its state.
    #[must_use]
    pub fn sender(&self, flow: usize) -> &FlowEnd {
        self.hosts[self.topology.flows[flow].from].0.end(self.flows[flow].0)
    }

    /// A flow whose time had not come begins now.
    pub fn start(&mut self, flow: usize) {
        let from = self.topology.flows[flow].from;
        self.hosts[from].0.start(self.flows[flow].0, self.now);
        self.touch(from);
    }

    /// Runs until the virtual clock shows `until`.
    ///
    /// # Errors
    /// The first violation of safety.
    pub fn run_until(&mut self, until: Instant) -> Result<(), Violation> {
        self.run(until).map_err(|what| Violation { at: self.now, what })
    }

    /// Runs on for so many nanoseconds.
    ///
    /// # Errors
    /// The first violation of safety.
    pub fn run_for(&mut self, ns: u64) -> Result<(), Violation> {
        self.run_until(self.now.plus_ns(ns))
    }

    fn run(&mut self, until: Instant) -> Result<(), String> {
        loop {
            while let Some(component) = self.dirty.pop_front() {
                self.is_dirty[component] = false;
                self.work(component)?;
                self.arm(component);
                self.count(component)?;
            }
            self.check()?;
            let fault = self.faults.front().map(|&(at, _)| Instant(at));
            let wake = self.deadlines.first().map(|(at, _)| at);
            let Some(next) = [fault, wake].into_iter().flatten().min().filter(|&at| at <= until) else {
                self.now = until;
                return Ok(());
            };
            self.rounds = if next > self.now { 0 } else { self.rounds + 1 };
            if self.rounds > STUCK_ROUNDS {
                let who = self.deadlines.first().map(|(_, component)| self.name(component)).unwrap_or_default();
                return Err(format!("the clock is stuck: {who} asks to be called again and again"));
            }
            self.now = self.now.max(next);
            while self.faults.front().is_some_and(|&(at, _)| at <= self.now.0) {
                let Some((_, fault)) = self.faults.pop_front() else { break };
                self.strike(fault);
            }
            while let Some((_, component)) = self.deadlines.first().filter(|&(at, _)| at <= self.now) {
                self.deadlines.set(component, None);
                self.touch(component);
            }
        }
    }

    /// Lets a component do what is due.
    fn work(&mut self, component: Component) -> Result<(), String> {
        match self.part(component) {
            Part::Host(host) => self.work_host(host),
            Part::Switch(switch) => self.work_switch(switch),
            Part::Link(link) => self.work_link(link),
            Part::Fabric(fabric) => self.work_fabric(fabric),
            Part::Mail => {
                self.work_mail();
                Ok(())
            }
        }
    }

    fn work_host(&mut self, index: usize) -> Result<(), String> {
        let World { hosts, pool, now, .. } = self;
        let (host, _) = &mut hosts[index];
        host.on_time(pool, *now).map_err(|what| format!("host {index}: {what}"))?;
        loop {
            let (host, peer) = &mut self.hosts[index];
            let peer = *peer;
            match host.poll_tx(&mut self.pool, self.now) {
                Some(frame) => self.hand_over(peer, frame)?,
                None => return Ok(()),
            }
        }
    }

    fn work_switch(&mut self, index: usize) -> Result<(), String> {
        let World { nodes, mail, pool, now, .. } = self;
        if !nodes[index].on_time(pool, *now, mail).map_err(|what| format!("switch {index}: {what}"))? {
            return Ok(());
        }
        if self.nodes[index].steering.is_some() {
            self.touch(self.post_office());
        }
        loop {
            let node = &mut self.nodes[index];
            let sent = node.tx(&mut self.pool, self.now).map_err(|what| format!("switch {index}: {what}"))?;
            let Some((port, frame)) = sent else { break };
            let peer = node.peers.get(port.0 as usize).copied().flatten();
            self.hand_over(peer, frame)?;
        }
        while self.nodes[index].switch.poll_event().is_some() {}
        Ok(())
    }

    fn work_link(&mut self, index: usize) -> Result<(), String> {
        while let Some((side, frame)) = self.links[index].0.poll(&mut self.pool, self.now) {
            if self.cuts[index][side.other() as usize].takes(self.now) {
                self.pool.free(frame);
                continue;
            }
            let peer = self.links[index].1[side as usize];
            self.hand_over(peer, frame)?;
        }
        Ok(())
    }

    fn work_fabric(&mut self, index: usize) -> Result<(), String> {
        while let Some((peer, frame)) = self.fabrics[index].poll(self.now) {
            self.hand_over(peer, frame)?;
        }
        Ok(())
    }

    fn work_mail(&mut self) {
        while let Some(letter) = self.mail.deliver(self.now) {
            self.nodes[letter.to].hear(self.now, &letter);
            self.touch(self.component(Plug::Switch(letter.to, PortId(0))));
        }
    }

    /// Gives a frame to what is plugged in.
    fn hand_over(&mut self, plug: Option<Plug>, frame: Frame) -> Result<(), String> {
        self.steps += 1;
        let Some(plug) = plug else {
            self.lost_at_open_ends += 1;
            self.pool.free(frame);
            return Ok(());
        };
        self.note(plug, &frame);
        let component = self.component(plug);
        match plug {
            Plug::Host(host) => {
                let result = self.hosts[host].0.rx(&mut self.pool, self.now, frame);
                result.map_err(|what| format!("host {host}: {what}"))?;
            }
            Plug::Switch(index, port) => self.nodes[index].rx(&mut self.pool, self.now, port, frame),
            Plug::Link(link, side) => self.links[link].0.send(&mut self.pool, self.now, side, frame),
            Plug::Fabric(fabric, port) => self.fabrics[fabric].rx(&mut self.pool, self.now, port, frame),
        }
        self.touch(component);
        Ok(())
    }

    /// Adds a frame to the trace.
    fn note(&mut self, plug: Plug, frame: &Frame) {
        let bytes = self.pool.bytes(frame);
        let head = bytes.get(24..56).unwrap_or(bytes);
        let (whole, rest) = head.as_chunks();
        let rest = rest.iter().copied().map(u64::from).reduce(|word, byte| word << 8 | byte);
        let words = whole.iter().map(|&word| u64::from_be_bytes(word)).chain(rest);
        let place = self.component(plug) as u64;
        for word in [self.now.0, place, bytes.len() as u64].into_iter().chain(words) {
            // FNV-1a's step, a word at a time, turned so that high bits count too.
            self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Loss { link, ppm } => {
                self.links[link].0.set_loss(&mut self.pool, self.now, ppm);
                self.touch(self.component(Plug::Link(link, Side::A)));
            }
            Fault::Rate { link, rate } => {
                self.links[link].0.set_rate(&mut self.pool, self.now, rate);
                self.touch(self.component(Plug::Link(link, Side::A)));
            }
            Fault::Cut { link, from, is_silent } => {
                let delay_ns = self.links[link].0.config().delay_ns;
                self.cuts[link][from as usize].set(self.now, delay_ns, is_silent);
            }
            Fault::Stall { host, for_ns } => {
                self.hosts[host].0.stall(self.now.plus_ns(for_ns));
                self.touch(self.component(Plug::Host(host)));
            }
            Fault::Lag { switch, for_ns } => {
                self.nodes[switch].lag(self.now.plus_ns(for_ns));
                self.touch(self.component(Plug::Switch(switch, PortId(0))));
            }
            Fault::Member { switch, member, is_up } => {
                self.nodes[switch].set_member(&mut self.pool, self.now, member, is_up);
                self.touch(self.component(Plug::Switch(switch, PortId(0))));
            }
            Fault::Kill { switch, away_ns } => {
                self.nodes[switch].kill(&mut self.pool, self.now, away_ns);
                self.touch(self.component(Plug::Switch(switch, PortId(0))));
            }
            Fault::Takeover { switch, away_ns } => {
                self.nodes[switch].take_over(self.now, away_ns);
                self.touch(self.component(Plug::Switch(switch, PortId(0))));
            }
            Fault::Change { switch, change } => {
                self.nodes[switch].change(&mut self.pool, self.now, change);
                self.touch(self.component(Plug::Switch(switch, PortId(0))));
            }
            Fault::Mail { config } => self.mail.set_config(config),
            Fault::Partition { apart } => self.mail.partition(&apart),
            Fault::AgentRestart { switch } => self.steer(switch, Steering::restart),
            Fault::ClockStep { switch, ahead_ns } => self.steer(switch, |steering| steering.step(ahead_ns)),
        }
    }

    fn steer(&mut self, switch: usize, with: impl FnOnce(&mut Steering)) {
        self.nodes[switch].steering.as_mut().map(with);
        self.touch(self.component(Plug::Switch(switch, PortId(0))));
    }

    /// Notes how many frames a component holds, and that it holds no more than it may.
    fn count(&mut self, component: Component) -> Result<(), String> {
        let frames = self.frames_of(component);
        self.held_together = self.held_together - std::mem::replace(&mut self.held[component], frames) + frames;
        let Part::Link(index) = self.part(component) else { return Ok(()) };
        let link = &self.links[index].0;
        for side in Side::ALL {
            let (waits, bound) = (link.stats(side).backlog_bytes, u64::from(link.config().queue_bytes));
            if waits > bound {
                return Err(format!("link {index}, side {side:?}: {waits} bytes wait where {bound} may"));
            }
        }
        Ok(())
    }

    /// What must hold between any two steps: no frame is lost or made up. What a component holds
    /// changes only while it is at work; the look at all of them shows that too.
    fn check(&mut self) -> Result<(), String> {
        self.checks += 1;
        let is_whole = self.checks.is_multiple_of(WHOLE_CHECK);
        if is_whole || self.held_together != self.pool.in_use() {
            let held: Vec<usize> = (0..self.held.len()).map(|component| self.frames_of(component)).collect();
            if held.iter().sum::<usize>() != self.pool.in_use() || held != self.held {
                let names = held.iter().zip(&self.held).enumerate();
                let held = names.map(|(component, (now, then))| format!("{}: {now}, was {then}", self.name(component)));
                let held: Vec<String> = held.collect();
                return Err(format!("{} frames in the pool, but held are: {}", self.pool.in_use(), held.join("; ")));
            }
        }
        if is_whole {
            for (index, node) in self.nodes.iter().enumerate() {
                node.check_lanes().map_err(|what| format!("switch {index}: {what}"))?;
            }
        }
        Ok(())
    }

    // --- bookkeeping ------------------------------------------------------------------

    fn component(&self, plug: Plug) -> Component {
        match plug {
            Plug::Host(host) => host,
            Plug::Switch(switch, _) => self.hosts.len() + switch,
            Plug::Link(link, _) => self.hosts.len() + self.nodes.len() + link,
            Plug::Fabric(fabric, _) => self.hosts.len() + self.nodes.len() + self.links.len() + fabric,
        }
    }

    /// Where the mail stands among the components.
    fn post_office(&self) -> Component {
        self.held.len() - 1
    }

    fn part(&self, component: Component) -> Part {
        let (hosts, nodes, links) = (self.hosts.len(), self.nodes.len(), self.links.len());
        if component < hosts {
            Part::Host(component)
        } else if component < hosts + nodes {
            Part::Switch(component - hosts)
        } else if component < hosts + nodes + links {
            Part::Link(component - hosts - nodes)
        } else if component < self.post_office() {
            Part::Fabric(component - hosts - nodes - links)
        } else {
            Part::Mail
        }
    }

    fn name(&self, component: Component) -> String {
        match self.part(component) {
            Part::Host(host) => format!("host {host}"),
            Part::Switch(switch) => format!("switch {switch}"),
            Part::Link(link) => format!("link {link}"),
            Part::Fabric(fabric) => format!("fabric {fabric}"),
            Part::Mail => "the mail".into(),
        }
    }

    /// Frames that a component holds.
    fn frames_of(&self, component: Component) -> usize {
        match self.part(component) {
            Part::Host(host) => self.hosts[host].0.frames(),
            Part::Switch(switch) => self.nodes[switch].frames(),
            Part::Link(link) => self.links[link].0.frames(),
            Part::Fabric(fabric) => self.fabrics[fabric].frames(),
            Part::Mail => 0,
        }
    }

    fn touch(&mut self, component: Component) {
        if !self.is_dirty[component] {
            self.is_dirty[component] = true;
            self.dirty.push_back(component);
        }
    }

    /// Notes when a component is to be called.
    fn arm(&mut self, component: Component) {
        let deadline = match self.part(component) {
            Part::Host(host) => self.hosts[host].0.deadline(),
            Part::Switch(switch) => self.nodes[switch].deadline(self.now),
            Part::Link(link) => self.links[link].0.poll_timeout(),
            Part::Fabric(fabric) => self.fabrics[fabric].deadline(),
            Part::Mail => self.mail.deadline(),
        };
        self.deadlines.set(component, deadline);
    }

    fn plug_in(&mut self) {
        for (a, b) in self.topology.cables.clone() {
            for (end, peer) in [(a, b), (b, a)] {
                let place = match end {
                    Plug::Host(host) => &mut self.hosts[host].1,
                    Plug::Switch(switch, port) => &mut self.nodes[switch].peers[port.0 as usize],
                    Plug::Link(link, side) => &mut self.links[link].1[side as usize],
                    Plug::Fabric(fabric, port) => self.fabrics[fabric].peer_mut(port),
                };
                assert!(place.is_none(), "{end:?} is plugged in twice");
                *place = Some(peer);
            }
        }
    }

    /// Makes the two ends of a flow; an attack has one only.
    fn add_flow(&mut self, flow: usize, random: &mut Random) -> (usize, Option<usize>) {
        let spec = self.topology.flows[flow];
        let mut random = random.split();
        let mut source = self.end(flow, &spec, spec.from, spec.to, source_role(&spec, &self.topology, &mut random));
        if let Traffic::Ask { .. } = spec.traffic {
            source.envelope.to.mac = Mac::BROADCAST;
        }
        let from = self.hosts[spec.from].0.add(source);
        let role = match spec.traffic {
            Traffic::Tcp { algorithm, .. } => {
                let host = &self.topology.hosts[spec.to];
                let kind = match algorithm {
                    _ if host.without_ecn => SinkKind::Without,
                    Algorithm::Dctcp => SinkKind::Dctcp,
                    Algorithm::NewReno | Algorithm::Cubic => SinkKind::Classic,
                };
                Role::TcpSink(Box::new(TcpSink::new(host.acks, kind, host.all_capable, random.split())))
            }
            Traffic::Udp { .. } => udp_sink(false),
            Traffic::Ping { .. } | Traffic::Ask { .. } => udp_sink(true),
            Traffic::Attack { .. } => return (from, None),
        };
        let sink = self.end(flow, &spec, spec.to, spec.from, role);
        (from, Some(self.hosts[spec.to].0.add(sink)))
    }

    fn end(&self, flow: usize, spec: &FlowSpec, at: usize, peer: usize, role: Role) -> FlowEnd {
        let host = self.topology.hosts[at];
        let envelope = Envelope {
            from: self.topology.address(at),
            to: self.topology.address(peer),
            tenant: host.tenant,
            port: Topology::port(flow),
            nic: host.nic,
        };
        let from_until = (Instant(spec.start_ns), Instant(spec.stop_ns));
        FlowEnd { envelope, from_until, role, stats: FlowStats::default() }
    }
}

fn source_role(spec: &FlowSpec, topology: &Topology, random: &mut Random) -> Role {
    let HostSpec { nic, times_syn, all_capable, cheat, .. } = topology.hosts[spec.from];
    match spec.traffic {
        Traffic::Tcp { algorithm, ecn, bytes, again_after_ns, pace } => {
            let config = SenderConfig {
                algorithm,
                ecn,
                bytes,
                pace,
                buffer_bytes: SEND_BUFFER,
                mss: nic.mss(),
                offload_bytes: nic.offload_bytes,
                times_syn,
                all_capable,
                cheat,
            };
            Role::TcpSource(Box::new(TcpSource::new(config, again_after_ns, random.split())))
        }
        Traffic::Udp { rate, frame, train, on_off_ns } => Role::UdpSource(UdpSource {
            datagram: ((frame as usize).saturating_sub(UDP_HEADERS), train.max(1) as usize),
            rate,
            on_off_ns,
            next: (Instant(spec.start_ns), 0),
            jitter_ns: 0,
            random: random.split(),
            position: 0,
        }),
        Traffic::Ping { every_ns } | Traffic::Ask { every_ns } => {
            Role::Ping { every_ns, next: Instant(spec.start_ns), sent: 0, waiting: VecDeque::new() }
        }
        Traffic::Attack { per_second, kind } => Role::Attack {
            kind,
            every_ns: 1_000_000_000 / u64::from(per_second.max(1)),
            next: Instant(spec.start_ns),
            random: random.split(),
        },
    }
}

fn udp_sink(answers: bool) -> Role {
    Role::UdpSink { answers, waiting: VecDeque::new(), arrivals: Arrivals::default() }
}

fn nodes(topology: &Topology, random: &mut Random) -> Vec<Node> {
    let agent = |switch: usize| topology.agents.get(switch).and_then(Option::as_ref);
    let worker = |switch: usize| topology.workers.get(switch).and_then(Option::as_ref);
    let node = |(switch, program)| Node::new(program, agent(switch).map(Steering::new), worker(switch), random.word());
    topology.switches.iter().enumerate().map(node).collect()
}
