//! What `show` says of an uplink with several ports.

use crate::worker::SwitchNumbers;
use control::plan::SwitchPlan;
use datapath::bond::Mode;
use datapath::program::PortId;
use datapath::stats::Traffic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Its ports.
    pub members: Vec<MemberReport>,
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
    /// Whether its device is open, as for an endpoint: `up` or `down`.
    pub device: String,
    /// What it carries.
    pub rate_bps: u64,
    /// How often it ceased to be sent to.
    pub failures: u32,
    /// Frames and wire bytes sent.
    pub sent: CarriedReport,
    /// Frames and wire bytes received.
    pub received: CarriedReport,
    /// Frames that it had no room for.
    pub full: u64,
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
pub fn report(plan: &SwitchPlan, numbers: &SwitchNumbers, state_of: impl Fn(PortId) -> String) -> Option<BondReport> {
    const NS_PER_MS: u64 = 1_000_000;
    let (bond, uplink) = (plan.bond.as_ref()?, plan.program.uplink.as_ref()?);
    let settings = uplink.bond.as_ref()?;
    let name = |n: usize| bond.names.get(n).cloned().unwrap_or_default();
    let active = numbers.members.iter().position(|member| member.is_active);
    let all = numbers.members.iter().enumerate().map(|(n, member)| MemberReport {
        name: name(n),
        port: plan.ports.get(member.port.0).map(|port| port.locator.to_string()).unwrap_or_default(),
        state: member.state.name().to_owned(),
        device: state_of(member.port),
        rate_bps: member.rate.0,
        failures: member.counts.failures,
        sent: member.counts.traffic.egress.into(),
        received: member.counts.traffic.ingress.into(),
        full: member.counts.full,
        waiting_bytes: member.counts.waiting_bytes,
    });
    Some(BondReport {
        mode: settings.mode.name().to_owned(),
        xmit_hash_policy: (settings.mode == Mode::BalanceXor).then(|| settings.hash.name().to_owned()),
        active: active.filter(|_| settings.mode == Mode::ActiveBackup).map(name),
        rate_bps: numbers.uplink_rate.map_or(0, |rate| rate.egress.0),
        configured_bps: uplink.rate().egress.0,
        miimon_ms: bond.miimon_ns / NS_PER_MS,
        updelay_ms: bond.policy.updelay_ns / NS_PER_MS,
        downdelay_ms: bond.policy.downdelay_ns / NS_PER_MS,
        members: all.collect(),
    })
}
