//! What `show` says of an uplink with several ports.

mod lacp;

pub use lacp::{EndReport, LacpReport, PortReport};

use super::{PortState, Report, SwitchReport};
use crate::worker::SwitchNumbers;
use control::bond::RESELECTS;
use control::names::{name_of, show_mac};
use control::plan::SwitchPlan;
use datapath::bond::{BondSettings, Mode, PeerView};
use datapath::program::PortId;
use datapath::stats::Traffic;
use datapath::units::Instant;
use datapath::wire::Mac;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/bonds`.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct BondsReply {
    /// 1.
    pub version: u32,
    /// In the order of the configuration; none where no uplink has several ports.
    pub bonds: Vec<SwitchBond>,
}

/// The bond of a switch.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct SwitchBond {
    /// Name of the switch.
    pub switch: String,
    /// What it is like.
    #[serde(flatten)]
    pub bond: BondReport,
}

impl From<Report> for BondsReply {
    fn from(report: Report) -> BondsReply {
        let bond = |switch: SwitchReport| Some(SwitchBond { switch: switch.name, bond: switch.uplink?.bond? });
        BondsReply { version: report.version, bonds: report.switches.into_iter().filter_map(bond).collect() }
    }
}

/// How an uplink uses its ports.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct BondReport {
    /// As Linux's bonding driver calls it.
    pub mode: String,
    /// What the hash is made of, in a mode that balances by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xmit_hash_policy: Option<String>,
    /// Name of the active member, in a mode that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<String>,
    /// Name of the member that is active whenever it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// When another becomes active although that is up, in a mode that has an active one: `always`,
    /// `better` or `failure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_reselect: Option<String>,
    /// Between one notice after a failover and the next, in milliseconds, in such a mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_notif_delay_ms: Option<u64>,
    /// What it carries now, and what with all its members, in wire bits a second.
    pub rate_bps: u64,
    /// With all its members.
    pub configured_bps: u64,
    /// How often links are asked beside the kernel's events, in milliseconds; 0: never.
    pub miimon_ms: u64,
    /// How long a link must be up before its member is used, in milliseconds.
    pub updelay_ms: u64,
    /// How long a link must be down before its member is given up, in milliseconds.
    pub downdelay_ms: u64,
    /// Whether frames are kept in order, in a mode that could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderReport>,
    /// What is agreed with the other end, in `802.3ad`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacp: Option<LacpReport>,
    /// Its ports.
    pub members: Vec<MemberReport>,
}

/// What keeping frames in order has counted.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct OrderReport {
    /// Whether frames leave with numbers.
    pub numbered: bool,
    /// Why they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// Whether hellos are under a secret.
    #[serde(default)]
    pub keyed: bool,
    /// Hellos that were refused: not under the secret, or said before.
    #[serde(default)]
    pub refused: u64,
    /// How long a frame may wait for an earlier one, in microseconds.
    pub hold_us: u64,
    /// Frames received with a number.
    pub received: u64,
    /// Of these, those that waited for an earlier one.
    pub held: u64,
    /// Frames that wait now.
    pub waiting: u32,
    /// Longest time that a frame was held, in microseconds.
    pub hold_max_us: u64,
    /// Frames that came after later ones had gone on.
    pub late: u64,
    /// Numbers that were given up.
    pub lost: u64,
    /// Frames that another member had brought already.
    pub duplicate: u64,
    /// Frames that came in pieces.
    pub pieces: u64,
}

/// A port of such an uplink.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct MemberReport {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: String,
    /// `down`, `standby`, `collecting` or `distributing`.
    pub state: String,
    /// For how long, in milliseconds.
    #[serde(default)]
    pub state_ms: u64,
    /// Whether its link has a carrier: `up`, `down` (also where its device is gone), or `unknown`
    /// where nobody says so.
    #[serde(default = "unknown")]
    pub carrier: String,
    /// How long until a delay ends, in milliseconds: until it is given up where its carrier is
    /// `down` (`downdelay`), else until it is used (`updelay`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns_ms: Option<u64>,
    /// `down` where the operator has taken it down, else `up`.
    #[serde(default)]
    pub admin: String,
    /// Hardware address of its interface, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Whether its device is open, as for an endpoint: `up` or `down`.
    pub device: String,
    /// Of a device that is gone: why, and what brings it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// How often its port went away.
    #[serde(default)]
    pub losses: u64,
    /// What the worker spent on it, reading and writing.
    #[serde(default)]
    pub worker_ns: u64,
    /// What it carries, and is paced at: its rate as configured, or its link's speed where that is
    /// less.
    pub rate_bps: u64,
    /// What it is configured for.
    #[serde(default)]
    pub configured_bps: u64,
    /// Which of the two it is: `rate` or `link`.
    #[serde(default)]
    pub paced_by: String,
    /// What its link has negotiated, in bits a second, where its driver says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_bps: Option<u64>,
    /// Whether both ends of the link may send at once: `full` or `half`, where its driver says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplex: Option<String>,
    /// Where frames have numbers: what is known of its other end, where it is not used as it might.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Whether frames leave it out, since nobody at its other end has answered as on others.
    #[serde(default)]
    pub left_out: bool,
    /// What both ends of it say in `802.3ad`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacp: Option<PortReport>,
    /// How often it ceased to be sent to.
    pub failures: u32,
    /// Frames and wire bytes sent.
    pub sent: CarriedReport,
    /// Frames and wire bytes received.
    pub received: CarriedReport,
    /// Frames that it had no room for.
    pub full: u64,
    /// Segments that it marked (ECN), as they were to wait for long.
    #[serde(default)]
    pub marks: u64,
    /// Frames that it sent again, which had gone over a member that failed.
    pub replayed: u64,
    /// Numbered frames that the other end has sent over it, and that did not arrive.
    #[serde(default)]
    pub lost_frames: u64,
    /// Wire bytes that wait for it.
    pub waiting_bytes: u64,
}

/// What a member has carried in one direction.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarriedReport {
    /// Frames on the wire.
    pub segments: u64,
    /// Wire bytes.
    pub wire_bytes: u64,
}

impl From<Traffic> for CarriedReport {
    fn from(traffic: Traffic) -> CarriedReport {
        CarriedReport { segments: traffic.segments, wire_bytes: traffic.wire_bytes }
    }
}

/// The bond of a switch; `None` where its uplink has one port.
pub(super) fn report(
    plan: &SwitchPlan,
    numbers: &SwitchNumbers,
    now: Instant,
    port_of: impl Fn(PortId) -> PortState,
    mac_of: impl Fn(PortId) -> Option<Mac>,
) -> Option<BondReport> {
    const NS_PER_MS: u64 = 1_000_000;
    let (bond, uplink) = (plan.bond.as_ref()?, plan.program.uplink.as_ref()?);
    let settings = uplink.bond.as_ref()?;
    let name = |n: usize| bond.names.get(n).cloned().unwrap_or_default();
    let has_active = settings.mode == Mode::ActiveBackup;
    let active = numbers.members.iter().position(|member| member.is_active);
    let members = numbers.members.iter().enumerate().map(|(n, member)| (n, member, port_of(member.port)));
    let link = |n: usize| numbers.member_links.get(n).copied().unwrap_or_default();
    let all = members.map(|(n, member, is)| MemberReport {
        name: name(n),
        port: plan.ports.get(member.port.0).map(|port| port.locator.to_string()).unwrap_or_default(),
        state: member.state.name().to_owned(),
        state_ms: now.since(member.since) / NS_PER_MS,
        carrier: link(n).has_carrier.map_or_else(unknown, |is_up| if is_up { "up" } else { "down" }.to_owned()),
        turns_ms: link(n).turns.map(|at| at.since(now) / NS_PER_MS),
        admin: if bond.policy.down.get(n) == Some(&true) { "down" } else { "up" }.to_owned(),
        mac: mac_of(member.port).map(show_mac),
        device: is.state,
        lost: is.lost,
        losses: is.losses,
        worker_ns: is.worker_ns,
        rate_bps: member.rate.0,
        configured_bps: member.configured.0,
        paced_by: if member.rate < member.configured { "link" } else { "rate" }.to_owned(),
        speed_bps: member.negotiated.speed().map(|speed| speed.0),
        duplex: member.negotiated.duplex.name().map(str::to_owned),
        peer: numbers.bond_peer.as_ref().and_then(|peer| other_end(peer, n)).map(str::to_owned),
        left_out: numbers.bond_peer.as_ref().is_some_and(|peer| peer.left_out & 1 << n != 0),
        lacp: numbers.lacp.get(n).map(|view| lacp::port(view, member.state, &settings.lacp)),
        failures: member.counts.failures,
        sent: member.counts.traffic.egress.into(),
        received: member.counts.traffic.ingress.into(),
        full: member.counts.full,
        marks: member.counts.marks,
        replayed: member.counts.replayed,
        lost_frames: member.counts.lost,
        waiting_bytes: member.counts.waiting_bytes,
    });
    Some(BondReport {
        mode: settings.mode.name().to_owned(),
        xmit_hash_policy: settings.mode.hashes().then(|| settings.hash.name().to_owned()),
        active: active.filter(|_| has_active).map(name),
        primary: bond.policy.primary.map(|member| name(member.0.into())),
        primary_reselect: has_active.then(|| name_of(&RESELECTS, bond.policy.reselect).to_owned()),
        peer_notif_delay_ms: has_active.then_some(bond.notices.gap_ns / NS_PER_MS),
        rate_bps: numbers.uplink_rate.map_or(0, |rate| rate.egress.0),
        configured_bps: uplink.rate().egress.0,
        miimon_ms: bond.miimon_ns / NS_PER_MS,
        updelay_ms: bond.policy.updelay_ns / NS_PER_MS,
        downdelay_ms: bond.policy.downdelay_ns / NS_PER_MS,
        order: numbers.bond_peer.as_ref().map(|peer| order(peer, settings)),
        lacp: (settings.mode == Mode::Lacp).then(|| lacp::whole(&settings.lacp, &numbers.lacp)),
        members: all.collect(),
    })
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn order(peer: &PeerView, settings: &BondSettings) -> OrderReport {
    const NS_PER_US: u64 = 1000;
    OrderReport {
        numbered: peer.plain.is_none(),
        why_not: peer.plain.map(|plain| plain.name().to_owned()),
        keyed: settings.is_keyed,
        refused: peer.refused,
        hold_us: settings.hold_ns / NS_PER_US,
        received: peer.order.received,
        held: peer.order.held,
        waiting: peer.order.waiting,
        hold_max_us: peer.order.hold_max_ns / NS_PER_US,
        late: peer.order.late,
        lost: peer.order.lost,
        duplicate: peer.order.duplicates,
        pieces: peer.order.pieces,
    }
}

/// What is known of a member's other end; `None` where it is as it should be.
fn other_end(peer: &PeerView, member: usize) -> Option<&'static str> {
    match *peer.members.get(member)? {
        (false, ..) if peer.left_out & 1 << member != 0 => Some("left out: no hello has come"),
        (false, ..) => Some("no hello has come"),
        (true, false, _) => Some("silent: nothing comes from the other end"),
        (true, true, false) => Some("the other end receives nothing"),
        (true, true, true) => None,
    }
}
