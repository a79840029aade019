//! Virtual congestion control: `GET /v1/vcc`, `POST /v1/vcc/connections`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /v1/vcc`.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default)]
pub struct VccReply {
    /// 1.
    pub version: u32,
    /// The endpoints for which anything is done.
    pub endpoints: Vec<EndpointReport>,
}

/// `POST /v1/vcc/connections`.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub struct VccRequest {
    /// One end of the connections, or both: each an IP address, perhaps with a port, as
    /// `10.0.0.1:80` or `[2001:db8::1]:80`. Where both have a port it is one connection.
    pub ends: Vec<String>,
}

/// One endpoint.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct EndpointReport {
    /// `SWITCH/TENANT/ENDPOINT`.
    pub path: String,
    /// `vcc` of the endpoint, or of its tenant where it has none.
    pub mode: String,
    /// Connections that are open.
    pub open: u32,
    /// Connections whose handshake is not complete.
    pub half_open: u32,
    /// Connections that opened so far for which the switch speaks ECN.
    pub translated: u64,
    /// Those whose guest speaks ECN itself, and was not the one that opened them.
    pub native: u64,
    /// Those whose peer has no ECN.
    pub plain: u64,
    /// Connections, or frames of none, that were left as they were, by reason.
    pub untouched: BTreeMap<String, u64>,
    /// Bytes that peers acknowledged to translated connections.
    pub acked_bytes: u64,
    /// Of these, bytes whose mark was reported.
    pub marked_bytes: u64,
    /// Marked segments that arrived, and were hidden from the guest.
    pub hidden_marks: u64,
    /// Acknowledgements whose window was lowered.
    pub lowered: u64,
    /// Reductions of a window.
    pub reductions: u64,
    /// Segments dropped since they lay beyond the window that the guest was told.
    #[serde(default)]
    pub policed: u64,
    /// Native connections that did not heed marks, and have the switch's window since.
    #[serde(default)]
    pub deaf: u64,
    /// Acknowledgements that waited, as the window was below two segments.
    #[serde(default)]
    pub held: u64,
    /// Connections that were translated and are plain since, as the peer gave no sign of ECN any
    /// more.
    #[serde(default)]
    pub lapsed: u64,
    /// Connections that opened by a SYN without ECN, after two that asked for it had no answer.
    #[serde(default)]
    pub unanswered_asks: u64,
    /// Handshakes in which the guest spoke ECN for itself: `classic` (RFC 3168), `dctcp` (the same
    /// on ECN-capable SYNs, as Linux's DCTCP) and `accecn`.
    #[serde(default)]
    pub guests: BTreeMap<String, u64>,
    /// The same of peers; one that is `accecn` may be a switch that speaks for its guest.
    #[serde(default)]
    pub peers: BTreeMap<String, u64>,
    /// What does not fit the mode, in words.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Of the connections below whose window the switch lowers; `null` where it lowers none.
    #[serde(default)]
    pub engaged: Option<EngagedReport>,
    /// The open connections used last, at most 64; of those that were asked for, at most 1000.
    pub connections: Vec<ConnectionReport>,
}

/// What connections have whose window the switch lowers.
#[derive(Serialize, Deserialize, JsonSchema, PartialEq, Debug)]
pub struct EngagedReport {
    /// How many they are.
    pub connections: u32,
    /// The median window and the largest one, in bytes.
    pub window_bytes: [u32; 2],
    /// The same of the estimated marked fraction, in millionths.
    pub marked_ppm: [u32; 2],
}

/// One connection.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct ConnectionReport {
    /// The guest's address and port.
    pub guest: String,
    /// The peer's.
    pub peer: String,
    /// `accecn`, `classic` or `plain`: what was negotiated toward the network. `native` and
    /// `untouched`: the guest's own.
    pub wire: String,
    /// `passive`: nothing is lowered yet; `engaged`: the window is the switch's; `native`;
    /// `deaf`: a native that did not heed marks, whose window is the switch's; `plain`: the peer
    /// has no ECN; `untouched`.
    #[serde(default)]
    pub state: String,
    /// Why it is untouched, in words.
    #[serde(default)]
    pub why: Option<String>,
    /// The window that the switch allows, in bytes; `null` where it lowers nothing.
    pub window_bytes: Option<u32>,
    /// Bytes that the guest has in flight.
    pub flight_bytes: u32,
    /// The estimate of the marked fraction, in millionths.
    pub marked_ppm: u32,
    /// Smoothed round trip, in microseconds; 0 before there is one.
    pub round_trip_us: u32,
}
