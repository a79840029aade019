//! Which backend a connection has: the policies, and the connections that are remembered.
//!
//! A connection is *live* while the switch has its flows, and then *remembered* for
//! [`REMEMBERED_NS`], so that one that was idle goes on where it was. The table is bounded; one
//! client has at most half of it. Of a switch that has left, connections are live for as long as
//! their flows may be there without a frame. Where the backend of a connection is down and its
//! service ends such connections, it is *cut* when its next segment comes.

mod renewal;
mod stays;
mod taken;

use crate::rules::{Client, Rules};
use control::config::openflow::OpenFlow;
use datapath::random::Keyed;
use datapath::service::OnFailure;
use datapath::service::choose::{Chooser, Load, Policy, REPORT_PERIODS, Report, is_in_panic};
use datapath::service::maglev::{Lookup, Seat};
use datapath::table::{Id, Table};
use datapath::units::Instant;
use stays::Stays;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::net::{IpAddr, Ipv6Addr};
use taken::{Taken, Targets};

/// How long a connection without flows is remembered, in nanoseconds: as the published
/// controller's framework does with its own example of a balancer (POX, ip_loadbalancer).
pub const REMEMBERED_NS: u64 = 300 * 1_000_000_000;
/// How long frames may still come to the controller after flows were sent: Open vSwitch's datapath
/// goes on as before until it has looked at all its flows again (ofproto-dpif-upcall.c,
/// max-revalidator of 500 ms).
const SETTLING_NS: u64 = 1_000_000_000;
/// Entries forgotten at a time, so that one frame does not wait for all of them.
const AT_ONCE: usize = 64;
/// Switches that are known at a time, those that have left included.
const MOST_SWITCHES: usize = 128;
/// Lists of the table.
const LIVE: u32 = 0;
const REMEMBERED: u32 = 1;

/// A connection, as a client's frame shows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// The front that it is to.
    pub front: usize,
    /// Where it comes from.
    pub client: Client,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    backend: usize,
    /// Which switch has its flows, and as of which of its reports.
    switch: u64,
    round: u64,
    /// Both ends were told that it is over.
    is_cut: bool,
}

/// Whether a switch is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Here,
    /// Its connections are live still.
    Left(Instant),
    /// None of its connections is live any more.
    Gone(Instant),
}

/// A switch that is connected, or was.
#[derive(Debug)]
struct Switch {
    presence: Presence,
    /// What each of its flows has counted, by cookie.
    counted: HashMap<u64, u64, Keyed>,
    /// What it says of backends that it has asked: whether they are up.
    seen: BTreeMap<(usize, usize), bool>,
}

/// What one backend has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Connections that it got.
    pub new: u64,
    /// Those whose flows are there.
    pub live: u32,
    /// The load average that it reported last, in thousandths.
    pub load_milli: Option<u64>,
    /// It does not answer.
    pub is_down: bool,
    /// Connections that ended since it did not.
    pub cut: u64,
}

/// What one service has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Total {
    /// Connections without a backend.
    pub refused: u64,
    /// Connections for which the table had no room.
    pub full: u64,
    /// Connections that were forgotten before their time, for new ones.
    pub evicted: u64,
    /// Connections that went where their client was, by affinity.
    pub stayed: u64,
}

#[derive(Debug)]
struct Running {
    /// Its backends, by name.
    called: Vec<String>,
    policy: Policy,
    chooser: Chooser,
    loads: Vec<Load>,
    reported: Vec<Option<Instant>>,
    is_down: Vec<bool>,
    /// Too little of the weight is well for that to say anything.
    ignores_health: bool,
    panic_ppm: u32,
    on_failure: OnFailure,
    cut: Vec<u64>,
    period_ns: u64,
    lookup: Lookup,
    new: Vec<u64>,
    total: Total,
}

/// See the module.
#[derive(Debug)]
pub struct Balancer {
    services: Vec<Running>,
    /// By front, its service.
    service_of: Vec<usize>,
    targets: Targets,
    connections: Table<Key, Connection>,
    stays: Stays,
    /// Of an IPv6 client, by its network of 64 bits.
    of_client: HashMap<IpAddr, u32, Keyed>,
    of_switch: HashMap<u64, u32, Keyed>,
    switches: BTreeMap<u64, Switch>,
    /// How long flows stay without a frame.
    idle_ns: u64,
    keyed: Keyed,
    most: u32,
    seed: u64,
    /// Counts changes of who takes connections.
    health: u64,
}

/// Where a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Its backend.
    pub backend: usize,
    /// Its flows were sent just now.
    pub is_set_up: bool,
}

/// Why a connection gets no backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// None takes connections.
    NoBackend,
    /// The table is full of live connections, or the client's part of it.
    Full,
    /// From the client's port there are live connections, to other services, at all backends that
    /// were tried.
    Taken,
    /// It is over: its backend, which is this, is down.
    Cut(usize),
}

impl Balancer {
    /// One without connections. `seed` is secret.
    #[must_use]
    pub fn new(config: &OpenFlow, rules: &Rules, seed: u64) -> Balancer {
        let identities = Keyed::new(0);
        let services = config.services.iter().enumerate().map(|(s, service)| {
            let front = rules.fronts.iter().position(|front| front.service == s);
            let targets = front.map_or(&[][..], |front| &rules.targets[front]);
            let load = |weight, cores| Load { takes: true, weight, cores, ..Load::default() };
            let seats: Vec<Seat> = (0u8..)
                .zip(&service.backends)
                .zip(targets)
                .map(|((number, backend), target)| Seat {
                    number,
                    identity: identities.hash_one((target.ip, target.port)),
                    weight: backend.weight,
                })
                .collect();
            Running {
                called: (0..service.backends.len()).map(|b| rules.called((s, b)).to_owned()).collect(),
                policy: service.policy,
                chooser: Chooser::new(seed.wrapping_add(s as u64)),
                loads: service.backends.iter().map(|backend| load(backend.weight, backend.cores)).collect(),
                reported: vec![None; service.backends.len()],
                is_down: vec![false; service.backends.len()],
                ignores_health: false,
                panic_ppm: service.panic_ppm,
                on_failure: service.on_failure,
                cut: vec![0; service.backends.len()],
                period_ns: service.report_period_ns,
                // The same after each restart and at each controller of this configuration.
                lookup: Lookup::build(&seats, &identities),
                new: vec![0; service.backends.len()],
                total: Total::default(),
            }
        });
        let times_ns = config.services.iter().map(|service| if service.affinity { service.affinity_ns } else { 0 });
        Balancer {
            services: services.collect(),
            stays: Stays::new(times_ns.collect(), seed.rotate_left(51)),
            service_of: rules.fronts.iter().map(|front| front.service).collect(),
            targets: Targets::of(rules),
            connections: Table::new(Keyed::new(seed), config.connections),
            of_client: HashMap::with_hasher(Keyed::new(seed.rotate_left(17))),
            of_switch: HashMap::with_hasher(Keyed::new(seed.rotate_left(34))),
            switches: BTreeMap::new(),
            idle_ns: u64::from(config.idle_timeout_s) * 1_000_000_000,
            keyed: identities,
            most: config.connections,
            seed,
            health: 0,
        }
    }

    /// A switch of this number has connected. False where one is connected already, or too many
    /// are.
    #[must_use]
    pub fn join(&mut self, now: Instant, switch: u64) -> bool {
        if let Some(known) = self.switches.get_mut(&switch) {
            return std::mem::replace(&mut known.presence, Presence::Here) != Presence::Here;
        }
        if self.switches.len() >= MOST_SWITCHES {
            let since = |(_, switch): &(&u64, &Switch)| match switch.presence {
                Presence::Here => None,
                Presence::Left(at) | Presence::Gone(at) => Some(at),
            };
            let away = self.switches.iter().filter(|one| since(one).is_some());
            let Some((&oldest, _)) = away.min_by_key(since) else { return false };
            self.reported(now, oldest, now.0.max(1));
            self.switches.remove(&oldest);
        }
        let counted = HashMap::with_hasher(self.keyed);
        let seen = BTreeMap::new();
        self.switches.insert(switch, Switch { presence: Presence::Here, counted, seen });
        true
    }

    /// It has left.
    pub fn leave(&mut self, now: Instant, switch: u64) {
        if let Some(here) = self.switches.get_mut(&switch) {
            here.presence = Presence::Left(now);
            self.asks_no_more(switch);
        }
    }

    /// A switch does not ask backends any more: what it has found says nothing of them now.
    pub(crate) fn asks_no_more(&mut self, switch: u64) {
        if let Some(known) = self.switches.get_mut(&switch) {
            let seen = std::mem::take(&mut known.seen);
            seen.into_keys().for_each(|(service, backend)| self.settle(service, backend));
        }
    }

    /// A secret that all of this controller's are made from.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Changes when who takes connections does.
    pub(crate) fn health(&self) -> u64 {
        self.health
    }

    /// A switch has found a backend to be up, or down. Down is who is that for all who have asked.
    /// True where that changes who is down.
    pub(crate) fn found(&mut self, switch: u64, (service, backend): (usize, usize), is_up: bool) -> bool {
        let Some(here) = self.switches.get_mut(&switch) else { return false };
        if here.seen.insert((service, backend), is_up) == Some(is_up) {
            return false;
        }
        let before = self.services.get(service).and_then(|one| one.is_down.get(backend).copied());
        self.settle(service, backend);
        before != self.services.get(service).and_then(|one| one.is_down.get(backend).copied())
    }

    /// Where nobody has an opinion, what was known stays so until somebody has asked.
    fn settle(&mut self, service: usize, backend: usize) {
        let seen = self.switches.values().filter_map(|switch| switch.seen.get(&(service, backend)));
        let Some(is_up) = seen.copied().reduce(|one, other| one || other) else { return };
        if let Some(down) = self.services.get_mut(service).and_then(|one| one.is_down.get_mut(backend)) {
            *down = !is_up;
        }
        self.weigh(service);
    }

    /// Who takes connections, by who is down. Where too few answer, that says more of who asks; but
    /// not where it ends connections: what would be given to such a backend would end as well.
    fn weigh(&mut self, service: usize) {
        let Some(one) = self.services.get_mut(service) else { return };
        let health = one.loads.iter().zip(&one.is_down).map(|(load, &is_down)| (load.weight, !is_down));
        one.ignores_health = one.on_failure == OnFailure::Keep && is_in_panic(health, one.panic_ppm);
        for (load, &is_down) in one.loads.iter_mut().zip(&one.is_down) {
            let takes = one.ignores_health || !is_down;
            self.health += u64::from(load.takes != takes);
            load.takes = takes;
        }
    }

    /// The backend of a connection of which the switch has no flows. `is_new` where the frame
    /// begins one: a SYN, or a frame of UDP that is of none that goes on.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn choose(&mut self, now: Instant, switch: u64, key: Key, is_new: bool) -> Result<Assignment, Refused> {
        self.age(now);
        if let Some(id) = self.connections.find(&key) {
            let is_live = self.connections.list(id) == Some(LIVE);
            let (backend, is_cut) = self.connections.get(id).map_or((0, false), |at| (at.backend, at.is_cut));
            let is_over = is_cut || self.service_of.get(key.front).is_some_and(|&s| self.is_lost(s, backend));
            if is_over && !is_new {
                self.cut(now, id);
                return Err(Refused::Cut(backend));
            }
            // A live one was asked again before its flows were there. Of those that are remembered,
            // a SYN begins another.
            if !is_over && (is_live || !is_new) {
                let is_set_up = is_live && self.connections.seen(id).is_some_and(|at| now.since(at) < SETTLING_NS);
                if !is_live {
                    self.revive(now, switch, id, key, backend);
                } else if !is_set_up {
                    self.connections.touch(now, id, LIVE);
                }
                return Ok(Assignment { backend, is_set_up });
            }
            self.remove(id);
        }
        let stays = self.stays_at(now, key, is_new);
        let is_free = |at: &usize| !is_new || self.taken(key, *at) == Taken::Free;
        let (stays, is_taken) = (stays.filter(is_free), stays.is_some_and(|at| !is_free(&at)));
        let backend = match stays {
            Some(at) => Some(at),
            None if is_new => self.pick(now, key)?,
            None => self.candidate(key),
        };
        let is_lost = |at: &usize| !is_new && self.service_of.get(key.front).is_some_and(|&s| self.is_lost(s, *at));
        if let Some(backend) = backend.filter(is_lost) {
            return Err(Refused::Cut(backend));
        }
        let service = self.service_of.get(key.front).and_then(|&s| self.services.get_mut(s));
        let service = service.ok_or(Refused::NoBackend)?;
        service.total.stayed += u64::from(is_new && stays.is_some());
        let Some(backend) = backend else {
            service.total.refused += 1;
            return Err(Refused::NoBackend);
        };
        if !self.make_room(key) {
            let service = &mut self.services[self.service_of[key.front]];
            service.total.full += 1;
            return Err(Refused::Full);
        }
        let service = &mut self.services[self.service_of[key.front]];
        service.new[backend] += u64::from(is_new);
        if let Some(report) = &mut service.loads[backend].report {
            report.sent_since += 1;
        }
        self.insert(now, switch, key, backend, 0);
        // A client whose port is taken at its backend goes elsewhere this once.
        if is_new && !is_taken {
            self.stays.remember(now, self.service_of[key.front], key.client.ip, backend);
        }
        Ok(Assignment { backend, is_set_up: false })
    }

    /// Whether a connection is known, at a backend that takes some. A datagram does not show
    /// whether it begins one; where this is so, it does not.
    pub(crate) fn goes_on(&self, now: Instant, key: Key) -> bool {
        let Some((id, service)) = self.connections.find(&key).zip(self.service_of.get(key.front)) else { return false };
        let is_live = self.connections.list(id) == Some(LIVE);
        let is_known = is_live || self.connections.is_fresh(now, id, REMEMBERED, REMEMBERED_NS);
        // What was cut is over though its backend is up again.
        is_known && self.connections.get(id).is_some_and(|at| !at.is_cut && self.takes(*service, at.backend))
    }

    /// Whether a backend may have new connections, whatever its weight.
    pub(crate) fn takes(&self, service: usize, backend: usize) -> bool {
        self.services.get(service).and_then(|one| one.loads.get(backend)).is_some_and(|load| load.takes)
    }

    /// Whether connections of a backend end: it is down, and that is what its service wants then.
    pub(crate) fn is_lost(&self, service: usize, backend: usize) -> bool {
        let ends = self.services.get(service).is_some_and(|one| one.on_failure == OnFailure::Reset);
        ends && !self.takes(service, backend)
    }

    /// Whether so little of a service's weight is well that health says nothing.
    pub(crate) fn ignores_health(&self, service: usize) -> bool {
        self.services.get(service).is_some_and(|one| one.ignores_health)
    }

    /// Whether a backend of a service takes new connections.
    pub(crate) fn has_any(&self, service: usize) -> bool {
        self.services.get(service).is_some_and(|one| one.loads.iter().any(Load::is_eligible))
    }

    /// One more connection of a service got no backend, somewhere else than here.
    pub(crate) fn count_refused(&mut self, service: usize) {
        if let Some(one) = self.services.get_mut(service) {
            one.total.refused += 1;
        }
    }

    /// One more connection ended since its backend was down, somewhere else than here.
    pub(crate) fn count_cut(&mut self, service: usize, backend: usize) {
        if let Some(cut) = self.services.get_mut(service).and_then(|one| one.cut.get_mut(backend)) {
            *cut += 1;
        }
    }

    /// A connection is over; counted once.
    fn cut(&mut self, now: Instant, id: Id) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let (backend, is_first) = (connection.backend, !std::mem::replace(&mut connection.is_cut, true));
        let service = self.connections.key(id).and_then(|key| self.service_of.get(key.front).copied());
        if let (true, Some(service)) = (is_first, service) {
            self.count_cut(service, backend);
        }
        if self.connections.list(id) == Some(LIVE) {
            self.bury(now, id);
        }
    }

    /// The backend that a client stays at: of a new connection where that takes some, and is well,
    /// though health may be ignored.
    fn stays_at(&self, now: Instant, key: Key, is_new: bool) -> Option<usize> {
        let service = *self.service_of.get(key.front)?;
        let backend = self.stays.find(now, service, key.client.ip)?;
        let one = self.services.get(service)?;
        let takes = one.loads.get(backend)?.is_eligible() && !*one.is_down.get(backend)?;
        (takes || !is_new).then_some(backend)
    }

    fn policy(&mut self, now: Instant, key: Key) -> Option<usize> {
        let hash = self.hash(key);
        let service = self.services.get_mut(*self.service_of.get(key.front)?)?;
        let limit = service.period_ns.saturating_mul(REPORT_PERIODS);
        for (load, reported) in service.loads.iter_mut().zip(&service.reported) {
            if let (Some(report), Some(at)) = (&mut load.report, reported) {
                report.is_fresh = now.since(*at) <= limit;
            }
        }
        let candidates = service.lookup.candidates(hash).unwrap_or_default().map(usize::from);
        service.chooser.choose(service.policy, &service.loads, candidates)
    }

    /// Where a connection is that nobody remembers: at the backend that its hash names.
    fn candidate(&self, key: Key) -> Option<usize> {
        let service = self.services.get(*self.service_of.get(key.front)?)?;
        service.lookup.candidates(self.hash(key)).map(|[first, _]| first.into())
    }

    /// With affinity all connections of a client have one.
    fn hash(&self, key: Key) -> u64 {
        let is_by_client = self.service_of.get(key.front).is_some_and(|&service| self.stays.is_for(service));
        let client = if is_by_client { Client { port: 0, ..key.client } } else { key.client };
        self.keyed.hash_one((key.front, client))
    }

    /// Whether there is room for a connection, for which the one that was remembered longest may
    /// go. Where its client has its part of the table, that is one of the client's own.
    fn make_room(&mut self, key: Key) -> bool {
        let client = network(key.client.ip);
        let has_part = self.of_client.get(&client).is_some_and(|&count| count >= (self.most / 2).max(1));
        if !has_part && self.connections.len() < self.most {
            return true;
        }
        let may_go = |key: &Key| !has_part || network(key.client.ip) == client;
        let oldest = self.connections.oldest_first(REMEMBERED).take(AT_ONCE);
        let goes = oldest.map(|(id, key, _)| (id, *key)).find(|(_, key)| may_go(key));
        let Some((id, Key { front, .. })) = goes else { return false };
        self.services[self.service_of[front]].total.evicted += 1;
        self.remove(id);
        true
    }

    fn insert(&mut self, now: Instant, switch: u64, key: Key, backend: usize, round: u64) {
        let connection = Connection { backend, switch, round, is_cut: false };
        if self.connections.insert(now, LIVE, key, connection).is_ok() {
            *self.of_client.entry(network(key.client.ip)).or_default() += 1;
            *self.of_switch.entry(switch).or_default() += 1;
            self.count(key.front, backend, true);
        }
    }

    fn revive(&mut self, now: Instant, switch: u64, id: Id, key: Key, backend: usize) {
        self.connections.touch(now, id, LIVE);
        if let Some(connection) = self.connections.get_mut(id) {
            let before = std::mem::replace(&mut connection.switch, switch);
            less(&mut self.of_switch, before);
            *self.of_switch.entry(switch).or_default() += 1;
        }
        self.count(key.front, backend, true);
    }

    fn count(&mut self, front: usize, backend: usize, is_more: bool) {
        let load = self.services.get_mut(self.service_of[front]).and_then(|s| s.loads.get_mut(backend));
        if let Some(load) = load {
            load.busy = if is_more { load.busy.saturating_add(1) } else { load.busy.saturating_sub(1) };
        }
    }

    fn remove(&mut self, id: Id) {
        let is_live = self.connections.list(id) == Some(LIVE);
        let Some((key, connection)) = self.connections.remove(id) else { return };
        if is_live {
            self.count(key.front, connection.backend, false);
        }
        less(&mut self.of_client, network(key.client.ip));
        less(&mut self.of_switch, connection.switch);
    }

    /// The flows of switches that left so long ago have gone without a word.
    pub fn bury_left(&mut self, now: Instant) {
        let is_over = |one: Presence| matches!(one, Presence::Left(at) if now.since(at) >= self.idle_ns);
        let over = self.switches.iter().filter(|(_, switch)| is_over(switch.presence));
        for switch in over.map(|(&switch, _)| switch).collect::<Vec<_>>() {
            self.reported(now, switch, now.0.max(1));
            if let Some(gone) = self.switches.get_mut(&switch) {
                gone.presence = Presence::Gone(now);
            }
        }
    }

    /// Forgets what was remembered long enough.
    pub fn age(&mut self, now: Instant) {
        for _ in 0..AT_ONCE {
            let Some(id) = self.connections.aged(now, REMEMBERED, REMEMBERED_NS) else { return };
            self.remove(id);
        }
    }

    /// The switch has no flows of a connection any more.
    pub fn gone(&mut self, now: Instant, switch: u64, key: Key) {
        let Some(id) = self.connections.find(&key) else { return };
        let is_there = self.connections.get(id).is_some_and(|connection| connection.switch == switch);
        if is_there && self.connections.list(id) == Some(LIVE) {
            self.bury(now, id);
        }
    }

    fn bury(&mut self, now: Instant, id: Id) {
        self.connections.touch(now, id, REMEMBERED);
        if let (Some(&key), Some(&connection)) = (self.connections.key(id), self.connections.get(id)) {
            self.count(key.front, connection.backend, false);
        }
    }

    /// A switch reports that it has the flows of a connection, in its report number `round`, which
    /// is not 0. A live one of another switch stays that one's. False where there is no room to
    /// remember it: of several switches, none fills more than half of the table by what it reports.
    pub fn known(&mut self, now: Instant, switch: u64, key: Key, backend: usize, round: u64) -> bool {
        let service = self.service_of.get(key.front).and_then(|&service| self.services.get(service));
        if service.is_none_or(|service| backend >= service.loads.len()) {
            return false;
        }
        if let Some(id) = self.connections.find(&key) {
            let connection = self.connections.get(id).copied();
            let is_live = self.connections.list(id) == Some(LIVE);
            if is_live && connection.is_some_and(|connection| connection.switch != switch) {
                return true;
            }
            if connection.is_some_and(|connection| connection.backend == backend) {
                if !is_live {
                    self.revive(now, switch, id, key, backend);
                }
                if let Some(connection) = self.connections.get_mut(id) {
                    connection.round = round;
                }
                return true;
            }
            self.remove(id);
        }
        let is_alone = self.of_switch.keys().all(|&other| other == switch);
        let share = if is_alone { self.most } else { self.most / 2 };
        let has_part = self.of_switch.get(&switch).is_none_or(|&count| count < share);
        let has_room = has_part && self.connections.len() < self.most;
        if has_room {
            self.insert(now, switch, key, backend, round);
            self.stays.learn(now, self.service_of[key.front], key.client.ip, backend);
        }
        has_room
    }

    /// A switch has said all of its report number `round`, which is also when it was asked for it:
    /// what it did not name and was there before is not live there.
    pub fn reported(&mut self, now: Instant, switch: u64, round: u64) {
        let is_stale = |(id, _, connection): &(Id, &Key, &Connection)| {
            let is_older = self.connections.seen(*id).is_some_and(|seen| seen < Instant(round));
            connection.switch == switch && connection.round != round && is_older
        };
        let live = self.connections.newest_first(LIVE);
        let stale: Vec<Id> = live.filter(is_stale).map(|(id, ..)| id).collect();
        stale.into_iter().for_each(|id| self.bury(now, id));
    }

    /// The connection that a backend's frame belongs to: its front. A client may have several there
    /// from one port, of which all but one are over; that is one that is live, or else was last.
    /// `is_first` where the frame is the backend's first: what is only remembered has none.
    #[must_use]
    pub fn front_of_answer(
        &self,
        rules: &Rules,
        (from, to): (Client, Client),
        protocol: u8,
        is_first: bool,
    ) -> Option<usize> {
        let fronts = rules.fronts.iter().enumerate().filter(|(_, front)| front.protocol == protocol);
        let its = fronts.filter_map(|(front, _)| {
            let id = self.connections.find(&Key { front, client: to })?;
            let (_, target) = rules.pair(front, self.connections.get(id)?.backend)?;
            let is_live = self.connections.list(id) == Some(LIVE);
            (target.at() == from && (is_live || !is_first)).then_some((is_live, self.connections.seen(id), front))
        });
        its.max_by_key(|&(is_live, seen, front)| (is_live, seen, Reverse(front))).map(|(.., front)| front)
    }

    /// A backend's load average, in thousandths.
    pub fn load(&mut self, now: Instant, service: usize, backend: usize, load_milli: u64) {
        let Some(service) = self.services.get_mut(service) else { return };
        if let (Some(load), Some(at)) = (service.loads.get_mut(backend), service.reported.get_mut(backend)) {
            load.report = Some(Report { load: load_milli, is_fresh: true, sent_since: 0 });
            *at = Some(now);
        }
    }

    /// Connections that a backend has got in all, as a flow of a switch counts them. `cookie` is
    /// one of [`Rules::counters`].
    pub fn counted(&mut self, switch: u64, cookie: u64, (service, backend): (usize, usize), all: u64) {
        let Some(switch) = self.switches.get_mut(&switch) else { return };
        let before = switch.counted.insert(cookie, all).unwrap_or(0);
        if let Some(count) = self.services.get_mut(service).and_then(|s| s.new.get_mut(backend)) {
            // A flow that was removed and added again begins anew.
            *count = count.saturating_add(all.checked_sub(before).unwrap_or(all));
        }
    }

    /// What a service's backends have had.
    #[must_use]
    pub fn counts(&self, service: usize) -> (Total, Vec<Count>) {
        let Some(service) = self.services.get(service) else { return Default::default() };
        let all = service.loads.iter().zip(&service.new).zip(&service.is_down).zip(&service.cut);
        let counts = all.map(|(((load, &new), &is_down), &cut)| Count {
            new,
            live: load.busy,
            load_milli: load.report.map(|report| report.load),
            is_down,
            cut,
        });
        (service.total, counts.collect())
    }

    /// Connections that are kept, and how many may be.
    #[must_use]
    pub fn room(&self) -> (u32, u32) {
        (self.connections.len(), self.most)
    }
}

/// Who has an address: one machine may have all of a network of 64 bits.
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

/// One less of what is counted.
fn less<T: Eq + std::hash::Hash>(counts: &mut HashMap<T, u32, Keyed>, of: T) {
    if let Some(count) = counts.get_mut(&of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
