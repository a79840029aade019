//! An uplink with several ports: of the report, and of `GET /v1/bonds`.

use super::lacp::{LacpReport, PortReport};
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
    /// Hellos that were refused: not under the secret, or repeated.
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
    /// where that is not known.
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
    /// What its link has negotiated, in bits a second, where its driver reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_bps: Option<u64>,
    /// Whether both ends of the link may send at once: `full` or `half`, where its driver reports
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplex: Option<String>,
    /// Where frames have numbers: what is known of its other end, where it is not used as it might.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Whether frames leave it out, since nothing at its other end has answered as on others, or
    /// since its cable leads back to this bond.
    #[serde(default)]
    pub left_out: bool,
    /// What both ends of it report in `802.3ad`.
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

/// What is reported of a carrier that is not known.
pub fn unknown() -> String {
    "unknown".to_owned()
}
