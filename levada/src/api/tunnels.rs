//! Tunnels: `GET /v1/tunnels`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/tunnels`.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct TunnelsReply {
    /// 1.
    pub version: u32,
    /// One for each switch that has an end of tunnels.
    pub switches: Vec<TunnelsReport>,
}

/// The tunnels of a switch.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
pub struct TunnelsReport {
    /// Its name.
    pub switch: String,
    /// Address of this host's end.
    pub vtep: String,
    /// The interface or the link that tunnels go over; of a bond all, and its mode.
    pub over: String,
    /// Its own address, where it is known.
    pub mac: Option<String>,
    /// Why nothing goes into a tunnel or comes out of one; `null`: it does.
    pub error: Option<String>,
    /// The longest packet in bytes that fits into a tunnel.
    pub mtu: u64,
    /// How offloaded frames of TCP leave in a tunnel.
    pub tcp: Carried,
    /// Endpoints whose devices take longer ones, which are answered with "too big", or dropped
    /// (`path-mtu`).
    pub too_long: Vec<String>,
    /// The tenants that are on other hosts too.
    pub networks: Vec<NetworkReport>,
    /// The other ends.
    pub hosts: Vec<HostReport>,
    /// What is known of other hosts and that no tunnel leads to, since there is no room or its end
    /// is of the other IP version: the first of it, by name.
    pub left_out: Vec<String>,
    /// How many that are.
    pub left_outs: u64,
}

/// How offloaded frames leave in a tunnel. The wire carries the same segments.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Carried {
    /// As one, which the interface or the kernel cuts.
    Whole,
    /// Cut, many segments together, which the interface parts.
    Trains,
    /// Cut, one by one.
    Segments,
}

/// A tenant in tunnels.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
pub struct NetworkReport {
    /// The tenant.
    pub tenant: String,
    /// Its network identifier.
    pub vni: u32,
    /// Its addresses on other hosts that are known.
    pub addresses: u64,
}

/// The host at another end.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
pub struct HostReport {
    /// Its name.
    pub host: String,
    /// Address of its end.
    pub vtep: String,
    /// Address of the next hop on the way there; `null`: not known, and frames for it are dropped
    /// (`no-route`).
    pub next_hop: Option<String>,
    /// Why it is not known.
    pub error: Option<String>,
    /// The longest packet in bytes that reaches it through a tunnel, where that is less than `mtu`:
    /// a router on the way has reported that within the last ten minutes.
    pub path_mtu: Option<u64>,
    /// Tenants of this switch that it has.
    pub tenants: Vec<String>,
}
