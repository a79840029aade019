//! What `show` says of an uplink with several ports.

mod lacp;

use crate::api::bonds::{self, BondReport, BondsReply, CarriedReport, MemberReport, OrderReport, SwitchBond};

use super::PortState;
use crate::api::report::{Report, SwitchReport};
use crate::worker::SwitchNumbers;
use control::bond::RESELECTS;
use control::names::{name_of, show_mac};
use control::plan::SwitchPlan;
use datapath::bond::{BondSettings, Mode, PeerView};
use datapath::program::PortId;
use datapath::stats::Traffic;
use datapath::units::Instant;
use datapath::wire::Mac;

impl From<Report> for BondsReply {
    fn from(report: Report) -> BondsReply {
        let bond = |switch: SwitchReport| Some(SwitchBond { switch: switch.name, bond: switch.uplink?.bond? });
        BondsReply { version: report.version, bonds: report.switches.into_iter().filter_map(bond).collect() }
    }
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
        carrier: link(n).has_carrier.map_or_else(bonds::unknown, |is_up| if is_up { "up" } else { "down" }.to_owned()),
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
        (false, ..) if peer.looped & 1 << member != 0 => Some("looped: this bond's own hellos come back"),
        (false, ..) if peer.left_out & 1 << member != 0 => Some("left out: no hello has come"),
        (false, ..) => Some("no hello has come"),
        (true, false, _) => Some("silent: nothing comes from the other end"),
        (true, true, false) => Some("the other end receives nothing"),
        (true, true, true) => None,
    }
}
