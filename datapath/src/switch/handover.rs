//! Handover: what a switch knows beside its program, for the switch that goes on after it.
//!
//! After a planned restart addresses need not be learned again, counters go on, and nobody has a
//! burst that a limit or a budget had already refused. What waits in queues is not handed over: the
//! shell lets it drain. A [`State`] is plain data under a version; how it is written down, and
//! which name stands for which number, is the shell's business. Importing trusts nothing: what does
//! not fit the program that runs is left out and counted, and no value, however wrong, does more
//! than a full budget or an empty one would.

use super::{NumbersState, Switch};
use crate::bond::lacp::Record;
use crate::bond::number::Encoding;
use crate::bond::{MemberId, MembersState, PeerState};
use crate::flood::Saved;
use crate::frame::Pool;
use crate::network::{Network, slot};
use crate::pair::{PairStats, Toward};
use crate::police::Tokens;
use crate::program::{EndpointId, PortId, TenantId};
use crate::sched::limits::Plane;
use crate::service::{ServiceId, ServiceState};
use crate::stats::{EndpointStats, LaneStats};
use crate::units::{Both, Direction, Instant, Rate};
use crate::vcc::Counters;
use crate::vcc::early::Part;
use crate::verdict::{DropCounters, Reason};
use crate::wire::{Mac, vlan};
use core::net::IpAddr;
use std::error::Error;
use std::fmt;

/// What one switch hands to the next. A number in it is a slot of the program that ran, or that is
/// to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// [`State::VERSION`] of who exported it.
    pub version: u32,
    /// By endpoint.
    pub endpoints: Vec<(EndpointId, EndpointState)>,
    /// By tenant.
    pub tenants: Vec<(TenantId, TenantState)>,
    /// Drops of frames that belonged to no endpoint.
    pub uplink_drops: DropCounters,
    /// What tenants had counted at the uplink that are gone.
    pub former: Both<LaneStats>,
    /// Saved flood budget of the untagged network from the uplink.
    pub uplink_flood: Saved,
    /// What was seen outside, of each network the newest first.
    pub outside: Vec<SeenOutside>,
    /// Networks in which more may be outside than that.
    pub crowded: Vec<Crowded>,
    /// Connections of virtual congestion control: see [`crate::vcc::saved`].
    pub vcc: Vec<u8>,
    /// Of those that were handed over early, which are unchanged: see [`crate::vcc::early`].
    pub vcc_unchanged: Vec<u8>,
    /// By service.
    pub services: Vec<(ServiceId, ServiceState)>,
    /// Nanoseconds for which connections to services may be open that none of them knows.
    pub recovers_ns: u64,
    /// What the uplink's bond knows of the other end.
    pub bond: Option<PeerState>,
    /// Over which members numbers may come that nobody takes off; `None` of an older process.
    pub numbers: Option<NumbersState>,
    /// What LACP has agreed on with the other ends of the uplink's members.
    pub lacp: Vec<(MemberId, Record)>,
    /// How the uplink's members are used: the switch does not know, and neither writes nor reads
    /// it.
    pub members: MembersState,
}

impl State {
    /// Goes up when a field's meaning changes.
    pub const VERSION: u32 = 1;
}

/// Of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EndpointState {
    /// Its counters. What waited is not handed over.
    pub stats: EndpointStats,
    /// Addresses learned behind it.
    pub learned: Vec<Learned>,
    /// Undeclared IP addresses that it came first with, the newest first.
    pub held: Vec<HeldAddress>,
    /// Nanoseconds until what it sent is paid for, where it has a limit.
    pub owed_ns: Both<u64>,
    /// Saved flood budget.
    pub flood: Saved,
    /// What its policer's bucket held, where ingress is policed and anything has arrived.
    pub tokens: Option<Tokens>,
    /// Its pair limits.
    pub pairs: Vec<PairState>,
    /// What virtual congestion control counted, where there was any.
    pub vcc: Option<Box<Counters>>,
}

/// A limit on what an endpoint sends toward a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairState {
    /// Toward whom.
    pub to: Toward,
    /// At most so much.
    pub rate: Rate,
    /// Nanoseconds until what was sent is paid for.
    pub owed_ns: u64,
}

/// An address that was learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Learned {
    /// The address.
    pub mac: Mac,
    /// VLAN, behind trunks; else 0.
    pub vlan: u16,
    /// Nanoseconds until it is forgotten unless it is seen again.
    pub left_ns: u64,
}

/// An IP address that an endpoint holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldAddress {
    /// The address.
    pub address: IpAddr,
    /// The MAC address that it gave for it.
    pub mac: Mac,
    /// Nanoseconds until it is forgotten unless it is used again.
    pub left_ns: u64,
}

/// An address that was seen outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenOutside {
    /// In whose network; `None`: the untagged one.
    pub tenant: Option<TenantId>,
    /// The MAC address.
    pub mac: Mac,
    /// The IP address that it was given for, and whether by a router; `None`: frames came from it.
    pub address: Option<(IpAddr, bool)>,
    /// Nanoseconds until it is forgotten unless it is seen again.
    pub left_ns: u64,
}

/// A network in which more addresses may be outside than are known: who has none yet gets none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crowded {
    /// Whose network; `None`: the untagged one.
    pub tenant: Option<TenantId>,
    /// For how many nanoseconds that is so of MAC addresses.
    pub macs_ns: u64,
    /// For how many of IP addresses.
    pub ips_ns: u64,
}

/// Of a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TenantState {
    /// Its counters, those of endpoints that are gone included.
    pub stats: Both<LaneStats>,
    /// Nanoseconds until what it sent is paid for, where it has a limit.
    pub owed_ns: Both<u64>,
    /// What is used of its budget for copies, in nanoseconds at its rate.
    pub flood_used_ns: u64,
    /// Saved flood budget of its own network from the uplink.
    pub uplink_flood: Saved,
}

/// What became of an imported state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Imported {
    /// Endpoints that go on with theirs.
    pub endpoints: usize,
    /// Tenants that do.
    pub tenants: usize,
    /// Addresses that are known again: learned, held or seen outside.
    pub learned: usize,
    /// Pairs that are limited again.
    pub pairs: usize,
    /// Connections of virtual congestion control that go on as they were.
    pub vcc: usize,
    /// Connections to services that go on.
    pub connections: usize,
    /// What does not fit the program, or is there twice.
    pub ignored: usize,
}

/// A state of another version; this switch starts without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherVersion(pub u32);

impl fmt::Display for OtherVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the state has version {}, and this switch reads version {}", self.0, State::VERSION)
    }
}

impl Error for OtherVersion {}

impl Switch {
    /// What the next switch should know. Takes time in proportion to the endpoints and learned
    /// addresses.
    #[must_use]
    pub fn export(&self, now: Instant) -> State {
        self.export_since(now, &[])
    }

    /// The same behind `early` parts of the connections of virtual congestion control.
    #[must_use]
    pub fn export_since(&self, now: Instant, early: &[Part]) -> State {
        let (egress, ingress) = (self.egress.limits(), self.ingress.limits());
        let pair = |from: EndpointId| {
            move |PairStats { to, rate, .. }| PairState { to, rate, owed_ns: self.pairs.wait_ns(now, from, to) }
        };
        let endpoint = |id: u32| {
            let (at, id) = (id as usize, EndpointId(id));
            let learned = self.fdb.learned_by(now, id);
            let state = EndpointState {
                stats: self.endpoint_stats(id),
                learned: learned.map(|(vlan, mac, left_ns)| Learned { mac, vlan, left_ns }).collect(),
                held: self.held_by(now, id).collect(),
                owed_ns: Both {
                    egress: egress.endpoints[at].wait_ns(now),
                    ingress: ingress.endpoints[at].wait_ns(now),
                },
                flood: self.floods[at].saved(now),
                tokens: self.policer.as_ref().and_then(|policer| policer.tokens(now, id)),
                pairs: self.pairs.of(id).map(pair(id)).collect(),
                vcc: self.vcc.counters(id).cloned().map(Box::new),
            };
            (id, state)
        };
        let tenant = |id: u32| {
            let owed_ns = Both {
                egress: egress.tenants[id as usize].wait_ns(now),
                ingress: ingress.tenants[id as usize].wait_ns(now),
            };
            let state = TenantState {
                stats: self.tenant_stats(TenantId(id)),
                owed_ns,
                flood_used_ns: self.tenant_floods[id as usize].used_ns(now),
                uplink_flood: self.uplink_floods[slot(Network(id))].saved(now),
            };
            (TenantId(id), state)
        };
        let (vcc, vcc_unchanged) = self.vcc.export_since(now, early);
        State {
            version: State::VERSION,
            endpoints: self.program.endpoints.iter().map(|(id, _)| endpoint(id)).collect(),
            tenants: self.program.tenants.iter().map(|(id, _)| tenant(id)).collect(),
            uplink_drops: self.uplink_drops.clone(),
            former: self.former,
            uplink_flood: self.uplink_floods[slot(Network::UNTAGGED)].saved(now),
            outside: self.seen_outside(now).collect(),
            crowded: self.crowded(now).collect(),
            vcc,
            vcc_unchanged,
            services: self.services.export(now),
            recovers_ns: self.services.recovers_ns(now),
            bond: self.bond.as_ref().and_then(|bond| bond.export()),
            numbers: Some(self.export_numbers()),
            lacp: self.bond.as_ref().map(|bond| bond.export_lacp()).unwrap_or_default(),
            members: MembersState::default(),
        }
    }

    /// Another switch goes on for this one, or does so no more: see
    /// [`crate::bond::Bond::set_leaving`]. To be called before the state is exported.
    pub fn set_leaving(&mut self, pool: &mut Pool, now: Instant, is_leaving: bool) {
        let Some(bond) = &mut self.bond else { return };
        let freed = bond.set_leaving(pool, now, is_leaving);
        self.uplink_drops.add(Reason::PortDown, freed.into());
        self.follow_members(now);
    }

    /// Ports of the uplink that may bring a frame that others wait for, the likeliest first. To be
    /// read one frame at a time before [`Switch::set_leaving`], which lets go what still waits.
    #[must_use]
    pub fn awaited_ports(&self) -> Vec<PortId> {
        let (Some(bond), Some(uplink)) = (&self.bond, &self.program.uplink) else { return Vec::new() };
        bond.awaited().into_iter().map(|member| uplink.port_of(member)).collect()
    }

    /// IP addresses that an endpoint came first with.
    pub fn held_by(&self, now: Instant, endpoint: EndpointId) -> impl Iterator<Item = HeldAddress> + '_ {
        let (network, identity) =
            (self.forward.network(endpoint), &self.program.endpoints[endpoint.0 as usize].identity);
        let held = self.owners.held_by(now, endpoint);
        let held = held.filter(move |&(address, ..)| self.owners.may_hold(network, identity, address));
        held.map(|(address, mac, left_ns)| HeldAddress { address, mac, left_ns })
    }

    /// The untagged network, and each tenant's.
    fn networks(&self) -> impl Iterator<Item = (Option<TenantId>, Network)> + '_ {
        let tenants = self.program.tenants.iter().map(|(id, _)| Some(TenantId(id)));
        [None].into_iter().chain(tenants).map(|tenant| (tenant, network_of(tenant)))
    }

    /// Networks in which more addresses may be outside than are known.
    fn crowded(&self, now: Instant) -> impl Iterator<Item = Crowded> + '_ {
        let all = self.networks().map(move |(tenant, network)| Crowded {
            tenant,
            macs_ns: self.fdb.crowded_ns(now, network),
            ips_ns: self.owners.crowded_ns(now, network),
        });
        all.filter(|crowded| crowded.macs_ns > 0 || crowded.ips_ns > 0)
    }

    /// All that was seen outside.
    pub fn seen_outside(&self, now: Instant) -> impl Iterator<Item = SeenOutside> + '_ {
        self.networks().flat_map(move |(tenant, network)| {
            // Only where somebody learns addresses does it matter.
            let macs = self.forward.learns(network).then(|| self.fdb.outside(now, network)).into_iter().flatten();
            let macs = macs.filter(move |&(mac, _)| self.fdb.find(now, network, 0, mac).is_none());
            let macs = macs.map(move |(mac, left_ns)| SeenOutside { tenant, mac, address: None, left_ns });
            let ips = self.owners.outside(now, network);
            macs.chain(ips.map(move |(address, mac, is_router, left_ns)| SeenOutside {
                tenant,
                mac,
                address: Some((address, is_router)),
                left_ns,
            }))
        })
    }

    /// Takes in connections of virtual congestion control that were written down `age_ns` ago,
    /// while the switch before still forwards. What that knows at last ([`Switch::import`]) is to
    /// follow.
    pub fn import_early(&mut self, now: Instant, age_ns: u64, records: &[u8]) {
        self.vcc.import_early(now, age_ns, records);
    }

    /// Forgets them, where nothing has followed.
    pub fn forget_early(&mut self, now: Instant) {
        self.vcc.import(now, &[], &[]);
    }

    /// Goes on where another switch exported `state`, `away_ns` ago. For a new switch, before its
    /// first frame; on one that has counted already, counters are added. Pair limits hold on:
    /// whoever would have lifted them finds them with [`Switch::pairs`].
    ///
    /// # Errors
    /// The state has another version; nothing was imported.
    pub fn import(&mut self, now: Instant, away_ns: u64, state: &State) -> Result<Imported, OtherVersion> {
        if state.version != State::VERSION {
            return Err(OtherVersion(state.version));
        }
        let mut imported = Imported::default();
        for (id, endpoint) in &state.endpoints {
            let Some(most) = self.program.endpoints.get(id.0).map(|endpoint| endpoint.max_learned as usize) else {
                imported.ignored += 1;
                continue;
            };
            imported.endpoints += 1;
            self.import_endpoint(now, away_ns, *id, endpoint);
            // The oldest first, of those for which there is room.
            imported.ignored += endpoint.learned.len().saturating_sub(most);
            for learned in endpoint.learned.iter().take(most).rev() {
                if self.import_learned(now, away_ns, *id, learned) {
                    imported.learned += 1;
                } else {
                    imported.ignored += 1;
                }
            }
            for held in endpoint.held.iter().rev() {
                if self.import_held(now, away_ns, *id, held) {
                    imported.learned += 1;
                } else {
                    imported.ignored += 1;
                }
            }
            for pair in &endpoint.pairs {
                if self.import_pair(now, away_ns, *id, pair) {
                    imported.pairs += 1;
                } else {
                    imported.ignored += 1;
                }
            }
        }
        // After the endpoints, whose addresses are not outside.
        for seen in state.outside.iter().rev() {
            if self.import_outside(now, away_ns, seen) {
                imported.learned += 1;
            } else {
                imported.ignored += 1;
            }
        }
        for &Crowded { tenant, macs_ns, ips_ns } in &state.crowded {
            if self.has_network(tenant) {
                self.fdb.crowd(now, network_of(tenant), macs_ns.saturating_sub(away_ns));
                self.owners.crowd(now, network_of(tenant), ips_ns.saturating_sub(away_ns));
            }
        }
        let (known, unknown) = self.vcc.import(now, &state.vcc, &state.vcc_unchanged);
        imported.vcc += known;
        imported.ignored += unknown;
        for (id, service) in &state.services {
            let (done, ignored) = self.services.import(now, away_ns, *id, service);
            imported.connections += done;
            imported.ignored += ignored;
        }
        self.services.recover_for(now, state.recovers_ns.saturating_sub(away_ns));
        if let Some(state) = &state.bond
            && !self.bond.as_mut().is_some_and(|bond| bond.restore(now, state))
        {
            imported.ignored += 1;
        }
        self.import_numbers(&state.numbers.clone().unwrap_or_else(|| self.supposed_numbers(state)));
        if !state.lacp.is_empty() && !self.bond.as_mut().is_some_and(|bond| bond.restore_lacp(now, &state.lacp)) {
            imported.ignored += 1;
        }
        // After the endpoints: what their lanes have counted is part of what their tenant has.
        for (id, tenant) in &state.tenants {
            if self.program.tenants.get(id.0).is_none() {
                self.count_former(&tenant.stats);
                imported.ignored += 1;
                continue;
            }
            imported.tenants += 1;
            for direction in Direction::ALL {
                let scheduler = self.scheduler(direction);
                scheduler.tree_mut(Plane::Wire).restore_tenant(*id, tenant.stats.get(direction));
                let limit = &mut scheduler.limits_mut().tenants[id.0 as usize];
                limit.restore(now, tenant.owed_ns.get(direction).saturating_sub(away_ns));
            }
            self.tenant_floods[id.0 as usize].restore(now, away_ns, tenant.flood_used_ns);
            self.uplink_floods[slot(Network(id.0))].restore(now, away_ns, tenant.uplink_flood);
            if let Some(policer) = &mut self.policer {
                policer.tenant_passed_mut(*id).count_on(&tenant.stats.ingress.traffic);
            }
        }
        self.count_former(&state.former);
        self.uplink_drops.count_on(&state.uplink_drops);
        self.uplink_floods[slot(Network::UNTAGGED)].restore(now, away_ns, state.uplink_flood);
        Ok(imported)
    }

    /// What an older process says of numbers: over which members it had agreed on them. How they
    /// look, the settings of this one say.
    fn supposed_numbers(&self, state: &State) -> NumbersState {
        let settings = self.bond.as_ref().map(|bond| bond.settings());
        let are_tags = settings.is_none_or(|settings| settings.encoding == Encoding::Tag);
        let members = state.bond.iter().flat_map(|bond| &bond.members).filter(|_| are_tags).map(|&(id, _)| id);
        NumbersState { members: members.collect(), has_shims: false }
    }

    fn import_endpoint(&mut self, now: Instant, away_ns: u64, id: EndpointId, state: &EndpointState) {
        let at = id.0 as usize;
        for direction in Direction::ALL {
            let (wire, local) = match direction {
                Direction::Egress => (&state.stats.egress, &state.stats.local_egress),
                Direction::Ingress => (&state.stats.ingress, &state.stats.local_ingress),
            };
            let scheduler = self.scheduler(direction);
            scheduler.tree_mut(Plane::Wire).restore_endpoint(id, wire);
            scheduler.tree_mut(Plane::Local).restore_endpoint(id, local);
            scheduler.restore_sojourn(id, state.stats.sojourn.get(direction));
            let limit = &mut scheduler.limits_mut().endpoints[at];
            limit.restore(now, state.owed_ns.get(direction).saturating_sub(away_ns));
            self.tallies[at].local.get_mut(direction).count_on(&local.traffic);
        }
        self.tallies[at].drops.count_on(&state.stats.drops);
        if let Some(counters) = &state.vcc {
            self.vcc.count_on(id, counters);
        }
        self.floods[at].restore(now, away_ns, state.flood);
        if let Some(policer) = &mut self.policer {
            policer.passed_mut(id).0.count_on(&state.stats.ingress.traffic);
            if let Some(held) = state.tokens {
                policer.restore(now, away_ns, id, held);
            }
        }
    }

    /// Whether a pair is limited again.
    fn import_pair(&mut self, now: Instant, away_ns: u64, id: EndpointId, pair: &PairState) -> bool {
        let Some(endpoint) = self.program.endpoints.get(id.0) else { return false };
        let limits = pair.rate >= Rate::MIN && pair.rate.is_limited();
        let queue = (endpoint.queue_bytes, self.memory.owner(id, endpoint.tenant));
        let done = limits && self.pairs.limit(now, id, pair.to, pair.rate, queue).is_ok();
        if done {
            self.pairs.restore(now, id, pair.to, pair.owed_ns.saturating_sub(away_ns));
        }
        done
    }

    fn import_held(&mut self, now: Instant, away_ns: u64, id: EndpointId, held: &HeldAddress) -> bool {
        let Some(endpoint) = self.program.endpoints.get(id.0) else { return false };
        let owner = (id, endpoint.tenant, &endpoint.identity);
        let left_ns = held.left_ns.saturating_sub(away_ns);
        self.owners.restore(now, self.forward.network(id), owner, (held.address, held.mac), left_ns)
    }

    fn has_network(&self, tenant: Option<TenantId>) -> bool {
        tenant.is_none_or(|tenant| self.program.tenants.get(tenant.0).is_some())
    }

    fn import_outside(&mut self, now: Instant, away_ns: u64, seen: &SeenOutside) -> bool {
        if !self.has_network(seen.tenant) {
            return false;
        }
        let network = network_of(seen.tenant);
        let left_ns = seen.left_ns.saturating_sub(away_ns);
        match seen.address {
            Some((address, is_router)) => {
                self.owners.restore_outside(now, network, (address, seen.mac, is_router), left_ns)
            }
            None => self.fdb.restore_outside(now, network, seen.mac, left_ns),
        }
    }

    /// Whether an address is known again.
    fn import_learned(&mut self, now: Instant, away_ns: u64, id: EndpointId, learned: &Learned) -> bool {
        let Some(endpoint) = self.program.endpoints.get(id.0) else { return false };
        let Learned { mac, vlan, left_ns } = *learned;
        let possible = !mac.is_group()
            && !mac.is_zero()
            && endpoint.identity.macs.is_empty()
            && (vlan == 0 || endpoint.trunk && vlan <= vlan::MOST);
        let network = self.forward.network(id);
        possible && self.fdb.restore(now, network, vlan, mac, id, left_ns.saturating_sub(away_ns))
    }
}

fn network_of(tenant: Option<TenantId>) -> Network {
    tenant.map_or(Network::UNTAGGED, |tenant| Network(tenant.0))
}

#[cfg(test)]
mod tests;
