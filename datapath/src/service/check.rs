//! Active health checks: a backend is asked again and again whether it takes a connection, or how
//! it answers a request.
//!
//! A probe is a connection of the switch's own, from the service's address and a port that changes
//! each time: a SYN, and for HTTP or TLS one request behind the backend's SYN-ACK. A reset ends it.
//! One segment is under way and nothing is sent again: what is lost is one failure, of which `fall`
//! in a row are needed.
//!
//! What a backend answers is judged at once and kept nowhere: it waits in no queue that a backend
//! could fill. It counts only where the backend is asked just then, at the port and with the
//! numbers that it was asked with. So nobody else can speak for it, and nothing can be said
//! unasked.

use super::ask::{Ask, LOOKED_AT};
use super::entry::Segment;
use super::flaps::Flaps;
use super::running::Running;
use super::sweep::Sweep;
use super::{Address, Decision, OnFailure, Role, Service, ServiceId, Services, ends};
use crate::ids::EndpointId;
use crate::network::Network;
use crate::units::Instant;
use crate::wire::build::{Build, eth};
use crate::wire::{L4, Layout, Mac, be16, protocol, tcp_flags};
use std::hash::BuildHasher;
use std::net::IpAddr;

/// The ports that probes come from.
pub(super) const FIRST_PORT: u16 = 32_768;
const PORTS: u16 = 28_000;
/// The part of an interval by which one differs from the other, at most, in either direction: so
/// that the checks of many backends do not stay together.
const JITTER: u64 = 10;
/// What a server may send of a page before it is reset: the first line is enough.
const WINDOW: u16 = 4096;

/// How the backends of a service are checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// What is asked for.
    pub ask: Ask,
    /// From the start of one probe to that of the next, in nanoseconds.
    pub interval_ns: u64,
    /// How long a probe may last: no longer than that.
    pub timeout_ns: u64,
    /// Probes in a row that must succeed for a backend that is down to be up; more for one that was
    /// up and down several times within a minute.
    pub rise: u8,
    /// Those that must fail for one that is up to be down. The first one of all decides alone.
    pub fall: u8,
}

impl Default for Check {
    fn default() -> Check {
        Check { ask: Ask::Port, interval_ns: 1_000_000_000, timeout_ns: 1_000_000_000, rise: 2, fall: 3 }
    }
}

/// Whether both are checked, and another thing is asked.
pub(super) fn asks_otherwise(before: &Service, after: &Service) -> bool {
    matches!((&before.check, &after.check), (Some(before), Some(after)) if before.ask != after.ask)
}

/// What a probe waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// None is under way.
    Idle,
    /// For the answer to its SYN.
    Opening,
    /// For the answer to its request.
    Asked,
}

/// The checks of one backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prober {
    stage: Stage,
    /// Where it was asked.
    address: Option<Address>,
    port: u16,
    began: Instant,
    next: Instant,
    /// The next byte that is sent, and the next that is expected.
    sequence: u32,
    expected: u32,
    answer: [u8; LOOKED_AT],
    got: usize,
    pub(super) is_down: bool,
    is_known: bool,
    in_row: u32,
    flaps: Flaps,
}

/// A segment that a probe sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Says {
    flags: u8,
    sequence: u32,
    ack: u32,
    has_request: bool,
}

/// What a backend's answer makes of a probe: what it sends then, and how it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Heard {
    says: Option<Says>,
    is_well: Option<bool>,
}

impl Prober {
    pub(super) fn new(now: Instant) -> Prober {
        Prober {
            stage: Stage::Idle,
            address: None,
            port: 0,
            began: now,
            next: now,
            sequence: 0,
            expected: 0,
            answer: [0; LOOKED_AT],
            got: 0,
            is_down: false,
            is_known: false,
            in_row: 0,
            flaps: Flaps::default(),
        }
    }

    /// One of a backend of which another switch knew this.
    pub(super) fn known(self, is_down: bool) -> Prober {
        Prober { is_down, is_known: true, ..self }
    }

    /// Something else is to be asked, from `next` on. What was found stays until that has said
    /// something, which decides alone; what is under way does not count.
    fn ask_anew(&mut self, next: Instant) {
        (self.stage, self.is_known, self.in_row, self.next) = (Stage::Idle, false, 0, next);
    }

    /// When there is something to do: a probe has lasted too long, or the next one is due.
    fn due(&self, check: &Check) -> Instant {
        match self.stage {
            Stage::Idle => self.next,
            _ => self.began.plus_ns(check.timeout_ns),
        }
    }

    /// A probe begins: its SYN. `chance` is any number.
    fn begin(&mut self, now: Instant, check: &Check, (address, port): (Address, u16), chance: u64) -> Says {
        let spread = check.interval_ns / JITTER;
        *self = Prober {
            stage: Stage::Opening,
            address: Some(address),
            port,
            began: now,
            next: now.plus_ns(check.interval_ns - spread + part(2 * spread, chance >> 32)),
            sequence: (chance as u32).wrapping_add(1),
            expected: 0,
            got: 0,
            ..*self
        };
        Says { flags: tcp_flags::SYN, sequence: chance as u32, ack: 0, has_request: false }
    }

    /// A probe has ended.
    fn end(&mut self, now: Instant, check: &Check, is_well: bool) {
        self.stage = Stage::Idle;
        let was_known = std::mem::replace(&mut self.is_known, true);
        let needed = match (was_known, is_well) {
            (false, _) => 1,
            (true, true) => self.flaps.rise(now, check.rise),
            (true, false) => check.fall.into(),
        };
        if is_well != self.is_down {
            self.in_row = 0;
            return;
        }
        self.in_row += 1;
        if self.in_row >= needed {
            (self.is_down, self.in_row) = (!is_well, 0);
            if was_known {
                self.flaps.change(now);
            }
        }
    }

    /// The backend sends a segment; `request` is how long the request is.
    fn hear(&mut self, check: &Check, request: usize, segment: &Segment, payload: &[u8]) -> Heard {
        let has = |flag: u8| segment.flags & flag != 0;
        let says = |flags, sequence, ack| Some(Says { flags, sequence, ack, has_request: false });
        let reset = |sequence, ack| says(tcp_flags::RST | tcp_flags::ACK, sequence, ack);
        if !has(tcp_flags::ACK) {
            return Heard::default();
        }
        match (self.stage, &check.ask) {
            (Stage::Opening, _) if segment.ack != self.sequence => Heard::default(),
            (Stage::Opening, _) if has(tcp_flags::RST) => Heard { says: None, is_well: Some(false) },
            (Stage::Opening, ask) if has(tcp_flags::SYN) => {
                self.expected = segment.sequence.wrapping_add(1);
                if *ask == Ask::Port {
                    return Heard { says: reset(self.sequence, self.expected), is_well: Some(true) };
                }
                let flags = tcp_flags::ACK | tcp_flags::PSH;
                let says = Says { flags, sequence: self.sequence, ack: self.expected, has_request: true };
                self.stage = Stage::Asked;
                self.sequence = self.sequence.wrapping_add(request as u32);
                Heard { says: Some(says), is_well: None }
            }
            (Stage::Asked, ask) if segment.sequence == self.expected && !has(tcp_flags::SYN) => {
                if has(tcp_flags::RST) {
                    return Heard { says: None, is_well: Some(false) };
                }
                let taken = payload.len().min(LOOKED_AT - self.got);
                self.answer[self.got..self.got + taken].copy_from_slice(&payload[..taken]);
                self.got += taken;
                self.expected = self.expected.wrapping_add(payload.len() as u32);
                if self.got == LOOKED_AT {
                    let is_well = Some(ask.is_good(&self.answer));
                    return Heard { says: reset(self.sequence, self.expected), is_well };
                }
                match (has(tcp_flags::FIN), taken) {
                    (true, _) => Heard { says: reset(self.sequence, self.expected), is_well: Some(false) },
                    (false, 0) => Heard::default(),
                    (false, _) => Heard { says: says(tcp_flags::ACK, self.sequence, self.expected), is_well: None },
                }
            }
            _ => Heard::default(),
        }
    }
}

/// A backend whose answer it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checked {
    /// Whose backend.
    pub service: ServiceId,
    /// Its number.
    pub backend: u8,
}

/// A frame of a check, to be sent.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What is checked.
    pub of: Checked,
    /// Where the backend is; `None` for outside.
    pub endpoint: Option<EndpointId>,
    macs: (Mac, Mac),
    ips: (IpAddr, IpAddr),
    ports: (u16, u16),
    says: Says,
    payload: Vec<u8>,
}

impl Probe {
    /// The frame.
    #[must_use]
    pub fn build(&self) -> Build<'_> {
        let Says { flags, sequence, ack, .. } = self.says;
        let frame = eth(self.macs.0, self.macs.1).ip(self.ips.0, self.ips.1).tcp(self.ports.0, self.ports.1, sequence);
        frame.ack(ack, WINDOW).flags(flags).payload(&self.payload)
    }
}

impl Services {
    /// When there is something to do, if nothing comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        crate::units::earlier(self.checks_due(), self.held_due())
    }

    /// When a check is due, if there is any.
    #[must_use]
    pub fn checks_due(&self) -> Option<Instant> {
        self.checks.first().map(|&(due, ..)| due)
    }

    /// Takes back what was planned of a service's checks, before it changes.
    pub(super) fn unplan_checks(&mut self, ServiceId(id): ServiceId, running: &mut Running) {
        for (server, number) in running.servers.iter_mut().zip(0u8..) {
            if let Some(due) = server.planned.take() {
                self.checks.remove(&(due, id, number));
            }
        }
    }

    /// Who is to be checked of a service's backends, and when; `anew` where something else is
    /// asked.
    pub(super) fn plan_checks(&mut self, now: Instant, ServiceId(id): ServiceId, anew: bool) {
        let Some(running) = self.all.get_mut(id) else { return };
        for (server, number) in running.servers.iter_mut().zip(0u8..) {
            let (Some(_), Some(check)) = (&server.backend, &running.service.check) else {
                server.prober = None;
                continue;
            };
            let first = || {
                let chance = self.keyed.hash_one((id, number, now)) >> 32;
                now.plus_ns(part(check.interval_ns / JITTER, chance))
            };
            let prober = server.prober.get_or_insert_with(|| Prober::new(first()));
            if anew {
                prober.ask_anew(first());
                server.well_in_row = 0;
            }
            // The interval may be shorter now.
            prober.next = prober.next.min(now.plus_ns(check.interval_ns));
            let due = prober.due(check);
            server.planned = Some(due);
            self.checks.insert((due, id, number));
        }
    }

    /// The first frame of the next probe that is due. One that has lasted too long has failed.
    pub fn next_check(&mut self, now: Instant) -> Option<Probe> {
        loop {
            let &(due, id, number) = self.checks.first()?;
            if due > now {
                return None;
            }
            self.checks.pop_first();
            let Some(running) = self.all.get_mut(id) else { continue };
            let Some(check) = running.service.check.clone() else { continue };
            let Some(server) = running.servers.get_mut(usize::from(number)) else { continue };
            server.planned = None;
            let Some(mut prober) = server.prober else { continue };
            let is_over = prober.stage != Stage::Idle && prober.due(&check) <= now;
            if is_over {
                running.has_freed = true;
                let goes = server.ended(now, &check, (&mut prober, &mut self.sweep), false);
                if goes && running.service.on_failure == OnFailure::Reset {
                    self.recent.forget(running.network);
                }
            }
            let is_tcp = |address: &&Address| address.protocol == protocol::TCP;
            let tcp = running.service.addresses.iter().filter(is_tcp);
            let backend = server.backend.as_ref();
            let address = tcp.into_iter().find(|address| backend.is_some_and(|b| b.ip(address.ip).is_some()));
            let begins = address.filter(|_| prober.stage == Stage::Idle && prober.next <= now);
            let says = begins.map(|address| {
                let chance = self.keyed.hash_one((id, number, now, prober.sequence));
                let mut port = FIRST_PORT + (self.keyed.hash_one(chance) % u64::from(PORTS)) as u16;
                // Who calls its own service speaks to it from its own ports to the service's.
                while running.service.addresses.iter().any(|address| address.port == port) {
                    port += 1;
                }
                prober.begin(now, &check, (*address, port), chance)
            });
            if address.is_none() {
                prober.next = now.plus_ns(check.interval_ns);
            }
            server.prober = Some(prober);
            let due = prober.due(&check);
            server.planned = Some(due);
            self.checks.insert((due, id, number));
            if let Some(says) = says {
                return self.probe(Checked { service: ServiceId(id), backend: number }, says);
            }
        }
    }

    /// A frame of a probe.
    fn probe(&self, of: Checked, says: Says) -> Option<Probe> {
        let running = self.all.get(of.service.0)?;
        let server = running.servers.get(usize::from(of.backend))?;
        let (backend, prober) = (server.backend.as_ref()?, server.prober.as_ref()?);
        let address = prober.address?;
        let check = running.service.check.as_ref()?;
        let payload = if says.has_request { check.ask.request(address, says.sequence) } else { Vec::new() };
        Some(Probe {
            of,
            endpoint: backend.endpoint,
            macs: (running.service.mac, backend.mac),
            ips: (address.ip, backend.ip(address.ip)?),
            ports: (prober.port, backend.port.unwrap_or(address.port)),
            says,
            payload,
        })
    }

    /// A probe could not be sent: it does not count.
    pub fn skip_check(&mut self, of: Checked) {
        let server = self.all.get_mut(of.service.0).and_then(|all| all.servers.get_mut(usize::from(of.backend)));
        if let Some(prober) = server.and_then(|server| server.prober.as_mut()) {
            prober.stage = Stage::Idle;
        }
    }

    /// Whether a frame of TCP from a backend to a service's address is what the switch has asked
    /// for.
    pub(super) fn decide_check(
        &self,
        (by, port, from): (&Role, u16, Option<EndpointId>),
        (to, to_port): (IpAddr, u16),
        layout: &Layout,
    ) -> Option<Decision> {
        if layout.fragment || self.checks.is_empty() {
            return None;
        }
        by.targets(protocol::TCP, port).find_map(|target| {
            let (of, prober) = self.prober(target, from, (to, to_port))?;
            (prober.stage != Stage::Idle).then_some(Decision::Check(of))
        })
    }

    /// Whether a frame of TCP is what a backend here says to a check of the switch: to the last
    /// one, be it over or not. It is of no connection of a guest's.
    #[cold]
    #[must_use]
    pub fn is_of_check(&self, network: Network, from: EndpointId, bytes: &[u8], layout: &Layout) -> bool {
        if layout.fragment || layout.l4 != L4::Tcp || self.checks.is_empty() {
            return false;
        }
        let found = ends(bytes, layout).and_then(|(source, to)| Some((self.fronts.role(network, source)?, to)));
        let Some((by, to)) = found else { return false };
        let at = usize::from(layout.l4_offset);
        let (port, to_port) = (be16(bytes, at), be16(bytes, at + 2));
        let mut targets = by.targets(protocol::TCP, port);
        targets.any(|target| self.prober(target, Some(from), (to, to_port)).is_some())
    }

    /// The check of a backend, where it was asked from this address and port last.
    fn prober(
        &self,
        (front, backend): (u16, u8),
        from: Option<EndpointId>,
        (to, to_port): (IpAddr, u16),
    ) -> Option<(Checked, &Prober)> {
        let (running, front) = self.running(front)?;
        let server = running.servers.get(usize::from(backend))?;
        let prober = server.prober.as_ref()?;
        let is_its = server.backend.as_ref()?.endpoint == from;
        let is_asked = front.address.ip == to && prober.address == Some(front.address) && prober.port == to_port;
        (is_its && is_asked).then_some((Checked { service: front.service, backend }, prober))
    }

    /// A backend answers a probe: what the probe says to that.
    pub fn hear_check(&mut self, now: Instant, of: Checked, segment: &Segment, payload: &[u8]) -> Option<Probe> {
        let running = self.all.get_mut(of.service.0)?;
        let check = running.service.check.clone()?;
        let server = running.servers.get_mut(usize::from(of.backend))?;
        let mut prober = server.prober?;
        let request = prober.address.map_or(0, |at| check.ask.request(at, prober.sequence).len());
        let heard = prober.hear(&check, request, segment, payload);
        if let Some(is_well) = heard.is_well {
            running.has_freed = true;
            let goes = server.ended(now, &check, (&mut prober, &mut self.sweep), is_well);
            if goes && running.service.on_failure == OnFailure::Reset {
                self.recent.forget(running.network);
            }
        }
        server.prober = Some(prober);
        self.probe(of, heard.says?)
    }
}

/// A part of a time, in 1/2^32. An hour times that has more than 64 bits.
fn part(of_ns: u64, part: u64) -> u64 {
    ((u128::from(of_ns) * u128::from(part)) >> 32) as u64
}

impl super::Server {
    /// A probe of it has ended. Whether it is down now and was not: where that ends connections,
    /// what was worked out for recent ones is not true any more.
    fn ended(
        &mut self,
        now: Instant,
        check: &Check,
        (prober, sweep): (&mut Prober, &mut Sweep),
        is_well: bool,
    ) -> bool {
        let was_down = prober.is_down;
        prober.end(now, check, is_well);
        self.stats.checks += 1;
        self.stats.failed_checks += u64::from(!is_well);
        self.stats.falls += u64::from(prober.is_down && !was_down);
        if prober.is_down && !is_well {
            // Again and again: what came while health was ignored, or has fallen silent since.
            self.fall_silent(now, sweep);
        }
        sweep.begin_if_called(now);
        if is_well && was_down && !prober.is_down {
            self.came = Some(now);
        }
        self.well_in_row = if is_well { self.well_in_row.saturating_add(1) } else { 0 };
        // An open port does not say that connections last.
        let answers = check.ask != Ask::Port;
        let is_enough = u32::from(self.well_in_row) >= prober.flaps.rise(now, check.rise);
        if is_enough && self.health.is_ejected(now) && (answers || !self.health.has_broken()) {
            self.health.lift(now);
        }
        if is_well {
            self.health.checked();
            self.accepted(now);
        }
        if is_well && answers {
            self.answered(now);
        }
        prober.is_down && !was_down
    }
}
