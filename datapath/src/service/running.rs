//! A service while it runs: its backends by number, what is counted of them, and what its policy is
//! told.

use super::answer::Budget;
use super::check::Prober;
use super::choose::{self, Chooser, Load, MOST_BACKENDS, Policy, Report};
use super::entry::Kind;
use super::health::Health;
use super::held::Waiting;
use super::maglev::{Lookup, Seat};
use super::octets;
use super::recover::{MOST_ASKED, Order};
use super::spec::{Backend, OnFailure, Service};
use super::sweep::{Sweep, Sweeps};
use crate::network::Network;
use crate::random::Keyed;
use crate::units::Instant;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::net::IpAddr;

/// What a weight is counted in while backends start slowly, and what part a backend begins with.
const WHOLE: u64 = 1000;
const FIRST_PART: u64 = WHOLE / 10;
/// For so long what a backend did for others says that a client may be turned away for its own
/// sake, in nanoseconds.
const LATELY_NS: u64 = 100_000_000;

/// What is counted of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceStats {
    /// Connections that got a backend.
    pub new: u64,
    /// New connections that were refused, since no backend was up.
    pub refused: u64,
    /// New connections that found no room in the table.
    pub full: u64,
    /// Connections whose entry went before its time, for others.
    pub evicted: u64,
    /// Connections that got a backend which their hash does not name: they are lost with the table.
    pub off_candidates: u64,
    /// New connections that got another backend, as one refused or did not answer.
    pub redirected: u64,
    /// Segments of connections that were not known, with which a candidate was asked.
    pub sought: u64,
    /// Connections that were found again so.
    pub recovered: u64,
    /// Connections that got a backend which is not well: so few were that health was ignored.
    pub unhealthy: u64,
    /// New connections that waited, as all backends had as many as they may have.
    pub held: u64,
    /// Those that wait now.
    pub holding: u32,
    /// New connections that went where their client was before.
    pub stayed: u64,
}

/// What is counted of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackendStats {
    /// Connections that it got.
    pub new: u64,
    /// Those it refused: a reset or an ICMP error was its first answer.
    pub refused: u64,
    /// Those it did not answer in time.
    pub silent: u64,
    /// Those it accepted and ended at once, with nothing sent or received.
    pub ended: u64,
    /// How often it was ejected: too many failed one after the other.
    pub ejections: u64,
    /// Checks that have ended, and those of them that failed.
    pub checks: u64,
    /// See `checks`.
    pub failed_checks: u64,
    /// How often checks found it down.
    pub falls: u64,
    /// Whether they do now.
    pub is_down: bool,
    /// Until when it gets no new connections for that.
    pub ejected_until: Option<Instant>,
    /// Until when it starts slowly.
    pub slow_until: Option<Instant>,
    /// When it is let go, where it is drained and that has a time.
    pub drained_at: Option<Instant>,
    /// Connections that were ended as its time to drain was over.
    pub cut: u64,
    /// Connections whose client waits or whose server is sending.
    pub busy: u32,
    /// Other open ones.
    pub idle: u32,
    /// Those of which it has said nothing since it was found down; they are not in flight.
    pub unconfirmed: u32,
    /// The load it reported last, times [`choose::LOAD_ONE`].
    pub load: Option<u64>,
}

impl BackendStats {
    /// Whether it may have connections that live.
    #[must_use]
    pub fn has_connections(&self) -> bool {
        self.busy.max(self.idle).max(self.unconfirmed) > 0
    }
}

/// A backend while it runs.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) backend: Option<Backend>,
    pub(super) generation: u8,
    /// Generations of its number that connections may have, and after how many sweeps none.
    former: u8,
    clean_after: u64,
    /// Up to which sweep its connections are found silent, since it was found down.
    pub(super) silent_until: u64,
    pub(super) stats: BackendStats,
    pub(super) health: Health,
    /// Where it is checked.
    pub(super) prober: Option<Prober>,
    /// Under which time the next step of its check is planned.
    pub(super) planned: Option<Instant>,
    /// Checks in a row that found it well, since a connection failed.
    pub(super) well_in_row: u8,
    /// When it came, or came back from a drain, while others were there.
    pub(super) came: Option<Instant>,
    /// When it accepted a connection last, and when it answered in one: a client's, or a check.
    pub(super) accepted: Option<Instant>,
    /// See `accepted`.
    pub(super) answered: Option<Instant>,
    /// Since when it is drained.
    pub(super) drained: Option<Instant>,
    pub(super) report: Option<(Instant, u64)>,
    pub(super) sent_since_report: u64,
}

/// A service while it runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) service: Service,
    pub(super) network: Network,
    /// Its fronts, by their numbers, in the order of its addresses.
    pub(super) fronts: Vec<u16>,
    pub(super) servers: Vec<Server>,
    pub(super) lookup: Lookup,
    pub(super) chooser: Chooser,
    /// What the policy is asked about: as long as `servers`, filled in for each choice.
    pub(super) loads: Vec<Load>,
    pub(super) stats: ServiceStats,
    pub(super) budget: Budget,
    /// Whether a backend may have only so many connections.
    pub(super) is_limited: bool,
    /// New connections that wait, and whether one has ended, or a backend's health may be another,
    /// since none had a place.
    pub(super) queue: VecDeque<Waiting>,
    pub(super) has_freed: bool,
    /// When the next ejection ends, as of when none had one.
    pub(super) back_at: Option<Instant>,
}

/// Who asks for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    /// The address that it asks for: which of a backend's two counts.
    pub(super) like: IpAddr,
    /// Its own.
    pub(super) client: [u8; 16],
    /// Whether it is not an endpoint.
    pub(super) is_outside: bool,
}

impl Asker {
    fn is(&self, backend: &Backend) -> bool {
        backend.ip(self.like).map(octets) == Some(self.client)
    }
}

impl Server {
    fn new(backend: Backend) -> Server {
        Server {
            backend: Some(backend),
            generation: 0,
            former: 0,
            clean_after: 0,
            silent_until: 0,
            stats: BackendStats::default(),
            health: Health::default(),
            prober: None,
            planned: None,
            well_in_row: 0,
            came: None,
            accepted: None,
            answered: None,
            drained: None,
            report: None,
            sent_since_report: 0,
        }
    }

    /// Until when it starts slowly: after it came, was ejected, or was found up again.
    pub(super) fn slow_until(&self, slow_start_ns: u64) -> Option<Instant> {
        let began = self.came.max(self.health.ejected_until())?;
        (slow_start_ns > 0).then(|| began.plus_ns(slow_start_ns))
    }

    /// When its connections are ended, as its time to drain is over.
    pub(super) fn drained_at(&self) -> Option<Instant> {
        let drain_ns = self.backend.as_ref().map_or(0, |backend| backend.drain_ns);
        self.drained.filter(|_| drain_ns > 0).map(|since| since.plus_ns(drain_ns))
    }

    /// The part of its weight that it has, in thousandths: it grows evenly.
    fn part(&self, now: Instant, slow_start_ns: u64) -> u64 {
        let left = self.slow_until(slow_start_ns).map_or(0, |until| until.since(now)).min(slow_start_ns);
        let missing = u128::from(WHOLE - FIRST_PART) * u128::from(left) / u128::from(slow_start_ns.max(1));
        WHOLE - missing as u64
    }

    /// Whether it may get connections, as far as its health goes.
    pub(super) fn is_well(&self, now: Instant) -> bool {
        // Where it is checked, one failure is enough until the next check.
        let is_doubted = self.prober.is_some() && self.health.is_unchecked();
        !self.health.is_ejected(now) && !self.is_down() && !is_doubted
    }

    /// Whether checks find it down.
    pub(super) fn is_down(&self) -> bool {
        self.prober.as_ref().is_some_and(|prober| prober.is_down)
    }

    /// Whether it has answered lately: what it ends now may be its client's fault.
    pub(super) fn has_served(&self, now: Instant) -> bool {
        self.answered.is_some_and(|at| now.since(at) < LATELY_NS)
    }

    /// The same of a connection that it accepted.
    pub(super) fn has_accepted(&self, now: Instant) -> bool {
        self.accepted.is_some_and(|at| now.since(at) < LATELY_NS)
    }

    /// It refused a connection, did not answer, or ended what it had accepted. Whether it is
    /// ejected for that: then it falls silent.
    #[must_use]
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        self.well_in_row = 0;
        let is_ejected = self.health.failed(now);
        self.stats.ejections += u64::from(is_ejected);
        is_ejected
    }

    /// It accepted a connection.
    pub(super) fn accepted(&mut self, now: Instant) {
        self.health.accepted(now);
        self.accepted = Some(now);
    }

    /// It answered in one.
    pub(super) fn answered(&mut self, now: Instant) {
        self.health.answered();
        self.answered = Some(now);
    }

    /// Its connections may be gone: they count when it speaks of them again.
    pub(super) fn fall_silent(&mut self, now: Instant, sweep: &mut Sweep) {
        self.silent_until = sweep.sweeps().wanted;
        sweep.call(now);
    }
}

impl Running {
    pub(super) fn new(service: &Service, network: Network, seed: u64) -> Running {
        Running {
            service: Service { backends: Vec::new(), ..service.clone() },
            network,
            fronts: Vec::new(),
            servers: Vec::new(),
            lookup: Lookup::default(),
            chooser: Chooser::new(seed),
            loads: Vec::new(),
            stats: ServiceStats::default(),
            budget: Budget::default(),
            is_limited: false,
            queue: VecDeque::new(),
            has_freed: false,
            back_at: None,
        }
    }

    /// Takes over what the operator says. Who stays keeps its number; who comes gets one that is
    /// free, under another generation. True where a backend is gone.
    pub(super) fn change(
        &mut self,
        now: Instant,
        service: Service,
        network: Network,
        keyed: &Keyed,
        sweeps: Sweeps,
    ) -> bool {
        let mut has_lost = false;
        // Where nobody was before, all start at once and share.
        let came = self.is_up().then_some(now);
        for server in &mut self.servers {
            let stays = |old: &Backend| service.backends.iter().find(|new| new.is(old)).cloned();
            let after = server.backend.as_ref().and_then(stays);
            if after.is_none() && server.backend.is_some() {
                has_lost = true;
                server.generation = server.generation.wrapping_add(1);
                server.former = if server.clean_after <= sweeps.done { 1 } else { server.former + 1 };
                server.clean_after = sweeps.wanted;
                (server.stats, server.health) = (BackendStats::default(), Health::default());
                (server.report, server.sent_since_report, server.prober) = (None, 0, None);
                (server.accepted, server.answered) = (None, None);
            }
            let weight = |backend: &Option<Backend>| backend.as_ref().map(|backend| backend.weight);
            if weight(&server.backend) == Some(0) && weight(&after).is_some_and(|weight| weight > 0) {
                server.came = came;
            }
            server.backend = after;
        }
        for new in &service.backends {
            let is_here = |server: &Server| server.backend.as_ref().is_some_and(|old| old.is(new));
            if self.servers.iter().any(is_here) {
                continue;
            }
            let is_free = |server: &Server| server.backend.is_none();
            let is_clean = |server: &Server| is_free(server) && server.clean_after <= sweeps.done;
            let is_full = self.servers.len() >= MOST_BACKENDS;
            let free = self.servers.iter().position(is_clean);
            match free.or_else(|| self.servers.iter().position(|server| is_full && is_free(server))) {
                Some(free) => {
                    let server = &mut self.servers[free];
                    (server.backend, server.came) = (Some(new.clone()), came);
                }
                None if !is_full => self.servers.push(Server { came, ..Server::new(new.clone()) }),
                None => {}
            }
        }
        for server in &mut self.servers {
            let is_drained = server.backend.as_ref().is_some_and(|backend| backend.weight == 0);
            server.drained = is_drained.then(|| server.drained.unwrap_or(now));
        }
        self.look_up(keyed);
        self.chooser.renew();
        self.loads = vec![Load::default(); self.servers.len()];
        self.is_limited = service.backends.iter().any(|backend| backend.max_connections.is_some());
        self.has_freed = true;
        self.service = service;
        self.network = network;
        has_lost
    }

    /// Whether a number has had so many generations since the last sweep that the next could be one
    /// that connections have.
    pub(super) fn is_worn_out(&self) -> bool {
        self.servers.iter().any(|server| server.former == u8::MAX)
    }

    /// Works out anew whom a hash names.
    pub(super) fn look_up(&mut self, keyed: &Keyed) {
        let seats: Vec<Seat> = self
            .servers
            .iter()
            .zip(0u8..)
            .filter_map(|(server, number)| {
                let backend = server.backend.as_ref()?;
                let identity = keyed.hash_one((backend.ipv4, backend.ipv6, backend.port));
                Some(Seat { number, identity, weight: backend.weight })
            })
            .collect();
        self.lookup = Lookup::build(&seats, keyed);
    }

    pub(super) fn is_up(&self) -> bool {
        self.servers.iter().any(|server| server.backend.as_ref().is_some_and(|backend| backend.weight > 0))
    }

    /// Whether health and weights let anybody have a connection.
    pub(super) fn takes_any(&self, now: Instant) -> bool {
        let ignores_health = self.is_in_panic(now);
        let has_weight = |server: &Server| server.backend.as_ref().is_some_and(|backend| backend.weight > 0);
        self.servers.iter().any(|server| has_weight(server) && self.may_have_more(server, now, ignores_health))
    }

    pub(super) fn candidates(&self, hash: u64) -> [usize; 2] {
        self.lookup.candidates(hash).unwrap_or_default().map(usize::from)
    }

    /// Backends that can have a connection with this hash: its candidates, those that keep what
    /// they have while they are drained, and all where they are few.
    pub(super) fn order(&self, hash: u64) -> Order {
        let mut order = Order::default();
        let all = || self.servers.iter().enumerate().filter_map(|(at, server)| Some((at, server.backend.as_ref()?)));
        self.lookup.candidates(hash).into_iter().flatten().for_each(|at| order.push(usize::from(at)));
        all().filter(|(_, backend)| backend.weight == 0).for_each(|(at, _)| order.push(at));
        if self.servers.len() <= MOST_ASKED {
            all().for_each(|(at, _)| order.push(at));
        }
        order
    }

    /// Whether so little of the weight is healthy that health says nothing.
    pub(super) fn is_in_panic(&self, now: Instant) -> bool {
        let weights = self.servers.iter().filter_map(|s| Some((s.backend.as_ref()?.weight, s.is_well(now))));
        choose::is_in_panic(weights, self.service.panic_ppm)
    }

    /// Whether a backend can have a connection of somebody: one outside none from outside, unless
    /// somebody pays for the way back out.
    pub(super) fn fits(&self, backend: &Backend, like: IpAddr, is_outside: bool) -> bool {
        let is_near = !is_outside || backend.endpoint.is_some() || self.service.director.is_some();
        is_near && backend.ip(like).is_some()
    }

    /// Whether health lets a server have a new connection. One whose connections end since it is
    /// down gets none, although health is ignored: they would end as well.
    pub(super) fn may_have_more(&self, server: &Server, now: Instant, ignores_health: bool) -> bool {
        let ends = self.service.on_failure == OnFailure::Reset && server.is_down();
        server.is_well(now) || ignores_health && !ends
    }

    /// What the policy is to know of a server: one that does not fit takes no connection, one
    /// that is not well none unless health is ignored, and none takes its own.
    fn load(&self, server: &Server, now: Instant, from: Asker, ignores_health: bool) -> Load {
        let Some(backend) = &server.backend else { return Load::default() };
        // Only relations count, so all are in the same unit.
        let weight = match self.service.slow_start_ns {
            0 => backend.weight,
            slow_start_ns => backend.weight * server.part(now, slow_start_ns) as u32,
        };
        let is_well = self.may_have_more(server, now, ignores_health);
        let period = self.service.report_period_ns.saturating_mul(choose::REPORT_PERIODS);
        Load {
            takes: is_well && self.fits(backend, from.like, from.is_outside) && !from.is(backend) && !server.is_full(),
            weight,
            busy: server.stats.busy,
            idle: server.stats.idle,
            cores: backend.cores,
            report: server.report.map(|(at, load)| Report {
                load,
                is_fresh: now.since(at) <= period,
                sent_since: server.sent_since_report,
            }),
        }
    }

    /// The backend that is chosen without asking all, so that a choice takes as long of 200 as of
    /// two: where the client was before, or what the policy makes of the candidates alone, if these
    /// take connections. `None` where all have to be asked.
    #[inline]
    pub(super) fn choose_at_once(
        &self,
        now: Instant,
        from: Asker,
        stays: Option<usize>,
        candidates: [usize; 2],
    ) -> Option<usize> {
        let load = |at: usize| {
            let load = self.load(self.servers.get(at)?, now, from, false);
            load.is_eligible().then_some(load)
        };
        let [a, b] = candidates;
        match self.service.policy {
            _ if stays.is_some() => stays.filter(|&at| load(at).is_some()),
            Policy::P2c => Some(if load(b)?.has_less_than(&load(a)?) { b } else { a }),
            Policy::Maglev => load(a).map(|_| a),
            _ => None,
        }
    }

    /// What the policy is to know of all. A backend gets its own connection only where there is no
    /// other, and one that was tried already (`avoid`) none.
    pub(super) fn fill(&self, loads: &mut [Load], now: Instant, from: Asker, avoid: Option<u8>) {
        let ignores_health = self.is_in_panic(now);
        let mut others = false;
        for (load, server) in loads.iter_mut().zip(&self.servers) {
            *load = self.load(server, now, from, ignores_health);
            others |= load.takes && server.backend.as_ref().is_some_and(|backend| backend.weight > 0);
        }
        if !others {
            for (load, server) in loads.iter_mut().zip(&self.servers) {
                let is_well = self.may_have_more(server, now, ignores_health);
                let backend = server.backend.as_ref();
                let fits = backend.is_some_and(|backend| self.fits(backend, from.like, from.is_outside));
                load.takes = is_well && fits && !server.is_full();
            }
        }
        if let Some(avoid) = avoid {
            if let Some(load) = loads.get_mut(usize::from(avoid)) {
                load.takes = false;
            }
            let is_doubtful = |at: usize| self.servers[at].health.is_doubtful();
            let any_sure = loads.iter().enumerate().any(|(at, load)| load.is_eligible() && !is_doubtful(at));
            for (at, load) in loads.iter_mut().enumerate() {
                load.takes &= !(any_sure && is_doubtful(at));
            }
        }
    }
}

/// Counts a connection, or counts it no more.
pub(super) fn count(stats: &mut BackendStats, kind: Option<Kind>, more: bool) {
    let of = match kind {
        Some(Kind::Busy) => &mut stats.busy,
        Some(Kind::Idle) => &mut stats.idle,
        Some(Kind::Unconfirmed) => &mut stats.unconfirmed,
        None => return,
    };
    *of = if more { of.saturating_add(1) } else { of.saturating_sub(1) };
}

/// Whether such a connection has one of the places that its backend may give: then another one can
/// have it when it ends.
pub(super) const fn has_place(kind: Option<Kind>) -> bool {
    matches!(kind, Some(Kind::Busy | Kind::Idle))
}
