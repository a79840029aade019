//! One connection to one switch, as a state machine: bytes and time in, bytes out.
//!
//! After the handshake the switch tells which of our flows and groups it has. What is missing is
//! added, and behind a barrier what is old is removed, so that at no moment a service is without
//! its rules. Connections' flows stay: from them the balancer learns which connections are open.

mod over;

use crate::balance::{Balancer, Key, Refused};
use crate::fault;
use crate::health::Prober;
use crate::rules::version::Version;
use crate::rules::{Client, OURS, Rules, delete, normal, port_kind};
use crate::wire::{
    Description, Features, Field, FlowRemoved, FlowStats, GroupCommand, GroupMod, Kind, Message, Multipart, PacketIn,
    PacketOut, Request, Role, Stream, VERSION, WHOLE,
};
use control::config::openflow::{self, Mode, OpenFlow};
use datapath::units::Instant;
use datapath::wire::{FlowKey, L4, Tcp, parse, protocol, tcp_flags};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Without a message for so long, the switch is asked whether it is there: as often as Open vSwitch
/// asks (vswitchd.conf.db(5), inactivity_probe).
const PROBE_NS: u64 = 5_000_000_000;
/// Without an answer for so long, the connection is given up.
const SILENT_NS: u64 = 15_000_000_000;
/// How long the handshake, or a switch's list of its flows, may take.
const SETUP_NS: u64 = 60_000_000_000;
/// Between two counts of flows (`hash`).
const COUNT_NS: u64 = 1_000_000_000;
/// After so long a switch is asked again which flows it has: who removed some, or a full table,
/// says nothing that names one. It costs a twentieth of the time at most.
const LIST_NS: u64 = 60_000_000_000;
const LIST_TIMES: u64 = 20;
/// The same where it has refused one; twice as long each time that rules are missing still.
const DOUBT_NS: u64 = 5_000_000_000;
const MOST_DOUBTS: u32 = 4;
/// Flows and groups of ours that a switch may name beyond those that we know; more is a lie.
const MOST_OLD: usize = 65_536;
/// Parts of one answer at most, 64 KiB each: a hundred for each flow of a full table of 65 536.
const MOST_PARTS: u32 = 1 << 20;
/// Flows of connections to one backend's own address at most; what is beyond comes here frame by
/// frame, so that nobody fills the switch's table by way of a backend.
const MOST_PASSED: u32 = 1024;
/// Notes that wait for whoever writes the log.
const MOST_NOTES: usize = 64;
/// How often a newer generation than another controller's is tried.
const MOST_CLAIMS: u32 = 8;
/// Message lost, and no generation: what Open vSwitch answers before any controller had one.
const NO_GENERATION: u64 = u64::MAX;

/// Something for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Something does not work as it should.
    pub is_warning: bool,
    /// What.
    pub text: String,
}

/// What a switch is and has done, for whoever shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Its number.
    pub datapath: u64,
    /// What it is.
    pub description: Description,
    /// hello, features, role, flows, adding, removing, ready, watching.
    pub phase: &'static str,
    /// equal, master or slave.
    pub role: &'static str,
    /// Frames that came to the controller.
    pub packet_ins: u64,
    /// Of them, those that were no connection's, or are too long for a message back.
    pub ignored: u64,
    /// Connections whose flows were sent.
    pub set_up: u64,
    /// Errors that the switch sent.
    pub errors: u64,
    /// The last of them, in words.
    pub last_error: Option<String>,
    /// Flows that do not depend on connections.
    pub rules: usize,
}

/// How far the switch is.
#[derive(Debug)]
enum Phase {
    Hello,
    Features,
    /// The number of times that a generation was claimed.
    Role(u32),
    /// It names what it has.
    Flows(Found),
    /// What is missing was sent; what is old waits.
    Adding(u32, Old),
    /// What was old is being removed.
    Removing(u32),
    Ready,
    /// A slave looks on.
    Watching,
}

/// What a switch has of ours.
#[derive(Debug, Default)]
struct Found {
    flows: BTreeSet<(u8, u64)>,
    groups: BTreeSet<u32>,
    parts: u32,
    connections: u64,
    /// Connections of which there was no room.
    unknown: u64,
    passed: HashMap<Backend, u32>,
}

/// What a switch has of ours and should not.
#[derive(Debug, Default)]
struct Old {
    flows: Vec<(u8, u64)>,
    groups: Vec<u32>,
}

/// Where a backend listens, and by which protocol.
type Backend = (Client, u8);

/// See the module.
#[derive(Debug)]
pub struct Session {
    mode: Mode,
    role: openflow::Role,
    rules: Arc<Rules>,
    stream: Stream,
    out: Vec<u8>,
    /// Frames that go on when the flows of all that came with them are there.
    frames: Vec<PacketOut>,
    /// Some of them have flows that were sent just now.
    has_changed: bool,
    notes: VecDeque<Note>,
    phase: Phase,
    since: Instant,
    heard: Instant,
    asked: Option<Instant>,
    counted: Instant,
    /// How often backends are asked, when they were, and the questions.
    probe_ns: u64,
    probed: Instant,
    prober: Option<Prober>,
    /// As of which change the switch's groups know who is up.
    health: u64,
    /// Services and backends whose connections were ended here. Only those of the configuration.
    lost: BTreeSet<(usize, usize)>,
    /// A second, and how many clients were refused in it.
    refusals: (u64, u32),
    /// Which report of its flows this is: when it was asked for it.
    round: u64,
    /// When it said the last of it.
    listed: Instant,
    /// It has refused a flow or a group since.
    is_doubtful: bool,
    /// Reports one after the other that lacked rules which it was sent.
    doubts: u32,
    /// It is asked how often its flows were used, and has not said so yet.
    is_counting: bool,
    /// Flows of connections to backends' own addresses. Only addresses of the configuration.
    passed: HashMap<Backend, u32>,
    /// It has had all rules of this configuration.
    is_served: bool,
    /// The balancer knows it as connected.
    has_joined: bool,
    xid: u32,
    status: Status,
}

impl Session {
    /// A connection that has just been made.
    #[must_use]
    pub fn new(config: &OpenFlow, rules: Arc<Rules>, now: Instant) -> Session {
        let status = Status { role: "none", rules: rules.flows.len(), ..Status::default() };
        let mut session = Session {
            mode: config.mode,
            role: config.role,
            rules,
            stream: Stream::default(),
            out: Vec::new(),
            frames: Vec::new(),
            has_changed: false,
            notes: VecDeque::new(),
            phase: Phase::Hello,
            since: now,
            heard: now,
            asked: None,
            counted: now,
            probe_ns: config.probe_ns,
            probed: now,
            prober: None,
            health: 0,
            lost: BTreeSet::new(),
            refusals: (0, 0),
            round: 0,
            listed: now,
            is_doubtful: false,
            doubts: 0,
            is_counting: false,
            passed: HashMap::new(),
            is_served: false,
            has_joined: false,
            xid: 0,
            status,
        };
        session.send(&Message::Hello(1 << VERSION));
        session
    }

    /// Bytes from the switch.
    ///
    /// # Errors
    /// Why the connection is of no use any more, in words; what is to be sent is to be sent still.
    pub fn receive(&mut self, now: Instant, mut bytes: &[u8], balancer: &mut Balancer) -> Result<(), String> {
        self.heard = now;
        self.asked = None;
        // What waits for the rest of its message, taken out while its messages are read.
        let mut stream = std::mem::take(&mut self.stream);
        let mut result = Ok(());
        while !bytes.is_empty() && result.is_ok() {
            bytes = &bytes[stream.add(bytes)..];
            result = self.take_all(now, &mut stream, balancer);
        }
        self.stream = stream;
        self.send_on();
        result
    }

    fn take_all(&mut self, now: Instant, stream: &mut Stream, balancer: &mut Balancer) -> Result<(), String> {
        loop {
            let before_hello = matches!(self.phase, Phase::Hello);
            let Some(bytes) = stream.next(before_hello).map_err(|broken| broken.to_string())? else { return Ok(()) };
            match Message::read(bytes) {
                Ok((xid, message)) => self.take(now, xid, message, balancer)?,
                Err(bad) => {
                    let (kind, code) = fault::BAD_LENGTH;
                    let beginning = bytes[..bytes.len().min(64)].to_vec();
                    self.send(&Message::Error(kind, code, beginning));
                    self.warn(format!("a message of the switch was left out: {bad}"));
                }
            }
        }
    }

    fn take(&mut self, now: Instant, xid: u32, message: Message, balancer: &mut Balancer) -> Result<(), String> {
        match message {
            Message::Hello(versions) if matches!(self.phase, Phase::Hello) => self.take_hello(now, versions)?,
            Message::EchoRequest(data) => Message::EchoReply(data).write(xid, &mut self.out),
            Message::FeaturesReply(features) if matches!(self.phase, Phase::Features) => {
                self.take_features(now, features, balancer)?;
            }
            Message::Error(kind, code, _) => self.take_error(now, kind, code, balancer)?,
            Message::RoleReply(role, generation) => self.take_role(now, role, generation),
            Message::MultipartReply(part, has_more) => self.take_part(now, part, has_more, balancer)?,
            Message::BarrierReply => self.take_barrier(now, xid),
            Message::PacketIn(packet) => self.take_packet(now, packet, balancer),
            Message::FlowRemoved(removed) => self.take_removed(now, &removed, balancer),
            // Anything else concerns nobody here.
            _ => {}
        }
        Ok(())
    }

    fn take_hello(&mut self, now: Instant, versions: u32) -> Result<(), String> {
        if versions & 1 << VERSION == 0 {
            let (kind, code) = fault::INCOMPATIBLE;
            self.send(&Message::Error(kind, code, b"OpenFlow 1.3 is needed".to_vec()));
            return Err("the switch does not know OpenFlow 1.3; allow it: ovs-vsctl set bridge BRIDGE \
                        protocols=OpenFlow13"
                .to_owned());
        }
        self.send(&Message::FeaturesRequest);
        self.enter(now, Phase::Features);
        Ok(())
    }

    fn take_features(&mut self, now: Instant, features: Features, balancer: &mut Balancer) -> Result<(), String> {
        if features.auxiliary != 0 {
            return Err("an auxiliary connection is not needed".to_owned());
        }
        if !balancer.join(now, features.datapath) {
            return Err(format!(
                "switch {:016x} is connected already; name this controller once (ovs-vsctl set-controller), and \
                 number bridges differently (ovs-vsctl set bridge BRIDGE other-config:datapath-id=NUMBER)",
                features.datapath
            ));
        }
        self.has_joined = true;
        self.status.datapath = features.datapath;
        // Frames come whole, and only where a flow says so.
        self.send(&Message::SetConfig(WHOLE));
        self.send(&Message::MultipartRequest(Request::Description));
        // Which generation is it? The answer is the first role reply.
        self.send(&Message::RoleRequest(Role::NoChange, 0));
        self.enter(now, Phase::Role(0));
        Ok(())
    }

    fn take_role(&mut self, now: Instant, role: Role, generation: u64) {
        let Phase::Role(claims) = self.phase else { return };
        let (wanted, name) = match self.role {
            openflow::Role::Equal => (Role::Equal, "equal"),
            openflow::Role::Master => (Role::Master, "master"),
            openflow::Role::Slave => (Role::Slave, "slave"),
        };
        if claims == 0 || role != wanted {
            if claims >= MOST_CLAIMS {
                return;
            }
            let newer = if generation == NO_GENERATION { 1 } else { generation.wrapping_add(1) };
            self.send(&Message::RoleRequest(wanted, newer));
            self.phase = Phase::Role(claims + 1);
            return;
        }
        self.status.role = name;
        if self.role == openflow::Role::Slave {
            self.note("the switch accepts this controller as a slave: it looks on");
            return self.enter(now, Phase::Watching);
        }
        self.ask_for_flows(now);
    }

    fn ask_for_flows(&mut self, now: Instant) {
        // Another than that of any connection before.
        self.round = now.0.max(1);
        self.send(&Message::MultipartRequest(Request::Groups));
        self.send(&Message::MultipartRequest(Request::Flows(self.rules.owner, OURS)));
        self.enter(now, Phase::Flows(Found::default()));
    }

    fn take_part(
        &mut self,
        now: Instant,
        part: Multipart,
        has_more: bool,
        balancer: &mut Balancer,
    ) -> Result<(), String> {
        match part {
            Multipart::Description(description) => self.status.description = description,
            Multipart::Groups(groups) => {
                if let Phase::Flows(found) = &mut self.phase {
                    let ours = groups.iter().map(|group| group.id).filter(|&id| self.rules.has_group(id));
                    found.groups.extend(ours);
                    found.part()?;
                }
            }
            Multipart::Flows(flows) => {
                self.count(&flows, balancer);
                let Phase::Flows(found) = &mut self.phase else {
                    self.is_counting &= has_more;
                    return Ok(());
                };
                let (switch, round) = (self.status.datapath, self.round);
                // Flows of connections that end come and go with their backend.
                for flow in flows.iter().filter(|flow| !over::is_of_lost(flow, &self.rules, &self.lost)) {
                    found.add(now, flow, &self.rules, switch, round, balancer)?;
                }
                found.part()?;
                if !has_more {
                    (self.listed, self.is_doubtful) = (now, false);
                    balancer.reported(now, switch, round);
                    let Phase::Flows(mut found) = std::mem::replace(&mut self.phase, Phase::Ready) else {
                        return Ok(());
                    };
                    self.passed = std::mem::take(&mut found.passed);
                    self.reconcile(now, &found, balancer);
                }
            }
            Multipart::Unknown(_) => {}
        }
        Ok(())
    }

    /// Adds what is missing; what is old goes when that is there.
    fn reconcile(&mut self, now: Instant, found: &Found, balancer: &Balancer) {
        if found.unknown > 0 {
            let text =
                format!("there was no room for {} connections of the switch; raise `connections`", found.unknown);
            self.warn(text);
        }
        let rules = Arc::clone(&self.rules);
        let wanted: BTreeSet<(u8, u64)> = rules.flows.iter().map(|flow| (flow.table, flow.cookie)).collect();
        let old = Old {
            flows: found.flows.difference(&wanted).copied().collect(),
            groups: found.groups.iter().copied().filter(|id| !rules.groups.contains_key(id)).collect(),
        };
        if self.is_served && found.flows == wanted && found.groups.iter().eq(rules.groups.keys()) {
            self.doubts = 0;
            return self.enter(now, Phase::Ready);
        }
        self.doubts = if self.is_served { (self.doubts + 1).min(MOST_DOUBTS) } else { 0 };
        (self.is_served, self.health) = (true, 0);
        for &id in rules.groups.keys() {
            let command = if found.groups.contains(&id) { GroupCommand::Modify } else { GroupCommand::Add };
            // Not to a backend that is known to be down, not even until it is asked again.
            let buckets = rules.buckets(id, |service, backend| balancer.takes(service, backend));
            self.send(&Message::GroupMod(GroupMod { command, id, buckets }));
        }
        let mut added = 0;
        for flow in rules.flows.iter().filter(|flow| !found.flows.contains(&(flow.table, flow.cookie))) {
            self.send(&Message::FlowMod(flow.clone()));
            added += 1;
        }
        self.note(&format!(
            "the switch had {} of {} rules, {} old ones, and flows of {} connections; {added} are added",
            rules.flows.len() - added,
            rules.flows.len(),
            old.flows.len() + old.groups.len(),
            found.connections,
        ));
        let barrier = self.send(&Message::BarrierRequest);
        self.enter(now, Phase::Adding(barrier, old));
    }

    fn take_barrier(&mut self, now: Instant, xid: u32) {
        match &mut self.phase {
            Phase::Adding(barrier, old) if *barrier == xid => {
                let old = std::mem::take(old);
                for (table, cookie) in old.flows {
                    self.send(&Message::FlowMod(delete(table, cookie)));
                }
                for id in old.groups {
                    let change = GroupMod { command: GroupCommand::Delete, id, buckets: Vec::new() };
                    self.send(&Message::GroupMod(change));
                }
                let barrier = self.send(&Message::BarrierRequest);
                self.enter(now, Phase::Removing(barrier));
            }
            Phase::Removing(barrier) if *barrier == xid => {
                let Description { manufacturer, software, .. } = &self.status.description;
                let text = format!("switch {:016x} is ready ({manufacturer} {software})", self.status.datapath);
                self.note(&text);
                self.enter(now, Phase::Ready);
            }
            _ => {}
        }
    }

    fn take_error(&mut self, now: Instant, kind: u16, code: u16, balancer: &mut Balancer) -> Result<(), String> {
        self.status.errors += 1;
        let text = fault::words(kind, code);
        self.status.last_error = Some(text.clone());
        self.warn(format!("the switch refused {text}"));
        self.is_doubtful |= fault::OF_RULES.contains(&kind);
        match (kind, code) {
            fault::INCOMPATIBLE => Err(format!("the switch refused {text}")),
            fault::IS_SLAVE if !matches!(self.phase, Phase::Watching) => {
                self.status.role = "slave";
                self.warn("another controller has become the master: this one looks on from now on".to_owned());
                if self.has_joined {
                    balancer.asks_no_more(self.status.datapath);
                    // What becomes of the flows it is not told: all are only remembered.
                    balancer.reported(now, self.status.datapath, now.0.saturating_add(1));
                }
                self.enter(now, Phase::Watching);
                Ok(())
            }
            fault::STALE => {
                self.send(&Message::RoleRequest(Role::NoChange, 0));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take_removed(&mut self, now: Instant, removed: &FlowRemoved, balancer: &mut Balancer) {
        if self.rules.is_passed(removed.cookie) {
            let backend = backend_of(&removed.matches);
            if let Some(count) = backend.and_then(|backend| self.passed.get_mut(&backend)) {
                *count = count.saturating_sub(1);
            }
            return;
        }
        let Some((Some((front, _)), false)) = self.rules.connection_of(removed.cookie) else { return };
        if let Some(client) = client_of(&removed.matches) {
            balancer.gone(now, self.status.datapath, Key { front, client });
        }
    }

    /// New connections of backends, as the switch counts them.
    fn count(&self, flows: &[FlowStats], balancer: &mut Balancer) {
        for flow in flows {
            if let Some(&backend) = self.rules.counters.get(&flow.cookie) {
                balancer.counted(self.status.datapath, flow.cookie, backend, flow.packets);
            }
        }
    }

    fn take_packet(&mut self, now: Instant, packet: PacketIn, balancer: &mut Balancer) {
        self.status.packet_ins += 1;
        let is_on = match self.phase {
            Phase::Flows(_) => self.is_served,
            Phase::Adding(..) | Phase::Removing(_) | Phase::Ready => true,
            _ => false,
        };
        let is_ours = packet.cookie & OURS == self.rules.owner;
        let in_port = packet.about.get(Kind::IN_PORT).map(|port| port as u32);
        if let (true, true, Some(in_port), Some(seen)) = (is_on, is_ours, in_port, Seen::of(&packet.data)) {
            match (self.mode, self.rules.connection_of(packet.cookie)) {
                (Mode::Reactive, _) => self.connect(now, seen, in_port, packet.data, balancer),
                (Mode::Hash, named) => {
                    self.take_tracked(seen, named.and_then(|(at, _)| at), in_port, &packet.data, balancer)
                }
            }
        } else {
            self.status.ignored += 1;
        }
    }

    fn connect(&mut self, now: Instant, seen: Seen, in_port: u32, data: Vec<u8>, balancer: &mut Balancer) {
        let Seen { from, to, protocol, is_new, is_first_answer } = seen;
        let rules = Arc::clone(&self.rules);
        if self.is_probed(from, to, &data, balancer) {
            return;
        }
        let switch = self.status.datapath;
        let (front, place, client, is_answer) = match rules.front_at(to, protocol) {
            Some(front) => {
                let key = Key { front, client: from };
                let is_new = is_new && (protocol != protocol::UDP || !balancer.goes_on(now, key));
                match balancer.choose(now, switch, key, is_new) {
                    Ok(place) => (front, place, from, false),
                    Err(Refused::NoBackend) if is_new => return self.refuse(front, in_port, &data),
                    Err(Refused::Cut(backend)) => return self.cut(front, backend, None, in_port, data),
                    // Dropped: the client asks again.
                    Err(_) => return,
                }
            }
            None => match balancer.front_of_answer(&rules, (from, to), protocol, is_first_answer) {
                Some(front) => match balancer.choose(now, switch, Key { front, client: to }, false) {
                    Ok(place) => (front, place, to, true),
                    Err(Refused::Cut(backend)) => return self.cut(front, backend, Some(to), in_port, data),
                    Err(_) => return,
                },
                // A connection to the backend's own address.
                None => {
                    if self.passes(from, protocol) {
                        self.send(&Message::FlowMod(rules.pass(seen.fields())));
                    }
                    return self.frames.push(PacketOut { in_port, actions: vec![normal()], data });
                }
            },
        };
        if let (false, Some(flows)) = (place.is_set_up, rules.flows_of(front, place.backend, client)) {
            self.status.set_up += 1;
            for flow in flows {
                self.send(&Message::FlowMod(flow));
            }
            self.has_changed = true;
        }
        self.frames.extend(rules.send(front, place.backend, is_answer, in_port, data));
    }

    /// Whether a frame answers what a backend was asked.
    fn is_probed(&mut self, from: Client, to: Client, data: &[u8], balancer: &mut Balancer) -> bool {
        let Some(answered) = self.prober.as_mut().and_then(|prober| prober.answer(from, to, data)) else {
            return false;
        };
        self.frames.extend(answered);
        self.judge(balancer);
        true
    }

    /// A frame that the switch's connection tracking has no place for: of a new connection, or of
    /// one that is over, with front and backend.
    fn take_tracked(
        &mut self,
        Seen { from, to, protocol, is_new, .. }: Seen,
        over: Option<(usize, usize)>,
        in_port: u32,
        data: &[u8],
        balancer: &mut Balancer,
    ) {
        if self.is_probed(from, to, data, balancer) {
            return;
        }
        let rules = Arc::clone(&self.rules);
        if let Some((front, backend)) = over {
            return self.cut_tracked(front, backend, in_port, data, balancer);
        }
        let Some(front) = rules.front_at(to, protocol) else { return };
        let service = rules.fronts[front].service;
        if is_new && !balancer.has_any(service) {
            balancer.count_refused(service);
            self.refuse(front, in_port, data);
        }
    }

    /// Frames go on behind one barrier, unless they are too long for a message.
    fn send_on(&mut self) {
        if std::mem::take(&mut self.has_changed) {
            self.send(&Message::BarrierRequest);
        }
        for packet in std::mem::take(&mut self.frames) {
            let before = self.out.len();
            self.send(&Message::PacketOut(packet));
            self.status.ignored += u64::from(self.out.len() == before);
        }
    }

    /// Whether there may be one more flow of connections to a backend's own address.
    fn passes(&mut self, from: Client, protocol: u8) -> bool {
        if !self.rules.has_target(from, protocol) {
            return false;
        }
        let count = self.passed.entry((from, protocol)).or_default();
        let may = *count < MOST_PASSED;
        *count += u32::from(may);
        may
    }

    /// What backends' answers, and missing ones, say of them.
    fn judge(&mut self, balancer: &mut Balancer) {
        let verdicts = self.prober.as_ref().map(Prober::verdicts).unwrap_or_default();
        for (of, is_up) in verdicts {
            let ignored = balancer.ignores_health(of.0);
            if balancer.found(self.status.datapath, of, is_up) {
                let name = self.rules.called(of).to_owned();
                let ignores = balancer.ignores_health(of.0);
                match (is_up, ignores) {
                    (true, _) => self.note(&format!("backend {name} answers")),
                    (false, false) => self.warn(format!("backend {name} does not answer: it gets no new connections")),
                    (false, true) => self.warn(format!("backend {name} does not answer")),
                }
                if ignores && !ignored {
                    self.warn(format!(
                        "of the service of {name} less than `panic` is up: health is ignored, and all its backends get connections"
                    ));
                } else if ignored && !ignores {
                    self.note(&format!("of the service of {name} enough is up: health counts again"));
                }
            }
        }
    }

    /// Asks backends, and lets the switch's groups follow. Who has not asked yet does so at once: a
    /// backend that was down may be up since. A switch that has said nothing since the last time,
    /// not even that it is done with that, is not told more, and no backend is blamed.
    fn look_at_backends(&mut self, now: Instant, balancer: &mut Balancer) {
        let is_due = self.prober.is_none() || now.since(self.probed) + COUNT_NS / 2 >= self.probe_ns;
        if self.probe_ns > 0 && is_due && self.heard >= self.probed {
            self.probed = now;
            self.has_changed = true;
            let prober = self.prober.get_or_insert_with(|| Prober::new(&self.rules, balancer.seed()));
            let asked = prober.ask();
            self.frames.extend(asked);
            self.judge(balancer);
            // What a switch may have lost meanwhile it gets again.
            self.end_lost(balancer, true);
            self.send_on();
        }
        if self.health != balancer.health() {
            self.health = balancer.health();
            self.end_lost(balancer, false);
            let rules = Arc::clone(&self.rules);
            for &id in rules.groups.keys() {
                let buckets = rules.buckets(id, |service, backend| balancer.takes(service, backend));
                self.send(&Message::GroupMod(GroupMod { command: GroupCommand::Modify, id, buckets }));
            }
        }
    }

    /// Time has passed.
    ///
    /// # Errors
    /// The switch does not answer.
    pub fn poll(&mut self, now: Instant, balancer: &mut Balancer) -> Result<(), String> {
        let is_done = matches!(self.phase, Phase::Ready | Phase::Watching);
        if !is_done && now.since(self.since) >= SETUP_NS {
            return Err(format!("the switch did not get past \"{}\" in 60 s", self.status.phase));
        }
        let silent = now.since(self.heard);
        if silent >= SILENT_NS {
            return Err("the switch was silent for 15 s".to_owned());
        }
        if silent >= PROBE_NS && self.asked.is_none() && !matches!(self.phase, Phase::Hello) {
            self.send(&Message::EchoRequest(Vec::new()));
            self.asked = Some(now);
        }
        let took = self.listed.since(Instant(self.round)).saturating_mul(LIST_TIMES);
        let pause = if self.is_doubtful { (DOUBT_NS << self.doubts).min(LIST_NS) } else { LIST_NS };
        let is_due = now.since(self.listed) >= pause.max(took);
        // What it says of one question is no answer to the other.
        let is_answered = !self.is_counting || now.since(self.counted) >= SILENT_NS;
        if self.mode == Mode::Hash
            && matches!(self.phase, Phase::Ready)
            && !is_due
            && is_answered
            && now.since(self.counted) >= COUNT_NS
        {
            self.send(&Message::MultipartRequest(Request::Flows(self.rules.owner, OURS)));
            (self.counted, self.is_counting) = (now, true);
        }
        if matches!(self.phase, Phase::Ready) {
            self.look_at_backends(now, balancer);
        }
        if matches!(self.phase, Phase::Ready) && is_due && is_answered {
            self.ask_for_flows(now);
        }
        Ok(())
    }

    /// The connection is over.
    pub fn leave(&mut self, now: Instant, balancer: &mut Balancer) {
        if std::mem::take(&mut self.has_joined) {
            balancer.leave(now, self.status.datapath);
        }
    }

    /// Another configuration: the switch is brought to it.
    pub fn renew(&mut self, config: &OpenFlow, rules: Arc<Rules>, now: Instant) {
        (self.mode, self.role) = (config.mode, config.role);
        self.status.rules = rules.flows.len();
        (self.rules, self.is_served) = (rules, false);
        (self.probe_ns, self.prober) = (config.probe_ns, None);
        self.lost.clear();
        if !matches!(self.phase, Phase::Hello | Phase::Features) {
            self.send(&Message::RoleRequest(Role::NoChange, 0));
            self.enter(now, Phase::Role(0));
        }
    }

    /// How long [`Session::poll`] may wait.
    #[must_use]
    pub const fn poll_every_ns() -> u64 {
        COUNT_NS
    }

    /// What is to be sent; whoever sends it takes it out.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// What is to be logged.
    pub fn note_next(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    /// What the switch is and has done.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    fn send(&mut self, message: &Message) -> u32 {
        self.xid = self.xid.wrapping_add(1);
        message.write(self.xid, &mut self.out);
        self.xid
    }

    fn enter(&mut self, now: Instant, phase: Phase) {
        self.since = now;
        self.phase = phase;
        self.status.phase = match self.phase {
            Phase::Hello => "hello",
            Phase::Features => "features",
            Phase::Role(_) => "role",
            Phase::Flows(_) if self.is_served => "ready",
            Phase::Flows(_) => "flows",
            Phase::Adding(..) => "adding",
            Phase::Removing(_) => "removing",
            Phase::Ready => "ready",
            Phase::Watching => "watching",
        };
    }

    fn note(&mut self, text: &str) {
        self.push(Note { is_warning: false, text: text.to_owned() });
    }

    fn warn(&mut self, text: String) {
        self.push(Note { is_warning: true, text });
    }

    fn push(&mut self, note: Note) {
        if self.notes.len() < MOST_NOTES {
            self.notes.push_back(note);
        }
    }
}

impl Found {
    fn add(
        &mut self,
        now: Instant,
        flow: &FlowStats,
        rules: &Rules,
        switch: u64,
        round: u64,
        balancer: &mut Balancer,
    ) -> Result<(), String> {
        if flow.cookie & OURS != rules.owner {
            return Ok(());
        }
        if rules.is_passed(flow.cookie) {
            let backend = backend_of(&flow.matches).filter(|&(at, protocol)| rules.has_target(at, protocol));
            if let Some(backend) = backend {
                *self.passed.entry(backend).or_default() += 1;
            }
            return Ok(());
        }
        // In other tables they are of all connections of a backend, which is asked anew.
        let Some((named, is_answer)) = rules.connection_of(flow.cookie).filter(|_| flow.table == 0) else {
            self.flows.insert((flow.table, flow.cookie));
            let most = rules.flows.len() + MOST_OLD;
            return if self.flows.len() > most { Err(endless()) } else { Ok(()) };
        };
        let is_of = |front: usize, client: Client| rules.fronts[front].ip.is_ipv4() == client.ip.is_ipv4();
        if let (Some((front, backend)), false, Some(client)) = (named, is_answer, client_of(&flow.matches))
            && is_of(front, client)
        {
            self.connections += 1;
            let is_known = balancer.known(now, switch, Key { front, client }, backend, round);
            self.unknown += u64::from(!is_known);
        }
        Ok(())
    }

    /// One more part.
    fn part(&mut self) -> Result<(), String> {
        self.parts += 1;
        if self.parts > MOST_PARTS || self.groups.len() > MOST_OLD { Err(endless()) } else { Ok(()) }
    }
}

fn endless() -> String {
    "the switch names more flows or groups of ours than there can be".to_owned()
}

/// The client of a connection's flow.
fn client_of(matches: &crate::wire::Match) -> Option<Client> {
    let port = matches.get(Kind::TCP_SRC).or_else(|| matches.get(Kind::UDP_SRC))?;
    Some(Client { ip: matches.source()?, port: port as u16 })
}

/// The backend of a flow that lets its own connections pass: it sends what the flow is for.
fn backend_of(matches: &crate::wire::Match) -> Option<Backend> {
    Some((client_of(matches)?, matches.get(Kind::IP_PROTO)? as u8))
}

/// What a frame shows of its connection.
struct Seen {
    from: Client,
    to: Client,
    protocol: u8,
    /// It may begin one: a SYN, or any datagram.
    is_new: bool,
    /// It is the answer to a SYN.
    is_first_answer: bool,
}

impl Seen {
    fn of(frame: &[u8]) -> Option<Seen> {
        let layout = parse(frame).ok()?;
        let protocol = match layout.l4 {
            L4::Tcp => protocol::TCP,
            L4::Udp => protocol::UDP,
            _ => return None,
        };
        let [from, to] = FlowKey::of(frame, &layout)?.ends().map(|(ip, port)| Client { ip, port });
        const BOTH: u8 = tcp_flags::SYN | tcp_flags::ACK;
        let begins = Tcp::of(frame, &layout).map_or(0, Tcp::flags) & BOTH;
        let is_new = layout.l4 == L4::Udp || begins == tcp_flags::SYN;
        Some(Seen { from, to, protocol, is_new, is_first_answer: begins == BOTH })
    }

    /// What matches frames of the same direction.
    fn fields(&self) -> Vec<Field> {
        vec![
            Version::of(self.from.ip).packets(),
            Field::new(Kind::IP_PROTO, self.protocol),
            Field::source(self.from.ip),
            Field::target(self.to.ip),
            Field::new(port_kind(self.protocol, true), self.from.port),
            Field::new(port_kind(self.protocol, false), self.to.port),
        ]
    }
}

#[cfg(test)]
mod tests;
