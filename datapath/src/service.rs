//! Services: addresses that several backends answer for.
//!
//! The switch chooses a backend for each new connection and keeps every open one where it is. It
//! sees both directions of each connection, so it knows how much a backend has in flight without
//! being told. A frame for a service gets the backend's addresses and port when it enters, and what
//! the backend answers gets the service's: everything behind this stage (forwarding, limits,
//! queues) knows only endpoints.
//!
//! [`Services::decide`] says what is to be done with a frame and changes nothing;
//! [`Services::forward`], [`Services::back`] and the like do it. Tables are bounded, and what a
//! tenant holds of them is its own ([`connections`]).

mod affinity;
pub mod ahead;
pub mod answer;
mod ask;
mod check;
pub mod choose;
pub mod connections;
mod decide;
pub mod entry;
mod flaps;
mod fragments;
mod fronts;
mod handover;
pub mod health;
mod held;
pub mod inner;
pub mod maglev;
mod outcome;
mod recent;
mod recover;
mod retry;
mod roles;
mod room;
mod running;
mod shared;
mod shown;
mod spec;
mod sweep;
mod taken;
pub mod translate;
mod turn;

use crate::change_error::ChangeError;
use crate::ids::EndpointId;
use crate::network::Network;
use crate::offload::Offload;
use crate::random::Keyed;
use crate::slots::Slots;
use crate::table::{Id, Left};
use crate::units::{Instant, Rate};
use crate::verdict::Reason;
use crate::wire::{L4, Layout, source};
use affinity::{Affinity, NEW};
pub use affinity::{ClientState, MOST_CLIENTS};
use answer::{Answer, Part};
pub use ask::{Ask, Http, Tls};
pub use check::{Check, Checked, Probe};
use choose::{Load, MOST_BACKENDS};
use connections::{BUCKETS, Connections, DEFAULT_CONNECTIONS, NoRoom, Opener, Removed};
use decide::ends;
pub(crate) use decide::segment;
pub use decide::{Decision, Known};
pub(crate) use entry::Key;
use entry::{Entry, State};
use fragments::{FragmentKey, Fragments};
use fronts::{Front, Fronts, MOST_TARGETS, Role};
pub use handover::{BackendName, ConnectionState, ServiceState, TurnState};
use held::Holdings;
pub(crate) use held::Released;
use inner::Quoted;
use recent::Recent;
pub(crate) use recent::Words;
use retry::Syns;
pub use retry::{Again, Failure};
use running::{Asker, Running, Server, count, has_place};
pub use running::{BackendStats, ServiceStats};
pub use shown::Shown;
pub use spec::{
    Address, Backend, DEFAULT_PANIC_PPM, MOST_ADDRESSES, MOST_FRONTS, MOST_FRONTS_OF_TARGET, OnFailure, Service,
    ServiceId, WhenDown,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
pub use sweep::PLACES as SWEPT_PLACES;
use sweep::Sweep;
use translate::{End, set_end, set_mac, set_packet};
use turn::Turns;

/// What a tenant has here.
#[derive(Clone, Copy, Debug, Default)]
struct OfTenant {
    services: u32,
    /// Those of them that remember their clients.
    with_affinity: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Services {
    keyed: Keyed,
    /// What candidates are drawn by: see [`Services::set_key`].
    service_key: Keyed,
    /// Until when connections may be open that the table does not know.
    recovers_until: Option<Instant>,
    seed: u64,
    all: Slots<Running>,
    fronts: Fronts,
    /// Tenants that have services.
    tenants: BTreeMap<u32, OfTenant>,
    connections: Connections,
    turns: Turns,
    sweep: Sweep,
    recent: Recent,
    fragments: Fragments,
    syns: Syns,
    /// Backends that are checked, by when there is something to do: service and number.
    checks: BTreeSet<(Instant, u32, u8)>,
    affinity: Affinity,
    holdings: Holdings,
    most: u32,
}

/// Who asks for a connection to a front.
fn asker(front: &Front, key: &Key, from: Option<EndpointId>) -> Asker {
    Asker { like: front.address.ip, client: key.client, is_outside: from.is_none() }
}

/// Where all backends are full, what is over is looked for in so many buckets at once of a tenant's
/// connections, and in that of who asks.
const FORGET_AT_ONCE: u32 = 8;

impl Services {
    /// None.
    #[must_use]
    pub fn new(seed: u64) -> Services {
        let keyed = Keyed::new(seed ^ 0x7365_7276_6963_6573);
        Services {
            keyed,
            service_key: keyed,
            recovers_until: None,
            seed,
            all: Slots::default(),
            fronts: Fronts::new(),
            tenants: BTreeMap::new(),
            connections: Connections::new(keyed, DEFAULT_CONNECTIONS),
            turns: Turns::new(keyed, DEFAULT_CONNECTIONS),
            sweep: Sweep::default(),
            recent: Recent::new(keyed.hash_one(0u64)),
            fragments: Fragments::new(keyed),
            syns: Syns::default(),
            checks: BTreeSet::new(),
            affinity: Affinity::new(keyed),
            holdings: Holdings::new(keyed),
            most: DEFAULT_CONNECTIONS,
        }
    }

    /// Whether a network has services: who has none pays this comparison.
    #[must_use]
    #[inline]
    pub fn are_in(&self, network: Network) -> bool {
        self.fronts.are_in(network)
    }

    /// An endpoint behind the service's address that an IP packet is for; where all backends are
    /// outside, its director.
    #[must_use]
    pub fn asked(&self, network: Network, bytes: &[u8], layout: &Layout) -> Option<EndpointId> {
        let (_, to) = ends(bytes, layout)?;
        let (_, service) = self.fronts.role(network, to)?.mac?;
        let service = &self.all.get(service.0)?.service;
        service.backends.iter().find_map(|backend| backend.endpoint).or(service.director)
    }

    /// The key that candidates are drawn by, which is to be the same after a restart and which
    /// nobody outside is to know. To be said before the first frame.
    pub fn set_key(&mut self, key: u64) {
        self.service_key = Keyed::new(key);
        for running in self.all.values_mut() {
            running.look_up(&self.service_key);
        }
    }

    /// Changes how many connections are kept at most: of many more, as soon as there is room for
    /// them ([`Services::go_on`]).
    pub fn set_most(&mut self, most: u32) {
        self.most = most;
        if !self.all.is_empty() {
            self.connections.grow_to(most);
        }
        if self.turns.have_room() {
            self.grow_turns();
        }
    }

    fn grow_turns(&mut self) {
        self.turns.grow_to(self.most, self.connections.places(), self.connections.owners());
    }

    /// Whether a table becomes longer: then [`Services::go_on`] is to be called.
    #[must_use]
    pub fn are_growing(&self) -> bool {
        self.turns.are_growing() || self.connections.is_growing()
    }

    /// Makes a part of what a table becomes longer by; see [`crate::table::Table::go_on`].
    pub fn go_on(&mut self) -> u32 {
        // A connection is to find room there for its turn.
        if self.turns.are_growing() { self.turns.go_on() } else { self.connections.go_on() }
    }

    /// What a table does not need any more since it grew.
    pub fn take_left(&mut self) -> Option<Left> {
        self.turns.take_left().or_else(|| self.connections.take_left())
    }

    /// Adds, changes or removes a service. A backend that stays keeps its connections; those of one
    /// that goes are over, and forgotten bit by bit ([`Services::sweep`]).
    pub fn set(&mut self, now: Instant, id: ServiceId, network: Network, service: Option<Service>) {
        if self.all.is_empty() && service.is_some() {
            self.connections.grow_to(self.most);
            self.recent.reserve();
        }
        if !self.turns.have_room() && service.as_ref().is_some_and(|service| service.director.is_some()) {
            self.grow_turns();
        }
        let before = self.all.get(id.0).map(|before| before.network);
        before.into_iter().for_each(|network| self.recent.forget(network));
        if service.is_some() && before != Some(network) {
            self.recent.forget(network);
        }
        if service.is_none() {
            self.release_all(id);
        }
        // After 255 removals of one backend during a sweep.
        while self.all.get(id.0).is_some_and(Running::is_worn_out) && self.sweep() > 0 {}
        let sweeps = self.sweep.sweeps();
        let before = self.all.take(id.0);
        let was = before.as_ref().map(|running| (running.service.tenant.0, running.service.affinity_ns > 0));
        let is = service.as_ref().map(|service| (service.tenant.0, service.affinity_ns > 0));
        let seed = self.seed.wrapping_add(u64::from(id.0));
        let new = || service.as_ref().map(|service| Running::new(service, network, seed));
        let Some(mut running) = before.or_else(new) else { return };
        self.fronts.withdraw(&running);
        self.unplan_checks(id, &mut running);
        let is_removed = service.is_none();
        let anew = service.as_ref().is_some_and(|service| check::asks_otherwise(&running.service, service));
        let mut has_lost = is_removed;
        match service {
            Some(service) => has_lost |= running.change(now, service, network, &self.service_key, sweeps),
            None => running.service.addresses.clear(),
        }
        let gone = self.fronts.gone(&running);
        has_lost |= !gone.is_empty();
        self.all.set(id.0, (!is_removed).then_some(running));
        if was != is {
            self.recount_tenants(was, is);
            // Whoever gets affinity by this number next knows none of these clients.
            if let Some((tenant, true)) = was
                && !is.is_some_and(|(_, has_affinity)| has_affinity)
            {
                self.affinity.forget(tenant, id);
            }
        }
        if has_lost {
            self.fronts.leave(&gone, sweeps.wanted);
            self.release_lost(None);
            self.sweep.begin();
        }
        if is_removed {
            self.fronts.forget(id);
        }
        // After some ten thousand addresses that went during a sweep.
        while self.is_sweeping() && self.all.get(id.0).is_some_and(|running| !self.fronts.have_room(running)) {
            self.sweep();
        }
        if let Some(running) = self.all.get_mut(id.0) {
            self.fronts.publish(id, running);
        }
        self.plan_checks(now, id, anew);
        self.sweep();
    }

    /// A service of a tenant, with affinity or without, was, and is.
    fn recount_tenants(&mut self, was: Option<(u32, bool)>, is: Option<(u32, bool)>) {
        if let Some((tenant, has_affinity)) = is {
            let of_tenant = self.tenants.entry(tenant).or_default();
            of_tenant.services += 1;
            of_tenant.with_affinity += u32::from(has_affinity);
        }
        if let Some((tenant, has_affinity)) = was
            && let Some(of_tenant) = self.tenants.get_mut(&tenant)
        {
            of_tenant.services -= 1;
            of_tenant.with_affinity -= u32::from(has_affinity);
            if of_tenant.services == 0 {
                self.tenants.remove(&tenant);
            }
        }
        for (tenant, _) in was.into_iter().chain(is) {
            let of_tenant = self.tenants.get(&tenant);
            let (has, has_affinity) = (of_tenant.is_some(), of_tenant.is_some_and(|of| of.with_affinity > 0));
            self.connections.set_owner(tenant, has);
            self.fragments.set_owner(tenant, self.tenants.len() as u32);
            self.syns.set_owner(tenant, has);
            self.affinity.set_owner(tenant, has_affinity);
        }
    }

    /// Whether a service's addresses are free, or its own already, and whether there is room for
    /// it.
    ///
    /// # Errors
    /// [`ChangeError::ServiceInUse`], [`ChangeError::ServicesFull`].
    pub fn check(&self, id: ServiceId, network: Network, service: &Service) -> Result<(), ChangeError> {
        let own = self.all.get(id.0).map_or(0, |running| running.fronts.len());
        let fronts = self.fronts.in_use() - own + service.addresses.len();
        if fronts > MOST_FRONTS || service.backends.len() > MOST_BACKENDS {
            return Err(ChangeError::ServicesFull);
        }
        let mut addresses = BTreeSet::new();
        let mut targets: HashMap<(IpAddr, u8, u16), usize> = HashMap::new();
        for address in &service.addresses {
            let is_free = self.fronts.is_free(network, address, (id, service.mac));
            if !is_free || !addresses.insert(*address) {
                return Err(ChangeError::ServiceInUse(address.ip, address.port));
            }
            for backend in &service.backends {
                let Some(ip) = backend.ip(address.ip) else { continue };
                let target = (ip, address.protocol, backend.port.unwrap_or(address.port));
                let others = || self.fronts.targets_of_others(id, network, target);
                let fronts = targets.entry(target).or_insert_with(others);
                *fronts += 1;
                if *fronts > MOST_TARGETS {
                    return Err(ChangeError::ServicesFull);
                }
            }
        }
        Ok(())
    }

    /// The service of a front that is in use.
    fn running(&self, front: u16) -> Option<(&Running, Front)> {
        let front = self.fronts.get(front)?;
        Some((self.all.get(front.service.0)?, front))
    }

    /// The backend of a connection, where it still is who it was.
    fn server(&self, key: &Key, entry: &Entry) -> Option<(&Running, Front, &Backend)> {
        let (running, front) = self.running(key.front)?;
        let server = running.servers.get(usize::from(entry.backend)).filter(|s| s.generation == entry.generation)?;
        Some((running, front, server.backend.as_ref()?))
    }

    fn running_mut(&mut self, key: &Key) -> Option<&mut Running> {
        let front = self.fronts.get(key.front)?;
        self.all.get_mut(front.service.0)
    }

    /// Whose a new connection is, and in which bucket: by endpoint, or by the client's address (of
    /// IPv6 its /64) where it is not here.
    fn opener(&self, key: &Key, from: Option<EndpointId>) -> Option<Opener> {
        let (running, _) = self.running(key.front)?;
        Some(Opener { owner: running.service.tenant.0, bucket: self.bucket(&key.client, from) })
    }

    /// The same without whose it is.
    #[inline]
    fn bucket(&self, &client: &[u8; 16], from: Option<EndpointId>) -> u32 {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = client;
        let prefix = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let hash = match from {
            Some(endpoint) => self.keyed.hash_one(endpoint),
            // IPv4 addresses are mapped into one prefix.
            None if prefix == 0 => self.keyed.hash_one(u64::from_be_bytes([i, j, k, l, m, n, o, p])),
            None => self.keyed.hash_one(prefix),
        };
        hash as u32 % BUCKETS
    }

    /// The backend that a new connection would get; `from` is the endpoint that asks.
    #[must_use]
    pub fn would_choose(&self, now: Instant, key: &Key, from: Option<EndpointId>, again: Option<Again>) -> Option<u8> {
        let (running, front) = self.running(key.front)?;
        let mut loads = vec![Load::default(); running.servers.len()];
        let asker = asker(&front, key, from);
        running.fill(&mut loads, now, asker, again.map(|again| again.avoid));
        let stays = self.stays_at(now, front.service, key.client).map(usize::from);
        let is_well = |at: &usize| loads[*at].is_eligible() && running.servers[*at].is_well(now);
        let candidates = running.candidates(self.candidate_hash(&front, key));
        let mut chooser = running.chooser.clone();
        let mut choose = |loads: &[Load]| chooser.choose(running.service.policy, loads, candidates);
        let mut chosen = stays.filter(is_well).or_else(|| choose(&loads));
        if again.is_none() && chosen.is_some_and(|at| self.is_taken(key, &asker, at)) {
            self.leave_free(key, &asker, &mut loads);
            chosen = choose(&loads);
        }
        chosen.map(|at| at as u8)
    }

    /// The same as [`Services::opener`], of a connection that is in the table already.
    fn opener_again(&self, key: &Key, from: Option<EndpointId>, again: Option<Again>) -> Option<Opener> {
        let opener = self.opener(key, from)?;
        let old = again.and_then(|_| self.connections.find(key));
        Some(old.map_or(opener, |id| Opener { bucket: self.connections.bucket(id), ..opener }))
    }

    /// Chooses a backend for a new connection and makes its entry; `from` is the endpoint that
    /// asks.
    ///
    /// # Errors
    /// [`Reason::ServiceDown`] where no backend is up, [`Reason::ServiceFull`] where there is no
    /// room.
    pub fn choose(
        &mut self,
        now: Instant,
        key: Key,
        from: Option<EndpointId>,
        is_tcp: bool,
        again: Option<Again>,
    ) -> Result<Known, Reason> {
        self.sweep.begin_if_called(now);
        if let Some(again) = &again {
            self.count_failure(now, &key, again);
        }
        let front = self.fronts.get(key.front).ok_or(Reason::ServiceUnknown)?;
        let hash = self.candidate_hash(&front, &key);
        let opener = self.opener_again(&key, from, again).ok_or(Reason::ServiceUnknown)?;
        let stays = self.stays_at(now, front.service, key.client).map(usize::from);
        let running = self.all.get_mut(front.service.0).ok_or(Reason::ServiceUnknown)?;
        let asker = asker(&front, &key, from);
        let candidates = running.candidates(hash);
        let at_once = match again {
            None => running.choose_at_once(now, asker, stays, candidates),
            Some(_) => None,
        };
        let chosen = at_once.or_else(|| {
            let mut loads = std::mem::take(&mut running.loads);
            running.fill(&mut loads, now, asker, again.map(|again| again.avoid));
            let stays = stays.filter(|&at| loads[at].is_eligible() && running.servers[at].is_well(now));
            let chosen = stays.or_else(|| running.chooser.choose(running.service.policy, &loads, candidates));
            running.loads = loads;
            chosen
        });
        let is_taken = again.is_none() && chosen.is_some_and(|at| self.is_taken(&key, &asker, at));
        let chosen = if is_taken { self.choose_free(now, &key, asker, candidates) } else { chosen };
        let running = self.all.get_mut(front.service.0).ok_or(Reason::ServiceUnknown)?;
        let stays = stays.filter(|&at| running.servers[at].is_well(now));
        running.stats.stayed += u64::from(stays.is_some() && chosen == stays);
        let Some(at) = chosen else {
            running.stats.refused += 1;
            if running.is_limited {
                // Nobody else comes in, with whom what is over would go.
                (0..FORGET_AT_ONCE).for_each(|_| self.forget(now, opener));
            }
            return Err(Reason::ServiceDown);
        };
        let is_off = !candidates.contains(&at) && !running.order(hash).contains(at as u8);
        let server = &running.servers[at];
        running.stats.unhealthy += u64::from(!server.is_well(now));
        let own = server.backend.as_ref().and_then(|backend| backend.ip(front.address.ip)).map(octets);
        let entry = Entry::new(at as u8, server.generation, is_tcp, own == Some(key.client));
        let entry = again.map_or(entry, |again| entry.after_tries(again.tries + 1));
        let added = self.replace(now, opener, key, entry);
        let Some(running) = self.all.get_mut(front.service.0) else { return Err(Reason::ServiceUnknown) };
        let known = match added {
            Ok(known) => known,
            Err(NoRoom) => {
                running.stats.full += 1;
                return Err(Reason::ServiceFull);
            }
        };
        // A client whose port is taken at its backend goes elsewhere this once.
        if running.service.affinity_ns > 0 && !is_taken {
            let at = (at as u8, running.servers[at].generation);
            self.remember_client(now, opener, ((front.service, key.client), NEW), at);
        }
        let Some(running) = self.all.get_mut(front.service.0) else { return Err(Reason::ServiceUnknown) };
        running.stats.new += u64::from(again.is_none());
        running.stats.off_candidates += u64::from(is_off);
        let server = &mut running.servers[at];
        server.stats.new += 1;
        server.stats.busy += 1;
        server.sent_since_report += 1;
        Ok(known)
    }

    /// A client's frame, to its backend: translated, and its connection is told. Whether it may go
    /// back to the endpoint that it is from.
    pub fn forward(
        &mut self,
        now: Instant,
        known: &Known,
        bytes: &mut [u8],
        layout: &Layout,
        offload: &Offload,
    ) -> bool {
        let Some(entry) = self.connections.get(known.id).copied() else { return false };
        let first = self.first(known, bytes, layout);
        let Some(owner) = self.to_backend(known, entry.is_hairpin(), bytes, layout, offload) else { return false };
        if first.is_some() && self.is_turned(known) {
            set_packet(bytes, layout, self.turns.next_packet());
        }
        self.remember(now, (owner, known), first, bytes, layout);
        let has_affinity = self.affinity.is_used();
        let is_used =
            has_affinity && self.connections.seen(known.id).is_some_and(|seen| now.since(seen) >= connections::SEEN_NS);
        let change = self.connections.update(now, known.id, |entry| match layout.l4 {
            L4::Tcp => entry.client_sends(&segment(bytes, layout)),
            _ => entry.datagram(false),
        });
        self.account(now, &known.key, change);
        // An acknowledgement of nothing that the backend has said opens nothing: it may be made up.
        let has_opened = |(before, after): (Entry, Entry)| {
            before.state == State::Answered && after.state == State::Open && after.client_ack == after.server_end
        };
        if is_used || has_affinity && change.is_some_and(has_opened) {
            self.stay(now, known);
        }
        entry.is_hairpin()
    }

    /// A backend's frame, to the client; `from` is the endpoint that it came from.
    pub fn back(
        &mut self,
        (now, from): (Instant, Option<EndpointId>),
        known: &Known,
        bytes: &mut [u8],
        layout: &Layout,
        offload: &Offload,
    ) -> bool {
        let Some(entry) = self.connections.get(known.id).copied() else { return false };
        let first = self.first(known, bytes, layout);
        let Some(owner) = self.to_client(known, entry.is_hairpin(), bytes, layout, offload) else { return false };
        self.remember(now, (owner, known), first, bytes, layout);
        let said = segment(bytes, layout);
        let broken_since = self.broken_since(now, known, &entry, &said);
        let change = self.connections.update(now, known.id, |entry| match layout.l4 {
            L4::Tcp => entry.server_sends(&said),
            _ => entry.datagram(true),
        });
        if let Some(change) = change {
            self.judge(now, (known, from), change, (&said, broken_since));
        }
        self.account(now, &known.key, change);
        entry.is_hairpin()
    }

    /// A connection ends, as its backend is let go.
    pub fn end(&mut self, now: Instant, known: &Known) {
        let change = self.connections.update(now, known.id, Entry::close);
        if let Some(server) = self.server_mut(&known.key, known.backend) {
            server.stats.cut += 1;
        }
        self.recount(&known.key, change);
    }

    /// Gives a frame the addresses and the port of its backend, and one of a backend that calls
    /// itself the service's as the sender's. Whose connection it is.
    pub(crate) fn to_backend(
        &self,
        known: &Known,
        is_hairpin: bool,
        bytes: &mut [u8],
        layout: &Layout,
        offload: &Offload,
    ) -> Option<u32> {
        let (running, front) = self.running(known.key.front)?;
        let backend = running.servers.get(usize::from(known.backend))?.backend.as_ref()?;
        let port = backend.port.unwrap_or(front.address.port);
        set_mac(bytes, End::Destination, backend.mac);
        set_end(bytes, layout, offload, End::Destination, (backend.ip(front.address.ip)?, port));
        if let Some((port, _)) = self.turns.get(known.id) {
            set_end(bytes, layout, offload, End::Source, (front.address.ip, port));
        } else if is_hairpin {
            set_end(bytes, layout, offload, End::Source, (front.address.ip, known.key.port));
        }
        Some(running.service.tenant.0)
    }

    /// Gives a frame of a backend the service's addresses and port as the sender's.
    pub(crate) fn to_client(
        &self,
        known: &Known,
        is_hairpin: bool,
        bytes: &mut [u8],
        layout: &Layout,
        offload: &Offload,
    ) -> Option<u32> {
        let (running, front) = self.running(known.key.front)?;
        let Address { ip, port, .. } = front.address;
        let turn = self.turns.get(known.id);
        // Of one that is turned around, agents are to know who it is from until it leaves again.
        let own = source(bytes);
        if turn.is_none() {
            set_mac(bytes, End::Source, running.service.mac);
        }
        set_end(bytes, layout, offload, End::Source, (ip, port));
        if let Some(to) = turn.map(|(_, client)| client).or(is_hairpin.then_some(own)) {
            set_mac(bytes, End::Destination, to);
            set_end(bytes, layout, offload, End::Destination, (address(known.key.client, ip), known.key.port));
        }
        Some(running.service.tenant.0)
    }

    /// Translates a frame of a client, or of a backend.
    pub(crate) fn cut_bytes(
        &self,
        known: &Known,
        is_client: bool,
        bytes: &mut [u8],
        layout: &Layout,
        offload: &Offload,
    ) {
        let is_hairpin = self.is_hairpin(known);
        match is_client {
            true => self.to_backend(known, is_hairpin, bytes, layout, offload),
            false => self.to_client(known, is_hairpin, bytes, layout, offload),
        };
    }

    /// An ICMP error about a connection: to the backend, or to the client.
    pub fn error(&self, known: &Known, to_backend: bool, bytes: &mut [u8], layout: &Layout, offload: &Offload) {
        let Some(quoted) = Quoted::of(bytes, layout) else { return };
        let Some(entry) = self.connections.get(known.id) else { return };
        let Some((running, front, backend)) = self.server(&known.key, entry) else { return };
        let Address { ip, port, .. } = front.address;
        let Some(target) = backend.ip(ip) else { return };
        let target = (target, backend.port.unwrap_or(port));
        let turn = self.turns.get(known.id);
        if to_backend {
            quoted.set_end(bytes, layout, offload, End::Source, target);
            set_end(bytes, layout, offload, End::Destination, target);
            set_mac(bytes, End::Destination, backend.mac);
            if let Some((port, _)) = turn {
                quoted.set_end(bytes, layout, offload, End::Destination, (ip, port));
                set_mac(bytes, End::Source, running.service.mac);
            }
        } else {
            quoted.set_end(bytes, layout, offload, End::Destination, (ip, port));
            if let Some((_, mac)) = turn {
                let client = (address(known.key.client, ip), known.key.port);
                quoted.set_end(bytes, layout, offload, End::Source, client);
                set_end(bytes, layout, offload, End::Destination, client);
                set_mac(bytes, End::Destination, mac);
                set_mac(bytes, End::Source, running.service.mac);
            }
            // A router in between speaks for itself.
            if ends(bytes, layout).is_some_and(|(source, _)| source == target.0) {
                set_end(bytes, layout, offload, End::Source, (ip, port));
                set_mac(bytes, End::Source, running.service.mac);
            }
        }
    }

    /// A later fragment: to where the first one went.
    pub fn fragment(&self, id: Id, bytes: &mut [u8], layout: &Layout, offload: &Offload) {
        if let Some(change) = self.fragments.get(id) {
            change.apply(bytes, layout, offload);
        }
    }

    /// Where a frame is the first fragment of its packet, what the others have in common with it.
    fn first(&self, known: &Known, bytes: &[u8], layout: &Layout) -> Option<FragmentKey> {
        if !layout.fragment || layout.later_fragment {
            return None;
        }
        let (running, _) = self.running(known.key.front)?;
        Some(FragmentKey::of(running.network, ends(bytes, layout)?, bytes, layout))
    }

    /// Remembers what was done with a first fragment.
    fn remember(
        &mut self,
        now: Instant,
        (owner, known): (u32, &Known),
        first: Option<FragmentKey>,
        bytes: &[u8],
        layout: &Layout,
    ) {
        if let (Some(key), Some(after)) = (first, ends(bytes, layout)) {
            let change = fragments::Change::to(bytes, layout, after, self.director(known));
            let opener = Opener { owner, bucket: self.connections.bucket(known.id) };
            self.fragments.insert(now, opener, key, change);
        }
    }

    /// A connection is no longer in the table.
    fn leave(&mut self, gone: Removed) {
        leave((&mut self.all, &mut self.turns), &self.fronts, &gone, false);
    }

    /// A server reports its load.
    pub fn report(&mut self, now: Instant, service: ServiceId, backend: usize, load: u64) {
        let server = self.all.get_mut(service.0).and_then(|running| running.servers.get_mut(backend));
        if let Some(server) = server {
            server.report = Some((now, load));
            server.sent_since_report = 0;
            server.stats.load = Some(load);
        }
    }

    /// Whether an answer to somebody outside may be given now.
    #[must_use]
    pub fn would_answer(&self, now: Instant, answer: Answer) -> bool {
        self.all.get(answer.service().0).is_some_and(|running| running.budget.is_left(now, answer))
    }

    /// May an answer of so many bytes on the wire be given to somebody outside, behind an uplink of
    /// this rate?
    pub fn may_answer(&mut self, now: Instant, answer: Answer, wire_bytes: u64, uplink: Rate) -> bool {
        let Some(running) = self.all.get_mut(answer.service().0) else { return false };
        let of_tenant = self.tenants.get(&running.service.tenant.0).copied().unwrap_or_default();
        let part = Part { uplink, tenants: self.tenants.len() as u32, services: of_tenant.services };
        running.budget.take(now, &part, wire_bytes, answer)
    }

    /// What a client gets where no backend is up.
    #[must_use]
    pub fn when_down(&self, key: &Key) -> Option<(ServiceId, WhenDown)> {
        self.running(key.front).map(|(running, front)| (front.service, running.service.when_down))
    }

    /// Whether a client is the backend that it gets.
    #[must_use]
    pub(crate) fn is_hairpin(&self, known: &Known) -> bool {
        let entry = self.connections.get(known.id).filter(|_| self.connections.find(&known.key) == Some(known.id));
        match entry {
            Some(entry) => entry.is_hairpin(),
            None => self.reached(&known.key, known.backend).is_some_and(|(ip, _)| octets(ip) == known.key.client),
        }
    }
}

/// A connection is no longer in the table. One that was over already is not evicted.
fn leave(
    (all, turns): (&mut Slots<Running>, &mut Turns),
    fronts: &Fronts,
    (id, key, entry): &Removed,
    is_evicted: bool,
) {
    turns.forget(*id);
    let Some(running) = fronts.service(key.front).and_then(|service| all.get_mut(service.0)) else { return };
    let server = running.servers.get_mut(usize::from(entry.backend)).filter(|s| s.generation == entry.generation);
    let Some(server) = server else { return };
    count(&mut server.stats, entry.kind(), false);
    running.has_freed |= has_place(entry.kind());
    running.stats.evicted += u64::from(is_evicted && entry.state != State::Closed && fronts.get(key.front).is_some());
}

/// An address as keys have it.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// An address out of a key, of the same IP version as another.
fn address(octets: [u8; 16], like: IpAddr) -> IpAddr {
    let [.., a, b, c, d] = octets;
    match like {
        IpAddr::V4(_) => Ipv4Addr::new(a, b, c, d).into(),
        IpAddr::V6(_) => Ipv6Addr::from(octets).into(),
    }
}

#[cfg(test)]
mod tests;
