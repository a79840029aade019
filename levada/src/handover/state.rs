//! How what switches know (`datapath::switch::handover`) is written down for the next process: by
//! names instead of numbers, because its configuration may count differently, and with every key
//! optional, because its version may know others.

// Where they are also seen from the fuzz target.
#[path = "state/outside.rs"]
mod outside;
#[path = "state/shed.rs"]
mod shed;

use super::early::{read_all, renumber_for};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use control::plan::{Plan, SwitchPlan};
use datapath::bond::lacp::Record;
use datapath::bond::lacp::pdu::{self, Information};
use datapath::bond::{Duplex, LineState, MemberId, MembersState, Negotiated, PeerState};
use datapath::flood::Saved;
use datapath::pair::Toward;
use datapath::police::Tokens;
use datapath::program::{EndpointId, TenantId};
use datapath::service::{
    Address, BackendName, BackendStats, ClientState, ConnectionState, ServiceId, ServiceState, ServiceStats, TurnState,
};
use datapath::sojourn::Sojourn;
use datapath::stats::{EndpointStats, LaneStats, Traffic};
use datapath::switch::{EndpointState, HeldAddress, Learned, NumbersState, PairState, State as Known, TenantState};
use datapath::units::{Both, Rate};
use datapath::vcc::Counters;
use datapath::vcc::connection::Why;
use datapath::vcc::saved::BYTES as VCC_RECORD;
use datapath::verdict::{DropCounters, Reason};
use datapath::wire::Mac;
use outside::{Crowded, Outside, crowded_in, crowded_out, outside_in, outside_out};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of connections that are read at most: those of seven full tables.
pub const CONNECTIONS_BYTES: u64 = 64 << 20;

/// Longest message of a takeover, in bytes.
pub const MESSAGE_BYTES: u32 = 64 << 20;

/// What the switches of a daemon know.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct State {
    /// When this was so, on CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// That of the configuration.
    pub revision: u64,
    /// By name.
    switches: BTreeMap<String, Switch>,
    /// Addresses that there was no room for.
    #[serde(skip)]
    pub left_out: usize,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Switch {
    version: u32,
    /// By name.
    tenants: BTreeMap<String, Tenant>,
    /// By path.
    endpoints: BTreeMap<String, Endpoint>,
    drops: Drops,
    /// What tenants had counted at the uplink that are gone.
    former_egress: Lane,
    former_ingress: Lane,
    flood: u64,
    flood_used_ns: u64,
    outside: Vec<Outside>,
    crowded: Vec<Crowded>,
    /// Bytes of connections of virtual congestion control: they follow the state.
    connections_bytes: u64,
    #[serde(skip)]
    connections: Vec<u8>,
    /// Of those that came early, a bit each, in base64: see `datapath::vcc::early`.
    connections_unchanged: String,
    /// By tenant and service.
    services: BTreeMap<String, Service>,
    /// How long connections may be open that none of them knows.
    recovers_ns: u64,
    bond: Option<Bond>,
    numbers: Option<Numbers>,
    /// What LACP has agreed on, by member.
    lacp: BTreeMap<String, Lacp>,
    /// How a bond's members are used.
    members: Members,
}

/// How a bond's members are used, by name.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Members {
    used: Vec<String>,
    active: Option<String>,
    is_chosen: bool,
}

/// Over which members numbers may come that nobody takes off, by name; an uplink's only port has
/// none.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Numbers {
    members: Vec<String>,
    has_shims: bool,
}

/// A member on which LACP has agreed: its number, and the other end.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Lacp {
    port: u16,
    /// What its link has negotiated: Mbit/s, and whether it is full duplex.
    mbit: Option<u32>,
    is_full_duplex: Option<bool>,
    partner_system_priority: u16,
    partner_system: [u8; 6],
    partner_key: u16,
    partner_port_priority: u16,
    partner_port: u16,
    partner_state: u8,
}

/// What the uplink's bond knows of the other end.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Bond {
    epoch: u64,
    other: u64,
    said: u32,
    heard: u32,
    next: u64,
    expected: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Vec<u64>>,
    are_cut: bool,
    /// By name.
    members: BTreeMap<String, BondMember>,
}

/// What it knows of a member's other end.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct BondMember {
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<u8>,
    theirs: u8,
    max_frame: u16,
    is_received: bool,
    sent: u32,
}

/// A service, and its connections.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Service {
    new: u64,
    refused: u64,
    full: u64,
    evicted: u64,
    off_candidates: u64,
    redirected: u64,
    sought: u64,
    recovered: u64,
    unhealthy: u64,
    held: u64,
    stayed: u64,
    /// Address, protocol, port.
    addresses: Vec<(IpAddr, u8, u16)>,
    backends: Vec<Backend>,
    /// Of the connections: [`ConnectionState::VERSION`].
    connections_version: u32,
    /// Records one behind the other, in base64.
    connections: String,
    left_out: u64,
    /// Clients that stay at a backend, the longest away first: address, backend, milliseconds.
    clients: Vec<(Ipv6Addr, u8, u32)>,
    /// Of the connections, those that are turned around: records one behind the other, in base64.
    turns: String,
}

/// A backend, and what it has counted.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Backend {
    ipv4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Addr>,
    port: Option<u16>,
    new: u64,
    refused: u64,
    silent: u64,
    ended: u64,
    ejections: u64,
    checks: u64,
    failed_checks: u64,
    falls: u64,
    cut: u64,
    is_down: bool,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Tenant {
    egress: Lane,
    ingress: Lane,
    owed_egress_ns: u64,
    owed_ingress_ns: u64,
    flood_used_ns: u64,
    /// Of its network from the uplink; without it all of the budget is left.
    uplink_flood: Option<u64>,
    uplink_flood_used_ns: u64,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Endpoint {
    egress: Lane,
    ingress: Lane,
    local_egress: Lane,
    local_ingress: Lane,
    /// Of how long frames waited: the sum, and the counts.
    sojourn_egress: (u64, Vec<u64>),
    sojourn_ingress: (u64, Vec<u64>),
    drops: Drops,
    /// Address, VLAN, nanoseconds left.
    learned: Vec<([u8; 6], u16, u64)>,
    /// IP address, MAC address, nanoseconds left.
    held: Vec<(IpAddr, [u8; 6], u64)>,
    owed_egress_ns: u64,
    owed_ingress_ns: u64,
    flood: u64,
    flood_used_ns: u64,
    /// Packets, and nanoseconds since.
    tokens: Option<(u64, u64)>,
    pairs: Vec<Pair>,
    /// Its number in the connections that follow.
    number: Option<u32>,
    vcc: Option<Vcc>,
}

/// What virtual congestion control counted.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Vcc {
    translated: u64,
    native: u64,
    plain: u64,
    untouched: BTreeMap<String, u64>,
    acked_bytes: u64,
    marked_bytes: u64,
    hidden_marks: u64,
    lowered: u64,
    reductions: u64,
    policed: u64,
    deaf: u64,
    held: u64,
    lapsed: u64,
    unanswered_asks: u64,
    guests: [u64; 3],
    peers: [u64; 3],
}

impl From<&Counters> for Vcc {
    fn from(counters: &Counters) -> Vcc {
        let &Counters { opened: [translated, native, plain], acked_bytes, marked_bytes, hidden_marks, .. } = counters;
        let &Counters { lowered, reductions, policed, deaf, held, lapsed, unanswered_asks, guests, peers, .. } =
            counters;
        let untouched = Why::ALL.iter().map(|&why| (why.name().to_owned(), counters.untouched[why as usize]));
        let untouched = untouched.filter(|&(_, count)| count > 0).collect();
        Vcc {
            translated,
            native,
            plain,
            untouched,
            acked_bytes,
            marked_bytes,
            hidden_marks,
            lowered,
            reductions,
            policed,
            deaf,
            held,
            lapsed,
            unanswered_asks,
            guests,
            peers,
        }
    }
}

impl From<&Vcc> for Counters {
    fn from(vcc: &Vcc) -> Counters {
        let mut counters = Counters {
            opened: [vcc.translated, vcc.native, vcc.plain],
            acked_bytes: vcc.acked_bytes,
            marked_bytes: vcc.marked_bytes,
            hidden_marks: vcc.hidden_marks,
            lowered: vcc.lowered,
            reductions: vcc.reductions,
            policed: vcc.policed,
            deaf: vcc.deaf,
            held: vcc.held,
            lapsed: vcc.lapsed,
            unanswered_asks: vcc.unanswered_asks,
            guests: vcc.guests,
            peers: vcc.peers,
            ..Counters::default()
        };
        for &why in Why::ALL {
            counters.untouched[why as usize] = vcc.untouched.get(why.name()).copied().unwrap_or(0);
        }
        counters
    }
}

/// A limit toward a destination.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Pair {
    /// Everyone where there is none.
    to: Option<[u8; 6]>,
    bits_per_second: u64,
    owed_ns: u64,
}

/// Counters of a lane.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
struct Lane {
    frames: u64,
    segments: u64,
    bytes: u64,
    wire_bytes: u64,
    guaranteed_bytes: u64,
    marks: u64,
    trims: u64,
    sojourn_max_ns: u64,
    unmet_ns: u64,
}

impl From<&PairState> for Pair {
    fn from(pair: &PairState) -> Pair {
        let to = match pair.to {
            Toward::Address(mac) => Some(mac.0),
            Toward::Everyone => None,
        };
        Pair { to, bits_per_second: pair.rate.0, owed_ns: pair.owed_ns }
    }
}

impl From<&Pair> for PairState {
    fn from(pair: &Pair) -> PairState {
        let to = pair.to.map_or(Toward::Everyone, |mac| Toward::Address(Mac(mac)));
        PairState { to, rate: Rate(pair.bits_per_second), owed_ns: pair.owed_ns }
    }
}

/// By the reason's name.
type Drops = BTreeMap<String, u64>;

impl From<&LaneStats> for Lane {
    fn from(lane: &LaneStats) -> Lane {
        let Traffic { frames, segments, bytes, wire_bytes } = lane.traffic;
        let &LaneStats { guaranteed_bytes, marks, trims, sojourn_max_ns, unmet_ns, .. } = lane;
        Lane { frames, segments, bytes, wire_bytes, guaranteed_bytes, marks, trims, sojourn_max_ns, unmet_ns }
    }
}

impl From<&Lane> for LaneStats {
    fn from(lane: &Lane) -> LaneStats {
        let &Lane { frames, segments, bytes, wire_bytes, guaranteed_bytes, marks, trims, sojourn_max_ns, unmet_ns } =
            lane;
        let traffic = Traffic { frames, segments, bytes, wire_bytes };
        LaneStats { traffic, guaranteed_bytes, marks, trims, sojourn_max_ns, unmet_ns, ..LaneStats::default() }
    }
}

fn drops_out(drops: &DropCounters) -> Drops {
    drops.nonzero().map(|(reason, frames)| (reason.name().to_owned(), frames)).collect()
}

fn drops_in(drops: &Drops) -> DropCounters {
    let mut counters = DropCounters::default();
    for (name, &frames) in drops {
        if let Some(reason) = Reason::ALL.iter().find(|reason| reason.name() == name) {
            counters.add(*reason, frames);
        }
    }
    counters
}

/// Bytes of connections of virtual congestion control that each of `switches` hands over at most:
/// whole records, and all together no more than the next process reads.
#[must_use]
pub fn connections_bytes(switches: usize) -> usize {
    CONNECTIONS_BYTES as usize / switches.max(1) / VCC_RECORD * VCC_RECORD
}

impl State {
    /// What the switches of `plan` know at `at_ns`, by their numbers.
    #[must_use]
    pub fn new(at_ns: u64, plan: &Plan, known: &mut [Known]) -> State {
        let left_out = shed::shed(plan, known);
        let most_connections = connections_bytes(plan.switches.len());
        let switches = plan.switches.iter().filter_map(|(number, switch)| {
            let known = known.get_mut(number as usize)?;
            let mut connections = std::mem::take(&mut known.vcc);
            connections.truncate(most_connections);
            let endpoint = |(id, state): &(EndpointId, EndpointState)| {
                (switch.endpoint_path(*id), Endpoint { number: Some(id.0), ..endpoint_out(state) })
            };
            let endpoints = known.endpoints.iter().map(endpoint);
            let tenant = |state: &TenantState| Tenant {
                egress: (&state.stats.egress).into(),
                ingress: (&state.stats.ingress).into(),
                owed_egress_ns: state.owed_ns.egress,
                owed_ingress_ns: state.owed_ns.ingress,
                flood_used_ns: state.flood_used_ns,
                uplink_flood: Some(state.uplink_flood.frames),
                uplink_flood_used_ns: state.uplink_flood.used_ns,
            };
            let tenants = known.tenants.iter().map(|(id, t)| (switch.tenants[id.0 as usize].clone(), tenant(t)));
            let written = Switch {
                version: known.version,
                tenants: tenants.collect(),
                endpoints: endpoints.collect(),
                drops: drops_out(&known.uplink_drops),
                former_egress: (&known.former.egress).into(),
                former_ingress: (&known.former.ingress).into(),
                flood: known.uplink_flood.frames,
                flood_used_ns: known.uplink_flood.used_ns,
                outside: known.outside.iter().map(|seen| outside_out(switch, seen)).collect(),
                crowded: known.crowded.iter().map(|crowded| crowded_out(switch, crowded)).collect(),
                connections_bytes: connections.len() as u64,
                connections,
                connections_unchanged: BASE64.encode(&known.vcc_unchanged),
                services: services_out(switch, &known.services, RECORDS / plan.switches.len().max(1)),
                recovers_ns: known.recovers_ns,
                bond: known.bond.as_ref().map(|state| bond_out(switch, state)),
                numbers: known.numbers.as_ref().map(|state| numbers_out(switch, state)),
                lacp: known.lacp.iter().filter_map(|record| lacp_out(switch, record)).collect(),
                members: members_out(switch, &known.members),
            };
            Some((switch.name.clone(), written))
        });
        State { at_ns, switches: switches.collect(), left_out, ..State::default() }
    }

    /// Connections, to be sent after the state, switch by switch.
    #[must_use]
    pub fn take_connections(&mut self) -> Vec<Vec<u8>> {
        self.switches.values_mut().map(|switch| std::mem::take(&mut switch.connections)).collect()
    }

    /// None follow.
    pub fn forget_connections(&mut self) {
        for switch in self.switches.values_mut() {
            (switch.connections, switch.connections_bytes) = (Vec::new(), 0);
        }
    }

    /// Reads the connections that follow it.
    ///
    /// # Errors
    /// They are more than any switch has, or do not come.
    pub fn read_connections(&mut self, mut from: impl Read) -> io::Result<()> {
        let bytes = self.switches.values().fold(0u64, |all, switch| all.saturating_add(switch.connections_bytes));
        if bytes > CONNECTIONS_BYTES {
            let why = format!("{bytes} bytes of connections are above {CONNECTIONS_BYTES}: start without --takeover");
            return Err(io::Error::other(why));
        }
        for switch in self.switches.values_mut() {
            switch.connections = read_all(from.by_ref(), switch.connections_bytes)?;
        }
        Ok(())
    }

    /// What there is for each switch of `plan`, by its number; the connections are taken out.
    #[must_use]
    pub fn known(&mut self, plan: &Plan) -> Vec<(usize, Known)> {
        let of = |(number, switch): (u32, &SwitchPlan)| {
            let written = self.switches.get_mut(&switch.name)?;
            let vcc = connections_in(switch, written);
            let endpoints = switch.program.endpoints.iter().filter_map(|(id, _)| {
                let id = EndpointId(id);
                Some((id, endpoint_in(written.endpoints.get(&switch.endpoint_path(id))?)))
            });
            let tenants = switch.program.tenants.iter().filter_map(|(id, _)| {
                let tenant = written.tenants.get(&switch.tenants[id as usize])?;
                let stats = Both { egress: (&tenant.egress).into(), ingress: (&tenant.ingress).into() };
                let owed_ns = Both { egress: tenant.owed_egress_ns, ingress: tenant.owed_ingress_ns };
                let uplink_flood =
                    Saved { frames: tenant.uplink_flood.unwrap_or(u64::MAX), used_ns: tenant.uplink_flood_used_ns };
                Some((TenantId(id), TenantState { stats, owed_ns, flood_used_ns: tenant.flood_used_ns, uplink_flood }))
            });
            let known = Known {
                version: written.version,
                endpoints: endpoints.collect(),
                tenants: tenants.collect(),
                uplink_drops: drops_in(&written.drops),
                former: former_in(switch, written),
                uplink_flood: Saved { frames: written.flood, used_ns: written.flood_used_ns },
                outside: outside_in(switch, &written.outside),
                crowded: crowded_in(switch, &written.crowded),
                vcc,
                vcc_unchanged: BASE64.decode(&written.connections_unchanged).unwrap_or_default(),
                services: services_in(switch, &written.services),
                recovers_ns: written.recovers_ns,
                bond: written.bond.as_ref().map(|state| bond_in(switch, state)),
                numbers: written.numbers.as_ref().map(|state| numbers_in(switch, state)),
                lacp: lacp_in(switch, &written.lacp),
                members: members_in(switch, &written.members),
            };
            Some((number as usize, known))
        };
        plan.switches.iter().filter_map(of).collect()
    }
}

/// What tenants had counted at the uplink that were gone, or are not in this plan.
fn former_in(switch: &SwitchPlan, written: &Switch) -> Both<LaneStats> {
    let mut former = Both { egress: (&written.former_egress).into(), ingress: (&written.former_ingress).into() };
    let known: BTreeSet<&String> = switch.tenants.values().collect();
    let is_gone = |(name, _): &(&String, &Tenant)| !known.contains(name);
    for (_, tenant) in written.tenants.iter().filter(is_gone) {
        LaneStats::sum(&mut former.egress, &(&tenant.egress).into());
        LaneStats::sum(&mut former.ingress, &(&tenant.ingress).into());
    }
    former
}

fn member_names(switch: &SwitchPlan) -> &[String] {
    switch.bond.as_ref().map_or(&[], |bond| &bond.names)
}

fn members_out(switch: &SwitchPlan, state: &MembersState) -> Members {
    let name = |id: &MemberId| member_names(switch).get(usize::from(id.0)).cloned();
    let used = state.used.iter().filter_map(name).collect();
    Members { used, active: state.active.as_ref().and_then(name), is_chosen: state.is_chosen }
}

fn members_in(switch: &SwitchPlan, written: &Members) -> MembersState {
    let id = |name: &String| member_names(switch).iter().position(|one| one == name).map(|n| MemberId(n as u8));
    let used = written.used.iter().filter_map(id).collect();
    MembersState { used, active: written.active.as_ref().and_then(id), is_chosen: written.is_chosen }
}

fn numbers_out(switch: &SwitchPlan, state: &NumbersState) -> Numbers {
    let name = |id: &MemberId| member_names(switch).get(usize::from(id.0)).cloned().unwrap_or_default();
    Numbers { members: state.members.iter().map(name).collect(), has_shims: state.has_shims }
}

/// Where one port was made a bond, or the other way round, any port may be the one.
fn numbers_in(switch: &SwitchPlan, written: &Numbers) -> NumbersState {
    let names = member_names(switch);
    let is_one = |name: &str| written.members.iter().any(|one| one == name || one.is_empty());
    let known = (0..).map(MemberId).zip(names).filter(|(_, name)| is_one(name)).map(|(id, _)| id);
    let only = (names.is_empty() && !written.members.is_empty()).then_some(MemberId(0));
    NumbersState { members: known.chain(only).collect(), has_shims: written.has_shims }
}

fn bond_out(switch: &SwitchPlan, state: &PeerState) -> Bond {
    let &PeerState { epoch, other, said, heard, next, expected, are_cut, .. } = state;
    let member = |&(id, line): &(MemberId, LineState)| {
        let LineState { own, theirs, max_frame, is_received, sent } = line;
        let name = member_names(switch).get(usize::from(id.0))?.clone();
        Some((name, BondMember { own, theirs, max_frame, is_received, sent }))
    };
    let members = state.members.iter().filter_map(member).collect();
    Bond { epoch, other, said, heard, next, expected, missing: state.missing.clone(), are_cut, members }
}

fn bond_in(switch: &SwitchPlan, written: &Bond) -> PeerState {
    let &Bond { epoch, other, said, heard, next, expected, are_cut, .. } = written;
    let members = (0..).map(MemberId).zip(member_names(switch)).filter_map(|(id, name)| {
        let &BondMember { own, theirs, max_frame, is_received, sent } = written.members.get(name)?;
        Some((id, LineState { own, theirs, max_frame, is_received, sent }))
    });
    let (missing, members) = (written.missing.clone(), members.collect());
    PeerState { epoch, other, said, heard, next, expected, missing, are_cut, members }
}

fn lacp_out(switch: &SwitchPlan, (id, record): &(MemberId, Record)) -> Option<(String, Lacp)> {
    let Information { system_priority, system, key, port_priority, port, state } = record.partner;
    let Negotiated { mbit, duplex } = record.negotiated;
    let written = Lacp {
        port: record.port,
        mbit,
        is_full_duplex: (duplex != Duplex::Unknown).then_some(duplex == Duplex::Full),
        partner_system_priority: system_priority,
        partner_system: system.0,
        partner_key: key,
        partner_port_priority: port_priority,
        partner_port: port,
        partner_state: state.0,
    };
    Some((member_names(switch).get(usize::from(id.0))?.clone(), written))
}

fn lacp_in(switch: &SwitchPlan, written: &BTreeMap<String, Lacp>) -> Vec<(MemberId, Record)> {
    let one = |(id, name): (MemberId, &String)| {
        let of = written.get(name)?;
        let partner = Information {
            system_priority: of.partner_system_priority,
            system: Mac(of.partner_system),
            key: of.partner_key,
            port_priority: of.partner_port_priority,
            port: of.partner_port,
            state: pdu::State(of.partner_state),
        };
        let duplex =
            of.is_full_duplex.map_or(Duplex::Unknown, |is_full| if is_full { Duplex::Full } else { Duplex::Half });
        Some((id, Record { port: of.port, negotiated: Negotiated { mbit: of.mbit, duplex }, partner }))
    };
    (0..).map(MemberId).zip(member_names(switch)).filter_map(one).collect()
}

/// Connections, with the numbers that their endpoints have now.
fn connections_in(switch: &SwitchPlan, written: &mut Switch) -> Vec<u8> {
    let mut connections = std::mem::take(&mut written.connections);
    renumber_for(switch, &mut connections, |path| written.endpoints.get(path)?.number);
    connections
}

/// Connections of all switches that are written down at most: in base64 they take half of what a
/// message may.
const RECORDS: usize = (32 << 20) / RECORD_TEXT;
/// Characters of one of them.
const RECORD_TEXT: usize = (ConnectionState::BYTES * 4).div_ceil(3);

fn service_path(switch: &SwitchPlan, id: u32) -> Option<String> {
    let (service, named) = (switch.program.services.get(id)?, switch.services.get(id)?);
    Some(format!("{}/{}", switch.tenants.get(service.tenant.0)?, named.name))
}

fn services_out(
    switch: &SwitchPlan,
    all: &[(ServiceId, ServiceState)],
    mut records: usize,
) -> BTreeMap<String, Service> {
    let one = |(id, state): &(ServiceId, ServiceState)| {
        let stats = &state.stats;
        // Those that matter most are the last.
        let fit = state.connections.len().min(records);
        records -= fit;
        let out = state.connections.len() - fit;
        let bytes: Vec<u8> = state.connections[out..].iter().flat_map(ConnectionState::to_bytes).collect();
        // One takes about as much. The last ones were away for the shortest.
        let clients = &state.clients[state.clients.len() - state.clients.len().min(records)..];
        records -= clients.len();
        // So does one of these.
        let turns = &state.turns[..state.turns.len().min(records)];
        records -= turns.len();
        let turns: Vec<u8> = turns.iter().flat_map(TurnState::to_bytes).collect();
        let backend = |(name, stats): &(BackendName, BackendStats)| Backend {
            ipv4: name.ipv4,
            ipv6: name.ipv6,
            port: name.port,
            new: stats.new,
            refused: stats.refused,
            silent: stats.silent,
            ended: stats.ended,
            ejections: stats.ejections,
            checks: stats.checks,
            failed_checks: stats.failed_checks,
            falls: stats.falls,
            cut: stats.cut,
            is_down: stats.is_down,
        };
        let service = Service {
            new: stats.new,
            refused: stats.refused,
            full: stats.full,
            evicted: stats.evicted,
            off_candidates: stats.off_candidates,
            redirected: stats.redirected,
            sought: stats.sought,
            recovered: stats.recovered,
            unhealthy: stats.unhealthy,
            held: stats.held,
            stayed: stats.stayed,
            addresses: state.addresses.iter().map(|a| (a.ip, a.protocol, a.port)).collect(),
            backends: state.backends.iter().map(backend).collect(),
            connections_version: ConnectionState::VERSION,
            connections: BASE64.encode(bytes),
            left_out: state.left_out + out as u64,
            clients: clients.iter().map(|c| (c.client.into(), c.backend, c.idle_ms)).collect(),
            turns: BASE64.encode(turns),
        };
        Some((service_path(switch, id.0)?, service))
    };
    all.iter().filter_map(one).collect()
}

fn services_in(switch: &SwitchPlan, all: &BTreeMap<String, Service>) -> Vec<(ServiceId, ServiceState)> {
    let one = |(id, _)| {
        let written = all.get(&service_path(switch, id)?)?;
        let is_known = written.connections_version == ConnectionState::VERSION;
        let bytes = if is_known { BASE64.decode(&written.connections).unwrap_or_default() } else { Vec::new() };
        let connections: Vec<ConnectionState> =
            bytes.as_chunks().0.iter().filter_map(ConnectionState::from_bytes).collect();
        // Those that cannot be read are open all the same.
        let all = written.connections.len().div_ceil(RECORD_TEXT);
        let left_out = written.left_out.saturating_add(all.saturating_sub(connections.len()) as u64);
        let turns = BASE64.decode(&written.turns).unwrap_or_default();
        let backend = |b: &Backend| {
            let stats = BackendStats {
                new: b.new,
                refused: b.refused,
                silent: b.silent,
                ended: b.ended,
                ejections: b.ejections,
                checks: b.checks,
                failed_checks: b.failed_checks,
                falls: b.falls,
                cut: b.cut,
                is_down: b.is_down,
                ..BackendStats::default()
            };
            (BackendName { ipv4: b.ipv4, ipv6: b.ipv6, port: b.port }, stats)
        };
        let client = |&(client, backend, idle_ms): &(Ipv6Addr, u8, u32)| ClientState {
            client: client.octets(),
            backend,
            idle_ms,
        };
        let state = ServiceState {
            stats: ServiceStats {
                new: written.new,
                refused: written.refused,
                full: written.full,
                evicted: written.evicted,
                off_candidates: written.off_candidates,
                redirected: written.redirected,
                sought: written.sought,
                recovered: written.recovered,
                unhealthy: written.unhealthy,
                held: written.held,
                stayed: written.stayed,
                ..ServiceStats::default()
            },
            addresses: written.addresses.iter().map(|&(ip, protocol, port)| Address { ip, protocol, port }).collect(),
            backends: written.backends.iter().map(backend).collect(),
            connections,
            left_out,
            clients: written.clients.iter().map(client).collect(),
            turns: turns.as_chunks().0.iter().map(TurnState::from_bytes).collect(),
        };
        Some((ServiceId(id), state))
    };
    switch.program.services.iter().filter_map(one).collect()
}

fn sojourn(sojourn: &Sojourn) -> (u64, Vec<u64>) {
    (sojourn.total_us(), sojourn.counts().to_vec())
}

fn endpoint_out(state: &EndpointState) -> Endpoint {
    Endpoint {
        egress: (&state.stats.egress).into(),
        ingress: (&state.stats.ingress).into(),
        local_egress: (&state.stats.local_egress).into(),
        local_ingress: (&state.stats.local_ingress).into(),
        sojourn_egress: sojourn(&state.stats.sojourn.egress),
        sojourn_ingress: sojourn(&state.stats.sojourn.ingress),
        drops: drops_out(&state.stats.drops),
        learned: state.learned.iter().map(|l| (l.mac.0, l.vlan, l.left_ns)).collect(),
        held: state.held.iter().map(|h| (h.address, h.mac.0, h.left_ns)).collect(),
        owed_egress_ns: state.owed_ns.egress,
        owed_ingress_ns: state.owed_ns.ingress,
        flood: state.flood.frames,
        flood_used_ns: state.flood.used_ns,
        tokens: state.tokens.map(|tokens| (tokens.packets, tokens.since_ns)),
        pairs: state.pairs.iter().map(Pair::from).collect(),
        number: None,
        vcc: state.vcc.as_deref().map(Vcc::from),
    }
}

fn endpoint_in(written: &Endpoint) -> EndpointState {
    let learned = |&(mac, vlan, left_ns): &([u8; 6], u16, u64)| Learned { mac: Mac(mac), vlan, left_ns };
    EndpointState {
        stats: EndpointStats {
            egress: (&written.egress).into(),
            ingress: (&written.ingress).into(),
            local_egress: (&written.local_egress).into(),
            local_ingress: (&written.local_ingress).into(),
            sojourn: Both {
                egress: Sojourn::from_parts(written.sojourn_egress.0, &written.sojourn_egress.1),
                ingress: Sojourn::from_parts(written.sojourn_ingress.0, &written.sojourn_ingress.1),
            },
            drops: drops_in(&written.drops),
        },
        learned: written.learned.iter().map(learned).collect(),
        held: written
            .held
            .iter()
            .map(|&(address, mac, left_ns)| HeldAddress { address, mac: Mac(mac), left_ns })
            .collect(),
        owed_ns: Both { egress: written.owed_egress_ns, ingress: written.owed_ingress_ns },
        flood: Saved { frames: written.flood, used_ns: written.flood_used_ns },
        tokens: written.tokens.map(|(packets, since_ns)| Tokens { packets, since_ns }),
        pairs: written.pairs.iter().map(PairState::from).collect(),
        vcc: written.vcc.as_ref().map(|vcc| Box::new(vcc.into())),
    }
}
