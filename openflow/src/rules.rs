//! Which flows and groups a switch is to have.
//!
//! All of ours have a cookie that begins alike, so that others' flows are never touched. The rest
//! of a rule's cookie is a hash of what it does: a restarted controller finds out what is missing
//! and what is old by cookies alone. The rest of the cookie of a connection's flow names service
//! and backend in the same way. Where two hashes are one, the next number is the second one's.
//!
//! | table | priority | frames | what becomes of them |
//! |---|---|---|---|
//! | 0 | 60 040 to 60 042 | ARP, neighbour discovery and echo requests for a service | the switch answers |
//! | 0 | 60 030 | one connection (`reactive`) | translated, forwarded as usual |
//! | 0 | 60 021 | a backend's answers to what the service asks it (`hash`) | to the controller |
//! | 0 | 60 020 | for a service's port, or from a backend's | to the controller, or to conntrack (`hash`) |
//! | 0 | 60 010 | others for a service, or in its name | dropped |
//! | 0 | 1 | all others | forwarded as usual |
//! | 1 | | tracked | new ones to the group, answers get the service's addresses |
//! | 2 | 60 030 | for a backend whose connections end (`hash`) | to the controller |
//! | 2 | | for a backend | its Ethernet address |
//! | 3 | | answers of neighbour discovery | the service's Ethernet address |

mod answers;
pub(crate) mod version;

use crate::wire::{
    Action, Bucket, Field, FlowCommand, FlowMod, Instruction, Kind, Match, Nat, PacketOut, WHOLE, flag, port,
};
use control::config::openflow::{Mode, OpenFlow};
use control::config::{Backend, Service};
use datapath::random::Keyed;
use datapath::service::{Address, WhenDown};
use datapath::wire::{Mac, protocol, tcp_flags};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, Hash};
use std::net::{IpAddr, Ipv4Addr};
use version::Version;

/// The bits of a cookie that say that a flow is ours.
pub const OURS: u64 = 0xffff_ffff_0000_0000;
/// What they begin with: "LV".
const MAGIC: u64 = 0x4c56 << 48;
/// The flow is of one connection.
const CONNECTION: u64 = 1 << 31;
/// It is for the backend's answers.
const ANSWER: u64 = 1 << 30;
const TARGET: u64 = ANSWER - 1;
/// Buckets of a group: as many as Open vSwitch has hash values where nothing else is said, so that
/// it is the dealing here that decides (ofproto-dpif.c, group_setup_dp_hash_table).
pub const PLACES: usize = 256;

const ANSWERED: u16 = 60_040;
const OF_CONNECTION: u16 = 60_030;
const PROBED: u16 = 60_021;
const BALANCED: u16 = 60_020;
const DROPPED: u16 = 60_010;
const OTHERS: u16 = 1;
/// Tables behind connection tracking.
const TRACKED: u8 = 1;
const CHOSEN: u8 = 2;
/// Where a solicitation of a neighbour has become an advertisement.
const NEIGHBOURS: u8 = 3;
/// States of connection tracking (ovs-fields(7), ct_state).
const NEW: u32 = 1 << 0;
const ESTABLISHED: u32 = 1 << 1;
const RELATED: u32 = 1 << 2;
const INVALID: u32 = 1 << 4;
const IS_TRACKED: u32 = 1 << 5;
/// Seconds that a connection's flows stay behind a FIN or RST.
const FIN_TIMEOUT_S: u16 = 1;

/// Where a service is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    /// Its service.
    pub service: usize,
    /// The address.
    pub ip: IpAddr,
    /// TCP or UDP.
    pub protocol: u8,
    /// The port.
    pub port: u16,
    /// Its Ethernet address.
    pub mac: Mac,
}

impl Front {
    /// Its address and port.
    pub(crate) fn at(&self) -> Client {
        Client { ip: self.ip, port: self.port }
    }
}

/// A backend, as a front's connections reach it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// Its address.
    pub ip: IpAddr,
    /// The port it listens at.
    pub port: u16,
    /// Its Ethernet address.
    pub mac: Mac,
}

impl Target {
    /// Its address and port.
    pub(crate) fn at(&self) -> Client {
        Client { ip: self.ip, port: self.port }
    }
}

/// One end of a connection: the client's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Client {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
}

/// What a group spreads.
#[derive(Clone, Copy, Debug)]
struct Dealt {
    front: usize,
    zone: u16,
}

/// What a switch is to have.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What the cookies of all flows begin with.
    pub owner: u64,
    /// Flows that do not depend on connections.
    pub flows: Vec<FlowMod>,
    /// Groups, by number.
    pub groups: BTreeMap<u32, Vec<Bucket>>,
    /// What they are made of.
    dealt: BTreeMap<u32, Dealt>,
    /// Services, and below each its backends' weights.
    weights: Vec<Vec<u32>>,
    /// The same, what a new connection gets where none takes it.
    when_down: Vec<WhenDown>,
    /// The same, how they are called.
    called: Vec<Vec<String>>,
    /// Where services are reached.
    pub fronts: Vec<Front>,
    /// By front, its backends.
    pub targets: Vec<Vec<Target>>,
    /// By front, what the cookies of its backends' connections say.
    names: Vec<Vec<u64>>,
    /// By what a connection's cookie says: front and backend.
    named: HashMap<u64, (usize, usize)>,
    /// Where the flow with a table and cookie is.
    places: HashMap<(u8, u64), usize>,
    /// Flows that count a backend's new connections, by cookie: service and backend.
    pub counters: HashMap<u64, (usize, usize)>,
    idle_timeout_s: u16,
}

impl Rules {
    /// Those of a configuration, which has no errors.
    #[must_use]
    pub fn of(config: &OpenFlow) -> Rules {
        let instance = Keyed::new(0).hash_one(&config.name) & 0x7fff;
        let mut rules = Rules {
            owner: MAGIC | instance << 32,
            flows: Vec::new(),
            groups: BTreeMap::new(),
            dealt: BTreeMap::new(),
            weights: config.services.iter().map(|service| weights(&service.backends)).collect(),
            when_down: config.services.iter().map(|service| service.when_down).collect(),
            called: config.services.iter().map(called).collect(),
            fronts: Vec::new(),
            targets: Vec::new(),
            names: Vec::new(),
            named: HashMap::new(),
            places: HashMap::new(),
            counters: HashMap::new(),
            idle_timeout_s: config.idle_timeout_s,
        };
        for (s, service) in config.services.iter().enumerate() {
            let mac = service.mac(&config.name);
            for address in &service.addresses {
                let Address { ip, protocol, port } = address.0;
                let front = Front { service: s, ip, protocol, port, mac };
                rules.add_front(front, service);
            }
        }
        rules.add_answers(config);
        match config.mode {
            Mode::Reactive => rules.add_reactive(),
            Mode::Hash => rules.add_hash(config, instance as u32),
        }
        if config.normal {
            rules.add(0, OTHERS, [], [normal()]);
        }
        rules
    }

    fn add_front(&mut self, front: Front, service: &Service) {
        let targets: Vec<Target> = service.backends.iter().map(|backend| target(backend, &front)).collect();
        let mut names = Vec::new();
        for (b, target) in targets.iter().enumerate() {
            // 0 is what passes.
            let free = |name: &u64| *name != 0 && !self.named.contains_key(name);
            let name = steps(name(&front, target), TARGET).find(free).unwrap_or(0);
            self.named.insert(name, (self.fronts.len(), b));
            names.push(name);
        }
        self.names.push(names);
        self.fronts.push(front);
        self.targets.push(targets);
    }

    /// A flow that is there as long as the configuration is.
    fn add(&mut self, table: u8, priority: u16, fields: impl Into<Vec<Field>>, actions: impl Into<Vec<Action>>) {
        let actions = actions.into();
        let instructions = if actions.is_empty() { Vec::new() } else { vec![Instruction::Apply(actions)] };
        self.add_with(table, priority, fields, instructions);
    }

    fn add_with(
        &mut self,
        table: u8,
        priority: u16,
        fields: impl Into<Vec<Field>>,
        instructions: Vec<Instruction>,
    ) -> u64 {
        let matches = Match::of(fields);
        let hash = Keyed::new(0).hash_one((table, priority, &matches, &instructions));
        self.put(FlowMod {
            command: FlowCommand::Add,
            cookie: self.owner | hash & (CONNECTION - 1),
            cookie_mask: 0,
            table,
            idle_timeout_s: 0,
            priority,
            flags: 0,
            matches,
            instructions,
        })
    }

    /// Adds a flow, once: two services may have one backend. Its cookie, which is another where
    /// another flow has it.
    fn put(&mut self, mut flow: FlowMod) -> u64 {
        for step in steps(flow.cookie, CONNECTION - 1) {
            flow.cookie = self.owner | step;
            match self.places.get(&(flow.table, flow.cookie)) {
                Some(&at) if self.flows[at] == flow => break,
                Some(_) => {}
                None => {
                    self.places.insert((flow.table, flow.cookie), self.flows.len());
                    self.flows.push(flow.clone());
                    break;
                }
            }
        }
        flow.cookie
    }

    /// The first frame of each connection comes here; so does what a backend sends on a connection
    /// whose flows have gone.
    fn add_reactive(&mut self) {
        let ask = || [Action::Output(port::CONTROLLER, WHOLE)];
        for at in 0..self.fronts.len() {
            let front = self.fronts[at];
            self.add(0, BALANCED, to_front(&front), ask());
            for target in self.targets[at].clone() {
                self.add(0, BALANCED, from_target(&front, &target), ask());
            }
        }
    }

    /// Connection tracking translates and keeps each connection where it is; only new ones see the
    /// group.
    fn add_hash(&mut self, config: &OpenFlow, instance: u32) {
        let zone = (instance as u16).max(1);
        let track = || [Action::Ct { commits: false, zone, table: Some(TRACKED), nat: Some(Nat::Known) }];
        let state = |set, unset| Field::bits(Kind::CT_STATE, set, unset);
        for at in 0..self.fronts.len() {
            let front = self.fronts[at];
            let targets = self.targets[at].clone();
            let version = Version::of(front.ip);
            self.add(0, BALANCED, to_front(&front), track());
            for &kind in version.errors {
                self.add(0, BALANCED, error(Field::target(front.ip), version, kind), track());
            }
            let id = self.group_id(instance, &front);
            let new = [&[state(NEW | IS_TRACKED, INVALID)][..], &to_front(&front)].concat();
            self.add(TRACKED, BALANCED, new, [Action::Group(id)]);
            // What belongs to no connection gets no further; answers get the service's address.
            self.add(TRACKED, DROPPED, [state(IS_TRACKED, 0), version.packets(), Field::target(front.ip)], []);
            let answer = [Action::Set(Field::mac(Kind::ETH_SRC, front.mac)), normal()];
            let of_front = [state(IS_TRACKED, INVALID), version.packets(), Field::source(front.ip)];
            self.add(TRACKED, DROPPED - 1, of_front, answer);
            let tracked = [state(IS_TRACKED, 0), version.packets()];
            self.add_with(TRACKED, OTHERS, tracked, vec![Instruction::Goto(CHOSEN)]);
            self.dealt.insert(id, Dealt { front: at, zone });
            self.groups.insert(id, self.buckets(id, |_, _| true));
            for (b, target) in targets.iter().enumerate() {
                if config.probe_ns > 0 && front.protocol == protocol::TCP {
                    let mut answers = from_target(&front, target);
                    answers.insert(3, Field::target(front.ip));
                    self.add(0, PROBED, answers, [Action::Output(port::CONTROLLER, WHOLE)]);
                }
                self.add(0, BALANCED, from_target(&front, target), track());
                for &kind in version.errors {
                    self.add(0, BALANCED, error(Field::source(target.ip), version, kind), track());
                }
                let to = Field::target(target.ip);
                let forward =
                    || vec![Instruction::Apply(vec![Action::Set(Field::mac(Kind::ETH_DST, target.mac)), normal()])];
                self.add_with(CHOSEN, DROPPED, [version.packets(), to], forward());
                let counted =
                    [&[state(NEW | IS_TRACKED, RELATED)][..], &with_port(&front, to, false, target.port)].concat();
                let cookie = self.add_with(CHOSEN, BALANCED, counted, forward());
                self.counters.insert(cookie, (front.service, b));
            }
        }
        // What a backend sends on a connection of its own.
        self.add(CHOSEN, OTHERS, [], [normal()]);
    }

    /// Whether a new connection of a service is refused where no backend takes it.
    pub(crate) fn refuses(&self, service: usize) -> bool {
        self.when_down.get(service) == Some(&WhenDown::Reset)
    }

    /// Lets segments of a front's connections to a backend come to the controller, or no longer:
    /// where connections have flows, these are removed.
    pub(crate) fn end(&self, mode: Mode, front: usize, backend: usize, is_lost: bool) -> Option<FlowMod> {
        let cookie = self.owner | CONNECTION | self.names.get(front)?.get(backend)?;
        let (front, target) = self.pair(front, backend)?;
        match mode {
            Mode::Reactive => is_lost.then(|| FlowMod { cookie_mask: !ANSWER, ..delete(0, cookie) }),
            Mode::Hash if front.protocol != protocol::TCP => None,
            Mode::Hash if !is_lost => Some(delete(CHOSEN, cookie)),
            Mode::Hash => {
                let state = Field::bits(Kind::CT_STATE, IS_TRACKED | ESTABLISHED, 0);
                let mut fields =
                    [&[state], &with_port(front, Field::target(target.ip), false, target.port)[..]].concat();
                // Another service's connections to the same backend are not this one's.
                fields.extend([Field::first_target(front.ip), Field::new(Kind::CT_TP_DST, front.port)]);
                fields.push(Field::bits(Kind::TCP_FLAGS, 0, tcp_flags::RST.into()));
                let instructions = vec![Instruction::Apply(vec![Action::Output(port::CONTROLLER, WHOLE)])];
                Some(FlowMod {
                    command: FlowCommand::Add,
                    priority: OF_CONNECTION,
                    matches: Match::of(fields),
                    instructions,
                    ..delete(CHOSEN, cookie)
                })
            }
        }
    }

    /// A backend's name.
    pub(crate) fn called(&self, (service, backend): (usize, usize)) -> &str {
        self.called.get(service).and_then(|all| all.get(backend)).map_or("", String::as_str)
    }

    /// Places of a group, dealt to those backends of its service that `takes` names.
    #[must_use]
    pub fn buckets(&self, id: u32, takes: impl Fn(usize, usize) -> bool) -> Vec<Bucket> {
        let Some(&Dealt { front, zone }) = self.dealt.get(&id) else { return Vec::new() };
        let (service, targets) = (self.fronts[front].service, &self.targets[front]);
        let weights = self.weights[service].iter().enumerate();
        let weights: Vec<u32> = weights.map(|(b, &weight)| if takes(service, b) { weight } else { 0 }).collect();
        let bucket = |b: usize| {
            let nat = Some(Nat::To(targets[b].ip, targets[b].port));
            Bucket { weight: 1, actions: vec![Action::Ct { commits: true, zone, table: Some(CHOSEN), nat }] }
        };
        let buckets: Vec<Bucket> = deal(&weights, targets).into_iter().map(bucket).collect();
        if buckets.is_empty() && self.refuses(service) {
            return vec![Bucket { weight: 1, actions: vec![Action::Output(port::CONTROLLER, WHOLE)] }];
        }
        buckets
    }

    /// A number that a front keeps over restarts.
    fn group_id(&self, instance: u32, front: &Front) -> u32 {
        let hash = Keyed::new(0).hash_one((front.ip, front.protocol, front.port)) as u16;
        let ids = (0..=u16::MAX).map(|step| instance << 16 | u32::from(hash.wrapping_add(step)));
        let mut free = ids.filter(|id| !self.groups.contains_key(id));
        free.next().unwrap_or(instance << 16)
    }

    /// Whether a group is ours.
    #[must_use]
    pub fn has_group(&self, id: u32) -> bool {
        u64::from(id >> 16) == self.owner >> 32 & 0x7fff
    }

    /// Whether a cookie is that of a connection's flow, or of all connections of a backend that
    /// end: its front and backend, where they are known, and whether the flow is for the backend's
    /// answers.
    #[must_use]
    pub fn connection_of(&self, cookie: u64) -> Option<(Option<(usize, usize)>, bool)> {
        let is_one = cookie & OURS == self.owner && cookie & CONNECTION != 0;
        is_one.then(|| (self.named.get(&(cookie & TARGET)).copied(), cookie & ANSWER != 0))
    }

    /// Whether a backend listens there.
    #[must_use]
    pub fn has_target(&self, at: Client, protocol: u8) -> bool {
        let mut all = self.fronts.iter().zip(&self.targets).filter(|(front, _)| front.protocol == protocol);
        all.any(|(_, targets)| targets.iter().any(|target| (target.ip, target.port) == (at.ip, at.port)))
    }

    /// The front with an address.
    pub(crate) fn front_at(&self, to: Client, protocol: u8) -> Option<usize> {
        self.fronts.iter().position(|front| (front.at(), front.protocol) == (to, protocol))
    }

    /// A front and its backend.
    pub(crate) fn pair(&self, front: usize, backend: usize) -> Option<(&Front, &Target)> {
        Some((self.fronts.get(front)?, self.targets.get(front)?.get(backend)?))
    }

    /// The flows of a connection, the one for answers first.
    #[must_use]
    pub fn flows_of(&self, front: usize, backend: usize, client: Client) -> Option<[FlowMod; 2]> {
        let (one, target) = self.pair(front, backend)?;
        let cookie = self.owner | CONNECTION | self.names.get(front)?.get(backend)?;
        let flow = |cookie, flags, fields, actions| FlowMod {
            command: FlowCommand::Add,
            cookie,
            cookie_mask: 0,
            table: 0,
            idle_timeout_s: self.idle_timeout_s,
            priority: OF_CONNECTION,
            flags,
            matches: Match::of(fields),
            instructions: vec![Instruction::Apply(actions)],
        };
        let mut answers = from_target(one, target);
        answers.insert(3, Field::target(client.ip));
        answers.push(Field::new(port_kind(one.protocol, false), client.port));
        let mut asks = to_front(one);
        asks.insert(2, Field::source(client.ip));
        asks.push(Field::new(port_kind(one.protocol, true), client.port));
        Some([
            flow(cookie | ANSWER, 0, answers, back(one, target)),
            flow(cookie, flag::SEND_REMOVED, asks, there(one, target)),
        ])
    }

    /// A connection's frame goes on from the controller, to the backend or back from it.
    #[must_use]
    pub fn send(
        &self,
        front: usize,
        backend: usize,
        is_answer: bool,
        in_port: u32,
        data: Vec<u8>,
    ) -> Option<PacketOut> {
        let (front, target) = self.pair(front, backend)?;
        let actions = if is_answer { back(front, target) } else { there(front, target) };
        Some(PacketOut { in_port, actions, data })
    }

    /// Whether a cookie is that of a flow of [`Rules::pass`].
    #[must_use]
    pub fn is_passed(&self, cookie: u64) -> bool {
        cookie == self.owner | CONNECTION | ANSWER
    }

    /// A frame that is no connection's of ours goes on untouched, and what follows it as well.
    #[must_use]
    pub fn pass(&self, fields: Vec<Field>) -> FlowMod {
        FlowMod {
            command: FlowCommand::Add,
            cookie: self.owner | CONNECTION | ANSWER,
            cookie_mask: 0,
            table: 0,
            idle_timeout_s: self.idle_timeout_s,
            priority: OF_CONNECTION,
            flags: flag::SEND_REMOVED,
            matches: Match::of(fields),
            instructions: vec![Instruction::Apply(vec![normal()])],
        }
    }
}

/// All flows of a table with a cookie go.
pub(crate) fn delete(table: u8, cookie: u64) -> FlowMod {
    FlowMod {
        command: FlowCommand::Delete,
        cookie,
        cookie_mask: u64::MAX,
        table,
        idle_timeout_s: 0,
        priority: 0,
        flags: 0,
        matches: Match::default(),
        instructions: Vec::new(),
    }
}

/// As a learning switch forwards.
#[must_use]
pub fn normal() -> Action {
    Action::Output(port::NORMAL, 0)
}

/// A backend as the connections of a front reach it, by its address of the same version.
fn target(backend: &Backend, front: &Front) -> Target {
    let ip = backend.ips.iter().copied().find(|ip| ip.is_ipv4() == front.ip.is_ipv4());
    Target {
        ip: ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        port: backend.port.unwrap_or(front.port),
        mac: backend.mac.unwrap_or_default(),
    }
}

/// All numbers below `mask`, which has ones only, from that of `first` on.
fn steps(first: u64, mask: u64) -> impl Iterator<Item = u64> {
    (0..=mask).map(move |step| first.wrapping_add(step) & mask)
}

/// What a connection's cookie says of front and backend.
fn name(front: &Front, target: &Target) -> u64 {
    Keyed::new(0).hash_one((front.ip, front.protocol, front.port, front.mac, target)) & TARGET
}

/// Where a transport protocol has its source or destination port.
pub(crate) fn port_kind(protocol: u8, is_source: bool) -> Kind {
    match (protocol == protocol::UDP, is_source) {
        (false, true) => Kind::TCP_SRC,
        (false, false) => Kind::TCP_DST,
        (true, true) => Kind::UDP_SRC,
        (true, false) => Kind::UDP_DST,
    }
}

fn with_port(front: &Front, address: Field, is_source: bool, port: u16) -> Vec<Field> {
    let protocol = Field::new(Kind::IP_PROTO, front.protocol);
    let packets = Version::of(front.ip).packets();
    vec![packets, protocol, address, Field::new(port_kind(front.protocol, is_source), port)]
}

fn to_front(front: &Front) -> Vec<Field> {
    with_port(front, Field::target(front.ip), false, front.port)
}

fn from_target(front: &Front, target: &Target) -> Vec<Field> {
    with_port(front, Field::source(target.ip), true, target.port)
}

fn error(address: Field, version: &Version, kind: u8) -> Vec<Field> {
    let [is_icmp, kind] = version.icmp(kind);
    vec![version.packets(), is_icmp, address, kind]
}

/// What a client's frame becomes for a backend.
fn there(front: &Front, target: &Target) -> Vec<Action> {
    let mut actions = vec![Action::Set(Field::mac(Kind::ETH_DST, target.mac)), Action::Set(Field::target(target.ip))];
    if target.port != front.port {
        actions.push(Action::Set(Field::new(port_kind(front.protocol, false), target.port)));
    }
    end(front, actions)
}

/// What a backend's frame becomes for a client.
fn back(front: &Front, target: &Target) -> Vec<Action> {
    let mut actions = vec![Action::Set(Field::mac(Kind::ETH_SRC, front.mac)), Action::Set(Field::source(front.ip))];
    if target.port != front.port {
        actions.push(Action::Set(Field::new(port_kind(front.protocol, true), front.port)));
    }
    end(front, actions)
}

fn end(front: &Front, mut actions: Vec<Action>) -> Vec<Action> {
    if front.protocol == protocol::TCP {
        actions.push(Action::FinTimeout(FIN_TIMEOUT_S));
    }
    actions.push(normal());
    actions
}

fn called(service: &Service) -> Vec<String> {
    service.backends.iter().map(|backend| format!("{}/{}", service.name, backend.name)).collect()
}

fn weights(backends: &[Backend]) -> Vec<u32> {
    backends.iter().map(|backend| backend.weight).collect()
}

/// Which backend has which place: each as many as its weight says, to within one, and each as far
/// as possible where it was before others came or went (rendezvous hashing under quotas). Empty
/// where none takes connections.
fn deal(weights: &[u32], targets: &[Target]) -> Vec<usize> {
    let sum: u64 = weights.iter().copied().map(u64::from).sum();
    if sum == 0 {
        return Vec::new();
    }
    // Largest remainders: whole parts first, then one each to those that lack most.
    let part = |weight: u32| PLACES as u64 * u64::from(weight);
    let mut left: Vec<u64> = weights.iter().map(|&weight| part(weight) / sum).collect();
    let mut by_rest: Vec<usize> = (0..weights.len()).collect();
    by_rest.sort_by_key(|&b| std::cmp::Reverse(part(weights[b]) % sum));
    let missing = PLACES - left.iter().sum::<u64>() as usize;
    by_rest.iter().take(missing).for_each(|&b| left[b] += 1);
    let keyed = Keyed::new(0);
    let mut wishes: Vec<(u64, usize, usize)> = (0..PLACES)
        .flat_map(|place| (0..weights.len()).map(move |b| (place, b)))
        .map(|(place, b)| (keyed.hash_one((targets[b], place)), place, b))
        .collect();
    wishes.sort_unstable();
    let mut places = vec![None; PLACES];
    for (_, place, b) in wishes {
        if left[b] > 0 && places[place].is_none() {
            places[place] = Some(b);
            left[b] -= 1;
        }
    }
    places.into_iter().flatten().collect()
}

#[cfg(test)]
pub(crate) mod tests;
